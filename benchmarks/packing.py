"""How often a pod that asks for memory is refused at admission: by the agent's own answers, through a kubelet's rules.

The scheduler knows the sum of a node's free shares. A pod whose sum fits and that fits on no GPU of the node is refused
by the kubelet. Four nodes of eight GPUs with 80 shares each; pods come and go so that the load stays where it is. Each
is sent to a node whose sum suffices: the emptiest, as the scheduler does by default (LeastAllocated), or the fullest
(MostAllocated); or to the fullest of those that the extender lets pass. Percent of the pods that were sent.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import get_args

from nodedevices_api.sections import Packing
from nodedevices_common.pod_requests import MAIN
from nodedevices_operator.extender.shares import MemoryResource, PodRequest, SharedDevice
from nodedevices_operator.extender.table import Table
from nodedevices_plugin.granting.answers import grant
from nodedevices_plugin.granting.preferred import build, prefer
from nodedevices_plugin.model import AllocationError, Inventory, OfferedResource

from benchmarks.offer import Case, by_memory, machine, offered
from benchmarks.table import Row

NODES, SHARES = 4, 80
PODS = 1500
LOADS = (60, 80, 90)
NO_LINKS = build(Inventory())

Sizes = Callable[[random.Random], int]
Choice = Callable[[Sequence["Node"], int], "Node | None"]

SIZES: dict[str, Sizes] = {
    "1/4": lambda dice: SHARES // 4,
    "1/8, 1/4, 1/2": lambda dice: dice.choice((SHARES // 8, SHARES // 4, SHARES // 2)),
    "5-50 %": lambda dice: dice.randint(SHARES // 20, SHARES // 2),
    "25-75 %": lambda dice: dice.randint(SHARES // 4, 3 * SHARES // 4),
}


@dataclass
class Node:
    """A kubelet as far as it chooses ids (devicemanager/manager.go, devicesToAllocate, without topology)."""

    resource: OfferedResource
    free: dict[str, None]  # ids, in the resource's order as far as it matters
    held: list[tuple[str, ...]] = field(default_factory=list)

    def admit(self, size: int) -> bool:
        ids = tuple(self.free)
        try:
            chosen = ids if len(ids) == size else prefer(self.resource, ids, (), size, NO_LINKS)
            granted = tuple(each.id for each in grant(self.resource, chosen).ids)
        except AllocationError:
            return False
        for each in granted:
            del self.free[each]
        self.held.append(granted)
        return True

    def end_one(self, dice: random.Random) -> None:
        for each in self.held.pop(dice.randrange(len(self.held))):
            self.free[each] = None


def emptiest(nodes: Sequence[Node], size: int) -> Node | None:
    return max((each for each in nodes if len(each.free) >= size), key=lambda each: len(each.free), default=None)


def fullest(nodes: Sequence[Node], size: int) -> Node | None:
    return min((each for each in nodes if len(each.free) >= size), key=lambda each: len(each.free), default=None)


def let_pass(nodes: Sequence[Node], size: int) -> Node | None:
    """The fullest of those that the extender lets pass."""
    request = PodRequest(names=("c",), steps=((MAIN, size),))
    passed = [each for each in nodes if not Table(shown(each), free_of(each)).outcome(request).refusal]
    return fullest(passed, size)


def shown(node: Node) -> MemoryResource:
    """As the extender reads it in NodeDevices."""
    totals = Counter(each.device_id for each in node.resource.ids)
    free = free_of(node)
    devices = tuple(
        SharedDevice(id=id_, index=at, total=total, held=total - free[id_], free=free[id_], offered=True)
        for at, (id_, total) in enumerate(totals.items())
    )
    spread = node.resource.sharing.packing == "spread"
    return MemoryResource(name=node.resource.name, spread=spread, unit="1Gi", devices=devices)


def free_of(node: Node) -> dict[str, int]:
    counts = Counter(each.device_id for each in node.resource.ids if each.id in node.free)
    return {each.device_id: counts[each.device_id] for each in node.resource.ids}


SCHEDULERS = {"LeastAllocated": emptiest, "MostAllocated": fullest, "MostAllocated and the extender": let_pass}


def measure() -> list[Row]:
    return [
        Row(
            what=f"{packing}, {scheduler}, pods of {name}, {load} % load: refused",
            measured=refused(eight_gpus(packing), choice, sizes, load),
            unit="%",
        )
        for packing in get_args(Packing)
        for scheduler, choice in SCHEDULERS.items()
        for name, sizes in SIZES.items()
        for load in LOADS
    ]


@cache
def eight_gpus(packing: Packing) -> OfferedResource:
    devices = machine("h100 x 8") | {"devices": [{"index": number, "memoryBytes": 80 << 30} for number in range(8)]}
    return offered(Case(devices, by_memory("1Gi", packing)))[0]


def refused(resource: OfferedResource, choice: Choice, sizes: Sizes, load: int) -> float:
    dice = random.Random(f"{load}")
    nodes = [Node(resource, dict.fromkeys(each.id for each in resource.ids)) for _ in range(NODES)]
    total = sum(len(each.free) for each in nodes)
    sent = failed = 0
    while sent < PODS:
        size = sizes(dice)
        while total - sum(len(each.free) for each in nodes) + size > total * load / 100:
            dice.choice([each for each in nodes if each.held]).end_one(dice)
        node = choice(nodes, size)
        if node is None:
            continue
        sent += 1
        failed += not node.admit(size)
    return 100 * failed / sent
