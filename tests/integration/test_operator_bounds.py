"""What a compromised operator tries on Nodes, pods and NodeDevices with its own pod's token, and is refused; and that
what it has to write passes. Its role allows all of it: the admission policies say which keys and fields are its own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from nodedevices_common.confirming import CONFIRM
from support import fleet
from support.access import APPLY, JSON, MERGE, STRATEGIC, Account, Refused, token_of_pod
from support.apiserver import ApiServer
from support.fleet import GPU, MEMORY, FleetNode, stamp
from support.kubectl import Kubectl, wait_until
from support.operatorprocess import NAMESPACE

BASE = Path(__file__).parents[2] / "manifests" / "base"
POLICIES = ("operator-own-keys", "operator-own-fields", "operator-own-record")
PARTS = ("operator/rbac.yaml", *(f"admission/{each}.yaml" for each in POLICIES))
NODE, POD = "/api/v1/nodes/n1", f"/api/v1/namespaces/{fleet.NAMESPACE}/pods/trainer"
OBJECT = "/apis/nodedevices.io/v1alpha1/nodedevices/n1"
ZERO = "nvidia.com/gpu.shared"
TAINT = {"key": "nodedevices.io/device-fault", "value": "Xid79", "effect": "NoSchedule"}
OTHERS_TAINT = {"key": "example.com/maintenance", "effect": "NoExecute"}
CORDON = {"id": fleet.device_id(0), "reason": "RMA 4711"}
TAINTS = "spec.taints: only the taint nodedevices.io/device-fault is the operator's"
CONDITIONS = "status.conditions: only the condition nodedevices.io/"


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
    admin.run("delete", kinds, *(f"nodedevices-{each}" for each in POLICIES))


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

    node = FleetNode(kubectl, "n1", uid=kubectl.object("node", "n1")["metadata"]["uid"])
    node.create_object()
    node.report()
    kubectl.patch("nodedevices", "n1", {"spec": {"unschedulable": [CORDON]}})

    def active() -> bool:  # the API server hears of a new policy within a second
        for path, kind in ((NODE, "labels"), (OBJECT, "annotations")):
            try:
                account.patch(path, {"metadata": {kind: {"pool": "b"}}}, dry=True)
            except Refused as error:
                if "not the operator's" not in str(error):
                    return False
            else:
                return False
        try:
            operator_makes(account, {"name": "other"}, dry=True)
        except Refused:
            return True
        return False

    wait_until("the admission policy is in effect", active)
    return account


def operator_makes(operator: Account, metadata: dict[str, Any], *, dry: bool = False) -> None:
    """A ConfigMap in its own namespace."""
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {}}
    operator.request("POST", f"/api/v1/namespaces/{NAMESPACE}/configmaps{'?dryRun=All' if dry else ''}", made)


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
    assert kubectl.object("node", "n1")["metadata"]["labels"] == {"pool": "a", "nvidia.com/gpu.product": "of-another"}


def test_its_taint_comes_and_goes_beside_those_of_others(operator: Account, kubectl: Kubectl) -> None:
    def taints() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = kubectl.object("node", "n1")["spec"]["taints"]
        return [each for each in found if not each["key"].startswith("node.kubernetes.io/")]

    before = kubectl.object("node", "n1")["spec"]["taints"]
    operator.patch(NODE, [{"op": "add", "path": "/spec/taints/-", "value": TAINT}], JSON)
    assert taints() == [OTHERS_TAINT, TAINT]
    operator.patch(NODE, [{"op": "remove", "path": f"/spec/taints/{len(before)}"}], JSON)
    assert taints() == [OTHERS_TAINT]


def test_its_capacity_comes_changes_and_goes_and_drift_is_repaired(operator: Account, kubectl: Kubectl) -> None:
    def capacity() -> dict[str, str]:
        found: dict[str, str] = kubectl.object("node", "n1")["status"]["capacity"]
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
    conditions = (
        (NODE, on_node(), "nodedevices.io/Ready"),
        (NODE, on_node(), "nodedevices.io/DevicesHealthy"),
        (NODE, on_node(), "XidCriticalError"),
        (POD, pod, "nodedevices.io/DeviceHealthy"),
    )
    for path, body, kind in conditions:
        ours = {"status": {"conditions": [condition(kind)]}}
        for status in (ours, {}):
            shown = operator.patch(f"{path}/status", body | status, APPLY, manager="nodedevices-operator-condition")
            types = [each["type"] for each in shown["status"]["conditions"]]
            assert sorted(types) == ["Ready", *([kind] if status else [])]


def test_its_condition_goes_wherever_it_stands_among_those_of_others(operator: Account, kubectl: Kubectl) -> None:
    """Server-side apply may bring the others into another order."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "trainer", "namespace": fleet.NAMESPACE}}
    ours = {"status": {"conditions": [condition("nodedevices.io/DeviceHealthy")]}}
    shown = operator.patch(f"{POD}/status", pod | ours, APPLY, manager="nodedevices-operator-pod-condition")
    among = [condition("DisruptionTarget"), *shown["status"]["conditions"], condition("Initialized")]
    fleet.patch_pod(kubectl, "trainer", {"conditions": among})
    shown = operator.patch(f"{POD}/status", pod, APPLY, manager="nodedevices-operator-pod-condition")
    assert {each["type"] for each in shown["status"]["conditions"]} == {"DisruptionTarget", "Initialized", "Ready"}


