"""What a compromised operator tries on Nodes and pods with its own pod's token, and is refused; and that what it has to
write passes. Its role allows all of it: the admission policy says which keys are its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import fleet
from support.access import APPLY, JSON, MERGE, STRATEGIC, Account, Refused, token_of_pod
from support.apiserver import ApiServer
from support.fleet import GPU, MEMORY, stamp
from support.kubectl import Kubectl, wait_until
from support.operatorprocess import NAMESPACE

BASE = Path(__file__).parents[2] / "manifests" / "base"
PARTS = ("operator/rbac.yaml", "admission/operator-own-keys.yaml")
NODE, POD = "/api/v1/nodes/n1", f"/api/v1/namespaces/{fleet.NAMESPACE}/pods/trainer"
ZERO = "nvidia.com/gpu.shared"
TAINT = {"key": "nodedevices.io/device-fault", "value": "Xid79", "effect": "NoSchedule"}
OTHERS_TAINT = {"key": "example.com/maintenance", "effect": "NoExecute"}
TAINTS = "spec.taints: only the taint nodedevices.io/device-fault is the operator's"
CONDITIONS = "status.conditions: only the condition nodedevices.io/Device"


def condition(kind: str, status: str = "False") -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": "Test", "message": "", "lastTransitionTime": stamp()}


def on_node(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}} | fields


@pytest.fixture(scope="module")
def _installed(admin: Kubectl) -> Iterator[None]:
    admin.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    for part in PARTS:
        admin.apply(*(each for each in yaml.safe_load_all((BASE / part).read_text()) if each))
    yield
    kinds = "validatingadmissionpolicies,validatingadmissionpolicybindings"
    admin.run("delete", kinds, "nodedevices-operator-own-keys")


@pytest.fixture
def operator(_installed: None, apiserver: ApiServer, kubectl: Kubectl) -> Account:
    """The operator's account, on a cluster with a Node as a kubelet and people keep it, and a running pod on it."""
    fleet.namespace(kubectl)
    labels = {"pool": "a", "nvidia.com/gpu.product": "of-another"}
    kubectl.apply(on_node(metadata={"name": "n1", "labels": labels}, spec={"taints": [OTHERS_TAINT]}))
    amounts = {"cpu": "8", GPU: "2", ZERO: "0"}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [condition("Ready", "True")]}
    kubelet = ("--subresource=status", "--field-manager=kubelet", "--type=strategic")
    kubectl.run("patch", "node", "n1", *kubelet, "-p", json.dumps({"status": status}))
    fleet.pod(kubectl, "trainer", "n1")
    fleet.patch_pod(kubectl, "trainer", {"conditions": [condition("Ready", "True")]})
    account = Account.of(
        apiserver.kubeconfig, token_of_pod(kubectl, "nodedevices-operator", namespace=NAMESPACE, node="n1")
    )

    def active() -> bool:  # the API server hears of a new policy within a second
        try:
            account.patch(NODE, {"metadata": {"labels": {"pool": "b"}}}, dry=True)
        except Refused as error:
            return "not the operator's" in str(error)
        return False

    wait_until("the admission policy is in effect", active)
    return account


def own_labels(operator: Account, **labels: str) -> None:
    names = {key.replace("_", "/"): value for key, value in labels.items()}
    body = on_node(metadata={"name": "n1", "labels": names})
    operator.patch(NODE, body, APPLY, manager="nodedevices-operator-labels")


def own_capacity(operator: Account, amounts: dict[str, str]) -> dict[str, Any]:
    body = on_node(**({"status": {"capacity": amounts}} if amounts else {}))
    return operator.patch(f"{NODE}/status", body, APPLY, manager="nodedevices-operator-capacity")


# --- what it has to write --------------------------------------------------------------------------------------------
def test_its_own_labels_come_change_and_go(operator: Account, kubectl: Kubectl) -> None:
    for labels in ({"example.com_tier": "gold"}, {"example.com_tier": "silver", "nvidia.com_gpu.count": "2"}, {}):
        own_labels(operator, **labels)
    assert kubectl.json("get", "node", "n1")["metadata"]["labels"] == {
        "pool": "a",
        "nvidia.com/gpu.product": "of-another",
    }


