"""GPUs by memory where other plugins for it went wrong: several containers in a pod, pods that start in another order
than they were bound, several models in one node, restarts, faults, and a unit that changes under running pods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from support import memory_shares, simulated
from support.bookings import physical
from support.cluster import HEALTHY, NAMESPACE, Cluster
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


@ON_ANY
def test_equal_pods_that_start_in_another_order_than_annotations_say_get_what_the_kubelet_says(
    cluster: Cluster,
) -> None:
    """What Aliyun's extender would have written says another order and other devices than there will be."""
    by_memory(cluster, resource=ALIYUN)
    devices = offered(cluster, 4 * EACH, ALIYUN)
    names = ("a", "b", "c")
    for number, name in enumerate(names):
        written = {
            "ALIYUN_COM_GPU_MEM_IDX": str(number),
            "ALIYUN_COM_GPU_MEM_POD": "12",
            "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
            "ALIYUN_COM_GPU_MEM_ASSUME_TIME": str(1_700_000_000_000_000_000 + number),
        }
        memory_shares.pod(
            cluster,
            name,
            [container(cluster, "main", 12, resource=ALIYUN)],
            annotations=written,
            schedulingGates=[{"name": "nodedevices.io/e2e"}],
        )
    for name in reversed(names):
        cluster.kubectl.run("patch", "pod", name, "-n", NAMESPACE, "-p", '{"spec": {"schedulingGates": null}}')
        cluster.until(f"{name} has its shares", lambda n=name: grants(cluster, n))  # type: ignore[misc]
    for name in names:
        cluster.running(name)
    have = {name: each["main"] for name, each in agreed(cluster, *names).items()}
    assert [have[name].device for name in reversed(names)] == devices[:3], "12 of 22 each, the first card first"
    for name in names:
        read = memory_shares.variables(cluster, name)
        index = cluster.devices(cluster.b)[have[name].device]["index"]
        assert {key: value for key, value in read.items() if key.startswith("ALIYUN_")} == {
            "ALIYUN_COM_GPU_MEM_IDX": str(index),
            "ALIYUN_COM_GPU_MEM_CONTAINER": "12",
            "ALIYUN_COM_GPU_MEM_POD": "12",
            "ALIYUN_COM_GPU_MEM_DEV": str(EACH),
        }


@ON_ANY
def test_each_model_of_a_mixed_node_is_divided_by_its_own_memory(cluster: Cluster) -> None:
    cluster.hardware(cluster.b, yaml.safe_dump({"profile": "l4 x 2, h100 x 2"}))
    large = simulated.H100_MIB // 1024
    by_memory(cluster)
    devices = offered(cluster, 2 * EACH + 2 * large)
    start(cluster, "whole-h100", large)
    start(cluster, "whole-l4", EACH)
    start(cluster, "half-h100", large // 2)
    have = {name: each["main"] for name, each in agreed(cluster, "whole-h100", "whole-l4", "half-h100").items()}
    assert {name: each.device for name, each in have.items()} == {
        "whole-h100": devices[2],
        "whole-l4": devices[0],
        "half-h100": devices[3],
    }
    for name, mib in (("whole-l4", simulated.L4_MIB), ("half-h100", simulated.H100_MIB)):
        read = memory_shares.variables(cluster, name)
        assert read["NODEDEVICES_MEMORY_TOTAL_MIB"] == str(mib)
        assert read["NODEDEVICES_MEMORY_FRACTION"] == f"0.{have[name].mib * 10_000 // mib:04d}"


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


@ON_ANY
def test_a_card_that_fails_marks_every_pod_with_shares_of_it_and_takes_no_others(cluster: Cluster) -> None:
    by_memory(cluster)
    [bad, *others] = offered(cluster, 4 * EACH)
    every = cluster.ids(cluster.b, MEMORY)
    five = [f"pod-{number}" for number in range(5)]
    for name in five:
        memory_shares.pod(cluster, name, [container(cluster, "main", 4)])
    pods = [cluster.running(name) for name in five]
    start(cluster, "neighbour", 12)
    have = agreed(cluster, *five, "neighbour")
    assert {have[name]["main"].device for name in five} == {bad}
    assert have["neighbour"]["main"].device == others[0]

    cluster.hardware(cluster.b, simulated.l4s(lost=0))
    rest = {each for each in every if physical(each) != bad}
    cluster.until("the kubelet withdraws its shares", lambda: cluster.ids(cluster.b, MEMORY) == rest)
    for name in five:
        assert cluster.marked(name, "False")["reason"] == "FallenOffBus"
    assert cluster.condition("pod", "neighbour", HEALTHY, NAMESPACE) == {}
    start(cluster, "later", 4)
    assert grants(cluster, "later")["main"].device == others[0]

    cluster.hardware(cluster.b, simulated.l4s())
    cluster.until("the kubelet has them again", lambda: cluster.ids(cluster.b, MEMORY) == every)
    for name in five:
        cluster.lost_it(name)
    for each in pods:
        cluster.alive(each)
    agreed(cluster, *five, "neighbour", "later")


@ON_ANY
def test_another_unit_comes_card_by_card_while_pods_start_and_end(cluster: Cluster) -> None:
    by_memory(cluster)
    cards = offered(cluster, 4 * EACH)
    old = ("old-0", "old-1", "old-2")
    with cluster.nothing_twice(cluster.b):
        for name in old:
            start(cluster, name, 12)
        new = ("new-0", "new-1")  # five pods at most: the message names so many
        for name in new:  # under way while the unit changes: of the old one or of the new, or refused
            memory_shares.pod(cluster, name, [container(cluster, "main", 2)])
        by_memory(cluster, "2Gi")

        def now() -> dict[str, Grant]:
            return {name: each["main"] for name in (*old, *new) if (each := grants(cluster, name))}

        def expected() -> set[str]:
            waiting = {each.device for each in now().values() if each.unit == "1Gi"}
            return {f"{each}::2Gi.{n}" for each in cards if each not in waiting for n in range(EACH // 2)}

        def decided(name: str) -> bool:
            status = (cluster.kubectl.get("pod", name, NAMESPACE) or {})["status"]
            return bool(status.get("reason") == "UnexpectedAdmissionError" or status["phase"] == "Running")

        for name in new:
            cluster.until(f"{name} runs or is refused", lambda n=name: decided(n))  # type: ignore[misc]
        cluster.until("every card that waits for nobody is new", lambda: cluster.ids(cluster.b, MEMORY) == expected())
        waits = cluster.until(
            "the node says for whom it waits",
            lambda: (
                (c := cluster.condition("nodedevices", cluster.b, "ConfigApplied"))["reason"] == "WaitingForHolders"
                and c
            ),
        )
        assert all(f"{NAMESPACE}/{name}" in waits["message"] for name in old), waits
        agreed(cluster, *now())
        for ended in ((*new, old[0]), old[1:]):
            cluster.kubectl.delete("pod", *ended, namespace=NAMESPACE)
            cluster.until("the cards of which they were the last", lambda: cluster.ids(cluster.b, MEMORY) == expected())
        assert len(cluster.ids(cluster.b, MEMORY)) == len(cards) * (EACH // 2)
        cluster.until(
            "nothing waits",
            lambda: cluster.condition("nodedevices", cluster.b, "ConfigApplied")["status"] == "True",
        )
        start(cluster, "last", EACH // 2)
        assert agreed(cluster, "last")["last"]["main"].mib == EACH // 2 * 2048


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
    by_memory(cluster, "256Mi", resource=VCUDA_MEMORY, coreResource=VCUDA_CORE, devices=["0", "1"])
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
