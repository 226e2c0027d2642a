"""PCI functions of network cards, and sub-functions: driver, SR-IOV, and what user-space drivers open; also Onload, by
the character devices that its kernel modules make.

Source: Documentation/ABI/testing/sysfs-bus-pci, sysfs-bus-vdpa and vfio of the Linux kernel. A virtual function links
to its physical one (`physfn`), which links to each by its number (`virtfn<N>`). Onload is of the machine, and each
Solarflare card with the driver sfc needs it. A driver's character device is in /proc/devices once its module is loaded
(sfc_char, onload); its node in /dev is udev's.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from nodedevices_probe.nic import ONLOAD_NODES
from nodedevices_probe.nic.interfaces import SUB_FUNCTION, SysfsOwner, auxiliary_type, owner
from nodedevices_probe.nic.models import SOLARFLARE
from nodedevices_probe.node.roots import Roots
from nodedevices_probe.node.sysfs import PCI_DEVICE, PCI_DEVICES
from nodedevices_probe.protocol import MAX_INTEGER, MAX_SMALL, text, within

NETWORK_CLASS = "0x02"
AUXILIARY = "sys/bus/auxiliary/devices"
VDPA = "sys/bus/vdpa/devices"
VIRTIO = "sys/bus/virtio/devices"
RDMA_TYPES = frozenset({"rdma", "roce", "iwarp", "ib"})  # of the auxiliary bus, seen from every network namespace
NO_IOMMU = "vfio-noiommu"
_VFIO_DRIVER = re.compile(r"([a-z0-9_]+[_-])?vfio[_-]pci")
_HEX = re.compile(r"0x([0-9a-f]{4})")
_VDPA_DRIVERS = {"vhost_vdpa": "vhost", "virtio_vdpa": "virtio"}
_VHOST_VDPA = re.compile(r"vhost-vdpa-[0-9]{1,5}")
_VIRTIO = re.compile(r"virtio[0-9]{1,5}")
_VIRTFN = re.compile(r"virtfn([0-9]{1,5})")
_UIO = re.compile(r"uio[0-9]{1,5}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Vdpa:
    """A device of the vDPA bus. `type`: "vhost", "virtio"; empty without such a driver. `path`: what programs open, or
    the virtio device that the kernel made of it."""

    name: str
    type: str
    path: str
    device_nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """`physical`: of a virtual or sub-function, the PCI address of the one that it belongs to. `index`: which of it.
    `device_nodes`: what drivers in user space open."""

    id: str
    vendor: str = ""
    device: str = ""
    driver: str = ""
    physical: str = ""
    index: int | None = None
    virtual_functions: int = 0
    most_virtual_functions: int = 0
    acpi_index: int | None = None
    has_rdma: bool = False  # even while a pod's namespace has its RDMA device
    auxiliary_type: str = ""
    vdpa: Vdpa | None = None
    device_nodes: tuple[str, ...] = ()
    unsaid: str | None = None  # why it is not known how many virtual functions it has

    @property
    def is_virtual(self) -> bool:
        return bool(self.physical) and not self.auxiliary_type

    @property
    def needs_onload(self) -> bool:
        return self.vendor == SOLARFLARE and self.driver == "sfc" and not self.physical

    @property
    def is_special(self) -> bool:
        """True for more than a plain card."""
        return bool(
            self.physical
            or self.has_rdma
            or self.most_virtual_functions
            or self.device_nodes
            or self.vdpa
            or self.vendor == SOLARFLARE
            or self.driver == "sfc"
        )


def functions(roots: Roots, on_bus: Sequence[str], others: Collection[str]) -> dict[SysfsOwner, Function]:
    """Return the functions of network cards, out of all PCI functions, and `others`; then sub-functions."""
    found = [
        bus_id
        for bus_id in on_bus
        if bus_id in others or roots.word(f"{PCI_DEVICES}/{bus_id}/class").startswith(NETWORK_CLASS)
    ]
    vdpa, indexes = _vdpa(roots), _indexes(roots, found)
    auxiliary = {name: owner(roots, f"{AUXILIARY}/{name}") for name in roots.names(AUXILIARY)}
    parts = [(name, its_owner, auxiliary_type(name)) for name, its_owner in auxiliary.items() if its_owner is not None]
    with_rdma = {*others, *(its_owner.pci for _, its_owner, kind in parts if kind in RDMA_TYPES)}
    every = {
        SysfsOwner(bus_id): _function(
            roots, bus_id, indexes, vdpa.get(SysfsOwner(bus_id)), has_rdma=bus_id in with_rdma
        )
        for bus_id in found
    }
    for name, its_owner, kind in parts:
        if kind == SUB_FUNCTION and its_owner in every:
            its = SysfsOwner(its_owner.pci, name)
            every[its] = _sub_function(roots, name, every[its_owner], vdpa.get(its))
    return every


def _function(roots: Roots, bus_id: str, indexes: Mapping[str, int], vdpa: Vdpa | None, *, has_rdma: bool) -> Function:
    at = f"{PCI_DEVICES}/{bus_id}"
    driver, physical = roots.link(f"{at}/driver"), roots.link(f"{at}/physfn")
    return Function(
        id=bus_id,
        vendor=_id(roots, f"{at}/vendor"),
        device=_id(roots, f"{at}/device"),
        driver=driver,
        physical=physical if PCI_DEVICE.fullmatch(physical) else "",
        index=indexes.get(bus_id),
        virtual_functions=_count(roots, f"{at}/sriov_numvfs"),
        most_virtual_functions=_count(roots, f"{at}/sriov_totalvfs"),
        acpi_index=within(roots.number(f"{at}/acpi_index"), 0, MAX_INTEGER),
        has_rdma=has_rdma,
        vdpa=vdpa,
        device_nodes=(*_user_space(roots, at, driver), *(vdpa.device_nodes if vdpa else ())),
        unsaid=None if physical else roots.unsaid(at, "sriov_numvfs", "sriov_totalvfs"),
    )


def _sub_function(roots: Roots, name: str, card: Function, vdpa: Vdpa | None) -> Function:
    """Return a sub-function, with what its card says of itself."""
    at = f"{AUXILIARY}/{name}"
    return Function(
        id=name,
        vendor=card.vendor,
        device=card.device,
        driver=roots.link(f"{at}/driver"),
        physical=card.id,
        index=within(roots.number(f"{at}/sfnum"), 0, MAX_INTEGER),
        auxiliary_type=SUB_FUNCTION,
        vdpa=vdpa,
        device_nodes=vdpa.device_nodes if vdpa else (),
    )


def _user_space(roots: Roots, at: str, driver: str) -> tuple[str, ...]:
    """/dev/vfio/<IOMMU group> or /dev/uio<N>, where such a driver has it."""
    if _VFIO_DRIVER.fullmatch(driver):
        group = roots.link(f"{at}/iommu_group")
        unsafe = "noiommu-" if roots.word(f"{at}/iommu_group/name") == NO_IOMMU else ""
        return (f"/dev/vfio/{unsafe}{group}",) if group.isdecimal() else ()
    return tuple(f"/dev/{name}" for name in roots.names(f"{at}/uio")[:1] if _UIO.fullmatch(name))


def _indexes(roots: Roots, found: Collection[str]) -> dict[str, int]:
    """Return the numbers of virtual functions, by address."""
    indexes: dict[str, int] = {}
    for at in (f"{PCI_DEVICES}/{bus_id}" for bus_id in found):
        if _count(roots, f"{at}/sriov_numvfs"):
            numbers = (_VIRTFN.fullmatch(name) for name in roots.names(at))
            indexes |= {roots.link(f"{at}/{number[0]}"): int(number[1]) for number in numbers if number}
    return indexes


def _vdpa(roots: Roots) -> dict[SysfsOwner, Vdpa]:
    found = {}
    for name in roots.names(VDPA):
        at = f"{VDPA}/{name}"
        below = roots.names(at)
        nodes = [f"/dev/{folder}" for folder in below if _VHOST_VDPA.fullmatch(folder)][:1]
        virtio = [f"/{VIRTIO}/{folder}" for folder in below if _VIRTIO.fullmatch(folder)]
        vdpa = Vdpa(
            name=text(name),
            type=_VDPA_DRIVERS.get(roots.link(f"{at}/driver"), ""),
            path=next(iter((*nodes, *virtio)), ""),
            device_nodes=tuple(nodes),
        )
        if (its_owner := owner(roots, at)) is not None:
            found[its_owner] = vdpa
    return found


def _id(roots: Roots, path: str) -> str:
    """Return the digits of an id: 0x15b3 -> 15b3."""
    match = _HEX.fullmatch(text(roots.word(path)).lower())
    return match[1] if match else ""


def _count(roots: Roots, path: str) -> int:
    return within(roots.number(path), 0, MAX_SMALL) or 0


MAX_BYTES = 1 << 16  # of /proc/devices
_LINE = re.compile(r"\s*[0-9]{1,4} ([a-z0-9_]{1,64})\s*")


def onload_missing(roots: Roots) -> bool:
    """True when something of it is not loaded, or has no node."""
    characters = roots.read("proc/devices", MAX_BYTES).partition("Block devices:")[0]
    loaded = {match[1] for match in map(_LINE.fullmatch, characters.splitlines()) if match}
    return any(node.removeprefix("/dev/") not in loaded or not roots.has_node(node) for node in ONLOAD_NODES)
