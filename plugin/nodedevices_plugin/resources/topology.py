"""How close two devices are, as one number: NVIDIA's pair score (go-gpuallocator), so that choices agree with it.

10 for devices on different CPUs up to 60 on one board, and 100 for each direct NVLink. Links through a switch connect
all devices alike and say nothing about a choice. Where PCIe is not known, NUMA stands in; where that is not known
either, a pair counts nothing and the order of devices decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations

from nodedevices_plugin.model import Inventory
from nodedevices_plugin.probes.protocol import DeviceFact, PciePath

LINK_SCORE = 100
PATH_SCORES: Mapping[PciePath, int] = {
    PciePath.SYSTEM: 10,
    PciePath.NODE: 20,
    PciePath.HOSTBRIDGE: 30,
    PciePath.MULTIPLE: 40,
    PciePath.SINGLE: 50,
    PciePath.INTERNAL: 60,
}


@dataclass(frozen=True, slots=True)
class Topology:
    """Pair scores of the devices of a node, computed once per inventory: `scores[position[a]][position[b]]`."""

    position: Mapping[str, int] = field(default_factory=dict)
    scores: tuple[tuple[int, ...], ...] = ()

    def score(self, one: str, other: str) -> int:
        """Of two device ids; 0 where nothing is known."""
        first, second = self.position.get(one), self.position.get(other)
        return 0 if first is None or second is None else self.scores[first][second]


def build(inventory: Inventory) -> Topology:
    """The topology of every device in the inventory, missing and lost ones included (their last facts)."""
    facts = [device.fact for device in inventory.devices]
    table = [[0] * len(facts) for _ in facts]
    for first, second in combinations(range(len(facts)), 2):
        table[first][second] = table[second][first] = pair_score(facts[first], facts[second])
    return Topology({fact.id: place for place, fact in enumerate(facts)}, tuple(tuple(row) for row in table))


def pair_score(one: DeviceFact, other: DeviceFact) -> int:
    paths = [each.path for each in one.pcie if each.to == other.id]
    paths += [each.path for each in other.pcie if each.to == one.id]
    links = max(
        sum(link.count for link in one.links if link.to == other.id),
        sum(link.count for link in other.links if link.to == one.id),
    )
    return (PATH_SCORES[paths[0]] if paths else _by_numa(one, other)) + LINK_SCORE * links


def _by_numa(one: DeviceFact, other: DeviceFact) -> int:
    if one.numa_node is None or other.numa_node is None:
        return 0
    return PATH_SCORES[PciePath.NODE if one.numa_node == other.numa_node else PciePath.SYSTEM]