OWN_CONDITIONS = ("PolicyResolved", "ActionsSynced", "Stale", "ProblemReported", "MaintenanceScheduled")
POD_OF_DEVICE = {"namespace": "ml", "name": "train", "uid": "u", "device": fleet.device_id(0), "reason": "Xid79"}
AFFECTED = POD_OF_DEVICE | {"since": stamp()}
ACTION = {"name": "taint", "reason": "Refused", "message": "the budget is used up", "observedGeneration": 1}


def on_object(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": "nodedevices.io/v1alpha1", "kind": "NodeDevices", "metadata": {"name": "n1"}} | fields


def object_labels(operator: Account, labels: dict[str, str]) -> None:
    body = on_object(metadata={"name": "n1", "labels": labels})
    operator.patch(OBJECT, body, APPLY, manager="nodedevices-operator-object-labels")


def test_its_labels_of_a_nodedevices_come_change_and_go(operator: Account, kubectl: Kubectl) -> None:
    zone, role = "topology.kubernetes.io/zone", "node-role.kubernetes.io/gpu"
    for labels in ({"pool": "a", zone: "b", role: ""}, {"pool": "b", zone: "b"}, {}, {"pool": "a"}, {}):
        object_labels(operator, labels)
        assert kubectl.object("nodedevices", "n1")["metadata"].get("labels", {}) == labels


def test_its_configuration_of_a_node_comes_changes_and_goes(operator: Account, kubectl: Kubectl) -> None:
    policies = [{"name": "p", "generation": 1, "priority": 0, "sections": ["health"]}]
    for spec in (
        {"config": {}, "configHash": "a", "policies": []},
        {"config": {"health": {"holdDownSeconds": 60}}, "configHash": "b", "configName": "c", "policies": policies},
        {},
    ):
        operator.patch(OBJECT, on_object(spec=spec), APPLY, manager="nodedevices-operator-config")
        shown = kubectl.object("nodedevices", "n1")["spec"]
        assert shown == {"unschedulable": [CORDON]} | spec


def test_the_last_field_of_spec_is_taken_back(operator: Account, kubectl: Kubectl) -> None:
    kubectl.patch("nodedevices", "n1", {"spec": {"unschedulable": None}})
    for spec in ({"config": {}, "configHash": "a"}, {}):
        operator.patch(OBJECT, on_object(spec=spec), APPLY, manager="nodedevices-operator-config")
        assert kubectl.object("nodedevices", "n1").get("spec", {}) == spec


def test_empty_lists_of_others_do_not_hold_its_fields_back(operator: Account, kubectl: Kubectl) -> None:
    """Whose last field is taken back by server-side apply, with it go empty lists that others left."""
    kubectl.patch("nodedevices", "n1", {"spec": {"unschedulable": []}})
    kubectl.patch("nodedevices", "n1", {"status": {"retiredResources": []}}, subresource="status")
    own = {"conditions": [condition(kind) for kind in OWN_CONDITIONS], "affectedPods": [AFFECTED], "actions": [ACTION]}
    for spec in (on_object(spec={"config": {}, "configHash": "a"}), on_object()):
        operator.patch(OBJECT, spec, APPLY, manager="nodedevices-operator-config")
    for status in (on_object(status=own), on_object()):
        operator.patch(f"{OBJECT}/status", status, APPLY, manager="nodedevices-operator-status")
    shown = kubectl.object("nodedevices", "n1")
    kubectl.patch("nodedevices", "n1", {"spec": {"unschedulable": [CORDON]}})
    assert not shown.get("spec", {}).keys() & {"config", "configHash"}
    assert not {each["type"] for each in shown["status"]["conditions"]} & set(OWN_CONDITIONS)


def test_its_part_of_a_nodes_status_comes_and_goes_beside_the_agents(operator: Account, kubectl: Kubectl) -> None:
    before = kubectl.object("nodedevices", "n1")["status"]
    own = {"conditions": [condition(kind) for kind in OWN_CONDITIONS], "affectedPods": [AFFECTED], "actions": [ACTION]}
    for status in (own, {"conditions": own["conditions"][:1], "affectedPods": []}, {}):
        body = on_object(**({"status": status} if status else {}))
        shown = operator.patch(f"{OBJECT}/status", body, APPLY, manager="nodedevices-operator-status")["status"]
        types = {each["type"] for each in shown["conditions"]}
        assert types & set(OWN_CONDITIONS) == {each["type"] for each in status.get("conditions", ())}
        for key in ("affectedPods", "actions"):
            assert shown.get(key, []) == status.get(key, [])
    assert {key: value for key, value in shown.items() if key not in {"affectedPods", "actions"}} == before


def test_conditions_of_an_operator_of_before_go_with_its_next_write_and_no_other(
    operator: Account, kubectl: Kubectl
) -> None:
    """The five of an operator that had no `actions`; and one that another writer has set, as who it may be."""
    before = kubectl.object("nodedevices", "n1")["status"]
    old = ("CapacitySynced", "LabelsSynced", "TaintSynced", "EvictionsSynced", "IdlePodsMarked")
    ours = {"conditions": [condition(kind) for kind in ("PolicyResolved", *old)]}
    kubectl.apply_as("nodedevices-operator-status", on_object(status=ours), subresource="status")
    now = {"conditions": [condition("PolicyResolved"), condition("ActionsSynced")], "actions": [ACTION]}
    shown = operator.patch(f"{OBJECT}/status", on_object(status=now), APPLY, manager="nodedevices-operator-status")
    types = {each["type"] for each in shown["status"]["conditions"]}
    assert types == {"PolicyResolved", "ActionsSynced"} | {each["type"] for each in before["conditions"]}
    for kind in (old[0], "Ready"):
        more = {"conditions": [*now["conditions"], condition(kind)], "actions": [ACTION]}
        with pytest.raises(Refused, match="nodedevices-operator-own-fields"):
            operator.patch(f"{OBJECT}/status", on_object(status=more), APPLY, manager="nodedevices-operator-status")
    operator.patch(f"{OBJECT}/status", on_object(), APPLY, manager="nodedevices-operator-status")


# --- what is refused -------------------------------------------------------------------------------------------------
ADDRESS = {"type": "InternalIP", "address": "192.0.2.9"}
REFUSED: dict[str, dict[str, tuple[dict[str, Any] | list[Any], str]]] = {
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
        "its other condition": ({"status": {"conditions": [condition("XidCriticalError")]}}, CONDITIONS),
        "its third condition": ({"status": {"conditions": [condition("nodedevices.io/Ready")]}}, CONDITIONS),
        "a label": ({"metadata": {"labels": {"app": "other"}}}, "metadata.labels: app:"),
        "an annotation": ({"metadata": {"annotations": {"a": "b"}}}, "metadata.annotations:"),
    },
}