def test_its_taint_comes_and_goes_beside_those_of_others(operator: Account, kubectl: Kubectl) -> None:
    def taints() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = kubectl.json("get", "node", "n1")["spec"]["taints"]
        return [each for each in found if not each["key"].startswith("node.kubernetes.io/")]

    before = kubectl.json("get", "node", "n1")["spec"]["taints"]
    operator.patch(NODE, [{"op": "add", "path": "/spec/taints/-", "value": TAINT}], JSON)
    assert taints() == [OTHERS_TAINT, TAINT]
    operator.patch(NODE, [{"op": "remove", "path": f"/spec/taints/{len(before)}"}], JSON)
    assert taints() == [OTHERS_TAINT]


def test_its_capacity_comes_changes_and_goes_and_drift_is_repaired(operator: Account, kubectl: Kubectl) -> None:
    def capacity() -> dict[str, str]:
        found: dict[str, str] = kubectl.json("get", "node", "n1")["status"]["capacity"]
        return found

    for value in ("100", "50"):
        assert own_capacity(operator, {MEMORY: value})["status"]["capacity"][MEMORY] == value
    for writer, drift in (("kubelet", "0"), ("somebody", "7")):
        kubectl.run(
            *("patch", "node", "n1", "--subresource=status", f"--field-manager={writer}", "-p"),
            json.dumps({"status": {"capacity": {MEMORY: drift}}}),
        )
        own_capacity(operator, {MEMORY: "50"})
        assert capacity()[MEMORY] == "50"
    own_capacity(operator, {})
    assert MEMORY not in capacity()


def test_zeros_that_nobody_serves_are_removed(operator: Account) -> None:
    places = [f"/status/{place}/{ZERO.replace('/', '~1')}" for place in ("capacity", "allocatable")]
    operations = [
        each for path in places for each in ({"op": "test", "path": path, "value": "0"}, {"op": "remove", "path": path})
    ]
    shown = operator.patch(f"{NODE}/status", operations, JSON)["status"]
    assert ZERO not in {**shown["capacity"], **shown["allocatable"]}


def test_its_conditions_come_and_go_on_node_and_pod(operator: Account) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "trainer", "namespace": fleet.NAMESPACE}}
    for path, body, kind in ((NODE, on_node(), "DevicesHealthy"), (POD, pod, "DeviceHealthy")):
        ours = {"status": {"conditions": [condition(f"nodedevices.io/{kind}")]}}
        for status in (ours, {}):
            shown = operator.patch(f"{path}/status", body | status, APPLY, manager="nodedevices-operator-condition")
            types = [each["type"] for each in shown["status"]["conditions"]]
            assert sorted(types) == ["Ready", *([f"nodedevices.io/{kind}"] if status else [])]


