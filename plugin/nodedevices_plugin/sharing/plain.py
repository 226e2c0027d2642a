"""Ways to hand devices out that need nothing but the kubelet: whole, in time slices, and shared by their nature."""

from __future__ import annotations

from nodedevices_plugin.model import NOT_SHARED, PlanError
from nodedevices_plugin.sharing.base import NodeTraits, SharingMode, Split, SplitRequest, by_replicas

SHARED = "shared"


class NoSharing(SharingMode, frozen=True):
    """Every device goes to one container. There are no rules to carry out, since `none` has none."""

    name = NOT_SHARED.name

    def split(self, request: SplitRequest) -> Split:
        return Split(counts=(1,) * len(request.units), sharing=NOT_SHARED)


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

    def check(self, node: NodeTraits) -> None:
        raise PlanError("sharing.strategy", SHARED, "devices have it by themselves; give none, timeSlicing or mps")
