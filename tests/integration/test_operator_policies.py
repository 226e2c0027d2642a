"""The real operator and the real kube-apiserver: DevicePolicies become the nodes' configuration."""

from __future__ import annotations

from typing import Any

from support.fleet import FleetNode, policy
from support.kubectl import Kubectl, condition, wait_until
from support.operatorprocess import OperatorProcess

FOUR = {"strategy": "timeSlicing", "resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}
TWO = {"strategy": "timeSlicing", "resources": [{"name": "nvidia.com/gpu", "replicas": 2}]}


def resolved(node: FleetNode) -> dict[str, Any]:
    return condition(node.object, "PolicyResolved")


def config(node: FleetNode) -> dict[str, Any] | None:
    found: dict[str, Any] | None = node.object.get("spec", {}).get("config")
    return found


def test_a_policy_reaches_the_nodes_that_it_selects_and_says_so(operator: OperatorProcess, kubectl: Kubectl) -> None:
    chosen = FleetNode(kubectl, "n1").create({"pool": "a"})
    other = FleetNode(kubectl, "n2").create({"pool": "b"})
    kubectl.apply(policy("shared", {"pool": "a"}, sharing=FOUR))
    wait_until("configuration", lambda: config(chosen) == {"sharing": FOUR})
    entry = chosen.object["spec"]["policies"][0]
    assert (entry["name"], entry["priority"], entry["sections"]) == ("shared", 0, ["sharing"])
    wait_until("other node", lambda: config(other) == {})
    wait_until("progress", lambda: condition(kubectl.get("dp", "shared"), "Applied").get("reason") == "Progressing")
    chosen.report(applied_hash=chosen.object["spec"]["configHash"])
    wait_until("applied", lambda: condition(kubectl.get("dp", "shared"), "Applied").get("status") == "True")
    status = (kubectl.get("dp", "shared") or {})["status"]
    assert status["nodes"] == {"selected": 1, "applied": 1, "overridden": 0, "failed": 0}
    kubectl.delete("dp", "shared")
    wait_until("taken back", lambda: config(chosen) == {})


def test_a_dry_run_says_what_it_would_change_and_changes_nothing(operator: OperatorProcess, kubectl: Kubectl) -> None:
    node = FleetNode(kubectl, "n1").create()
    node.hold(0, "trainer")
    node.fail(0)
    wait_until("resolved", lambda: config(node) == {})
    node.report(applied_hash=node.object["spec"]["configHash"])
    faults = {"taintEffect": "NoSchedule", "evictMode": "Immediate", "budget": {"perHour": 1}}
    kubectl.apply(policy("trial", mode="DryRun", sharing=TWO, faults=faults))
    wait_until("named", lambda: "ids of" in condition(kubectl.get("dp", "trial"), "Applied").get("message", ""))
    reported = condition(kubectl.get("dp", "trial"), "Applied")
    assert condition(kubectl.get("dp", "trial"), "Accepted")["status"] == "True"
    assert (reported["status"], reported["reason"]) == ("False", "DryRun")
    assert reported["message"] == (
        "it would be active on 1 of 1 nodes (kubectl nodedevices policy dry-run counts ids); n1: would change sharing, "
        "faults (ids of nvidia.com/gpu; held by fleet/trainer: these keep what they hold until they end), would evict "
        "fleet/trainer, would not taint the Node NoSchedule for Xid79: the budget of policy trial allows 1 actions an "
        "hour (perHour), and as many were granted within the last hour"
    )
    assert config(node) == {}
    assert not [it for it in node.node["spec"].get("taints", []) if it["key"].startswith("nodedevices.io")]


def test_what_somebody_else_writes_into_our_part_of_the_spec_is_put_right(
    operator: OperatorProcess, kubectl: Kubectl
) -> None:
    node = FleetNode(kubectl, "n1").create()
    kubectl.apply(policy("shared", sharing=FOUR))
    wait_until("in effect", lambda: config(node) == {"sharing": FOUR})
    patch = {"spec": {"config": {"sharing": {"strategy": "none", "resources": None}}}}
    kubectl.patch("nd", "n1", patch)
    wait_until("put right", lambda: config(node) == {"sharing": FOUR})
