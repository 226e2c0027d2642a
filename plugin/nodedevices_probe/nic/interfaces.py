"""Network interfaces of the namespace whose /sys it is: which are a device's, and what their links do.

Source: net-sysfs.c of the Linux kernel. `carrier` and `speed` cannot be read of an interface that is administratively
down; `carrier_up_count` and `carrier_down_count` count since the driver made the interface.
"""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass, replace

from nodedevices_probe.nic.attributes import ETHER, INFINIBAND
from nodedevices_probe.nic.owners import SysfsOwner, owner
from nodedevices_probe.node.roots import Roots
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
    found: dict[SysfsOwner, list[tuple[int, Interface]]] = {}
    for name in roots.names(NET):
        its_owner, at = owner(roots, f"{NET}/{name}"), f"{NET}/{name}"
        if its_owner is not None and its_owner.pci and not _is_part(roots, at):
            port = roots.number(f"{at}/dev_port") or 0
            found.setdefault(its_owner, []).append((port, interface(roots, name, speed=its_owner not in without_speed)))
    return {its_owner: _together(several) for its_owner, several in found.items()}


def _together(ports: list[tuple[int, Interface]]) -> Interface:
    """Return several ports as one interface. What selects a device must not change with a link: its name is the first
    port's."""
    ordered = [each for _, each in sorted(ports, key=lambda each: each[0])]
    linked = next((each for each in ordered if each.has_carrier), ordered[0])
    first = ordered[0]
    only = len(ports) == 1 and ports[0][0] == 0  # else a pod may have the interface of another port, and bring it back
    return replace(
        linked,
        name=first.name,
        link_type=first.link_type,
        names=tuple(each.name for each in ordered),
        carrier_downs=first.carrier_downs if only else None,
    )


def _is_part(roots: Roots, at: str) -> bool:
    """True when it is a representor or a child."""
    is_representor = _REPRESENTOR.fullmatch(roots.word(f"{at}/phys_port_name")) is not None
    return is_representor or roots.exists(f"{at}/parent")


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
