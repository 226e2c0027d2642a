"""Sections of a description, as `kubectl describe` writes them: values after their names, tables under their titles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from nodedevices_common.table import TableText, bold
from nodedevices_common.text import printable

from nodedevices_kubectl.views.describe import Section

INDENT = "  "


def lines(sections: Iterable[Section], now: datetime, *, colours: bool) -> Iterator[str]:
    sections = list(sections)
    width = max((len(name) for section in sections for name, _ in section.pairs), default=0) + 1
    for section in sections:
        for name, value in section.pairs:
            yield f"{f'{name}:':<{width}}{INDENT}{printable(value)}"
        if not section.title:
            continue
        if not section.rows:
            yield f"{bold(section.title + ':', colours=colours)} <none>"
            continue
        yield bold(f"{section.title}:", colours=colours)
        for line in TableText(section.columns, colours=colours, headers=True).lines(section.rows, now):
            yield INDENT + line
