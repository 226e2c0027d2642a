"""Facts from the kernel about PCI devices, NUMA, the machine and NVIDIA's capability nodes, below a configurable root;
of PCIe also how near devices are to each other, and what a device's own link does and can do; and the device nodes and
sensors of GPUs, by the folders DRM and hwmon of a device, which all drivers of GPUs have.

Everything here is optional knowledge: a file that is missing, unreadable or odd is "not known" (None or ""), never an
error. Texts are as the line may carry them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

from nodedevices_api.bounds import MAX_NUMA_NODE
from nodedevices_common.text import some

from nodedevices_probe.node.roots import Roots
from nodedevices_probe.protocol import (
    MAX_INTEGER,
    DeviceFact,
    PcieNeighbour,
    PciePath,
    Problem,
    Readings,
    problem,
    within,
)

# --- PCIe -------------------------------------------------------------------------------------------------------------
MAX_PATHS = 64 * 63  # PCIe paths of all devices together: what a line has room for
MAX_LANES = 32  # of the PCIe specification; a device that has left answers 63, and a link that is down 0
# By gigatransfers: the kernel writes "16.0 GT/s PCIe", and older ones "16 GT/s".
_GENERATIONS = {"2.5": 1, "5": 2, "8": 3, "16": 4, "32": 5, "64": 6}
# Ports that a hypervisor makes (Red Hat's, for QEMU, and VMware's): they say nothing of the slot.
_VIRTUAL_PORTS = frozenset({"0x1b36", "0x15ad"})


def _lower(ends: Sequence[int | None]) -> int | None:
    known = [end for end in ends if end is not None]
    return min(known) if len(known) == len(ends) else None


def _generation(speed: str) -> int | None:
    return _GENERATIONS.get(speed.partition(" ")[0].removesuffix(".0"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PciePlace:
    path: tuple[str, ...]  # from the root complex to the device (Roots.pci_path)
    numa_node: int | None = None

    @property
    def root(self) -> str:
        """`pci0000:16`, as a ResourceSlice has it; "" where it is not known."""
        return next(iter(self.path), "")


def path_between(one: PciePlace, other: PciePlace) -> PciePath | None:
    """The nearest common ancestor, in NVML's levels; None where nothing is known of one of them."""
    if not one.path or not other.path:
        return None
    if one.path[0] != other.path[0]:
        return PciePath.SYSTEM if one.numa_node is None or one.numa_node != other.numa_node else PciePath.NODE
    bridges = zip(one.path[:-1], other.path[:-1], strict=False)
    common = len(list(takewhile(lambda pair: pair[0] == pair[1], bridges)))
    below = max(len(one.path), len(other.path)) - common  # bridges below the common one, and the device
    if common == 1:
        return PciePath.HOSTBRIDGE
    if below == 1:
        return PciePath.INTERNAL  # functions of one board
    return PciePath.SINGLE if below == 2 else PciePath.MULTIPLE


def neighbours(places: Mapping[str, PciePlace]) -> dict[str, tuple[PcieNeighbour, ...]]:
    """For each id, its paths to the others, as many as a line has room for."""
    return {
        id_: nearest(
            [
                PcieNeighbour(to=other, path=path)
                for other, its in places.items()
                if other != id_ and (path := path_between(place, its)) is not None
            ],
            len(places),
        )
        for id_, place in places.items()
    }


