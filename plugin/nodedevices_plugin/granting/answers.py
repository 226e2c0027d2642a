"""The answers to the kubelet, from the plan in effect and the bookings: no I/O, nothing awaited; and what a container
needs for what it was granted, which follows from the grant and the node alone.

Threads call `grant`, `edits` and `prefer`, the event loop `withdraw` and `use`. What is answered from is one value that
`use` replaces. A plan is decided from what was granted before (the devices that pods hold in another shape are in none
of its ids), and files are written before it is used. So nothing that it takes away or blocks (a device at fault), or
that would be given otherwise (a device node that another device has by now), may be granted between that and `use`:
`withdraw` sees to it.

The sharing mode decides what shares of a device need, the vendor what the devices themselves need
(vendors.base.Containers).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Protocol

from msgspec import Struct, field
from msgspec.structs import replace
from nodedevices_api.sections import Injection

from nodedevices_plugin.cores import ids as core_ids
from nodedevices_plugin.cores.book import CoreBook
from nodedevices_plugin.granting import packing
from nodedevices_plugin.granting.preferred import Topology, build, prefer
from nodedevices_plugin.model import (
    AllocationError,
    Api,
    ContainerEdits,
    Grant,
    Inventory,
    OfferedResource,
    Plan,
    RecentAllocate,
    SchedulableId,
    renumbered,
)
from nodedevices_plugin.offering.occupancy import leaving
from nodedevices_plugin.sharing.base import NO_SETTINGS, Settings, merged, mode_of
from nodedevices_plugin.vendors.base import Containers, DeviceNodes, NodeView
from nodedevices_plugin.vendors.cdi import CdiEnvironment
from nodedevices_plugin.vendors.registry import NOTHING_SAID, UNKNOWN, VENDORS, Vendors, VendorValues


class NodeContainers(Struct, frozen=True, kw_only=True):
    """What containers of this node need. `vendors`: by device, its vendor's name; `by_vendor`: the needs for their
    devices; `modes`: the node's flags that sharing modes read."""

    vendors: Mapping[str, str] = field(default_factory=dict)
    by_vendor: Mapping[str, Containers] = field(default_factory=lambda: {UNKNOWN.name: DeviceNodes()})
    modes: Settings = NO_SETTINGS
    known: Vendors = VENDORS


def node_containers(
    inventory: Inventory,
    injection: Injection,
    *,
    existing: Set[str] = frozenset(),
    values: VendorValues = NOTHING_SAID,
    cdi: Mapping[str, CdiEnvironment] | None = None,
    modes: Settings = NO_SETTINGS,
) -> NodeContainers:
    """Return it from the devices and the effective `injection` section. `values`: vendors' settings from flags and
    device files. `cdi`: the CDI environment, by vendor."""
    by_vendor = {
        vendor.name: vendor.containers(
            NodeView(
                inventory=inventory,
                injection=injection,
                existing=existing,
                local=values.local.get(vendor.name),
                files=values.files,
                cdi=(cdi or {}).get(vendor.name) or CdiEnvironment(),
            )
        )
        for vendor in (*values.known.every, UNKNOWN)
    }
    vendors = {device.fact.id: values.known.vendor_of(device.fact).name for device in inventory.devices}
    return NodeContainers(vendors=vendors, by_vendor=by_vendor, modes=modes, known=values.known)


def edits(grant: Grant, node: NodeContainers) -> ContainerEdits:
    """Return what one container needs. Raises AllocationError; its text is shown in the pod's status."""
    if core_ids.is_counted(grant.ids):  # the device comes with the shares of memory that the container has, too
        return ContainerEdits()
    parts = []
    grant = _all_of_it(grant)
    mode = mode_of(grant.resource)
    if mode is not None and (shares := [schedulable for schedulable in grant.ids if schedulable.replica is not None]):
        parts.append(mode.edits(replace(grant, ids=tuple(shares)), node.modes))
    # One that gets nothing of a vendor's resource is given a variable that says so: an image may request everything.
    ids = grant.ids or grant.resource.ids
    of_ids = {schedulable.id: node.vendors.get(schedulable.device_id, UNKNOWN.name) for schedulable in ids}
    for vendor in dict.fromkeys(of_ids.values()):
        own = tuple(schedulable for schedulable in grant.ids if of_ids[schedulable.id] == vendor)
        parts.append(node.by_vendor[vendor].edits(replace(grant, ids=own)))
    return merged(parts)


def _all_of_it(grant: Grant) -> Grant:
    """Return the grant for a share of all devices of the resource: one id of each device that is fit for use, or was
    granted."""
    if not grant.resource.together or not grant.ids:
        return grant
    granted = {(schedulable.device_id, schedulable.partition_id): schedulable for schedulable in grant.ids}
    fit = {
        (schedulable.device_id, schedulable.partition_id): schedulable
        for schedulable in reversed(grant.resource.ids)
        if schedulable.healthy
    }
    return replace(grant, ids=tuple((fit | granted)[key] for key in sorted(fit | granted, key=str)))


