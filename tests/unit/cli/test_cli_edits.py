"""What the commands write that change something, and what they say of it."""

from __future__ import annotations

import pytest
from nodedevices_api import conditions
from nodedevices_api.nodedevices import Unschedulable
from nodedevices_kubectl.views import edits
from nodedevices_operator.desired import fleet as breaker
from nodedevices_operator.records import names
from nodedevices_plugin.pipeline import confirm
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
    assert kubectl("resume") == 0
    assert kubectl.err == "Taints and evictions are not stopped: nothing to do.\n"
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


def test_nothing_is_written_when_one_of_several_is_wrong(
    n1: JsonObject, api: RecordedApi, kubectl: CommandLine
) -> None:
    assert kubectl("cordon", "n1/0", "n2/0") == 1
    assert kubectl.err == "error: node n2: there is no NodeDevices with this name; known: n1\n"
    assert kubectl("cordon", "n1/0", "n1/gpu-9") == 1
    assert not n1["spec"]


def test_a_dry_run_asks_the_api_server_and_changes_nothing(
    n1: JsonObject, api: RecordedApi, kubectl: CommandLine
) -> None:
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
        (("confirm", "n1/0", "repaired"), "'repaired' is not one of 'recovered', 'removed'"),
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


def test_a_confirmation_names_the_id_and_the_time_and_keeps_those_of_other_devices(
    n1: JsonObject, kubectl: CommandLine
) -> None:
    """The agent acts once on each entry, and may not have seen the earlier ones yet."""
    n1["metadata"]["annotations"] = {edits.CONFIRM: f"{GPU_1}=recovered,GPU-of-before=removed"}
    kubectl("confirm", "n1/gpu-2", "removed")
    removed = f"{GPU_2}=removed@2026-11-23T12:00:00Z"
    assert n1["metadata"]["annotations"] == {edits.CONFIRM: f"{removed},{GPU_1}=recovered"}
    kubectl("confirm", "n1/gpu-1", "recovered")
    assert n1["metadata"]["annotations"] == {edits.CONFIRM: f"{GPU_1}=recovered@2026-11-23T12:00:00Z,{removed}"}
    assert "it stays as it is" in kubectl.err


def test_nobodys_confirmation_is_lost_when_two_people_confirm_at_once(
    n1: JsonObject, api: RecordedApi, kubectl: CommandLine
) -> None:
    def somebody() -> None:
        n1["metadata"] |= {"resourceVersion": "99", "annotations": {edits.CONFIRM: f"{GPU_2}=removed"}}

    api.interloper = somebody
    assert kubectl("confirm", "n1/gpu-1", "recovered") == 0
    assert n1["metadata"]["annotations"][edits.CONFIRM].split(",")[1:] == [f"{GPU_2}=removed"]


def test_only_a_missing_devices_removal_can_be_confirmed(
    n1: JsonObject, api: RecordedApi, kubectl: CommandLine
) -> None:
    assert kubectl("confirm", "n1/1", "removed") == 1
    assert "n1/gpu-1 is Unhealthy (Xid79): its removal can be confirmed once" in kubectl.err
    assert "kubectl nodedevices cordon n1/gpu-1" in kubectl.err
    assert not api.changes


def test_all_that_is_not_there_is_confirmed_as_removed_at_once(
    n1: JsonObject, api: RecordedApi, kubectl: CommandLine
) -> None:
    assert kubectl("confirm", "n1/*", "recovered") == 1
    assert "can only be confirmed as removed (all that is missing); name each device" in kubectl.err
    assert not api.changes
    assert kubectl("confirm", "n1/*", "removed") == 0
    assert n1["metadata"]["annotations"] == {edits.CONFIRM: f"{confirm.ALL_REMOVED}@2026-11-23T12:00:00Z"}
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


def test_resume_annotates_the_record_that_the_operator_reads_and_says_so_once_it_has_gone_on(
    record: JsonObject, api: RecordedApi, kubectl: CommandLine
) -> None:
    def operator(_: float) -> None:
        assert "are resumed" not in kubectl.err
        api.objects[POLICIES][0]["status"]["conditions"] = [condition("ActionsStopped", "False", "NotStopped")]

    kubectl.meanwhile = operator
    assert kubectl("resume") == 0
    assert record["metadata"]["annotations"] == {edits.RESUME_ACTIONS: "2026-11-23T12:00:00Z"}
    assert "They were stopped: actions are stopped since 11:50: 30 of 40 nodes failed" in kubectl.err
    assert "Taints and evictions are resumed" in kubectl.err


def test_a_resume_on_which_the_operator_does_not_act_is_an_error(record: JsonObject, kubectl: CommandLine) -> None:
    assert kubectl("resume") == 1
    assert "the operator has not acted on the request within 10 s: actions are stopped since 11:50" in kubectl.err
    assert "Taints and evictions are resumed" not in kubectl.err
    assert kubectl("resume", "--dry-run") == 0


def test_a_breaker_whose_record_is_gone_or_not_known_is_left_to_the_policys_own_words(
    api: RecordedApi, kubectl: CommandLine
) -> None:
    api.add(RECORDS)
    api.add(POLICIES, policy("evict", STOPPED, resumeRecord=RECORD))
    assert kubectl("resume") == 1
    assert f"the record {RECORD} does not exist: follow the message above" in kubectl.err
    api.objects[POLICIES] = [policy("evict", STOPPED, actionsRecord=RECORD)]
    assert kubectl("resume") == 1
    assert "no policy names the record to resume by (status.resumeRecord): follow the message above" in kubectl.err


def test_resume_of_a_policy_lets_this_generation_go_on(api: RecordedApi, kubectl: CommandLine) -> None:
    why = "n1: 7 of 8; 3 nodes are waiting. Change the policy"
    stopped = policy("share", condition("RolledOut", "False", "Stopped", why))
    api.add(POLICIES, stopped, policy("done", condition("RolledOut", "True", "Done")))
    assert kubectl("resume", "share") == 1
    assert stopped["metadata"]["annotations"] == {edits.RESUME_ROLLOUT: "3"}
    assert "was stopped: n1: 7 of 8; 3 nodes are waiting." in kubectl.err
    assert "the operator has not acted on the request within 10 s: n1: 7 of 8" in kubectl.err
    kubectl("resume", "share")
    assert "was resumed already for generation 3: nothing to do" in kubectl.err
    kubectl("resume", "done")
    assert "is not stopped (Done): nothing to do" in kubectl.err
    assert kubectl("resume", "shore") == 1
    assert kubectl.err == "error: policy shore: there is no policy with this name; did you mean share?\n"


def test_a_roll_out_goes_on_once_its_policy_says_so(api: RecordedApi, kubectl: CommandLine) -> None:
    why = "n1: 7 of 8; 3 nodes are waiting. Change the policy"
    stopped = policy("share", condition("RolledOut", "False", "Stopped", why))
    api.add(POLICIES, stopped)
    kubectl.meanwhile = lambda _: stopped["status"].update(conditions=[condition("RolledOut", "False", "Progressing")])
    assert kubectl("resume", "share") == 0
    assert "The roll-out continues." in kubectl.err


def test_the_words_that_are_written_are_those_that_agent_and_operator_read() -> None:
    assert breaker.RESUME == edits.RESUME_ACTIONS
    assert names.RESUME_ROLLOUT == edits.RESUME_ROLLOUT
    assert (confirm.CONFIRM_VALUES, confirm.MAX_CONFIRM) == (edits.OUTCOMES, edits.MAX_CONFIRM)
    assert conditions.MISSING == edits.MISSING
