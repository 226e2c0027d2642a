"""GPUs by memory where other plugins for it went wrong: several containers in a pod, init containers, restarts; and
workloads that were written for other plugins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from support import memory_shares, simulated
from support.bookings import physical
from support.cluster import NAMESPACE, Cluster
from support.memory_shares import (
    ALIYUN,
    MEMORY,
    VCUDA_CORE,
    VCUDA_MEMORY,
    Grant,
    agreed,
    by_memory,
    container,
    grants,
    offered,
    refused,
)
from support.rig_cluster import RigCluster

pytestmark = [pytest.mark.e2e, pytest.mark.long]

EACH = simulated.L4_MIB // 1024  # shares of 1Gi of an L4
WORKLOADS = Path(__file__).with_name("workloads")
ON_ANY = pytest.mark.any_cluster


def start(cluster: Cluster, name: str, shares: int) -> None:
    """A pod of one container with so many shares, running."""
    memory_shares.pod(cluster, name, [container(cluster, "main", shares)])
    cluster.running(name)


@ON_ANY
def test_containers_of_one_pod_have_a_limit_and_a_device_each(cluster: Cluster) -> None:
    by_memory(cluster)
    offered(cluster, 4 * EACH)
    sidecar = container(cluster, "sidecar", 3, restartPolicy="Always")
    parts = [container(cluster, "large", 20), container(cluster, "small", 5), container(cluster, "none")]
    memory_shares.pod(cluster, "several", parts, init=[sidecar])
    cluster.running("several")
    have = agreed(cluster, "several")["several"]
    assert {name: each.shares for name, each in have.items()} == {"sidecar": 3, "large": 20, "small": 5}
    assert have["large"].device != have["small"].device, "no card has 25"
    assert memory_shares.variables(cluster, "several", "none") == {}


@ON_ANY
def test_an_init_container_of_the_same_amount_has_the_same_shares_and_one_of_less_may_be_refused(
    cluster: Cluster,
) -> None:
    by_memory(cluster, devices=["0", "1"])
    [first, _] = offered(cluster, 2 * EACH)
    step: dict[str, Any] = {"command": ["sh", "-c", "echo $NODEDEVICES_MEMORY_DEVICE $NODEDEVICES_MEMORY_LIMIT_MIB"]}
    memory_shares.pod(
        cluster,
        "same",
        [container(cluster, "main", EACH - 5)],
        init=[container(cluster, "prepare", EACH - 5, **step)],
    )
    cluster.running("same")
    have = grants(cluster, "same")["main"]
    assert have == Grant(first, EACH - 5, "1Gi")
    printed = cluster.kubectl.logs("same", "-c", "prepare", namespace=NAMESPACE).split()
    assert printed == [first, str(have.mib)], "the same device and the same limit"
    # Five are left of the first card. The init container of four gets four of these, and the pod cannot move on.
    memory_shares.pod(
        cluster,
        "other",
        [container(cluster, "main", 8)],
        init=[container(cluster, "prepare", 4, **step)],
    )
    message = refused(cluster, "other")
    assert (
        f"the init containers of this pod have shares of {first}, which has 5 for this pod; 8 are requested" in message
    )
    assert "request the same amount in init containers and containers" in message
    start(cluster, "next", 5)
    assert agreed(cluster, "next")["next"]["main"] == Grant(first, 5, "1Gi"), "what the refused pod had is free"


def test_agent_and_kubelet_restart_with_shares_held_and_nothing_is_given_twice(rig: RigCluster) -> None:
    by_memory(rig, devices=["0", "1"])
    offered(rig, 2 * EACH)
    with rig.nothing_twice(rig.b):
        two = [container(rig, "left", 12), container(rig, "right", 15)]
        memory_shares.pod(rig, "two", two)
        kept = {"two": rig.running("two"), "one": rig.pod("one", rig.b, {MEMORY: 5})}
        before = {name: memory_shares.ids(rig, name) for name in kept}
        every = rig.ids(rig.b, MEMORY)
        had = agreed(rig, *kept)
        restarts = rig.restarts(rig.b)
        rig.kill(rig.b, "nodedevices-agent")
        rig.restart_kubelet(rig.b)
        rig.until("the agent's container was restarted", lambda: rig.restarts(rig.b) == restarts + 1)
        rig.until("the kubelet has the same ids", lambda: rig.ids(rig.b, MEMORY) == every)
        rig.until("the Node, too", lambda: rig.node_count(rig.b, MEMORY) == 2 * EACH)
        rig.until("it knows its pods", lambda: {name: memory_shares.ids(rig, name) for name in kept} == before)
        # What is left are 5 of one card and 7 of the other: each goes to a pod that needs just that.
        left = {physical(each) for each in every}
        free = {
            each: EACH - sum(one.shares for pod in had.values() for one in pod.values() if one.device == each)
            for each in left
        }
        for number, (device, count) in enumerate(sorted(free.items(), key=lambda item: item[1])):
            start(rig, f"rest-{number}", count)
            assert grants(rig, f"rest-{number}")["main"] == Grant(device, count, "1Gi")
        assert agreed(rig, *kept, "rest-0", "rest-1").items() >= had.items()
        for each in kept.values():
            rig.alive(each)


def made(cluster: Cluster, file: str) -> None:
    """A file of workloads as it is, but for namespace and image."""
    for thing in yaml.safe_load_all((WORKLOADS / file).read_text()):
        thing["metadata"]["namespace"] = NAMESPACE
        spec = thing["spec"]["template"]["spec"] if "template" in thing["spec"] else thing["spec"]
        for each in spec["containers"]:
            each["image"] = cluster.image
        cluster.kubectl.apply(thing)


@ON_ANY
def test_workloads_of_aliyuns_gpu_share_run_unchanged(cluster: Cluster) -> None:
    by_memory(cluster, resource=ALIYUN)
    cluster.policy("count", {"capacity": [{"name": "aliyun.com/gpu-count", "perDevice": 1}]})
    offered(cluster, 4 * EACH, ALIYUN)
    made(cluster, "aliyun.yaml")
    replicas = [f"binpack-1-{number}" for number in range(3)]
    for name in replicas:
        cluster.running(name)
    have = {name: each["binpack-1"] for name, each in agreed(cluster, *replicas).items()}
    [device] = {each.device for each in have.values()}
    index = cluster.devices(cluster.b)[device]["index"]
    for name in replicas:
        assert cluster.kubectl.logs(name, namespace=NAMESPACE) == f"GPU {index} fraction {round(3 * 0.7 / EACH, 1)}\n"

    def done() -> bool:
        status = (cluster.kubectl.get("job", "binpack-job", NAMESPACE) or {})["status"]
        return bool(status.get("succeeded") == 1)

    cluster.until("the job is done", done)
    printed = cluster.kubectl.run("logs", "-n", NAMESPACE, "job/binpack-job")
    assert printed.endswith(f"fraction {round(20 * 0.7 / EACH, 1)}\n")
    cluster.until("the Node has its GPUs' number", lambda: cluster.node_count(cluster.b, "aliyun.com/gpu-count") == 4)
    cluster.kubectl.delete(
        "statefulsets", "binpack-1", namespace=NAMESPACE
    )  # or one more pod comes while all are deleted
    cluster.until("its pods are gone", lambda: not any(grants(cluster, name) for name in replicas))


@ON_ANY
def test_workloads_of_gpu_manager_run_with_whole_gpus_that_request_no_memory(cluster: Cluster) -> None:
    by_memory(cluster, "256Mi", resource=VCUDA_MEMORY, devices=["0", "1"])
    shared = offered(cluster, 2 * (simulated.L4_MIB // 256), VCUDA_MEMORY)
    cluster.until("the Node has 100 for each GPU", lambda: cluster.node_count(cluster.b, VCUDA_CORE) == 400)
    made(cluster, "gpu-manager.yaml")
    for name in ("vcuda", "vcuda-whole"):
        cluster.running(name)
    assert agreed(cluster, "vcuda")["vcuda"]["nvidia"] == Grant(shared[0], 30, "256Mi")
    whole = cluster.visible("vcuda-whole")
    assert whole == set(cluster.devices(cluster.b)) - set(shared)
    # 150 are left, and no GPU that is whole.
    cluster.pod("third", cluster.b, {VCUDA_CORE: 100}, run=False)
    assert VCUDA_CORE in refused(cluster, "third")
