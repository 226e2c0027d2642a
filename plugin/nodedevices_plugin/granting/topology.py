"""Scores how well two devices work together: by their vendor (Vendor.pair_score), else by how close they are on PCIe.
Devices of two vendors are compared by PCIe alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from itertools import combinations

from msgspec import Struct, field

from nodedevices_plugin.model import Inventory
from nodedevices_plugin.vendors.base import path_score
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
    makers = [vendors.vendor_of(fact) for fact in facts]
    table = [[0] * len(facts) for _ in facts]
    for first, second in combinations(range(len(facts)), 2):
        maker = makers[first]
        score = path_score if maker is None or maker is not makers[second] else maker.pair_score
        table[first][second] = table[second][first] = score(facts[first], facts[second])
    gathered = set[str]()
    for place, (fact, maker) in enumerate(zip(facts, makers, strict=True)):
        if maker is not None and (own := maker.partition_score(fact)) is not None:
            gathered.add(fact.id)
            table[place][place] = own
    positions = {fact.id: place for place, fact in enumerate(facts)}
    return Topology(positions, tuple(tuple(row) for row in table), frozenset(gathered))
