"""Shares of computing power: what is booked for a request that may be of several pods, and that no device is booked
over 100 percent, whatever the order in which pods come, go, and are known."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import pytest
from msgspec.structs import replace
from nodedevices_common.pod_requests import INIT
from nodedevices_plugin.cores.book import CoreBook
from nodedevices_plugin.cores.ids import key as folder_name
from nodedevices_plugin.cores.ledger import Recorded, claims
from nodedevices_plugin.granting.answers import Answers, NodeContainers
from nodedevices_plugin.kubelet.offer import RecentAllocations
from nodedevices_plugin.model import (
    AllocationError,
    Holder,
    HoldersState,
    Holdings,
    Inventory,
    NodePod,
    NodePods,
    OfferedResource,
    Plan,
    PodContainer,
)
from support.cases import cases
from support.cores import MEMORY, offered
from support.facts import START, gpu_id


def container(size: int, cores: str | None = None, name: str = "main", **more: Any) -> PodContainer:
    return PodContainer(name=name, requests={MEMORY: size}, cores=cores, **more)


def pod(name: str, *containers: PodContainer, **more: Any) -> NodePod:
    return NodePod(uid=f"uid-{name}", namespace="ml", name=name, containers=containers, **more)


class Node:
    """A kubelet that follows devicemanager's rules for ids, and the agent's answers. Time passes by one second with
    every call; `held` is what the kubelet knows, `true` what its containers need."""

    def __init__(self, resource: OfferedResource) -> None:
        self.resource = resource
        self.clock = 0.0
        self.pods: dict[str, NodePod] = {}
        self.held: dict[tuple[str, str], tuple[str, ...]] = {}
        self.started: set[tuple[str, str]] = set()
        self.seen: dict[str, float] = {}  # pods by uid, since when the agent knows them
        self.written: dict[frozenset[str], Recorded] = {}
        self.aligned_to = ""  # the GPU on whose NUMA node the kubelet admits the next pods; "": on any
        self.agent_starts()

    def agent_starts(self) -> None:
        self.book = CoreBook(clock=lambda: self.clock)
        self.answers = Answers(self.book, recent=RecentAllocations())
        self.book.remember(dict(self.written))
        self.answers.use(Plan(resources=(self.resource,)), Inventory(), NodeContainers())

    def sees(self) -> None:
        """The agent's watch of pods is up to date."""
        self.clock += 1
        self.seen |= {uid: self.clock for uid in (each.uid for each in self.pods.values()) if uid not in self.seen}
        self.book.observe_pods(NodePods(pods=tuple(replace(e, seen=self.seen[e.uid]) for e in self.pods.values())))

    def lists(self) -> None:
        """PodResources is up to date. Init containers are in no List."""
        self.clock += 1
        holders = tuple(
            Holder(namespace="ml", pod=name, container=of, resource=MEMORY, ids=tuple(sorted(ids)), since=START)
            for (name, of), ids in self.held.items()
            if self.container(name, of).kind != INIT
        )
        self.book.observe(Holdings(state=HoldersState.SYNCED, holders=holders, taken=self.clock))

    def container(self, name: str, of: str) -> PodContainer:
        return next(each for each in self.pods[name].containers if each.name == of)

    def bound(self, one: NodePod) -> None:
        self.clock += 1
        self.pods[one.name] = one

    def admit(self, name: str) -> None:
        """All containers of a pod, in order. Raises AllocationError as the kubelet would fail the pod."""
        self.clock += 1
        reusable: list[str] = []
        try:
            for each in self.pods[name].containers:
                ids = self.allocate(each.requests[MEMORY], reusable)
                self.held[name, each.name] = ids
                reusable = [*reusable, *ids] if each.kind == INIT else [one for one in reusable if one not in ids]
        except AllocationError:
            self.ends(name)
            raise
        self.pods[name] = replace(self.pods[name], acknowledged=True)

    def allocate(self, size: int, reusable: list[str]) -> tuple[str, ...]:
        must = reusable[:size]
        taken = {each for ids in self.held.values() for each in ids}
        aligned = [each.id for each in self.resource.ids if self.aligned_to in ("", each.device_id)]
        free = [each for each in aligned if each not in taken]
        if len(must) == size:
            chosen = tuple(must)
        elif len(free) < size - len(must):
            raise AllocationError("no node for it")
        elif len(free) == size - len(must):
            chosen = (*must, *free)
        else:
            chosen = tuple(self.answers.prefer(MEMORY, [*free, *must], must, size))
        self.answers.grant(MEMORY, chosen)
        return chosen

    def starts(self, name: str, of: str = "main") -> str:
        """PreStartContainer's refusal; "" where the container runs."""
        self.clock += 1
        start = self.book.start(MEMORY, self.held[name, of])
        if start.refusal:
            return start.refusal
        if start.allocated and start.allocated.owner and start.allocated.demand:
            owner, demand = start.allocated.owner, start.allocated.demand
            self.written[start.allocated.ids] = Recorded(owner=owner, demand=demand)
        self.started.add((name, of))
        self.pods[name] = replace(
            self.pods[name],
            containers=tuple(
                dataclasses.replace(e, started=e.started or e.name == of) for e in self.pods[name].containers
            ),
        )
        return ""

    def ends(self, name: str) -> None:
        """The pod has failed or finished; what it had is free."""
        self.pods[name] = replace(self.pods[name], finished=True)
        self.held = {key: ids for key, ids in self.held.items() if key[0] != name}
        self.started = {key for key in self.started if key[0] != name}

    def device(self, name: str, of: str = "main") -> str:
        [found] = {each.partition("::")[0] for each in self.held[name, of]}
        return found

    def true(self, keys: Any) -> Mapping[str, Fraction]:
        """By device: what these containers need of it, of each pod at one time."""
        demands = {
            (each.owner.pod, each.owner.container): each.demand
            for each in claims(self.pods.values(), MEMORY)
            if self.container(each.owner.pod, each.owner.container).kind != INIT
        }
        found: dict[str, Fraction] = {}
        for key in keys:
            if key in demands:
                device = self.device(*key)
                total = sum(each.device_id == device for each in self.resource.ids)
                found[device] = found.get(device, Fraction(0)) + Fraction(demands[key].scaled(total), total)
        return found


