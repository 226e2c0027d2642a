"""The answers to the kubelet, from the plan in effect and the bookings: no I/O, no lock, nothing awaited."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nodedevices_plugin.cores import container as core_container
from nodedevices_plugin.cores.book import CoreBook
from nodedevices_plugin.granting.containers import NodeContainers, edits
from nodedevices_plugin.granting.grants import grant
from nodedevices_plugin.granting.preferred import prefer
from nodedevices_plugin.granting.topology import Topology, build
from nodedevices_plugin.model import AllocationError, ContainerEdits, Grant, Inventory, OfferedResource, Plan
from nodedevices_plugin.sharing.base import merged


class Answers:
    """The KubeletOffer of this node. `use` replaces everything at once; `cores`: bookings of computing power."""

    def __init__(self, cores: CoreBook | None = None, *, allocations: str = "") -> None:
        """`allocations`: the folder of host.allocation_files."""
        self._cores = cores or CoreBook()
        self._allocations = allocations
        self._resources: dict[str, OfferedResource] = {}
        self._containers = NodeContainers()
        self._inventory = Inventory()
        self._topology: Topology | None = None
        self._packed = False

    def use(self, plan: Plan, inventory: Inventory, containers: NodeContainers, *, packed: bool = False) -> None:
        self._packed = packed
        self._resources = {each.name: each for each in plan.resources}
        self._cores.use(plan.resources)
        self._containers = containers
        self._inventory, self._topology = inventory, None

    def grant(self, resource: str, ids: Sequence[str]) -> Grant:
        granted = grant(self._offered(resource), ids)
        return replace(granted, cores=self._cores.grant(resource, ids)) if granted.resource.sharing.cores else granted

    def edits(self, grant: Grant) -> ContainerEdits:
        made = edits(grant, self._containers)
        if not grant.resource.sharing.cores:
            return made
        ids = [each.id for each in grant.ids]
        return merged((made, core_container.edits(self._allocations, ids, grant.cores)))

    def prefer(self, resource: str, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        if self._topology is None:  # needed far less often than lines come
            self._topology = build(self._inventory, self._containers.known)
        offered = self._offered(resource)
        room = self._cores.prefer(resource, available, must_include, size) if offered.sharing.cores else None
        return prefer(offered, available, must_include, size, self._topology, packed=self._packed, room=room)

    def _offered(self, resource: str) -> OfferedResource:
        offered = self._resources.get(resource)
        if offered is None:
            raise AllocationError(
                f"{resource}: this node no longer offers it; delete the pod, so that it is scheduled again"
            )
        return offered
