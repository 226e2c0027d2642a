"""What the commands write that change something, and what they say of it."""

from __future__ import annotations

import pytest
from nodedevices_api import conditions
from nodedevices_api.nodedevices import Unschedulable
from nodedevices_common.confirming import CONFIRM
from nodedevices_kubectl.views import edits
from support.command_line import CommandLine, JsonObject, condition, failed, gpu, node
from support.recorded_api import NODE_DEVICES, POLICIES, RecordedApi

RECORDS = "/api/v1/namespaces/nodedevices-system/configmaps"
GPU_0, GPU_1, GPU_2 = (f"GPU-{index:08d}-0000-4000-8000-000000000000" for index in range(3))


@pytest.fixture
def n1(api: RecordedApi) -> JsonObject:
    """A node with three devices, of which one is held, one has failed and one is missing."""
    made = node("n1", gpu(0, "ml/train-0"), gpu(1, **failed()), gpu(2, **failed("Missing")))
    api.add(NODE_DEVICES, made)
    return made


def test_a_cordon_says_who_why_and_since_when(n1: JsonObject, api: RecordedApi, kubectl: CommandLine) -> None:
    n1["spec"]["unschedulable"] = [{"id": GPU_2, "reason": "RMA 1"}]
    assert kubectl("cordon", "n1/gpu-0", "--reason", "RMA 4711", "--until", "8h") == 0
    entry = {
        "id": GPU_0,
        "reason": "RMA 4711",
        "by": "jane",
        "since": "2026-11-23T12:00:00Z",
        "until": "2026-11-23T20:00:00Z",
    }
    assert n1["spec"]["unschedulable"] == [{"id": GPU_2, "reason": "RMA 1"}, entry]
    assert Unschedulable.model_validate(entry)
    assert "fieldManager=kubectl-nodedevices" in api.changes[-1][0]
    assert kubectl.out == ""
    assert kubectl.err == (
        "n1/gpu-0 is out of service (RMA 4711, until 2026-11-23T20:00:00Z): no new pod gets it.\n"
        "It is held by ml/train-0, which keeps running.\n"
        "To take it back: kubectl nodedevices uncordon n1/gpu-0\n"
    )


def test_where_another_plugin_serves_the_words_promise_nothing_for_it(n1: JsonObject, kubectl: CommandLine) -> None:
    n1["status"]["configuration"] = {"serving": "Observe"}
    assert kubectl("cordon", "n1/gpu-1", "--reason", "RMA 1") == 0
    assert kubectl.err == (
        f"n1/gpu-1 is out of service (RMA 1), {edits.OFFERED_BY_ANOTHER} n1\n"
        "To take it back: kubectl nodedevices uncordon n1/gpu-1\n"
    )
    assert "no new pod gets it" not in edits.OFFERED_BY_ANOTHER
    assert kubectl("uncordon", "n1/gpu-1") == 0
    assert kubectl.err == "n1/gpu-1 is back in service; it is Unhealthy.\n"
    assert kubectl("confirm", "n1/gpu-0", "removed") == 1
    assert kubectl.err.endswith("To keep it from new pods: kubectl cordon n1\n")


def test_what_is_so_already_is_said_and_not_written(n1: JsonObject, api: RecordedApi, kubectl: CommandLine) -> None:
    n1["spec"]["unschedulable"] = [{"id": GPU_0, "reason": "RMA 4711", "by": "joe"}]
    for again in (("cordon", "n1/0"), ("cordon", "n1/0", "--reason", "RMA 4711")):
        assert kubectl(*again) == 0
        assert kubectl.err == "n1/gpu-0 is out of service already by joe (RMA 4711): nothing to do.\n"
    assert kubectl("uncordon", "n1/1") == 0
    assert kubectl.err == "n1/gpu-1 is not out of service: nothing to do.\n"
    assert kubectl("confirm", "n1/0", "recovered") == 0
    assert kubectl.err == "n1/gpu-0 is Healthy: nothing to confirm.\n"
    assert kubectl("confirm", "actions", "resumed") == 0
    assert kubectl.err == "Taints and evictions are not stopped: nothing to do.\n"
    assert kubectl("confirm", "n1", "accepted") == 0
    assert kubectl.err == "No roll-out waits for n1: nothing to do.\n"
    assert [path for path, _, _ in api.changes if "selfsubject" not in path] == []


