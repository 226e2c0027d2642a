"""Shares by memory on a node: what a change of them does to pods that hold some."""

from __future__ import annotations

from collections import Counter
from typing import Any

from nodedevices_plugin.model import Holder
from nodedevices_plugin.pipeline.state import State
from nodedevices_plugin.pipeline.step import begin
from support.facts import GIB, START, gpu, gpu_id, old
from support.stepped_node import Node

GPU, MEMORY = "nvidia.com/gpu", "nodedevices.io/gpu-memory"
TWO = tuple(gpu(number, memory_bytes=8 * GIB, readings=old()) for number in (0, 1))


def by_memory(unit: str = "1Gi", **rule: Any) -> dict[str, Any]:
    return {"sharing": {"strategy": "memory", "resources": [{"name": GPU, "memoryUnit": unit, **rule}]}}


def pod(*ids: str, resource: str = MEMORY) -> Holder:
    return Holder(namespace="ml", pod="a", container="c", resource=resource, ids=ids, since=START)


def free(node: Node) -> dict[str, Counter[str]]:
    """By resource how many healthy ids each GPU has."""
    found = {}
    for name, ids in node.offers.items():
        if ids:
            found[name] = Counter(each.partition("::")[0] for each in ids)
    return found


HELD = pod(f"{gpu_id(0)}::1Gi.0", f"{gpu_id(0)}::1Gi.1")


def test_another_unit_waits_on_the_gpu_that_is_held_and_is_at_work_on_the_other() -> None:
    node = Node(*TWO).now(by_memory())
    node.now(by_memory("2Gi"), HELD)
    assert free(node) == {MEMORY: Counter({gpu_id(1): 4})}
    assert node.world.config.reason == "WaitingForHolders"
    assert "ml/a" in node.world.config.message
    assert free(node.now(by_memory("2Gi"))) == {MEMORY: Counter({gpu_id(0): 4, gpu_id(1): 4})}
    assert node.world.config.reason == "Applied"


def test_a_smaller_reserve_gives_more_shares_at_once() -> None:
    node = Node(*TWO).now(by_memory(memoryReserve="4Gi"))
    assert free(node.now(by_memory(), HELD)) == {MEMORY: Counter({gpu_id(0): 8, gpu_id(1): 8})}


def test_a_larger_reserve_waits_for_pods_that_hold_what_it_takes() -> None:
    node = Node(*TWO).now(by_memory())
    high = pod(f"{gpu_id(0)}::1Gi.6")
    assert free(node.now(by_memory(memoryReserve="4Gi"), high)) == {MEMORY: Counter({gpu_id(1): 4})}
    assert free(node.now(by_memory(memoryReserve="4Gi"), HELD)) == {MEMORY: Counter({gpu_id(0): 4, gpu_id(1): 4})}


def test_a_gpu_of_which_a_pod_has_memory_is_not_given_whole() -> None:
    node = Node(*TWO).now(by_memory())
    assert free(node.now({}, HELD)) == {GPU: Counter({gpu_id(1): 1})}


def test_a_gpu_that_a_pod_has_whole_is_not_given_by_memory() -> None:
    node = Node(*TWO).now({})
    whole = pod(gpu_id(1), resource=GPU)
    assert free(node.now(by_memory(), whole)) == {MEMORY: Counter({gpu_id(0): 8})}


def test_a_lost_state_file_and_another_unit_at_once_give_nothing_twice() -> None:
    node = Node(*TWO).now(by_memory())
    node.world = begin(State(), node.local, now=START, monotonic=node.clock)
    assert free(node.now(by_memory("2Gi"), HELD)) == {MEMORY: Counter({gpu_id(1): 4})}


def test_a_gpu_that_fails_takes_all_its_shares_along_and_no_others() -> None:
    node = Node(*TWO).now(by_memory(), HELD)
    node.devices = (gpu(0, memory_bytes=8 * GIB, readings=old(lost=True)), TWO[1])
    assert free(node.now(by_memory(), HELD)) == {MEMORY: Counter({gpu_id(1): 8})}
