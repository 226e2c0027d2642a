"""Whom a fault concerns, who may be spoken for, and what pods and Events say."""

from __future__ import annotations

from typing import Any

from nodedevices_api.conditions import POD_DEVICE_HEALTHY
from nodedevices_api.defaults import with_defaults
from nodedevices_api.errors import parse
from nodedevices_api.sections import Sections
from nodedevices_common.conditions import ConditionRecord
from nodedevices_operator.desired import pods
from nodedevices_operator.desired.events import Event, ObjectRef
from nodedevices_operator.desired.pods import NO_DEVICE, HolderMatch, Holding, Scope, scope
from nodedevices_operator.records.objects import Affected, NodeRecord
from support.cases import cases
from support.opfacts import GPU, MEMORY, NOW, SINCE, device, health, holder, record

SCOPE = Scope("n1", frozenset({GPU}))
LOST = {"message": "GPU has fallen off the bus", "recoveryAction": "RebootNode"}


def concern(state: str = "Unhealthy", reason: str = "Xid79", **held: Any) -> Holding:
    item = record(device(3, health=health(state, reason, **LOST), holders=[holder(**held)]))
    return pods.holdings(item, healthy_too=True)[0]


def pod(**changes: Any) -> dict[str, Any]:
    container = {"name": "main", "resources": {"limits": {GPU: "1"}}}
    return {
        "metadata": {"name": "trainer", "namespace": "ml", "uid": "pod-uid"},
        "spec": {"nodeName": "n1", "containers": [container]} | changes.pop("spec", {}),
        "status": {"phase": "Running", "startTime": SINCE} | changes.pop("status", {}),
    }


def allocated(identity: str, name: str = GPU) -> dict[str, Any]:
    entry = {"name": name, "resources": [{"resourceID": identity, "health": "Unhealthy"}]}
    return {"containerStatuses": [{"name": "main", "allocatedResourcesStatus": [entry]}]}


@cases(
    ("seen", "held", "answer"),
    (pod(), {}, HolderMatch.YES),
    (pod(spec={"nodeName": "n2"}), {}, HolderMatch.NO),
    (pod(status={"phase": "Failed"}), {}, HolderMatch.NO),
    (pod(spec={"containers": [{"name": "main"}]}), {}, HolderMatch.NO),
    (pod(spec={"containers": [{"name": "side", "resources": {"limits": {GPU: "1"}}}]}), {}, HolderMatch.NO),
    (pod(status=allocated("GPU-3")), {}, HolderMatch.YES),
    (pod(status=allocated("GPU-3::7")), {"ids": ["GPU-3::7"]}, HolderMatch.YES),
    (pod(status=allocated("GPU-4")), {}, HolderMatch.NO),
    (pod(status=allocated("GPU-4") | {"startTime": "2026-11-21T08:00:00Z"}), {}, HolderMatch.NO),
    (pod(status={"startTime": "2026-11-21T11:59:30Z"}), {}, HolderMatch.YES),
    (pod(status={"startTime": "2026-11-21T11:59:31Z"}), {}, HolderMatch.NO),
    (pod(status={"startTime": None}), {}, HolderMatch.NOT_YET),
    (pod(status={"startTime": "2026-11-21T11:00:00Z"}), {"since": ""}, HolderMatch.NOT_YET),
)
def test_whose_pod(seen: dict[str, Any], held: dict[str, Any], answer: HolderMatch) -> None:
    assert pods.match_holder(seen, concern(**held), SCOPE) is answer


@cases("resource", "cpu", "memory", MEMORY, "example.com/nobodys", "", None)
def test_a_holder_of_what_its_node_is_not_granted_is_nobody(resource: str | None) -> None:
    """Whatever its pod requests, and though its container is there: an agent may not have pods marked by their CPU."""
    limits = {"cpu": "1", "memory": "1Gi", MEMORY: "1", "example.com/nobodys": "1", GPU: "1"}
    seen = pod(spec={"containers": [{"name": "main", "resources": {"limits": limits}}]})
    assert pods.match_holder(seen, concern(resource=resource), SCOPE) is HolderMatch.NO
    assert pods.match_holder(seen, concern(), SCOPE) is HolderMatch.YES