def test_a_second_cordon_changes_its_terms_and_keeps_its_beginning(n1: JsonObject, kubectl: CommandLine) -> None:
    first = {"id": GPU_0, "reason": "RMA 4711", "since": "2026-11-01T00:00:00Z", "until": "2026-11-24T00:00:00Z"}
    n1["spec"]["unschedulable"] = [first]
    kubectl("cordon", "n1/0")
    assert n1["spec"]["unschedulable"] == [
        {"id": GPU_0, "reason": "RMA 4711", "since": "2026-11-01T00:00:00Z", "by": "jane"}
    ]
    assert "before: RMA 4711, until 2026-11-24T00:00:00Z" in kubectl.err


def test_an_uncordon_leaves_the_other_entries(n1: JsonObject, kubectl: CommandLine) -> None:
    """Also of a device that the node no longer has, by its id."""
    n1["spec"]["unschedulable"] = [{"id": each, "reason": "x"} for each in (GPU_0, GPU_1, "GPU-gone")]
    assert kubectl("uncordon", "n1/gpu-1", "n1/GPU-gone") == 0
    assert n1["spec"]["unschedulable"] == [{"id": GPU_0, "reason": "x"}]
    assert "n1/gpu-1 is back in service; it is Unhealthy, and no new pod gets it until it is healthy." in kubectl.err
    kubectl("uncordon", "n1/0")
    assert "unschedulable" not in n1["spec"]


def test_after_a_swap_the_entry_of_the_device_that_is_gone_is_taken_away(n1: JsonObject, kubectl: CommandLine) -> None:
    gone = "GPU-99999999-0000-4000-8000-000000000000"
    for given in ("gpu-0", gone[:12]):
        n1["spec"]["unschedulable"] = [{"id": GPU_1, "reason": "x"}, {"id": gone, "reason": "RMA 4711"}]
        assert kubectl("uncordon", f"n1/{given}") == 0
        assert n1["spec"]["unschedulable"] == [{"id": GPU_1, "reason": "x"}]
        assert f"{gone} (RMA 4711), which n1 no longer has, is no longer out of service." in kubectl.err


def test_of_several_devices_that_are_gone_none_is_guessed(n1: JsonObject, kubectl: CommandLine) -> None:
    entries = [{"id": "GPU-99999999-a", "reason": "x"}, {"id": "GPU-99999999-b", "reason": "y"}]
    n1["spec"]["unschedulable"] = list(entries)
    assert kubectl("uncordon", "n1/GPU-99999999") == 1
    assert kubectl("uncordon", "n1/gpu-0") == 0
    assert n1["spec"]["unschedulable"] == entries
    listed = "GPU-99999999-a (x), GPU-99999999-b (y)"
    assert f"n1 no longer has are out of service: {listed}; name one by its id" in kubectl.err


def test_of_two_who_write_at_once_nobodys_entry_is_lost(n1: JsonObject, api: RecordedApi, kubectl: CommandLine) -> None:
    path = f"{NODE_DEVICES}/n1"
    api.interloper = lambda: n1.update(
        metadata={**n1["metadata"], "resourceVersion": "8"}, spec={"unschedulable": [{"id": GPU_2, "reason": "theirs"}]}
    )
    assert kubectl("cordon", "n1/0", "--reason", "ours") == 0
    assert [each["reason"] for each in n1["spec"]["unschedulable"]] == ["theirs", "ours"]
    assert [method for method, target in api.requests if target.startswith(path)] == ["GET", "PATCH", "GET", "PATCH"]


def test_nothing_is_written_where_one_of_several_is_bad(n1: JsonObject, api: RecordedApi, kubectl: CommandLine) -> None:
    assert kubectl("cordon", "n1/0", "n2/0") == 1
    assert kubectl.err == "error: node n2: there is no NodeDevices with this name; known: n1\n"
    assert kubectl("cordon", "n1/0", "n1/gpu-9") == 1
    assert not n1["spec"]


