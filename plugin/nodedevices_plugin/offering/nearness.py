"""Which devices are near to each other across probes: those on the same PCIe root (`attributes.pcieRoot`).

A probe knows the paths between its own devices; of another probe's it knows nothing. What both say is the root complex,
below which a GPU reads from a NIC without passing through a CPU. A device that is missing counts while it is listed, so
that a NIC which fails renames no GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial

from nodedevices_probe.protocol import DeviceFact, PciePath

from nodedevices_plugin.model import Inventory

Near = Mapping[str, frozenset[str]]  # device id -> types of the other devices on its root

PAIRS = (("gpu", "nic"), ("nic", "gpu"))  # pairs that NodeDevices shows as nearest
_PATHS = list(PciePath)


def near(inventory: Inventory) -> Near:
    """A device without a root is near to nothing."""
    facts = [device.fact for device in inventory.devices]
    roots: dict[str, Counter[str]] = {}
    for fact in facts:
        if fact.pcie_root:
            roots.setdefault(fact.pcie_root, Counter())[fact.type] += 1
    return {
        fact.id: frozenset(
            other for other, count in roots.get(fact.pcie_root, Counter()).items() if count > (other == fact.type)
        )
        for fact in facts
    }


def nearest(inventory: Inventory) -> dict[str, tuple[str, ...]]:
    """Return for each GPU the NICs on its root, and for each NIC the GPUs, by id, the nearest one first. Missing
    devices and virtual functions are left out: a function is where its NIC is."""
    here = [device.fact for device in inventory.devices if device.present and device.fact.pcie_root]
    found: dict[str, list[DeviceFact]] = {}
    for own, other in PAIRS:
        by_root: dict[str, list[DeviceFact]] = {}
        for fact in here:
            if fact.type == other:
                by_root.setdefault(fact.pcie_root, []).append(fact)
        found |= {fact.id: by_root[fact.pcie_root] for fact in here if fact.type == own and fact.pcie_root in by_root}
    facts = {fact.id: fact for fact in here}
    known = {
        pair: neighbour.path
        for fact in here
        for neighbour in fact.pcie
        for pair in ((fact.id, neighbour.to), (neighbour.to, fact.id))
    }

    def distance(one: DeviceFact, other: DeviceFact) -> tuple[int, int, int, str]:
        """The path between them where one probe knows both, else how far apart their buses are numbered: those below
        one switch are numbered together."""
        path = _PATHS.index(known.get((one.id, other.id), PciePath.HOSTBRIDGE))
        return path, abs(_bus(one) - _bus(other)), other.index, other.id

    return {
        id_: tuple(other.id for other in sorted(others, key=partial(distance, facts[id_])))
        for id_, others in found.items()
    }


def _bus(fact: DeviceFact) -> int:
    """The number of its PCI bus; 0 where its address is none."""
    parts = fact.pci_bus_id.split(":")
    try:
        return int(parts[-2], 16)
    except (IndexError, ValueError):
        return 0
