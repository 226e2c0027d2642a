"""Upstream's checks of a device plugin on real kubelets: restarts, pods that have ended, two instances on one node.

`tests/scenarios.yaml` has all of them. Most of these share one session, because each has to wait. Node b has what a
reboot brings: its agent is not there yet when its kubelet starts, a pod has ended, one is deleted meanwhile, and the
container of one is gone. And all the while the agent of node a is frozen.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import yaml
from support import installing, simulated, vendor
from support.cluster import GPU, NAMESPACE, SYSTEM, Cluster
from support.kubectl import condition
from support.rig_cluster import RigCluster

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.long]

# Half of the L4s are on a NUMA node, as always; these are on none.
NO_NUMA = yaml.safe_dump({"profile": "l4 x 4", "devices": [{"index": index, "numaNode": -1} for index in range(4)]})
AGENT = "nodedevices-agent"
AGENTS = f"daemonset/{AGENT}"
PLUGIN = "vendors-plugin"
RESTARTS = "while [ ! -e /tmp/restart ]; do sleep 0.1; done"  # in the container's own files, which begin anew
DIES = "86401"  # seconds of sleep, by which its process is found


@dataclass(frozen=True)
class Reboot:
    rig: RigCluster
    pods: dict[str, dict[str, Any]]  # as they were before it
    held: dict[str, set[str]]  # by pod, before it
    listed: dict[str, list[int]]  # id -> NUMA nodes, before it
    beside: dict[str, Any]  # a pod on node a

    def pod(self, name: str) -> dict[str, Any]:
        return self.rig.kubectl.get("pod", name, NAMESPACE) or {}


def start(rig: RigCluster, name: str, command: list[str], **spec: Any) -> None:
    """A pod with one GPU of node b."""
    made = rig.pod_spec(rig.b, {GPU: 1}) | spec
    made["containers"][0]["command"] = command
    metadata = {"name": name, "namespace": NAMESPACE}
    rig.kubectl.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": made})


def restarts(pod: dict[str, Any]) -> int:
    [container] = pod["status"]["containerStatuses"]
    return int(container["restartCount"])


def phase(pod: dict[str, Any]) -> str:
    return str(pod.get("status", {}).get("phase", ""))


def before(rig: RigCluster) -> Reboot:
    """Four pods on node b with a GPU each: one has ended, the container of one was restarted. And one on node a."""
    beside = rig.pod("beside", rig.a, {GPU: 1})
    rig.hardware(rig.b, NO_NUMA)
    rig.until("no GPU has a NUMA node", lambda: not any(rig.node_clients[rig.b].allocatable()[GPU].values()))
    start(rig, "ended", ["true"], restartPolicy="Never")
    rig.until("it has ended", lambda: phase(rig.kubectl.get("pod", "ended", NAMESPACE) or {}) == "Succeeded")
    start(rig, "restarted", ["sh", "-c", RESTARTS])
    start(rig, "deleted", ["sleep", "infinity"])
    start(rig, "dies", ["sleep", DIES])
    pods = {name: rig.running(name) for name in ("restarted", "deleted", "dies")}
    held = {name: rig.held(rig.b, name) for name in pods}
    rig.kubectl.exec("restarted", "touch", "/tmp/restart", namespace=NAMESPACE)
    again = rig.until(
        "its container is restarted",
        lambda: (
            (now := rig.kubectl.get("pod", "restarted", NAMESPACE) or {})
            and restarts(now) == 1
            and condition(now, "Ready").get("status") == "True"
            and now
        ),
    )
    pods |= {"restarted": again, "ended": rig.kubectl.get("pod", "ended", NAMESPACE) or {}}
    return Reboot(rig, pods, held, rig.node_clients[rig.b].allocatable()[GPU], beside)


@pytest.fixture(scope="module")
def reboot(installed: Cluster) -> Reboot:
    """Both nodes with their agents again, after the one of a was frozen and b's kubelet has started without one."""
    if not isinstance(installed, RigCluster):
        pytest.skip("stops kubelets and processes of a node: only on our own rig")
    rig = installed
    rig.reset()
    known = before(rig)
    rig.freeze(rig.a, AGENT)
    rig.kubectl.run("label", "node", rig.b, "nodedevices.io/agent=away")
    try:
        rig.until("the agent is gone", lambda: not rig.processes(rig.b, AGENT))
        rig.rig.stop_kubelet(rig.b)
        rig.kubectl.delete("pod", "deleted", namespace=NAMESPACE)  # at once: its grace period is 0
        rig.kill(rig.b, DIES)
        rig.rig.start_kubelet(rig.b)
        rig.until("the pod whose container was gone has its answer", lambda: phase(known.pod("dies")) == "Failed")
    finally:
        rig.kubectl.run("label", "node", rig.b, "nodedevices.io/agent-")
    rig.until("the agent offers its devices", lambda: rig.ids(rig.b) == set(known.listed))
    rig.until("the Node has them", lambda: rig.node_count(rig.b, GPU) == len(known.listed))
    return known


