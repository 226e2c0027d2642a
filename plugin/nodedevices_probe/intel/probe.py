"""Intel's GPUs: those that the drivers i915 and xe have, whole or as SR-IOV functions.

A physical function with virtual functions is reported with their number, and the vendor does not offer it: its memory
and engines are theirs. Virtual functions that a driver for virtual machines has (vfio-pci) are left out.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass, replace
from pathlib import Path

from nodedevices_probe.files import CheckError
from nodedevices_probe.intel import DRIVER, DRIVERS, FUNCTIONS, VENDOR
from nodedevices_probe.loop import SourceFacts
from nodedevices_probe.node.sysfs import PCI_DEVICE, PCI_DEVICES, System, drm, node_conditions, sensors
from nodedevices_probe.protocol import MAX_SMALL, Attribute, DeviceFact, Readings, within
from nodedevices_probe.source import SysfsSource, attributes

PCI_VENDOR = "0x8086"
MODULES = tuple(reversed(DRIVERS))  # where both are loaded, the newer one is the driver
FOLDERS = tuple(f"sys/bus/pci/drivers/{driver}" for driver in DRIVERS)
NO_NODE = "the driver made no device node for it"
_DEVICE_ID = re.compile(r"0x[0-9a-f]{4}")


@dataclass(slots=True, kw_only=True)
class IntelSource(SysfsSource):
    """`allowed` and `denied`: PCI device ids, 0x56c0; no `allowed` are all."""

    name: str = "intel"
    allowed: frozenset[str] = frozenset()
    denied: frozenset[str] = frozenset()

    def poll(self) -> SourceFacts:
        return self.gpus(MODULES, PCI_VENDOR, FOLDERS, self._devices)

    def _devices(self) -> list[DeviceFact]:
        found = {
            bus_id: driver
            for driver, folder in zip(DRIVERS, FOLDERS, strict=True)
            for bus_id in self.system.bus_ids(folder)
            for device in [self.roots.word(f"{PCI_DEVICES}/{bus_id}/device")]
            if device not in self.denied and (not self.allowed or device in self.allowed)
        }
        return [self._device(bus_id, found[bus_id]) for bus_id in sorted(found)]

    def _device(self, bus_id: str, driver: str) -> DeviceFact:
        at = f"{PCI_DEVICES}/{bus_id}"
        nodes = drm(self.roots, at).nodes
        return DeviceFact(
            id=bus_id,
            index=0,
            type="gpu",
            vendor=VENDOR,
            brand="Intel",
            pci_bus_id=bus_id,
            extra=self._extra(at, driver),
            capacity=self._capacity(at),
            device_nodes=nodes,
            readings=self._readings(at, nodes, self.roots.unsaid(at, "sriov_numvfs")),
        )

    def _extra(self, at: str, driver: str) -> dict[str, Attribute]:
        parent = self.roots.link(f"{at}/physfn")
        return attributes(
            {
                DRIVER: driver,
                "deviceID": self.roots.word(f"{at}/device").removeprefix("0x"),
                FUNCTIONS: within(self.roots.number(f"{at}/sriov_numvfs"), 1, MAX_SMALL),
                "physicalFunction": parent if PCI_DEVICE.fullmatch(parent) else None,
            }
        )

    def _capacity(self, at: str) -> dict[str, str]:
        """Local memory, where the driver says it: i915 of the card, xe of each tile. Integrated GPUs have none."""
        cards = [f"{at}/drm/{name}" for name in self.roots.names(f"{at}/drm") if name.startswith("card")]
        tiles = [f"{at}/{name}" for name in self.roots.names(at) if re.fullmatch(r"tile[0-9]{1,2}", name)]
        sizes = [
            *(self.roots.number(f"{card}/lmem_total_bytes") for card in cards[:1]),
            *(self.roots.number(f"{tile}/physical_vram_size_bytes", 0) for tile in tiles),
        ]
        size = sum(max(size or 0, 0) for size in sizes) >> 20
        return {"memory": f"{size}Mi"} if 0 < size < 1 << 31 else {}

    def _readings(self, at: str, nodes: tuple[str, ...], unsaid: str | None) -> Readings:
        if unsaid or not nodes:
            return Readings(error=unsaid or NO_NODE)
        return replace(sensors(self.roots, at, shown="pkg"), conditions=node_conditions(self.roots, nodes))


def source(options: argparse.Namespace) -> IntelSource:
    """Return the source for its arguments (kind). Raises CheckError."""
    return IntelSource(
        system=System(options.root, Path(options.driver_root_ctr_path)),
        allowed=_device_ids("--allow-ids", options.allow_ids),
        denied=_device_ids("--deny-ids", options.deny_ids),
        poll_seconds=options.interval_seconds,
    )


def _device_ids(flag: str, value: str) -> frozenset[str]:
    ids = [text.strip().lower() for text in value.split(",") if text.strip()]
    wrong = [id_ for id_ in ids if not _DEVICE_ID.fullmatch(id_)]
    if wrong:
        raise CheckError(f"argument {flag}: {wrong[0]!r} is not allowed; give PCI device ids, such as 0x49c5,0x56c0")
    return frozenset(ids)