NODE = NodeRecord("n1", "u", capacity={GPU: 8, "nvidia.com/mig-1g.10gb": 0, MEMORY: 640}, owned=frozenset({MEMORY}))


def test_a_node_is_granted_what_its_kubelet_shows_and_what_policies_name_and_not_what_the_operator_owns() -> None:
    assert scope("n1", NODE, None).resources == {GPU, "nvidia.com/mig-1g.10gb"}
    sections = {
        "resources": {"devices": [{"match": {}, "name": "example.com/h100"}]},
        "sharing": {
            "strategy": "timeSlicing",
            "resources": [{"name": GPU, "replicas": 2, "rename": "example.com/slice"}],
        },
        "capacity": [{"name": MEMORY, "sumOf": "memoryMiB"}],
    }
    policies = with_defaults(parse(Sections, sections))
    assert scope("n1", NodeRecord("n1", "u"), policies).resources == {
        *("example.com/h100", GPU, f"{GPU}.shared", "example.com/slice")
    }
    assert MEMORY not in scope("n1", NODE, policies).resources


def test_a_refused_capacity_takes_no_fault_from_holders_and_an_unknown_node_is_granted_nothing() -> None:
    sections = with_defaults(parse(Sections, {"capacity": [{"name": GPU, "perNode": 3}]}))
    assert GPU in scope("n1", NODE, sections).resources
    assert scope("n1", None, None).resources == frozenset()


@cases(
    ("claim", "answer"),
    ("gpus", HolderMatch.YES),
    ("trainer-two-x7k2p", HolderMatch.YES),
    ("trainer-ext-9q", HolderMatch.YES),
    ("other", HolderMatch.NO),
)
def test_whose_pod_by_claim(claim: str, answer: HolderMatch) -> None:
    claims = [{"name": "one", "resourceClaimName": "gpus"}, {"name": "two", "resourceClaimTemplateName": "template"}]
    made = [{"name": "two", "resourceClaimName": "trainer-two-x7k2p"}]
    status = {"resourceClaimStatuses": made, "extendedResourceClaimStatus": {"resourceClaimName": "trainer-ext-9q"}}
    seen = pod(spec={"containers": [{"name": "main"}], "resourceClaims": claims}, status=status)
    assert pods.match_holder(seen, concern(resource=None, claim=claim), SCOPE) is answer


LONG_BEFORE = {"startTime": "2026-11-21T08:00:00Z"}
LATER = {"startTime": "2026-11-21T16:00:00Z"}


@cases(
    ("identity", "more", "answer"),
    ("gpu.nvidia.com/n1/gpu-3", LATER, HolderMatch.YES),
    ("nodedevices.io/n1/gpu-3", LATER, HolderMatch.YES),
    ("nodedevices.io/n1/gpu-4", LONG_BEFORE, HolderMatch.NO),
    ("nvidia.com/gpu=GPU-3", LATER, HolderMatch.YES),
    ("nvidia.com/gpu=GPU-4", LONG_BEFORE, HolderMatch.NO),
    ("nvidia.com/gpu=3", LONG_BEFORE, HolderMatch.YES),  # an index, which is as good as nothing:
    ("nvidia.com/gpu=3:1", LATER, HolderMatch.NO),  # the times decide
    ("nodedevices.io/claim=0a1b-gpu", LONG_BEFORE, HolderMatch.YES),
    ("nodedevices.io/claim=0a1b-gpu", LATER, HolderMatch.NO),
    ("k8s.gpu.nvidia.com/claim=0a1b-gpu-4", LONG_BEFORE, HolderMatch.YES),
)
def test_a_claims_device_is_known_by_its_name_or_its_cdi_name_where_that_says_which_it_is(
    identity: str, more: dict[str, Any], answer: HolderMatch
) -> None:
    claims = [{"name": "one", "resourceClaimName": "gpus"}]
    status = allocated(identity, "claim:one/gpu") | more
    seen = pod(spec={"containers": [{"name": "main"}], "resourceClaims": claims}, status=status)
    assert pods.match_holder(seen, concern(resource=None, claim="gpus"), SCOPE) is answer


