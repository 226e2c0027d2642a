"""The fleet gate: nothing is granted that is not in the record, whoever dies and whatever happens to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from nodedevices_common.confirming import ACTIONS_RESUMED, CONFIRM
from nodedevices_operator.concerns.fleet_gate import AGAIN_SECONDS, FAILURES, KEY, NAME, FleetGate
from nodedevices_operator.desired.fleet import (
    CLOSED,
    MAX_ACTIONS,
    OPEN,
    Action,
    Fleet,
    PolicyLimits,
    Pool,
    Survey,
    arrivals,
    decide,
    from_data,
    refusal,
    resumed,
    to_data,
)
from nodedevices_operator.kube.port import Kube, KubeError
from nodedevices_operator.metrics import OperatorMetrics
from nodedevices_operator.records.names import namespaced
from support.cases import cases
from support.crashes import CrashingKube, Killed
from support.fakekube import FakeKube
from support.opfacts import Decided
from support.patience import PATIENCE_SECONDS
from support.there import there

START = datetime(2026, 11, 21, 12, tzinfo=UTC)
RECORD = namespaced("nodedevices-system", "configmaps", NAME)
SOME = PolicyLimits(per_hour=2)
LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")
MANY = tuple(f"n{index}" for index in range(MAX_ACTIONS + 10))
ALL = 10  # nodes of a policy


def action(node: str, minute: int = 0) -> Action:
    return Action(f"2026-11-21T11:{minute:02}:00Z", node, "Evict", f"ml/{node}/uid", "Xid79")


def survey(limits: PolicyLimits = SOME, *, failing: dict[str, str] | None = None, out: tuple[str, ...] = ()) -> Survey:
    """One policy of all nodes; `failing`: nodes with since when."""
    faults = {node: {f"GPU-{node}": since} for node, since in (failing or {}).items()}
    return Survey([Pool("p", limits, frozenset(LETTERS + MANY), frozenset(out))], faults)


def mass(limits: PolicyLimits, failing: int, at: datetime, *, apart: timedelta = timedelta()) -> Survey:
    """Of ten nodes so many fail, one after the other, the last one at that time."""
    nodes = MANY[:ALL]
    times = {node: (at - apart * (failing - 1 - index)).isoformat() for index, node in enumerate(nodes[:failing])}
    return Survey(
        [Pool("p", limits, frozenset(nodes))], {node: {f"GPU-{node}": since} for node, since in times.items()}
    )


def decided(fleet: Fleet, wanted: list[Action], now: datetime, found: Survey) -> Decided:
    """By an operator that has just started, and finds all of it."""
    return Decided.of(decide(fleet, wanted, now, found, arrivals(None, found.faults, 0.0)))


# --- deciding --------------------------------------------------------------------------------------------------------
def test_the_oldest_faults_are_granted_and_the_rest_waits_for_the_hour_to_pass() -> None:
    late, early, middle = action("a", 9), action("c", 1), action("b", 5)
    first = decided(Fleet(), [late, early, middle], START, survey())
    assert (sorted(first.granted), list(first.refused)) == ([early, middle], [late])
    again = decided(first.fleet, [late, early, middle], START + timedelta(minutes=59), survey())
    assert again.granted == {early, middle}
    assert again.fleet == first.fleet, "what stands in the record is not counted twice"
    then = decided(first.fleet, [late], START + timedelta(hours=1), survey())
    assert then.granted == {late}


def test_a_mass_fault_opens_the_breaker_and_nothing_is_granted_until_a_person_resumes() -> None:
    wanted = [action(f"n{index}") for index in range(6)]
    found = decided(Fleet(), wanted, START, mass(SOME, 6, START))
    assert (found.fleet.breaker, found.granted, len(found.refused)) == (OPEN, frozenset(), len(wanted))
    assert "6 of the 10 nodes of policy p failed within 300 s" in found.refused[wanted[0]]
    later = START + timedelta(hours=9)
    assert decided(found.fleet, wanted[:1], later, mass(SOME, 6, START)).granted == frozenset()
    closed = resumed(found.fleet, word(later - timedelta(minutes=1)), later, mass(SOME, 6, START).faults)
    assert decided(closed, wanted[:1], later, mass(SOME, 6, START)).granted == {wanted[0]}


@cases("hours", -9, 0, 1, 9 * 24)
def test_a_mass_fault_is_one_whenever_and_by_whatever_clock_it_is_looked_at(hours: int) -> None:
    """After a long grace, after the operator was away, or where the nodes' clocks are ahead of its own."""
    found = decided(Fleet(), [action("n1")], START + timedelta(hours=hours), mass(SOME, 6, START))
    assert (found.fleet.breaker, found.granted) == (OPEN, frozenset())


