"""A device fails: the kubelet, NodeDevices, the pod and the Node all hear of it, and of its recovery."""

from __future__ import annotations

from typing import Any

import pytest
from support import simulated
from support.cluster import GPU, HEALTHY, NAMESPACE, Cluster
from support.fleet import stamp

pytestmark = [pytest.mark.e2e, pytest.mark.any_cluster]


def test_a_fault_reaches_kubelet_nodedevices_pod_and_node_and_so_does_the_recovery(cluster: Cluster) -> None:
    pod = cluster.pod("victim", cluster.a, {GPU: 1})
    bystander = cluster.pod("bystander", cluster.a, {GPU: 1})
    [bad] = cluster.held(cluster.a, "victim")
    index = cluster.devices(cluster.a)[bad]["index"]
    before = cluster.ids(cluster.a)
    cluster.until("NodeDevices names the holder", lambda: cluster.devices(cluster.a)[bad].get("holders"))
    cluster.until("the pod's own status has it", lambda: cluster.kubelet_says("victim", {bad: "Healthy"}))

    cluster.hardware(cluster.a, simulated.h100s(xid79=index))
    cluster.until("the kubelet withdraws it", lambda: cluster.ids(cluster.a) == before - {bad})
    health = cluster.until(
        "NodeDevices says why",
        lambda: (h := cluster.devices(cluster.a)[bad]["health"])["state"] == "Unhealthy" and h,
    )
    assert (health["reason"], health["xids"]) == ("Xid79", [79])
    assert cluster.summary(cluster.a)["reason"] == "Xid79"
    mark = cluster.marked("victim", "False")
    assert mark["reason"] == "Xid79"
    assert bad in mark["message"]
    [event] = cluster.until("the pod has an Event", lambda: cluster.events("victim"))
    assert (event["reason"], event["type"]) == ("DeviceFault", "Warning")
    cluster.until(
        "the Node has the condition",
        lambda: cluster.condition("node", cluster.a, "nodedevices.io/DevicesHealthy").get("status") == "False",
    )

    def described() -> tuple[str, str]:
        status, _, events = cluster.kubectl.run("describe", "nodedevices", cluster.a).partition("\nEvents:")
        return " ".join(status.split()), " ".join(events.split())

    hit = f"Recovery: ResetBus. Held by {NAMESPACE}/victim."
    status, events = cluster.until("kubectl describe ends in it", lambda: hit in (both := described())[1] and both)
    name = cluster.devices(cluster.a)[bad]["name"]
    assert f"{name} {bad}: Xid79: GPU has fallen off the bus (XID 79)" in events
    assert f"Message: 1 of 8: {name} Xid79 (ResetBus; held by {NAMESPACE}/victim)" in status
    cluster.until("the pod's own status says so", lambda: cluster.kubelet_says("victim", {bad: "Unhealthy"}))
    assert cluster.kubelet_says("bystander", dict.fromkeys(cluster.held(cluster.a, "bystander"), "Healthy"))
    cluster.until("the Node offers one less", lambda: cluster.node_count(cluster.a, GPU) == 7)
    assert cluster.node_count(cluster.a, GPU, "capacity") == 8
    cluster.alive(pod)
    cluster.alive(bystander)
    assert cluster.condition("pod", "bystander", HEALTHY, NAMESPACE).get("status") != "False"

    cluster.hardware(cluster.a, simulated.h100s(lost=index))  # its bus is reset: it leaves and comes back
    cluster.until("it left", lambda: "also FallenOffBus" in cluster.devices(cluster.a)[bad]["health"]["message"])
    cluster.hardware(cluster.a, simulated.h100s())
    cluster.until("the kubelet has it again", lambda: cluster.ids(cluster.a) == before)
    cluster.until("the pod's own status, too", lambda: cluster.kubelet_says("victim", {bad: "Healthy"}))
    cluster.lost_it("victim")
    cluster.until(
        "the Node's condition is back",
        lambda: cluster.condition("node", cluster.a, "nodedevices.io/DevicesHealthy").get("status") == "True",
    )
    assert {one["reason"] for one in cluster.events("victim")} == {"DeviceFault"}
    cluster.alive(pod)


