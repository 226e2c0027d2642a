"""Whether what a process has of something is flat over hours: pure functions over samples.

The first part of a run is warm-up: caches fill, libraries load. Of the rest, the median of the first third is compared
with that of the last one, so that a peak counts for nothing and a slow leak for everything that it adds up to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

WARM_UP = 0.25  # of the samples
FEWEST = 12  # less cannot show a trend


@dataclass(frozen=True)
class Bound:
    """How much more the end may have than the beginning."""

    most: float  # in the unit of the samples
    share: float = 0.0  # of the beginning; the larger of both counts


@dataclass(frozen=True)
class Trend:
    first: float
    last: float
    highest: float

    @property
    def grown(self) -> float:
        return self.last - self.first

    def within(self, bound: Bound) -> bool:
        return self.grown <= max(bound.most, bound.share * self.first)


def trend(samples: Sequence[float]) -> Trend | None:
    """None: there are too few samples."""
    if len(samples) < FEWEST:
        return None
    warm = samples[int(len(samples) * WARM_UP) :]
    third = len(warm) // 3
    return Trend(median(warm[:third]), median(warm[-third:]), max(warm))


def leaks(series: Mapping[str, Sequence[float]], bounds: Mapping[str, Bound]) -> list[str]:
    """Series that have grown by more than they may; `bounds` by the last word of a series' name."""
    found = []
    for name, samples in sorted(series.items()):
        seen, bound = trend(samples), bounds[name.rpartition(" ")[2]]
        if seen is not None and not seen.within(bound):
            found.append(f"{name} grew from {seen.first:g} to {seen.last:g} in {len(samples)} samples")
    return found


def table(series: Mapping[str, Sequence[float]]) -> str:
    """In Markdown, as docs/benchmarks.md has it."""
    lines = ["| | samples | after warm-up | at the end | most |", "|---|---|---|---|---|"]
    for name, samples in sorted(series.items()):
        seen = trend(samples)
        if seen is not None:
            numbers = (f"{each:.1f}".removesuffix(".0") for each in (seen.first, seen.last, seen.highest))
            lines.append(f"| {name} | {len(samples)} | {' | '.join(numbers)} |")
    return "\n".join(lines)
