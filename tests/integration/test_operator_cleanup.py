"""`nodedevices-operator cleanup`: afterwards no key of ours is left anywhere, and nothing of anybody else's is gone."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from support import fleet
from support.apiserver import ApiServer
from support.fleet import GPU, MEMORY, FleetNode, get_pod, memory_capacity, owners, pod, policy
from support.kubectl import Kubectl, condition, wait_until
from support.operatorprocess import OperatorProcess
from support.patience import CLUSTER_PATIENCE_SECONDS


def clean_up(apiserver: ApiServer, *arguments: str) -> str:
    """What it said; it must end with 0."""
    argv = [sys.executable, "-m", "nodedevices_operator", "cleanup", f"--kubeconfig={apiserver.kubeconfig}", *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=CLUSTER_PATIENCE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.fixture
def touched(operator: OperatorProcess, kubectl: Kubectl) -> FleetNode:
    """A node on which the operator has written everything that it can; then it is gone."""
    fleet.namespace(kubectl)
    node = FleetNode(kubectl, "n1").create({"nvidia.com/device-plugin.config": "shared"})
    kubectl.apply(policy("memory", capacity=memory_capacity()))
    pod(kubectl, "trainer", "n1")
    node.hold(0, "trainer")
    node.fail(0)
    wait_until("pod", lambda: condition(get_pod(kubectl, "trainer"), "nodedevices.io/DeviceHealthy"))
    wait_until("node", lambda: condition(node.node, "nodedevices.io/DevicesHealthy"))
    wait_until("capacity", lambda: MEMORY in node.capacity)
    wait_until("policy", lambda: condition(kubectl.get("dp", "memory"), "Accepted"))
    operator.kill()
    return node


def everything(kubectl: Kubectl) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = kubectl.json("get", "nd,dp,nodes,pods", "-A", "--show-managed-fields")["items"]
    return found


def test_cleanup_leaves_no_key_of_ours_and_everything_else(
    touched: FleetNode, kubectl: Kubectl, apiserver: ApiServer
) -> None:
    assert any(owners(item) for item in everything(kubectl))
    clean_up(apiserver)
    assert [owners(item) for item in everything(kubectl) if owners(item)] == []
    assert (MEMORY in touched.capacity, touched.capacity[GPU]) == (False, "2")
    assert condition(touched.node, "nodedevices.io/DevicesHealthy") == {}
    assert condition(touched.node, "Ready")["status"] == "True"
    assert condition(get_pod(kubectl, "trainer"), "nodedevices.io/DeviceHealthy") == {}
    item = touched.object
    assert "config" not in item.get("spec", {})
    assert "affectedPods" not in item["status"]
    assert condition(item, "Ready")["status"] == "True"
    assert [device["health"]["state"] for device in item["status"]["devices"]] == ["Unhealthy", "Healthy"]
    assert "status" not in (kubectl.get("dp", "memory") or {}) or not (kubectl.get("dp", "memory") or {})["status"]


def test_where_the_agents_are_gone_nothing_says_ready_and_one_that_comes_back_does(
    touched: FleetNode, kubectl: Kubectl, apiserver: ApiServer
) -> None:
    said = clean_up(apiserver, "--agents-gone", "--dry-run")
    assert "would say that the agent is gone" in said
    assert condition(touched.object, "Ready")["status"] == "True"
    clean_up(apiserver, "--agents-gone")
    item = touched.object
    assert (condition(item, "Ready")["status"], condition(item, "Ready")["reason"]) == ("False", "AgentStopped")
    assert item["status"]["summary"]["reason"] == "AgentStopped"
    assert [device["health"]["state"] for device in item["status"]["devices"]] == ["Unhealthy", "Healthy"]
    after = everything(kubectl)
    clean_up(apiserver, "--agents-gone")
    assert everything(kubectl) == after
    touched.recover(0)
    item = touched.object
    assert (condition(item, "Ready")["status"], item["status"]["summary"]["reason"]) == ("True", "")
    statuses = [each for each in item["metadata"]["managedFields"] if each.get("subresource") == "status"]
    assert [each["manager"] for each in statuses] == ["nodedevices-agent"]


def test_a_condition_of_ours_that_somebody_else_wrote_last_goes_too(
    touched: FleetNode, kubectl: Kubectl, apiserver: ApiServer
) -> None:
    ours = {"type": "nodedevices.io/DeviceHealthy", "status": "Unknown", "reason": "Edited", "message": "by hand"}
    fleet.patch_pod(kubectl, "trainer", {"conditions": [ours]})
    clean_up(apiserver)
    assert condition(get_pod(kubectl, "trainer"), "nodedevices.io/DeviceHealthy") == {}


def test_a_dry_run_says_what_would_go_and_changes_nothing_and_a_second_run_finds_nothing(
    touched: FleetNode, kubectl: Kubectl, apiserver: ApiServer
) -> None:
    before = everything(kubectl)
    said = clean_up(apiserver, "--dry-run")
    assert "would remove" in said
    assert MEMORY in said
    assert everything(kubectl) == before
    clean_up(apiserver)
    after = everything(kubectl)
    assert '"removed": 0' in clean_up(apiserver)
    assert everything(kubectl) == after