REFUSED_ON_OBJECTS: dict[str, dict[str, tuple[dict[str, Any] | list[Any], str]]] = {
    OBJECT: {
        "a confirmation": ({"metadata": {"annotations": {CONFIRM: "x"}}}, "metadata.annotations: not"),
        "its own key": ({"metadata": {"labels": {"nodedevices.io/agent": "away"}}}, "nodedevices.io/agent: not the"),
        "a vendor's label": ({"metadata": {"labels": {"gpu.intel.com/cards": "9"}}}, "gpu.intel.com/cards: not the"),
        "a deployer's": ({"metadata": {"labels": {"app.kubernetes.io/instance": "x"}}}, "app.kubernetes.io/instance:"),
        "a finalizer": ({"metadata": {"finalizers": ["example.com/for-ever"]}}, "metadata.finalizers:"),
        "an owner": ({"metadata": {"ownerReferences": None}}, "metadata.ownerReferences:"),
        "a cordon": ({"spec": {"unschedulable": [CORDON, {"id": "x", "reason": "y"}]}}, "spec.unschedulable: not"),
        "no cordon": ({"spec": {"unschedulable": []}}, "spec.unschedulable: not the operator's"),
    },
    f"{OBJECT}/status": {
        "a device": ({"status": {"devices": []}}, "status.devices: the agent's"),
        "a summary": ({"status": {"summary": {"healthy": 9}}}, "status.summary: the agent's"),
        "a heartbeat": ({"status": {"agent": {"heartbeatTime": stamp(900)}}}, "status.agent: the agent's"),
        "what is applied": ({"status": {"appliedConfigHash": "abc"}}, "status.appliedConfigHash: the agent's"),
        "no condition": ({"status": {"conditions": []}}, "status.conditions: only PolicyResolved, "),
        "ready": (
            [{"op": "replace", "path": "/status/conditions/0/status", "value": "Unknown"}],
            "status.conditions: only PolicyResolved, ",
        ),
    },
}


