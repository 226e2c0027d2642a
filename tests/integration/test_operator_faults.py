"""The real operator and the real kube-apiserver: a device's fault on the pods that hold it, and on the Node."""

from __future__ import annotations

from typing import Any

import pytest
from support import fleet
from support.fleet import NAMESPACE, FleetNode, device_id, events, get_pod, pod, policy, stamp
from support.kubectl import Kubectl, condition, wait_until
from support.operatorprocess import OperatorProcess

DEVICE_HEALTHY = "nodedevices.io/DeviceHealthy"
DEVICES_HEALTHY = "nodedevices.io/DevicesHealthy"


@pytest.fixture(autouse=True)
def _namespace(kubectl: Kubectl) -> None:
    fleet.namespace(kubectl)


def pod_mark(kubectl: Kubectl, name: str) -> dict[str, Any]:
    return condition(get_pod(kubectl, name), DEVICE_HEALTHY)


def affected(node: FleetNode) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = node.object.get("status", {}).get("affectedPods", [])
    return found


def node_told(node: FleetNode) -> dict[str, Any]:
    return condition(node.node, DEVICES_HEALTHY)


def test_a_fault_reaches_pod_and_node_and_recovery_takes_everything_back(
    operator: OperatorProcess, kubectl: Kubectl
) -> None:
    node = FleetNode(kubectl, "n1").create()
    uid = pod(kubectl, "trainer", "n1")
    other = pod(kubectl, "neighbour", "n1")
    node.hold(0, "trainer")
    node.hold(1, "neighbour")
    node.report()
    wait_until("node condition", lambda: node_told(node).get("status") == "True")
    node.fail(0)
    said = wait_until("marked", lambda: pod_mark(kubectl, "trainer"))
    assert (said["status"], said["reason"]) == ("False", "Xid79")
    assert "gpu-0" in said["message"]
    assert "RebootNode" in said["message"]
    assert [(it["uid"], it["device"], it["reason"]) for it in affected(node)] == [(uid, device_id(0), "Xid79")]
    wait_until("event", lambda: [it["reason"] for it in events(kubectl, uid)] == ["DeviceFault"])
    wait_until("node", lambda: node_told(node).get("status") == "False")
    assert pod_mark(kubectl, "neighbour") == {}
    node_uid = node.object["metadata"]["uid"]
    wait_until("event on the object", lambda: [it["reason"] for it in events(kubectl, node_uid)] == ["DeviceFault"])
    assert events(kubectl, node_uid)[0]["metadata"]["namespace"] == "default"

    node.recover(0)
    wait_until("well", lambda: pod_mark(kubectl, "trainer").get("status") == "True")
    wait_until("entry gone", lambda: affected(node) == [])
    wait_until("node", lambda: node_told(node).get("status") == "True")
    assert sorted(it["reason"] for it in events(kubectl, uid)) == ["DeviceFault", "DeviceRecovered"]
    wait_until("both on the object", lambda: len(events(kubectl, node_uid)) == 2)
    assert events(kubectl, other) == []


def test_unknown_keeps_the_status_and_degraded_is_true_and_neither_makes_an_event(
    operator: OperatorProcess, kubectl: Kubectl
) -> None:
    node = FleetNode(kubectl, "n1").create()
    uid = pod(kubectl, "trainer", "n1")
    silent = {"state": "Unknown", "reason": "ProbeSilent", "message": "no line for 15 s", "recoveryAction": "None"}
    node.hold(0, "trainer")
    beside = pod(kubectl, "beside", "n1")
    node.hold(1, "beside")
    node.fail(0, state="Degraded", reason="Correlating", message="double bit ECC error", recoveryAction="None")
    node.fail(1, state="Degraded", reason="NvlinkDown", message="2 of 18 links down", recoveryAction="None")
    wait_until("the other is marked", lambda: pod_mark(kubectl, "beside").get("reason") == "Degraded")
    assert pod_mark(kubectl, "trainer") == {}, "no pod is marked while an XID is undecided"
    node.fail(1, state="Degraded", reason="Correlating", message="double bit ECC error", recoveryAction="None")
    node.fail(0, state="Degraded", reason="NvlinkDown", message="2 of 18 links down", recoveryAction="None")
    wait_until("degraded", lambda: pod_mark(kubectl, "trainer").get("reason") == "Degraded")
    assert pod_mark(kubectl, "beside")["reason"] == "Degraded", "a pod's mark stays until it is decided"
    assert [it["uid"] for it in affected(node) if it["name"] == "beside"] == [beside]
    node.recover(1)
    well = pod_mark(kubectl, "trainer")
    assert well["status"] == "True"
    node.fail(0, **silent)
    wait_until("unknown", lambda: pod_mark(kubectl, "trainer").get("reason") == "ProbeSilent")
    unknown = pod_mark(kubectl, "trainer")
    assert (unknown["status"], unknown["lastTransitionTime"]) == ("True", well["lastTransitionTime"])
    assert "Health unknown since" in unknown["message"]
    node.recover(0)
    wait_until("well", lambda: pod_mark(kubectl, "trainer").get("reason") == "Healthy")
    wait_until("entry gone", lambda: affected(node) == [])
    assert events(kubectl, uid) == []


