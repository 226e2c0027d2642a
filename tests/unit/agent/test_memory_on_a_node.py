"""Shares by memory on a node: what a change of them does to pods that hold some."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from nodedevices_plugin.model import AllocationError, Holder, NodePods
from nodedevices_plugin.pipeline.state import State
from support.facts import GIB, START, gpu, gpu_id, old
from support.local import at_once
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
    assert f"the scheduler subtracts these pods' 2 earlier shares from the 4 present shares of {MEMORY}" in (
        node.world.config.message
    )
    assert free(node.now(by_memory("2Gi"))) == {MEMORY: Counter({gpu_id(0): 4, gpu_id(1): 4})}
    assert node.world.config.reason == "Applied"


def test_another_unit_is_counted_by_itself_and_a_larger_reserve_waits_for_who_holds_shares() -> None:
    node = Node(*TWO).now(by_memory())
    node.now(by_memory("2Gi", rename="example.com/gpu-memory-2gi"), HELD)
    assert free(node) == {"example.com/gpu-memory-2gi": Counter({gpu_id(1): 4})}
    assert "scheduler subtracts" not in node.world.config.message
    assert all(each.name != MEMORY or not each.ids for each in node.world.plan.resources), "none of the old is left"  # type: ignore[union-attr]
    node = Node(*TWO).now(by_memory(memoryReserve="4Gi"))
    assert free(node.now(by_memory(), HELD)) == {MEMORY: Counter({gpu_id(0): 8, gpu_id(1): 8})}
    node = Node(*TWO).now(by_memory())
    high = pod(f"{gpu_id(0)}::1Gi.6")
    assert free(node.now(by_memory(memoryReserve="4Gi"), high)) == {MEMORY: Counter({gpu_id(1): 4})}
    assert free(node.now(by_memory(memoryReserve="4Gi"), HELD)) == {MEMORY: Counter({gpu_id(0): 4, gpu_id(1): 4})}


def mounting(path: str) -> dict[str, Any]:
    template = {"env": [{"name": "LIMIT", "value": path}], "mounts": [{"hostPath": path, "containerPath": "/limiter"}]}
    return by_memory(container=template)


def test_what_a_policy_gives_containers_changes_for_new_ones_while_pods_hold_shares() -> None:
    local = at_once(["--node-name=n1", "--container-mount-dir=/opt/a,/opt/b"], {})
    node = Node(*TWO, local=local).now(mounting("/opt/a"))
    for path in ("/opt/a", "/opt/b/lib"):
        node.now(mounting(path), HELD)
        assert node.world.config.reason == "Applied"
        got = node.container(MEMORY, f"{gpu_id(1)}::1Gi.0")
        assert (got.envs["LIMIT"], [each.host_path for each in got.mounts]) == (path, [path])
    node.now(mounting("/etc"), HELD)
    assert node.world.config.reason == "ConfigInvalid"
    assert "container.mounts: /etc: this node allows /opt/a and /opt/b (--container-mount-dir)" in (
        node.world.config.message
    )
    assert len(node.offers[MEMORY]) == 16, "the last good configuration stays"


def test_a_directory_that_the_node_no_longer_allows_is_given_to_nobody_after_a_restart() -> None:
    local = at_once(["--node-name=n1", "--container-mount-dir=/opt/a"], {})
    node = Node(*TWO, local=local).now(mounting("/opt/a"))
    again = Node(*TWO, state=node.world.state)
    again.now(mounting("/opt/a"), HELD)
    assert again.world.config.reason == "ConfigInvalid"
    assert len(again.offers[MEMORY]) == 16, "what pods hold is as they hold it"
    with pytest.raises(AllocationError, match=r"mounts /opt/a, which this node does not allow"):
        again.container(MEMORY, f"{gpu_id(1)}::1Gi.0")
    assert again.now(by_memory(), HELD).container(MEMORY, f"{gpu_id(1)}::1Gi.0").mounts == ()


def test_who_has_a_gpu_whole_or_its_memory_keeps_it_from_the_other_way_also_without_a_state_file() -> None:
    node = Node(*TWO).now(by_memory())
    assert free(node.now({}, HELD)) == {GPU: Counter({gpu_id(1): 1})}
    node = Node(*TWO).now({})
    whole = pod(gpu_id(1), resource=GPU)
    assert free(node.now(by_memory(), whole)) == {MEMORY: Counter({gpu_id(0): 8})}
    node = Node(*TWO).now(by_memory())
    node.begin(State())
    assert free(node.now(by_memory("2Gi"), HELD)) == {MEMORY: Counter({gpu_id(1): 4})}


def test_a_gpu_that_fails_takes_all_its_shares_along_and_no_others() -> None:
    node = Node(*TWO).now(by_memory(), HELD)
    node.devices = (gpu(0, memory_bytes=8 * GIB, readings=old(lost=True)), TWO[1])
    assert free(node.now(by_memory(), HELD)) == {MEMORY: Counter({gpu_id(1): 8})}


# --- computing power --------------------------------------------------------------------------------------------------
def test_where_computing_power_is_shared_nothing_is_offered_until_the_nodes_pods_are_known() -> None:
    node = Node(*TWO).now(by_memory(cores=True))
    assert node.offers == {MEMORY: []}
    assert node.world.config.reason == "WaitingForHolders"
    node.given(pods=NodePods(problem="list pods: 403 forbidden", forbidden=True))
    assert node.now(by_memory(cores=True)).offers == {MEMORY: []}
    assert node.world.config.reason == "ConfigInvalid"
    assert node.world.config.pods_problem == (
        f"{MEMORY}: not offered until this node's pods are known: {node.inputs.pods.problem}"
    )
    node.given(pods=NodePods(pods=()))
    assert free(node.now(by_memory(cores=True))) == {MEMORY: Counter({gpu_id(0): 8, gpu_id(1): 8})}
    assert node.world.config.reason == "Applied"


def test_what_pods_hold_stays_healthy_while_the_nodes_pods_are_not_known_then_or_later() -> None:
    """The kubelet shows an unhealthy id in its pod's status, and takes no pod back after a reboot that has one."""
    node = Node(*TWO).now(by_memory())
    node.given(pods=NodePods(problem="list pods: 403 forbidden", forbidden=True))
    assert node.now(by_memory(cores=True), HELD).offers == {MEMORY: list(HELD.ids)}
    node = Node(*TWO)
    node.given(pods=NodePods(pods=(), problem="list pods: no answer"))
    assert free(node.now(by_memory(cores=True))) == {MEMORY: Counter({gpu_id(0): 8, gpu_id(1): 8})}
    assert "may have changed meanwhile: list pods: no answer" in node.world.config.pods_problem
