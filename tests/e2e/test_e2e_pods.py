"""Pods get devices, and everybody can see which: the container, the kubelet, NodeDevices."""

from __future__ import annotations

import pytest
from support import simulated
from support.kubectl import condition
from support.world import GPU, HEALTHY, MEMORY, NAMESPACE, World

pytestmark = [pytest.mark.e2e, pytest.mark.any_cluster, pytest.mark.timeout(180, method="signal")]


def test_a_pod_finds_its_devices_in_its_container_and_no_other_pod_gets_them(world: World) -> None:
    world.pod("first", world.a, {GPU: 2})
    world.pod("second", world.a, {GPU: 3})
    first, second = world.visible("first"), world.visible("second")
    assert len(first) == 2
    assert len(second) == 3
    assert not first & second
    assert first == world.held(world.a, "first")
    assert first | second <= set(world.devices(world.a))


def test_a_pod_that_asks_for_more_than_is_free_waits(world: World) -> None:
    world.pod("six", world.a, {GPU: 6})
    world.pod("three", world.a, {GPU: 3}, run=False)
    reason = world.until(
        "the scheduler says why",
        lambda: world.condition("pod", "three", "PodScheduled", NAMESPACE).get("message"),
    )
    assert f"Insufficient {GPU}" in reason


def test_nodedevices_names_who_holds_a_device_and_forgets_it_when_the_pod_is_gone(world: World) -> None:
    world.pod("holder", world.a, {GPU: 1})
    [one] = world.held(world.a, "holder")

    def holders() -> list[tuple[str, str, str, str]]:
        found = world.devices(world.a)[one].get("holders", [])
        return [(each["namespace"], each["pod"], each["container"], each["resource"]) for each in found]

    world.until("NodeDevices names the holder", lambda: holders() == [(NAMESPACE, "holder", "main", GPU)])
    assert world.summary(world.a)["held"] == 1
    world.kubectl.delete("pod", "holder", namespace=NAMESPACE)
    world.until("NodeDevices forgets the holder", lambda: not holders())


def test_the_kubelet_knows_the_numa_node_of_each_device(world: World) -> None:
    world.pod("pinned", world.a, {GPU: 8})
    known = world.hands[world.a].allocatable()[GPU]
    by_index = {one["index"]: known[device] for device, one in world.devices(world.a).items()}
    assert by_index == {index: [simulated.NUMA[index]] for index in range(8)}
    assert set(simulated.NUMA) == {0, 1}
    shown = {
        numa
        for holder in world.hands[world.a].holders()
        if holder["pod"] == "pinned"
        for device in holder["devices"]
        for numa in device["numa"]
    }
    assert shown == {0, 1}


def test_one_pod_takes_two_resources_one_of_the_kubelets_and_one_of_the_operators(world: World) -> None:
    world.policy("memory", {"capacity": [{"name": MEMORY, "sumOf": "memoryMiB", "scope": "healthy"}]})
    total = 8 * simulated.H100_MIB
    world.until("the node has the capacity", lambda: world.node_count(world.a, MEMORY, "capacity") == total)
    world.until("the kubelet allows it", lambda: world.node_count(world.a, MEMORY) == total)
    world.pod("both", world.a, {GPU: 1, MEMORY: total - 1000})
    assert len(world.visible("both")) == 1
    world.pod("too-big", world.a, {GPU: 1, MEMORY: 2000}, run=False)
    reason = world.until(
        "the scheduler says why",
        lambda: world.condition("pod", "too-big", "PodScheduled", NAMESPACE).get("message"),
    )
    assert f"Insufficient {MEMORY}" in reason


def test_a_statefulset_pod_recreated_under_its_name_does_not_inherit_the_mark(world: World) -> None:
    labels = {"app": "train"}
    world.kubectl.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": "train", "namespace": NAMESPACE},
            "spec": {
                "serviceName": "train",
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": world.pod_spec(world.a, {GPU: 1})},
            },
        }
    )
    old = world.running("train-0")
    [bad] = world.held(world.a, "train-0")
    index = world.devices(world.a)[bad]["index"]
    world.hardware(world.a, simulated.h100s(xid79=index))
    world.marked("train-0", "False")
    world.kubectl.delete("pod", "train-0", namespace=NAMESPACE, wait=False)
    new = world.running("train-0", other_than=old["metadata"]["uid"])
    assert bad not in world.visible("train-0")
    world.until(
        "NodeDevices shows the new holder, and only it",
        lambda: {
            device for device, one in world.devices(world.a).items() if one.get("holders")
        } == world.held(world.a, "train-0"),
    )  # fmt: skip
    world.never(
        "the new pod is marked for the old one's device",
        lambda: condition(world.kubectl.get("pod", "train-0", NAMESPACE), HEALTHY).get("status") == "False",
        seconds=5,
    )
    world.alive(new)
