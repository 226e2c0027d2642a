"""Xilinx as a vendor. Names, ids and device nodes are those of Xilinx' device plugin (FPGA_as_a_Service).

A card is offered as its shell and that shell's timestamp, `amd.com/xilinx_u250_gen3x16_xdma_shell_4_1-1623351600`,
since a program is built for one shell. A U30 is offered whole, or by FPGA with a partitions.strategy other than none.
Management nodes (/dev/xclmgmt<N>), with which a card can be programmed, go to containers only where a flag says so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set

from nodedevices_probe.fpga import FPGA, MANAGEMENT_NODES, MEDIA, NAMES_FILE, NO_SHELL, VENDOR
from nodedevices_probe.protocol import DeviceFact, Readings

from nodedevices_plugin.model import InventoryDevice, Unit
from nodedevices_plugin.vendors.base import Naming, NodeView, Vendor, VendorShares, whole_or_partitions
from nodedevices_plugin.vendors.device_nodes import DeviceNodes
from nodedevices_plugin.vendors.faults import FaultCondition
from nodedevices_plugin.vendors.files import DeviceFile
from nodedevices_plugin.vendors.xilinx import faults
from nodedevices_plugin.vendors.xilinx import flags as own_flags
from nodedevices_plugin.vendors.xilinx.flags import FLAGS
from nodedevices_plugin.vendors.xilinx.names import Aliases, Card, own_name, parse

_MANAGEMENT = re.compile(r"/dev/xclmgmt[0-9]{1,10}")


class Xilinx(Vendor):
    name = VENDOR
    types = frozenset({FPGA, MEDIA})
    reasons: Sequence[str] = faults.REASONS
    flags = FLAGS
    files = (DeviceFile(name=NAMES_FILE, type=Aliases, parse=parse),)

    def units(self, devices: Sequence[InventoryDevice], *, strategy: str, excluded: Set[str]) -> Sequence[Unit]:
        """Not a card without a shell: there is nothing that could run on it."""
        with_shell = (device for device in devices if NO_SHELL not in device.fact.readings.conditions)
        return [unit for device in with_shell for unit in whole_or_partitions(device, strategy)]

    def usual_name(self, unit: Unit, naming: Naming) -> str | None:
        own, card = own_flags.settings_of(naming.local), Card.from_fact(unit.device.fact)
        if card is None:
            return None
        aliases = naming.files.get(NAMES_FILE) if own.names else None
        name = own_name(
            card,
            exact_u30_names=own.exact_u30_names,
            aliases=aliases if isinstance(aliases, Aliases) else None,
        )
        domain, _, before = own.prefix.partition("/")
        return f"{naming.prefix or domain}/{before}{name}" if name is not None else None

    def shares(self, name: str, units: Sequence[Unit], naming: Naming) -> VendorShares | None:
        """VirtualDev and VirtualNum."""
        count = own_flags.settings_of(naming.local).shares
        return VendorShares(counts=(count,) * len(units)) if count else None

    def containers(self, node: NodeView) -> DeviceNodes:
        devices = [device for device in node.inventory.devices if device.fact.vendor == VENDOR]
        usual = DeviceNodes.for_devices(devices)
        if not own_flags.settings_of(node.local).management:
            return usual
        more = {id_: found for device in devices for id_, found in _management_nodes(device.fact).items()}
        return DeviceNodes(nodes={id_: (*nodes, *more.get(id_, ())) for id_, nodes in usual.nodes.items()})

    def read(self, readings: Readings) -> tuple[FaultCondition, ...]:
        return faults.read(readings)


def _management_nodes(fact: DeviceFact) -> dict[str, tuple[str, ...]]:
    """Return the management nodes of a card and of its partitions, by id; only texts that look like a path to one,
    since the attribute is a text."""
    attribute = fact.extra.get(MANAGEMENT_NODES)
    said = (attribute.string or "").split(",") if attribute is not None else []
    by_partition = {part.id: said[part.index : part.index + 1] for part in fact.partitions}
    return {
        id_: tuple(node for node in nodes if _MANAGEMENT.fullmatch(node))
        for id_, nodes in {fact.id: said, **by_partition}.items()
    }
