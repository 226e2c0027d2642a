"""Evictions and the taint, each concern alone, its API server in memory: who, when, and what holds them back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from nodedevices_api.errors import parse
from nodedevices_api.sections import Sections
from nodedevices_operator.concerns.budget import FIGHT_REPAIRS, FIGHT_WINDOW_SECONDS
from nodedevices_operator.concerns.consequences import BLOCKED, EvictionsConcern, TaintConcern
from nodedevices_operator.concerns.fleet_gate import FleetGate
from nodedevices_operator.concerns.port import Concern, Tools
from nodedevices_operator.desired.conditions import Staleness
from nodedevices_operator.desired.consequences import KEEP, ON_OFFER
from nodedevices_operator.desired.fleet import EVICT, TAINT, Action, ActionAnswer
from nodedevices_operator.kube.port import KubeError
from nodedevices_operator.metrics import OperatorMetrics
from nodedevices_operator.records import names
from nodedevices_operator.records.kinds import node_record
from nodedevices_operator.records.objects import NodeDevicesRecord
from support.cases import cases
from support.concerns import Result, run_seen, tools, view
from support.fakekube import FakeKube
from support.opfacts import GPU, SINCE, device, health, holder, raw_node, raw_pod, record, resource
from support.whole_operator import NODE, POD

START = datetime.fromisoformat(SINCE)
SAID = "The disruption budget web needs 2 healthy pods and has 2 currently"
IMMEDIATE = {"evictMode": "Immediate", "budget": {"perHour": 9}}
GRACE = {"evictMode": "AfterGrace", "evictGraceSeconds": 100, "budget": {"perHour": 9}}
MARK = {"type": "nodedevices.io/DeviceHealthy", "status": "False", "reason": "Xid79", "lastTransitionTime": SINCE}
LATER = health("Unhealthy", "Xid79", since="2026-11-21T13:59:00Z")
LOST = record(device(0, "Unhealthy", "Xid79", holders=[holder()]))
WELL = record(device(0, holders=[holder()]))


class Gate(FleetGate):
    """Answers what a test says; `proposed` is what is wanted now, by kind."""

    def __init__(self) -> None:
        self.proposed: dict[str, Sequence[Action]] = {}
        self.says: ActionAnswer | None = ActionAnswer(granted=True)
        self.stops = ""
        self.acted: Collection[str] | None = None

    def propose(self, _node: str, kind: str, actions: Sequence[Action]) -> None:
        self.proposed[kind] = tuple(actions)

    def answer(self, _action: Action) -> ActionAnswer | None:
        return self.says

    def stopped(self) -> str:
        return self.stops

    def acted_on(self, _node: str) -> Collection[str] | None:
        return self.acted


class One:
    """One concern of node n1, which pod ml/trainer runs on."""

    def __init__(self, make: Callable[[Tools], Concern[Any]], **faults: Any) -> None:
        self.seconds = 0.0  # since the fault
        self.gate, self.kube, self.metrics = Gate(), FakeKube(), OperatorMetrics()
        self.sections = parse(Sections, {"faults": faults})
        self.stale = "False"
        self.marked: dict[str, Any] | None = MARK
        self.pod()
        self.kube.put(NODE, raw_node({GPU: "8"}))
        made = tools(
            self.kube,
            lambda: self.seconds,
            self.wall,
            metrics=self.metrics,
            now=lambda: self.now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            gate=self.gate,
        )
        self.concern = make(made)

    def wall(self) -> float:
        return self.now.timestamp()

    @property
    def now(self) -> datetime:
        return (START + timedelta(seconds=self.seconds)).astimezone(UTC)

    async def run(self, shown: NodeDevicesRecord = LOST) -> Result:
        seen = view(shown, node_record(self.kube.objects[NODE]), self.sections)
        seen.staleness = Staleness(self.stale, "NodeNotReady", "the Node is not ready", 0.0)
        return await run_seen(self.concern, seen)

    def pod(self, status: dict[str, Any] | None = None, **metadata: Any) -> None:
        made = raw_pod(**(status or {}), conditions=[] if self.marked is None else [self.marked])
        self.kube.put(POD, made | {"metadata": made["metadata"] | metadata})

    def blocks(self, error: KubeError | None) -> None:
        self.kube.fails = lambda verb, path: error if (verb, path) == ("create", f"{POD}/eviction") else None

    @property
    def evicted(self) -> bool:
        return "deletionTimestamp" in self.kube.objects[POD]["metadata"]

    @property
    def tries(self) -> int:
        return len(self.kube.written("/eviction"))

    @property
    def events(self) -> list[str]:
        return [it["reason"] for it in self.kube.events]

    @property
    def taints(self) -> list[Any]:
        listed: list[Any] = self.kube.objects[NODE]["spec"].get("taints", [])
        return listed

    def counted(self, kind: str, result: str) -> float:
        labels = {"kind": kind, "result": result}
        return self.metrics.registry.get_sample_value("nodedevices_operator_actions_total", labels) or 0.0


@pytest.fixture
def one() -> One:
    return One(EvictionsConcern, **IMMEDIATE)


# --- evictions -------------------------------------------------------------------------------------------------------
async def test_a_pod_is_evicted_and_has_an_event_that_says_so_and_both_once(one: One) -> None:
    assert (await one.run()).reason == "InSync"
    assert sorted(path.rpartition("/")[2] for _, path, _ in one.kube.writes) == ["events", "eviction"]
    [(_, _, eviction)] = one.kube.written("/eviction")
    assert eviction["deleteOptions"] == {"preconditions": {"uid": "pod-trainer"}}
    found = await one.run()
    assert (found.message, one.tries, one.events) == ("ml/trainer is ending", 1, ["DeviceFaultEviction"])
    assert one.counted(EVICT, "done") == 1


@pytest.mark.parametrize("status", [0, 403, 429, 500])
async def test_an_eviction_waits_for_no_event(one: One, status: int) -> None:
    one.kube.fails = lambda _, path: KubeError("no", status=status) if path.endswith("/events") else None
    found = await one.run()
    assert (found.reason, found.retried, one.evicted, one.events) == ("InSync", False, True, [])


async def test_without_a_grant_nothing_is_done_and_the_reason_is_shown(one: One) -> None:
    for answer, reason in (
        (None, "Pending"),
        (ActionAnswer(False, "used up"), "Refused"),
        (ActionAnswer(False, "x", True), "Stopped"),
    ):
        one.gate.says = answer
        found = await one.run()
        assert (found.reason, one.kube.writes) == (reason, [])
        assert [it.target for it in one.gate.proposed[EVICT]] == ["ml/trainer/pod-trainer"]


@cases("make", EvictionsConcern, TaintConcern)
async def test_an_action_whose_record_cannot_be_written_says_so(make: Callable[[Tools], Concern[Any]]) -> None:
    one = One(make, **IMMEDIATE, taintEffect="NoSchedule")
    one.gate.says, one.gate.stops = None, "the record cannot be written"
    found = await one.run()
    assert (found.reason, found.message.endswith("the record cannot be written")) == ("Stopped", True)


async def test_nothing_is_proposed_before_the_grace_is_over_or_announced_while_the_breaker_is_open() -> None:
    one = One(EvictionsConcern, **GRACE)
    one.seconds = 99.0
    found = await one.run()
    assert (found.reason, found.again, one.gate.proposed[EVICT]) == ("Pending", 1.0, ())
    assert found.message == "ml/trainer is evicted after 2026-11-21T12:00:40Z"
    one.seconds = 100.0
    await one.run()
    assert one.evicted
    one = One(EvictionsConcern, **GRACE)
    one.gate.stops = "actions are stopped"
    found = await one.run()
    assert (found.reason, found.message) == ("Stopped", "ml/trainer: actions are stopped")
    one.gate.stops = ""
    assert (await one.run()).reason == "Pending"


async def test_a_pod_is_not_evicted_before_its_condition_is_written(one: One) -> None:
    """A Job would be charged for the device: its podFailurePolicy finds no condition."""
    for mark in (None, MARK | {"status": "True"}):
        one.marked = mark
        one.pod()
        found = await one.run()
        assert (found.reason, one.gate.proposed[EVICT], one.tries) == ("Pending", (), 0)
        assert found.message == "ml/trainer is not marked yet, and is evicted only after that"
    one.marked = MARK
    one.pod()
    await one.run()
    assert one.evicted


async def test_where_the_policy_writes_no_condition_none_is_waited_for() -> None:
    one = One(EvictionsConcern, **IMMEDIATE, podCondition="Never")
    one.marked = None
    one.pod()
    await one.run()
    assert one.evicted


async def test_a_grace_counts_from_this_fault_and_not_from_the_mark_of_an_earlier_one() -> None:
    rules = [{"reasons": ["Xid79"], "evictMode": "AfterGrace"}]
    one = One(EvictionsConcern, evictGraceSeconds=600, rules=rules, budget={"perHour": 9})
    before = device(0, "Unhealthy", "Xid48", holders=[holder()])
    await one.run(record(before))
    for faults in (
        [device(0, "Unhealthy", "Xid79", holders=[holder()]) | {"health": LATER}],
        [before, device(1, "Unhealthy", "Xid79", holders=[holder()]) | {"health": LATER}],
    ):
        one.seconds += 7200.0
        begun = one.seconds
        assert (await one.run(record(*faults))).reason == "Pending"
        one.seconds = begun + 599.0
        assert (await one.run(record(*faults))).reason == "Pending"
        await one.run(record(before))
    one.seconds += 7200.0
    await one.run(record(*faults))
    one.seconds += 600.0
    await one.run(record(*faults))
    assert one.evicted


async def test_a_pod_whose_container_has_restarted_is_not_evicted_where_that_is_all_it_takes(one: One) -> None:
    own = health("Unhealthy", "MpsDaemonRestarted", recoveryAction="RestartApp")
    shown = record(device(0, holders=[holder(health=own)]))
    one.gate.says = None
    await one.run(shown)
    started = [{"name": "main", "state": {"running": {"startedAt": "2026-11-21T12:30:00Z"}}}]
    one.pod({"containerStatuses": started})
    one.gate.says = ActionAnswer(granted=True)
    await one.run(shown)
    assert (one.evicted, one.tries) == (False, 0)
    found = await one.run(shown)
    assert "its container has restarted since" in found.message


async def test_a_grace_that_is_edited_counts_at_once_and_a_device_well_in_time_evicts_nobody() -> None:
    one = One(EvictionsConcern, **GRACE)
    one.seconds = 50.0
    await one.run()
    one.sections = parse(Sections, {"faults": GRACE | {"evictGraceSeconds": 40}})
    await one.run()
    assert one.evicted
    one = One(EvictionsConcern, **GRACE)
    await one.run()
    one.seconds = 200.0
    found = await one.run(WELL)
    assert (found.reason, found.message, one.evicted) == ("InSync", "no pod needs to be evicted", False)


async def test_a_blocked_eviction_is_shown_and_tried_again_with_longer_waits(one: One) -> None:
    one.blocks(KubeError("429", status=429, blocked=SAID))
    waits = []
    for _ in range(3):
        found = await one.run()
        assert (found.reason, found.message, found.retried) == ("Blocked", f"ml/trainer: {SAID}", False)
        assert found.again is not None
        waits.append(found.again)
        tries = one.tries
        assert (await one.run()).reason == "Blocked"
        assert one.tries == tries, "not before it is time"
        one.seconds += found.again
    assert waits == sorted(waits)
    assert waits[0] >= BLOCKED.initial_seconds * (1 - BLOCKED.jitter)
    assert one.events == ["DeviceFaultEviction", "EvictionBlocked"]
    assert one.counted(EVICT, "blocked") == 3
    one.blocks(None)
    await one.run()
    assert one.evicted


@pytest.mark.parametrize(
    ("error", "reason", "retried"),
    [(KubeError("no", status=403), "Forbidden", False), (KubeError("no answer"), "NotWritten", True)],
)
async def test_an_eviction_that_fails_is_tried_again(one: One, error: KubeError, reason: str, retried: bool) -> None:
    one.blocks(error)
    found = await one.run()
    assert (found.reason, found.retried, one.evicted) == (reason, retried, False)
    one.blocks(None)
    await one.run()
    assert one.evicted


async def test_a_pod_that_was_recreated_under_its_name_is_not_evicted_for_the_old_one(one: One) -> None:
    one.gate.says = None
    await one.run()
    one.pod(uid="another")
    one.gate.says = ActionAnswer(granted=True)
    assert (await one.run()).reason == "Pending"
    assert one.tries == 0


async def test_a_pod_that_got_the_device_after_its_fault_was_known_stays_an_hour(one: One) -> None:
    one.seconds = 10
    one.pod({"startTime": "2026-11-21T11:59:01Z"})
    replacement = record(device(0, "Unhealthy", "Xid79", holders=[holder(since="2026-11-21T11:59:02Z")]))
    found = await one.run(replacement)
    until = "2026-11-21T12:59:01Z"
    assert found.message == (
        f"ml/trainer is not evicted: it got the device after the fault was known, and is not evicted for it "
        f"before {until}"
    )
    assert (found.reason, one.gate.proposed[EVICT], one.evicted) == ("InSync", (), False)
    one.seconds = 3600
    assert not (await one.run(replacement)).message.endswith("is ending")
    one.seconds = 3661
    await one.run(replacement)
    assert one.evicted


@pytest.mark.parametrize(("started", "listed"), [("11:59:00", "12:10:00"), ("11:59:20", "11:58:50")])
async def test_a_pod_that_had_the_device_before_the_fault_is_evicted(one: One, started: str, listed: str) -> None:
    """An agent that was started again knows holders since then; a slow kubelet writes startTime late."""
    one.pod({"startTime": f"2026-11-21T{started}Z"})
    await one.run(record(device(0, "Unhealthy", "Xid79", holders=[holder(since=f"2026-11-21T{listed}Z")])))
    assert one.evicted


OBSERVES: dict[str, Any] = {"configuration": {"serving": "Observe"}}


def lost_there(**more: Any) -> NodeDevicesRecord:
    """As LOST, where another plugin serves the kubelet."""
    return record(device(0, "Unhealthy", "Xid79", holders=[holder()]), **OBSERVES, **more)


async def test_where_another_plugin_goes_on_offering_the_device_nobody_is_evicted_without_a_taint(one: One) -> None:
    found = await one.run(lost_there())
    assert found.message == f"ml/trainer is not evicted: {ON_OFFER}"
    assert (found.reason, one.gate.proposed[EVICT], one.kube.writes) == ("InSync", (), [])


async def test_where_another_plugin_serves_a_pod_is_evicted_with_a_taint_or_a_withdrawn_device(one: One) -> None:
    one.kube.put(NODE, raw_node({GPU: "8"}, spec={"taints": [{"key": names.TAINT, "effect": "NoSchedule"}]}))
    await one.run(lost_there())
    assert one.evicted
    one = One(EvictionsConcern, **IMMEDIATE)
    withheld = {"reason": "ServedByAnother", "count": 1, "devices": ["gpu-0"]}
    await one.run(lost_there(resources=[resource(1, 0) | {"withheld": [withheld]}]))
    assert one.evicted


async def test_what_happened_to_a_holder_alone_evicts_it_there(one: One) -> None:
    own = health("Unhealthy", "MpsDaemonRestarted", recoveryAction="RestartApp")
    one.pod({"containerStatuses": []})
    await one.run(record(device(0, holders=[holder(health=own)]), **OBSERVES))
    assert one.evicted


async def test_an_annotation_that_comes_while_an_eviction_waits_is_heeded(one: One) -> None:
    one.gate.says = ActionAnswer(granted=False, reason="used up")
    await one.run()
    one.pod(annotations={KEEP: "false"})
    one.gate.says = ActionAnswer(granted=True)
    await one.run()
    assert (await one.run()).message.startswith("ml/trainer is not evicted: ")
    assert one.tries == 0


@pytest.mark.parametrize("where", ["other node", "finished", "leaving", "gone"])
async def test_a_pod_that_is_elsewhere_or_has_ended_is_left(one: One, where: str) -> None:
    pod = raw_pod()
    match where:
        case "other node":
            pod["spec"]["nodeName"] = "n2"
        case "finished":
            pod["status"]["phase"] = "Failed"
        case "leaving":
            pod["metadata"]["deletionTimestamp"] = SINCE
        case _:
            pod["metadata"]["uid"] = ""
    one.kube.put(POD, pod)
    if where == "gone":
        del one.kube.objects[POD]
    assert (await one.run()).reason == "InSync"
    assert (one.tries, one.gate.proposed[EVICT]) == (0, ())


@pytest.mark.parametrize("name", ["cpu", "example.com/nobodys"])
async def test_a_pod_is_not_evicted_by_a_resource_that_its_node_is_not_granted(one: One, name: str) -> None:
    pod = raw_pod()
    pod["spec"]["containers"] = [{"name": "main", "resources": {"limits": {name: "1"}}}]
    one.kube.put(POD, pod)
    claimed = record(device(0, "Unhealthy", "Xid79", holders=[holder(resource=name)]))
    assert (await one.run(claimed)).reason == "InSync"
    assert (one.tries, one.gate.proposed[EVICT]) == (0, ())


async def test_nobody_is_evicted_while_the_report_is_stale_or_holders_are_not_known(one: One) -> None:
    one.stale = "True"
    assert (await one.run()).message == "no pod is evicted while the NodeDevices is stale: the Node is not ready"
    one.stale = "False"
    unknown = record(
        device(0, "Unhealthy", "Xid79", holders=[holder()]),
        conditions={"HoldersKnown": ("Unknown", "PodResourcesUnavailable")},
    )
    assert (await one.run(unknown)).reason == "Pending"
    assert (one.tries, one.gate.proposed[EVICT]) == (0, ())


async def test_a_policy_that_evicts_no_longer_takes_its_condition_and_proposals_back(one: One) -> None:
    one.gate.says = None
    await one.run()
    one.sections = Sections()
    assert (await one.run()).reason == "REMOVED"
    assert one.gate.proposed[EVICT] == ()


# --- the taint -------------------------------------------------------------------------------------------------------
async def test_a_taint_waits_for_its_grant_and_its_removal_does_not() -> None:
    one = One(TaintConcern, taintEffect="NoSchedule")
    one.gate.says = ActionAnswer(granted=False, reason="used up")
    found = await one.run()
    assert (found.reason, found.message, one.taints) == ("Refused", "used up", [])
    one.gate.says = ActionAnswer(granted=True)
    found = await one.run()
    ours = {"key": names.TAINT, "effect": "NoSchedule", "value": "Xid79"}
    assert (found.message, one.taints) == ("tainted NoSchedule for Xid79", [ours])
    one.gate.says = None
    found = await one.run(WELL)
    assert (found.message, one.taints, one.gate.proposed[TAINT]) == ("no fault requires a taint", [], ())


@cases("shown", LOST, WELL, ids=["removed", "added"])
async def test_a_fight_over_the_taint_pauses_and_is_shown(shown: NodeDevicesRecord) -> None:
    """Another controller sets the whole list of taints, each time that it changes."""
    one = One(TaintConcern, taintEffect="NoSchedule")
    raw = raw_node({GPU: "8"})
    theirs = [] if shown is LOST else [{"key": names.TAINT, "effect": "NoSchedule", "value": "Xid79"}]
    await one.run(shown)
    first = len(one.kube.writes)
    for _ in range(20):
        one.kube.put(NODE, raw | {"spec": {"taints": theirs}})
        found = await one.run(shown)
    assert (found.reason, found.again) == ("Conflict", FIGHT_WINDOW_SECONDS)
    assert len(one.kube.writes) == first + FIGHT_REPAIRS
    one.seconds += FIGHT_WINDOW_SECONDS
    assert (await one.run(shown)).reason == "InSync"


async def test_faults_that_come_and_go_are_no_fight_over_the_taint() -> None:
    one = One(TaintConcern, taintEffect="NoSchedule")
    for shown in (LOST, WELL) * 10:
        assert (await one.run(shown)).reason == "InSync"


async def test_a_stale_report_neither_taints_nor_takes_a_taint_away_and_a_policy_without_one_does() -> None:
    one = One(TaintConcern, taintEffect="NoSchedule")
    one.stale = "True"
    await one.run()
    assert one.taints == []
    one.stale = "False"
    await one.run()
    one.stale = "True"
    await one.run(WELL)
    assert len(one.taints) == 1
    one.sections = Sections()
    await one.run()
    assert one.taints == []


async def test_a_node_that_changed_between_read_and_write_is_tried_again() -> None:
    one = One(TaintConcern, taintEffect="NoSchedule")
    one.kube.fails = lambda verb, _path: KubeError("it has changed", status=422) if verb == "patch" else None
    found = await one.run()
    assert (found.reason, found.retried) == ("NotWritten", True)


async def test_a_node_of_another_uid_is_not_tainted() -> None:
    one = One(TaintConcern, taintEffect="NoSchedule")
    get = one.kube.get

    async def another(path: str) -> Any:
        found = dict(await get(path))
        return found | {"metadata": {**found["metadata"], "uid": "another"}}

    one.kube.get = another  # type: ignore[method-assign]
    assert (await one.run()).retried
    assert one.taints == []
