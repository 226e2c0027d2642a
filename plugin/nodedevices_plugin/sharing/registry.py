"""The sharing modes that an agent knows: those that need nothing but the kubelet (whole devices, time slices, devices
that are shared by their nature) are here.

`MODES` has the built-in ones, one line each; `SharingModes((*MODES.modes, mode))` has one more.
"""

from __future__ import annotations

from msgspec import Struct

from nodedevices_plugin.model import NOT_SHARED, PlanError
from nodedevices_plugin.sharing.base import SharingMode, Split, SplitRequest, by_replicas
from nodedevices_plugin.sharing.memory import Memory
from nodedevices_plugin.sharing.mps import Mps

SHARED = "shared"


class NoSharing(SharingMode, frozen=True):
    """Every device goes to one container. There are no rules to carry out, since `none` has none."""

    name = NOT_SHARED.name


class TimeSlicing(SharingMode, frozen=True):
    """The ids of a device are multiplied, and nothing else. The driver's scheduler switches between the processes;
    nothing keeps their memory or their faults apart."""

    name = "timeSlicing"

    def split(self, request: SplitRequest) -> Split:
        return by_replicas(self, request)


class ByNature(SharingMode, frozen=True):
    """Devices that several containers use at once without a sharing mode, such as RDMA HCAs, FUSE, or a pool outside
    the node. Their vendor decides how often each is offered (Vendor.shares); no policy chooses it."""

    name = SHARED


class SharingModes(Struct, frozen=True):
    """Sharing modes, in the order in which messages name them."""

    modes: tuple[SharingMode, ...]

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
