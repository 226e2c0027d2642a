"""PCIe, from sysfs: how near devices are to each other, and what a device's own link does and can do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nodedevices_probe.node.roots import Roots
from nodedevices_probe.protocol import PcieNeighbour, PciePath, nearest, within

MAX_LANES = 32  # of the PCIe specification; a device that has left answers 63, and a link that is down 0
# By gigatransfers: the kernel writes "16.0 GT/s PCIe", and older ones "16 GT/s".
_GENERATIONS = {"2.5": 1, "5": 2, "8": 3, "16": 4, "32": 5, "64": 6}
# Ports that a hypervisor makes (Red Hat's, for QEMU, and VMware's): they say nothing of the slot.
_VIRTUAL_PORTS = frozenset({"0x1b36", "0x15ad"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PcieLink:
    """A device's link to the port above it, and what both of its ends can do. None: not known."""

    width: int | None = None
    width_possible: int | None = None
    generation: int | None = None
    generation_possible: int | None = None


NO_LINK = PcieLink()


def pcie_link(roots: Roots, device: str, port: str) -> PcieLink:
    """Return the link of the device in this folder of sysfs to the port in that one. A virtual function has none of its
    own; a device in a virtual machine has one whose other end is not seen there."""
    if roots.exists(f"{device}/physfn") or roots.word(f"{port}/vendor") in _VIRTUAL_PORTS:
        return NO_LINK
    widths = [within(roots.number(f"{end}/max_link_width"), 1, MAX_LANES) for end in (device, port)]
    speeds = [_generation(roots.word(f"{end}/max_link_speed")) for end in (device, port)]
    return PcieLink(
        width=within(roots.number(f"{device}/current_link_width"), 1, MAX_LANES),
        width_possible=_lower(widths),
        generation=_generation(roots.word(f"{device}/current_link_speed")),
        generation_possible=_lower(speeds),
    )


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
        alike = one.numa_node is not None and one.numa_node == other.numa_node
        return PciePath.NODE if alike else PciePath.SYSTEM
    common = 0
    for mine, its in zip(one.path[:-1], other.path[:-1], strict=False):
        if mine != its:
            break
        common += 1
    below = max(len(one.path), len(other.path)) - common  # bridges below the common one, and the device
    if common == 1:
        return PciePath.HOSTBRIDGE
    if below == 1:
        return PciePath.INTERNAL  # functions of one board
    return PciePath.SINGLE if below == 2 else PciePath.MULTIPLE


def neighbours(places: Mapping[str, PciePlace]) -> dict[str, tuple[PcieNeighbour, ...]]:
    """For each id, its paths to the others, as many as a line has room for."""
    return {
        id_: nearest(_of(place, [other for other in places.items() if other[0] != id_]), len(places))
        for id_, place in places.items()
    }


def _of(place: PciePlace, others: Sequence[tuple[str, PciePlace]]) -> list[PcieNeighbour]:
    found = ((other, path_between(place, its)) for other, its in others)
    return [PcieNeighbour(to=other, path=path) for other, path in found if path is not None]
