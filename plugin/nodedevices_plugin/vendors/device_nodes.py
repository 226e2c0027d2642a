"""Gives containers the device nodes that the probe lists for the devices granted to them.

Devices without a vendor have nothing else, and most vendors' devices need nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from nodedevices_plugin.model import AllocationError, ContainerEdits, DeviceNode, Grant, InventoryDevice

# Nodes that any number of devices need beside their own.
SHARED_NODES = frozenset({"/dev/kfd", "/dev/infiniband/rdma_cm", "/dev/vfio/vfio"})


class DeviceNodes(Struct, frozen=True, kw_only=True):
    """`nodes`: device nodes by id of the device or partition; a partition's own alone. `common`: nodes that every
    container with a granted device gets as well."""

    nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    common: tuple[str, ...] = ()

    @classmethod
    def for_devices(cls, devices: Iterable[InventoryDevice], *, common: tuple[str, ...] = ()) -> DeviceNodes:
        nodes: dict[str, tuple[str, ...]] = {}
        for device in devices:
            nodes[device.fact.id] = device.fact.device_nodes
            nodes |= {part.id: part.device_nodes for part in device.fact.partitions}
        return cls(nodes=nodes, common=common)

    def edits(self, grant: Grant) -> ContainerEdits:
        """Raises AllocationError for what has left the node."""
        paths = list(self.common) if grant.ids else []
        for schedulable in grant.ids:
            own = self.nodes.get(schedulable.part_id)
            if own is None:
                raise AllocationError(
                    f"{grant.resource.name}: {schedulable.id} is no longer on this node. "
                    "Delete the pod, so that it is scheduled again."
                )
            paths += own
        return ContainerEdits(
            devices=tuple(DeviceNode(container_path=path, host_path=path) for path in dict.fromkeys(paths))
        )
