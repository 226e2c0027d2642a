"""Shares by memory, granted and freed by the kubelet's own device manager: whatever pods come and go, and however they
are made, all shares of a container are of one GPU, and no share has two pods; nor does a GPU have two forms at once
where policies change under pods."""

from __future__ import annotations

import contextlib
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from cluster.rig.problem import RigError
from nodedevices_api.sections import SharedResource, Sharing
from nodedevices_plugin.granting.answers import grant
from nodedevices_plugin.granting.preferred import build, prefer
from nodedevices_plugin.model import Holder, OfferedResource, memory_held
from nodedevices_plugin.offering.shape import PlanSettings
from nodedevices_plugin.pipeline.state import State
from support.bookings import Sample, doubled, physical
from support.device_manager import Container, DeviceManager, Held, Listed, Refused, program
from support.facts import GIB, START, gpu, healthy, inventory_of, old
from support.fuzzing import scaled
from support.plans import make_plan
from support.stepped_node import Node

GPU, MEMORY = "nvidia.com/gpu", "nodedevices.io/gpu-memory"
GRANTS = scaled(10_000)  # in all; a quarter of them with each kind of node
SIZES = (8, 16, 24)  # GiB
REASONS = {  # why a pod is refused: our words, or the kubelet's own
    "no device has room": r"no device of this node has \d+ free shares",
    "init containers": r"the init containers of this pod have shares of",
    "shares of several": r"the free shares of this node are on \d+ devices",
    "too few on the node": r"requested number of devices unavailable",
    "no device is healthy": r"no healthy devices present",
    "numa": r"TopologyAffinityError",
}


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    try:
        program()
    except RigError as error:
        pytest.skip(str(error))


class FixedNode:
    """A kubelet and the agent's answers for GPUs of random sizes; `broken` are not offered."""

    def __init__(self, folder: Path, dice: random.Random, *, packing: str, policy: str) -> None:
        self.sizes = [dice.choice(SIZES) for _ in range(dice.randint(2, 4))]
        self.gpus = [
            gpu(number, memory_bytes=size * GIB, numa_node=number % 2) for number, size in enumerate(self.sizes)
        ]
        rule = SharedResource(name=GPU, memory_unit="1Gi", packing=packing, numa=policy != "none")
        self.settings = PlanSettings(sharing=Sharing(strategy="memory", resources=(rule,)))
        self.topology = build(inventory_of(*self.gpus))
        self.resource = self._planned(frozenset())
        self.kubelet = DeviceManager(folder, self, policy=policy)
        self.listed()

    def _planned(self, broken: frozenset[str]) -> OfferedResource:
        [found] = make_plan(inventory_of(*self.gpus), healthy(*self.gpus), self.settings, broken).resources
        return found

    def listed(self) -> None:
        nodes = {each.id: () if each.numa_node is None else (each.numa_node,) for each in self.resource.ids}
        self.kubelet.offer(MEMORY, [Listed(each.id, each.healthy, nodes[each.id]) for each in self.resource.ids])

    def broken(self, *devices: str) -> None:
        self.resource = self._planned(frozenset(devices))
        self.listed()

    def filled(self) -> None:
        """A pod for each GPU, that needs all of it."""
        for number, size in enumerate(sorted(self.sizes, reverse=True)):
            held = self.kubelet.admit(f"whole-{number}", [Container("c", {MEMORY: size})])
            assert len(held["c"][MEMORY]) == size

    def prefer(self, resource: str, available: Sequence[str], must: Sequence[str], size: int) -> Sequence[str]:
        return prefer(self.resource, available, must, size, self.topology)

    def allocate(self, resource: str, ids: Sequence[str]) -> None:
        grant(self.resource, ids)


def some_containers(dice: random.Random) -> list[Container]:
    """A pod's, of random sizes; init containers most often of the size of what comes after them."""
    kinds = dice.choice(
        [("",), ("",), ("",), ("", ""), ("init", ""), ("init", ""), ("sidecar", ""), ("init", "init", "", "")]
    )
    size = dice.randint(1, 12)
    sizes = [size if dice.random() < 0.7 else dice.randint(1, 12) for _ in kinds]
    return [Container(f"c{n}", {MEMORY: s}, kind) for n, (kind, s) in enumerate(zip(kinds, sizes, strict=True))]


def used(pods: dict[str, tuple[list[Container], Held]]) -> Iterator[tuple[str, set[str]]]:
    """By pod the shares that it has: an init container's may be those of the containers after it."""
    for name, (_, held) in pods.items():
        yield name, {each for of in held.values() for each in of.get(MEMORY, ())}


