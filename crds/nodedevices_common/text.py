"""Text from elsewhere, made fit for a message: cut, quoted, and next to what was probably meant."""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Iterable

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 60
_short.maxlist = _short.maxdict = 4
_short.maxlevel = 2


def clip(text: str, limit: int) -> str:
    """The text, or as much of it as fits with an ellipsis at its end. `limit` counts characters, as maxLength does."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def printable(text: str) -> str:
    """The text with what no terminal shows, and what is no character at all, as an escape."""
    return text if text.isprintable() else "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def some(names: Iterable[str], most: int) -> str:
    """The first names, and how many more there are: `a, b and 3 more`."""
    every = list(names)
    return ", ".join(every[:most]) + (f" and {len(every) - most} more" if len(every) > most else "")


def plain(markdown: str) -> str:
    """The text without its links and without the marks of code: for a terminal, or HELP of a metric."""
    if "](" in markdown:
        markdown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", markdown)
    return markdown.replace("`", "")


def place_of(section: str, entry: str) -> str:
    """Path of an entry of a section: `sharing.resources[0].name x`, and `capacity[0] type nic` of a list."""
    return f"{section}{entry}" if entry.startswith("[") else f"{section}.{entry}"


def show(value: object) -> str:
    """The value, made fit for a message: quoted, cut, never expanded without end."""
    return _short.repr(value)


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?`, or a list of what there is when nothing is near (and the list is short), or nothing."""
    names = sorted(set(known))
    close = difflib.get_close_matches(name.lower(), [candidate.lower() for candidate in names], n=1, cutoff=0.6)
    if close:
        found = next(candidate for candidate in names if candidate.lower() == close[0])
        return f"; did you mean {found}?"
    return f"; known: {', '.join(names)}" if 0 < len(names) <= 12 else ""


NAMED = 8  # devices, pods or ids named in one message


def listing(items: Iterable[str]) -> str:
    """A few names and how many more."""
    return some(items, NAMED)
