"""`policy dry-run`: what a changed policy would do is said before anything is written, with and without a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from nodedevices_common.observing import NO_TAINT
from nodedevices_operator.desired.consequences import ON_OFFER
from nodedevices_operator.desired.fleet import EVICT, Action, Fleet, to_data
from support.command_line import CommandLine, JsonObject, condition, failed, gpu, node
from support.recorded_api import NODE_DEVICES, NODES, POLICIES, RecordedApi

SHARED = {"strategy": "timeSlicing", "resources": [{"name": "nvidia.com/gpu", "replicas": 2}]}


def policy(name: str = "share", /, *, labels: dict[str, str] | None = None, **spec: Any) -> JsonObject:
    return {
        "apiVersion": "nodedevices.io/v1alpha1",
        "kind": "DevicePolicy",
        "metadata": {"name": name},
        "spec": {"nodeSelector": {"matchLabels": labels or {}}, **spec},
    }


def in_effect(item: JsonObject, config: JsonObject, policy_name: str = "share") -> JsonObject:
    by = {"name": policy_name, "generation": 1, "priority": 0, "sections": sorted(config)}
    item["spec"] = {"config": config, "configHash": "ab", "policies": [by]}
    item["status"] |= {"appliedConfigHash": "ab", "configuration": {"sources": ["policy"]}}
    return item


@pytest.fixture
def fleet(api: RecordedApi) -> RecordedApi:
    """Two nodes, of which one's GPUs are held, and one that no selector of these tests matches."""
    api.add(NODE_DEVICES, node("n1", gpu(0, "ml/train-0"), gpu(1)), node("n2", gpu(0)), node("other", gpu(0)))
    for name in ("n1", "n2"):
        api.add(NODES, {"metadata": {"name": name, "labels": {"pool": "x"}}})
    api.add(NODES, {"metadata": {"name": "other"}})
    return api


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(*objects: Any, name: str = "policy.yaml") -> str:
        path = tmp_path / name
        path.write_text("---\n".join(each if isinstance(each, str) else yaml.safe_dump(each) for each in objects))
        return str(path)

    return write


def found(kubectl: CommandLine) -> dict[str, JsonObject]:
    return {each["node"]: each for each in json.loads(kubectl.out)["items"]}


CHANGED = """\
NODE   EFFECT      SECTIONS   IDS                   PODS
n1     HoldsBack   sharing    nvidia.com/gpu:2->4   ml/train-0
n2     Changes     sharing    nvidia.com/gpu:1->2   <none>
"""
SAID = """\
policy share would be created: it selects 2 of 3 nodes.
1 node would keep devices from new pods until their pods have ended (HoldsBack).
1 node would change at once (Changes).
  n1: gpu-0: not for new pods until these have ended: ml/train-0
"""


def test_a_new_policy_shows_nodes_ids_and_pods_in_the_way(fleet: RecordedApi, kubectl: CommandLine, write: Any) -> None:
    path = write(policy(labels={"pool": "x"}, sharing=SHARED))
    assert kubectl("policy", "dry-run", "-f", path) == 3
    assert (kubectl.out, kubectl.err) == (CHANGED, SAID)
    assert all("dryRun=All" in target for target, _, _ in fleet.changes)


def test_a_policy_that_selects_no_node_says_why(fleet: RecordedApi, kubectl: CommandLine, write: Any) -> None:
    assert kubectl("policy", "dry-run", "-f", write(policy(labels={"pool": "y"}, sharing=SHARED))) == 4
    nothing = "its spec.nodeSelector matches no node with devices"
    assert kubectl.err == f"policy share would be created: it selects 0 of 3 nodes: {nothing}.\n"


def test_where_no_pod_is_concerned_the_exit_code_is_0(fleet: RecordedApi, kubectl: CommandLine, write: Any) -> None:
    fleet.objects[NODE_DEVICES][0] = node("n1", gpu(0), gpu(1))
    assert kubectl("policy", "dry-run", "-f", write(policy(labels={"pool": "x"}, sharing=SHARED)), "-o", "json") == 0
    assert {name: each["effect"] for name, each in found(kubectl).items()} == {"n1": "Changes", "n2": "Changes"}
    assert found(kubectl)["n2"]["resources"] == [
        {
            "name": "nvidia.com/gpu",
            "before": 1,
            "after": 2,
            "gone": 1,
            "added": 2,
            "sharing": "timeSlicing, 2 each",
            "by": "plugin",
            "formerly": "",
        }
    ]


