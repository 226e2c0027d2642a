"""Devices beside exclusive CPUs: a kubelet with the CPU manager's static policy, which restarts under such a pod."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.cluster import GPU, NAMESPACE, SYSTEM
from support.rig_cluster import RigCluster

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(600, method="signal")]

# A part of a CPU for the system reserves one whole, and the scheduler the part alone: on two CPUs one is left.
STATIC = {"cpuManagerPolicy": "static", "systemReserved": {"cpu": "100m"}}
KEPT = "/var/lib/kubelet/cpu_manager_state"  # of the policy before: a kubelet with another one ends at it
WHOLE = {GPU: 2, "cpu": 1, "memory": 64 << 20}  # as limits, and so as requests: Guaranteed


def in_agent(rig: RigCluster, *argv: str) -> str:
    return rig.kubectl.exec(rig.agent(rig.b)["metadata"]["name"], *argv, namespace=SYSTEM)


@pytest.fixture
def static(rig: RigCluster) -> Iterator[RigCluster]:
    """Node b with a kubelet that gives containers CPUs of their own."""
    file = next(each.folder for each in rig.rig.rig.layout.nodes if each.name == rig.b) / "kubelet.json"
    before = file.read_text()

    def start(config: str) -> None:
        rig.rig.stop_kubelet(rig.b)
        rig.shell(rig.b, f"rm -f {KEPT}")
        file.write_text(config)
        rig.rig.start_kubelet(rig.b)
        rig.until("the kubelet has its ids", lambda: len(rig.ids(rig.b)) == 4)
        # Until it has its pods from the API server, it counts devices of pods that have ended meanwhile as in use.
        rig.until("the kubelet has its pods", lambda: in_agent(rig, "ls", "/"))

    start(json.dumps({**json.loads(before), **STATIC}))
    try:
        yield rig
    finally:
        rig.kubectl.delete("pod", "pinned", "beside", namespace=NAMESPACE)
        start(before)


def test_p01_a_pod_with_exclusive_cpus_has_its_devices_beside_them_and_keeps_both_when_the_kubelet_restarts(
    static: RigCluster,
) -> None:
    rig = static
    numa = rig.node_clients[rig.b].allocatable()[GPU]
    rig.until("the Node is Ready", lambda: rig.condition("node", rig.b, "Ready")["status"] == "True")
    rig.until("the Node has them", lambda: rig.node_count(rig.b, GPU) == 4)
    pod = rig.pod("pinned", rig.b, WHOLE)
    [before] = entries(rig, "pinned")
    assert len(before["cpus"]) == 1
    assert allowed(rig, "pinned") == before["cpus"]
    assert {id_: device["numa"] for device in before["devices"] for id_ in device["ids"]} == {
        id_: numa[id_] for id_ in rig.visible("pinned")
    }
    rig.agreed(rig.b, "pinned")

    rig.pod("beside", rig.b, {GPU: 1})
    [shared] = entries(rig, "beside")
    assert (shared["cpus"], set(before["cpus"]) & set(allowed(rig, "beside"))) == ([], set())

    rig.restart_kubelet(rig.b)
    rig.until("the kubelet lists both again", lambda: entries(rig, "pinned") == [before])
    rig.until("and all ids", lambda: len(rig.ids(rig.b)) == 4)
    rig.alive(pod)
    rig.agreed(rig.b, "pinned", "beside")


def entries(rig: RigCluster, pod: str) -> list[dict[str, Any]]:
    return [each for each in rig.node_clients[rig.b].holders() if each["pod"] == pod]


def allowed(rig: RigCluster, pod: str) -> list[int]:
    """The CPUs on which the container of a pod may run, as the kernel has them."""
    status = rig.kubectl.exec(pod, "cat", "/proc/self/status", namespace=NAMESPACE)
    [listed] = [line.partition(":")[2].strip() for line in status.splitlines() if line.startswith("Cpus_allowed_list")]
    ends = [each.partition("-") for each in listed.split(",")]
    return [cpu for first, _, last in ends for cpu in range(int(first), int(last or first) + 1)]