def test_s02_the_kubelet_restarts_an_agent_that_is_frozen_and_its_pods_run_on(reboot: Reboot) -> None:
    rig = reboot.rig
    rig.until("its container was restarted", lambda: rig.restarts(rig.a) == 1)
    rig.until("the kubelet has its devices", lambda: len(rig.ids(rig.a)) == 8)
    rig.until("the agent reports", lambda: rig.condition("nodedevices", rig.a, "Ready")["status"] == "True")
    rig.alive(reboot.beside)


def test_c03_a_restarted_container_keeps_its_device_and_other_pods_get_others(reboot: Reboot) -> None:
    assert restarts(reboot.pods["restarted"]) == 1
    assert [len(ids) for ids in reboot.held.values()] == [1, 1, 1]
    assert len(set[str]().union(*reboot.held.values())) == 3
    assert reboot.rig.visible("restarted") == reboot.held["restarted"]


def test_c05_a_restarted_container_keeps_its_device_when_the_kubelet_restarts_too(reboot: Reboot) -> None:
    now, rig = reboot.pod("restarted"), reboot.rig
    assert (now["metadata"]["uid"], phase(now)) == (reboot.pods["restarted"]["metadata"]["uid"], "Running")
    assert restarts(now) == 1
    rig.until("the kubelet lists it", lambda: rig.held(rig.b, "restarted") == reboot.held["restarted"])


def test_c06_a_pod_that_has_succeeded_is_not_admitted_again(reboot: Reboot) -> None:
    now = reboot.pod("ended")
    assert now["metadata"]["uid"] == reboot.pods["ended"]["metadata"]["uid"]
    assert (phase(now), now["status"].get("reason")) == ("Succeeded", None)