@pytest.mark.parametrize("path", REFUSED_ON_OBJECTS, ids=["object", "status"])
def test_what_people_and_agents_write_on_a_nodedevices_is_refused(operator: Account, path: str) -> None:
    assert not_refused(operator, path, REFUSED_ON_OBJECTS[path], "nodedevices-operator-own-fields") == {}


def test_a_label_that_a_person_set_on_a_nodedevices_stays_theirs(operator: Account, kubectl: Kubectl) -> None:
    """Whether it is changed, removed, applied first with the value that stands there, or taken out of managedFields."""

    def label() -> tuple[str, set[str]]:
        shown = kubectl.object("nodedevices", "n1")
        return shown["metadata"]["labels"]["pool"], labels_at_home(shown)

    kubectl.run("label", "nodedevices", "n1", "pool=mine", "--overwrite")
    [person] = label()[1]
    for value in ("other", None):
        with pytest.raises(Refused, match=r"metadata\.labels: pool: not the operator's"):
            operator.patch(OBJECT, {"metadata": {"labels": {"pool": value}}}, MERGE)
    object_labels(operator, {"pool": "mine"})
    with pytest.raises(Refused, match=r"metadata\.labels: pool: not the operator's"):
        object_labels(operator, {"pool": "other"})
    fields = kubectl.object("nodedevices", "n1")["metadata"]["managedFields"]
    less = [each for each in fields if each["manager"] != person]
    with pytest.raises(Refused, match=f"metadata.managedFields: {person}: the operator may not remove"):
        operator.patch(OBJECT, [{"op": "replace", "path": "/metadata/managedFields", "value": less}], JSON)
    object_labels(operator, {})
    assert label() == ("mine", {person})


@pytest.mark.parametrize("path", [OBJECT, f"{OBJECT}/status"], ids=["object", "status"])
def test_the_agents_ownership_stays(operator: Account, kubectl: Kubectl, path: str) -> None:
    """An empty list of managedFields resets them; then the agent could no longer take back what it wrote."""
    with suppress(Refused):
        operator.patch(path, [{"op": "replace", "path": "/metadata/managedFields", "value": [{}]}], JSON)
    shown = kubectl.object("nodedevices", "n1")
    owners = [it["manager"] for it in shown["metadata"]["managedFields"] if "f:devices" in str(it["fieldsV1"])]
    assert owners == ["nodedevices-agent"]