def test_saved_objects_give_the_same_answer_without_a_cluster(
    fleet: RecordedApi, kubectl: CommandLine, write: Any
) -> None:
    saved = [{**each, "kind": "Node"} for each in fleet.objects[NODES]]
    listed = write({"kind": "List", "items": fleet.objects[NODE_DEVICES]}, *saved, name="cluster.yaml")
    path = write(policy(labels={"pool": "x"}, sharing=SHARED))
    assert kubectl("policy", "dry-run", "-f", path, "--from", listed, "--context", "gone") == 3
    assert (kubectl.out, kubectl.err) == (CHANGED, SAID)
    assert not fleet.requests


def test_a_deleted_policy_takes_its_shares_along(fleet: RecordedApi, kubectl: CommandLine) -> None:
    shares = {"name": "nvidia.com/gpu", "capacity": 2, "sharing": "timeSlicing", "replicas": 2, "managedBy": "plugin"}
    fleet.objects[NODE_DEVICES] = [in_effect(node("n2", gpu(0), resources=[shares]), {"sharing": SHARED})]
    fleet.add(POLICIES, policy(sharing=SHARED))
    assert kubectl("policy", "dry-run", "--delete", "share") == 0
    assert kubectl.out.splitlines()[1].split() == ["n2", "Changes", "sharing", "nvidia.com/gpu:2->1", "<none>"]
    assert "policy share would be deleted: it selects 1 of 1 nodes now." in kubectl.err
    assert kubectl("policy", "dry-run", "--delete", "shere") == 1
    assert "--delete shere: there is no such policy; there are: share" in kubectl.err


def test_a_policy_keeps_its_age_and_the_same_changes_nothing(
    fleet: RecordedApi, kubectl: CommandLine, write: Any
) -> None:
    fleet.add(POLICIES, policy(sharing=SHARED))
    fleet.objects[POLICIES][0]["metadata"] |= {"resourceVersion": "5", "creationTimestamp": "2026-01-01T00:00:00Z"}
    assert kubectl("policy", "dry-run", "-f", write(policy(sharing=SHARED))) == 0
    assert "policy share is already so: nothing would change." in kubectl.err
    [(target, _, body)] = fleet.changes
    assert target.startswith(f"{POLICIES}/share?")
    assert body["metadata"]["resourceVersion"] == "5"


def test_a_name_that_no_node_offers_is_said_beside_it(fleet: RecordedApi, kubectl: CommandLine, write: Any) -> None:
    """A typo changes nothing, and looks like a change that does no harm."""
    typo = {"strategy": "timeSlicing", "resources": [{"name": "nvidia.com/gpus", "replicas": 4}]}
    assert kubectl("policy", "dry-run", "-f", write(policy(labels={"pool": "x"}, sharing=typo))) == 4
    said = "sharing.resources[0].name nvidia.com/gpus: no such resource on this node; offered: nvidia.com/gpu"
    assert f"  n2: {said}" in kubectl.err


def test_what_the_schema_refuses_has_field_and_value(fleet: RecordedApi, kubectl: CommandLine, write: Any) -> None:
    wrong = {"strategy": "timeSlicing", "resources": [{"name": "nvidia.com/gpu", "replicas": 0}]}
    assert kubectl("policy", "dry-run", "-f", write(policy(sharing=wrong))) == 3
    assert "policy share would be refused: spec.sharing.resources[0].replicas: 0 is not allowed; give" in kubectl.err
    assert not fleet.changes


def test_what_the_server_refuses_is_refused_or_not_asked(fleet: RecordedApi, kubectl: CommandLine, write: Any) -> None:
    path = write(policy(labels={"pool": "none"}, sharing=SHARED))
    for code, exit_code, said in ((422, 3, "policy share would be refused: API"), (403, 4, "has not checked policy")):
        fleet.refusals[f"POST {POLICIES}"] = [code]
        assert kubectl("policy", "dry-run", "-f", path) == exit_code
        assert said in kubectl.err


