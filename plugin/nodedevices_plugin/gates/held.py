"""Ids that no new container gets because of what containers hold already.

Devices that pods hold in another shape than this one: a whole GPU that is now offered in shares, a share of a
configuration of before, an id of another plugin. The kubelet knows ids and not devices, and would give the same device
out a second time.

Ids that a change which waits for pods will take away: unless held, they go to no new pod, so that it does not wait for
more and more of them.

Devices whose MPS daemon serves no further container, even where shares of them are free. A daemon takes a bounded
number of clients of each device (mps.max_clients), and where a container takes as many shares as it needs, that number
says nothing about shares. The free shares of a device with so many containers go to no container until one of them
ends. Containers are counted that the kubelet lists or that were granted just now. Two that are granted between two
steps may be one too many, and a container with several processes is several clients: the daemon refuses those itself.
"""

from __future__ import annotations

from collections.abc import Hashable

from nodedevices_api.withheld import CHANGE_WAITS, HELD_IN_ANOTHER_SHAPE, NO_FREE_CLIENTS
from nodedevices_probe.nvidia import compute_capability

from nodedevices_plugin.gates.base import Check, GateFacts
from nodedevices_plugin.model import Blocked, OfferedResource, Plan, SchedulableId
from nodedevices_plugin.offering.changes import bound_to, held_as
from nodedevices_plugin.offering.occupancy import HeldId, Parts, collide
from nodedevices_plugin.sharing.daemons import has_daemon
from nodedevices_plugin.sharing.mps import max_clients

OTHERWISE = "held under another resource or id"


def held_otherwise(shape: Plan, facts: GateFacts) -> Check | None:
    if not facts.held_otherwise:
        return None
    parts = Parts.from_inventory(facts.inventory)
    by_device: dict[str, list[HeldId]] = {}
    for held_id in facts.held_otherwise:
        by_device.setdefault(held_id.device_id, []).append(held_id)
    found: dict[str, Blocked | None] = {}

    def blocked(device_id: str, partition_id: str | None) -> Blocked | None:
        here = [held_id for held_id in by_device.get(device_id, ()) if collide(partition_id, held_id, parts)]
        pods = dict.fromkeys(held_id.holder for held_id in here if held_id.holder)
        return Blocked(reason=HELD_IN_ANOTHER_SHAPE, message=OTHERWISE, waits_for=tuple(pods)) if here else None

    def check(resource: OfferedResource, schedulable: SchedulableId) -> Blocked | None:
        part = schedulable.partition_id or schedulable.device_id
        if part not in found:
            found[part] = blocked(schedulable.device_id, schedulable.partition_id)
        return found[part]

    return check


CHANGE = "a configuration change that waits for pods takes it away"


def waiting_change(shape: Plan, facts: GateFacts) -> Check | None:
    if facts.change is None:
        return None
    kept = {(name, *id_) for name, ids in held_as(facts.change.shape).items() for id_ in ids}
    bound = {resource.name: bound_to(resource) for resource in shape.resources}
    in_use = facts.in_use()
    blocked = Blocked(reason=CHANGE_WAITS, message=CHANGE, waits_for=facts.change.waits_for)

    def check(resource: OfferedResource, schedulable: SchedulableId) -> Blocked | None:
        stays = (resource.name, schedulable.id, resource.api, bound[resource.name]) in kept or (
            resource.name,
            schedulable.id,
        ) in in_use
        return None if stays else blocked

    return check


def counts_containers(plan: Plan) -> bool:
    """True when an Allocate may change the answer to the next one: devices take only so many containers."""
    return any(resource.sharing.memory is not None and has_daemon(resource) for resource in plan.resources)


def full(shape: Plan, facts: GateFacts) -> Check | None:
    found = {resource.name: full_here for resource in shape.resources if (full_here := _full(resource, facts))}
    if not found:
        return None

    def check(resource: OfferedResource, schedulable: SchedulableId) -> Blocked | None:
        if resource.name not in found:
            return None
        devices, held = found[resource.name]
        return None if schedulable.id in held else devices.get(schedulable.device_id)

    return check


def _full(resource: OfferedResource, facts: GateFacts) -> tuple[dict[str, Blocked], set[str]] | None:
    """Return the resource's devices that have all the containers that they can have, and the ids that are held."""
    if resource.sharing.memory is None or not has_daemon(resource):
        return None
    unnamed = {(allocate.resource, allocate.ids) for allocate in facts.unconfirmed}
    unnamed |= {(offer.resource, offer.ids) for offer in facts.holdings.possible or ()}
    device_of = {schedulable.id: schedulable.device_id for schedulable in resource.ids}
    containers: dict[str, set[Hashable]] = {}
    held: set[str] = set()
    listed: list[tuple[Hashable, str | None, tuple[str, ...]]] = [
        ((holder.namespace, holder.pod, holder.container), holder.resource, holder.ids)
        for holder in facts.holdings.holders
    ]
    for who, name, ids_held in [*listed, *((pair, *pair) for pair in unnamed)]:
        for id_ in ids_held if name == resource.name else ():
            held.add(id_)
            if id_ in device_of:
                containers.setdefault(device_of[id_], set()).add(who)
    most = {
        device.fact.id: max_clients(compute_capability(device.fact))
        for device in facts.inventory.devices
        if device.fact.id in containers
    }
    devices = {
        id_: Blocked(reason=NO_FREE_CLIENTS, message=f"{limit} containers use it, and its MPS daemon accepts no more")
        for id_, limit in most.items()
        if len(containers[id_]) >= limit
    }
    return (devices, held) if devices else None