def test_faults_that_arrive_together_are_a_mass_fault_whatever_the_nodes_clocks_say() -> None:
    apart = mass(SOME, 6, START, apart=timedelta(hours=5))
    together = arrivals({}, apart.faults, 100.0)
    assert decide(Fleet(), [], START, apart, together).fleet.breaker == OPEN
    one_by_one = {node: dict.fromkeys(its, place * 100.0) for place, (node, its) in enumerate(together.items())}
    assert decide(Fleet(), [], START, apart, one_by_one).fleet.breaker == CLOSED


def test_what_an_operator_finds_at_its_start_has_no_time_of_arrival_and_keeps_none() -> None:
    faults = mass(SOME, 2, START).faults
    first = arrivals(None, faults, 5.0)
    assert {at for its in first.values() for at in its.values()} == {None}
    assert arrivals(first, faults, 6.0) == first
    assert {at for its in arrivals({}, faults, 7.0).values() for at in its.values()} == {7.0}
    assert arrivals(first, {}, 8.0) == {}


def test_faults_that_were_there_when_a_person_resumed_never_stop_actions_again_and_later_ones_do() -> None:
    limits = PolicyLimits(per_hour=9)
    opened = decided(Fleet(), [], START, mass(limits, 6, START)).fleet
    said = START + timedelta(minutes=1)
    closed = resumed(opened, word(said), said, mass(limits, 6, START).faults)
    read_again = from_data(to_data(closed))
    assert read_again == closed, "an operator that restarts knows them"
    assert decided(closed, [action("n1")], said, mass(limits, 6, START)).granted == {action("n1")}
    ahead = START + timedelta(seconds=1)  # by the nodes' clocks, which are behind
    assert decided(closed, [action("n1")], said + timedelta(days=1), mass(limits, 6, ahead)).fleet.breaker == OPEN


def test_a_fault_that_changes_its_reason_counts_once_and_an_unknown_node_stays_out_of_service() -> None:
    limits, first, other = PolicyLimits(max_unavailable=1), action("a", 1), action("b", 9)
    lasting = survey(limits, failing={"a": first.since})
    granted = decided(Fleet(), [first], START, lasting).fleet
    changed = survey(limits, failing={"a": "2026-11-21T11:05:00Z", "b": other.since})
    found = decided(granted, [other, action("a", 5)], START, changed)
    assert (set(found.granted), list(found.refused)) == ({action("a", 5)}, [other])
    limits, first, other = PolicyLimits(max_unavailable=1), action("a", 1), action("b", 9)
    granted = decided(Fleet(), [first], START, survey(limits, failing={"a": first.since})).fleet
    now = survey(limits, failing={"b": other.since})
    for unknown in (replace(now, unclear={"a": frozenset({"GPU-a"})}), replace(now, silent=frozenset({"a"}))):
        assert decided(granted, [other], START, unknown).granted == frozenset()
    assert decided(granted, [other], START, now).granted == {other}


