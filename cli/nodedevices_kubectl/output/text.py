"""A table as kubectl prints it: headers in capitals, three spaces between columns, no borders.

Widths are those of the first rows; what a watch prints later keeps them as long as it fits. Colour is added around the
word that says the same, and never inside the width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from nodedevices_common.text import printable

from nodedevices_kubectl.table import Column, Row, Tone

GAP = "   "
_COLOURS: dict[Tone, str] = {"good": "\033[32m", "warning": "\033[33m", "bad": "\033[31m"}
_BOLD, _PLAIN = "\033[1m", "\033[0m"


def painted(text: str, tone: Tone | None, *, colours: bool) -> str:
    return f"{_COLOURS[tone]}{text}{_PLAIN}" if colours and tone is not None else text


def bold(text: str, *, colours: bool) -> str:
    return f"{_BOLD}{text}{_PLAIN}" if colours else text


class TableText:
    """A table whose rows may come in several parts."""

    def __init__(self, columns: Sequence[Column], *, colours: bool, headers: bool) -> None:
        self._columns = columns
        self._colours = colours
        self._headers = headers
        self._widths: list[int] = []

    def lines(self, rows: Sequence[Row], now: datetime) -> Iterator[str]:
        """The rows as lines; the first part has the headers before it."""
        cells = [self.cells(row, now) for row in rows]
        if not cells:
            return
        if not self._widths:
            headers = [[column.header for column in self._columns]] if self._headers else []
            self._widths = [max(map(len, column), default=0) for column in zip(*headers, *cells, strict=True)]
            if headers:
                yield bold(self._line(headers[0], plain=True), colours=self._colours)
        for line in cells:
            yield self._line(line)

    def cells(self, row: Row, now: datetime) -> list[str]:
        return [printable(column.show(row.fields.get(column.field), now)) for column in self._columns]

    def _line(self, cells: Sequence[str], *, plain: bool = False) -> str:
        parts = [*map(str.ljust, cells[:-1], self._widths), *cells[-1:]]  # nothing pads the last one
        if self._colours and not plain:
            for at, (cell, column) in enumerate(zip(cells, self._columns, strict=True)):
                if column.tone is not None:
                    parts[at] = painted(cell, column.tone(cell), colours=True) + parts[at][len(cell) :]
        return GAP.join(parts)
