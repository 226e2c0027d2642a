"""The sharing modes that an agent knows: a value, which whoever turns a name into a mode is given.

`MODES` are those that it comes with, one line each. One more is known to what is given `MODES.with_(mode)`.
"""

from __future__ import annotations

from dataclasses import dataclass

from nodedevices_plugin.model import PlanError
from nodedevices_plugin.sharing.base import HelperTexts, SharingMode
from nodedevices_plugin.sharing.memory.mode import Memory
from nodedevices_plugin.sharing.mps import Mps
from nodedevices_plugin.sharing.none import NoSharing
from nodedevices_plugin.sharing.time_slicing import TimeSlicing


@dataclass(frozen=True, slots=True)
class SharingModes:
    """In the order in which messages name them."""

    modes: tuple[SharingMode, ...]

    def with_(self, mode: SharingMode) -> SharingModes:
        """These, and one more."""
        return SharingModes((*self.modes, mode))

    @property
    def names(self) -> tuple[str, ...]:
        """What `sharing.strategy` may be."""
        return tuple(each.name for each in self.modes)

    def by_strategy(self, strategy: str) -> SharingMode:
        """The mode that `sharing.strategy` names. Raises PlanError for one that this agent does not know."""
        for mode in self.modes:
            if mode.name == strategy:
                return mode
        *others, last = self.names
        raise PlanError("sharing.strategy", strategy, f"this agent knows {', '.join(others)} and {last}")

    def texts(self, reason: str) -> HelperTexts | None:
        """Of the helpers that have this reason."""
        kinds = (mode.helper for mode in self.modes)
        every = (kind.texts for kind in kinds if kind is not None)
        return next((texts for texts in every if reason in {texts.down, texts.restarted}), None)


MODES = SharingModes((NoSharing(), TimeSlicing(), Mps(), Memory()))
