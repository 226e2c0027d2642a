"""What a compromised agent tries with its own pod's token, and is refused; installed by a kustomization of a user's,
in another namespace and under other names."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from nodedevices_common.confirming import CONFIRM
from support import access, fleet
from support.apiserver import ApiServer
from support.fleet import FleetNode, device_id, stamp
from support.kubectl import Kubectl, KubectlError, condition, wait_until

ROOT = Path(__file__).parents[2]
NAMESPACE = "gpu-tools"
ACCOUNT = "my-nodedevices-agent"
OPERATORS = "nodedevices-operator-status"
OBJECT: dict[str, Any] = {
    "apiVersion": "nodedevices.io/v1alpha1",
    "kind": "NodeDevices",
    "metadata": {"name": "mine"},
}
STALE = {"type": "Stale", "status": "False", "reason": "Fresh", "message": "", "lastTransitionTime": stamp()}
POD = {"namespace": "ml", "name": "trainer", "uid": "1", "device": device_id(0), "reason": "Xid79", "since": stamp()}
ACTION = {"name": "taint", "reason": "Refused", "message": "the budget is used up", "observedGeneration": 1}
OPERATORS_PART = {"conditions": [STALE], "affectedPods": [POD], "actions": [ACTION]}


@pytest.fixture(scope="module")
def _installed(admin: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The default overlay and a component with a namespace, as a kustomization of a user's has them."""
    folder = tmp_path_factory.mktemp("kustomization")
    manifests = os.path.relpath(ROOT / "manifests", folder.resolve())
    document = {
        "namespace": NAMESPACE,
        "namePrefix": ACCOUNT.removesuffix("nodedevices-agent"),
        "resources": [f"{manifests}/overlays/default"],
        "components": [f"{manifests}/components/mps"],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(document))
    found = [it for it in yaml.safe_load_all(admin.run("kustomize", str(folder))) if it]
    ours = folder / "objects.json"  # the CRDs are the whole session's
    items = [it for it in found if it["kind"] != "CustomResourceDefinition"]
    ours.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    admin.run("apply", "-f", str(ours))
    yield
    admin.run("delete", "-f", str(ours), "--wait=false")


@pytest.fixture
def nodes(_installed: None, kubectl: Kubectl) -> tuple[FleetNode, FleetNode]:
    """Two nodes; of the first the operator has written its part of the status already."""
    mine, other = FleetNode(kubectl, "mine").create(), FleetNode(kubectl, "other").create()
    server_side = ("apply", "--server-side", "--subresource=status", f"--field-manager={OPERATORS}", "-f", "-")
    kubectl.run(*server_side, stdin=json.dumps(OBJECT | {"status": OPERATORS_PART}))
    return mine, other