@pytest.mark.parametrize(
    ("packing", "policy"),
    [("binpack", "none"), ("spread", "none"), ("binpack", "best-effort"), ("binpack", "single-numa-node")],
)
def test_the_kubelet_never_over_books_a_gpu_nor_splits_a_request(tmp_path: Path, packing: str, policy: str) -> None:
    dice = random.Random(f"{packing} {policy}")
    grants, reasons, machines = 0, Counter[str](), 0
    while grants < GRANTS // 4:
        machines += 1
        folder = tmp_path / str(machines)
        folder.mkdir()
        node = FixedNode(folder, dice, packing=packing, policy=policy)
        with node.kubelet as kubelet:
            pods: dict[str, tuple[list[Container], Held]] = {}
            for step in range(250):
                if pods and dice.random() < 0.45:
                    ended = dice.choice(list(pods))
                    kubelet.end(ended)
                    del pods[ended]
                if dice.random() < 0.02:
                    kubelet.restart()
                    node.listed()
                if dice.random() < 0.05:
                    node.broken(*(each.id for each in node.gpus if dice.random() < 0.3))
                containers, before = some_containers(dice), dict(used(pods))
                try:
                    held = kubelet.admit(f"pod-{step}", containers)
                except Refused as refused:
                    reasons[kind_of(str(refused))] += 1
                    continue
                grants += len(containers)
                pods[f"pod-{step}"] = (containers, held)
                for each in containers:
                    got = held[each.name][MEMORY]
                    assert len(got) == len(set(got)) == each.limits[MEMORY]
                    assert len({physical(one) for one in got}) == 1, "shares of one container are of one GPU"
                new = dict(used(pods))[f"pod-{step}"]
                assert not any(new & of for of in before.values()), "a share has two pods"
                apart = [set(held[each.name][MEMORY]) for each in containers if each.kind != "init"]
                assert len(set().union(*apart)) == sum(len(of) for of in apart), "a share has two containers"
            node.broken()
            kubelet.end(*pods)
            if policy == "none":  # with NUMA nodes the kubelet takes what is nearest, of several GPUs
                node.filled()
    assert reasons["no device has room"], reasons
    assert reasons["numa" if policy == "single-numa-node" else "too few on the node"], reasons
    assert set(reasons) <= set(REASONS)


def kind_of(message: str) -> str:
    return next((name for name, pattern in REASONS.items() if re.search(pattern, message)), message)


def test_a_plugin_that_refuses_leaves_nothing_allocated(tmp_path: Path) -> None:
    node = FixedNode(tmp_path, random.Random(0), packing="binpack", policy="none")
    with node.kubelet as kubelet:
        with pytest.raises(Refused, match=r"UnexpectedAdmissionError.*the largest device has .*: request fewer"):
            kubelet.admit("large", [Container("c", {MEMORY: 25})])
        node.filled()


def by_memory(unit: str, **more: Any) -> dict[str, Any]:
    return {"sharing": {"strategy": "memory", "resources": [{"name": GPU, "memoryUnit": unit, **more}]}}


CONFIGS: tuple[dict[str, Any], ...] = (
    {},  # whole GPUs
    by_memory("1Gi"),
    by_memory("2Gi", memoryReserve="1Gi"),
    by_memory("1Gi", devices=["0"]),
    by_memory("3Gi", rename="aliyun.com/gpu-mem"),
    {"sharing": {"strategy": "timeSlicing", "resources": [{"name": GPU, "replicas": 4}]}},
)


class ChangingNode:
    """A kubelet and the agent's steps, under policies that change; a pod is known as a holder in the next step."""

    def __init__(self, folder: Path) -> None:
        self.gpus = [gpu(number, memory_bytes=8 * GIB, readings=old()) for number in range(3)]
        self.agent = Node(*self.gpus)
        self.config: dict[str, Any] = {}
        self.held: dict[str, Held] = {}
        self.names: set[str] = set()
        self.kubelet = DeviceManager(folder, self)
        self.step()

    def holders(self) -> list[Holder]:
        return [
            Holder(namespace="ml", pod=pod, container=name, resource=resource, ids=tuple(sorted(ids)), since=START)
            for pod, held in self.held.items()
            for name, of in held.items()
            for resource, ids in of.items()
        ]

    def step(self, kubelet_restarts: bool = False, agent_loses_its_state: bool = False) -> None:
        if kubelet_restarts:
            self.kubelet.restart()
        if agent_loses_its_state:
            self.agent.begin(State())
        self.agent.now(self.config, *self.holders())
        assert self.agent.world.plan is not None
        plan = {each.name: each.ids for each in self.agent.world.plan.resources}
        self.names |= set(plan)
        for name in sorted(self.names):
            self.kubelet.offer(name, [Listed(each.id, each.healthy) for each in plan.get(name, ())])

    def prefer(self, resource: str, available: Sequence[str], must: Sequence[str], size: int) -> Sequence[str]:
        return self.agent.answers.prefer(resource, available, must, size)

    def allocate(self, resource: str, ids: Sequence[str]) -> None:
        self.agent.answers.grant(resource, ids)

    def doubled(self) -> list[str]:
        """What two pods have, but as shares of one plan; and what a device has not got."""
        shown = [
            {
                "namespace": "ml",
                "pod": each.pod,
                "container": each.container,
                "devices": [{"resource": each.resource, "ids": each.ids}],
            }
            for each in self.holders()
        ]
        promised = memory_held(one for each in self.holders() for one in each.ids)
        too_much = [f"{device}: {amount}" for device, amount in promised.items() if amount > 8 * GIB]
        return [*doubled(Sample.of(self.agent.offers, shown)), *too_much]


def test_policies_that_change_under_pods_give_no_memory_twice(tmp_path: Path) -> None:
    dice = random.Random("policies")
    node = ChangingNode(tmp_path)
    grants = Counter[str]()
    with node.kubelet as kubelet:
        for number in range(200):
            if dice.random() < 0.1:
                node.config = dice.choice(CONFIGS)
            if node.held and dice.random() < 0.45:
                ended = dice.choice(list(node.held))
                kubelet.end(ended)
                del node.held[ended]
            node.step(kubelet_restarts=dice.random() < 0.02, agent_loses_its_state=dice.random() < 0.02)
            assert node.doubled() == [], number
            names = [name for name, ids in node.agent.offers.items() if ids]
            if not names:
                continue
            name = dice.choice(sorted(names))
            count = dice.choice((1, 2, 3, 6)) if "mem" in name else 1
            with contextlib.suppress(Refused):
                node.held[f"pod-{number}"] = kubelet.admit(f"pod-{number}", [Container("c", {name: count})])
                grants[name] += 1
        node.step()
        assert node.doubled() == []
    assert set(grants) == {GPU, MEMORY, "aliyun.com/gpu-mem"}