def test_c11_a_pod_that_starts_before_the_agent_is_rejected_by_the_kubelet(reboot: Reboot) -> None:
    status = reboot.pod("dies")["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "UnexpectedAdmissionError")


def test_c09_a_device_of_a_pod_that_was_deleted_under_a_stopped_kubelet_is_free(reboot: Reboot) -> None:
    """And so are those of the pods that have ended: a new pod gets all but one."""
    rig = reboot.rig
    assert not reboot.pod("deleted")
    rig.pod("all-others", rig.b, {GPU: 3})
    assert rig.visible("all-others") == set(reboot.listed) - reboot.held["restarted"]


def test_h02_a_pod_whose_image_cannot_be_pulled_shows_the_health_of_its_device(rig: RigCluster) -> None:
    """By our condition; in allocatedResourcesStatus where the kubelet has that."""
    spec = rig.pod_spec(rig.a, {GPU: 1})
    spec["containers"][0] |= {"image": "localhost/there-is-no-such-image:dev", "imagePullPolicy": "Never"}
    metadata = {"name": "waits", "namespace": NAMESPACE}
    rig.kubectl.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    [held] = rig.until("it has its device", lambda: rig.held(rig.a, "waits"))
    rig.until("it is Healthy", lambda: rig.kubelet_says("waits", {held: "Healthy"}))
    rig.hardware(rig.a, simulated.h100s(xid79=rig.devices(rig.a)[held]["index"]))
    rig.marked("waits", "False")
    rig.until("it is Unhealthy", lambda: rig.kubelet_says("waits", {held: "Unhealthy"}))
    rig.hardware(rig.a, simulated.h100s())
    rig.marked("waits", "True")
    rig.until("it is Healthy again", lambda: rig.kubelet_says("waits", {held: "Healthy"}))


# --- two instances on one node --------------------------------------------------------------------------------------
def surge(rig: RigCluster, *, by: int, ready_seconds: int) -> None:
    """How many agents more than one a roll-out may start on a node."""
    update = {"rollingUpdate": {"maxSurge": by, "maxUnavailable": 1 - by}}
    spec = {"updateStrategy": update, "minReadySeconds": ready_seconds}
    rig.kubectl.run("patch", "-n", SYSTEM, AGENTS, "-p", json.dumps({"spec": spec}))


def unchanged(rig: RigCluster, seen: Sequence[set[str]], ids: set[str]) -> None:
    """From 1.37 on the kubelet keeps all instances; before, the end of one ends the others, which register again."""
    assert seen[-1] == ids
    assert all(each == ids if rig.release >= (1, 37) else each <= ids for each in seen)


def test_m01_in_a_roll_out_that_surges_no_device_goes_from_a_kubelet_that_keeps_both_instances(rig: RigCluster) -> None:
    ids = {node: rig.ids(node) for node in (rig.a, rig.b)}
    pod = rig.pod("stays", rig.a, {GPU: 1})
    before = {rig.agent(node)["metadata"]["uid"] for node in ids}
    surge(rig, by=1, ready_seconds=0)
    try:
        with rig.watching(rig.a) as on_a, rig.watching(rig.b) as on_b:
            rig.kubectl.run("rollout", "restart", "-n", SYSTEM, AGENTS)
            installing.rolled_out(rig.kubectl, AGENTS)
            rig.until("the kubelets have all ids", lambda: {node: rig.ids(node) for node in ids} == ids)
            rig.never("they go", lambda: {node: rig.ids(node) for node in ids} != ids, seconds=3)
        unchanged(rig, on_a(), ids[rig.a])
        unchanged(rig, on_b(), ids[rig.b])
    finally:
        surge(rig, by=0, ready_seconds=10)
    assert not before & {rig.agent(node)["metadata"]["uid"] for node in ids}
    for node in ids:
        rig.until("NodeDevices is the new one's", lambda n=node: ready(rig, n) == "AgentRunning")  # type: ignore[misc]
    rig.alive(pod)
    rig.pod("after", rig.a, {GPU: 7})


def test_m02_a_plugin_whose_registration_fails_takes_nothing_from_ours(rig: RigCluster) -> None:
    ids = rig.ids(rig.b)
    plugin = vendor.pod(PLUGIN, rig.b, sorted(ids), namespace=NAMESPACE, image=rig.image, arguments=["--fails"])
    with rig.watching(rig.b) as seen:
        rig.kubectl.apply(plugin)
        rig.running(PLUGIN)
        rig.until("it was refused", lambda: '"failed"' in rig.kubectl.logs(PLUGIN, namespace=NAMESPACE))
        rig.pod("beside", rig.b, {GPU: 1})
        rig.kubectl.delete("pod", PLUGIN, namespace=NAMESPACE)
        rig.pod("after", rig.b, {GPU: 3})
    assert all(each == ids for each in seen())


def ready(rig: RigCluster, node: str) -> str:
    return str(rig.condition("nodedevices", node, "Ready").get("reason", ""))
