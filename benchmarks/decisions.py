"""What the operator works out for a large fleet, in the one thread of its event loop: a decision of the fleet gate, the
counts of a policy, a staged roll-out. 5,000 nodes of eight GPUs and 200 policies, in memory, no API server.

CPU time of this process. A target is the longest that the event loop may be blocked; the floor of what is kept between
two decisions is one look at every node's revision, and of a roll-out a queue that knows nothing.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Any

from msgspec.structs import replace
from nodedevices_operator.cache.rollouts import Rollouts
from nodedevices_operator.cache.store import Cache
from nodedevices_operator.desired.configuration import PolicyOutcome
from nodedevices_operator.desired.fleet import TAINT, Action, Fleet, Survey, arrivals, decide
from nodedevices_operator.desired.policy_status import NodeOutcome
from nodedevices_operator.desired.pools import survey
from nodedevices_operator.desired.rollout import Standing
from nodedevices_operator.reconcile.policy import Tallies
from nodedevices_operator.reconcile.surveyor import Surveyor
from nodedevices_operator.records.kinds import Kind, Record
from nodedevices_operator.records.objects import DeviceRecord, PolicyRecord, PolicyRef
from support.opfacts import GPU, device, node, policy, record

from benchmarks.table import Row

NODES_BY_DEFAULT = 5000
POLICIES, GPUS = 200, 8
TARGET_MS = 50.0
ROUNDS = 7
SECTION = {
    "taintEffect": "NoSchedule",
    "budget": {"perHour": 10, "maxUnavailable": "10%"},
    "breakerPercent": 100,
}
A_LOOK = "one look at every node"
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def measure(nodes: int = NODES_BY_DEFAULT) -> list[Row]:
    return [*decisions(nodes), *counts(nodes), *rollout(nodes)]


def accepted(name: str, priority: int = 0, **spec: Any) -> PolicyRecord:
    """What is refused would be measured as nothing."""
    made = policy(name, priority, **spec)
    assert not made.refusal, made.problem
    return made


def freeze() -> None:
    """As the operator does after each list, so that no measurement is the garbage collector's."""
    gc.collect()
    gc.freeze()


