"""Devices whose helper serves no further container, whatever shares of them are free. Pure.

A helper may take a bounded number of clients of each device (sharing.base.HelperKind), and where a container takes as
many shares as it needs, that is no number of shares. The free shares of a device that has so many containers go to
nobody until one of them ends. What is counted are containers that the kubelet lists or that were granted just now; two
that are granted between two steps may be one too many, and a container with several processes is several clients: the
helper refuses those itself.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from nodedevices_plugin.model import Holdings, Inventory, OfferedResource, Plan, RecentAllocate
from nodedevices_plugin.sharing.registry import helper_kind


def counts_containers(plan: Plan) -> bool:
    """Whether the next Allocate may have to be another one because of the last: devices take so many containers."""
    return any(each.memory is not None and helper_kind(each) is not None for each in plan.resources)


def without_full(plan: Plan, inventory: Inventory, holdings: Holdings, unlisted: Sequence[RecentAllocate]) -> Plan:
    """The plan without free shares of devices that have all the containers that they can have. `unlisted`: Allocates
    that no List has shown."""
    unnamed = {(each.resource, each.ids) for each in unlisted}
    unnamed |= {(each.resource, each.ids) for each in holdings.possible or ()}
    facts = {device.fact.id: device.fact for device in inventory.devices}

    def now(resource: OfferedResource) -> OfferedResource:
        kind = helper_kind(resource)
        if resource.memory is None or kind is None:
            return resource
        device_of = {each.id: each.device_id for each in resource.ids}
        containers: dict[str, set[Hashable]] = {}
        held: set[str] = set()
        listed: list[tuple[Hashable, str | None, tuple[str, ...]]] = [
            ((each.namespace, each.pod, each.container), each.resource, each.ids) for each in holdings.holders
        ]
        for who, name, ids_held in [*listed, *((each, *each) for each in unnamed)]:
            for id_ in ids_held if name == resource.name else ():
                held.add(id_)
                if id_ in device_of:
                    containers.setdefault(device_of[id_], set()).add(who)
        most = {id_: kind.most_clients(facts[id_]) for id_ in containers if id_ in facts}
        full = {id_ for id_, limit in most.items() if limit is not None and len(containers[id_]) >= limit}
        if not full:
            return resource
        ids = (
            replace(each, healthy=False) if each.healthy and each.device_id in full and each.id not in held else each
            for each in resource.ids
        )
        return replace(resource, ids=tuple(ids))

    return Plan(resources=tuple(now(each) for each in plan.resources))
