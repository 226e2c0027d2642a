"""The real operator and the real kube-apiserver: a device's fault on the pods that hold it, and on the Node."""

from __future__ import annotations

from typing import Any

import pytest
from support import fleet
from support.fleet import FleetNode, device_id, events, get_pod, pod, policy
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


def test_never_takes_the_conditions_of_pods_away_and_events_go_on(operator: OperatorProcess, kubectl: Kubectl) -> None:
    node = FleetNode(kubectl, "n1").create()
    uid = pod(kubectl, "trainer", "n1")
    node.hold(0, "trainer")
    node.fail(0)
    wait_until("marked", lambda: pod_mark(kubectl, "trainer").get("status") == "False")
    kubectl.apply(policy("quiet", faults={"podCondition": "Never"}))
    wait_until("condition gone", lambda: pod_mark(kubectl, "trainer") == {})
    wait_until("entry gone", lambda: affected(node) == [])
    assert node_told(node).get("status") == "False"
    kubectl.delete("dp", "quiet")
    wait_until("marked again", lambda: pod_mark(kubectl, "trainer").get("status") == "False")
    wait_until("event", lambda: [it["reason"] for it in events(kubectl, uid)] == ["DeviceFault"])


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
