"""The input and output of a gate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set

from msgspec import Struct, field

from nodedevices_plugin.model import (
    Blocked,
    Cordon,
    Holdings,
    Inventory,
    NodePods,
    OfferedResource,
    Plan,
    RecentAllocate,
    SchedulableId,
    Verdict,
)
from nodedevices_plugin.offering.occupancy import HeldId
from nodedevices_plugin.sharing.daemons import DaemonStatuses
from nodedevices_plugin.sharing.mps import MpsDaemon

Check = Callable[[OfferedResource, SchedulableId], Blocked | None]


class WaitingChange(Struct, frozen=True, kw_only=True):
    """A change of the configuration that waits. `shape`: what it will offer; `waits_for`: pods, <namespace>/<pod>."""

    shape: Plan
    waits_for: tuple[str, ...] = ()


class NoSpecification(Struct, frozen=True, kw_only=True):
    """No CDI specification brings the driver's libraries for these devices of one vendor, or none names them.
    `devices`: their ids; `elsewhere`: devices and partitions that this is not true of."""

    why: str
    devices: Set[str]
    elsewhere: Set[str] = frozenset()


class GateFacts(Struct, frozen=True, kw_only=True):
    """The input of gates, beside the shape: the node as it is now."""

    inventory: Inventory
    verdicts: Mapping[str, Verdict]
    cordons: Sequence[Cordon] = ()  # that hold now
    removed_probes: Mapping[str, str] = field(default_factory=dict)  # device -> why, where its probe was taken away
    places: Mapping[str, str] = field(default_factory=dict)  # device or partition -> why its place is another's
    held: Sequence[HeldId] = ()  # all ids of this node's devices that are held, or may be
    held_otherwise: Sequence[HeldId] = ()  # those of them that the shape does not have (offering.occupancy)
    holdings: Holdings
    unconfirmed: Sequence[RecentAllocate] = ()  # Allocates that PodResources has not shown yet
    change: WaitingChange | None = None
    staying: Sequence[MpsDaemon] = ()  # MPS daemons that are no longer wanted, and stay while their clients run
    statuses: DaemonStatuses = field(default_factory=dict)  # of MPS daemons
    taken: Set[str] = frozenset()  # devices that MPS daemons reserve to their clients, or are about to
    shown: Set[str] = frozenset()  # names of which the kubelet has been sent ids
    no_specification: Sequence[NoSpecification] = ()
    pods: NodePods = field(default_factory=NodePods)

    def unless_held(self, blocked: Blocked, concerns: Callable[[OfferedResource, SchedulableId], bool]) -> Check:
        """Block what the gate concerns, but for what is held, or may be."""
        in_use = {(held_id.resource, held_id.id) for held_id in self.held}
        return lambda resource, schedulable: (
            None if (resource.name, schedulable.id) in in_use or not concerns(resource, schedulable) else blocked
        )


def by_device(reason: str, why: Mapping[str, str]) -> Check | None:
    """Block all ids of some devices and partitions. `why`: the message, by their ids."""
    blocked = {id_: Blocked(reason=reason, message=message) for id_, message in why.items()}
    if not blocked:
        return None
    return lambda resource, schedulable: blocked.get(schedulable.device_id) or blocked.get(schedulable.part_id)


Gate = Callable[[Plan, GateFacts], Check | None]
"""One reason. Returns None where it blocks nothing of this shape now, which is the usual case and costs nothing."""