@cases(("number", "answer"), (0, HolderMatch.YES), (1, HolderMatch.NO))
def test_a_claims_partition_is_known_by_its_own_name_and_not_by_its_devices(number: int, answer: HolderMatch) -> None:
    held = holder("trainer", resource=None, claim="gpus")
    part = {"id": "0000:37:00.0-xcp-0", "name": "gpu-4-cpxnps4-0", "profile": "cpx-nps4", "holders": [held]}
    [holding] = pods.holdings(record(device(4, "Unhealthy", "EccUncorrectable", partitions=[part])))
    status = allocated(f"nodedevices.io/n1/gpu-4-cpxnps4-{number}", "claim:one") | LATER
    claims = [{"name": "one", "resourceClaimName": "gpus"}]
    seen = pod(spec={"containers": [{"name": "main"}], "resourceClaims": claims}, status=status)
    assert pods.match_holder(seen, holding, SCOPE) is answer


def test_affected_pods_are_bounded() -> None:
    entries = [Affected("ml", f"pod-{index}", f"uid-{index}", "GPU-0", "Xid79", SINCE) for index in range(400)]
    kept = pods.bounded([entries[0], *entries])
    assert len(kept) == len({it.uid for it in kept}) == 256


def test_a_failed_device_concerns_all_on_its_partitions_and_a_failed_partition_its_holders() -> None:
    parts = [
        {"id": "MIG-1", "profile": "1g.10gb", "holders": [holder("one")]},
        {"id": "MIG-2", "profile": "1g.10gb", "holders": [holder("two")], "health": health("Unhealthy", "Missing")},
    ]
    failed = pods.holdings(record(device(0, "Unhealthy", "Xid79", partitions=parts)))
    assert [(it.holder.pod, it.device, it.health.reason) for it in failed] == [
        ("one", "GPU-0", "Xid79"),
        ("two", "MIG-2", "Missing"),
    ]
    well = pods.holdings(record(device(0, partitions=parts)))
    assert [(it.holder.pod, it.device) for it in well] == [("two", "MIG-2")]


@cases(("reason", "undecided"), ("Correlating", True), ("NvlinkDown", False))
def test_what_is_decided_within_seconds_is_known_as_such(reason: str, undecided: bool) -> None:
    [only] = pods.holdings(record(device(0, "Degraded", reason, holders=[holder()])))
    assert only.undecided == undecided


def test_the_worst_device_comes_first() -> None:
    item = record(
        device(0, "Degraded", "NvlinkDown", holders=[holder()]),
        device(1, "Unhealthy", "Xid79", holders=[holder()]),
        device(2, "Unknown", "ProbeSilent", holders=[holder()]),
        device(3, holders=[holder()]),
    )
    assert [it.device for it in pods.holdings(item)] == ["GPU-1", "GPU-2", "GPU-0"]


@cases(
    ("state", "reason", "expected"),
    ("Unhealthy", "Xid79", ("False", "Xid79")),
    ("Unknown", "ProbeSilent", ("Unknown", "ProbeSilent")),
    ("Degraded", "NvlinkDown", ("True", "Degraded")),
    ("Healthy", "", ("True", "Healthy")),
    ("Unhealthy", "", ("False", "Unhealthy")),
)
def test_what_the_condition_says(state: str, reason: str, expected: tuple[str, str]) -> None:
    said = pods.pod_condition(concern(state, reason), None, NOW)
    assert (said["status"], said["reason"]) == expected


