"""DRA on a real kubelet and scheduler: a claim gets a GPU by what it says of it, and a node goes from the device plugin
to DRA and back while pods of both run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import simulated
from support.claims_on_rig import CLASS, POLICY, claimant, device_of, holders, nodes_seen, published, serve_by_dra
from support.cluster import GPU, NAMESPACE, SHOWS_HEALTH, Cluster
from support.driver_root import CONTROL, installed_with_root
from support.rig_cluster import RigCluster

pytestmark = [pytest.mark.e2e]

BY_MEMORY = "gpu-memory.nodedevices.io"
CHECK = Path(sys.executable).with_name("kubectl-nodedevices")
PODS = ("old", "trainer", "plain", "giant")
AGAIN_SECONDS = 600.0  # a kubelet tries a failed prepare again after 60 to 90 s


@pytest.fixture(scope="module")
def with_dra(installed: Cluster) -> Iterator[None]:
    with installed_with_root(installed, "cdi", "dra"):
        yield


@pytest.fixture
def by_dra(with_dra: None, rig: RigCluster) -> Iterator[RigCluster]:
    """Afterwards the plugin serves again."""
    yield rig
    rig.kubectl.run("delete", "pod", "--ignore-not-found", "-n", NAMESPACE, *PODS)
    rig.kubectl.run("delete", "resourceclaims", "--all", "-n", NAMESPACE)
    if rig.kubectl.get("devicepolicy", POLICY):
        rig.drop_policy(POLICY)
    rig.until("the plugin offers all GPUs", lambda: rig.node_count(rig.b, GPU) == 4)
    rig.until("the classes are gone", lambda: not any(rig.kubectl.get("deviceclass", it) for it in (CLASS, BY_MEMORY)))


def shows(cluster: RigCluster, pod: str, health: str) -> bool:
    """Whether the pod's own status has its claim's device so, where the kubelet shows health."""
    found = cluster.resource_health(pod)
    return list(found.values()) == ([health] if cluster.release >= SHOWS_HEALTH else [])


def free(cluster: RigCluster, device: str) -> bool:
    """Whether a claim can get the device: a taint keeps it from that or, where the server drops taints, its absence."""
    found = published(cluster).get(device)
    return found is not None and not found.get("taints")


def plain(cluster: RigCluster) -> None:
    """A pod that requests a GPU by its name, the DeviceClass's. Before 1.36 servers drop that: it has a claim."""
    if cluster.release >= SHOWS_HEALTH:
        cluster.pod("plain", cluster.b, {GPU: 1})
    else:
        claimant(cluster, "plain")
        cluster.running("plain")


def boot_id(cluster: RigCluster) -> str:
    found: str = cluster.node(cluster.b)["status"]["nodeInfo"]["bootID"]
    return found


def restarts(cluster: RigCluster, name: str) -> int:
    [status] = cluster.kubectl.object("pod", name, NAMESPACE)["status"]["containerStatuses"]
    count: int = status["restartCount"] if status["ready"] else 0
    return count


