"""The extender foresees what kubelet and agent do: a pod that it lets pass is never refused at admission.

What pods request and which device is chosen is one implementation (nodedevices_common.pod_requests, packing). What can
differ is what is free: GPUs of several sizes, the agent's ids, the kubelet's rules (devicemanager/manager.go), and
reports that are some events old. Pods are admitted in the order in which they are bound, which is what the kubelet does
but after its own restart.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from nodedevices_api.sections import SharedResource, Sharing
from nodedevices_common.pod_requests import INIT
from nodedevices_operator.extender.cache import SharesCache
from nodedevices_operator.extender.shares import requests_of
from nodedevices_plugin.granting.answers import grant
from nodedevices_plugin.granting.preferred import build, prefer
from nodedevices_plugin.model import AllocationError, OfferedResource
from nodedevices_plugin.offering.shape import PlanSettings
from support import nodeshares
from support.cases import cases
from support.facts import GIB, gpu, healthy, inventory_of
from support.nodeshares import MEMORY, container, holder, node_devices, pod
from support.plans import make_plan

NODES = {"n1": (24, 24, 24), "n2": (16, 24, 48), "n3": (80, 16)}
STEPS = 600


def resource_of(sizes: tuple[int, ...], packing: str) -> OfferedResource:
    cards = [gpu(number, memory_bytes=size * GIB) for number, size in enumerate(sizes)]
    rule = SharedResource.model_validate({"name": "nvidia.com/gpu", "memoryUnit": "1Gi", "packing": packing})
    settings = PlanSettings(sharing=Sharing(strategy="memory", resources=(rule,)))
    [found] = make_plan(inventory_of(*cards), healthy(*cards), settings, frozenset()).resources
    return found


class Kubelet:
    """The device manager, as far as it chooses ids."""

    def __init__(self, name: str, sizes: tuple[int, ...], packing: str, dice: random.Random) -> None:
        self.name = name
        self._resource = resource_of(sizes, packing)
        self._packing = packing
        self._links = build(inventory_of(*(gpu(number) for number in range(len(sizes)))))
        self._device_of = {each.id: each.device_id for each in self._resource.ids}
        self._free = dict.fromkeys(self._device_of)
        self._held: dict[str, dict[str, list[str]]] = {}  # pod -> container -> ids
        self._shown: dict[str, set[str]] = {}  # pod -> containers of which PodResources tells
        self._dice = dice

    def admit(self, name: str, wanted: Mapping[str, Any]) -> None:
        """AllocationError: UnexpectedAdmissionError."""
        request = requests_of(wanted, {MEMORY})[MEMORY]
        held = self._held.setdefault(name, {})
        shown = self._shown.setdefault(name, set())
        reusable: list[str] = []
        for (kind, size), of in zip(request.steps, request.names, strict=True):
            got = self._allocate(size, reusable)
            held[of] = got
            if kind == INIT:
                reusable = sorted({*reusable, *got})
            else:
                shown.add(of)
                reusable = [each for each in reusable if each not in got]

    def _allocate(self, size: int, reusable: list[str]) -> list[str]:
        got = self._dice.sample(reusable, min(size, len(reusable)))
        needed, available = size - len(got), list(self._free)
        if needed > len(available):
            raise AllocationError(f"requested number of devices unavailable: {needed} of {len(available)}")
        if 0 < needed < len(available):
            preferred = prefer(self._resource, [*available, *got], tuple(got), size, self._links)
            got += [each for each in preferred if each in self._free][:needed]
        elif needed:
            got += available
        grant(self._resource, got)
        for each in got:
            self._free.pop(each, None)
        return got

    def end(self, name: str) -> None:
        for each in {each for ids in self._held.pop(name).values() for each in ids}:
            self._free[each] = None
        del self._shown[name]

    def report(self) -> dict[str, Any]:
        """The NodeDevices that the agent writes of what PodResources shows."""
        of: dict[str, list[dict[str, Any]]] = {}
        for name, containers in self._held.items():
            for container_name in self._shown[name]:
                ids = containers[container_name]
                entry = holder(name, len(ids), container=container_name)
                of.setdefault(self._device_of[ids[0]], []).append(entry)
        devices = dict.fromkeys(self._device_of.values())
        shown = []
        for index, device in enumerate(devices):
            total = sum(each == device for each in self._device_of.values())
            made = nodeshares.gpu(index, total, *of.get(device, ()))
            shown.append(made | {"id": device})
        return node_devices(self.name, *shown, packing=self._packing)


def some_pod(name: str, dice: random.Random) -> dict[str, Any]:
    size = dice.choice((1, 3, 4, 6, 8, 12, 16, 20, 24, 40))
    shape = dice.random()
    if shape < 0.6:
        return pod(name, size)
    if shape < 0.75:
        return pod(name, container("one", size), container("two", dice.choice((2, 5, 8))))
    if shape < 0.85:
        return pod(name, size, init=[container("fetch", dice.choice((2, size, size + 2)))])
    return pod(
        name,
        size,
        init=[
            container("fetch", 4),
            container("log", dice.choice((1, 6)), always=True),
            container("warm", dice.choice((0, 9))),
        ],
    )


def bound(wanted: dict[str, Any], node: str) -> dict[str, Any]:
    made = pod("x", node=node)
    return wanted | {"spec": wanted["spec"] | {"nodeName": node}, "status": made["status"]}


@cases("packing", "binpack", "spread")
@cases("seed", *range(3))
def test_a_pod_that_passes_is_never_refused_at_admission(seed: int, packing: str) -> None:
    dice = random.Random(f"{seed} {packing}")
    kubelets = {name: Kubelet(name, sizes, packing, dice) for name, sizes in NODES.items()}
    cache = SharesCache()
    for each in kubelets.values():
        cache.observe_node(each.report(), 0.0)
    cache.replace_pods([], cache.resources)
    running: dict[str, dict[str, Any]] = {}
    observed: dict[str, dict[str, Any]] = {}  # what an agent has seen, and not written yet
    admitted = held_back = 0
    for number in range(STEPS):
        action = dice.random()
        if action < 0.5:
            wanted = some_pod(f"p{number}", dice)
            request = requests_of(wanted, {MEMORY})[MEMORY]
            tables = {name: cache.table(name, MEMORY, 1.0) for name in kubelets}
            passing = [name for name, table in tables.items() if table and not table.outcome(request).refusal]
            held_back += not passing
            if passing:
                node = dice.choice(passing)
                running[f"p{number}"] = bound(wanted, node)
                cache.observe_pod(running[f"p{number}"])
                kubelets[node].admit(f"p{number}", wanted)
                admitted += 1
        elif action < 0.75 and running:
            name = dice.choice(list(running))
            ended = running.pop(name)
            kubelets[ended["spec"]["nodeName"]].end(name)
            cache.observe_pod(ended, gone=True)
        elif action < 0.85:
            name = dice.choice(list(kubelets))
            observed[name] = kubelets[name].report()
        elif observed:
            name = dice.choice(list(observed))
            cache.observe_node(observed.pop(name), 0.0)
    assert admitted > STEPS // 8
    assert held_back > 0  # else nothing was decided
