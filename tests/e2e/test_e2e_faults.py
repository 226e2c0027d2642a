"""A device fails: the kubelet, NodeDevices, the pod and the Node all hear of it, and of its recovery."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from nodedevices_common.confirming import CONFIRM
from support import simulated
from support.cluster import GPU, HEALTHY, MEMORY, NAMESPACE, Cluster
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


@pytest.mark.long
def test_an_agent_that_sees_none_of_the_devices_has_nobody_marked_tainted_for_or_evicted(cluster: Cluster) -> None:
    cluster.policy(
        "strict",
        {"faults": {"taintEffect": "NoSchedule", "evict": {"mode": "Immediate"}, "budget": {"perHour": 10}}},
    )
    pod = cluster.pod("stays", cluster.a, {GPU: 1})
    cluster.hardware(cluster.a, "driver: {state: Loaded}\n")
    for kind in ("Ready", "DevicesHealthy"):
        cluster.until(
            f"NodeDevices says so: {kind}",
            lambda kind=kind: cluster.condition("nodedevices", cluster.a, kind)["reason"] == "DevicesLost",  # type: ignore[misc]
        )

    def done() -> object:
        node = cluster.kubectl.get("node", cluster.a) or {}
        taints = [one for one in node["spec"].get("taints", ()) if one["key"] == "nodedevices.io/device-fault"]
        return taints or cluster.condition("pod", "stays", HEALTHY, NAMESPACE) or cluster.events("stays", "DeviceFault")

    cluster.never("anything is done about it", done, seconds=8)
    cluster.hardware(cluster.a, simulated.h100s())
    cluster.until("all are offered again", lambda: cluster.node_count(cluster.a, GPU) == 8)
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


@pytest.mark.long
def test_what_a_program_did_is_an_event_on_its_pod_and_a_notice_on_its_device_and_nothing_else(
    cluster: Cluster,
) -> None:
    pods = {name: cluster.pod(name, cluster.a, {GPU: 1}) for name in ("crashes", "bystander")}
    [own], before = cluster.held(cluster.a, "crashes"), cluster.ids(cluster.a)
    index = cluster.devices(cluster.a)[own]["index"]
    cluster.until("NodeDevices names the holder", lambda: cluster.devices(cluster.a)[own].get("holders"))
    had = {one["code"]: one["count"] for one in cluster.devices(cluster.a)[own].get("notices", ())}
    expected = {"Xid31": had.get("Xid31", 0) + 2, "Xid94": had.get("Xid94", 0) + 1}
    counted = {xid: cluster.metric(cluster.a, "nodedevices_xids_total", uuid=own, xid=xid) for xid in ("31", "94")}
    text = yaml.safe_load(simulated.h100s())
    text["events"] = [simulated.strike(index, 31), simulated.strike(index, 31), simulated.strike(index, 94)]
    cluster.hardware(cluster.a, yaml.safe_dump(text))

    def messages(pod: str) -> list[str]:
        return sorted(one["message"] for one in cluster.events(pod, "DeviceNotice"))

    memory, contained = cluster.until(
        "the pod has its Events", lambda: len(found := messages("crashes")) == 2 and found
    )
    name = cluster.devices(cluster.a)[own]["name"]
    assert memory.startswith(f"{name} {own}: Xid31, {expected['Xid31']} times since ")
    assert contained.startswith(f"{name} {own}: Xid94")
    notices = {one["code"]: one["count"] for one in cluster.devices(cluster.a)[own]["notices"]}
    assert notices == had | expected
    for xid, count in (("31", 2), ("94", 1)):
        now = cluster.metric(cluster.a, "nodedevices_xids_total", uuid=own, xid=xid)
        assert now - counted[xid] == count
    assert messages("bystander") == []
    assert cluster.devices(cluster.a)[own]["health"]["state"] == "Healthy"
    assert cluster.ids(cluster.a) == before
    for name, pod in pods.items():
        cluster.alive(pod)
        assert cluster.condition("pod", name, HEALTHY, NAMESPACE) == {}
        assert cluster.kubelet_says(name, dict.fromkeys(cluster.held(cluster.a, name), "Healthy"))


@pytest.mark.long
def test_an_error_that_repeats_on_one_device_is_a_fault_of_it_and_stays_visible_after_the_repair(
    cluster: Cluster,
) -> None:
    again = {"reasons": ["Xid43"], "state": "Unhealthy", "after": {"count": 3, "windowSeconds": 3600}}
    cluster.policy("repetition", {"health": {"rules": [again]}})
    cluster.pod("restarts", cluster.b, {GPU: 1})
    [bad], before = cluster.held(cluster.b, "restarts"), cluster.ids(cluster.b)
    index = cluster.devices(cluster.b)[bad]["index"]

    def strike(*devices: int) -> None:
        text = yaml.safe_load(simulated.l4s()) | {"events": [simulated.strike(each, 43) for each in devices]}
        cluster.hardware(cluster.b, yaml.safe_dump(text))

    def came() -> int:
        counts = {each["reason"]: each["count"] for each in cluster.devices(cluster.b)[bad].get("history", ())}
        return int(counts.get("Xid43", 0))

    def applies() -> bool:
        item = cluster.kubectl.get("nodedevices", cluster.b) or {}
        rules = item["spec"]["config"].get("health", {}).get("rules")
        return bool(rules == [again] and item["status"].get("appliedConfigHash") == item["spec"]["configHash"])

    cluster.until("the policy applies", applies)
    had = came()
    strike(index, (index + 1) % 4)
    cluster.until("it is history", lambda: came() > had)
    assert cluster.ids(cluster.b) == before, "once on two devices: the program's"
    strike(index, index)
    cluster.until("the kubelet withdraws it", lambda: cluster.ids(cluster.b) == before - {bad})
    assert cluster.marked("restarts", "False")["reason"] == "Xid43"
    cluster.kubectl.patch(
        "nodedevices", cluster.b, {"metadata": {"annotations": {CONFIRM: f"{bad}=recovered@{stamp()}"}}}
    )
    cluster.until("a person's word brings it back", lambda: cluster.ids(cluster.b) == before)
    assert cluster.metric(cluster.b, "nodedevices_device_faults", uuid=bad, reason="Xid43") >= 1


def test_a_broken_devices_file_changes_nothing_at_the_kubelet(cluster: Cluster) -> None:
    before = cluster.ids(cluster.b)
    cluster.hardware(cluster.b, "devices: [{index: many}]\n")
    cluster.never("an id is withdrawn", lambda: cluster.ids(cluster.b) != before, seconds=4)
    assert cluster.summary(cluster.b)["healthy"] == 4


def test_the_owned_capacity_follows_the_healthy_devices_and_is_repaired_when_somebody_edits_it(
    cluster: Cluster,
) -> None:
    cluster.policy("memory", {"capacity": [{"name": MEMORY, "sumOf": "memoryMiB", "scope": "healthy"}]})

    def capacity() -> int | None:
        return cluster.node_count(cluster.b, MEMORY, "capacity")

    cluster.until("the capacity is there", lambda: capacity() == 4 * simulated.L4_MIB)
    cluster.hardware(cluster.b, simulated.l4s(lost=1))
    cluster.until("it shrinks with the devices", lambda: capacity() == 3 * simulated.L4_MIB)
    cluster.hardware(cluster.b, simulated.l4s())
    cluster.until("it grows with the devices", lambda: capacity() == 4 * simulated.L4_MIB)
    cluster.kubectl.patch("node", cluster.b, {"status": {"capacity": {MEMORY: "1"}}}, subresource="status")
    cluster.until("the edit is repaired", lambda: capacity() == 4 * simulated.L4_MIB)
    cluster.drop_policy("memory")
    cluster.until("it is gone with its policy", lambda: capacity() is None)


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