@pytest.mark.parametrize("manager", ["nodedevices-operator-status", "nodedevices-agent"])
def test_owning_what_others_wrote_is_refused(operator: Account, kubectl: Kubectl, manager: str) -> None:
    """Even with the value that stands there: what two managers own stays when the agent takes it back."""
    shown = kubectl.object("nodedevices", "n1")
    ready = [each for each in shown["status"]["conditions"] if each["type"] == "Ready"]
    for path, fields in (
        (f"{OBJECT}/status", {"status": {"resources": shown["status"]["resources"]}}),
        (f"{OBJECT}/status", {"status": {"conditions": ready}}),
        (OBJECT, {"spec": {"unschedulable": [CORDON]}}),
    ):
        with pytest.raises(Refused) as refused:
            operator.patch(path, on_object(**fields), APPLY, manager=manager)
        assert "nodedevices-operator-own-fields" in str(refused.value)


@pytest.mark.parametrize("path", REFUSED, ids=["Node", "status of a Node", "status of a pod"])
def test_the_keys_of_others_are_refused(operator: Account, path: str) -> None:
    assert not_refused(operator, path, REFUSED[path], "nodedevices-operator-own-keys") == {}


def not_refused(
    operator: Account, path: str, attempts: Mapping[str, tuple[dict[str, Any] | list[Any], str]], policy: str
) -> dict[str, str]:
    """Attempts that this policy did not refuse with these words, and what happened instead."""
    found = {}
    for name, (body, said) in attempts.items():
        strategic = path != f"{OBJECT}/status" and isinstance(body, dict) and "conditions" in body.get("status", {})
        try:
            operator.patch(path, body, JSON if isinstance(body, list) else STRATEGIC if strategic else MERGE)
        except Refused as refused:
            if refused.code != 403 or said not in str(refused) or policy not in str(refused):
                found[name] = str(refused)
        else:
            found[name] = "it was written"
    return found


def test_a_label_of_others_is_not_taken_over_by_applying_its_value_first(operator: Account, kubectl: Kubectl) -> None:
    """The value that stands there changes nothing, so it passes; and whoever applies it is an owner."""
    own_labels(operator, pool="a")
    with pytest.raises(Refused, match=r"metadata\.labels: pool: not the operator's"):
        own_labels(operator, pool="b")
    own_labels(operator)
    assert kubectl.object("node", "n1")["metadata"]["labels"]["pool"] == "a"


def labels_at_home(shown: dict[str, Any]) -> set[str]:
    """Managers that own the label `pool`."""
    return {
        each["manager"]
        for each in shown["metadata"]["managedFields"]
        if "f:pool" in each["fieldsV1"].get("f:metadata", {}).get("f:labels", {})
    }


def test_nobodys_ownership_is_taken_away_from_him(operator: Account, kubectl: Kubectl) -> None:
    """Without managedFields no kubelet would be known, and its capacity would be anybody's."""
    shown = kubectl.object("node", "n1")
    fields = shown["metadata"]["managedFields"]
    less = [each for each in fields if each["manager"] != "kubelet"]
    ours = [each | {"manager": "nodedevices-operator"} for each in fields]
    attempts: list[list[dict[str, Any]]] = [[{}], [], less, ours]
    for path in (NODE, f"{NODE}/status"):
        for sent in attempts:
            with suppress(Refused):
                operator.patch(path, {"metadata": {"managedFields": sent}})
            with suppress(Refused):
                operator.patch(path, [{"op": "replace", "path": "/metadata/managedFields", "value": sent}], JSON)
    with pytest.raises(Refused, match=f"status.capacity: {GPU}: not the operator's"):
        own_capacity(operator, {GPU: "100"})
    after = kubectl.object("node", "n1")
    assert labels_at_home(after) == labels_at_home(shown) != set()