def test_a_dry_run_asks_the_server_and_changes_nothing(n1: JsonObject, api: RecordedApi, kubectl: CommandLine) -> None:
    assert kubectl("cordon", "n1/0", "--dry-run") == 0
    assert kubectl.err.startswith("(dry run) n1/gpu-0 is out of service")
    assert "dryRun=All" in api.changes[-1][0]
    assert not n1["spec"]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("cordon", "n1/0", "--reason", "  "), "--reason: 0 characters; give 1 to 256"),
        (("cordon", "n1/0", "--reason", "x" * 257), "--reason: 257 characters; give 1 to 256"),
        (("cordon", "n1/0", "--until", "tomorrow"), "'tomorrow' is not a time; give a time with a zone"),
        (("cordon", "n1/0", "--until", "2026-11-23T11:00:00Z"), "is past; give a time"),
        (("cordon", "n1/0", "--until", "999999w"), "'999999w' is too long; give a time"),
        (("confirm", "n1/0", "repaired"), "'repaired' is not one of 'recovered', 'removed', 'accepted', 'resumed'"),
        (("cordon",), "Missing argument 'NODE/DEVICE...'"),
    ],
)
def test_a_wrong_word_is_refused_before_anything_is_asked(
    n1: JsonObject, api: RecordedApi, kubectl: CommandLine, command: tuple[str, ...], said: str
) -> None:
    assert kubectl(*command) == 2
    assert said in kubectl.err
    assert not api.requests


def test_a_node_alone_is_no_device(n1: JsonObject, kubectl: CommandLine) -> None:
    assert kubectl("cordon", "n1") == 1
    assert kubectl.err == "error: n1: give node and device as NODE/DEVICE, such as n1/gpu-0\n"


@pytest.mark.parametrize(
    ("target", "outcome", "said"),
    [
        ("n1/gpu-0", "accepted", "accepted is for NODE; NODE/DEVICE can be recovered or removed"),
        ("n1/gpu-0", "resumed", "resumed is for policy/NAME or actions; NODE/DEVICE can be recovered or removed"),
        ("n1", "recovered", "recovered is for NODE/DEVICE; NODE can be accepted"),
        ("share", "resumed", "resumed is for policy/NAME or actions; NODE can be accepted"),
        ("policy/share", "removed", "removed is for NODE/DEVICE; policy/NAME can be resumed"),
        ("policy/share", "accepted", "accepted is for NODE; policy/NAME can be resumed"),
        ("actions", "removed", "removed is for NODE/DEVICE; actions can be resumed"),
        ("actions", "accepted", "accepted is for NODE; actions can be resumed"),
    ],
)
def test_what_cannot_be_said_of_something_is_refused_with_what_can(
    api: RecordedApi, kubectl: CommandLine, target: str, outcome: str, said: str
) -> None:
    api.add(NODE_DEVICES, node("n1", gpu(0), gpu(1, **failed())))
    assert kubectl("confirm", "n1/gpu-1", target, outcome) == 1
    assert not api.changes
    assert kubectl("confirm", target, outcome) == 1
    assert kubectl.err == f"error: {target}: {said}\n"


def test_a_node_may_be_called_as_something_else_is(api: RecordedApi, kubectl: CommandLine) -> None:
    changed = {"change": {"time": "T", "policies": ["p"]}, "configHash": "ab"}
    api.add(NODE_DEVICES, node("policy", gpu(0, **failed())), node("actions") | {"spec": changed})
    assert kubectl("confirm", "policy/gpu-0", "recovered") == 0
    assert kubectl("confirm", "actions", "accepted", "--dry-run") == 0
    assert "(dry run) actions is accepted as it is" in kubectl.err


def test_a_confirmation_names_id_and_time_and_keeps_those_of_others(n1: JsonObject, kubectl: CommandLine) -> None:
    """Agent and operator act once on each entry, and may not have seen the earlier ones yet."""
    others = "config=accepted@ab,GPU-of-before=removed@2026-11-22T12:00:00Z"
    n1["metadata"]["annotations"] = {CONFIRM: f"{GPU_1}=recovered,{others}"}
    kubectl("confirm", "n1/gpu-2", "removed")
    removed = f"{GPU_2}=removed@2026-11-23T12:00:00Z"
    assert n1["metadata"]["annotations"] == {CONFIRM: f"{removed},{GPU_1}=recovered,{others}"}
    kubectl("confirm", "n1/gpu-1", "recovered")
    assert n1["metadata"]["annotations"] == {CONFIRM: f"{GPU_1}=recovered@2026-11-23T12:00:00Z,{removed},{others}"}
    assert "it stays as it is" in kubectl.err