@dataclass
class Setting:
    node: Node = field(default_factory=lambda: Node(offered(8, 8)))

    def comes(self, *pods: NodePod) -> None:
        for each in pods:
            self.node.bound(each)
        self.node.sees()

    def runs(self, name: str) -> str:
        """Admitted, listed and started; the GPU."""
        self.node.admit(name)
        self.node.lists()
        assert self.node.starts(name) == ""
        return self.node.device(name)


@pytest.fixture
def here() -> Setting:
    return Setting()


def test_the_folder_of_a_container_has_the_name_that_an_agent_before_an_upgrade_gave_it() -> None:
    assert folder_name(("b", "a")) == folder_name(("a", "b")) == "7e18f737311b2dc3b2f269dd78396b03"


# --- what a container needs -------------------------------------------------------------------------------------------
def test_a_pod_that_says_wrongly_what_it_needs_is_refused_and_told_what_would_be_right(here: Setting) -> None:
    here.comes(pod("a", container(2, "30%")))
    with pytest.raises(AllocationError) as refused:
        here.node.admit("a")
    assert str(refused.value) == (
        f"{MEMORY}: pod ml/a: annotation nodedevices.io/gpu-cores.main: '30%': "
        'give a percentage of one device, "1" to "100".'
    )


# --- which GPU --------------------------------------------------------------------------------------------------------


def test_where_no_gpu_has_it_the_text_says_how_much_each_has(here: Setting) -> None:
    for name, cores in (("a", "60"), ("b", "70")):
        here.comes(pod(name, container(2, cores)))
        here.runs(name)
    here.comes(pod("c", container(1, "50")))
    with pytest.raises(AllocationError) as refused:
        here.node.admit("c")
    assert str(refused.value) == (
        f"{MEMORY}: no device of this node has 1 free shares of 1Gi and 50 % of its computing power free; free are "
        f"{gpu_id(0)}: 6 and 40 %, {gpu_id(1)}: 6 and 30 %; delete the pod, so that it is scheduled again."
    )


def test_allocate_checks_again_where_the_kubelet_does_not_ask(here: Setting) -> None:
    node = here.node = Node(offered(4))
    here.comes(pod("a", container(2, "80")))
    here.runs("a")
    here.comes(pod("b", container(2, "30")))  # just what is free: no GetPreferredAllocation
    with pytest.raises(AllocationError, match=r"does not have 30 % of its computing power free; it has 20 %\. Delete"):
        node.admit("b")


# --- several containers -----------------------------------------------------------------------------------------------


def test_two_containers_after_an_init_container_are_booked_by_themselves(here: Setting) -> None:
    here.comes(pod("a", container(4, "50", "warm", kind=INIT), container(2, "30"), container(2, "40", "side")))
    here.runs("a")
    assert here.node.starts("a", "side") == ""
    assert here.node.book.held().devices[gpu_id(0)] == 90


# --- where the kubelet aligns by NUMA nodes ---------------------------------------------------------------------------
def test_ids_that_the_kubelet_leaves_out_by_numa_node_are_held_by_nobody(here: Setting) -> None:
    here.comes(pod("a", container(2, "30")), pod("b", container(3, "30")))
    here.node.admit("a")
    assert here.node.device("a") == gpu_id(0)
    here.node.lists()
    here.node.aligned_to = gpu_id(1)
    here.node.admit("b")
    assert here.node.starts("a") == ""
    assert here.node.book.held().devices == {gpu_id(0): 30, gpu_id(1): 30}


def test_one_that_was_allocated_too_little_before_the_agents_start_does_not_start_beside_others(here: Setting) -> None:
    """All of the GPU is booked for it, as nobody knows it yet; but that was never free."""
    here.node = Node(offered(8))
    here.comes(pod("a", container(2, "30")), pod("seen", container(3, "50")))
    here.runs("a")
    here.node.bound(pod("b", container(3, "95")))
    here.node.admit("b")  # it could be the other one
    here.node.agent_starts()
    here.node.lists()
    assert "not known which pod" in here.node.starts("b")
    assert here.node.starts("a") == ""
    here.node.sees()
    assert "does not have 95 % of its computing power free" in here.node.starts("b")


