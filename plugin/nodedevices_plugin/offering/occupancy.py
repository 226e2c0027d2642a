"""Occupancy: the held ids that the shape of the plan does not have, and when a changed configuration may take effect
while pods hold devices.

A shape follows from configuration and hardware alone. Pods keep what they were given: a whole device that a policy now
offers in shares, a share of a plan that a lost state file had, a device that was cut into partitions under an idle pod,
an id of another plugin. A device that a container holds under such an id goes to no new pod until that holder is gone
(gates.reasons.held_otherwise): the kubelet knows ids, not devices, and would allocate the same device a second time.

Most changes need not wait: a device that pods hold in its old shape is withheld in the new one until they have ended,
and all others change at once. These changes wait as a whole:
- any change of ids while the holders are not known;
- a change to or from MPS, or of what one MPS daemon serves (sharing.daemons): its devices may take no process of a pod
  that is not its client, its end ends its clients, and its limits follow from the ids;
- any change of the devices of a resource that is given whole (Vendor.shares): its pods have all of them, by
  any of its ids;
- giving the node to another plugin (serving.mode Observe), which would not know the ids that our pods hold.
While a change waits, ids that it takes away go to no new pod (gates.reasons.waiting_change).

Devices that come and go by themselves never wait: compare two plans of the same inventory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set

from msgspec import Struct
from msgspec.structs import replace
from nodedevices_common.text import clip, some
from nodedevices_probe.protocol import Partition

from nodedevices_plugin.model import (
    DRA_DRIVER,
    Api,
    Holder,
    Holdings,
    Inventory,
    Offer,
    OfferedResource,
    Part,
    Plan,
    RecentAllocate,
    physical_id,
)
from nodedevices_plugin.sharing import mps
from nodedevices_plugin.sharing.daemons import has_daemon
from nodedevices_plugin.sharing.registry import SHARED


class HeldId(Part, frozen=True, kw_only=True):
    """One id that is held: by a listed pod, by one that is not listed yet, or, as the kubelet's checkpoint says, by
    some container. The id is in our form, also where another plugin offered it; `key`: as the kubelet has it
    (model.held_key)."""

    resource: str | None  # None: a DRA claim's whole device
    driver: str = ""  # of a DRA claim
    id: str
    replica: int | None = None
    holder: str = ""  # <namespace>/<pod>; "": not known
    claim: str = ""  # <namespace>/<name>, of a claim that a pod has
    key: str = ""
    any_shape: bool = False  # for the other API alone: a claim may be allocated it, or has it beside others

    @property
    def api(self) -> Api:
        return Api.DRA if self.driver else Api.DEVICE_PLUGIN

    @property
    def announced(self) -> bool:
        """True where nobody has it: it is in a slice, and a claim may be allocated it."""
        return self.any_shape and not self.claim

    @property
    def owner(self) -> tuple[str, str]:
        """What it was given to, with its kind: a claim, which several pods may share, or a pod."""
        return ("claim", self.claim) if self.claim else ("pod", self.holder)


def not_in(shape: Plan, held: Sequence[HeldId]) -> tuple[HeldId, ...]:
    """Return the held ids that the shape does not have."""
    if not held:
        return ()
    wanted = {held_id.id for held_id in held}  # few, beside thousands of shares
    any_shape = any(held_id.any_shape for held_id in held)
    by_dra = {
        schedulable.part_id for resource in shape.by(Api.DRA).resources if any_shape for schedulable in resource.ids
    }
    offered = {
        (resource.api, DRA_DRIVER if resource.api is Api.DRA else resource.name, schedulable.id)
        for resource in shape.resources
        for schedulable in resource.ids
        if schedulable.id in wanted
    }
    return tuple(
        held_id
        for held_id in held
        if (
            held_id.part_id not in by_dra
            if held_id.any_shape
            else (held_id.api, held_id.driver or held_id.resource, held_id.id) not in offered
        )
    )


def held_otherwise(shape: Plan, held: Sequence[HeldId], inventory: Inventory) -> tuple[HeldId, ...]:
    """Return the ids that are held in another shape, in the given order."""
    departed = inventory.departed_partitions
    others = set(not_in(shape, held))
    by_nature = {
        (resource.name, schedulable.device_id)
        for resource in shape.resources
        if resource.sharing.name == SHARED
        for schedulable in resource.ids
    }
    # A partition that the driver no longer lists counts, although its id stays listed: others may be where it was. A
    # share that no longer exists, of a device that is shared by nature, takes nothing from other containers.
    return tuple(
        held_id
        for held_id in held
        if (held_id in others or held_id.partition_id in departed)
        and (held_id.replica is None or (held_id.resource, held_id.device_id) not in by_nature)
    )


def collide(partition_id: str | None, held: HeldId, *, listed: Mapping[str, Partition], departed: Set[str]) -> bool:
    """True when this part of a device (None: all of it) and a held part of it are, or may be, the same. Two partitions
    that exist side by side are not; one that is gone may be where another is now, which placements show. `listed`: the
    partitions of the node's devices, by id; `departed`: those of them that the driver no longer lists."""
    if held.partition_id is None or partition_id is None or held.partition_id == partition_id:
        return True
    if held.partition_id not in departed:
        return held.partition_id not in listed
    return _overlap(listed[held.partition_id], listed.get(partition_id))


