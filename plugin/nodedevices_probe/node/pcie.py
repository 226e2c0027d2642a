"""Nearness of devices to each other on PCIe, from their places in sysfs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nodedevices_probe.protocol import PcieNeighbour, PciePath, nearest


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
        id_: nearest(_of(place, [each for each in places.items() if each[0] != id_]), len(places))
        for id_, place in places.items()
    }


def _of(place: PciePlace, others: Sequence[tuple[str, PciePlace]]) -> list[PcieNeighbour]:
    found = ((other, path_between(place, its)) for other, its in others)
    return [PcieNeighbour(to=other, path=path) for other, path in found if path is not None]