def test_a_fault_that_lasts_counts_after_more_actions_than_the_record_keeps() -> None:
    limits, first, other = PolicyLimits(max_unavailable=1), action("a", 1), action("b", 9)
    big = Pool("big", PolicyLimits(), frozenset(MANY))

    def found(**failing: str) -> Survey:
        faults = {node: {f"GPU-{node}": since} for node, since in failing.items()}
        return Survey([Pool("small", limits, frozenset("ab")), big], faults)

    fleet = decided(Fleet(), [first], START, found(a=first.since)).fleet
    for index, node in enumerate(MANY):
        now = START + timedelta(hours=1 + index)
        fleet = decided(fleet, [action(node)], now, found(a=first.since)).fleet
    assert all(it.node != "a" for it, _ in fleet.actions)
    later = START + timedelta(days=30)
    assert decided(fleet, [other], later, found(a=first.since, b=other.since)).granted == frozenset()
    assert decided(fleet, [other], later, found(b=other.since)).granted == {other}


def test_a_breaker_that_opens_stops_what_was_granted_and_is_not_done_yet() -> None:
    first = decided(Fleet(), [action("n1")], START, mass(SOME, 1, START))
    assert first.granted == {action("n1")}
    then = decided(first.fleet, [action("n1")], START, mass(SOME, 6, START))
    assert (then.granted, list(then.refused)) == (frozenset(), [action("n1")])


def test_an_action_counts_towards_max_unavailable_while_its_fault_lasts() -> None:
    limits = PolicyLimits(max_unavailable=1)
    first, other = action("a", 1), action("b", 2)
    lasting = survey(limits, failing={"a": first.since, "b": other.since})
    found = decided(Fleet(), [first, other], START, lasting)
    assert (set(found.granted), list(found.refused)) == ({first}, [other])
    assert "allows 1 nodes out of service (maxUnavailable), and 1 of its" in found.refused[other]
    assert found.refused[other].endswith("nodes are: a")
    over = survey(limits, failing={"b": other.since})
    assert decided(found.fleet, [other], START, over).granted == {other}


def test_a_node_out_of_service_may_be_acted_upon_and_each_policy_has_its_own_budget() -> None:
    found = decided(Fleet(), [action("a"), action("b")], START, survey(PolicyLimits(max_unavailable=1), out=("a",)))
    assert (set(found.granted), list(found.refused)) == ({action("a")}, [action("b")])
    assert decided(Fleet(), [action("elsewhere")], START, survey()).granted == frozenset()
    both = [
        Pool("p", PolicyLimits(per_hour=1), frozenset({"a", "b"})),
        Pool("q", PolicyLimits(per_hour=1), frozenset({"c"})),
    ]
    found = decided(Fleet(), [action("a"), action("b"), action("c")], START, Survey(both))
    assert found.granted == {action("a"), action("c")}


def test_one_annotation_closes_the_breaker_once() -> None:
    fleet = Fleet(OPEN, "too many", START.isoformat())
    said = word(START + timedelta(minutes=1))
    closed = resumed(fleet, said, START + timedelta(minutes=2), {})
    assert (closed.breaker, closed.resumed) == (CLOSED, said)
    opened_again = Fleet(OPEN, "again", START.isoformat(), resumed=said)
    assert resumed(opened_again, said, START + timedelta(hours=1), {}) == opened_again
    assert refusal(opened_again, said, START + timedelta(hours=1)) == ""


# --- the gate --------------------------------------------------------------------------------------------------------
class Operator:
    """One life of a gate; `enqueued` are keys for its queue, `answered` nodes that are to be reconciled."""

    def __init__(self, kube: Kube, limits: PolicyLimits = SOME) -> None:
        self.now = START
        self.seconds = 0.0
        self.survey = survey(limits)
        self.enqueued: list[str] = []
        self.answered: list[str] = []
        self.switched: list[Sequence[str]] = []
        self.gate = FleetGate(
            kube,
            OperatorMetrics(),
            namespace="nodedevices-system",
            survey=lambda: self.survey,
            enqueue=self.enqueued.append,
            answered=self.answered.append,
            switched=self.switched.append,
            wall=lambda: self.now,
            clock=lambda: self.seconds,
        )

    def granted(self, *actions: Action) -> list[bool | None]:
        return [None if found is None else found.granted for found in map(self.gate.answer, actions)]