def _overlap(one: Partition, other: Partition | None) -> bool:
    if other is None or one.start is None or one.size is None or other.start is None or other.size is None:
        return True  # not known
    return one.start < other.start + other.size and other.start < one.start + one.size


def with_all(holdings: Holdings, plan: Plan | None) -> Holdings:
    """Add all devices of a resource that is given whole to its holders, which may have been granted any of its ids."""
    whole = {
        resource.name: dict.fromkeys(schedulable.part_id for schedulable in (*resource.ids, *resource.retained))
        for resource in (plan.resources if plan is not None else ())
        if resource.together
    }

    def now(holder: Holder) -> Holder:
        if holder.resource is None or holder.resource not in whole or not holder.ids:
            return holder
        own = {physical_id(id_) for id_ in holder.ids}
        return replace(holder, also=tuple(part for part in whole[holder.resource] if part not in own))

    return replace(holdings, holders=tuple(map(now, holdings.holders)))


# --- when a changed configuration may take effect --------------------------------------------------------------------
# An Allocate that no List has shown for so long has failed with its pod, or the pod was gone before the next List. The
# kubelet records the ids as soon as it has our answer, so a complete List that is younger by seconds would show them.
RECENT_SECONDS = 30.0
SHOWN = 5  # pods in one message
_MESSAGE_LIMIT = 1024


class ChangeDecision(Struct, frozen=True, kw_only=True):
    """Whether the wanted plan may replace the current one; if not, the pods that it waits for (<namespace>/<pod>), and
    the text for ConfigApplied."""

    apply: bool
    waits_for: tuple[str, ...] = ()
    message: str = ""


def decide_change(
    current: Plan, wanted: Plan, holdings: Holdings, unconfirmed: Sequence[RecentAllocate], *, whole: bool = False
) -> ChangeDecision:
    """`current` and `wanted` are the plans of the old and the new configuration for the same inventory and verdicts;
    `unconfirmed`: Allocates that no List has shown. `whole`: every change waits for holders, not only of
    resources with an MPS daemon."""
    changed = changed_names(current, wanted)
    if holdings.known and not whole:
        bound = {resource.name for plan in (current, wanted) for resource in plan.resources if bound_to(resource)}
        changed = [name for name in changed if name in bound]
    if not changed:
        return ChangeDecision(apply=True)
    what = f"the change of {', '.join(_named(name, current, wanted) for name in changed)}"

    def concerns(held: Holder | Offer | RecentAllocate) -> bool:
        return held.resource in changed and bool(held.ids)

    decision = when_free(what, holdings, concerns)
    recent = next(filter(concerns, unconfirmed), None)
    if not decision.apply or recent is None:
        return decision
    age = f"{recent.resource} was allocated less than {RECENT_SECONDS:.0f} s ago"
    return wait(f"{what} waits: {age}, and its pod is not listed yet")


def when_free(what: str, holdings: Holdings, concerns: Callable[[Holder | Offer], bool]) -> ChangeDecision:
    """Decide that something waits while a container holds what it concerns, or may hold it."""
    if not holdings.known:
        return wait(f"{what} waits: it is not known which pods hold devices ({holdings.unknown_because})")
    if holders := tuple(filter(concerns, holdings.holders)):
        return wait(f"{what} waits until these pods have ended: {pods_named(holders)}", holders)
    unnamed = next(filter(concerns, holdings.possible or ()), None)
    return ChangeDecision(apply=True) if unnamed is None else wait(f"{what} waits until {unnamed_text(unnamed)}")


