"""Pods get devices, and everybody can see which: the container, the kubelet, NodeDevices."""

from __future__ import annotations

import pytest
from support import simulated
from support.cluster import GPU, MEMORY, NAMESPACE, Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.any_cluster]


def test_a_pod_finds_its_devices_in_its_container_and_no_other_pod_gets_them(cluster: Cluster) -> None:
    cluster.pod("first", cluster.a, {GPU: 2})
    cluster.pod("second", cluster.a, {GPU: 3})
    first, second = cluster.visible("first"), cluster.visible("second")
    assert len(first) == 2
    assert len(second) == 3
    assert not first & second
    assert first == cluster.held(cluster.a, "first")
    assert first | second <= set(cluster.devices(cluster.a))


def test_a_pod_that_requests_more_than_is_free_waits(cluster: Cluster) -> None:
    cluster.pod("six", cluster.a, {GPU: 6})
    cluster.pod("three", cluster.a, {GPU: 3}, run=False)
    reason = cluster.until(
        "the scheduler says why",
        lambda: cluster.condition("pod", "three", "PodScheduled", NAMESPACE).get("message"),
    )
    assert f"Insufficient {GPU}" in reason


def test_nodedevices_names_who_holds_a_device_and_forgets_it_when_the_pod_is_gone(cluster: Cluster) -> None:
    cluster.pod("holder", cluster.a, {GPU: 1})
    [one] = cluster.held(cluster.a, "holder")

    def holders() -> list[tuple[str, str, str, str]]:
        found = cluster.devices(cluster.a)[one].get("holders", [])
        return [(each["namespace"], each["pod"], each["container"], each["resource"]) for each in found]

    cluster.until("NodeDevices names the holder", lambda: holders() == [(NAMESPACE, "holder", "main", GPU)])
    assert cluster.summary(cluster.a)["held"] == 1
    cluster.kubectl.delete("pod", "holder", namespace=NAMESPACE)
    cluster.until("NodeDevices forgets the holder", lambda: not holders())


def test_the_kubelet_knows_the_numa_node_of_each_device(cluster: Cluster) -> None:
    cluster.pod("pinned", cluster.a, {GPU: 8})
    known = cluster.node_clients[cluster.a].allocatable()[GPU]
    by_index = {one["index"]: known[device] for device, one in cluster.devices(cluster.a).items()}
    assert by_index == {index: [simulated.NUMA[index]] for index in range(8)}
    assert set(simulated.NUMA) == {0, 1}
    shown = {
        numa
        for holder in cluster.node_clients[cluster.a].holders()
        if holder["pod"] == "pinned"
        for device in holder["devices"]
        for numa in device["numa"]
    }
    assert shown == {0, 1}


def test_one_pod_takes_two_resources_one_of_the_kubelets_and_one_of_the_operators(cluster: Cluster) -> None:
    cluster.policy("memory", {"capacity": [{"name": MEMORY, "sumOf": "memoryMiB"}]})
    total = 8 * simulated.H100_MIB
    cluster.until("the node has the capacity", lambda: cluster.node_count(cluster.a, MEMORY, "capacity") == total)
    cluster.until("the kubelet allows it", lambda: cluster.node_count(cluster.a, MEMORY) == total)
    cluster.pod("both", cluster.a, {GPU: 1, MEMORY: total - 1000})
    assert len(cluster.visible("both")) == 1
    cluster.pod("too-big", cluster.a, {GPU: 1, MEMORY: 2000}, run=False)
    reason = cluster.until(
        "the scheduler says why",
        lambda: cluster.condition("pod", "too-big", "PodScheduled", NAMESPACE).get("message"),
    )
    assert f"Insufficient {MEMORY}" in reason