@pytest.fixture
def kube() -> FakeKube:
    return FakeKube()


@pytest.fixture
def operator(kube: FakeKube) -> Operator:
    return Operator(kube)


def recorded(kube: FakeKube) -> Fleet:
    return there(from_data(kube.objects[RECORD]["data"]))


async def test_the_record_is_written_before_an_action_is_granted(kube: FakeKube, operator: Operator) -> None:
    operator.gate.propose("a", "Evict", [action("a")])
    assert (operator.enqueued, operator.granted(action("a"))) == ([KEY], [None])
    kube.fails = lambda verb, _path: KubeError("no answer") if verb in {"create", "apply"} else None
    with pytest.raises(KubeError):
        await operator.gate.reconcile(KEY)
    assert (operator.granted(action("a")), operator.answered) == ([None], [])
    kube.fails = lambda _verb, _path: None
    assert await operator.gate.reconcile(KEY) is None
    assert (operator.granted(action("a")), operator.answered) == ([True], ["a"])
    assert [it.node for it, _ in recorded(kube).actions] == ["a"]


@pytest.mark.parametrize("status", [0, 403, 422, 500])
async def test_a_record_that_cannot_be_written_is_shown_until_it_is(kube: FakeKube, status: int) -> None:
    operator = Operator(kube)
    operator.gate.propose("a", "Evict", [action("a")])
    kube.fails = lambda verb, _path: KubeError("it is too long", status=status) if verb == "create" else None
    for failures in range(1, FAILURES + 2):
        with pytest.raises(KubeError):
            await operator.gate.reconcile(KEY)
        assert bool(operator.gate.stop) == (failures >= FAILURES)
    stop = there(operator.gate.stop)
    assert (stop.reason, stop.since) == ("RecordNotWritten", "2026-11-21T12:00:00Z")
    assert "nodedevices-system/nodedevices-actions: it is too long" in stop.message
    assert len(operator.switched) == 1, "said once"
    kube.fails = lambda _verb, _path: None
    await operator.gate.reconcile(KEY)
    assert (operator.gate.stop, operator.granted(action("a"))) == (None, [True])


async def test_a_record_that_could_not_be_read_while_nothing_is_proposed_is_tried_again(kube: FakeKube) -> None:
    operator = Operator(kube)
    kube.fails = lambda _verb, _path: KubeError("no answer")
    for _ in range(FAILURES):
        with pytest.raises(KubeError):
            await operator.gate.reconcile(KEY)
    kube.fails = lambda _verb, _path: None
    await operator.gate.reconcile(KEY)
    assert operator.gate.stop is None


@pytest.mark.parametrize("before", [0, 1])
async def test_killed_between_record_and_grant_it_grants_and_counts_once(kube: FakeKube, before: int) -> None:
    operator = Operator(kube)
    for index in range(before):  # so that the record is there, or is not
        operator.gate.propose("z", "Evict", [action("z", index)])
        await operator.gate.reconcile(KEY)
    dying = Operator(CrashingKube(kube, dies_at=2 if before else 1))  # at the write, of which it never learns
    dying.gate.propose("a", "Evict", [action("a")])
    with pytest.raises(Killed):
        await dying.gate.reconcile(KEY)
    assert dying.granted(action("a")) == [None]
    assert len(recorded(kube).actions) == before + 1
    life = Operator(kube)
    life.gate.propose("a", "Evict", [action("a")])
    await life.gate.reconcile(KEY)
    assert life.granted(action("a")) == [True]
    assert len(recorded(kube).actions) == before + 1


