"""How the benchmarks print: what was measured, a floor measured in the same run, the target of docs/architecture.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles


class NotHere(Exception):  # noqa: N818 - reads as what it says
    """What keeps this from being measured on this machine."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement. `floor` is the least that anything could take here, measured in the same run."""

    what: str
    measured: float
    unit: str
    target: float | None = None
    floor: float | None = None
    floor_is: str = ""


def percentile(values: Sequence[float], percent: int) -> float:
    """By interpolation between the values; one value is its own percentile."""
    if len(values) == 1:
        return values[0]
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def show(rows: Sequence[Row]) -> str:
    """The rows as text: ratios are measured / floor; a target is a promise, not a test."""
    header = ("what", "measured", "target", "met", "floor", "ratio", "the floor is")
    lines = [header, *(cells(row) for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def cells(row: Row) -> tuple[str, ...]:
    return (
        row.what,
        f"{row.measured:.3g} {row.unit}",
        "" if row.target is None else f"{row.target:g} {row.unit}",
        "" if row.target is None else "yes" if row.measured <= row.target else "no",
        "" if row.floor is None else f"{row.floor:.3g} {row.unit}",
        "" if not row.floor else f"{row.measured / row.floor:.1f}",
        row.floor_is,
    )
