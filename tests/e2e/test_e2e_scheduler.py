"""The real kube-scheduler, without the extender and with it: a pod that fits on a node in sum and on no single GPU.

The second scheduler is the component extender-scheduler's: its configuration, its account, its roles; scheduler and
extender run as processes beside the cluster's own control plane.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.bookings import physical
from support.cluster import NAMESPACE, Cluster
from support.kubectl import condition
from support.operatorprocess import ExtenderProcess
from support.rig_cluster import RigCluster
from support.second_scheduler import SCHEDULER, extended

pytestmark = [pytest.mark.e2e, pytest.mark.long]

MEMORY = "nodedevices.io/gpu-memory"
EACH = 22  # shares of 1Gi of a simulated L4
LISTS = 'nodedevices_extender_cache_lists{kind="pods"} '
HALF = 12  # two of them are more than a card has


def by_memory(cluster: Cluster) -> None:
    """Two cards of node b by memory."""
    rule = {"name": "nvidia.com/gpu", "memoryUnit": "1Gi", "devices": ["0", "1"]}
    sections = {"sharing": {"strategy": "memory", "resources": [rule]}}
    cluster.policy("memory", sections, selector={"kubernetes.io/hostname": cluster.b})
    cluster.until("the Node has the shares", lambda: cluster.node_count(cluster.b, MEMORY) == 2 * EACH)

    def free() -> list[int]:
        shares = [each.get("shares", {}) for each in cluster.devices(cluster.b).values()]
        return [each["free"] for each in shares if each.get("resource") == MEMORY]

    cluster.until("NodeDevices, too", lambda: free() == [EACH, EACH])


@pytest.fixture
def extender(rig: RigCluster, tmp_path: Path) -> Iterator[ExtenderProcess]:
    """It, and the scheduler that calls it."""
    with extended(rig, tmp_path) as running:
        yield running


def knows_the_pods(extender: ExtenderProcess) -> bool:
    """It lists them once a node shares memory; until then every node passes."""
    lists = [line for line in extender.get("/metrics")[1].splitlines() if line.startswith(LISTS)]
    return bool(lists) and float(lists[0].removeprefix(LISTS)) > 0


def pods(cluster: Cluster, names: Sequence[str], size: int) -> None:
    """For the second scheduler."""
    spec = cluster.pod_spec(cluster.b, {MEMORY: size}) | {"schedulerName": SCHEDULER}
    heads = [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": each, "namespace": NAMESPACE}} for each in names]
    cluster.kubectl.apply(*(head | {"spec": spec} for head in heads))


def unschedulable(cluster: Cluster, names: Sequence[str]) -> dict[str, str]:
    """Why the scheduler finds no node, of those of which it says so."""
    found = {each: condition(cluster.kubectl.get("pod", each, NAMESPACE), "PodScheduled") for each in names}
    return {name: str(each["message"]) for name, each in found.items() if each.get("reason") == "Unschedulable"}


def phase(cluster: Cluster, name: str) -> str:
    return str((cluster.kubectl.get("pod", name, NAMESPACE) or {}).get("status", {}).get("phase", ""))


def test_with_the_extender_a_pod_that_no_card_has_room_for_waits_and_starts_when_one_has(
    rig: RigCluster, extender: ExtenderProcess
) -> None:
    by_memory(rig)
    rig.until("the extender, too", lambda: knows_the_pods(extender))
    with rig.nothing_twice(rig.b):
        names = [f"pod-{number}" for number in range(4)]  # all at once, for two cards
        pods(rig, names, HALF)
        waiting = rig.until("two wait", lambda: len(found := unschedulable(rig, names)) == 2 and found)
        words = f"no single GPU has {HALF} free units of {MEMORY} (largest free: {EACH - HALF})"
        assert all(words in message for message in waiting.values()), waiting
        fortunate = [name for name in names if name not in waiting]
        for name in fortunate:
            rig.running(name)
        assert {phase(rig, name) for name in waiting} == {"Pending"}
        for name in waiting:
            assert any(words in each["message"] for each in rig.events(name, "FailedScheduling"))
        rig.kubectl.delete("pod", fortunate[0], namespace=NAMESPACE)
        next_one = rig.until("one more runs", lambda: [each for each in waiting if phase(rig, each) == "Running"])
        assert len({physical(each) for each in rig.held(rig.b, next_one[0])}) == 1
        extender.kill()
        pods(rig, ["without"], 2)
        rig.running("without")


def test_without_the_extender_it_is_rejected_and_an_event_says_what_the_node_has(rig: RigCluster) -> None:
    by_memory(rig)
    for name in ("first", "second"):
        rig.pod(name, rig.b, {MEMORY: HALF})
    spec = rig.pod_spec(rig.b, {MEMORY: HALF}) | {"restartPolicy": "Never"}
    metadata = {"name": "rejected", "namespace": NAMESPACE}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata}
    rig.kubectl.apply(job | {"spec": {"backoffLimit": 0, "template": {"spec": spec}}})

    def of_job() -> list[dict[str, Any]]:
        return rig.kubectl.items("pods", NAMESPACE, labels="job-name=rejected")

    def rejected() -> dict[str, Any] | None:
        return next((each for each in of_job() if each["status"].get("reason") == "UnexpectedAdmissionError"), None)

    found = rig.until("the kubelet rejects it", rejected)
    assert f"{MEMORY}: no device of this node has {HALF} free shares of 1Gi" in found["status"]["message"]
    [said] = rig.until(
        "its Event says what the node has", lambda: rig.events(found["metadata"]["name"], "DevicesUnavailable")
    )
    held = 2 * HALF
    assert f"{HALF} {MEMORY} (the node has {2 * EACH}: {2 * EACH} offered, {held} held" in said["message"]