async def test_of_two_proposals_at_once_the_older_fault_gets_the_last_grant(kube: FakeKube) -> None:
    operator = Operator(kube, PolicyLimits(per_hour=1))
    operator.gate.propose("a", "Evict", [action("a", 9)])
    operator.gate.propose("b", "Evict", [action("b", 1)])
    assert await operator.gate.reconcile(KEY) == AGAIN_SECONDS
    assert operator.granted(action("a", 9), action("b", 1)) == [False, True]
    refused = there(operator.gate.answer(action("a", 9)))
    assert "within the last hour" in refused.reason


async def test_of_two_operators_at_once_only_one_writes_the_record(kube: FakeKube) -> None:
    seed = Operator(kube)
    seed.gate.propose("z", "Evict", [action("z")])
    await seed.gate.reconcile(KEY)
    one, other = Operator(kube, PolicyLimits(per_hour=2)), Operator(kube, PolicyLimits(per_hour=2))
    one.gate.propose("a", "Evict", [action("a")])
    other.gate.propose("b", "Evict", [action("b")])
    get = kube.get

    async def meanwhile(path: str) -> Any:
        found = await get(path)
        kube.get = get  # type: ignore[method-assign]
        await other.gate.reconcile(KEY)
        return found

    kube.get = meanwhile  # type: ignore[method-assign]
    with pytest.raises(KubeError) as refused:
        await one.gate.reconcile(KEY)
    assert refused.value.status == 409
    assert (one.granted(action("a")), other.granted(action("b"))) == ([None], [True])
    await one.gate.reconcile(KEY)
    assert one.granted(action("a")) == [False], "two an hour, and two were granted"


async def test_a_proposal_that_is_withdrawn_is_neither_granted_nor_recorded(kube: FakeKube, operator: Operator) -> None:
    operator.gate.propose("a", "Evict", [action("a")])
    operator.gate.propose("a", "Evict", [])
    assert await operator.gate.reconcile(KEY) is None
    assert RECORD not in kube.objects


async def test_a_deleted_record_is_written_again_with_its_open_breaker(kube: FakeKube, operator: Operator) -> None:
    wanted = [action(f"n{index}") for index in range(6)]
    operator.survey = mass(SOME, 6, START)
    operator.gate.propose("a", "Evict", wanted)
    await operator.gate.reconcile(KEY)
    assert recorded(kube).breaker == OPEN
    del kube.objects[RECORD]
    operator.gate.propose("a", "Evict", wanted[:1])
    await operator.gate.reconcile(KEY)
    assert (recorded(kube).breaker, operator.granted(wanted[0])) == (OPEN, [False])


async def test_a_mass_fault_opens_the_breaker_before_anybody_proposes_anything(kube: FakeKube) -> None:
    operator = Operator(kube)
    await operator.gate.reconcile(KEY)
    operator.survey = mass(SOME, 6, START)
    for node, faults in operator.survey.faults.items():
        operator.gate.seen(node, faults)
        operator.gate.seen(node, faults)
    assert operator.enqueued == [KEY] * 6, "once for each change"
    await operator.gate.reconcile(KEY)
    assert recorded(kube).breaker == OPEN
    assert "6 of the 10 nodes of policy p failed" in operator.gate.stopped()
    assert "kubectl nodedevices confirm actions resumed" in operator.gate.stopped()
    assert operator.switched == [list(operator.survey.faults)]


async def test_what_was_granted_holds_no_more_in_a_mass_fault_that_cannot_be_written_down(kube: FakeKube) -> None:
    operator = Operator(kube)
    operator.gate.propose("n1", "Evict", [action("n1")])
    await operator.gate.reconcile(KEY)
    assert operator.granted(action("n1")) == [True]
    operator.survey = mass(SOME, 6, START)
    kube.fails = lambda _verb, _path: KubeError("no answer")
    with pytest.raises(KubeError):
        await operator.gate.reconcile(KEY)
    assert operator.granted(action("n1")) == [None]


