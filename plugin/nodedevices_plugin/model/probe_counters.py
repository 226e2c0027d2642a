"""Counts of one probe's lines since the agent's start; for metrics."""

from __future__ import annotations

from msgspec import Struct


class ProbeCounters(Struct):
    """Since the agent started; for metrics. A start is one of its process, or a connection to its socket."""

    lines: int = 0  # good ones
    bad_lines: int = 0
    starts: int = 0
    kills: int = 0  # for silence