def milliseconds(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    took = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        took.append(1000 * (time.process_time() - began))
    return median(took)


# --- decisions -------------------------------------------------------------------------------------------------------
class Known:
    """A cache that knows the fleet. Every policy has its own pool of nodes."""

    def __init__(self, nodes: int) -> None:
        self.cache = Cache()
        self._version = 1
        self._devices = {
            state: record(*(device(at, state, "Xid" if state == "Unhealthy" else "") for at in range(GPUS))).devices
            for state in ("Healthy", "Unhealthy")
        }
        for at in range(POLICIES):
            selector = {"matchLabels": {"pool": f"pool-{at}"}}
            self._observe(Kind.POLICY, accepted(f"policy-{at}", at, selector=selector, faults=SECTION))
        labels = {f"example.com/label-{at}": "value" for at in range(25)}
        model, machine = record(), node({GPU: GPUS})
        self.names = [f"node-{at}" for at in range(nodes)]
        for at, name in enumerate(self.names):
            ref = PolicyRef(f"policy-{at % POLICIES}", 1, 0, ("faults",))
            self._observe(
                Kind.NODE, dataclasses.replace(machine, name=name, labels=labels | {"pool": f"pool-{at % POLICIES}"})
            )
            mine = dataclasses.replace(model, name=name, uid=name, config={"faults": SECTION}, policies=(ref,))
            self._observe(Kind.NODE_DEVICES, dataclasses.replace(mine, devices=self._own("Healthy")))

    def report(self, name: str, state: str) -> None:
        self._observe(Kind.NODE_DEVICES, dataclasses.replace(self.cache.node_devices[name], devices=self._own(state)))

    def edit(self, name: str) -> None:
        edited = self.cache.policies[name]
        self._observe(Kind.POLICY, dataclasses.replace(edited, generation=edited.generation + 1))

    def _own(self, state: str) -> tuple[DeviceRecord, ...]:
        return tuple(dataclasses.replace(each) for each in self._devices[state])

    def _observe(self, kind: Kind, made: Record) -> None:
        self._version += 1
        self.cache.observe(kind, dataclasses.replace(made, resource_version=str(self._version)))


def decisions(nodes: int) -> list[Row]:
    known = Known(nodes)
    cache, surveyor = known.cache, Surveyor(known.cache)
    freeze()
    name = f"{nodes:,} nodes, {POLICIES} policies"
    first = asyncio.run(longest_slice(surveyor))
    look = milliseconds(lambda: [each for each in cache.node_devices if each in cache.revised])
    anew = milliseconds(lambda: survey(cache.node_devices, cache.nodes, cache.policies.values()), rounds=3)
    states = iter(["Unhealthy", "Healthy"] * ROUNDS)

    def one() -> None:
        known.report("node-0", next(states))
        decided(surveyor.survey())

    def edited() -> float:
        known.edit("policy-0")
        return asyncio.run(longest_slice(surveyor))

    rows = [
        Row(what=f"{name}: a fault comes -> decided", measured=milliseconds(one), unit="ms", target=TARGET_MS,
            floor=look, floor_is=A_LOOK),
        Row(what="  every node read anew", measured=anew, unit="ms", floor=look, floor_is=A_LOOK),
        Row(what="  after a start, the longest that the loop is blocked", measured=first, unit="ms", target=TARGET_MS),
        Row(what="  a policy is edited, the same", measured=median(edited() for _ in range(ROUNDS)), unit="ms",
            target=TARGET_MS),
        Row(what="  memory of what is kept", measured=kept_mib(cache), unit="MiB"),
    ]  # fmt: skip
    for each in known.names[::2]:
        known.report(each, "Unhealthy")
    surveyor.survey()
    rows.append(
        Row(what="  half of the nodes at fault, one more -> decided", measured=milliseconds(one), unit="ms",
            target=TARGET_MS, floor=look, floor_is=A_LOOK)
    )  # fmt: skip
    return rows


def decided(fleet: Survey) -> None:
    """As the gate decides: every node with a fault proposes its taint."""
    seen = arrivals(None, fleet.faults, 0.0)
    proposals = [Action(min(its.values()), each, TAINT, "NoSchedule", "Xid") for each, its in fleet.faults.items()]
    decide(Fleet(), proposals, NOW, fleet, seen)


async def longest_slice(surveyor: Surveyor) -> float:
    """Milliseconds of the longest stretch in which nothing else runs until the fleet is surveyed."""
    longest, began = 0.0, time.process_time()
    done = False

    async def beside() -> None:
        nonlocal longest, began
        while not done:
            now = time.process_time()
            longest, began = max(longest, now - began), now
            await asyncio.sleep(0)

    task = asyncio.create_task(beside())
    await surveyor.catch_up()
    surveyor.survey()
    longest, done = max(longest, time.process_time() - began), True
    await task
    return 1000 * longest


def kept_mib(cache: Cache) -> float:
    tracemalloc.start()
    surveyor = Surveyor(cache)
    surveyor.survey()
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return size / 2**20


# --- counts ----------------------------------------------------------------------------------------------------------
def counts(nodes: int) -> list[Row]:
    """All policies select all nodes; one of them supplies something."""
    policies = [accepted(f"policy-{at}", at, faults=SECTION) for at in range(POLICIES)]
    silent = {each.name: PolicyOutcome((), ("faults",), generation=1) for each in policies[:-1]}
    outcomes = silent | {policies[-1].name: PolicyOutcome(("faults",), generation=1)}
    its = NodeOutcome(frozenset(outcomes), outcomes, active=True)
    tallies = Tallies()
    for at in range(nodes):
        tallies.put(f"node-{at}", its)
    states = iter([False, True] * ROUNDS)

    def one() -> None:
        changed = tallies.put("node-0", replace(its, active=next(states)))
        for each in policies:
            if each.name in changed:
                tallies.tally(each)

    def all_at_once() -> None:
        fresh = Tallies()
        for at in range(nodes):
            fresh.put(f"node-{at}", its)

    name = f"{nodes:,} nodes, {POLICIES} policies on all of them"
    anew = milliseconds(all_at_once, rounds=1)
    return [
        Row(what=f"{name}: one node changes -> counts", measured=milliseconds(one), unit="ms", target=TARGET_MS),
        Row(what="  every node counted anew, for all of them", measured=anew, unit="ms"),
        Row(what="  the counts of one", measured=milliseconds(lambda: tallies.tally(policies[-1])), unit="ms",
            target=TARGET_MS),
    ]  # fmt: skip


# --- a roll-out ------------------------------------------------------------------------------------------------------
def rollout(nodes: int) -> list[Row]:
    """From the change to the last node."""
    return [row for percent in (10, 2) for row in one_rollout(nodes, percent)]


def one_rollout(nodes: int, percent: int) -> list[Row]:
    names = [f"node-{at}" for at in range(nodes)]
    run = Run(names, percent)
    freeze()
    began = time.process_time()
    run.whole()
    took = time.process_time() - began
    queue = deque(names * 4)
    floor = milliseconds(lambda: [queue.popleft() for _ in range(len(queue))], rounds=1)
    return [
        Row(what=f"{nodes:,} nodes, a roll-out {percent} % at a time: all of its decisions", measured=1000 * took,
            unit="ms", floor=floor, floor_is="a queue that asks nothing"),
        Row(what="  the longest decision", measured=run.longest_ms, unit="ms", target=TARGET_MS),
        Row(what="  decisions for each node", measured=run.asked / nodes, unit="each"),
    ]  # fmt: skip


class Run:
    """A roll-out of one policy over nodes that do as they are told."""

    def __init__(self, names: Sequence[str], percent: int) -> None:
        made = accepted("p", rollout={"maxNodes": f"{percent}%"}, partitions={})
        self.asked, self.longest_ms = 0, 0.0
        self._queue: dict[str, None] = {}
        self._rollouts = Rollouts(
            policies=lambda: {"p": made}, enqueue=self._queue.setdefault, changed=lambda _policies: None
        )
        own = frozenset({"p"})
        self._standings = dict.fromkeys(names, Standing(members=own, pending={"partitions": own}))
        self._watched = deque[str]()

    def whole(self) -> None:
        for each in self._standings:
            self._ask(each)
        self._rollouts.begin()
        while self._queue or self._watched:
            while self._queue:
                each = next(iter(self._queue))
                del self._queue[each]
                self._ask(each)
            while self._watched:  # the whole wave has taken it at once
                each = self._watched.popleft()
                self._standings[each] = Standing(members=frozenset({"p"}))
                self._queue.setdefault(each)

    def _ask(self, name: str) -> None:
        self.asked += 1
        standing = self._standings[name]
        began = time.process_time()
        held = self._rollouts.ask(name, standing)
        self.longest_ms = max(self.longest_ms, 1000 * (time.process_time() - began))
        if standing.pending and not held:
            self._standings[name] = Standing(members=standing.members, under_way=standing.members)
            self._queue.setdefault(name)
            self._watched.append(name)