def test_its_condition_goes_wherever_it_stands_among_those_of_others(operator: Account, kubectl: Kubectl) -> None:
    """Server-side apply may bring the others into another order."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "trainer", "namespace": fleet.NAMESPACE}}
    ours = {"status": {"conditions": [condition("nodedevices.io/DeviceHealthy")]}}
    shown = operator.patch(f"{POD}/status", pod | ours, APPLY, manager="nodedevices-operator-pod-condition")
    among = [condition("DisruptionTarget"), *shown["status"]["conditions"], condition("Initialized")]
    fleet.patch_pod(kubectl, "trainer", {"conditions": among})
    shown = operator.patch(f"{POD}/status", pod, APPLY, manager="nodedevices-operator-pod-condition")
    assert {each["type"] for each in shown["status"]["conditions"]} == {"DisruptionTarget", "Initialized", "Ready"}


# --- what is refused -------------------------------------------------------------------------------------------------
ADDRESS = {"type": "InternalIP", "address": "192.0.2.9"}
REFUSED: dict[str, dict[str, tuple[dict[str, Any], str]]] = {
    NODE: {
        "a label of others": ({"metadata": {"labels": {"pool": "b"}}}, "metadata.labels: pool: not the operator's"),
        "taking a label away": ({"metadata": {"labels": {"pool": None}}}, "metadata.labels: pool:"),
        "a vendor's label": ({"metadata": {"labels": {"nvidia.com/gpu.product": "x"}}}, "nvidia.com/gpu.product:"),
        "a role": ({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}, "metadata.labels:"),
        "the agent's way out": ({"metadata": {"labels": {"nodedevices.io/agent": "away"}}}, "metadata.labels:"),
        "an annotation": ({"metadata": {"annotations": {"a": "b"}}}, "metadata.annotations: not the operator's"),
        "a finalizer": ({"metadata": {"finalizers": ["example.com/for-ever"]}}, "metadata.finalizers:"),
        "a cordon": ({"spec": {"unschedulable": True}}, "spec.unschedulable: not the operator's"),
        "a provider id": ({"spec": {"providerID": "x"}}, "spec.providerID:"),
        "a taint of others": ({"spec": {"taints": [OTHERS_TAINT, {"key": "a", "effect": "NoSchedule"}]}}, TAINTS),
        "no taint": ({"spec": {"taints": None}}, TAINTS),
        "ours in the place of theirs": ({"spec": {"taints": [TAINT]}}, TAINTS),
    },
    f"{NODE}/status": {
        "a label": ({"metadata": {"labels": {"pool": "b"}}}, "metadata.labels: pool:"),
        "an address": ({"status": {"addresses": [ADDRESS]}}, "status.addresses:"),
        "the kubelet's port": ({"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}}, "daemonEndpoints:"),
        "images": ({"status": {"images": [{"names": ["x"]}]}}, "status.images: not the operator's"),
        "ready": ({"status": {"conditions": [condition("Ready")]}}, CONDITIONS),
        "a condition of others": ({"status": {"conditions": [condition("NetworkUnavailable")]}}, CONDITIONS),
        "cpu": ({"status": {"capacity": {"cpu": "1000"}}}, "status.capacity: cpu: not the operator's"),
        "huge pages": ({"status": {"capacity": {"hugepages-2Mi": "1Gi"}}}, "status.capacity:"),
        "kubernetes.io": ({"status": {"capacity": {"batch.kubernetes.io/x": "1"}}}, "status.capacity:"),
        "what the kubelet serves": ({"status": {"capacity": {GPU: "99"}}}, f"status.capacity: {GPU}:"),
        "taking that away": ({"status": {"capacity": {GPU: None}}}, f"status.capacity: {GPU}:"),
        "allocatable": ({"status": {"allocatable": {GPU: "99"}}}, f"status.allocatable: {GPU}:"),
        "no allocatable": ({"status": {"allocatable": {GPU: None}}}, f"status.allocatable: {GPU}:"),
        "more allocatable": ({"status": {"allocatable": {MEMORY: "1"}}}, f"status.allocatable: {MEMORY}:"),
    },
    f"{POD}/status": {
        "a phase": ({"status": {"phase": "Failed"}}, "status.phase: not the operator's"),
        "an address": ({"status": {"podIP": "192.0.2.9", "podIPs": [{"ip": "192.0.2.9"}]}}, "status.podIP"),
        "ready": ({"status": {"conditions": [condition("Ready")]}}, CONDITIONS),
        "the Node's condition": ({"status": {"conditions": [condition("nodedevices.io/DevicesHealthy")]}}, CONDITIONS),
        "a label": ({"metadata": {"labels": {"app": "other"}}}, "metadata.labels: app:"),
        "an annotation": ({"metadata": {"annotations": {"a": "b"}}}, "metadata.annotations:"),
    },
}


@pytest.mark.parametrize(
    ("path", "attempt"),
    [pytest.param(path, name, id=f"{path.split('/')[-1]} {name}") for path, tried in REFUSED.items() for name in tried],
)
def test_the_keys_of_others_are_refused(operator: Account, path: str, attempt: str) -> None:
    body, said = REFUSED[path][attempt]
    kind = STRATEGIC if "conditions" in body.get("status", {}) else MERGE
    with pytest.raises(Refused) as refused:
        operator.patch(path, body, kind)
    assert refused.value.code == 403
    assert said in str(refused.value)
    assert "nodedevices-operator-own-keys" in str(refused.value)


def test_conditions_of_others_cannot_be_dropped_or_hidden_by_their_order(operator: Account) -> None:
    for path in (NODE, POD):
        with pytest.raises(Refused, match="all others must stay as they are"):
            operator.patch(f"{path}/status", {"status": {"conditions": []}})


def test_nothing_of_a_pod_but_its_status_can_be_written(operator: Account) -> None:
    for method, path, body in (
        ("PATCH", POD, {"metadata": {"labels": {"a": "b"}}}),
        ("DELETE", POD, None),
        ("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", {"apiVersion": "v1", "kind": "Pod"}),
        ("DELETE", NODE, None),
        ("GET", "/api/v1/secrets", None),
        ("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/nodedevices-agent/token", {}),
    ):
        with pytest.raises(Refused) as refused:
            operator.request(method, path, body, MERGE if method == "PATCH" else "application/json")
        assert refused.value.code == 403


def test_people_and_kubelets_are_not_concerned(operator: Account, kubectl: Kubectl) -> None:
    kubectl.run("label", "node", "n1", "pool=c", "--overwrite")
    kubectl.run("patch", "node", "n1", "--subresource=status", "-p", '{"status": {"capacity": {"cpu": "4"}}}')
