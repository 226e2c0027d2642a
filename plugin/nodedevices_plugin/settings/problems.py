"""How a setting is refused: its place, its value, what would be right. Texts are for people, and bounded."""

from __future__ import annotations

from collections.abc import Iterable

from nodedevices_common.errors import InputError

SHOWN = 5  # problems in one message


class ConfigError(InputError):
    """A configuration that cannot be used. `problems` are complete sentences for people; `field`: which one of a
    policy's sections the first is about, as `sharing.resources[0].replicas`; empty: none."""

    def __init__(self, problems: Iterable[str], field: str = "") -> None:
        super().__init__(problems, place=field)
        self.field = self.place

    def __str__(self) -> str:
        more = len(self.problems) - SHOWN
        return "; ".join(self.problems[:SHOWN]) + (f"; and {more} more" if more > 0 else "")
