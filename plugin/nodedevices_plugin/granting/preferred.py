"""GetPreferredAllocation: which of the available ids make the best set.

Whole devices: the set with the greatest sum of pair scores (Topology), and of those the one that leaves the best
connected rest; so a single device is taken where it hurts the rest least. Exact while the number of sets is small
(every node of up to 8), by greedy growth and exchange beyond. Shares and partitions: the least shared device first
(`packed`: the most shared). Shares of memory: see packing; computing power: core_ids. Equally good sets: the first by
index, so the same question has the same answer.

Several partitions of some vendors come from as few devices as they can come from (Vendor.partition_score), as AMD's
device plugin does it (allocator/besteffort_policy.go): of each device everything that is free is taken, and of the last
one as much as is still needed. Among these sets the one with the greatest sum of pair scores is chosen; of equal ones
the one that begins with the devices that have the least free, so that whole devices are left for others. Partitions of
one device are alike, so only devices are compared: all sets of up to 8, and beyond that the best beginnings of each
length.

Scores how well two devices work together: by their vendor (Vendor.pair_score), else by how close they are on PCIe.
Devices of two vendors are compared by PCIe alone.

The kubelet takes an error as a failed admission, so there is none for a reason outside the request: unknown topology,
lost or unhealthy neighbours. What cannot be granted is an empty list or an AllocationError.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence, Set
from itertools import combinations
from math import comb
from operator import itemgetter

from msgspec import Struct, field
from nodedevices_common.grouping import grouped

from nodedevices_plugin.cores import ids as core_ids
from nodedevices_plugin.cores.ledger import Room
from nodedevices_plugin.granting.packing import pack
from nodedevices_plugin.model import AllocationError, Inventory, OfferedResource, SchedulableId
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
    by_device = grouped((schedulable.device_id, schedulable) for schedulable in free)
    # Those with the fewest first, of equal ones in the order of the resource.
    groups = dict(sorted(by_device.items(), key=lambda group: len(group[1])))
    names = list(groups)
    scores = [[topology.score(one, other) for other in names] for one in names]
    sizes = [len(groups[name]) for name in names]
    start = tuple(sum(topology.score(name, schedulable.device_id) for schedulable in must) for name in names)
    devices = _best(_Taken(gains=start), sizes, scores, needed)
    return [schedulable for device in devices for schedulable in groups[names[device]]][:needed]


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
                    devices=(*taken.devices, device), count=taken.count + count, score=score, gains=gains
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
        score = maker.pair_score if maker is makers[second] else path_score
        table[first][second] = table[second][first] = score(facts[first], facts[second])
    gathered = set[str]()
    for place, (fact, maker) in enumerate(zip(facts, makers, strict=True)):
        if (own := maker.partition_score(fact)) is not None:
            gathered.add(fact.id)
            table[place][place] = own
    positions = {fact.id: place for place, fact in enumerate(facts)}
    return Topology(positions, tuple(tuple(row) for row in table), frozenset(gathered))


EXACT_SETS = 1000  # about 1 ms; all of C(8, n), C(12, 6), C(16, 3)
_STARTS = 8  # of the greedy search


def prefer(
    resource: OfferedResource,
    available: Sequence[str],
    must_include: Sequence[str],
    size: int,
    topology: Topology,
    *,
    packed: bool = False,
    room: Room | None = None,
) -> tuple[str, ...]:
    """`size` of the available ids, `must_include` among them, in the resource's order. `room`: see pack.

    Whole devices: empty when the request cannot be met (too many, `must_include` not available). Raises AllocationError
    for ids that this resource does not have, where the others do not suffice, and for shares when there are too few.
    """
    required = frozenset(must_include)
    allowed = frozenset(available)
    known = [schedulable for schedulable in resource.ids if schedulable.id in allowed or schedulable.id in required]
    _check_known(resource, known, allowed, required, size)
    must = [schedulable for schedulable in known if schedulable.id in required]
    free = [schedulable for schedulable in known if schedulable.id not in required]
    needed = size - len(must)
    if needed < 0 or not size:
        return ()
    if resource.sharing.packing is not None:
        return pack(resource, known, required, size, room)
    if resource.per_device is not None:
        return core_ids.prefer(
            resource, known, required, size, lambda some, others, count: _closest(some, others, count, topology)
        )
    if not required <= allowed:
        return ()
    whole = all(schedulable.replica is None and schedulable.partition_id is None for schedulable in resource.ids)
    if needed > len(free):
        if whole:
            return ()
        raise AllocationError(f"{resource.name}: {size} requested, {len(known)} are available; request fewer.")
    if whole:
        picked = _closest(must, free, needed, topology)
    elif all(offered.replica is None and offered.device_id in topology.gathered for offered in resource.ids):
        picked = gather(must, free, needed, topology)
    else:
        picked = _spread(resource, free, needed, packed=packed)
    chosen = {schedulable.id for schedulable in (*must, *picked)}
    return tuple(schedulable.id for schedulable in known if schedulable.id in chosen)


def _check_known(
    resource: OfferedResource,
    known: Sequence[SchedulableId],
    allowed: frozenset[str],
    required: frozenset[str],
    size: int,
) -> None:
    """The kubelet may name an id that we stopped listing a moment ago: no harm while the others suffice."""
    strange = (allowed | required) - {schedulable.id for schedulable in known}
    if strange and (len(known) < size or strange & required):
        shown = ", ".join(id_[:128] for id_ in sorted(strange)[:3])
        raise AllocationError(f"{resource.name}: this node does not offer {shown} (any more).")


def _closest(
    must: Sequence[SchedulableId], free: Sequence[SchedulableId], needed: int, topology: Topology
) -> list[SchedulableId]:
    """The members to add so that first the set, then the rest, is connected best.

    With D(v) the scores from v to all that is available, the rest is worth: total - sum of D over the set + its inside.
    So of sets with the same inside, the one with the smallest sum of D leaves the best rest.
    """
    members = [*must, *free]
    scores = [[topology.score(one.device_id, other.device_id) for other in members] for one in members]
    fixed = len(must)
    search = _Search(
        candidates=range(fixed, len(members)),
        scores=scores,
        to_fixed=[sum(row[:fixed]) for row in scores],
        degree=[sum(row) for row in scores],
    )
    best = search.exact(needed) if comb(len(free), needed) <= EXACT_SETS else search.grown(needed)
    return [members[position] for position in best]


class _Search(Struct, frozen=True, kw_only=True):
    """The search for members, by their positions: `to_fixed` and `degree` are sums of scores, to `must` and to all."""

    candidates: range
    scores: Sequence[Sequence[int]]
    to_fixed: Sequence[int]
    degree: Sequence[int]

    def exact(self, needed: int) -> Sequence[int]:
        """Try all sets, of the members to take or of those to leave, whichever are fewer; of equals the first set
        wins."""
        left = len(self.candidates) - needed
        if needed <= left:
            return max(combinations(self.candidates, needed), key=self._worth)  # the first: they come in order
        # The first to take are the others of the last to leave.
        _, spared = max(
            (self._worth_without(combination), combination) for combination in combinations(self.candidates, left)
        )
        return [candidate for candidate in self.candidates if candidate not in spared]

    def grown(self, needed: int) -> Sequence[int]:
        """Start with several members, always add the one that is closest to the set, and exchange. Of equally close
        ones those first that have a close neighbour, which may come next, and then those that the rest misses least."""
        order = sorted(self.candidates, key=lambda candidate: (-max(self.scores[candidate]), self.degree[candidate]))
        starts = sorted(order, key=lambda candidate: -self.to_fixed[candidate])[:_STARTS]
        sets = [list(self.candidates[:needed]), *(self._grown_from(start, order, needed) for start in starts)]
        found = sorted(tuple(sorted(self._exchanged(chosen))) for chosen in sets)
        return max(found, key=self._worth)

    def _worth(self, chosen: Sequence[int]) -> tuple[int, int]:
        inside = sum(self.to_fixed[member] for member in chosen)
        inside += sum(self.scores[one][other] for one, other in combinations(chosen, 2))
        return inside, -sum(self.degree[member] for member in chosen)

    def _worth_without(self, left: Sequence[int]) -> tuple[int, int]:
        """Orders as `_worth` of all others does: every score of those left is lost, the ones between them once."""
        degree = sum(self.degree[member] for member in left)
        return sum(self.scores[one][other] for one, other in combinations(left, 2)) - degree, degree

    def _grown_from(self, start: int, order: Sequence[int], needed: int) -> list[int]:
        chosen = [start]
        gain = {candidate: self._gain(candidate, chosen) for candidate in order if candidate != start}
        while len(chosen) < needed:
            best = max(gain, key=gain.__getitem__)  # of equals the first
            chosen.append(best)
            del gain[best]
            for candidate in gain:
                gain[candidate] += self.scores[best][candidate]
        return chosen

    def _gain(self, candidate: int, chosen: Sequence[int]) -> int:
        return self.to_fixed[candidate] + sum(self.scores[candidate][other] for other in chosen)

    def _exchanged(self, chosen: list[int]) -> list[int]:
        """Exchange a member for one outside while that makes the set better; as often as it has members, at most."""
        for _ in range(len(chosen)):
            outside = [candidate for candidate in self.candidates if candidate not in chosen]
            inner = {candidate: self._gain(candidate, chosen) for candidate in self.candidates}
            changes = (
                ((inner[new] - self.scores[new][old] - inner[old], self.degree[old] - self.degree[new]), old, new)
                for old in chosen
                for new in outside
            )
            change, leaving, coming = max(changes, key=itemgetter(0))  # of equals the first
            if change <= (0, 0):
                break
            chosen = [coming if member == leaving else member for member in chosen]
        return chosen


def _spread(
    resource: OfferedResource, free: Sequence[SchedulableId], needed: int, *, packed: bool
) -> list[SchedulableId]:
    """One by one from the device of which the fewest (packed: the most) shares are taken; then from the one that gave
    the fewest in this call; then by index. A share that is not healthy is not a taken one."""
    shares = Counter(schedulable.device_id for schedulable in resource.ids if schedulable.healthy)
    left: dict[str, deque[SchedulableId]] = {}  # by index, as they are free
    for schedulable in free:
        left.setdefault(schedulable.device_id, deque()).append(schedulable)
    given = Counter[str]()

    def rank(device: str) -> tuple[int, int]:
        taken = shares[device] - len(left[device])
        return -taken if packed else taken, given[device]

    picked: list[SchedulableId] = []
    for _ in range(needed):
        device = min((device for device in left if left[device]), key=rank)  # of equals the first
        picked.append(left[device].popleft())
        given.update((device,))
    return picked
