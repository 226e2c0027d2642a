"""benchmarks/thresholds.yaml: how many times its floor a row may take at most.

Only ratios are limited: both halves are measured in the same run, so they hold on a slow machine and beside other work,
where seconds do not. A limit leaves room for what such runs differ by, and none for an Allocate that takes four times
as long. A part that is over a limit is measured once more, and only what is over it both times counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import yaml

from benchmarks.table import Row

FILE = Path(__file__).with_name("thresholds.yaml")
Limits = Mapping[str, Mapping[str, float]]  # by part and row


class LimitsError(Exception):
    """What is wrong with the file."""


def read(parts: Collection[str], path: Path = FILE) -> Limits:
    found = yaml.safe_load(path.read_text())
    for part, rows in found.items():
        if part not in parts:
            raise LimitsError(f"{path.name}: no part {part!r}; there are {', '.join(parts)}")
        for what, limit in rows.items():
            if not isinstance(limit, int | float) or isinstance(limit, bool) or limit <= 0:
                raise LimitsError(f"{path.name}: {part}: {what}: {limit!r} is not allowed; give a number above 0")
    limits: Limits = found
    return limits


def named(rows: Sequence[Row]) -> Iterator[tuple[str, Row]]:
    """Each row with the name that a limit has: one that is indented in the table follows the row that it belongs to."""
    parent = ""
    for row in rows:
        if row.what.startswith("  "):
            yield f"{parent}; {row.what.strip()}", row
        else:
            parent = row.what
            yield parent, row


def over(rows: Sequence[Row], limits: Mapping[str, float]) -> dict[str, str]:
    """By row what is wrong with it: it is above its limit, or it was not measured, so that its name may be old."""
    ratios = {what: row.measured / row.floor for what, row in named(rows) if row.floor}
    wrong = {what: "was not measured, or has no floor" for what in limits if what not in ratios}
    for what, limit in limits.items():
        if what in ratios and ratios[what] > limit:
            wrong[what] = f"{ratios[what]:.1f} times its floor, and {limit:g} are allowed"
    return wrong
