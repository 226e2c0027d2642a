"""PCI functions of network cards, and sub-functions: driver, SR-IOV, and what user-space drivers open; Onload, by the
character devices that its kernel modules make; and the network interfaces of the namespace whose /sys it is: which are
a device's, what their links do, and through which of them the node's own traffic goes (those that default routes name,
and what is below them).

Sources: Documentation/ABI/testing/sysfs-bus-pci, sysfs-bus-vdpa and vfio of the Linux kernel; net-sysfs.c, fib_trie.c
and route.c (/proc/net/route, /proc/net/ipv6_route). A virtual function links to its physical one (`physfn`), which
links to each by its number (`virtfn<N>`). Onload is of the machine, and each Solarflare card with the driver sfc needs
it. A driver's character device is in /proc/devices once its module is loaded (sfc_char, onload); its node in /dev is
udev's. `carrier` and `speed` cannot be read of an interface that is administratively down; `carrier_up_count` and
`carrier_down_count` count since the driver made the interface. IPv6 counts where IPv4 has no default route: any router
may announce one on a network that is not the node's own.

An entry of a class or bus of sysfs is of the device in whose folder it stands, by the path that it links to:

class/net/eth0          -> devices/pci0000:00/0000:00:03.0/virtio2/net/eth0
class/net/enp3s0f0s88   -> devices/pci0000:00/.../0000:03:00.0/mlx5_core.sf.2/net/enp3s0f0s88
class/infiniband/rxe0   -> devices/virtual/infiniband/rxe0

A mock of sysfs may have folders in the place of these links, as NVIDIA's mock of InfiniBand has (k8s-test-infra,
pkg/network/mockib): such an entry is of the device that its own link `device` names, if it has one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nodedevices_probe import nic as names
from nodedevices_probe.nic import ETHER, INFINIBAND, ONLOAD_NODES, SOLARFLARE
from nodedevices_probe.node.roots import Roots
from nodedevices_probe.node.sysfs import PCI_DEVICE, PCI_DEVICES
from nodedevices_probe.protocol import MAX_INTEGER, MAX_SMALL, text, within

# --- interfaces -------------------------------------------------------------------------------------------------------
NET = "sys/class/net"
_IFF_UP = 1
_TYPES = {1: ETHER, 32: INFINIBAND}  # if_arp.h
# phys_port_name of a switch's port for a function, the host's on a DPU among them (pf0hpf, c1pf0); an uplink's is p0.
_REPRESENTOR = re.compile(r"(c[0-9]+)?(pf[0-9]+(hpf)?|(pf[0-9]+)?(vf|sf)[0-9]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """`names`: of a device with several ports the interfaces of all of them; `name` and `link_type` are the first
    one's, whichever of them has a link, and the rest is the one's that has."""

    name: str
    names: tuple[str, ...] = ()
    link_type: str = ""  # ETHER, INFINIBAND, "" for others
    is_wanted_up: bool = False  # administratively
    has_carrier: bool | None = None  # None: not known
    was_up: bool = False
    carrier_downs: int | None = None  # how often it lost its link; not of a device with several ports
    speed_gbps: int | None = None


def interfaces(roots: Roots, without_speed: Container[SysfsOwner]) -> dict[SysfsOwner, Interface]:
    """By device, the one that is its own: neither a representor of a function nor a child of an IPoIB interface; of
    several ports all together. `without_speed`: of devices whose speed is known otherwise."""
    found = defaultdict[SysfsOwner, list[tuple[int, Interface]]](list)
    for name in roots.names(NET):
        its_owner, at = owner(roots, f"{NET}/{name}"), f"{NET}/{name}"
        is_part = _REPRESENTOR.fullmatch(roots.word(f"{at}/phys_port_name")) or roots.exists(f"{at}/parent")
        if its_owner is not None and its_owner.pci and not is_part:
            port = roots.number(f"{at}/dev_port") or 0
            found[its_owner].append((port, interface(roots, name, speed=its_owner not in without_speed)))
    return {its_owner: _together(several) for its_owner, several in found.items()}


def _together(ports: list[tuple[int, Interface]]) -> Interface:
    """Return several ports as one interface. What selects a device must not change with a link: its name is the first
    port's."""
    ordered = [port for _, port in sorted(ports, key=lambda pair: pair[0])]
    linked = next((port for port in ordered if port.has_carrier), ordered[0])
    first = ordered[0]
    only = len(ports) == 1 and ports[0][0] == 0  # else a pod may have the interface of another port, and bring it back
    return replace(
        linked,
        name=first.name,
        link_type=first.link_type,
        names=tuple(port.name for port in ordered),
        carrier_downs=first.carrier_downs if only else None,
    )


