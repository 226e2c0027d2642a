"""The real operator and the real kube-apiserver: a pod that a kubelet rejected has an Event that says what its node
had, with the operator's own rights. Pods that were rejected for want of free memory are deleted, with the rights of the
component delete-rejected-pods, and no other pod is; with these rights no other pod can be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import audit, fleet
from support.access import Account, Refused, token_of_pod
from support.apiserver import ApiServer
from support.component_rights import rights_with
from support.fleet import NAMESPACE, FleetNode, events, get_pod, stamp
from support.kubectl import Kubectl, wait_until
from support.operatorprocess import NAMESPACE as SYSTEM
from support.operatorprocess import OperatorProcess

POLICY = "nodedevices-operator-own-deletions"
MEMORY = "nodedevices.io/gpu-memory"
SAID = (
    f"Pod was rejected: Allocate failed due to device plugin GetPreferredAllocation rpc failed with err: {MEMORY}: no "
    "device of this node has 12 free shares of 1Gi, which is unexpected"
)
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "rs", "controller": True}


@pytest.fixture(scope="module")
def rights(admin: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A kubeconfig of the operator's account with the component installed."""
    with rights_with("delete-rejected-pods", admin, tmp_path_factory.mktemp("rights")) as file:
        yield file


def node_by_memory(kubectl: Kubectl, name: str) -> FleetNode:
    node = FleetNode(kubectl, name).create()
    shares = {"name": MEMORY, "capacity": 22, "healthy": 22, "allocated": 0, "sharing": "memory", "managedBy": "plugin"}
    node.facts["resources"] = [shares]
    node.report()
    return node


def rejected(kubectl: Kubectl, name: str, node: str, *, said: str = SAID, owner: bool = True, ago: float = 60) -> str:
    """A pod in UnexpectedAdmissionError; its uid."""
    uid = fleet.pod(kubectl, name, node)
    if owner:
        kubectl.patch("pod", name, {"metadata": {"ownerReferences": [OWNER]}}, namespace=NAMESPACE)
    reason = {"reason": "UnexpectedAdmissionError", "message": said}
    fleet.patch_pod(kubectl, name, {"phase": "Failed", "startTime": stamp(-ago)} | reason)
    return uid


def test_rejected_pods_are_deleted_after_an_event_and_all_others_stay(
    apiserver: ApiServer, kubectl: Kubectl, rights: Path, tmp_path: Path
) -> None:
    fleet.namespace(kubectl)
    node_by_memory(kubectl, "n1")
    FleetNode(kubectl, "whole").create()
    uid = rejected(kubectl, "web-1", "n1")
    rejected(kubectl, "alone", "n1", owner=False)
    rejected(kubectl, "other-resource", "n1", said="Allocate failed for example.com/other, which is unexpected")
    rejected(kubectl, "other-node", "whole")
    fleet.pod(kubectl, "running", "n1")
    begin = audit.end(apiserver.audit_log)
    with OperatorProcess(tmp_path, rights, "--delete-rejected-pods", relist_seconds=3) as operator:
        wait_until("deleted", lambda: not get_pod(kubectl, "web-1"))
        wait_until("said", lambda: events(kubectl, uid))  # on its way since before, and by itself
        [event] = events(kubectl, uid)
        assert event["reason"] == "DeletingRejectedPod"
        assert "node n1 rejected it" in event["message"]
        assert "ReplicaSet web replaces it" in event["message"]
        # What comes while it watches, and what it finds when it starts again.
        rejected(kubectl, "web-2", "n1")
        wait_until("deleted", lambda: not get_pod(kubectl, "web-2"))
        operator.kill()
        rejected(kubectl, "web-3", "n1")
        operator.start()
        wait_until("deleted", lambda: not get_pod(kubectl, "web-3"))
        wait_until("counted", lambda: operator.metric("nodedevices_operator_deleted_rejected_pods_total") == 1)
        for name in ("alone", "other-resource", "other-node", "running"):
            assert get_pod(kubectl, name), name
    made = [each for each in audit.requests(apiserver.audit_log, after=begin) if each.account.startswith(SYSTEM)]
    assert [each.text for each in made if each.refused] == []


@pytest.mark.usefixtures("rights")
def test_with_these_rights_no_other_pod_can_be_deleted(apiserver: ApiServer, kubectl: Kubectl) -> None:
    fleet.namespace(kubectl)
    node_by_memory(kubectl, "n1")
    fleet.pod(kubectl, "running", "n1")
    rejected(kubectl, "alone", "n1", owner=False)
    rejected(kubectl, "failed", "n1")
    fleet.patch_pod(kubectl, "failed", {"reason": "Evicted"})
    rejected(kubectl, "static", "n1", owner=False)
    node = OWNER | {"apiVersion": "v1", "kind": "Node", "name": "n1"}
    kubectl.patch("pod", "static", {"metadata": {"ownerReferences": [node]}}, namespace=NAMESPACE)
    rejected(kubectl, "web-1", "n1")
    token = token_of_pod(kubectl, "nodedevices-operator", namespace=SYSTEM, node="n1")
    operator = Account.of(apiserver.kubeconfig, token)

    def refused(name: str) -> str:
        try:
            operator.request("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}")
        except Refused as error:
            return str(error)
        return ""

    wait_until("the admission policy is in effect", lambda: POLICY in refused("running"))
    rejection = "the operator may delete only pods that their node rejected (Failed, UnexpectedAdmissionError)"
    assert rejection in refused("running")
    assert rejection in refused("failed")
    for name in ("alone", "static"):
        assert "the operator may delete only pods that a controller replaces" in refused(name)
    assert refused("web-1") == ""
    assert not get_pod(kubectl, "web-1")
