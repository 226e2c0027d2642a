"""What a probe's process did since the agent started; for metrics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields


@dataclass(slots=True)
class ProbeCounters:
    """Since the agent started; for metrics."""

    lines: int = 0  # good ones
    bad_lines: int = 0
    starts: int = 0
    kills: int = 0  # for silence


def sum_of(counters: Iterable[ProbeCounters]) -> ProbeCounters:
    """Of several probes."""
    every = list(counters)
    return ProbeCounters(**{each.name: sum(getattr(one, each.name) for one in every) for each in fields(ProbeCounters)})