def test_what_the_agent_would_refuse_is_shown_on_its_node(fleet: RecordedApi, kubectl: CommandLine, write: Any) -> None:
    fast = {"devices": [{"match": {"ids": [gpu(1)["id"]]}, "name": "example.com/fast"}]}
    shares = {"strategy": "timeSlicing", "resources": [{**SHARED["resources"][0], "rename": "example.com/fast"}]}  # type: ignore[dict-item]
    assert kubectl("policy", "dry-run", "-f", write(policy(resources=fast, sharing=shares)), "-o", "json") == 3
    assert found(kubectl)["n1"]["effect"] == "Refused"
    assert "another resource of this node has that name" in found(kubectl)["n1"]["message"]
    assert found(kubectl)["n2"]["effect"] == "Changes"


def test_an_older_policy_that_wins_is_named(fleet: RecordedApi, kubectl: CommandLine, write: Any) -> None:
    fleet.add(POLICIES, policy("whole", sharing={"strategy": "none"}))
    assert kubectl("policy", "dry-run", "-f", write(policy(sharing=SHARED)), "-o", "json") == 3
    assert found(kubectl)["n2"]["effect"] == "Refused"
    assert "the older whole stays in effect" in found(kubectl)["n2"]["message"]


def test_of_a_node_that_is_behind_no_number_is_given(fleet: RecordedApi, kubectl: CommandLine, write: Any) -> None:
    fleet.add(POLICIES, policy("parts", partitions={"strategy": "mixed"}))
    assert kubectl("policy", "dry-run", "-f", write(policy(sharing=SHARED)), "-o", "json") == 3
    assert {each["effect"] for each in found(kubectl).values()} == {"Uncertain", "Changes"}
    assert found(kubectl)["n1"]["mayChange"] == ["nvidia.com/gpu"]
    assert found(kubectl)["n1"]["resources"] == []


FAULTS = {"taintEffect": "NoSchedule", "evictMode": "Immediate", "budget": {"perHour": 5}}


def test_taints_and_evictions_are_shown_within_limits(fleet: RecordedApi, kubectl: CommandLine, write: Any) -> None:
    fleet.objects[NODE_DEVICES][0] = node("n1", gpu(0, "ml/train-0", **failed()), gpu(1))
    path = write(policy(faults=FAULTS))
    assert kubectl("policy", "dry-run", "-f", path, "-o", "json") == 3
    assert found(kubectl)["n1"]["effect"] == "Acts"
    assert "would taint the Node NoSchedule for Xid79" in found(kubectl)["n1"]["message"]
    stopped = condition("ActionsStopped", "True", "MassFault", "30 of 40 nodes failed")
    fleet.add(POLICIES, {**policy("evict", labels={"a": "b"}, faults=FAULTS), "status": {"conditions": [stopped]}})
    assert kubectl("policy", "dry-run", "-f", path, "-o", "json") == 3
    assert "would not taint the Node NoSchedule for Xid79" in found(kubectl)["n1"]["message"]
    assert "30 of 40 nodes failed" in found(kubectl)["n1"]["message"]


def test_a_policy_that_gets_more_nodes_counts_the_old(fleet: RecordedApi, kubectl: CommandLine, write: Any) -> None:
    """`n2`, which has the policy already, is out of service: the one node that maxUnavailable allows."""
    faults = {"taintEffect": "NoSchedule", "budget": {"maxUnavailable": 1}}
    fleet.add(POLICIES, policy("faults", labels={"pool": "y"}, faults=faults))
    fleet.objects[NODE_DEVICES][:2] = [
        node("n1", gpu(0, **failed())),
        in_effect(node("n2", gpu(0)), {"faults": faults}, "faults"),
    ]
    for each in fleet.objects[NODES]:
        each["status"] = {"conditions": [condition("Ready", "True", "KubeletReady")]}
    fleet.objects[NODES][1] |= {"spec": {"unschedulable": True}}
    fleet.objects[NODES][1]["metadata"]["labels"] = {"pool": "y"}
    path = write(policy("faults", faults=faults))
    assert kubectl("policy", "dry-run", "-f", path, "-o", "json") == 3
    assert "out of service (maxUnavailable), and 1 of its 3 nodes are: n2" in found(kubectl)["n1"]["message"]
    fleet.objects[NODE_DEVICES][0]["metadata"]["labels"] = {"x": "y"}
    assert kubectl("policy", "dry-run", "-f", path, "-o", "json", "-l", "x=y") == 3
    assert list(found(kubectl)) == ["n1"], "shown; all of them count"
    assert "1 of its 3 nodes are: n2" in found(kubectl)["n1"]["message"]


