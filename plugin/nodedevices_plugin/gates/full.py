"""Devices whose MPS daemon serves no further container, even where shares of them are free.

A daemon takes a bounded number of clients of each device (mps.max_clients), and where a container takes as many shares
as it needs, that number says nothing about shares. The free shares of a device with so many containers go
to no container until one of them ends. Containers are counted that the kubelet lists or that were granted just now. Two
that are granted between two steps may be one too many, and a container with several processes is several clients: the
daemon refuses those itself.
"""

from __future__ import annotations

from collections.abc import Hashable

from nodedevices_api.withheld import NO_FREE_CLIENTS
from nodedevices_probe.nvidia.attributes import compute_capability

from nodedevices_plugin.gates.base import Check, GateFacts
from nodedevices_plugin.model import Blocked, OfferedResource, Plan, SchedulableId
from nodedevices_plugin.sharing.daemons import has_daemon
from nodedevices_plugin.sharing.mps import max_clients


def counts_containers(plan: Plan) -> bool:
    """True when an Allocate may change the answer to the next one: devices take only so many containers."""
    return any(each.sharing.memory is not None and has_daemon(each) for each in plan.resources)


def full(shape: Plan, facts: GateFacts) -> Check | None:
    found = {each.name: full_here for each in shape.resources if (full_here := _full(each, facts))}
    if not found:
        return None

    def check(resource: OfferedResource, each: SchedulableId) -> Blocked | None:
        if resource.name not in found:
            return None
        devices, held = found[resource.name]
        return None if each.id in held else devices.get(each.device_id)

    return check


def _full(resource: OfferedResource, facts: GateFacts) -> tuple[dict[str, Blocked], set[str]] | None:
    """Return the resource's devices that have all the containers that they can have, and the ids that are held."""
    if resource.sharing.memory is None or not has_daemon(resource):
        return None
    unnamed = {(each.resource, each.ids) for each in facts.unconfirmed}
    unnamed |= {(each.resource, each.ids) for each in facts.holdings.possible or ()}
    device_of = {each.id: each.device_id for each in resource.ids}
    containers: dict[str, set[Hashable]] = {}
    held: set[str] = set()
    listed: list[tuple[Hashable, str | None, tuple[str, ...]]] = [
        ((each.namespace, each.pod, each.container), each.resource, each.ids) for each in facts.holdings.holders
    ]
    for who, name, ids_held in [*listed, *((each, *each) for each in unnamed)]:
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
        id_: Blocked(reason=NO_FREE_CLIENTS, message=f"{limit} containers use it, and its MPS daemon takes no more")
        for id_, limit in most.items()
        if len(containers[id_]) >= limit
    }
    return (devices, held) if devices else None
