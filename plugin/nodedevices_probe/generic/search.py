"""Finds the parts of a group on this machine: files of the host by their paths, USB devices by what sysfs says of
them (ids, serial number, and the device nodes that their drivers made).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nodedevices_probe.generic.config import USB_NODE, PathPart, UsbPart
from nodedevices_probe.generic.glob import is_pattern, match_text, matches
from nodedevices_probe.node.roots import MAX_ENTRIES, Roots
from nodedevices_probe.node.sysfs import System
from nodedevices_probe.protocol import text, within

MAX_NODES = 16  # of a device, in a line
_VISIBLE = ("/dev/", "/sys/", "/proc/")  # of the host, from a container
USB_DEVICES = "sys/bus/usb/devices"
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


def usb_device(system: System, roots: Roots, port: str) -> UsbDevice | None:
    """None: it does not say its ids, bus and number."""
    at = f"{USB_DEVICES}/{port}"
    vendor, product = roots.word(f"{at}/idVendor").lower(), roots.word(f"{at}/idProduct").lower()
    bus, number = roots.number(f"{at}/busnum"), roots.number(f"{at}/devnum")
    if not (_ID.fullmatch(vendor) and _ID.fullmatch(product)) or not within(bus, 1, 999) or not within(number, 1, 999):
        return None
    said = (roots.word(f"{at}/manufacturer"), roots.word(f"{at}/product"))
    return UsbDevice(
        port=port,
        vendor=vendor,
        product=product,
        serial=roots.word(f"{at}/serial"),
        name=text(" ".join(word for word in said if word)),
        pci_bus_id=system.pci_device_of(at),
        nodes=((f"/dev/bus/usb/{bus:03}/{number:03}", USB_NODE), *_interface_nodes(roots, at, port)),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One thing that a part means. `id`: what it is found by; `key`: what the wildcards stand for. `nodes`: paths in
    /dev that it brings; `path`: of a mount, instead of them."""

    id: str
    key: str = ""
    nodes: tuple[str, ...] = ()
    path: str = ""
    usb: UsbDevice | None = None


@dataclass(slots=True, kw_only=True)
class Search:
    """One pass over the machine; USB devices are looked for at the first question."""

    system: System
    roots: Roots
    _usb: list[UsbDevice] | None = None  # in the order of ports

    def of_path(self, part: PathPart) -> list[Found]:
        if not is_pattern(part.path):
            return [self.literal(part)] if self._is_there(part) else []
        found = [(path, match_text(path, part.path)) for path in self._expanded(part.path)]
        if part.mount:
            return [Found(id=path, key=key, path=path) for path, key in found]
        return [
            Found(id=path, key=key, nodes=(path,))
            for path, key in found
            if self.roots.has_node(path) and not _is_folder(self.roots.place(path))
        ]

    def literal(self, part: PathPart) -> Found:
        """What a path without wildcards means, whether it is there or not."""
        if part.mount:
            return Found(id=part.path, path=part.path)
        return Found(id=part.path, nodes=self._below(part.path) or (part.path,))

    def _is_there(self, part: PathPart) -> bool:
        """Folders of the host that are not mounted here are taken for granted, unless they are optional."""
        if part.mount and not part.path.startswith(_VISIBLE):
            return not part.optional or self.roots.exists(self._outside(part.path))
        there = self.roots.place(part.path)
        return bool(self._below(part.path)) if not part.mount and _is_folder(there) else self.roots.exists(there)

    def _below(self, folder: str) -> tuple[str, ...]:
        """The device nodes of a folder of /dev and of those in it, such as /dev/snd: what container runtimes make of
        it. A link is another name of a node, as in /dev/snd/by-path."""
        found: list[str] = []
        todo = [folder] if _is_folder(self.roots.place(folder)) else []
        while todo and len(found) <= MAX_NODES:
            at = todo.pop(0)
            folders = set(self.roots.names(self.roots.place(at), folders=True))
            for name in self.roots.names(self.roots.place(at)):
                path = f"{at}/{name}"
                if name in folders:
                    todo.append(path)
                elif self.roots.has_node(path) and not self.roots.target(self.roots.place(path)):
                    found.append(path)
        return tuple(found)

    def _outside(self, path: str) -> Path:
        """A path of the host that is no /dev, /sys or /proc: below the driver root, if that is the host's."""
        base = self.system.driver_root
        return (base if base is not None and base.is_dir() else self.system.root) / path.lstrip("/")

    def _expanded(self, pattern: str) -> list[str]:
        """Return the paths that match, in natural order."""
        found = [""]
        for part in pattern[1:].split("/"):
            if is_pattern(part):
                below = ((folder, self.roots.names(self._seen_at(folder))) for folder in found if folder)
                found = [f"{folder}/{name}" for folder, names in below for name in names if matches(name, part)]
                found = found[:MAX_ENTRIES]
            else:
                found = [f"{folder}/{part}" for folder in found]
        return [path for path in found if self.roots.exists(self._seen_at(path))]

    def _seen_at(self, path: str) -> Path:
        if path == "/dev" and self.roots.devices is not None:
            return self.roots.devices
        return self.roots.place(path) if f"{path}/".startswith(_VISIBLE) else self._outside(path)

    def of_usb(self, part: UsbPart) -> list[Found]:
        if self._usb is None:
            ports = filter(_PORT.fullmatch, self.roots.names(USB_DEVICES))
            self._usb = list(filter(None, (usb_device(self.system, self.roots, port) for port in ports)))
        return [
            Found(
                id=_usb_id(device, self._usb),
                nodes=tuple(node for node, subsystem in device.nodes if subsystem in part.nodes),
                usb=device,
            )
            for device in self._usb
            if device.vendor == part.vendor
            and part.product in {"", device.product}
            and part.serial in {"", device.serial}
        ]


def _usb_id(device: UsbDevice, others: Iterable[UsbDevice]) -> str:
    alike = [other.serial for other in others if (other.vendor, other.product) == (device.vendor, device.product)]
    is_alone = device.serial and alike.count(device.serial) == 1
    return f"usb:{device.vendor}:{device.product}:{device.serial if is_alone else f'at-{device.port}'}"


def _is_folder(place: Path) -> bool:
    try:
        return place.is_dir()
    except (OSError, ValueError):
        return False
