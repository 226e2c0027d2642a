"""A vendor that the agent does not come with, as somebody else would write it: all of it is in this file.

Acme makes FPGAs. One is handed out whole, or, where it is cut into regions and partitions.strategy is not none, region
by region. Containers find their FPGAs by a variable; all of them share a control node. Two that sit behind one PCIe
root work together best.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass

from nodedevices_plugin.model import ContainerEdits, DeviceNode, Grant, Inventory, InventoryDevice, Unit
from nodedevices_plugin.vendors.base import Containers, Naming, NodeView, Vendor
from nodedevices_probe.protocol import DeviceFact

CONTROL_NODE = "/dev/acmectl"


@dataclass(frozen=True, slots=True)
class AcmeContainers:
    inventory: Inventory
    existing: Set[str]

    def edits(self, grant: Grant) -> ContainerEdits:
        ids = dict.fromkeys(each.partition_id or each.device_id for each in grant.ids)
        nodes = [CONTROL_NODE] if CONTROL_NODE in self.existing else []
        for device in self.inventory.devices:
            for unit in (Unit(device), *device.partitions):
                if unit.id in ids:
                    nodes += unit.partition.device_nodes if unit.partition else device.fact.device_nodes
        return ContainerEdits(
            envs={"ACME_FPGAS": ",".join(ids)},
            devices=tuple(DeviceNode(container_path=node, host_path=node) for node in nodes),
        )


class Acme(Vendor):
    name = "acme"
    types = frozenset({"fpga"})
    dra_driver = "fpga.acme.com"

    def units(self, devices: Sequence[InventoryDevice], *, strategy: str, excluded: Set[str]) -> Sequence[Unit]:
        cut = {device.fact.id: device.partitions if strategy != "none" else [] for device in devices}
        return [unit for device in devices for unit in cut[device.fact.id] or [Unit(device)]]

    def host_paths(self, files: Mapping[str, object]) -> Collection[str]:
        return (CONTROL_NODE,)

    def usual_name(self, unit: Unit, naming: Naming) -> str | None:
        return f"acme.com/{unit.partition.profile}" if unit.partition else "acme.com/fpga"

    def containers(self, node: NodeView) -> Containers:
        return AcmeContainers(node.inventory, node.existing)

    def claim_name(self, unit: Unit, device: str) -> str:
        return f"{device}r{unit.partition.index}" if unit.partition else device

    def pair_score(self, one: DeviceFact, other: DeviceFact) -> int:
        return 1 if one.pcie_root and one.pcie_root == other.pcie_root else 0
