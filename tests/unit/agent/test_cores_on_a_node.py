"""tencent.com/vcuda-core on a node: what changes, restarts and lost files do to pods that hold some."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from nodedevices_plugin.model import AllocationError, Cordon, Holder
from nodedevices_plugin.pipeline.state import State
from support.cases import cases
from support.facts import GIB, START, gpu, gpu_id, old
from support.stepped_node import Node

GPU, CORES, MEMORY = "nvidia.com/gpu", "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
TWO = tuple(gpu(number, memory_bytes=8 * GIB, readings=old()) for number in (0, 1))


def tencents(*devices: str) -> dict[str, Any]:
    """These GPUs are shared, and the others given whole."""
    rule = {"name": GPU, "rename": MEMORY, "devices": list(devices)}
    return {"sharing": {"strategy": "memory", "resources": [rule]}}


def whole(number: int) -> list[str]:
    return [f"{gpu_id(number)}::core.{each}" for each in range(100)]


def pod(*ids: str, resource: str = CORES) -> Holder:
    return Holder(namespace="ml", pod="a", container="c", resource=resource, ids=ids, since=START)


def free(node: Node) -> dict[str, Counter[str]]:
    """By resource how many healthy ids each GPU has; `shared` are those of none."""
    return {name: Counter(each.partition("::")[0] for each in ids) for name, ids in node.offers.items() if ids}


SHARES = Counter({gpu_id(0): 32})
AS_REQUESTED = {MEMORY: SHARES, CORES: Counter({gpu_id(1): 100, "shared": 100})}
WHOLE = pod(*whole(1))
SHARING = pod("shared::core.7", "shared::core.8")
ITS_MEMORY = pod(f"{gpu_id(0)}::256Mi.3", resource=MEMORY)


def test_a_gpu_goes_out_whole_by_cores_or_in_another_way_and_never_in_both() -> None:
    node = Node(*TWO).now(tencents("0"))
    assert free(node.now(tencents("0", "1"), WHOLE)) == {MEMORY: SHARES, CORES: Counter({"shared": 200})}
    assert node.world.config.reason == "WaitingForHolders"
    assert free(node.now({}, WHOLE)) == {GPU: Counter({gpu_id(0): 1})}
    node = Node(*TWO).now({})
    found = free(node.now(tencents("0"), pod(gpu_id(1), resource=GPU)))
    assert found == {MEMORY: SHARES, CORES: Counter({"shared": 100})}
    node = Node(*TWO).now(tencents("0"))
    found = free(node.now(tencents("1"), ITS_MEMORY, SHARING))
    assert found == {MEMORY: Counter({gpu_id(1): 32}), CORES: Counter({"shared": 100})}
    node = Node(*TWO).now(tencents("0", "1"))
    assert free(node.now(tencents("0"), SHARING)) == AS_REQUESTED
    assert node.world.config.reason == "Applied"
    assert free(node.now({}, SHARING)) == {GPU: Counter({gpu_id(0): 1, gpu_id(1): 1})}


def test_a_restart_with_a_lost_state_file_gives_nothing_twice() -> None:
    node = Node(*TWO).now(tencents("0"))
    node.begin(State())
    assert free(node.now({}, WHOLE, ITS_MEMORY)) == {}
    assert free(node.now(tencents("0"), WHOLE, ITS_MEMORY)) == AS_REQUESTED  # the kubelet knows these ids itself


@cases("odd", "lost", "missing", "cordoned")
def test_a_shared_gpu_that_no_pod_can_get_takes_a_hundred_along_and_those_that_a_pod_holds_last(odd: str) -> None:
    node = Node(*TWO).now(tencents("0", "1"))
    assert free(node)[CORES] == {"shared": 200}
    if odd == "lost":
        node.devices = (TWO[0], gpu(1, memory_bytes=8 * GIB, readings=old(lost=True)))
    elif odd == "missing":
        node.devices = TWO[:1]
    held = pod("shared::core.199", "shared::core.198")
    node.now(tencents("0", "1"), held)
    if odd == "cordoned":
        node.sees(unschedulable=(Cordon(id=gpu_id(1), reason="RMA"),)).line()
    assert node.counts[CORES] == (200, 100)
    assert set(held.ids) <= set(node.offers[CORES])


def test_one_container_gets_memory_and_cores_of_one_gpu_and_a_whole_one_goes_to_no_two() -> None:
    node = Node(*TWO).now(tencents("0"))
    by_memory = node.container(MEMORY, f"{gpu_id(0)}::256Mi.3")
    assert by_memory.envs["NVIDIA_VISIBLE_DEVICES"] == gpu_id(0)
    assert node.container(CORES, "shared::core.7", "shared::core.8").envs == {}
    assert node.container(CORES, *whole(1)).envs["NVIDIA_VISIBLE_DEVICES"] == gpu_id(1)
    node = Node(*TWO).now(tencents("0"))
    with pytest.raises(AllocationError, match="whole GPUs"):
        node.container(CORES, *whole(1)[:50], *(f"shared::core.{each}" for each in range(50)))
    with pytest.raises(AllocationError, match="of shared GPUs"):
        node.container(CORES, *whole(1)[:30])
