"""The agent with nothing but its role and the token of a pod of its DaemonSet: enough, and for its own node only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.access import APPLY, Account, Refused
from support.agentprocess import NODE, AgentProcess
from support.apiserver import ApiServer
from support.direct import OURS
from support.kubectl import Kubectl, wait_until

ROOT = Path(__file__).parents[2]
NAMESPACE, ACCOUNT = "nodedevices-system", "nodedevices-agent"
PARTS = ("agent/rbac.yaml", "admission/own-node-only.yaml")


@pytest.fixture
def node(kubectl: Kubectl) -> Iterator[dict[str, Any]]:
    """A Node, the agent's role and admission policy, and a pod of the agent on that Node."""
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    for part in PARTS:
        text = (ROOT / "manifests" / "base" / part).read_text()
        for each in yaml.safe_load_all(text):
            if each["kind"] == "ServiceAccount":
                each["metadata"]["namespace"] = NAMESPACE
            kubectl.apply(each)
    kubectl.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "agent", "namespace": NAMESPACE},
            "spec": {
                "nodeName": NODE,
                "serviceAccountName": ACCOUNT,
                "containers": [{"name": "agent", "image": "none"}],
            },
        }
    )
    yield kubectl.object("node", NODE)
    kubectl.run("delete", "pod", "agent", "-n", NAMESPACE, "--grace-period=0", "--force")
    for part in PARTS:
        kubectl.run("delete", "-n", NAMESPACE, "-f", str(ROOT / "manifests" / "base" / part))


def token(kubectl: Kubectl) -> str:
    return kubectl.token(ACCOUNT, NAMESPACE, pod="agent")


def kubeconfig(apiserver: ApiServer, folder: Path, name: str, token_file: Path) -> Path:
    """Reads its token from a file, as a pod does."""
    config = yaml.safe_load(apiserver.kubeconfig.read_text())
    config["users"] = [{"name": each["name"], "user": {"tokenFile": str(token_file)}} for each in config["users"]]
    path = folder / f"{name}.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.fixture
def token_file(apiserver: ApiServer, kubectl: Kubectl, node: dict[str, Any], tmp_path: Path) -> Path:
    """Of the agent's pod, once role and admission policy are in effect."""
    path = tmp_path / "token"
    path.write_text(token(kubectl))
    agent = Account.of(apiserver.kubeconfig, path.read_text())

    def active() -> bool:  # the API server hears of a new policy within a second
        body = {"apiVersion": "nodedevices.io/v1alpha1", "kind": "NodeDevices", "metadata": {"name": "other"}}
        try:
            agent.patch(f"{OURS}/nodedevices/other", body, APPLY, dry=True)
        except Refused as error:
            return "may not write nodedevices other" in str(error)
        return False

    wait_until("the admission policy is in effect", active)
    return path


def test_its_own_role_and_token_are_enough_and_its_node_owns_the_object(
    apiserver: ApiServer, kubectl: Kubectl, node: dict[str, Any], token_file: Path, tmp_path: Path
) -> None:
    config = kubeconfig(apiserver, tmp_path, "agent", token_file)
    with AgentProcess(tmp_path, arguments=(f"--kubeconfig={config}",)):
        item = wait_until("a report", lambda: _reported(kubectl))
    [owner] = item["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", NODE, node["metadata"]["uid"])
    assert (owner["controller"], owner["blockOwnerDeletion"]) == (False, False)
    assert item["status"]["nodeUID"] == node["metadata"]["uid"]


def test_an_object_of_an_earlier_node_of_that_name_gets_the_new_owner(
    apiserver: ApiServer, kubectl: Kubectl, node: dict[str, Any], token_file: Path, tmp_path: Path
) -> None:
    old = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "an-older-node"}
    body = {
        "apiVersion": "nodedevices.io/v1alpha1",
        "kind": "NodeDevices",
        "metadata": {"name": NODE, "ownerReferences": [old | {"controller": False, "blockOwnerDeletion": False}]},
    }
    kubectl.run("apply", "--server-side", "--field-manager=nodedevices-agent", "-f", "-", stdin=json.dumps(body))
    config = kubeconfig(apiserver, tmp_path, "agent", token_file)
    with AgentProcess(tmp_path, arguments=(f"--kubeconfig={config}",)):
        item = wait_until("a report", lambda: _reported(kubectl))
    assert [owner["uid"] for owner in item["metadata"]["ownerReferences"]] == [node["metadata"]["uid"]]