def test_a_pod_that_ended_by_a_fault_keeps_its_evidence(operator: OperatorProcess, kubectl: Kubectl) -> None:
    node = FleetNode(kubectl, "n1").create()
    pod(kubectl, "job", "n1")
    node.hold(0, "job")
    node.fail(0)
    said = wait_until("marked", lambda: pod_mark(kubectl, "job"))
    fleet.patch_pod(kubectl, "job", {"phase": "Failed"})
    node.fail(0, state="Degraded", reason="Recovering", message="", recoveryAction="None")
    wait_until("entry gone", lambda: affected(node) == [])
    node.recover(0)
    wait_until("node", lambda: node_told(node).get("status") == "True")
    assert pod_mark(kubectl, "job") == said


def test_an_entry_that_names_a_pod_of_another_node_takes_no_mark_from_it(
    operator: OperatorProcess, kubectl: Kubectl
) -> None:
    node = FleetNode(kubectl, "n1").create()
    FleetNode(kubectl, "n2").create()
    uid = pod(kubectl, "trainer", "n1")
    node.hold(0, "trainer")
    node.fail(0)
    said = wait_until("marked", lambda: pod_mark(kubectl, "trainer"))
    stolen = {"affectedPods": [affected(node)[0] | {"device": device_id(1)}]}
    kubectl.patch("nodedevices", "n2", {"status": stolen}, subresource="status")
    wait_until("noticed", lambda: "affectedPods names a pod of another node" in operator.said())
    assert pod_mark(kubectl, "trainer") == said
    assert [it["reason"] for it in events(kubectl, uid)] == ["DeviceFault"]


@pytest.mark.parametrize(
    "case", ["other node", "finished", "requests nothing", "created later", "another uid", "another device"]
)
def test_a_pod_that_is_not_the_holder_is_never_marked(operator: OperatorProcess, kubectl: Kubectl, case: str) -> None:
    node = FleetNode(kubectl, "n1").create()
    held: dict[str, Any] = {}
    match case:
        case "other node":
            FleetNode(kubectl, "n2").create()
            pod(kubectl, "namesake", "n2")
        case "finished":
            pod(kubectl, "namesake", "n1", phase="Succeeded")
        case "requests nothing":
            pod(kubectl, "namesake", "n1", requests={"cpu": 1})
        case "created later":
            pod(kubectl, "namesake", "n1", started=0)
            held["since"] = stamp(-120, micro=True)
        case "another uid":
            pod(kubectl, "namesake", "n1")
            held["podUID"] = "11111111-2222-3333-4444-555555555555"
        case _:
            pod(kubectl, "namesake", "n1")
            listed = [{"name": fleet.GPU, "resources": [{"resourceID": device_id(1), "health": "Healthy"}]}]
            fleet.patch_pod(kubectl, "namesake", {"containerStatuses": [fleet.container_status(listed)]})
    pod(kubectl, "witness", "n1")
    node.hold(0, "namesake", **held)
    node.hold(0, "witness")
    node.fail(0)
    wait_until("the witness is marked", lambda: pod_mark(kubectl, "witness"))
    assert pod_mark(kubectl, "namesake") == {}
    # A pod of the test before it stays there until the operator has seen that it is gone.
    wait_until("only the witness is affected", lambda: [it["name"] for it in affected(node)] == ["witness"])
    assert pod_mark(kubectl, "namesake") == {}


def test_a_pod_created_again_under_its_name_is_marked_for_itself(operator: OperatorProcess, kubectl: Kubectl) -> None:
    node = FleetNode(kubectl, "n1").create()
    first = pod(kubectl, "web-0", "n1")
    node.hold(0, "web-0")
    node.fail(0)
    wait_until("marked", lambda: pod_mark(kubectl, "web-0"))
    kubectl.run("delete", "pod", "web-0", "-n", NAMESPACE, "--force", "--grace-period=0")
    second = pod(kubectl, "web-0", "n1")
    node.holders = {}
    node.hold(1, "web-0")
    node.report()
    wait_until("the first is forgotten", lambda: first not in [it["uid"] for it in affected(node)])
    assert pod_mark(kubectl, "web-0") == {}
    node.fail(1)
    wait_until("the second is marked", lambda: pod_mark(kubectl, "web-0").get("status") == "False")
    assert [it["uid"] for it in affected(node)] == [second]


