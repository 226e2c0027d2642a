"""The real operator and the real kube-apiserver: taints and evictions, and what holds them back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from nodedevices_common.confirming import CONFIRM
from nodedevices_operator.concerns.fleet_gate import NAME as RECORD
from support import fleet
from support.fleet import NAMESPACE, FleetNode, events, get_pod, pod, policy
from support.kubectl import Kubectl, action, condition, wait_until
from support.operatorprocess import NAMESPACE as SYSTEM, OperatorProcess

KEY = "nodedevices.io/device-fault"
OTHER = {"key": "example.com/other", "effect": "NoSchedule"}
EVICT = {"evictMode": "Immediate", "budget": {"perHour": 100}}


@pytest.fixture(autouse=True)
def _record(kubectl: Kubectl, operator: OperatorProcess) -> Iterator[None]:
    """The operator's memory of its record goes with its process; a mass fault that is still there makes another one."""
    fleet.namespace(kubectl)
    yield
    operator.kill()
    kubectl.run("delete", "devicepolicies,nodedevices", "--all")
    kubectl.delete("configmap", RECORD, namespace=SYSTEM)
    operator.start()


def taints(node: FleetNode) -> list[tuple[str, str, str]]:
    listed = node.node["spec"].get("taints", [])
    ours = [it for it in listed if it["key"] in {KEY, OTHER["key"]}]  # the API server adds node.kubernetes.io/not-ready
    return [(it["key"], it["effect"], it.get("value", "")) for it in ours]


def shown(node: FleetNode, name: str = "evictions") -> dict[str, Any]:
    return action(node.object, name)


def leaving(kubectl: Kubectl, name: str) -> bool:
    return "deletionTimestamp" in get_pod(kubectl, name).get("metadata", {})


def held(node: FleetNode, *names: str) -> None:
    for index, name in enumerate(names):
        pod(node.kubectl, name, node.name)
        node.hold(index, name)
    node.report()


def record(kubectl: Kubectl) -> dict[str, Any]:
    found = kubectl.get("configmap", RECORD, SYSTEM) or {}
    data: dict[str, Any] = found.get("data", {})
    return data | {"actions": json.loads(data.get("actions", "[]"))}


def test_a_fault_taints_its_node_beside_other_taints_and_the_recovery_takes_it_back(
    operator: OperatorProcess, kubectl: Kubectl
) -> None:
    node = FleetNode(kubectl, "n1").create()
    kubectl.patch("node", "n1", {"spec": {"taints": [OTHER]}})
    kubectl.apply(policy("taint", faults={"taintEffect": "NoSchedule"}))
    wait_until("tainted", lambda: shown(node, "taint").get("reason") == "InSync")
    node.fail(0)
    other = ("example.com/other", "NoSchedule", "")
    wait_until("tainted", lambda: taints(node) == [other, (KEY, "NoSchedule", "Xid79")])
    assert [(it["kind"], it["node"], it["reason"]) for it in record(kubectl)["actions"]] == [("Taint", "n1", "Xid79")]
    kubectl.run("taint", "node", "n1", f"{KEY}-")
    wait_until("tainted again", lambda: taints(node) == [other, (KEY, "NoSchedule", "Xid79")])
    assert len(record(kubectl)["actions"]) == 1, "what was granted is counted once"
    node.recover(0)
    wait_until("well", lambda: taints(node) == [other])
    node.fail(1)
    wait_until("tainted", lambda: len(taints(node)) == 2)
    kubectl.delete("dp", "taint")
    wait_until("the policy is gone", lambda: taints(node) == [other] and shown(node, "taint") == {})


def test_the_pod_that_holds_the_device_is_marked_and_then_evicted_and_no_other(
    operator: OperatorProcess, kubectl: Kubectl
) -> None:
    node = FleetNode(kubectl, "n1").create()
    kubectl.apply(policy("evict", faults=EVICT))
    held(node, "trainer", "neighbour")
    uid = get_pod(kubectl, "trainer")["metadata"]["uid"]
    node.fail(0)
    wait_until("evicted", lambda: leaving(kubectl, "trainer"))
    mark = condition(get_pod(kubectl, "trainer"), "nodedevices.io/DeviceHealthy")
    assert (mark["status"], mark["reason"]) == ("False", "Xid79")
    assert condition(get_pod(kubectl, "trainer"), "DisruptionTarget")["reason"] == "EvictionByEvictionAPI"
    assert {it["reason"] for it in events(kubectl, uid)} == {"DeviceFault", "DeviceFaultEviction"}
    wait_until("shown", lambda: "trainer is ending" in shown(node).get("message", ""))
    assert not leaving(kubectl, "neighbour")
    assert [it["target"] for it in record(kubectl)["actions"]] == [f"{NAMESPACE}/trainer/{uid}"]