async def test_an_annotation_that_is_refused_says_so_and_what_would_be_right(kube: FakeKube) -> None:
    operator = Operator(kube)
    operator.survey = mass(SOME, 6, START)
    await operator.gate.reconcile(KEY)
    annotate(kube, "actions=resumed@yes")
    operator.now = START + timedelta(minutes=1)
    await operator.gate.reconcile(KEY)
    assert recorded(kube).breaker == OPEN
    assert operator.gate.stopped().endswith(
        "annotation nodedevices.io/confirm is refused: actions=resumed@yes: give actions=resumed@<RFC 3339 time with a "
        "zone>; give the time now, as `date -u +%FT%TZ` prints it"
    )
    assert len(operator.switched) == 2
    operator.now = START + timedelta(minutes=2)
    await operator.gate.reconcile(KEY)
    assert len(operator.switched) == 2, "said once"


async def test_the_record_is_watched_while_the_breaker_is_open() -> None:
    watched, changed = [], asyncio.Event()

    class Watched(FakeKube):
        async def watch(self, path: str, query: Mapping[str, str]) -> AsyncIterator[bytes]:
            watched.append((path, query["fieldSelector"]))
            yield b"{}"
            changed.set()

    operator = Operator(Watched())
    task = asyncio.create_task(operator.gate.watch_record())
    await asyncio.sleep(0)
    assert watched == []
    operator.survey = mass(SOME, 6, START)
    await operator.gate.reconcile(KEY)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await changed.wait()
    assert watched == [("/api/v1/namespaces/nodedevices-system/configmaps", "metadata.name=nodedevices-actions")]
    assert operator.enqueued == [KEY]
    task.cancel()


EMPTY = dict.fromkeys(("reason", "opened", "closed", "resumed"), "") | {"breaker": "Closed", "actions": "[]"}


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"breaker": "Closed"},
        EMPTY | {"breaker": "maybe"},
        *(EMPTY | {"actions": actions} for actions in ("no JSON", '[{"node": 1}]', "7", '["x"]')),
    ],
)
async def test_a_record_of_anothers_stops_actions_until_they_resume(kube: FakeKube, data: dict[str, str]) -> None:
    before = kube.put(RECORD, {"metadata": {"name": NAME, "uid": "u"}, "data": data})
    operator = Operator(kube)
    operator.gate.propose("a", "Evict", [action("a")])
    assert await operator.gate.reconcile(KEY) == AGAIN_SECONDS
    assert (operator.granted(action("a")), kube.objects[RECORD]) == ([False], before)
    annotate(kube, "actions=resumed@2026-11-21T12:10:00Z")
    operator.now = START + timedelta(minutes=11)
    await operator.gate.reconcile(KEY)
    assert operator.granted(action("a")) == [True]
    assert [it.node for it, _ in recorded(kube).actions] == ["a"]


async def test_what_was_acted_upon_is_known_by_the_record_also_to_the_next_operator(kube: FakeKube) -> None:
    operator, later = Operator(kube), Operator(kube)
    assert operator.gate.acted_on("a") is None, "not read yet"
    operator.survey = later.survey = survey(failing={"a": action("a").since})
    operator.gate.propose("a", "Evict", [action("a")])
    await operator.gate.reconcile(KEY)
    assert (operator.gate.acted_on("a"), operator.gate.acted_on("b")) == (("GPU-a",), ())
    await later.gate.reconcile(KEY)
    assert later.gate.acted_on("a") == ("GPU-a",)


async def test_a_decided_fleet_writes_nothing_more(kube: FakeKube) -> None:
    operator = Operator(kube)
    operator.gate.propose("a", "Evict", [action("a")])
    await operator.gate.reconcile(KEY)
    kube.writes.clear()
    await operator.gate.reconcile(KEY)
    await Operator(kube).gate.reconcile(KEY)
    assert (kube.writes, operator.answered) == ([], ["a"])


def word(at: datetime) -> str:
    return ACTIONS_RESUMED.entry(at.isoformat())


def annotate(kube: FakeKube, value: str) -> None:
    raw = kube.objects[RECORD]
    kube.put(RECORD, raw | {"metadata": raw["metadata"] | {"annotations": {CONFIRM: value}}})
