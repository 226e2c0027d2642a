"""Several partitions for one container, from as few devices as they can come from (Vendor.partition_score).

As AMD's device plugin (allocator/besteffort_policy.go): of each device everything that is free is taken, and of the
last one as much as is still needed. Among these sets the one with the greatest sum of pair scores is chosen; of equal
ones the one that begins with the devices that have the least free, so that whole devices are left for others.

Partitions of one device are alike, so only devices are compared: all sets of up to 8, and beyond that the best
beginnings of each length.

Scores how well two devices work together: by their vendor (Vendor.pair_score), else by how close they are on PCIe.
Devices of two vendors are compared by PCIe alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from itertools import combinations

from msgspec import Struct, field

from nodedevices_plugin.model import Inventory, SchedulableId
from nodedevices_plugin.vendors.base import path_score
from nodedevices_plugin.vendors.registry import VENDORS, Vendors

MAX_BEGINNINGS = 128  # of one length; 8 devices have 70


class _Taken(Struct, frozen=True, kw_only=True):
    """Devices of which everything is taken, in order. `gains`: what one more partition of each device would add."""

    devices: tuple[int, ...] = ()
    count: int = 0
    score: int = 0
    gains: tuple[int, ...]


def gather(
    must: Sequence[SchedulableId], free: Sequence[SchedulableId], needed: int, topology: Topology
) -> list[SchedulableId]:
    """`needed` of the free ones, no more than there are, to go with those of `must`."""
    groups = _by_device(free)
    names = list(groups)
    scores = [[topology.score(one, other) for other in names] for one in names]
    sizes = [len(groups[name]) for name in names]
    start = tuple(sum(topology.score(name, schedulable.device_id) for schedulable in must) for name in names)
    devices = _best(_Taken(gains=start), sizes, scores, needed)
    ordered = [schedulable for device in devices for schedulable in groups[names[device]]]
    return ordered[:needed]


def _by_device(free: Sequence[SchedulableId]) -> Mapping[str, Sequence[SchedulableId]]:
    """Those with the fewest first, of equal ones in the order of the resource."""
    groups: dict[str, list[SchedulableId]] = {}
    for schedulable in free:
        groups.setdefault(schedulable.device_id, []).append(schedulable)
    return dict(sorted(groups.items(), key=lambda group: len(group[1])))


def _best(start: _Taken, sizes: Sequence[int], scores: Sequence[Sequence[int]], needed: int) -> Sequence[int]:
    """The devices to take from, in this order; as far as it matters the first of equally good ones."""
    best: tuple[int, tuple[int, ...]] | None = None
    beginnings = [start]
    while beginnings:
        longer: dict[frozenset[int], _Taken] = {}
        for taken in beginnings:
            for device, size in enumerate(sizes):
                some = frozenset((*taken.devices, device))
                if device in taken.devices or some in longer:
                    continue
                count = min(size, needed - taken.count)
                score = taken.score + count * taken.gains[device] + count * (count - 1) // 2 * scores[device][device]
                if taken.count + count == needed:
                    if best is None or score > best[0]:
                        best = score, (*taken.devices, device)
                    continue
                gains = tuple(old + count * pair for old, pair in zip(taken.gains, scores[device], strict=True))
                longer[some] = _Taken(
                    devices=(*taken.devices, device),
                    count=taken.count + count,
                    score=score,
                    gains=gains,
                )
        beginnings = _most_promising(list(longer.values()))
    return best[1] if best is not None else ()


def _most_promising(found: list[_Taken]) -> list[_Taken]:
    """Without the worst where there are too many; in their order."""
    best_first = sorted(range(len(found)), key=lambda at: -found[at].score)
    return [found[at] for at in sorted(best_first[:MAX_BEGINNINGS])]


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
