"""The plan: the shape, and of each id whether a new container may get it.

An id that the shape does not have stays with the plan as `retained` while a pod holds it. The kubelet is shown it only
when its device is not fit for use: it goes on showing a dropped id as healthy in the pod's status, which is right as
long as it is, and an id that it is not shown cannot go to the next pod when this one ends.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set

from msgspec.structs import replace
from nodedevices_api.withheld import TOLERABLE, UNHEALTHY

from nodedevices_plugin.gates.base import Check, Gate, GateFacts
from nodedevices_plugin.gates.reasons import (
    cordon,
    daemon_in_use,
    daemon_not_ready,
    daemon_taken,
    full,
    health,
    held_otherwise,
    no_specification,
    place,
    pods_unknown,
    removed_probe,
    unfit,
    waiting_change,
)
from nodedevices_plugin.model import Api, Blocked, InventoryDevice, ListedAs, OfferedResource, Plan, SchedulableId
from nodedevices_plugin.offering.occupancy import not_in

Devices = Mapping[str, InventoryDevice]

# In the order in which they are asked: of several that block an id, the first says why.
GATES: Sequence[Gate] = (
    health,
    cordon,
    removed_probe,
    place,
    held_otherwise,
    waiting_change,
    daemon_in_use,
    daemon_taken,
    daemon_not_ready,
    no_specification,
    pods_unknown,
    full,
)


def apply(shape: Plan, facts: GateFacts, *, ours: Collection[str] = (), gates: Sequence[Gate] = GATES) -> Plan:
    """The plan of this shape. `ours`: resources that the kubelet has of us, beside those of the shape."""
    checks = [check for gate in gates if (check := gate(shape, facts)) is not None]
    devices = {device.fact.id: device for device in facts.inventory.devices}
    retained = _retained(shape, facts, devices, {resource.name for resource in shape.resources}.union(ours))
    if not checks and not retained:
        return shape
    resources = [
        _gated(
            resource,
            checks,
            retained.pop(resource.name, ()) if resource.api is Api.DEVICE_PLUGIN else (),
            facts,
            devices,
        )
        for resource in shape.resources
    ] + [OfferedResource(name=name, ids=(), retained=ids) for name, ids in retained.items()]
    return Plan(resources=tuple(sorted(counted(resources, facts), key=lambda resource: (resource.name, resource.api))))


def _gated(
    resource: OfferedResource,
    checks: Sequence[Check],
    retained: tuple[SchedulableId, ...],
    facts: GateFacts,
    devices: Devices,
) -> OfferedResource:
    ids: list[SchedulableId] = []
    kept: list[SchedulableId] = []
    unlisted: list[SchedulableId] = []
    for schedulable in resource.ids:
        first: Blocked | None = None
        listed_as = ListedAs.UNHEALTHY
        for check in checks if schedulable.device_id else ():
            blocked = check(resource, schedulable)
            if blocked is not None:
                if first is None or (resource.api is Api.DRA and first.reason in TOLERABLE):
                    first = blocked  # a claim that tolerates one reason is not to pass by another
                listed_as = max(listed_as, blocked.listed_as)
        if first is None:
            ids.append(schedulable)
        elif listed_as is ListedAs.UNHEALTHY:
            ids.append(replace(schedulable, blocked=first))
        elif listed_as is ListedAs.KEPT_FOR_HOLDER:
            kept.append(_with_health(schedulable, facts, devices))
        else:
            unlisted.append(replace(schedulable, blocked=first))
    return replace(resource, ids=tuple(ids), retained=(*retained, *kept), unlisted=tuple(unlisted))


def _retained(
    shape: Plan, facts: GateFacts, devices: Devices, ours: Collection[str]
) -> dict[str, tuple[SchedulableId, ...]]:
    """Return by resource of ours the ids that pods hold and the shape does not have."""
    found: dict[str, dict[str, SchedulableId]] = {}
    for held_id in not_in(shape, facts.held):
        device = devices.get(held_id.device_id)
        if held_id.api is Api.DRA or held_id.resource is None or held_id.resource not in ours or device is None:
            continue
        schedulable = SchedulableId(
            id=held_id.id,
            device_id=held_id.device_id,
            partition_id=held_id.partition_id,
            replica=held_id.replica,
            numa_node=device.fact.numa_node,
        )
        found.setdefault(held_id.resource, {})[held_id.id] = _with_health(schedulable, facts, devices)
    return {name: tuple(ids[id_] for id_ in sorted(ids)) for name, ids in sorted(found.items())}


def _with_health(schedulable: SchedulableId, facts: GateFacts, devices: Devices) -> SchedulableId:
    """Only whether its device is fit for use: no new container gets it."""
    return replace(
        schedulable, blocked=unfit(devices.get(schedulable.device_id), schedulable.partition_id, facts.verdicts)
    )


# --- ids that name no device (cores.ids) -----------------------------------------------------------------------------
GONE = Blocked(reason=UNHEALTHY, message="a device that it counts is not offered")


def counted(resources: Sequence[OfferedResource], facts: GateFacts) -> list[OfferedResource]:
    """Return the resources, with the ids blocked that go with devices which no container can get.

    As many ids without a device are given to new containers as go with devices that these can get. They pass no gate,
    since a gate asks for a device. So this comes after all gates: for each of the devices that a resource counts of
    which no id is free of a reason, it blocks as many ids for that reason. Ids that nobody holds come first: those of a
    pod say nothing about its device.
    """
    if not any(resource.counts for resource in resources):
        return list(resources)
    why = _why_not(resources)
    held = {(name, id_) for name, ids in facts.holdings.held for id_ in ids}
    held |= {(allocate.resource, id_) for allocate in facts.unconfirmed for id_ in allocate.ids}
    return [
        _with_blocked(resource, why, {id_ for name, id_ in held if name == resource.name})
        if resource.counts
        else resource
        for resource in resources
    ]


def _why_not(resources: Sequence[OfferedResource]) -> dict[str, Blocked | None]:
    """Return by device or partition why no container can get it; None: one can."""
    found: dict[str, Blocked | None] = {}
    for resource in resources:
        for entry in (*resource.ids, *resource.unlisted):
            found[entry.part_id] = found.get(entry.part_id, entry.blocked) and entry.blocked
    return found


def _with_blocked(resource: OfferedResource, why: Mapping[str, Blocked | None], held: Set[str]) -> OfferedResource:
    whole = {entry.part_id for entry in resource.retained}  # a pod that has it under this name is subtracted anyway
    parts = [part for part in resource.counts if part not in whole]
    reasons = [blocked for part in parts if (blocked := why.get(part, GONE)) is not None]
    free_first = sorted((entry.id for entry in reversed(resource.ids) if not entry.device_id), key=held.__contains__)
    by_id = dict(zip(free_first, (reason for reason in reasons for _ in range(resource.per_device or 0)), strict=False))
    ids: list[SchedulableId] = []
    unlisted: list[SchedulableId] = []
    for entry in resource.ids:
        because = by_id.get(entry.id)
        some = unlisted if because is not None and because.listed_as is ListedAs.NOT_LISTED else ids
        some.append(replace(entry, blocked=because) if because is not None else entry)
    return replace(resource, ids=tuple(ids), unlisted=(*resource.unlisted, *unlisted))