def test_a_silent_probe_takes_no_pod_out_of_its_service_and_a_fault_does_until_nobody_watches(cluster: Cluster) -> None:
    cluster.policy("gate", {"faults": {"podCondition": "Always"}})
    spec = cluster.pod_spec(cluster.a, {GPU: 1}) | {"readinessGates": [{"conditionType": HEALTHY}]}
    metadata = {"name": "web", "namespace": NAMESPACE}
    cluster.kubectl.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def shown(kind: str) -> dict[str, Any]:
        return cluster.condition("pod", "web", kind, NAMESPACE)

    cluster.running("web")
    ready, well = shown("Ready"), shown(HEALTHY)
    cluster.hardware(cluster.a, simulated.h100s(silent=True))
    cluster.until("the pod says that its device's health is unknown", lambda: shown(HEALTHY)["reason"] == "ProbeSilent")
    assert (shown(HEALTHY)["status"], shown(HEALTHY)["lastTransitionTime"]) == ("True", well["lastTransitionTime"])
    assert shown("Ready") == ready

    [bad] = cluster.held(cluster.a, "web")
    cluster.hardware(cluster.a, simulated.h100s(xid79=cluster.devices(cluster.a)[bad]["index"]))
    cluster.marked("web", "False")
    cluster.until("it is not ready", lambda: shown("Ready")["status"] == "False")
    cluster.policy("gate", {"faults": {"podCondition": "Never"}})
    cluster.until("nobody watches", lambda: shown(HEALTHY)["reason"] == "NotMonitored")
    assert shown(HEALTHY)["status"] == "True"
    cluster.until("it is ready", lambda: shown("Ready")["status"] == "True")


def test_a_lost_device_stays_listed_and_its_neighbours_stay_allocatable(cluster: Cluster) -> None:
    gone = cluster.device(cluster.b, 2)["id"]
    before = cluster.ids(cluster.b)
    cluster.hardware(cluster.b, simulated.l4s(lost=2))
    cluster.until("the kubelet withdraws it", lambda: cluster.ids(cluster.b) == before - {gone})
    cluster.until(
        "NodeDevices says why", lambda: cluster.devices(cluster.b)[gone]["health"]["reason"] == "FallenOffBus"
    )
    pod = cluster.pod("rest", cluster.b, {GPU: 3})
    assert gone not in cluster.visible("rest")
    cluster.alive(pod)


def test_a_device_that_vanishes_is_missing_and_returns_with_its_id(cluster: Cluster) -> None:
    pod = cluster.pod("holder", cluster.b, {GPU: 1})
    [gone] = cluster.held(cluster.b, "holder")
    cluster.hardware(cluster.b, simulated.l4s(without=cluster.devices(cluster.b)[gone]["index"]))
    cluster.until("NodeDevices says why", lambda: cluster.devices(cluster.b)[gone]["health"]["reason"] == "Missing")
    cluster.until("the kubelet withdraws it", lambda: gone not in cluster.ids(cluster.b))
    cluster.until("the pod's own status says so", lambda: cluster.kubelet_says("holder", {gone: "Unhealthy"}))
    assert cluster.summary(cluster.b)["devices"] == 4
    cluster.hardware(cluster.b, simulated.l4s())
    cluster.until("the kubelet has it again", lambda: gone in cluster.ids(cluster.b))
    cluster.until("the pod's own status, too", lambda: cluster.kubelet_says("holder", {gone: "Healthy"}))
    cluster.alive(pod)


def test_a_broken_devices_file_changes_nothing_at_the_kubelet(cluster: Cluster) -> None:
    before = cluster.ids(cluster.b)
    cluster.hardware(cluster.b, "devices: [{index: many}]\n")
    cluster.never("an id is withdrawn", lambda: cluster.ids(cluster.b) != before, seconds=4)
    assert cluster.summary(cluster.b)["healthy"] == 4


def test_a_device_that_people_take_out_of_service_goes_to_no_new_pod_until_its_time_is_over(cluster: Cluster) -> None:
    pod = cluster.pod("stays", cluster.b, {GPU: 1})
    [own] = cluster.held(cluster.b, "stays")
    [other, *_] = sorted(cluster.ids(cluster.b) - {own})
    entries = [{"id": each, "reason": "RMA 4711", "by": "ops@example.com"} for each in (own, other)]

    def take_out(**more: str) -> None:
        spec = {"unschedulable": [entry | more for entry in entries]}
        cluster.kubectl.patch("nodedevices", cluster.b, {"spec": spec})

    try:
        take_out()
        cluster.until("the kubelet withdraws both", lambda: not cluster.ids(cluster.b) & {own, other})
        cluster.until("NodeDevices says so", lambda: cluster.summary(cluster.b)["unschedulable"] == 2)
        cluster.until("the kubelet has one word for it", lambda: cluster.kubelet_says("stays", {own: "Unhealthy"}))
        assert cluster.summary(cluster.b)["healthy"] == 4
        assert cluster.devices(cluster.b)[own]["unschedulable"] == "RMA 4711"
        # Two ids are free. The scheduler counts the request of a pod that holds a withdrawn one against what is left.
        cluster.pod("rest", cluster.b, {GPU: 1})
        assert not cluster.visible("rest") & {own, other}
        cluster.alive(pod)
        assert cluster.condition("pod", "stays", HEALTHY, NAMESPACE).get("status") != "False"

        take_out(until=stamp(5))
        cluster.until("both are back by themselves", lambda: cluster.ids(cluster.b) >= {own, other})
        cluster.alive(pod)
    finally:
        cluster.kubectl.patch("nodedevices", cluster.b, {"spec": {"unschedulable": []}})
