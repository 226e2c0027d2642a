"""Devices that are held in another shape than the plan offers them in: they are withheld from new pods. Pure.

A plan is made of configuration and hardware alone. Pods keep what they were given: a whole device that a policy now
offers in shares, a share of a plan that a lost state file had, a device that was cut into partitions under an idle pod,
an id of another plugin. Whatever the reason, a device that anybody holds under an id that is not in the plan is
withheld, until that holder is gone: the kubelet knows ids, not devices, and would allocate the same device a second
time.

An id that the plan no longer has stays with it as `retained` while a pod holds it. The kubelet is shown it only when
its device is not fit for use: it goes on showing a dropped id as healthy in the pod's status, which is right as long as
it is, and an id that it is not shown cannot go to the next pod when this one ends.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from nodedevices_probe.protocol import Partition

from nodedevices_plugin.model import Holder, Holdings, Inventory, OfferedResource, Plan, SchedulableId, Verdict
from nodedevices_plugin.resources.ids import physical_id
from nodedevices_plugin.resources.plan import is_healthy
from nodedevices_plugin.sharing.by_nature import NAME as SHARED


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One id that is held: by a listed pod, by one that is not listed yet, or, as the kubelet's checkpoint says, by
    some container. As this agent names it, whoever offered it."""

    resource: str | None  # None: a DRA claim
    id: str
    device_id: str
    partition_id: str | None = None
    replica: int | None = None
    holder: str = ""  # <namespace>/<pod>; "": not known


def protect(
    plan: Plan,
    held: Sequence[Held],
    inventory: Inventory,
    verdicts: Mapping[str, Verdict],
    *,
    names: Collection[str] = (),
) -> tuple[Plan, tuple[Held, ...]]:
    """The plan as it may be sent to the kubelet, and what is held in another shape, in the order given.

    `names`: resources that the kubelet has of us, beside those of the plan.
    """
    departed = {part for device in inventory.devices for part in device.departed_partitions}
    offered = {(resource.name, each.id) for resource in plan.resources for each in resource.ids}
    # A partition that the driver no longer lists is one, though its id stays listed: others may be where it was.
    held_otherwise = tuple(
        each for each in held if (each.resource, each.id) not in offered or each.partition_id in departed
    )
    if not held_otherwise:
        return plan, ()
    parts = {part.id: part for device in inventory.devices for part in device.fact.partitions}
    by_nature = {
        (resource.name, each.device_id)
        for resource in plan.resources
        if resource.sharing == SHARED
        for each in resource.ids
    }
    by_device: dict[str, list[Held]] = {}
    ids_held = [each for each in held_otherwise if (each.resource, each.id) not in offered]
    # One share more than there are now, of what several may use anyway, is in nobody's way.
    held_otherwise = tuple(
        each for each in held_otherwise if each.replica is None or (each.resource, each.device_id) not in by_nature
    )
    for each in held_otherwise:
        by_device.setdefault(each.device_id, []).append(each)

    @cache
    def blocked(device_id: str, partition_id: str | None) -> bool:
        return any(_collide(partition_id, each, parts, departed) for each in by_device.get(device_id, ()))

    ours = {resource.name for resource in plan.resources} | set(names)
    retained = _retained(ids_held, inventory, verdicts, ours)
    resources = [
        replace(
            resource,
            ids=tuple(
                replace(each, healthy=False) if each.healthy and blocked(each.device_id, each.partition_id) else each
                for each in resource.ids
            ),
            retained=retained.pop(resource.name, ()),
        )
        for resource in plan.resources
    ]
    resources += [OfferedResource(name=name, ids=(), retained=ids) for name, ids in retained.items()]
    return Plan(resources=tuple(sorted(resources, key=lambda each: each.name))), held_otherwise


def _collide(partition_id: str | None, held: Held, parts: Mapping[str, Partition], departed: Collection[str]) -> bool:
    """Whether this part of a device (None: all of it) and what is held of the same device are, or may be, one. Two
    partitions that exist side by side are not; one that is gone may be where another is now, which placements show."""
    if held.partition_id is None or partition_id is None or held.partition_id == partition_id:
        return True
    if held.partition_id not in departed:
        return held.partition_id not in parts
    return _overlap(parts[held.partition_id], parts.get(partition_id))


def _overlap(one: Partition, other: Partition | None) -> bool:
    if other is None or one.start is None or one.size is None or other.start is None or other.size is None:
        return True  # not known
    return one.start < other.start + other.size and other.start < one.start + one.size


def _retained(
    held_otherwise: Sequence[Held], inventory: Inventory, verdicts: Mapping[str, Verdict], ours: Collection[str]
) -> dict[str, tuple[SchedulableId, ...]]:
    """By resource of ours: the ids that pods hold and the plan does not have."""
    devices = {device.fact.id: device for device in inventory.devices}
    found: dict[str, dict[str, SchedulableId]] = {}
    for each in held_otherwise:
        device = devices.get(each.device_id)
        if each.resource is None or each.resource not in ours or device is None:
            continue
        found.setdefault(each.resource, {})[each.id] = SchedulableId(
            id=each.id,
            device_id=each.device_id,
            partition_id=each.partition_id,
            replica=each.replica,
            healthy=is_healthy(device, each.partition_id, verdicts),
            numa_node=device.fact.numa_node,
        )
    return {name: tuple(ids[id_] for id_ in sorted(ids)) for name, ids in sorted(found.items())}


def with_all(holdings: Holdings, plan: Plan | None) -> Holdings:
    """Holders of a resource that is given whole with all its devices, whichever ids they were granted."""
    whole = {
        each.name: dict.fromkeys(one.partition_id or one.device_id for one in (*each.ids, *each.retained))
        for each in (plan.resources if plan is not None else ())
        if each.together
    }
    if not whole:
        return holdings

    def now(holder: Holder) -> Holder:
        if holder.resource is None or holder.resource not in whole or not holder.ids:
            return holder
        own = {physical_id(each) for each in holder.ids}
        return replace(holder, also=tuple(each for each in whole[holder.resource] if each not in own))

    return replace(holdings, holders=tuple(map(now, holdings.holders)))