def test_actions_of_this_hour_count_or_are_not_known(fleet: RecordedApi, kubectl: CommandLine, write: Any) -> None:
    fleet.objects[NODE_DEVICES][0] = node("n1", gpu(0, "ml/train-0", **failed()), gpu(1))
    record = "nodedevices-system/nodedevices-actions"
    fleet.add(POLICIES, {**policy("other", labels={"a": "b"}, faults=FAULTS), "status": {"actionsRecord": record}})
    action = Action("2026-11-23T11:50:00Z", "n2", EVICT, "ml/x/1", "Xid79")
    done = to_data(Fleet(place=record, actions=((action, "2026-11-23T11:50:00Z"),) * 5))
    at = "/api/v1/namespaces/nodedevices-system/configmaps/nodedevices-actions"
    fleet.singles[at] = {"metadata": {"name": "nodedevices-actions"}, "data": done}
    path = write(policy(faults=FAULTS))
    kubectl("policy", "dry-run", "-f", path, "-o", "json")
    assert "perHour" in found(kubectl)["n1"]["message"]
    fleet.refusals[at] = [403]
    kubectl("policy", "dry-run", "-f", path, "-o", "json")
    doubt = f"unknown here, and counted as none: which actions ConfigMap {record} records as done"
    assert found(kubectl)["n1"]["message"].endswith(doubt)


def test_a_fault_is_acted_on_by_its_devices_rule(fleet: RecordedApi, kubectl: CommandLine, write: Any) -> None:
    fleet.objects[NODE_DEVICES][0] = node("n1", gpu(0, "ml/train-0", **failed()), gpu(1))
    kept = {"match": {"type": "gpu"}, "taintEffect": "None", "evictMode": "Never"}
    nics = {"reasons": ["LinkDown"], "state": "Ignored", "match": {"type": "nic"}}
    spec: dict[str, Any] = {"faults": FAULTS | {"rules": [kept]}, "health": {"rules": [nics]}}
    assert kubectl("policy", "dry-run", "-f", write(policy(**spec)), "-o", "json") == 4
    said = found(kubectl)["n1"]
    assert said["effect"] == "Changes", "no taint, no eviction"
    [note] = said["unmatched"]
    assert note.startswith("health.rules[0].match type nic: the rule applies to no device on this node; there are: ")


@pytest.mark.parametrize("offline", [False, True])
def test_health_rules_without_effect_are_said_as_the_node_would_say_them(
    fleet: RecordedApi, kubectl: CommandLine, write: Any, offline: bool
) -> None:
    rules = [
        {"reasons": ["xid79"], "state": "Ignored"},
        {"reasons": ["Missing", "Xid31"], "state": "Degraded"},
        {"reasons": ["Xid31"], "state": "Unhealthy", "after": {"count": 3, "windowSeconds": 3600}},
    ]
    saved = write({"kind": "List", "items": fleet.objects[NODE_DEVICES]}, name="cluster.yaml")
    source = ("--from", saved) if offline else ()
    path = write(policy(health={"rules": rules}))
    assert kubectl("policy", "dry-run", "-f", path, *source, "-o", "json") == 4
    assert [each.partition(":")[0] for each in found(kubectl)["n1"]["unmatched"]] == [
        "health.rules[0].reasons xid79",
        "health.rules[1].reasons Missing",
        "health.rules[2].after.count 3",
    ]


def test_devices_expected_of_a_node_and_not_there_are_said(
    fleet: RecordedApi, kubectl: CommandLine, write: Any
) -> None:
    expect = [{"type": "gpu", "count": 2}]
    assert kubectl("policy", "dry-run", "-f", write(policy(labels={"pool": "x"}, expect=expect))) == 0
    assert "  n2: expect[0]: type gpu: 1 of 2 found\n" in kubectl.err
    assert "n1: " not in kubectl.err
    expect = [{"productName": "NVIDIA H200*", "count": 2}]
    assert kubectl("policy", "dry-run", "-f", write(policy(labels={"pool": "x"}, expect=expect))) == 4