def test_what_is_written_of_who_had_the_ids_before_lets_nobody_else_start(here: Setting) -> None:
    here.node = Node(offered(8))
    here.comes(pod("a", container(2, "30")), pod("before", container(3, "10")), pod("seen", container(3, "50")))
    here.runs("a")
    here.runs("before")
    here.node.ends("before")
    here.node.bound(pod("b", container(3, "95")))
    here.node.admit("b")
    here.node.agent_starts()
    here.node.lists()
    assert "not known which pod" in here.node.starts("b")


# --- a start again ----------------------------------------------------------------------------------------------------
def test_a_container_that_ran_starts_again_whatever_is_not_known_of_its_neighbour(here: Setting) -> None:
    here.comes(pod("a", container(2, "30")), pod("b", container(3, "30")))
    here.runs("a")
    here.runs("b")
    assert here.node.device("a") == here.node.device("b")
    here.node.agent_starts()
    gone = here.node.pods.pop("b")  # deleted by force, and its container runs on: all of the GPU is booked for it
    here.node.sees()
    here.node.pods["b"] = gone
    here.node.lists()
    assert here.node.starts("a") == ""


# --- a start of the agent ---------------------------------------------------------------------------------------------


@cases("seed", *range(2))
@cases(("packing", "numa"), ("binpack", 0), ("spread", 0), ("binpack", 0.5))
def test_whatever_comes_and_goes_in_any_order_no_gpu_is_booked_over(seed: int, packing: str, numa: float) -> None:
    """Two thousand events: pods of equal sizes and different demands, seen late or not at all, admitted in another
    order than they were bound, Lists that come late, agents that start anew in between."""
    dice = random.Random(f"{packing} {seed}")
    node = Node(offered(*(dice.choice((8, 12, 16)) for _ in range(3)), packing=packing))
    admitted = refused = held_back = 0
    waiting: list[str] = []
    before: dict[tuple[str, str], tuple[str, ...]] = {}
    for number in range(2000):
        match dice.choices(["bind", "admit", "list", "see", "start", "end", "agent"], [8, 8, 4, 6, 8, 5, 0.2])[0]:
            case "bind":
                size, name = dice.choice((2, 2, 3, 4)), f"p{number}"
                cores = dice.choice((None, "10", "30", "30", "60", "95", "none"))
                parts = [container(size, cores)]
                if dice.random() < 0.15:
                    parts.insert(0, container(size, dice.choice((None, "50")), "warm", kind=INIT))
                node.bound(pod(name, *parts))
                waiting.append(name)
            case "admit" if waiting:
                name = waiting.pop(dice.randrange(len(waiting)))
                node.aligned_to = gpu_id(dice.randrange(3)) if dice.random() < numa else ""
                try:
                    node.admit(name)
                    admitted += 1
                except AllocationError:
                    refused += 1
            case "list":
                node.lists()
            case "see":
                node.sees()
            case "start" if node.held:
                held_back += bool(node.starts(*dice.choice(list(node.held))))
            case "end" if node.held:
                node.ends(dice.choice(list(node.held))[0])
            case "agent":
                node.agent_starts()
        node.pods = {name: each for name, each in node.pods.items() if not each.finished or dice.random() < 0.9}
        running = {key: node.held[key] for key in node.started if node.container(*key).kind != INIT}
        if running.items() - before.items():  # only one that starts takes more of a GPU
            over = {device: needs for device, needs in node.true(running).items() if needs > 100}
            assert not over, f"after {number} events"
        before = running
    assert admitted > 100
    assert refused > 20
    assert held_back > 5


@cases("seed", *range(2))
def test_with_a_watch_that_is_up_to_date_whoever_is_admitted_can_start(seed: int) -> None:
    dice = random.Random(seed)
    node = Node(offered(8, 16))
    waiting: list[str] = []
    admitted = 0
    for number in range(1500):
        match dice.choices(["bind", "admit", "list", "end", "agent"], [8, 8, 4, 5, 0.2])[0]:
            case "bind":
                node.bound(pod(f"p{number}", container(dice.choice((2, 3)), dice.choice((None, "10", "45", "90")))))
                waiting.append(f"p{number}")
            case "admit" if waiting:
                name = waiting.pop(dice.randrange(len(waiting)))
                node.sees()
                try:
                    node.admit(name)
                    admitted += 1
                except AllocationError:
                    continue
            case "list":
                node.lists()
            case "end" if node.held:
                node.ends(dice.choice(list(node.held))[0])
            case "agent":
                node.lists()
                for each in node.held:
                    node.starts(*each)
                node.agent_starts()
                node.sees()
                node.lists()
        assert all(needs <= 100 for needs in node.true(node.held).values()), f"after {number} events"
    node.sees()
    node.lists()
    assert [node.starts(*each) for each in node.held] == [""] * len(node.held)
    assert admitted > 100
