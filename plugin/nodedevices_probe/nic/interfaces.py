"""Network interfaces of the namespace whose /sys it is: which are a device's, what their links do, and through which of
them the node's own traffic goes (those that default routes name, and what is below them).

Sources: net-sysfs.c, fib_trie.c and route.c of the Linux kernel (/proc/net/route, /proc/net/ipv6_route). `carrier` and
`speed` cannot be read of an interface that is administratively down; `carrier_up_count` and `carrier_down_count` count
since the driver made the interface. IPv6 counts where IPv4 has no default route: any router may announce one on a
network that is not the node's own.

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
from collections.abc import Container
from dataclasses import dataclass, replace

from nodedevices_probe.nic import ETHER, INFINIBAND
from nodedevices_probe.node.roots import Roots
from nodedevices_probe.node.sysfs import PCI_DEVICE
from nodedevices_probe.protocol import MAX_INTEGER, MAX_SMALL, text, within

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
        speed_gbps=None if megabits is None else within(megabits // 1000, 1, MAX_SMALL),
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
AUXILIARY = re.compile(r"[A-Za-z0-9_]{1,32}\.([A-Za-z0-9_-]{1,32})\.[0-9]{1,9}")
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
    match = AUXILIARY.fullmatch(name)
    return match[1] if match else ""
