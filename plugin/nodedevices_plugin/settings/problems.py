"""How a setting is refused: where it stands, what it says, what would be right. Texts are for people, and bounded."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable

from nodedevices_common.errors import InputError

SHOWN = 5  # problems in one message

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 60
_short.maxlist = _short.maxdict = 4
_short.maxlevel = 2


class ConfigError(InputError):
    """A configuration that cannot be used. `problems` are complete sentences for people; `field`: which one of a
    policy's sections the first is about, as `sharing.resources[0].replicas`; empty: none."""

    def __init__(self, problems: Iterable[str], field: str = "") -> None:
        super().__init__(problems, place=field)
        self.field = field

    def __str__(self) -> str:
        more = len(self.problems) - SHOWN
        return "; ".join(self.problems[:SHOWN]) + (f"; and {more} more" if more > 0 else "")


def show(value: object) -> str:
    """The value as it may stand in a message: quoted, cut, never expanded without end."""
    return _short.repr(value)


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?`, or a list of what there is when nothing is near (and the list is short), or nothing."""
    names = sorted(set(known))
    close = difflib.get_close_matches(name.lower(), [each.lower() for each in names], n=1, cutoff=0.6)
    if close:
        found = next(each for each in names if each.lower() == close[0])
        return f"; did you mean {found}?"
    return f"; known here: {', '.join(names)}" if 0 < len(names) <= 12 else ""