def test_an_extended_resource_is_counted_or_refused(fleet: RecordedApi, kubectl: CommandLine, write: Any) -> None:
    entries = [{"name": "example.com/slot", "perNode": 8}, {"name": "nvidia.com/gpu", "perNode": 1}]
    assert kubectl("policy", "dry-run", "-f", write(policy(capacity=entries[:1])), "-o", "json") == 0
    [slots] = found(kubectl)["n1"]["resources"]
    assert (slots["name"], slots["before"], slots["after"], slots["by"]) == ("example.com/slot", 0, 8, "operator")
    assert kubectl("policy", "dry-run", "-f", write(policy(capacity=entries)), "-o", "json") == 3
    assert "nvidia.com/gpu is served by the device plugin" in found(kubectl)["n1"]["message"]


BY_DRA: JsonObject = {"serving": {"api": "DRA"}, "injection": {"deviceListStrategies": ["cdi-cri"]}}
SWITCHED = """\
NODE   EFFECT       SECTIONS            IDS                          PODS
n1     HoldsBack    serving,injection   nvidia.com/gpu:2->2 by dra   ml/train-0
n2     TakesNames   serving,injection   nvidia.com/gpu:1->1 by dra   <none>
"""
WITHOUT = "pods that request nvidia.com/gpu without a claim get none of this node (kubelet v1.35.1; that needs 1.36)"


def test_a_switch_to_dra_says_whose_devices_follow_later_and_where_pods_lose_the_name(
    fleet: RecordedApi, kubectl: CommandLine, write: Any
) -> None:
    path = write(policy(labels={"pool": "x"}, **BY_DRA))
    versions = ("v1.36.0", "v1.35.1", "v1.35.1")
    for item, version in zip(fleet.objects[NODES], versions, strict=True):
        item["status"] = {"nodeInfo": {"kubeletVersion": version}}
    assert kubectl("policy", "dry-run", "-f", path) == 3
    assert kubectl.out == SWITCHED
    waits = "gpu-0: not for new pods until these have ended: ml/train-0"
    assumed = "it is assumed that the node has the component dra"
    assert f"  n1: {waits}; {assumed}\n  n2: {assumed}; {WITHOUT}\n" in kubectl.err
    assert "1 node would give no device to new pods that request it by its name (TakesNames)." in kubectl.err
    fleet.objects[NODES][1]["status"]["nodeInfo"]["kubeletVersion"] = "v1.33.4"
    assert kubectl("policy", "dry-run", "-f", path, "-o", "json") == 3
    assert found(kubectl)["n2"]["effect"] == "Refused"
    assert found(kubectl)["n2"]["message"].startswith("serving.api: DRA needs Kubernetes 1.34 or later")
    fleet.objects[NODES][1]["status"]["nodeInfo"]["kubeletVersion"] = "v1.37.2"
    fleet.objects[NODE_DEVICES][0] = node("n1", gpu(0), gpu(1))
    assert kubectl("policy", "dry-run", "-f", path, "-o", "json") == 0
    assert {name: each["effect"] for name, each in found(kubectl).items()} == {"n1": "Changes", "n2": "Changes"}
    by_variables = write(policy(labels={"pool": "x"}, serving={"api": "DRA"}), name="envvar.yaml")
    assert kubectl("policy", "dry-run", "-f", by_variables, "-o", "json") == 3
    assert "with serving.api DRA write [cdi-cri]" in found(kubectl)["n1"]["message"]


def test_a_policy_that_is_only_paused_is_not_called_already_so(
    fleet: RecordedApi, kubectl: CommandLine, write: Any
) -> None:
    fleet.add(POLICIES, policy(sharing=SHARED))
    assert kubectl("policy", "dry-run", "-f", write(policy(mode="Paused", sharing=SHARED))) == 3
    assert "policy share would be changed" in kubectl.err, "a node that does not have it yet would not get it"


def test_a_policy_that_only_reports_is_shown_as_enforced(fleet: RecordedApi, kubectl: CommandLine, write: Any) -> None:
    assert kubectl("policy", "dry-run", "-f", write(policy(mode="DryRun", sharing=SHARED))) == 3
    assert "its mode is DryRun: this shows what Enforce would do" in kubectl.err
    assert "nvidia.com/gpu:1->2" in kubectl.out


