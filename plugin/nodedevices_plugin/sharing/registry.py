"""The sharing modes that an agent knows, as a value that is passed to everything that turns a name into a mode.

`MODES` has the built-in ones, one line each; `MODES.with_(mode)` has one more.
"""

from __future__ import annotations

from msgspec import Struct

from nodedevices_plugin.model import PlanError
from nodedevices_plugin.sharing.base import SharingMode
from nodedevices_plugin.sharing.memory import Memory
from nodedevices_plugin.sharing.mps import Mps
from nodedevices_plugin.sharing.plain import NoSharing, TimeSlicing


class SharingModes(Struct, frozen=True):
    """Sharing modes, in the order in which messages name them."""

    modes: tuple[SharingMode, ...]

    def with_(self, mode: SharingMode) -> SharingModes:
        """Return these and one more."""
        return SharingModes((*self.modes, mode))

    @property
    def names(self) -> tuple[str, ...]:
        """The possible values of `sharing.strategy`."""
        return tuple(mode.name for mode in self.modes)

    def by_strategy(self, strategy: str) -> SharingMode:
        """Return the mode that `sharing.strategy` names. Raises PlanError for one that this agent does not know."""
        for mode in self.modes:
            if mode.name == strategy:
                return mode
        *others, last = self.names
        raise PlanError("sharing.strategy", strategy, f"this agent knows {', '.join(others)} and {last}")


MODES = SharingModes((NoSharing(), TimeSlicing(), Mps(), Memory()))
