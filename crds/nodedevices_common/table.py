"""Rows, the columns that show them, and the table as kubectl prints it: headers in capitals, three spaces between
columns, no borders.

A row has all that is known of its thing as plain JSON values under camelCase names (`-o json` writes them as they are);
a column shows one of them. A column's header in lower case, or the name of any field, is what `--sort-by` takes.

Widths are those of the first rows; what a watch prints later keeps them as long as it fits. Colour is added around the
word that says the same, and never inside the width.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from nodedevices_common.text import printable

Tone = Literal["good", "warning", "bad"]
NONE = "<none>"
GAP = "   "
_COLOURS: dict[Tone, str] = {"good": "\033[32m", "warning": "\033[33m", "bad": "\033[31m"}
_BOLD, _PLAIN = "\033[1m", "\033[0m"
_NUMBER = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class Row:
    """`name`: for `-o name`, and for other commands to take; `key`: by which a watch knows the row again."""

    name: str
    fields: Mapping[str, Any]
    key: str = ""


def as_text(value: Any, now: datetime) -> str:
    """Return a field as a cell: `<none>` for what is absent or empty, lists with commas."""
    if value is None or value in ("", []):
        return NONE
    if isinstance(value, list):
        return ",".join(str(each) for each in value)
    return str(value)


def first_of(most: int) -> Callable[[Any, datetime], str]:
    """Return a form for lists that shows so many, and how many more there are."""

    def show(value: Any, now: datetime) -> str:
        names = [str(name) for name in value or ()]
        more = f",+{len(names) - most}" if len(names) > most else ""
        return (",".join(names[:most]) + more) or NONE

    return show


@dataclass(frozen=True, slots=True)
class Column:
    header: str
    field: str
    show: Callable[[Any, datetime], str] = as_text
    wide: bool = False  # only with -o wide
    tone: Callable[[str], Tone | None] | None = None  # of the cell's text; the text alone says it, too


@dataclass(frozen=True, slots=True)
class Kind:
    """What a command lists. `name`: of the JSON document; `word`: for people, in the plural."""

    name: str
    word: str
    columns: tuple[Column, ...]
    state: str = "status"  # field that says Unreachable of a cluster without an answer


def natural(value: Any) -> tuple[Any, ...]:
    """Return a key that sorts numbers by size, texts with numbers in them as people count (gpu-2 before gpu-10), and
    what is absent last."""
    if value is None or value in ("", []):
        return (2,)
    if isinstance(value, int | float):
        return (0, value)
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return (1, *((0, int(part)) if part.isdecimal() else (1, part) for part in _NUMBER.split(text) if part))


def sort_rows(rows: Sequence[Row], field: str | None) -> list[Row]:
    """Return the rows in order of the field; None: as they came."""
    return list(rows) if field is None else sorted(rows, key=lambda row: natural(row.fields.get(field)))


def bold(text: str, *, colours: bool) -> str:
    return f"{_BOLD}{text}{_PLAIN}" if colours else text


@dataclass(slots=True)
class TableText:
    """A table whose rows may come in several parts."""

    columns: Sequence[Column]
    colours: bool
    headers: bool
    _widths: list[int] = field(default_factory=list)

    def lines(self, rows: Sequence[Row], now: datetime) -> Iterator[str]:
        """The rows as lines; the first part has the headers before it."""
        cells = [self.cells(row, now) for row in rows]
        if not cells:
            return
        if not self._widths:
            headers = [[column.header for column in self.columns]] if self.headers else []
            self._widths = [max(map(len, column), default=0) for column in zip(*headers, *cells, strict=True)]
            if headers:
                yield bold(self._line(headers[0], plain=True), colours=self.colours)
        for line in cells:
            yield self._line(line)

    def cells(self, row: Row, now: datetime) -> list[str]:
        return [printable(column.show(row.fields.get(column.field), now)) for column in self.columns]

    def _line(self, cells: Sequence[str], *, plain: bool = False) -> str:
        parts = [*map(str.ljust, cells[:-1], self._widths), *cells[-1:]]  # nothing pads the last one
        if self.colours and not plain:
            for at, (cell, column) in enumerate(zip(cells, self.columns, strict=True)):
                if column.tone is not None and (tone := column.tone(cell)) is not None:
                    parts[at] = f"{_COLOURS[tone]}{cell}{_PLAIN}{parts[at][len(cell) :]}"
        return GAP.join(parts)