def test_what_others_applied_stays_applied(operator: Account, kubectl: Kubectl) -> None:
    """Of what became an Update its owner takes nothing back: a cordon or a label that left Git would stay."""

    def by_git(kind: str, **more: Any) -> dict[str, Any]:
        version = "v1" if kind == "Node" else "nodedevices.io/v1alpha1"
        body = {"apiVersion": version, "kind": kind} | more
        kubectl.run("apply", "--server-side", "--field-manager=git", "-f", "-", stdin=json.dumps(body))
        return kubectl.object(kind, "n1")

    head: dict[str, Any] = {"name": "n1"}
    cordon = {"unschedulable": [{"id": "GPU-of-git", "reason": "RMA"}]}
    label = head | {"labels": {"example.com/team": "a"}}
    refused = {
        "NodeDevices": (
            OBJECT,
            {"metadata": head, "spec": cordon},
            "may not own, or take ownership of, fields of others",
        ),
        "Node": (NODE, {"metadata": label}, "git: the operator may not remove the ownership of others"),
    }
    for kind, (path, applied, said) in refused.items():
        fields = by_git(kind, **applied)["metadata"]["managedFields"]
        changed = [each | {"operation": "Update"} if each["manager"] == "git" else each for each in fields]
        with pytest.raises(Refused, match=said):
            operator.patch(path, {"metadata": {"managedFields": changed}}, MERGE)
        after = by_git(kind, metadata=head)
        assert "GPU-of-git" not in str(after["spec"])
        assert "example.com/team" not in after["metadata"].get("labels", {})


def test_of_leases_it_makes_the_one_of_its_election_and_no_other(operator: Account, kubectl: Kubectl) -> None:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
    head = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    with pytest.raises(Refused, match="of Leases it may create only nodedevices-operator"):
        operator.request("POST", f"{path}?dryRun=All", {**head, "metadata": {"name": "nodedevices-scheduler-leader"}})
    operator.request("POST", f"{path}?dryRun=All", {**head, "metadata": {"name": "nodedevices-operator"}})


def test_of_configmaps_it_makes_its_record_and_no_other(operator: Account, kubectl: Kubectl) -> None:
    """In the agents' namespace others are files that agents obey: nodedevices-devices names mounts."""
    for metadata in (
        *({"name": name} for name in ("nodedevices-devices", "device-plugin-configs", "nodedevices-actions-2")),
        {"generateName": "nodedevices-actions"},
    ):
        with pytest.raises(Refused, match="of ConfigMaps it may write only nodedevices-actions"):
            operator_makes(operator, metadata)
    operator_makes(operator, {"name": "nodedevices-actions"})
    kubectl.delete("configmap", "nodedevices-actions", namespace=NAMESPACE)


def test_it_resumes_no_actions_and_no_rollout_in_a_persons_stead(operator: Account, kubectl: Kubectl) -> None:
    resume = {CONFIRM: f"actions=resumed@{stamp()}"}
    record = f"/api/v1/namespaces/{NAMESPACE}/configmaps/nodedevices-actions"
    with pytest.raises(Refused, match=r"only people write nodedevices\.io/confirm"):
        operator_makes(operator, {"name": "nodedevices-actions", "annotations": resume})
    operator_makes(operator, {"name": "nodedevices-actions"})
    head = {"apiVersion": "v1", "kind": "ConfigMap"}
    for body, kind in (
        ({"metadata": {"annotations": resume}}, MERGE),
        (head | {"metadata": {"name": "nodedevices-actions", "annotations": resume}}, APPLY),
    ):
        with pytest.raises(Refused, match=r"only people write nodedevices\.io/confirm"):
            operator.patch(record, body, kind, manager="nodedevices-operator-fleet" if kind == APPLY else "")
    word = f"{CONFIRM}=actions=resumed@{stamp()}"
    kubectl.run("annotate", "configmap", "nodedevices-actions", "-n", NAMESPACE, word)
    operator.patch(record, {"data": {"breaker": "Closed"}})  # whose word stays
    with pytest.raises(Refused, match=r"only people write nodedevices\.io/confirm"):
        operator.patch(record, {"metadata": {"annotations": {CONFIRM: None}}})
    kubectl.delete("configmap", "nodedevices-actions", namespace=NAMESPACE)
    kubectl.apply(fleet.policy("p", health={}))
    change = {"metadata": {"annotations": {CONFIRM: "rollout=resumed@1"}}}
    path = "/apis/nodedevices.io/v1alpha1/devicepolicies/p"
    with pytest.raises(Refused, match="forbidden"):
        operator.patch(path, change)
    operator.patch(f"{path}/status", change | {"status": {"observedGeneration": 1}})  # of metadata it writes nothing
    assert "annotations" not in kubectl.object("devicepolicy", "p")["metadata"]


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