def test_no_confirmation_of_two_at_once_is_lost(n1: JsonObject, api: RecordedApi, kubectl: CommandLine) -> None:
    def somebody() -> None:
        n1["metadata"] |= {"resourceVersion": "99", "annotations": {CONFIRM: f"{GPU_2}=removed"}}

    api.interloper = somebody
    assert kubectl("confirm", "n1/gpu-1", "recovered") == 0
    assert n1["metadata"]["annotations"][CONFIRM].split(",")[1:] == [f"{GPU_2}=removed"]


def test_only_a_missing_device_can_be_removed(n1: JsonObject, api: RecordedApi, kubectl: CommandLine) -> None:
    assert kubectl("confirm", "n1/1", "removed") == 1
    assert "n1/gpu-1 is Unhealthy (Xid79): its removal can be confirmed once" in kubectl.err
    assert "kubectl nodedevices cordon n1/gpu-1" in kubectl.err
    assert not api.changes


def test_all_that_is_not_there_is_removed_at_once(n1: JsonObject, api: RecordedApi, kubectl: CommandLine) -> None:
    assert kubectl("confirm", "n1/*", "recovered") == 1
    assert "can only be confirmed as removed (all that is missing); name each device" in kubectl.err
    assert not api.changes
    assert kubectl("confirm", "n1/*", "removed") == 0
    assert n1["metadata"]["annotations"] == {CONFIRM: "*=removed@2026-11-23T12:00:00Z"}
    assert "n1: all that is missing, with gpu-2, is confirmed as removed" in kubectl.err


def policy(name: str, *conditions: JsonObject, **status: object) -> JsonObject:
    return {
        "metadata": {"name": name, "generation": 3, "resourceVersion": "1"},
        "status": {"conditions": list(conditions), **status},
    }


STOPPED = condition("ActionsStopped", "True", "MassFault", "actions are stopped since 11:50: 30 of 40 nodes failed")


RECORD, MOVED = "nodedevices-system/nodedevices-actions", "nodedevices-operator/nodedevices-actions"


@pytest.fixture
def record(api: RecordedApi) -> JsonObject:
    """The record of an operator that was moved, and that of before, to which the policies still point."""
    api.add(RECORDS, {"metadata": {"name": "nodedevices-actions", "resourceVersion": "1"}})
    its: JsonObject = {"metadata": {"name": "nodedevices-actions", "resourceVersion": "1"}}
    api.add(RECORDS.replace("nodedevices-system", "nodedevices-operator"), its)
    api.add(POLICIES, policy("evict", STOPPED, actionsRecord=RECORD, resumeRecord=MOVED))
    return its


def test_actions_go_on_by_the_record_that_the_operator_reads_which_it_says_once_they_do(
    record: JsonObject, api: RecordedApi, kubectl: CommandLine
) -> None:
    def operator(_: float) -> None:
        assert "are resumed" not in kubectl.err
        api.objects[POLICIES][0]["status"]["conditions"] = [condition("ActionsStopped", "False", "NotStopped")]

    def somebody() -> None:
        record["metadata"] |= {"resourceVersion": "99", "annotations": {CONFIRM: "x=y@z,actions=resumed@before"}}

    kubectl.meanwhile, api.interloper = operator, somebody
    assert kubectl("confirm", "actions", "resumed") == 0
    assert record["metadata"]["annotations"] == {CONFIRM: "actions=resumed@2026-11-23T12:00:00Z,x=y@z"}
    assert "They were stopped: actions are stopped since 11:50: 30 of 40 nodes failed" in kubectl.err
    assert "Taints and evictions are resumed" in kubectl.err


def test_a_request_on_which_the_operator_does_not_act_is_an_error(record: JsonObject, kubectl: CommandLine) -> None:
    assert kubectl("confirm", "actions", "resumed", "--dry-run") == 0
    assert "annotations" not in record["metadata"]
    assert kubectl("confirm", "actions", "resumed") == 1
    assert "the operator has not acted on the request within 10 s: actions are stopped since 11:50" in kubectl.err
    assert "Taints and evictions are resumed" not in kubectl.err