def nearest(paths: Sequence[PcieNeighbour], devices: int) -> tuple[PcieNeighbour, ...]:
    """As many of one device's PCIe paths as a line of so many devices has room for: the shortest ones."""
    room = min(64, MAX_PATHS // max(devices, 1))
    order = list(PciePath)
    return tuple(paths if len(paths) <= room else sorted(paths, key=lambda path: order.index(path.path))[:room])


# --- the machine ------------------------------------------------------------------------------------------------------
# pci_ids.h: VGA, 3D and other display controllers, and processing accelerators. Audio, USB and bridges are not counted.
ACCELERATOR_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
# Without VGA, which the display adapters of many server boards are: these count where their driver has them.
COMPUTE_CLASSES = ("0x0302", "0x0380", "0x1200")
FOR_GUESTS = ("vfio-pci", "pci-stub", "xen-pciback")  # a function with one of these is a virtual machine's
INTEGRATED = ("0x8086", "0000:00:02.0")  # Intel's graphics in the processor are always there
DRIVER_UNBOUND = "DriverUnbound"  # the problem that names accelerators without a driver
UNBOUND_NAMED = 8
PCI_DEVICES = "sys/bus/pci/devices"
# A folder of a device in sysfs; drivers have other files beside these.
PCI_DEVICE = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ROOT_COMPLEX = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_MIG_MINOR = re.compile(r"gpu([0-9]{1,5})/gi([0-9]{1,5})(?:/ci([0-9]{1,5}))?/access ([0-9]{1,7})")


def slot(bus_id: str) -> str:
    """Return the slot of an address: 0000:3b:00."""
    return bus_id.rpartition(".")[0]


def unbound(accelerators: Mapping[str, str], devices: Iterable[DeviceFact]) -> tuple[Problem, ...]:
    """Return a problem for the accelerators that no driver has, where it has others: those that never came up."""
    listed = {device.pci_bus_id for device in devices}
    alone = sorted(address for address, driver in accelerators.items() if not driver and address not in listed)
    why = "on the PCI bus without a driver: it did not start (dmesg says why), or was unbound"
    return (problem(DRIVER_UNBOUND, f"{some(alone, UNBOUND_NAMED)}: {why}"),) if alone else ()


def parse_mig_minors(lines: str) -> dict[tuple[int, int, int | None], int]:
    """/proc/driver/nvidia-caps/mig-minors: (GPU minor, GPU instance, compute instance or None) -> capability minor."""
    return {
        (int(match[1]), int(match[2]), int(match[3]) if match[3] else None): int(match[4])
        for match in map(_MIG_MINOR.fullmatch, map(str.strip, lines.splitlines()))
        if match is not None
    }


def mig_device_nodes(minors: dict[tuple[int, int, int | None], int], gpu: int, gi: int, ci: int) -> tuple[str, ...]:
    """The capability nodes that a container needs for this MIG device: GPU instance, then compute instance."""
    wanted = (minors.get((gpu, gi, None)), minors.get((gpu, gi, ci)))
    return tuple(f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in wanted if minor is not None)


@dataclass(frozen=True, slots=True)
class System:
    """The kernel's files below `root` (in a container: where the host's /sys and /proc are)."""

    root: Path = Path("/")
    driver_root: Path | None = None  # where the driver's or the host's root is mounted; its dev counts, if it has one
    host_sys: Path | None = None  # where the host's /sys is mounted; it counts, if it is there

    @property
    def roots(self) -> Roots:
        devices = self.driver_root / "dev" if self.driver_root is not None else None
        return Roots(self.root, devices=_folder(devices), sys=_folder(self.host_sys))

    def pci_path(self, bus_id: str) -> tuple[str, ...]:
        """From the root complex to the device: pci0000:16, 0000:16:01.0, 0000:17:00.0; () where it is not known."""
        parts = self.roots.target(f"{PCI_DEVICES}/{bus_id}")
        begin = next((at for at, part in enumerate(parts) if _ROOT_COMPLEX.fullmatch(part)), len(parts))
        return parts[begin:]

    def bus_ids(self, folder: str = PCI_DEVICES) -> list[str]:
        """PCI addresses that a folder lists, in the order of the bus: hexadecimal, so not the natural one."""
        return sorted(name for name in self.roots.names(folder) if PCI_DEVICE.fullmatch(name))

    def place(self, bus_id: str) -> PciePlace:
        """Return the path and the NUMA node of a PCI device; None where the kernel knows no node (-1)."""
        node = self.roots.number(f"{PCI_DEVICES}/{bus_id}/numa_node")
        return PciePlace(path=self.pci_path(bus_id), numa_node=within(node, 0, MAX_NUMA_NODE))

    def with_pcie_link(self, readings: Readings, bus_id: str) -> Readings:
        """The readings with those of the device's link to the port above it: what it does now, and what both can do.
        Nothing is known of a device on no port, of a virtual function, which has no link of its own, and of a link
        whose other end is not seen, in a virtual machine."""
        ports = [port for port in self.pci_path(bus_id)[:-1] if PCI_DEVICE.fullmatch(port)]
        device, port = f"{PCI_DEVICES}/{bus_id}", f"{PCI_DEVICES}/{ports[-1] if ports else ''}"
        roots = self.roots
        if not ports or roots.exists(f"{device}/physfn") or roots.word(f"{port}/vendor") in _VIRTUAL_PORTS:
            return readings
        widths = [within(roots.number(f"{end}/max_link_width"), 1, MAX_LANES) for end in (device, port)]
        speeds = [_generation(roots.word(f"{end}/max_link_speed")) for end in (device, port)]
        return replace(
            readings,
            pcie_width=within(roots.number(f"{device}/current_link_width"), 1, MAX_LANES),
            pcie_width_possible=_lower(widths),
            pcie_generation=_generation(roots.word(f"{device}/current_link_speed")),
            pcie_generation_possible=_lower(speeds),
        )

    def pci_device_of(self, link: str) -> str:
        """The PCI device, last of several, through which a link of sysfs leads: of /sys/dev/char/10:229, of a USB
        device its controller; "" where there is none."""
        return next((part for part in reversed(self.roots.target(link)) if PCI_DEVICE.fullmatch(part)), "")

    def accelerators(self, vendor: str) -> dict[str, str]:
        """Return by PCI address the drivers ("": none) of the display, 3D and processing-accelerator devices of a
        vendor (0x10de): not those of virtual machines, nor a processor's own display without a driver."""
        return {
            name: driver
            for name, driver in self._every_accelerator(vendor).items()
            if driver not in FOR_GUESTS and (driver or (vendor, name) != INTEGRATED)
        }

    def only_for_guests(self, vendor: str) -> bool:
        """True when virtual machines have a vendor's accelerators, and this machine has none."""
        drivers = self._every_accelerator(vendor).values()
        return any(driver in FOR_GUESTS for driver in drivers) and not self.accelerators(vendor)

    def _every_accelerator(self, vendor: str) -> dict[str, str]:
        roots = self.roots
        return {
            name: roots.link(f"{PCI_DEVICES}/{name}/driver")
            for name in roots.names(PCI_DEVICES)
            if roots.read(f"{PCI_DEVICES}/{name}/class")[:6] in ACCELERATOR_CLASSES
            and roots.read(f"{PCI_DEVICES}/{name}/vendor") == vendor
            and not roots.exists(f"{PCI_DEVICES}/{name}/physfn")  # a part of a device that is counted already
        }

    def machine_type(self) -> str:
        """Return DMI's product name, such as DGXH100."""
        return self.roots.word("sys/class/dmi/id/product_name")

    def display_mode(self, bus_id: str) -> str:
        """compute | graphics, by PCI class, as NVIDIA's feature discovery distinguishes them; "" for others."""
        return {"0x0302": "compute", "0x0300": "graphics"}.get(self.roots.word(f"{PCI_DEVICES}/{bus_id}/class")[:6], "")


def _folder(path: Path | None) -> Path | None:
    return path if path is not None and path.is_dir() else None


# --- device nodes and sensors -----------------------------------------------------------------------------------------
NODE_MISSING = "deviceNodeMissing"  # in readings.conditions: a node that containers need is not in /dev
_CARD, _RENDER = re.compile(r"card([0-9]{1,5})"), re.compile(r"renderD([0-9]{1,5})")
_SENSORS = (1, 2, 3, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drm:
    """By minor number: /dev/dri/card<N>, /dev/dri/renderD<N>."""

    card: int | None = None
    render: int | None = None

    @property
    def nodes(self) -> tuple[str, ...]:
        card = () if self.card is None else (f"/dev/dri/card{self.card}",)
        return card if self.render is None else (*card, f"/dev/dri/renderD{self.render}")


def drm(roots: Roots, device: str) -> Drm:
    """Return the DRM nodes of the device with this folder."""
    names = roots.names(f"{device}/drm")
    card, render = ([int(match[1]) for match in map(kind.fullmatch, names) if match] for kind in (_CARD, _RENDER))
    return Drm(card=min(card, default=None), render=min(render, default=None))


def node_conditions(roots: Roots, nodes: Iterable[str]) -> tuple[str, ...]:
    """Return what is missing, for readings.conditions."""
    return () if all(roots.has_node(node) for node in nodes) else (NODE_MISSING,)


def hwmon(roots: Roots, device: str) -> str:
    """The folder of its sensors; "" where there is none."""
    return next((f"{device}/hwmon/{name}" for name in roots.names(f"{device}/hwmon")), "")


def sensors(roots: Roots, device: str, *, shown: str = "") -> Readings:
    """Return what the sensors of the device with this folder say (millidegrees, microwatts). Drivers slow a GPU down
    where any sensor is at its critical temperature. The temperature is that of the sensor labelled `shown`, else of the
    first one."""
    folder = hwmon(roots, device)
    if not folder:
        return Readings()
    values = ((f"{folder}/temp{number}", roots.number(f"{folder}/temp{number}_input")) for number in _SENSORS)
    felt = {sensor: value for sensor, value in values if value is not None}
    hot = [value >= limit for sensor, value in felt.items() if (limit := roots.number(f"{sensor}_crit"))]
    labelled = [value for sensor, value in felt.items() if shown and roots.word(f"{sensor}_label") == shown]
    watts = (roots.number(f"{folder}/power1_{kind}") for kind in ("average", "input"))
    microwatts = next((value for value in watts if value is not None), None)
    return Readings(
        thermal_slowdown=any(hot) if hot else None,
        temperature_celsius=within(next(iter((*labelled, *felt.values())), None), -300, 1000, per=1000),
        power_milliwatts=within(microwatts, 0, MAX_INTEGER, per=1000),
    )
