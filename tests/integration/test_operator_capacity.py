"""The real operator and the real kube-apiserver: extended resources on the Node that the operator owns."""

from __future__ import annotations

from typing import Any

import pytest
from support import fleet
from support.fleet import GPU, MEMORY, NAMESPACE, FleetNode, memory_capacity, pod, policy
from support.kubectl import Kubectl, action, condition, wait_until
from support.operatorprocess import OperatorProcess

ONE = 80 * 1024  # MiB of one GPU


@pytest.fixture
def node(operator: OperatorProcess, kubectl: Kubectl) -> FleetNode:
    """Two GPUs, and the policy that makes their memory a resource."""
    fleet.namespace(kubectl)
    made = FleetNode(kubectl, "n1").create()
    kubectl.apply(policy("memory", capacity=memory_capacity()))
    shows(made, 2 * ONE)
    return made


def shows(node: FleetNode, value: int | None) -> None:
    wanted = None if value is None else str(value)
    wait_until(f"{MEMORY} is {wanted}", lambda: node.capacity.get(MEMORY, "absent") == (wanted or "absent"))


def synced(node: FleetNode) -> dict[str, Any]:
    return action(node.object, "capacity")


def test_memory_of_healthy_devices_is_a_resource_that_follows_their_health(node: FleetNode) -> None:
    wait_until("in sync", lambda: synced(node).get("reason") == "InSync")
    assert GPU in node.capacity
    node.fail(0)
    shows(node, ONE)
    node.recover(0)
    shows(node, 2 * ONE)


@pytest.mark.parametrize("drift", ["7", None])
def test_drift_is_repaired(node: FleetNode, drift: str | None) -> None:
    node.patch_node({"status": {"capacity": {MEMORY: drift}}}, manager="somebody")
    shows(node, 2 * ONE)


def test_drift_while_the_operator_is_away_is_repaired_when_it_is_back(
    node: FleetNode, operator: OperatorProcess
) -> None:
    wait_until("in sync", lambda: synced(node).get("reason") == "InSync")
    operator.kill()
    node.patch_node({"status": {"capacity": {MEMORY: "7"}}}, manager="somebody")
    operator.start()
    shows(node, 2 * ONE)


def test_it_is_never_lower_than_what_pods_on_the_node_request(node: FleetNode, kubectl: Kubectl) -> None:
    pod(kubectl, "user", "n1", requests={MEMORY: ONE + 1})
    pod(kubectl, "over", "n1", requests={MEMORY: ONE}, phase="Succeeded")
    node.fail(0, 1)
    shows(node, ONE + 1)
    wait_until("said", lambda: synced(node).get("reason") == "Pending")
    assert str(ONE + 1) in synced(node)["message"]
    kubectl.run("delete", "pod", "user", "-n", NAMESPACE, "--force", "--grace-period=0")
    node.fail(0, 1, reason="Xid94")  # any news of the node makes the operator look again
    shows(node, 0)


def test_a_node_devices_deleted_by_hand_costs_the_node_nothing(node: FleetNode, kubectl: Kubectl) -> None:
    kubectl.delete("nd", "n1")
    node.create_object()
    wait_until("resolved anew", lambda: "config" in node.object.get("spec", {}))
    assert node.capacity[MEMORY] == str(2 * ONE)
    node.health = {0: {**fleet.XID79, "since": fleet.stamp()}}
    node.report()
    shows(node, ONE)


def test_an_object_of_an_earlier_node_of_that_name_does_not_touch_the_new_one(
    node: FleetNode, kubectl: Kubectl
) -> None:
    kubectl.delete("node", "n1")
    kubectl.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    node.kubelet({GPU: 2})
    wait_until("stale", lambda: condition(node.object, "Stale").get("status") == "True")
    node.fail(0)
    wait_until("still stale", lambda: condition(node.object, "Stale").get("reason") == "NodeNotReady")
    assert MEMORY not in node.capacity
    assert condition(node.node, "nodedevices.io/DevicesHealthy") == {}