def interface(roots: Roots, name: str, *, speed: bool = True) -> Interface:
    """`speed`: read it, which asks the card's firmware while all of the machine's interfaces wait."""
    at = f"{NET}/{name}"
    carrier = roots.number(f"{at}/carrier")
    megabits = roots.number(f"{at}/speed") if speed and carrier == 1 else None
    return Interface(
        name=text(name),
        link_type=_TYPES.get(roots.number(f"{at}/type") or 0, ""),
        is_wanted_up=bool((roots.number(f"{at}/flags", 16) or 0) & _IFF_UP),
        has_carrier=None if carrier is None else carrier == 1,
        was_up=(roots.number(f"{at}/carrier_up_count") or 0) > 0,
        carrier_downs=within(roots.number(f"{at}/carrier_down_count"), 0, MAX_INTEGER),
        speed_gbps=within(megabits, 1, MAX_SMALL, per=1000),
    )


MAX_ROUTES_BYTES = 1 << 20
MAX_INTERFACES = 64
_UP, _REJECT = 0x1, 0x200
_LOWER = "lower_"  # of a bond, a VLAN, a bridge: what it sends through


def default_interfaces(roots: Roots, folder: str) -> frozenset[str] | None:
    """`folder`: /proc/<pid>/net of the host's network. None: there are no such files."""
    if not roots.exists(f"{folder}/route"):
        return None
    lines = (line.split() for line in roots.read(f"{folder}/route", MAX_ROUTES_BYTES).splitlines()[1:])
    named = {line[0] for line in lines if len(line) > 7 and _is_default(line[1], line[7], line[3])}
    if not named:
        lines = (line.split() for line in roots.read(f"{folder}/ipv6_route", MAX_ROUTES_BYTES).splitlines())
        named = {
            line[9] for line in lines if len(line) > 9 and line[9] != "lo" and _is_default(line[0], line[1], line[8])
        }
    return frozenset(_with_lower(roots, named))


def _is_default(destination: str, mask: str, flags: str) -> bool:
    try:
        known = int(flags, 16)
    except ValueError:
        return False
    return not (destination + mask).strip("0") and bool(known & _UP) and not known & _REJECT


def _with_lower(roots: Roots, named: set[str]) -> set[str]:
    found, left = set[str](), sorted(named)
    while left and len(found) < MAX_INTERFACES:
        name = left.pop()
        if "/" in name or name in found:
            continue
        found.add(name)
        left += [file.removeprefix(_LOWER) for file in roots.names(f"{NET}/{name}") if file.startswith(_LOWER)]
    return found


# <driver>.<type>.<number> of the auxiliary bus. A sub-function is a device of its own; other types (mlx5_core.rdma.0,
# ice.roce.0) are parts of their device.
_AUXILIARY_NAME = re.compile(r"[A-Za-z0-9_]{1,32}\.([A-Za-z0-9_-]{1,32})\.[0-9]{1,9}")
SUB_FUNCTION = "sf"


@dataclass(frozen=True, slots=True)
class SysfsOwner:
    """`pci`: the nearest PCI function; "" for what has none. `auxiliary`: a sub-function below it."""

    pci: str = ""
    auxiliary: str = ""


def owner(roots: Roots, path: str) -> SysfsOwner | None:
    """Return the owner of the entry of this path, which is a link, or a folder of a mock; None: it is gone."""
    link = roots.target(path)
    if not link and not roots.exists(path):
        return None
    found = SysfsOwner()
    for part in link[:-1] if link else roots.target(f"{path}/device"):
        if PCI_DEVICE.fullmatch(part):
            found = SysfsOwner(part)
        elif auxiliary_type(part) == SUB_FUNCTION:
            found = SysfsOwner(found.pci, part)
    return found


