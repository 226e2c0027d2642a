"""The component operator-namespace on a real API server: the operator in a namespace of its own, where Pod Security
`restricted` is enforced, admitted there and able to do its work with the token of its own pod."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import fleet
from support.access import Account, Refused, kubeconfig
from support.apiserver import ApiServer
from support.fleet import FleetNode, policy
from support.kubectl import Kubectl, KubectlError, wait_until
from support.kustomize import render
from support.operatorprocess import OperatorProcess

MANIFESTS = Path(__file__).parents[2] / "manifests"
AGENTS, OPERATORS = "nodedevices-system", "nodedevices-operator"  # namespaces
RECORD = "nodedevices-actions"
CORDON = {"id": fleet.device_id(0), "reason": "mine"}


@pytest.fixture
def installed(kubectl: Kubectl, tmp_path: Path) -> Iterator[list[dict[str, Any]]]:
    """The default overlay with the component, applied as users do; afterwards no rule of it is in effect."""
    folder = tmp_path / "installation"
    folder.mkdir()
    place = os.path.relpath(MANIFESTS, folder)
    document = {"resources": [f"{place}/overlays/default"], "components": [f"{place}/components/operator-namespace"]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(document))
    kubectl.run("apply", "-k", str(folder))
    yield render(folder, kubectl.binary)
    kinds = "validatingadmissionpolicies,validatingadmissionpolicybindings,clusterrolebindings,rolebindings"
    kubectl.run("delete", kinds, "-A", "-l", "app.kubernetes.io/part-of=nodedevices")
    kubectl.delete("configmap", RECORD, namespace=OPERATORS)


def pod_of(installed: list[dict[str, Any]], kind: str, *, namespace: str = "", node: str = "") -> dict[str, Any]:
    """The pod that a controller would make of our workload of that kind."""
    [workload] = [each for each in installed if each["kind"] == kind]
    template = workload["spec"]["template"]
    metadata = template["metadata"] | {"name": "pod", "namespace": namespace or workload["metadata"]["namespace"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"] | {"nodeName": node}}


def test_each_pod_is_admitted_in_its_namespace_and_the_agents_not_in_the_operators(
    kubectl: Kubectl, installed: list[dict[str, Any]]
) -> None:
    namespaces = {each["metadata"]["name"]: each["metadata"] for each in kubectl.json("get", "namespaces")["items"]}
    enforced = "pod-security.kubernetes.io/enforce"
    assert namespaces[OPERATORS]["labels"][enforced] == "restricted"
    assert namespaces[AGENTS]["labels"][enforced] == "privileged"
    for kind, namespace in (("Deployment", OPERATORS), ("DaemonSet", AGENTS)):
        pod = pod_of(installed, kind)
        assert pod["metadata"]["namespace"] == namespace
        kubectl.run("create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))
    agent = pod_of(installed, "DaemonSet", namespace=OPERATORS)
    agent["spec"]["serviceAccountName"] = "nodedevices-operator"  # the one that is there
    with pytest.raises(KubectlError, match="violates PodSecurity"):
        kubectl.run("create", "--dry-run=server", "-f", "-", stdin=json.dumps(agent))


def refusal(account: Account, path: str, body: dict[str, Any]) -> int | None:
    """The code with which the API server refuses this; None: it does not."""
    try:
        account.patch(path, body, dry=True)
    except Refused as error:
        return error.code
    return None


def test_the_operator_works_there_with_its_own_pods_token_and_within_its_bounds(
    apiserver: ApiServer, kubectl: Kubectl, installed: list[dict[str, Any]], tmp_path: Path
) -> None:
    node = FleetNode(kubectl, "n1").create()
    kubectl.run("create", "-f", "-", stdin=json.dumps(pod_of(installed, "Deployment", node="n1")))
    token = kubectl.token("nodedevices-operator", OPERATORS, pod="pod")
    file = kubeconfig(apiserver.kubeconfig, tmp_path / "operator.kubeconfig", token)
    with OperatorProcess(tmp_path, file, f"--namespace={OPERATORS}"):
        kubectl.apply(policy("taint", faults={"taintEffect": "NoSchedule", "budget": {"perHour": 100}}))
        node.fail(0)
        wait_until("the Node is tainted", lambda: "nodedevices.io/device-fault" in str(node.node["spec"].get("taints")))
    found = kubectl.json("get", "configmaps", "-A")["items"]
    places = [each["metadata"]["namespace"] for each in found if each["metadata"]["name"] == RECORD]
    assert places == [OPERATORS]

    operator = Account.of(apiserver.kubeconfig, token)
    for path, body in (
        (f"/api/v1/namespaces/{AGENTS}/configmaps/{RECORD}", {"data": {"a": "b"}}),
        ("/api/v1/nodes/n1", {"spec": {"unschedulable": True}}),
        ("/apis/nodedevices.io/v1alpha1/nodedevices/n1", {"spec": {"unschedulable": [CORDON]}}),
        ("/apis/nodedevices.io/v1alpha1/nodedevices/n1/status", {"status": {"devices": []}}),
    ):
        # The API server hears of a new admission policy within a second or so; the taint may come before.
        wait_until(f"{path} is refused", lambda path=path, body=body: refusal(operator, path, body) == 403)  # type: ignore[misc]
