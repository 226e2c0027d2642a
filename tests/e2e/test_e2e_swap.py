"""A device is taken out of a running node and comes back, without a fault and without a restart: the walk of
docs/maintenance.md."""

from __future__ import annotations

import pytest
from support import simulated
from support.cluster import GPU, Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.any_cluster]


def test_a_drained_gpu_is_removed_without_a_fault_and_offered_again_when_it_is_back(cluster: Cluster) -> None:
    started = cluster.nodedevices(cluster.b)["status"]["agent"]["startTime"]
    pod = cluster.pod("stays", cluster.b, {GPU: 1})
    [kept] = cluster.held(cluster.b, "stays")
    index, gone = next((each["index"], id_) for id_, each in cluster.devices(cluster.b).items() if id_ != kept)

    cluster.kubectl.patch("nodedevices", cluster.b, {"spec": {"unschedulable": [{"id": gone, "reason": "swap"}]}})
    drained = f"jsonpath={{.status.devices[?(@.id=='{gone}')].drainedSince}}"
    cluster.kubectl.run("wait", "nodedevices", cluster.b, "--timeout=240s", f"--for={drained}", seconds=250)
    assert cluster.devices(cluster.b)[gone]["drainedSince"]
    cluster.hardware(cluster.b, simulated.l4s(without=index))
    cluster.until("it is no longer listed", lambda: gone not in cluster.devices(cluster.b))
    cluster.until("the Node offers one less", lambda: cluster.node_count(cluster.b, GPU, "capacity") == 3)
    assert cluster.summary(cluster.b)["reason"] == ""
    for kind, name in (("nodedevices", "DevicesHealthy"), ("node", "nodedevices.io/DevicesHealthy")):
        assert cluster.condition(kind, cluster.b, name)["status"] == "True"
    assert not cluster.condition("nodedevices", cluster.b, "ExpectedDevices"), "the node does not miss it"

    cluster.kubectl.patch("nodedevices", cluster.b, {"spec": {"unschedulable": []}})
    cluster.hardware(cluster.b, simulated.l4s())
    cluster.until("the Node offers it", lambda: cluster.node_count(cluster.b, GPU) == 4)
    assert cluster.nodedevices(cluster.b)["status"]["agent"]["startTime"] == started
    cluster.alive(pod)