def test_the_message_names_device_and_action_and_the_time_moves_only_with_the_status() -> None:
    said = pods.pod_condition(concern(), ConditionRecord(POD_DEVICE_HEALTHY, "False", since=SINCE), NOW)
    assert said["message"] == "gpu-3 GPU-3: Xid79: GPU has fallen off the bus. Recovery: RebootNode."
    assert said["lastTransitionTime"] == SINCE
    assert (
        pods.pod_condition(concern(), ConditionRecord(POD_DEVICE_HEALTHY, "True", since=SINCE), NOW)[
            "lastTransitionTime"
        ]
        == NOW
    )


@cases(
    ("shown", "reason", "since"),
    ({"reason": "Xid79", "lastTransitionTime": SINCE}, "Xid79", SINCE),
    ({"reason": "no, word"}, "", "2026-11-21T09:00:00Z"),
)
def test_a_pod_marked_for_a_gone_device_is_remembered_as_shown(shown: dict[str, str], reason: str, since: str) -> None:
    marked = pod(status={"conditions": [{"type": POD_DEVICE_HEALTHY, "status": "False", **shown}]})
    marked["metadata"]["creationTimestamp"] = "2026-11-21T09:00:00Z"
    assert pods.left_behind([marked]) == [Affected("ml", "trainer", "pod-uid", NO_DEVICE, reason, since)]


@cases("reason", "Healthy", "NotMonitored")
def test_a_pod_that_is_well_or_unmarked_or_over_is_not_remembered(reason: str) -> None:
    shown = {"type": POD_DEVICE_HEALTHY, "status": "True", "reason": reason}
    failed = {"type": POD_DEVICE_HEALTHY, "status": "False", "reason": "Xid79"}
    over = pod(status={"phase": "Failed", "conditions": [failed]})
    assert pods.left_behind([pod(), pod(status={"conditions": [shown]}), over]) == []


def test_an_event_has_one_name_for_one_happening() -> None:
    about = ObjectRef("Pod", "trainer", "pod-uid", "ml")
    same = Event("DeviceFault", about, "text", "n1", "GPU-3", "Xid79", SINCE)
    first, again = (same.body(now) for now in (SINCE, NOW))
    assert first["metadata"]["name"] == again["metadata"]["name"]
    other = ObjectRef("Pod", "trainer", "other", "ml")
    others = (
        Event("DeviceFault", other, "text", "n1", "GPU-3", "Xid79", SINCE).body(NOW),
        Event("DeviceFault", about, "text", "n1", "GPU-4", "Xid79", SINCE).body(NOW),
        Event("DeviceFault", about, "text", "n1", "GPU-3", "Missing", SINCE).body(NOW),
        Event("DeviceFault", about, "text", "n1", "GPU-3", "Xid79", NOW).body(NOW),
        Event("DeviceRecovered", about, "text", "n1", "GPU-3", "Xid79", SINCE).body(NOW),
    )
    assert len({it["metadata"]["name"] for it in (first, *others)}) == 6
    assert (others[-1]["type"], first["type"]) == ("Normal", "Warning")
    assert first["involvedObject"]["apiVersion"] == "v1"


def test_events_about_cluster_scoped_objects_go_to_default_and_say_if_not_all_pods_are_marked() -> None:
    made = Event("DeviceFault", ObjectRef("NodeDevices", "n1", "u"), "text", "n1", "d", "r", SINCE).body(NOW)
    assert made["metadata"]["namespace"] == "default"
    assert "namespace" not in made["involvedObject"]
    assert made["involvedObject"]["apiVersion"] == "nodedevices.io/v1alpha1"
    [found] = record(device(0, "Unhealthy", "Xid79", holders=[holder("train")], holdersTruncated=6)).devices
    text = pods.device_text(found)
    assert text.endswith("Held by ml/train. 6 further holders are not listed here, so their pods are not marked.")
