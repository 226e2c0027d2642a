"""Who holds GPUs and does not use them, on a real kubelet: the pod is told, and nothing is done to it."""

from __future__ import annotations

import pytest
from support import simulated
from support.cluster import GPU, NAMESPACE, Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.any_cluster]

IDLE = "nodedevices.io/DeviceIdle"
AFTER_SECONDS = 60  # the least that a policy can ask for


def test_a_pod_that_never_used_its_gpu_is_told_so_and_one_that_computes_is_not(cluster: Cluster) -> None:
    section = {"afterSeconds": AFTER_SECONDS}
    cluster.policy("who-uses-them", {"idle": section})

    def asked() -> bool:
        item = cluster.nodedevices(cluster.b)
        return bool(
            item["spec"]["config"].get("idle") == section
            and item["status"].get("appliedConfigHash") == item["spec"]["configHash"]
        )

    cluster.until("the node observes who uses what", asked)
    pods = {name: cluster.pod(name, cluster.b, {GPU: 1}) for name in ("notebook", "trainer")}
    [computes] = cluster.held(cluster.b, "trainer")
    [unused] = cluster.held(cluster.b, "notebook")
    index = cluster.devices(cluster.b)[computes]["index"]
    cluster.hardware(cluster.b, simulated.used(simulated.l4s(), [index], count=4))

    def words() -> dict[str, str]:
        every = cluster.devices(cluster.b).values()
        return {one["pod"]: one["idle"] for each in every for one in each.get("holders", ()) if "idle" in one}

    cluster.until("NodeDevices has the word", lambda: words() == {"notebook": "NeverUsed"}, seconds=AFTER_SECONDS + 120)
    assert cluster.summary(cluster.b)["idle"] == 1
    told = cluster.until("the pod has the condition", lambda: cluster.condition("pod", "notebook", IDLE, NAMESPACE))
    assert (told["status"], told["reason"]) == ("True", "NeverUsed")
    assert unused in told["message"]
    cluster.until("the pod has one Event", lambda: len(cluster.events("notebook", "DeviceIdle")) == 1)
    assert cluster.metric(cluster.b, "nodedevices_device_idle_seconds", uuid=unused, idle="NeverUsed") >= AFTER_SECONDS
    assert not cluster.condition("pod", "trainer", IDLE, NAMESPACE)

    cluster.hardware(cluster.b, simulated.used(simulated.l4s(), range(4), count=4))
    cluster.until(
        "it is in use",
        lambda: cluster.condition("pod", "notebook", IDLE, NAMESPACE).get("status") == "False",
    )
    assert words() == {}
    for pod in pods.values():
        cluster.alive(pod)