def auxiliary_type(name: str) -> str:
    """Return the type in a name of the auxiliary bus; "" for others."""
    match = _AUXILIARY_NAME.fullmatch(name)
    return match[1] if match else ""


# --- functions --------------------------------------------------------------------------------------------------------
NETWORK_CLASS = "0x02"
AUXILIARY = "sys/bus/auxiliary/devices"
VDPA = "sys/bus/vdpa/devices"
RDMA_TYPES = frozenset({"rdma", "roce", "iwarp", "ib"})  # of the auxiliary bus, seen from every network namespace
_VFIO_DRIVER = re.compile(r"([a-z0-9_]+[_-])?vfio[_-]pci")
_HEX = re.compile(r"0x([0-9a-f]{4})")
_VDPA_DRIVERS = {"vhost_vdpa": "vhost", "virtio_vdpa": "virtio"}
_VHOST_VDPA = re.compile(r"vhost-vdpa-[0-9]{1,5}")
_VIRTIO = re.compile(r"virtio[0-9]{1,5}")
_VIRTFN = re.compile(r"virtfn([0-9]{1,5})")
_UIO = re.compile(r"uio[0-9]{1,5}")


# A device of the vDPA bus: its attributes, and the nodes that programs open. Its type is "vhost" or "virtio", empty
# without such a driver; its path is what programs open, or the virtio device that the kernel made of it.
Vdpa = tuple[Mapping[str, str], tuple[str, ...]]
NO_VDPA: Vdpa = ({}, ())


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
    vdpa: Mapping[str, str] = field(default_factory=dict)  # attributes
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
    parts = [
        (name, its_owner, auxiliary_type(name))
        for name in roots.names(AUXILIARY)
        if (its_owner := owner(roots, f"{AUXILIARY}/{name}")) is not None
    ]
    with_rdma = {*others, *(its_owner.pci for _, its_owner, kind in parts if kind in RDMA_TYPES)}
    every = {
        SysfsOwner(bus_id): _function(
            roots, bus_id, indexes, vdpa.get(SysfsOwner(bus_id), NO_VDPA), has_rdma=bus_id in with_rdma
        )
        for bus_id in found
    }
    for name, its_owner, kind in parts:
        if kind == SUB_FUNCTION and its_owner in every:
            its = SysfsOwner(its_owner.pci, name)
            every[its] = _sub_function(roots, name, every[its_owner], vdpa.get(its, NO_VDPA))
    return every


def _function(roots: Roots, bus_id: str, indexes: Mapping[str, int], vdpa: Vdpa, *, has_rdma: bool) -> Function:
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
        vdpa=vdpa[0],
        device_nodes=(*_user_space(roots, at, driver), *vdpa[1]),
        unsaid=None if physical else roots.unsaid(at, "sriov_numvfs", "sriov_totalvfs"),
    )


def _sub_function(roots: Roots, name: str, card: Function, vdpa: Vdpa) -> Function:
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
        vdpa=vdpa[0],
        device_nodes=vdpa[1],
    )


def _user_space(roots: Roots, at: str, driver: str) -> tuple[str, ...]:
    """/dev/vfio/<IOMMU group> or /dev/uio<N>, where such a driver has it."""
    if _VFIO_DRIVER.fullmatch(driver):
        group = roots.link(f"{at}/iommu_group")
        unsafe = "noiommu-" if roots.word(f"{at}/iommu_group/name") == "vfio-noiommu" else ""
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
    found = dict[SysfsOwner, Vdpa]()
    for name in roots.names(VDPA):
        at = f"{VDPA}/{name}"
        below = roots.names(at)
        nodes = [f"/dev/{folder}" for folder in below if _VHOST_VDPA.fullmatch(folder)][:1]
        virtio = [f"/sys/bus/virtio/devices/{folder}" for folder in below if _VIRTIO.fullmatch(folder)]
        said = {
            names.VDPA_TYPE: _VDPA_DRIVERS.get(roots.link(f"{at}/driver"), ""),
            names.VDPA_DEVICE: text(name),
            names.VDPA_PATH: next(iter((*nodes, *virtio)), ""),
        }
        if (its_owner := owner(roots, at)) is not None:
            found[its_owner] = said, tuple(nodes)
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