@pytest.fixture
def agent(nodes: tuple[FleetNode, FleetNode], apiserver: ApiServer, kubectl: Kubectl, tmp_path: Path) -> Kubectl:
    """kubectl with the token of a pod of the agent on the first node."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "agent", "namespace": NAMESPACE},
        "spec": {"nodeName": "mine", "serviceAccountName": ACCOUNT, "containers": [{"name": "agent", "image": "none"}]},
    }
    kubectl.apply(pod)
    token = kubectl.token(ACCOUNT, NAMESPACE, pod="agent")
    made = Kubectl(access.kubeconfig(apiserver.kubeconfig, tmp_path / "agent.kubeconfig", token), kubectl.binary)

    def active() -> bool:  # the API server hears of a new policy within a second
        try:
            patch(made, {"metadata": {"labels": {}}}, node="other", status=False)
        except KubectlError as error:
            return "may not write nodedevices other" in error.said
        return False

    wait_until("the admission policy is in effect", active)
    return made


def patch(
    agent: Kubectl,
    body: Any,
    *,
    node: str = "mine",
    status: bool = True,
    kind: str = access.MERGE,
    query: str = "",
) -> None:
    """As a program would: `kubectl patch --subresource` reads the subresource first, which the agent may not.

    KubectlError with what the API server said.
    """
    [user] = yaml.safe_load(agent.kubeconfig.read_text())["users"]
    path = f"/apis/nodedevices.io/v1alpha1/nodedevices/{node}{'/status' if status else ''}{query}"
    try:
        access.Account.of(agent.kubeconfig, user["user"]["token"]).request("PATCH", path, body, kind)
    except access.Refused as error:
        raise KubectlError(("PATCH", path), error.code, str(error)) from error


def apply(agent: Kubectl, change: dict[str, Any], *, status: bool = True, manager: str = "nodedevices-agent") -> None:
    query = f"?fieldManager={manager}&force=true"
    patch(agent, OBJECT | change, status=status, kind=access.APPLY, query=query)


def test_it_reports_its_own_node_again_and_again_beside_the_operators_part(
    nodes: tuple[FleetNode, FleetNode], agent: Kubectl
) -> None:
    mine = nodes[0]
    admin, mine.kubectl = mine.kubectl, agent
    mine.fail(0)
    mine.recover(0)
    mine.conditions = {"ConfigApplied": ("False", "ConfigInvalid")}
    mine.report()
    mine.kubectl = admin
    shown = mine.object
    assert condition(shown, "ConfigApplied")["reason"] == "ConfigInvalid"
    assert condition(shown, "Stale")["status"] == "False"
    assert [it["name"] for it in shown["status"]["affectedPods"]] == ["trainer"]


def test_another_nodes_object_is_refused(agent: Kubectl) -> None:
    for body, status in (({"status": {"affectedPods": []}}, True), ({"metadata": {"labels": {"a": "b"}}}, False)):
        with pytest.raises(KubectlError, match="node mine may not write nodedevices other"):
            patch(agent, body, node="other", status=status)


def test_it_can_neither_invent_a_node_nor_give_its_object_another_owner(
    nodes: tuple[FleetNode, FleetNode], agent: Kubectl
) -> None:
    invented = OBJECT | {"metadata": {"name": "no-such-node"}, "spec": {}}
    with pytest.raises(KubectlError, match="may not write nodedevices no-such-node"):
        agent.run("create", "--validate=false", "-f", "-", stdin=json.dumps(invented))
    owner = {"apiVersion": "v1", "kind": "Node", "name": "other", "uid": nodes[1].uid}
    with pytest.raises(KubectlError, match="only owner allowed"):
        apply(agent, {"metadata": {"name": "mine", "ownerReferences": [owner]}}, status=False)


OPERATORS_CONDITIONS = ("PolicyResolved", "ActionsSynced", "Stale", "ProblemReported", "MaintenanceScheduled")


def test_what_the_operator_reports_is_refused(agent: Kubectl) -> None:
    for pods in ([], [POD, POD | {"uid": "2", "name": "other"}], [POD | {"name": "other"}]):
        with pytest.raises(KubectlError, match=r"may not write status\.actions and status\.affectedPods"):
            patch(agent, {"status": {"affectedPods": pods}})
    for actions in ([], [ACTION | {"reason": "InSync"}], [ACTION, ACTION | {"name": "capacity"}]):
        with pytest.raises(KubectlError, match=r"may not write status\.actions and status\.affectedPods"):
            patch(agent, {"status": {"actions": actions}})
    for kind in OPERATORS_CONDITIONS:
        made = STALE | {"type": kind, "status": "True", "reason": "Lie"}
        with pytest.raises(KubectlError, match="may not write the operator's conditions"):
            apply(agent, {"status": {"conditions": [made]}})
    with pytest.raises(KubectlError, match="may not write the operator's conditions"):
        patch(agent, {"status": {"conditions": []}})
    for status in (
        {"affectedPods": [POD]},
        {"actions": [ACTION]},
        {"conditions": [STALE]},
    ):  # what two own stays when one takes it back
        with pytest.raises(KubectlError, match="may not own"):
            apply(agent, {"status": status})


def test_owning_what_people_and_the_operator_wrote_is_refused(agent: Kubectl, kubectl: Kubectl) -> None:
    """With the very values that stand there: a configuration or a cordon that is taken back would stay."""
    cordon = {"unschedulable": [{"id": device_id(0), "reason": "RMA"}]}
    confirmed = {CONFIRM: f"{device_id(0)}=recovered@{stamp()}"}
    for manager, body in (
        ("nodedevices-operator-config", {"spec": {"config": {}, "configHash": "ab", "configName": "special"}}),
        ("person", {"metadata": OBJECT["metadata"] | {"annotations": confirmed}, "spec": cordon}),
    ):
        apply_object(kubectl, manager, body)
    for body in (
        {"spec": {"configName": "special"}},
        {"spec": cordon},
        {"metadata": OBJECT["metadata"] | {"annotations": confirmed}},
    ):
        for manager in ("nodedevices-agent", "before-first-apply"):
            with pytest.raises(KubectlError, match="may not own, or take ownership of, fields of spec"):
                apply(agent, body, status=False, manager=manager)
    apply_object(kubectl, "nodedevices-operator-config", {"spec": {"config": {}, "configHash": "cd"}})
    apply_object(kubectl, "person", {})
    shown = kubectl.object("nodedevices", "mine")
    assert (shown["spec"], "annotations" in shown["metadata"]) == ({"config": {}, "configHash": "cd"}, False)


def apply_object(kubectl: Kubectl, manager: str, change: dict[str, Any]) -> None:
    server_side = ("apply", "--server-side", "--force-conflicts", f"--field-manager={manager}", "-f", "-")
    kubectl.run(*server_side, stdin=json.dumps(OBJECT | change))


def test_the_operators_ownership_stays(agent: Kubectl, kubectl: Kubectl) -> None:
    """An empty list of managedFields resets them; then the operator could no longer take back what it wrote."""
    for status in (True, False):
        reset = [{"op": "replace", "path": "/metadata/managedFields", "value": [{}]}]
        with suppress(KubectlError):
            patch(agent, reset, kind=access.JSON, status=status)
        shown = kubectl.object("nodedevices", "mine")
        [entry] = [it for it in shown["metadata"]["managedFields"] if it["manager"] == OPERATORS]
        assert set(entry["fieldsV1"]["f:status"]) == {f"f:{key}" for key in OPERATORS_PART}


def test_what_the_operator_applied_stays_applied(agent: Kubectl, kubectl: Kubectl) -> None:
    """Of what became an Update it takes nothing back: its conditions and affectedPods would stay for good."""

    def fields() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = kubectl.object("nodedevices", "mine")["metadata"]["managedFields"]
        return found

    changed = [each | {"operation": "Update"} if each["manager"] == OPERATORS else each for each in fields()]
    with pytest.raises(KubectlError, match="may not own"):
        patch(agent, {"metadata": {"managedFields": changed}}, status=False)
    with suppress(KubectlError):
        patch(agent, {"metadata": {"managedFields": changed}})
    assert [each["operation"] for each in fields() if each["manager"] == OPERATORS] == ["Apply"]


def test_what_people_and_the_operator_write_is_refused(agent: Kubectl) -> None:
    for body in (
        {"spec": {"config": {"sharing": {"strategy": "none"}}}},
        {"spec": {"unschedulable": [{"id": device_id(0), "reason": "mine"}]}},
        {"metadata": {"finalizers": ["example.com/for-ever"]}},
        {"metadata": {"annotations": {CONFIRM: f"{device_id(0)}=recovered@{stamp()}"}}},
        {"metadata": {"annotations": {CONFIRM: "config=accepted@abc"}}},
        {"metadata": {"labels": {"a": "b"}}},
    ):
        with pytest.raises(KubectlError, match="an agent may not write"):
            patch(agent, body, status=False)


OUT = {"unschedulable": [{"id": device_id(0), "reason": "RMA 4711"}]}


def test_an_object_that_was_deleted_is_made_again_with_nothing_but_what_is_out_of_service(
    agent: Kubectl, kubectl: Kubectl
) -> None:
    kubectl.delete("nodedevices", "mine")
    refused: tuple[dict[str, Any], ...] = (OUT | {"config": {}}, {"configHash": "aa"})
    for spec in refused:
        with pytest.raises(KubectlError, match="an agent may not write spec"):
            agent.run("create", "--validate=false", "-f", "-", stdin=json.dumps(OBJECT | {"spec": spec}))
    not_there: list[dict[str, Any]] = [
        {"f:spec": {"f:configName": {}}},
        {"f:spec": {"f:unschedulable": {'k:{"id":"GPU-of-later"}': {"f:reason": {}}}}},
        {"f:metadata": {"f:annotations": {"f:nodedevices.io/confirm": {}}}},
    ]
    for owned in not_there:
        entry = {"manager": "person", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": owned}
        entry |= {"apiVersion": OBJECT["apiVersion"], "time": "2026-11-21T12:00:00Z"}
        invented = {"name": "mine", "managedFields": [entry]}
        with pytest.raises(KubectlError, match="may not claim fields that the object does not have"):
            agent.run("create", "--validate=false", "-f", "-", stdin=json.dumps(OBJECT | {"metadata": invented}))
    agent.run("create", "--validate=false", "-f", "-", stdin=json.dumps(OBJECT | {"spec": OUT}))
    assert kubectl.object("nodedevices", "mine")["spec"] == OUT
    with pytest.raises(KubectlError, match="an agent may not write spec"):
        patch(agent, {"spec": {"unschedulable": []}}, status=False)


def test_everything_but_nodedevices_is_refused(agent: Kubectl) -> None:
    fleet_pods = ("-n", fleet.NAMESPACE)
    for what in (("get", "pods"), ("get", "secrets"), ("get", "nodes"), ("get", "events"), ("get", "devicepolicies")):
        with pytest.raises(KubectlError, match="forbidden"):
            agent.run(*what, *fleet_pods)
    for verb, thing in (
        ("get", "nodedevices"),
        ("delete", "nodedevices"),
        ("update", "nodedevices"),
        ("patch", "pods/status"),
    ):
        with pytest.raises(KubectlError, match="no"):
            agent.run("auth", "can-i", verb, thing)