def test_a_disruption_budget_blocks_an_eviction_which_is_shown_and_tried_again(
    operator: OperatorProcess, kubectl: Kubectl
) -> None:
    node = FleetNode(kubectl, "n1").create()
    kubectl.apply(policy("evict", faults=EVICT))
    held(node, "trainer")
    uid = get_pod(kubectl, "trainer")["metadata"]["uid"]
    spec = {"minAvailable": 1, "selector": {}}
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "keep", "namespace": NAMESPACE},
    }
    kubectl.apply(budget | {"spec": spec})
    counted = {
        "observedGeneration": 1,
        "currentHealthy": 0,  # the pod is not Ready, and the policy is IfHealthyBudget
        "desiredHealthy": 1,
        "disruptionsAllowed": 0,
        "expectedPods": 1,
    }
    kubectl.run(
        *("patch", "pdb", "keep", "-n", NAMESPACE, "--subresource=status", "--type=merge"),
        *("-p", json.dumps({"status": counted})),
    )
    node.fail(0)
    blocked = wait_until("shown", lambda: (it := shown(node)).get("reason") == "Blocked" and it)
    assert "The disruption budget keep needs 1 healthy pods and has 0 currently" in blocked["message"]
    assert not leaving(kubectl, "trainer")
    wait_until("an Event", lambda: "EvictionBlocked" in {it["reason"] for it in events(kubectl, uid)})
    wait_until(
        "counted",
        lambda: 'nodedevices_operator_actions_total{kind="Evict",result="blocked"}' in operator.get("/metrics")[1],
    )
    kubectl.delete("pdb", "keep", namespace=NAMESPACE)
    wait_until("evicted", lambda: leaving(kubectl, "trainer"))
    assert condition(kubectl.get("dp", "evict"), "Applied").get("reason") != "Failed"


def test_a_mass_fault_stops_actions_and_no_report_until_a_person_resumes(
    operator: OperatorProcess, kubectl: Kubectl
) -> None:
    nodes = [FleetNode(kubectl, f"n{number}").create() for number in (1, 2)]
    for node in nodes:
        held(node, f"pod-{node.name}")
        node.health[0] = fleet.XID79 | {"since": fleet.stamp()}
    for node in nodes:
        node.report()
    wait_until(
        "marked",
        lambda: all(condition(node.node, "nodedevices.io/DevicesHealthy").get("status") == "False" for node in nodes),
    )
    kubectl.apply(policy("evict", faults=EVICT))
    for node in nodes:
        stopped = wait_until("shown", lambda node=node: (it := shown(node)).get("reason") == "Stopped" and it)  # type: ignore[misc]
        assert "2 of the 2 nodes of policy evict failed within 300 s" in stopped["message"]
        assert not leaving(kubectl, f"pod-{node.name}")
        assert condition(get_pod(kubectl, f"pod-{node.name}"), "nodedevices.io/DeviceHealthy")["status"] == "False"
    assert record(kubectl)["breaker"] == "Open"
    wait_until("metric", lambda: "nodedevices_operator_breaker_open 1.0" in operator.get("/metrics")[1])
    operator.kill()
    operator.start()
    wait_until("it remembers", lambda: "nodedevices_operator_breaker_open 1.0" in operator.get("/metrics")[1])
    now = datetime.now(UTC).isoformat()
    kubectl.run("annotate", "configmap", RECORD, "-n", SYSTEM, "--overwrite", f"{CONFIRM}=actions=resumed@{now}")
    for node in nodes:
        wait_until("evicted", lambda node=node: leaving(kubectl, f"pod-{node.name}"))  # type: ignore[misc]
