"""USB devices by what sysfs says of them: ids, serial number, and the device nodes that their drivers made."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from nodedevices_probe.node.roots import Roots
from nodedevices_probe.node.sysfs import System
from nodedevices_probe.protocol import text

DEVICES = "sys/bus/usb/devices"
USB = "usb"
MAX_FOLDERS = 512  # below the interfaces of one device
_DEPTH = 6
_PORT = re.compile(r"[0-9]{1,4}-[0-9]{1,3}(\.[0-9]{1,3}){0,6}")  # 1-1.4; root hubs are called usb1
_ID = re.compile(r"[0-9a-f]{4}")


@dataclass(frozen=True, slots=True, kw_only=True)
class UsbDevice:
    """`nodes`: paths in /dev with the kernel's subsystem of each, the one below /dev/bus/usb first."""

    port: str
    vendor: str
    product: str
    serial: str
    name: str  # for people
    pci_bus_id: str  # of its controller
    nodes: tuple[tuple[str, str], ...]


def devices(system: System) -> list[UsbDevice]:
    """In the order of ports. What does not say its ids, bus and number is left out."""
    roots = system.roots
    found = (_device(system, roots, port) for port in roots.names(DEVICES) if _PORT.fullmatch(port))
    return [device for device in found if device is not None]


def _device(system: System, roots: Roots, port: str) -> UsbDevice | None:
    at = f"{DEVICES}/{port}"
    vendor, product = roots.word(f"{at}/idVendor").lower(), roots.word(f"{at}/idProduct").lower()
    bus, number = roots.number(f"{at}/busnum"), roots.number(f"{at}/devnum")
    if not (_ID.fullmatch(vendor) and _ID.fullmatch(product)):
        return None
    if bus is None or number is None or not (0 < bus < 1000 and 0 < number < 1000):
        return None
    said = (roots.word(f"{at}/manufacturer"), roots.word(f"{at}/product"))
    return UsbDevice(
        port=port,
        vendor=vendor,
        product=product,
        serial=roots.word(f"{at}/serial"),
        name=text(" ".join(word for word in said if word)),
        pci_bus_id=system.pci_device_of(at),
        nodes=((f"/dev/bus/usb/{bus:03}/{number:03}", USB), *_interface_nodes(roots, at, port)),
    )


def _interface_nodes(roots: Roots, at: str, port: str) -> Iterator[tuple[str, str]]:
    """Yield the device nodes of its interfaces' drivers; devices that are plugged into it, if it is a hub, have their
    own."""
    todo = [(f"{at}/{name}", 0) for name in roots.names(at) if name.startswith(f"{port}:")]
    for _ in range(MAX_FOLDERS):
        if not todo:
            return
        folder, depth = todo.pop(0)
        lines = dict(line.partition("=")[::2] for line in roots.read(f"{folder}/uevent").splitlines())
        if "MAJOR" in lines and lines.get("DEVNAME"):
            yield f"/dev/{lines['DEVNAME'].removeprefix('/dev/')}", roots.link(f"{folder}/subsystem")
        if depth < _DEPTH:
            todo += [(f"{folder}/{name}", depth + 1) for name in roots.names(folder, folders=True)]