def test_who_may_not_read_nodes_sees_what_labels_select(fleet: RecordedApi, kubectl: CommandLine, write: Any) -> None:
    fleet.objects[NODE_DEVICES][1]["metadata"]["labels"] = {"pool": "x"}
    fleet.refusals[NODES] = [403]
    assert kubectl("policy", "dry-run", "-f", write(policy(labels={"pool": "x"}, sharing=SHARED)), "-o", "name") == 0
    assert kubectl.out == "n2\n"
    assert "You may not read Nodes" in kubectl.err


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("kind: Pod\nmetadata: {name: a}", "kind: 'Pod' is not supported here; give DevicePolicy"),
        ("kind: DevicePolicy\nmetadata: {}", "metadata.name: None: give the object's name"),
        ("kind: [", "not YAML: did not find expected node content"),
        ("3", "3 is not an object; give apiVersion, kind, metadata and spec"),
        ('{"kind": "List", "items": [3]}', "items[0]: 3 is not an object"),
        ("---\n" + yaml.safe_dump(policy(sharing=SHARED)) + "---\nkind: Node", "document 2: kind: 'Node' is not supp"),
    ],
)
def test_a_file_that_is_no_policy_is_refused_with_its_place(
    fleet: RecordedApi, kubectl: CommandLine, write: Any, content: str, why: str
) -> None:
    path = write(content)
    assert kubectl("policy", "dry-run", "-f", path) == 1
    assert kubectl.err.startswith(f"error: {path}: ")
    assert why in kubectl.err
    assert not fleet.requests


def test_wrong_use_says_what_is_right(fleet: RecordedApi, kubectl: CommandLine, write: Any, tmp_path: Path) -> None:
    path = write(policy(sharing=SHARED))
    assert kubectl("policy", "dry-run") == 2
    assert "give a policy with -f FILE, or --delete NAME" in kubectl.err
    assert kubectl("policy", "dry-run", "-f", str(tmp_path / "none.yaml")) == 1
    assert "none.yaml: No such file or directory" in kubectl.err
    assert kubectl("policy", "dry-run", "-f", path, "-f", path) == 1
    assert "policy share: it is given twice" in kubectl.err
    assert kubectl("policy", "dry-run", "-f", path, "--from", path) == 1
    assert "no NodeDevices in these files; to save them: kubectl get" in kubectl.err


# --- where another plugin serves the kubelet -------------------------------------------------------------------------
@pytest.fixture
def observing(fleet: RecordedApi) -> RecordedApi:
    """The two nodes observe, by their agents' own flag."""
    for each in fleet.objects[NODE_DEVICES]:
        each["status"]["configuration"] = {"sources": ["flags"], "serving": "Observe"}
    return fleet


@pytest.mark.usefixtures("observing")
def test_shares_that_another_plugin_will_not_make_are_not_foretold(kubectl: CommandLine, write: Any) -> None:
    assert kubectl("policy", "dry-run", "-f", write(policy(labels={"pool": "x"}, sharing=SHARED))) == 4, (
        "it has no effect"
    )
    assert "->" not in kubectl.out
    assert kubectl.err.splitlines()[1:] == [
        "2 nodes would change at once (Changes).",
        "  n1: sharing.* has no effect while serving.mode is Observe",
        "  n2: sharing.* has no effect while serving.mode is Observe",
    ]


def test_evictions_in_a_circle_are_not_foretold(observing: RecordedApi, kubectl: CommandLine, write: Any) -> None:
    there = node("n1", gpu(0, "ml/train-0", **failed()))
    there["status"]["configuration"] = {"serving": "Observe"}
    observing.objects[NODE_DEVICES][0] = there
    faults = {"evictMode": "Immediate", "budget": {"perHour": 9}}
    assert kubectl("policy", "dry-run", "-f", write(policy(labels={"pool": "x"}, faults=faults)), "-o", "json") == 4
    said = found(kubectl)["n1"]
    assert (said["effect"], said["unmatched"]) == ("Changes", [NO_TAINT])
    assert said["message"].startswith(f"would not evict ml/train-0: {ON_OFFER}")