def test_a_node_recreated_under_a_running_agent_gets_its_object_once_the_token_names_it(
    apiserver: ApiServer, kubectl: Kubectl, node: dict[str, Any], token_file: Path, tmp_path: Path
) -> None:
    config = kubeconfig(apiserver, tmp_path, "agent", token_file)

    def owner() -> str:
        item = _reported(kubectl)
        return item["metadata"]["ownerReferences"][0]["uid"] if item else ""

    with AgentProcess(tmp_path, arguments=(f"--kubeconfig={config}",)) as agent:
        wait_until("a report", lambda: owner() == node["metadata"]["uid"])
        kubectl.delete("node", NODE)
        kubectl.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        kubectl.run("delete", "nodedevices", NODE)  # as the garbage collector does, for its owner is gone
        wait_until("it is created for the Node of the old token", lambda: owner() == node["metadata"]["uid"])
        token_file.write_text(token(kubectl))  # as a kubelet does after its start, which made the Node anew
        kubectl.delete("nodedevices", NODE)
        anew = kubectl.object("node", NODE)["metadata"]["uid"]
        item = wait_until("the new Node owns it", lambda: owner() == anew and _reported(kubectl))
        assert item["status"]["nodeUID"] == anew
        assert agent.lines("the Node was recreated: the token names another one")


def test_it_may_not_write_for_another_node_and_says_what_the_server_said(
    apiserver: ApiServer, kubectl: Kubectl, token_file: Path, tmp_path: Path
) -> None:
    config = kubeconfig(apiserver, tmp_path, "agent", token_file)
    with AgentProcess(tmp_path, arguments=(f"--kubeconfig={config}",), node="node-b") as agent:
        message = "failed to write NodeDevices"
        refusal = "may not write nodedevices node-b"
        wait_until("refusal", lambda: any(refusal in line["error"] for line in agent.lines(message)))
        assert agent.alive
    assert kubectl.get("nodedevices", "node-b") is None


def test_a_token_that_is_no_longer_good_is_read_again(
    apiserver: ApiServer, kubectl: Kubectl, token_file: Path, tmp_path: Path
) -> None:
    good = token_file.read_text()
    token_file.write_text("not-a-token")
    config = kubeconfig(apiserver, tmp_path, "agent", token_file)
    with AgentProcess(tmp_path, arguments=(f"--kubeconfig={config}",)) as agent:
        message = "failed to watch NodeDevices"
        wait_until("refusal", lambda: any("401" in line["error"] for line in agent.lines(message)))
        token_file.write_text(good)
        wait_until("a report", lambda: _reported(kubectl))


def test_without_the_crd_it_is_not_ready_says_why_and_goes_on_when_it_is_back(
    apiserver: ApiServer, kubectl: Kubectl, tmp_path: Path
) -> None:
    with AgentProcess(tmp_path, arguments=(f"--kubeconfig={apiserver.kubeconfig}",)) as agent:
        wait_until("a report", lambda: _reported(kubectl))
        wait_until("it works", lambda: "nodedevices_publish_works 1.0" in agent.get("/metrics")[1])
        kubectl.run("delete", "crd", "nodedevices.nodedevices.io")
        try:
            hint = "is the NodeDevices CRD installed?"
            wait_until("the reason on /readyz", lambda: hint in agent.get("/readyz")[1])
            assert "nodedevices_publish_works 0.0" in agent.get("/metrics")[1]
            assert "nodedevices_api_server_reachable 1.0" in agent.get("/metrics")[1]
        finally:
            _install(kubectl)
        wait_until("a report", lambda: _reported(kubectl))
        wait_until("it works again", lambda: "nodedevices_publish_works 1.0" in agent.get("/metrics")[1])
        assert "NodeDevices" not in agent.get("/readyz")[1]


def _install(kubectl: Kubectl) -> None:
    kubectl.run("apply", "--server-side", "-f", str(ROOT / "crds" / "nodedevices.yaml"))
    name = "crd/nodedevices.nodedevices.io"
    # kubectl wait fails on an object that has no conditions yet.
    wait_until("the CRD", lambda: kubectl.run("wait", "--for=condition=Established", "--timeout=30s", name))


def _reported(kubectl: Kubectl) -> dict[str, Any] | None:
    item = kubectl.get("nodedevices", NODE)
    return item if item and item.get("status") else None
