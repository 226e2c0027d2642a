"""Scores how well two devices work together: by their vendor (vendors.base.PairScore), else by how close they are on
PCIe. Devices of two vendors are compared by PCIe alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from itertools import combinations

from msgspec import Struct, field
from nodedevices_probe.protocol import DeviceFact

from nodedevices_plugin.model import Inventory
from nodedevices_plugin.vendors.base import GatheredPartitions, PairScore, path_score
from nodedevices_plugin.vendors.registry import VENDORS, Vendors


class Topology(Struct, frozen=True):
    """Pair scores of the devices of a node, computed once per inventory: `scores[position[a]][position[b]]`. Of
    a device with itself: 0, or how well two of its partitions work together where these are `gathered`."""

    position: Mapping[str, int] = field(default_factory=dict)
    scores: tuple[tuple[int, ...], ...] = ()
    gathered: Set[str] = frozenset()  # ids of devices

    def score(self, one: str, other: str) -> int:
        """Return the score of two devices by id; 0 where nothing is known."""
        first, second = self.position.get(one), self.position.get(other)
        return 0 if first is None or second is None else self.scores[first][second]


def build(inventory: Inventory, vendors: Vendors = VENDORS) -> Topology:
    """The topology of every device in the inventory, missing and lost ones included (their last facts)."""
    facts = [device.fact for device in inventory.devices]
    scorers = [_scorer(fact, vendors) for fact in facts]
    table = [[0] * len(facts) for _ in facts]
    for first, second in combinations(range(len(facts)), 2):
        score = scorers[first] if scorers[first] == scorers[second] else path_score
        table[first][second] = table[second][first] = score(facts[first], facts[second])
    gathered = set[str]()
    for place, fact in enumerate(facts):
        if (own := _partition_score(fact, vendors)) is not None:
            gathered.add(fact.id)
            table[place][place] = own
    positions = {fact.id: place for place, fact in enumerate(facts)}
    return Topology(positions, tuple(tuple(row) for row in table), frozenset(gathered))


def _scorer(fact: DeviceFact, vendors: Vendors) -> Callable[[DeviceFact, DeviceFact], int]:
    vendor = vendors.vendor_of(fact)
    return vendor.pair_score if isinstance(vendor, PairScore) else path_score


def _partition_score(fact: DeviceFact, vendors: Vendors) -> int | None:
    """Return the score of two of its partitions; None: a container does not get them together."""
    vendor = vendors.vendor_of(fact)
    return vendor.partition_score(fact) if isinstance(vendor, GatheredPartitions) else None