def links(cluster: RigCluster) -> dict[tuple[str, str], tuple[str, str]]:
    """Status and detail of what `kubectl nodedevices check` finds, by node and link."""
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubectl.kubeconfig)}
    command = [str(CHECK), "check", "--all", "-o", "json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout, done.stderr
    return {(it["node"], it["link"]): (it["status"], it["detail"]) for it in json.loads(done.stdout)["items"]}


def test_a_claim_by_memory_runs_beside_a_pod_of_the_plugin_and_the_node_goes_there_and_back(
    by_dra: RigCluster,
) -> None:
    rig = by_dra
    rig.pod("old", rig.b, {GPU: 1})
    (held,) = rig.held(rig.b, "old")
    theirs = rig.devices(rig.b)[held]["name"]
    serve_by_dra(rig)
    rig.until("all other GPUs are in slices", lambda: len(published(rig)) == 3 and theirs not in published(rig))
    rig.until("the plugin offers none", lambda: rig.node_count(rig.b, GPU) == 0)

    memory = 'device.capacity["nodedevices.io"].memory'
    least = next(iter(published(rig).values()))["capacity"]["memory"]["value"]
    claimant(rig, "trainer", f'{memory}.compareTo(quantity("{least}")) >= 0')
    rig.running("trainer")
    device = device_of(rig, "trainer")
    minor = published(rig)[device]["attributes"]["minor"]["int"]
    assert nodes_seen(rig, "trainer") == sorted((*CONTROL, f"nvidia{minor}"))
    rig.until("NodeDevices names its holder", lambda: holders(rig, device) == {("trainer", "trainer")})
    rig.until("its pod's own status has it", lambda: shows(rig, "trainer", "Healthy"))
    rig.hardware(rig.b, simulated.l4s(lost=minor))
    rig.until("its pod's own status says so", lambda: shows(rig, "trainer", "Unhealthy"))
    rig.until("no new pod gets it", lambda: not free(rig, device))
    rig.hardware(rig.b, simulated.l4s())
    rig.until("it is offered again", lambda: free(rig, device))
    rig.until("and of its recovery, too", lambda: shows(rig, "trainer", "Healthy"))
    plain(rig)
    assert len(nodes_seen(rig, "plain")) == len(CONTROL) + 1
    claimant(rig, "giant", f'{memory}.compareTo(quantity("1000Gi")) >= 0')
    waits = "giant: ResourceClaim giant is not allocated: "
    rig.until("check names the claim that no device satisfies", lambda: waits in links(rig)["<cluster>", "claims"][1])
    all_there = ("ok", f"published: {GPU}: 3")
    rig.until("check finds every healthy GPU in the slices", lambda: links(rig)[rig.b, "slices"] == all_there)
    seen = links(rig)
    status, detail = seen["<cluster>", f"class {CLASS}"]
    assert (status, detail) == ("ok", f"for {GPU}") if rig.release >= SHOWS_HEALTH else status == "warning", detail
    assert seen[rig.b, "claims"] == ("ok", "no pod waits for its claim to be prepared")

    rig.kubectl.delete("pod", "old", namespace=NAMESPACE)
    rig.until("its GPU is in a slice, too", lambda: len(published(rig)) == 4)

    rig.drop_policy(POLICY)
    rig.until("the slices are empty", lambda: not published(rig))
    rig.until("the plugin offers all GPUs but the claims'", lambda: rig.node_count(rig.b, GPU) == 2)
    rig.alive(rig.kubectl.object("pod", "trainer", NAMESPACE))
    rig.alive(rig.kubectl.object("pod", "plain", NAMESPACE))
    assert rig.kubectl.object("pod", "giant", NAMESPACE)["status"]["phase"] == "Pending"
    rig.kubectl.run("delete", "pod", "-n", NAMESPACE, *PODS[1:])
    rig.until("the plugin offers all GPUs", lambda: rig.node_count(rig.b, GPU) == 4)


def test_claims_of_ten_gib_share_a_gpu_and_one_of_the_rest_does_not_fit_on_it(by_dra: RigCluster) -> None:
    rig = by_dra
    rule = {"name": GPU, "memoryUnit": "1Gi"}
    serve_by_dra(rig, sharing={"strategy": "memory", "resources": [rule]})
    if rig.release < SHOWS_HEALTH:  # consumable capacity is on by default from the same release
        rig.until("why none is offered is said", lambda: "drops" in str(rig.kubectl.get("nodedevices", rig.b)))
        assert not published(rig)
        return
    rig.until("all GPUs are in slices", lambda: len(published(rig)) == 4)
    total = published(rig)["gpu-0"]["capacity"]["memory"]["value"]
    claimant(rig, "trainer", of=BY_MEMORY, memory="10Gi")
    claimant(rig, "old", of=BY_MEMORY, memory="10Gi")
    rig.running("trainer")
    rig.running("old")
    device = device_of(rig, "trainer")
    assert device_of(rig, "old") == device, "the scheduler takes the first one with room"
    for pod in ("trainer", "old"):
        assert rig.environment(pod)["NODEDEVICES_MEMORY_LIMIT_MIB"] == "10240"
        assert len(nodes_seen(rig, pod)) == len(CONTROL) + 1
    both = {("old", "old"), ("trainer", "trainer")}
    rig.until("NodeDevices names both", lambda: holders(rig, device) == both)
    claimant(rig, "giant", of=BY_MEMORY, memory=total)
    rig.running("giant")
    assert device_of(rig, "giant") != device
    serve_by_dra(rig, sharing={"strategy": "timeSlicing", "resources": [{"name": GPU, "replicas": 2}]})
    free = {"gpu-0", "gpu-1", "gpu-2", "gpu-3"} - {device, device_of(rig, "giant")}
    rig.until("what no claim has is shared by time", lambda: set(published(rig)) == free)
    assert {one["capacity"]["shares"]["value"] for one in published(rig).values()} == {"2"}
    rig.pod("plain", rig.b, {GPU: 2})  # by the operator's DeviceClass
    assert len(nodes_seen(rig, "plain")) in {len(CONTROL) + 1, len(CONTROL) + 2}


@pytest.mark.long
def test_after_a_reboot_a_claims_pod_has_the_same_gpu_and_no_other_pod_has_it(by_dra: RigCluster) -> None:
    """All containers and CDI files have gone, and the agent starts beside the pods that wait for it."""
    rig = by_dra
    serve_by_dra(rig)
    rig.until("all GPUs are in slices", lambda: len(published(rig)) == 4)
    claimant(rig, "trainer")
    rig.running("trainer")
    device, before, boot = device_of(rig, "trainer"), nodes_seen(rig, "trainer"), boot_id(rig)
    rig.reboot(rig.b)
    rig.until("the kubelet has seen that it rebooted", lambda: boot_id(rig) != boot)
    rig.until("the claim's container has started again", lambda: restarts(rig, "trainer"), seconds=AGAIN_SECONDS)
    rig.running("trainer")
    assert (device_of(rig, "trainer"), nodes_seen(rig, "trainer")) == (device, before)
    rig.until("NodeDevices names its holder", lambda: holders(rig, device) == {("trainer", "trainer")})
    rig.until("all GPUs are in slices again", lambda: len(published(rig)) == 4)
    plain(rig)
    assert not set(nodes_seen(rig, "plain")) & set(before) - set(CONTROL)
