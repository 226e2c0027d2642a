"""Containers that get the device nodes which the probe lists for what they are granted.

It is all that a device without a vendor has, and all that most vendors' devices need.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from nodedevices_plugin.model import AllocationError, ContainerEdits, DeviceNode, Grant, InventoryDevice

# Which any number of devices need beside their own.
EVERYBODYS = frozenset({"/dev/kfd", "/dev/infiniband/rdma_cm", "/dev/vfio/vfio"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNodes:
    """`nodes`: of devices and partitions, by id; for a partition those that are its own. `common`: what everybody who
    is granted something gets beside them."""

    nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    common: tuple[str, ...] = ()

    @classmethod
    def of(cls, devices: Iterable[InventoryDevice], *, common: tuple[str, ...] = ()) -> DeviceNodes:
        nodes: dict[str, tuple[str, ...]] = {}
        for device in devices:
            nodes[device.fact.id] = device.fact.device_nodes
            nodes |= {part.id: part.device_nodes for part in device.fact.partitions}
        return cls(nodes=nodes, common=common)

    def edits(self, grant: Grant) -> ContainerEdits:
        """Raises AllocationError for what has left the node."""
        paths = list(self.common) if grant.ids else []
        for each in grant.ids:
            own = self.nodes.get(each.part_id)
            if own is None:
                raise AllocationError(
                    f"{grant.resource.name}: {each.id} is no longer on this node. "
                    "Delete the pod, so that it is scheduled again."
                )
            paths += own
        return ContainerEdits(
            devices=tuple(DeviceNode(container_path=path, host_path=path) for path in dict.fromkeys(paths))
        )
