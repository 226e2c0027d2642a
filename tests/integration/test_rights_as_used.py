"""RBAC as small as what is used: the rules of the manifests beside the API server's audit log of the real agent and
operator at work. A rule that nothing uses is too much, and a request that is refused is one too few."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from nodedevices_operator.kube.client import KubeClient
from nodedevices_operator.manager import Manager
from nodedevices_operator.metrics import OperatorMetrics
from support import audit, fleet
from support.access import kubeconfig, token_of_pod
from support.agentprocess import AgentProcess
from support.apiserver import ApiServer
from support.audit import Right
from support.fleet import MEMORY, FleetNode, get_pod, memory_capacity, pod, policy, stamp
from support.kubectl import Kubectl, condition, wait_until
from support.operatorprocess import NAMESPACE, OperatorProcess
from support.patience import CLUSTER_PATIENCE_SECONDS

BASE = Path(__file__).parents[2] / "manifests" / "base"
AGENT, OPERATOR = "nodedevices-agent", "nodedevices-operator"
ADMISSION = ("own-node-only", "operator-own-fields", "operator-own-keys", "operator-own-record")
POLICIES = tuple(f"nodedevices-{each}" for each in ADMISSION)
PARTS = ("agent/rbac.yaml", "operator/rbac.yaml", *(f"admission/{each}.yaml" for each in ADMISSION))
DEVICE_HEALTHY = "nodedevices.io/DeviceHealthy"

# Allowed on purpose and not seen here: why.
UNSEEN: dict[str, dict[Right, str]] = {AGENT: {}, OPERATOR: {}}


def documents(part: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all((BASE / part).read_text()) if each]


def granted(part: str) -> set[Right]:
    return audit.granted(each for each in documents(f"{part}/rbac.yaml") if each["kind"].endswith("Role"))


@pytest.fixture
def begin(apiserver: ApiServer, kubectl: Kubectl) -> Iterator[int]:
    """Roles and admission policies as installed, and a Node. Where the audit log begins."""
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    kubectl.apply(*(each for part in PARTS for each in documents(part)))
    kubectl.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}})
    fleet.namespace(kubectl)
    yield audit.end(apiserver.audit_log)
    kubectl.run("delete", "validatingadmissionpolicies,validatingadmissionpolicybindings", *POLICIES)
    kubectl.delete("configmap", "nodedevices-actions", namespace=NAMESPACE)


@pytest.fixture
def files(begin: int, apiserver: ApiServer, kubectl: Kubectl, tmp_path: Path) -> dict[str, Path]:
    """A kubeconfig of each part, with the token of one of its pods."""
    return {
        account: kubeconfig(
            apiserver.kubeconfig,
            tmp_path / f"{account}.kubeconfig",
            token_of_pod(kubectl, account, namespace=NAMESPACE, node="node-a"),
        )
        for account in (AGENT, OPERATOR)
    }


def compare(log: Path, begin: int, account: str, part: str) -> None:
    made = [each for each in audit.requests(log, after=begin) if each.account == f"{NAMESPACE}:{account}"]
    assert [each.text for each in made if each.refused] == []
    seen = audit.used(made, f"{NAMESPACE}:{account}")
    unseen = UNSEEN[account]
    assert seen & unseen.keys() == set(), "used after all: take it off the list"
    assert granted(part) - seen == unseen.keys(), "allowed, and used by nothing"


def test_the_agents_role_holds_what_the_agent_uses_and_nothing_else(
    apiserver: ApiServer, kubectl: Kubectl, begin: int, files: dict[str, Path], tmp_path: Path
) -> None:
    def reported() -> object:
        return (kubectl.get("nodedevices", "node-a") or {}).get("status")

    arguments = (f"--kubeconfig={files[AGENT]}",)
    with AgentProcess(tmp_path, arguments=arguments):
        wait_until("a report", reported)
        kubectl.delete("nodedevices", "node-a")
        wait_until("it is created again", reported)
    compare(apiserver.audit_log, begin, AGENT, "agent")


async def forgets_what_is_gone(operator: Path, kubectl: Kubectl) -> None:
    """What a LIST lacks is read by name, before it is taken to be gone."""
    client = await KubeClient.connect(str(operator))
    try:
        core = Manager(client, OperatorMetrics())  # without a watch
        await core.relister.once()
        kubectl.delete("node", "gone")
        kubectl.delete("nd", "gone")
        kubectl.delete("dp", "gone")
        await core.relister.once()
        assert "gone" not in {**core.cache.nodes, **core.cache.node_devices, **core.cache.policies}
    finally:
        await client.close()


def test_the_operators_role_holds_what_the_operator_uses_and_nothing_else(
    apiserver: ApiServer, kubectl: Kubectl, begin: int, files: dict[str, Path], tmp_path: Path
) -> None:
    node = FleetNode(kubectl, "n1").create()
    for index, name in enumerate(("trainer", "second")):
        pod(kubectl, name, "n1")
        ready = {"type": "Ready", "status": "True", "reason": "", "lastTransitionTime": stamp()}
        fleet.patch_pod(kubectl, name, {"conditions": [ready]})  # without any, ours would take the Eviction API's along
        node.hold(index, name)
    node.report()
    labels = {"extra": {"example.com/tier": "gold"}}
    faults = {"taintEffect": "NoSchedule", "evictMode": "Immediate", "budget": {"perHour": 100}}
    with OperatorProcess(tmp_path, files[OPERATOR], relist_seconds=3, leader_elect=True):
        kubectl.apply(policy("everything", capacity=memory_capacity(), labels=labels, faults=faults))
        wait_until("capacity", lambda: MEMORY in node.capacity)
        wait_until("labels", lambda: "example.com/tier" in node.node["metadata"]["labels"])
        wait_until("policy", lambda: condition(kubectl.get("dp", "everything"), "Accepted"))
        node.fail(0)
        wait_until("pod", lambda: condition(get_pod(kubectl, "trainer"), DEVICE_HEALTHY))
        wait_until("event", lambda: fleet.events(kubectl, get_pod(kubectl, "trainer")["metadata"]["uid"]))
        wait_until("eviction", lambda: "deletionTimestamp" in get_pod(kubectl, "trainer")["metadata"])
        wait_until("taint", lambda: "nodedevices.io/device-fault" in str(node.node["spec"].get("taints")))
        node.fail(1)  # the record of actions is there by now, and written again
        wait_until("eviction", lambda: "deletionTimestamp" in get_pod(kubectl, "second")["metadata"])
        other = FleetNode(kubectl, "n2").create()
        other.fail(0)  # both nodes have failed: the breaker opens, and the record is watched
        wait_until(
            "stopped", lambda: condition(kubectl.get("dp", "everything"), "ActionsStopped").get("status") == "True"
        )
        wait_until(
            "watched",
            lambda: (
                ("", "configmaps", "watch")
                in audit.used(audit.requests(apiserver.audit_log, after=begin), f"{NAMESPACE}:{OPERATOR}")
            ),
        )
    FleetNode(kubectl, "gone").create()
    kubectl.apply(policy("gone", labels={"extra": {}}))
    asyncio.run(forgets_what_is_gone(files[OPERATOR], kubectl))
    cleanup = [sys.executable, "-m", "nodedevices_operator", "cleanup", f"--kubeconfig={files[OPERATOR]}"]
    done = subprocess.run(cleanup, capture_output=True, text=True, timeout=CLUSTER_PATIENCE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert MEMORY not in node.capacity
    check = [sys.executable, "-m", "nodedevices_kubectl", "check", "--installation", f"--kubeconfig={files[OPERATOR]}"]
    done = subprocess.run(check, capture_output=True, text=True, timeout=CLUSTER_PATIENCE_SECONDS, check=False)
    assert "no Ready Node has an agent pod" in done.stdout, done.stderr
    compare(apiserver.audit_log, begin, OPERATOR, "operator")