def grant(resource: OfferedResource, ids: Sequence[str]) -> Grant:
    """Grant these ids to one container. Raises AllocationError; its text is shown in the pod's status. Also for an
    id that was blocked since the kubelet chose it, so that the pod fails with a reason and another can be scheduled."""
    wanted = frozenset(ids)
    found = {schedulable.id: schedulable for schedulable in resource.ids if schedulable.id in wanted}
    for id_ in ids:
        if id_ not in found:
            raise AllocationError(
                f"{resource.name}: this node does not offer {id_[:128]} (any more). Delete the pod, so that it is "
                "scheduled again."
            )
        if (blocked := found[id_].blocked) is not None:
            raise AllocationError(
                f"{resource.name}: {id_} is not given to new containers ({blocked.reason}: {blocked.message}); see "
                "`kubectl describe nodedevices` for this node. Delete the pod, so that it is scheduled again."
            )
    check_request(resource, tuple(found.values()))
    return Grant(resource=resource, ids=tuple(found[id_] for id_ in dict.fromkeys(ids)))


def check_request(resource: OfferedResource, ids: Sequence[SchedulableId]) -> None:
    """Raise AllocationError where one container may not have all of these ids, or not only these."""
    shares = any(schedulable.replica is not None for schedulable in ids)
    if resource.fail_requests_greater_than_one and shares and len(ids) > 1:
        raise AllocationError(
            f"{resource.name}: {len(ids)} shares requested; a container may have 1 on this node "
            "(failRequestsGreaterThanOne). Several shares do not give more of a device. Set the limit to 1."
        )
    if resource.sharing.packing is not None:
        packing.check(resource, ids)
    if resource.per_device is not None:
        core_ids.check(resource, tuple(ids))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Offered:
    """The values that one answer is made from, replaced as one."""

    resources: Mapping[str, OfferedResource] = dataclasses.field(default_factory=dict)
    inventory: Inventory = dataclasses.field(default_factory=Inventory)
    containers: NodeContainers = dataclasses.field(default_factory=NodeContainers)
    packed: bool = False

    @cached_property
    def topology(self) -> Topology:  # needed far less often than lines come
        return build(self.inventory, self.containers.known)

    def resource(self, name: str) -> OfferedResource:
        offered = self.resources.get(name)
        if offered is None:
            raise AllocationError(
                f"{name}: this node no longer offers it; delete the pod, so that it is scheduled again"
            )
        return offered


class Granted(Protocol):
    """What was granted lately (kubelet.offer). `granting`: the lock under which ids are granted and entered there."""

    @property
    def granting(self) -> AbstractContextManager[object]: ...

    def since(self, known: Sequence[RecentAllocate]) -> Sequence[RecentAllocate]:
        """Return what was granted after these."""
        ...


class Answers:
    """The KubeletOffer of this node. `use` replaces everything at once; `cores`: bookings of computing power; `recent`
    has what was granted."""

    def __init__(self, cores: CoreBook | None = None, *, recent: Granted, allocations: str = "") -> None:
        """`allocations`: the folder of host.cores."""
        self._cores = cores or CoreBook()
        self._recent = recent
        self._allocations = allocations
        self._offered = _Offered()
        self._leaving: Mapping[str, frozenset[str]] = {}  # ids by resource, until the next `use`

    def use(self, plan: Plan, inventory: Inventory, containers: NodeContainers, *, packed: bool = False) -> None:
        resources = {resource.name: resource for resource in plan.by(Api.DEVICE_PLUGIN).resources}
        offered = _Offered(resources=resources, inventory=inventory, containers=containers, packed=packed)
        with self._recent.granting:
            self._cores.use(plan.resources)
            self._offered = offered
            self._leaving = {}

    def withdraw(self, plan: Plan, inventory: Inventory, *, known: Sequence[RecentAllocate]) -> bool:
        """Until the next `use`, grant no id that this plan takes away or blocks, or whose device has other nodes or
        another index in `inventory`. False where one of them was granted after `known`, from which the plan was
        decided: decide again."""
        moved = renumbered(self._offered.inventory, inventory)
        with self._recent.granting:
            self._leaving = leaving(self._offered.resources, plan, moved)
            since = self._recent.since(known)
        return not any(
            self._leaving.get(allocate.resource, frozenset()).intersection(allocate.ids) for allocate in since
        )

    def grant(self, resource: str, ids: Sequence[str]) -> Grant:
        offered = self._offered.resource(resource)
        for id_ in self._leaving.get(resource, frozenset()) & set(ids):
            raise AllocationError(
                f"{resource}: this node is about to stop offering {id_[:128]}. Delete the pod, so that it is "
                "scheduled again."
            )
        granted = grant(offered, ids)
        return replace(granted, cores=self._cores.grant(resource, ids)) if offered.sharing.cores else granted

    def edits(self, grant: Grant) -> ContainerEdits:
        made = edits(grant, self._offered.containers)
        if not grant.resource.sharing.cores:
            return made
        ids = [schedulable.id for schedulable in grant.ids]
        return merged((made, core_ids.edits(self._allocations, ids, grant.cores)))

    def prefer(self, resource: str, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        now = self._offered
        offered = now.resource(resource)
        room = self._cores.prefer(resource, available, must_include, size) if offered.sharing.cores else None
        return prefer(offered, available, must_include, size, now.topology, packed=now.packed, room=room)