def test_a_breaker_whose_record_is_gone_unknown_or_refused_is_an_error(api: RecordedApi, kubectl: CommandLine) -> None:
    api.add(RECORDS)
    api.add(POLICIES, policy("evict", STOPPED, resumeRecord=RECORD))
    assert kubectl("confirm", "actions", "resumed") == 1
    assert f"the record {RECORD} does not exist; the operator makes it again" in kubectl.err
    api.refusals[f"{RECORDS}/nodedevices-actions"] = [403]
    assert kubectl("confirm", "actions", "resumed") == 1
    assert "this needs the rights to get and patch this ConfigMap: docs/security.md" in kubectl.err
    api.objects[POLICIES] = [policy("evict", STOPPED, actionsRecord=RECORD)]
    assert kubectl("confirm", "actions", "resumed") == 1
    assert "no policy names the record to resume by (status.resumeRecord): follow the message above" in kubectl.err


WHY = "n1: 7 of 8; 3 nodes are waiting. Change the policy, or ..."


def test_the_roll_out_of_a_policy_is_resumed_for_this_generation(api: RecordedApi, kubectl: CommandLine) -> None:
    stopped = policy("share", condition("RolledOut", "False", "Stopped", WHY))
    stopped["metadata"]["annotations"] = {CONFIRM: "rollout=resumed@2,theirs"}
    api.add(POLICIES, stopped, policy("done", condition("RolledOut", "True", "Done")))
    assert kubectl("confirm", "policy/share", "resumed") == 1
    assert stopped["metadata"]["annotations"] == {CONFIRM: "rollout=resumed@3,theirs"}
    assert f"was stopped: {WHY}\n" in kubectl.err
    assert "the operator has not acted on the request within 10 s: n1: 7 of 8" in kubectl.err
    kubectl("confirm", "policy/share", "resumed")
    assert "was resumed already for generation 3: nothing to do" in kubectl.err
    kubectl("confirm", "policy/done", "resumed")
    assert "is not stopped (Done): nothing to do" in kubectl.err
    assert kubectl("confirm", "policy/shore", "resumed") == 1
    assert kubectl.err == "error: policy shore: there is no policy with this name; did you mean share?\n"
    assert kubectl("confirm", "policy/", "resumed") == 1
    assert "there is no policy with this name" in kubectl.err


def test_a_roll_out_goes_on_once_its_policy_says_so(api: RecordedApi, kubectl: CommandLine) -> None:
    stopped = policy("share", condition("RolledOut", "False", "Stopped", WHY))
    api.add(POLICIES, stopped)
    kubectl.meanwhile = lambda _: stopped["status"].update(conditions=[condition("RolledOut", "False", "Progressing")])
    assert kubectl("confirm", "policy/share", "resumed") == 0
    assert "The roll-out continues." in kubectl.err


def test_a_node_is_accepted_with_its_present_configuration_where_a_roll_out_waits_for_it(
    n1: JsonObject, api: RecordedApi, kubectl: CommandLine
) -> None:
    change = {"time": "2026-11-23T11:50:00Z", "policies": ["share"]}
    n1["spec"] |= {"configHash": "ab", "change": change}
    n1["metadata"]["annotations"] = {CONFIRM: f"config=accepted@aa,{GPU_1}=recovered"}
    assert kubectl("confirm", "n1", "n9", "accepted") == 1
    assert not api.changes, "nothing is written when one of several is wrong"
    assert kubectl("confirm", "n1", "accepted") == 1
    assert n1["metadata"]["annotations"] == {CONFIRM: f"config=accepted@ab,{GPU_1}=recovered"}
    waits = "the operator has not acted on the request within 10 s: n1 still has spec.change of 2026-11-23T11:50:00Z"
    assert waits in kubectl.err
    assert kubectl("confirm", "n1", "accepted") == 0
    assert kubectl.err == "n1 was accepted already with this configuration: nothing to do.\n"
    n1["metadata"]["annotations"] = {}
    kubectl.meanwhile = lambda _: n1["spec"].pop("change")
    assert kubectl("confirm", "n1", "accepted") == 0
    assert kubectl.err == (
        "n1 is accepted as it is, with its present configuration.\n"
        "No roll-out waits for n1. To see what it has: kubectl nodedevices policy explain n1\n"
    )


def test_the_reason_of_a_missing_device_is_the_contracts() -> None:
    assert conditions.MISSING == edits.MISSING
