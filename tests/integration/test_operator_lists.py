"""How often the real operator lists what there is, by the API server's audit log."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from nodedevices_api import GROUP
from support import audit
from support.apiserver import ApiServer
from support.fleet import FleetNode, policy
from support.kubectl import Kubectl, condition, wait_until
from support.operatorprocess import NAMESPACE, OperatorProcess, service_account

ACCOUNT = f"{NAMESPACE}:nodedevices-operator"
KINDS = {("", "nodes"), (GROUP, "nodedevices"), (GROUP, "devicepolicies")}


def test_an_operator_that_starts_lists_each_kind_once(apiserver: ApiServer, kubectl: Kubectl, tmp_path: Path) -> None:
    """Every LIST of a large fleet costs the API server and the operator seconds: one of kopf's and one of the metadata
    for each kind, and none comes again a moment later."""
    nodes = [FleetNode(kubectl, f"n{index}").create() for index in range(2)]
    rights = service_account(kubectl, tmp_path)
    begin = audit.end(apiserver.audit_log)
    with OperatorProcess(tmp_path, rights) as starting:
        wait_until("seen", lambda: all(condition(node.object, "PolicyResolved") for node in nodes))
        kubectl.apply(policy("everywhere", health={"holdDownSeconds": 7}))
        wait_until("it watches", lambda: all("config" in node.object["spec"] for node in nodes))
        assert starting.metric("nodedevices_operator_relists_total") == len(KINDS)
    made = [each for each in audit.requests(apiserver.audit_log, after=begin) if each.account == ACCOUNT]
    lists = [it for it in made if it.right is not None and it.right[2] == "list" and it.right[:2] in KINDS]
    by_kopf = [it.right for it in lists if "(kopf/" in it.text]
    assert Counter(by_kopf) == Counter((*kind, "list") for kind in KINDS), [it.text for it in lists]
    ours = [it for it in lists if "(kopf/" not in it.text]
    for kind in KINDS - {(GROUP, "devicepolicies")}:  # a page of policies every 30 s shows that the API server answers
        assert len([it for it in ours if it.right == (*kind, "list")]) == 1, [it.text for it in ours]