def not_listed(
    recent: Sequence[RecentAllocate], listed: Collection[RecentAllocate], holdings: Holdings
) -> tuple[RecentAllocate, ...]:
    """The Allocates that may have a pod which no List has shown. One counts until it was shown (`listed`), or until a
    complete List that is younger by RECENT_SECONDS does not have it."""
    return tuple(
        allocate
        for allocate in recent
        if allocate not in listed and holdings.taken - allocate.monotonic < RECENT_SECONDS
    )


def none_held(holdings: Holdings, recent: Sequence[RecentAllocate], *, monotonic: float) -> bool:
    """True when it is known that no pod of this node has a device."""
    young = any(monotonic - allocate.monotonic < RECENT_SECONDS for allocate in recent)
    return holdings.known and not holdings.holders and not holdings.possible and not young


def changed_names(current: Plan, wanted: Plan) -> list[str]:
    """Return the names of resources that would go, have other ids, or get or lose an MPS daemon."""
    new = held_as(wanted)
    return sorted(name for name, held in held_as(current).items() if new.get(name) != held)


def leaving(
    current: Mapping[str, OfferedResource], wanted: Plan, moved: Set[str] = frozenset()
) -> dict[str, frozenset[str]]:
    """Return by resource the current ids that the wanted plan does not have, has in another way (`bound_to`) or gives
    to no new container, and those of devices and partitions that `moved`."""
    new = {resource.name: resource for resource in wanted.by(Api.DEVICE_PLUGIN).resources}
    return {
        name: gone
        for name, resource in current.items()
        if (moved or resource is not new.get(name)) and (gone := _ids_leaving(resource, new.get(name), moved))
    }


def _ids_leaving(current: OfferedResource, wanted: OfferedResource | None, moved: Set[str]) -> frozenset[str]:
    ids = frozenset(schedulable.id for schedulable in current.ids)
    if wanted is None or bound_to(current) != bound_to(wanted):
        return ids
    stay = {offered.id for offered in wanted.ids if offered.blocked is None}
    return frozenset(offered.id for offered in current.ids if offered.id not in stay or offered.part_id in moved)


def held_as(plan: Plan) -> dict[str, frozenset[tuple[str, Api, str]]]:
    """Return by resource what its holders depend on: the ids, the kubelet's API, and the MPS daemon that runs their
    processes."""
    return {
        resource.name: frozenset((schedulable.id, resource.api, bound_to(resource)) for schedulable in resource.ids)
        for resource in plan.resources
    }


def bound_to(resource: OfferedResource) -> str:
    """Return what all holders of a resource depend on beside their id's device: an MPS daemon, or the other devices of
    a resource that is given whole. Empty: nothing."""
    if resource.together:
        return " ".join(sorted({schedulable.part_id for schedulable in resource.ids}))
    return mps.NAME if has_daemon(resource) else ""


def _named(name: str, current: Plan, wanted: Plan) -> str:
    """Return the resource's name, with the change of sharing where the ids do not show it."""
    [before] = (resource for resource in current.resources if resource.name == name)
    after = next((resource for resource in wanted.resources if resource.name == name), None)
    if after is None or {schedulable.id for schedulable in after.ids} != {schedulable.id for schedulable in before.ids}:
        return name
    return f"{name} from {_how(before)} to {_how(after)}"


def _how(resource: OfferedResource) -> str:
    sharing = resource.sharing
    by = sharing.enforced_by
    return sharing.name if by is None else f"{sharing.name} with enforcement {by.name}"


def unnamed_text(held: Offer) -> str:
    """Describe an entry that only the kubelet's checkpoint, or the record of a claim has, for people."""
    if held.claim:
        return f"the claim {held.claim} has ended, which holds {held.resource} {some(held.ids, 1)}"
    return (
        f"the pod that holds {held.resource} {some(held.ids, 1)} has ended (the kubelet's checkpoint assigns it to a "
        "container that PodResources does not list: an init container, or one of a pod that has just ended)"
    )


def pods_of(holders: Iterable[Holder]) -> tuple[str, ...]:
    """Return the holders' pods, each once: <namespace>/<pod>."""
    return tuple(dict.fromkeys(f"{holder.namespace}/{holder.pod}" for holder in holders))


def pods_named(holders: Iterable[Holder]) -> str:
    """Return the holders' pods, the first few by name."""
    return some(pods_of(holders), SHOWN)


def wait(message: str, holders: Iterable[Holder] = ()) -> ChangeDecision:
    """Return the decision to wait; the message is cut to what a condition carries."""
    return ChangeDecision(apply=False, waits_for=pods_of(holders), message=clip(message, _MESSAGE_LIMIT))