def test_never_takes_conditions_away_and_no_event_is_reported_when_the_policy_says_so(
    operator: OperatorProcess, kubectl: Kubectl
) -> None:
    node = FleetNode(kubectl, "n1").create()
    uid = pod(kubectl, "trainer", "n1")
    node.hold(0, "trainer")
    kubectl.apply(policy("quiet", faults={"event": False}))
    wait_until("in effect", lambda: node.object.get("spec", {}).get("config") == {"faults": {"event": False}})
    node.fail(0)
    wait_until("marked", lambda: pod_mark(kubectl, "trainer").get("status") == "False")
    kubectl.apply(policy("quiet", faults={"event": False, "podCondition": "Never", "nodeCondition": False}))
    wait_until("condition gone", lambda: pod_mark(kubectl, "trainer") == {})
    wait_until("node condition gone", lambda: node_told(node) == {})
    wait_until("entry gone", lambda: affected(node) == [])
    assert events(kubectl, uid) == []
    kubectl.delete("dp", "quiet")
    wait_until("marked again", lambda: pod_mark(kubectl, "trainer").get("status") == "False")
    wait_until("event", lambda: len(events(kubectl, uid)) == 1)


def test_with_always_every_holder_is_marked_as_well(operator: OperatorProcess, kubectl: Kubectl) -> None:
    node = FleetNode(kubectl, "n1").create()
    pod(kubectl, "trainer", "n1")
    node.hold(0, "trainer")
    node.report()
    kubectl.apply(policy("gate", faults={"podCondition": "Always"}))
    wait_until("marked", lambda: pod_mark(kubectl, "trainer").get("status") == "True")
    assert affected(node) == []
    node.fail(0)
    wait_until("fault", lambda: pod_mark(kubectl, "trainer").get("status") == "False")
    node.recover(0)
    wait_until("well", lambda: pod_mark(kubectl, "trainer").get("status") == "True")
    wait_until("entry gone", lambda: affected(node) == [])


def test_a_pod_that_says_too_little_about_itself_is_marked_as_soon_as_it_says_more(
    operator: OperatorProcess, kubectl: Kubectl
) -> None:
    node = FleetNode(kubectl, "n1").create()
    pod(kubectl, "starting", "n1", phase="Pending", started=None)
    node.hold(0, "starting")
    node.fail(0)
    wait_until("status", lambda: condition(node.object, "Stale"))
    assert pod_mark(kubectl, "starting") == {}
    fleet.patch_pod(kubectl, "starting", {"startTime": stamp()})
    wait_until("marked", lambda: pod_mark(kubectl, "starting").get("status") == "False")


def test_a_node_that_is_not_ready_is_stale_and_its_health_is_not_trusted(
    operator: OperatorProcess, kubectl: Kubectl
) -> None:
    node = FleetNode(kubectl, "n1").create()
    wait_until("fresh", lambda: condition(node.object, "Stale").get("status") == "False")
    wait_until("well", lambda: node_told(node).get("status") == "True")
    node.kubelet({fleet.GPU: 2}, ready="Unknown")
    wait_until("stale", lambda: condition(node.object, "Stale").get("reason") == "NodeNotReady")
    wait_until("not believed", lambda: node_told(node).get("status") == "Unknown")
    node.kubelet({fleet.GPU: 2})
    wait_until("fresh", lambda: condition(node.object, "Stale").get("status") == "False")
    wait_until("well", lambda: node_told(node).get("status") == "True")


def test_s21_what_was_at_fault_on_a_node_that_dies_stays_so_on_node_and_pods(
    operator: OperatorProcess, kubectl: Kubectl
) -> None:
    """Nothing is known any more that would say otherwise, and nothing more is known of the other pods."""
    node = FleetNode(kubectl, "n1").create()
    for number, name in enumerate(("bad", "good")):
        pod(kubectl, name, "n1")
        node.hold(number, name)
    node.fail(0)
    mark = wait_until("marked", lambda: pod_mark(kubectl, "bad"))
    wait_until("at fault", lambda: node_told(node).get("status") == "False")
    node.kubelet({fleet.GPU: 2}, ready="Unknown")
    wait_until("stale", lambda: condition(node.object, "Stale").get("reason") == "NodeNotReady")
    assert (pod_mark(kubectl, "bad"), pod_mark(kubectl, "good")) == (mark, {})
    assert node_told(node)["status"] == "False"
