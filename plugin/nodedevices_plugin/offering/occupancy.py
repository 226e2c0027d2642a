"""Finds the held ids that the shape of the plan does not have.

A shape follows from configuration and hardware alone. Pods keep what they were given: a whole device that a policy now
offers in shares, a share of a plan that a lost state file had, a device that was cut into partitions under an idle pod,
an id of another plugin. A device that a container holds under such an id goes to no new pod until that holder is gone
(gates.held_otherwise): the kubelet knows ids, not devices, and would allocate the same device a second time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from msgspec import Struct
from msgspec.structs import replace
from nodedevices_probe.protocol import Partition

from nodedevices_plugin.model import DRA_DRIVER, Api, Holder, Holdings, Inventory, Part, Plan, physical_id
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


class Parts(Struct, frozen=True, kw_only=True):
    """The partitions of a node's devices, by id, and those of them that the driver no longer lists."""

    listed: Mapping[str, Partition]
    departed: Set[str]


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


def collide(partition_id: str | None, held: HeldId, parts: Parts) -> bool:
    """True when this part of a device (None: all of it) and a held part of it are, or may be, the same. Two partitions
    that exist side by side are not; one that is gone may be where another is now, which placements show."""
    if held.partition_id is None or partition_id is None or held.partition_id == partition_id:
        return True
    if held.partition_id not in parts.departed:
        return held.partition_id not in parts.listed
    return _overlap(parts.listed[held.partition_id], parts.listed.get(partition_id))


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
    if not whole:
        return holdings

    def now(holder: Holder) -> Holder:
        if holder.resource is None or holder.resource not in whole or not holder.ids:
            return holder
        own = {physical_id(id_) for id_ in holder.ids}
        return replace(holder, also=tuple(part for part in whole[holder.resource] if part not in own))

    return replace(holdings, holders=tuple(map(now, holdings.holders)))
