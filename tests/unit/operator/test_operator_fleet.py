"""The fleet gate: nothing is granted that is not in the record, whoever dies and whatever happens to it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from nodedevices_operator.desired.fleet import (
    CLOSED,
    MAX_ACTIONS,
    OPEN,
    RESUME,
    Action,
    Fleet,
    Limits,
    Pool,
    decide,
    from_data,
    resumed,
    to_data,
)
from nodedevices_operator.kube.port import Kube, KubeError
from nodedevices_operator.metrics import Metrics
from nodedevices_operator.reconcile.fleet import AGAIN_SECONDS, KEY, NAME, FleetGate
from nodedevices_operator.records.names import config_map_path
from support.crashes import CrashingKube, Killed
from support.fakekube import FakeKube

START = datetime(2026, 11, 21, 12, tzinfo=UTC)
RECORD = config_map_path("nodedevices-system", NAME)
SOME = Limits(per_hour=2)
LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")
MANY = tuple(f"n{index}" for index in range(MAX_ACTIONS + 10))
ALL = 10  # nodes of a policy


def action(node: str, minute: int = 0) -> Action:
    return Action(f"2026-11-21T11:{minute:02}:00Z", node, "Evict", f"ml/{node}/uid", "Xid79")


def pools(limits: Limits = SOME, *, failing: dict[str, str] | None = None, out: tuple[str, ...] = ()) -> list[Pool]:
    """One policy of all nodes; `failing`: nodes with since when."""
    faults = {node: frozenset({since}) for node, since in (failing or {}).items()}
    return [Pool("p", limits, frozenset(LETTERS + MANY), frozenset(out), faults)]


def mass(limits: Limits, failing: int, at: datetime) -> list[Pool]:
    """Of ten nodes so many have just failed."""
    nodes = MANY[:ALL]
    return [Pool("p", limits, frozenset(nodes), faults={it: frozenset({at.isoformat()}) for it in nodes[:failing]})]


# --- deciding --------------------------------------------------------------------------------------------------------
def test_the_oldest_faults_are_granted_and_the_rest_waits_for_the_hour_to_pass() -> None:
    late, early, middle = action("a", 9), action("c", 1), action("b", 5)
    first = decide(Fleet(), [late, early, middle], START, pools())
    assert (sorted(first.granted), list(first.refused)) == ([early, middle], [late])
    again = decide(first.fleet, [late, early, middle], START + timedelta(minutes=59), pools())
    assert again.granted == {early, middle}
    assert again.fleet == first.fleet, "what stands in the record is not counted twice"
    then = decide(first.fleet, [late], START + timedelta(hours=1), pools())
    assert then.granted == {late}


def test_a_mass_fault_opens_the_breaker_and_nothing_is_granted_until_a_person_resumes() -> None:
    wanted = [action(f"n{index}") for index in range(6)]
    found = decide(Fleet(), wanted, START, mass(SOME, 6, START))
    assert (found.fleet.breaker, found.granted, len(found.refused)) == (OPEN, frozenset(), len(wanted))
    assert "6 of the 10 nodes of policy p failed within 300 s" in found.refused[wanted[0]]
    later = START + timedelta(hours=9)
    assert decide(found.fleet, wanted[:1], later, mass(SOME, 6, START)).granted == frozenset()
    closed = resumed(found.fleet, (later - timedelta(minutes=1)).isoformat(), later)
    assert decide(closed, wanted[:1], later, mass(SOME, 6, START)).granted == {wanted[0]}


def test_the_share_that_the_policy_allows_opens_nothing() -> None:
    assert decide(Fleet(), [action("n1")], START, mass(SOME, 5, START)).granted == {action("n1")}
    strict = Limits(per_hour=2, percent=0)
    alone = mass(strict, 1, START)
    assert decide(Fleet(), [action("n1")], START, alone).granted == {action("n1")}, "one node is no mass fault"
    assert decide(Fleet(), [action("n1")], START, mass(strict, 2, START)).fleet.breaker == OPEN


def test_faults_that_came_over_a_longer_time_open_nothing() -> None:
    before = START - timedelta(seconds=SOME.window_seconds)
    assert decide(Fleet(), [action("n1")], START, mass(SOME, 10, before)).granted == {action("n1")}


def test_a_breaker_with_a_time_to_reset_closes_by_itself_and_the_same_faults_do_not_open_it_again() -> None:
    limits = Limits(per_hour=2, window_seconds=3600, reset_seconds=600)
    opened = decide(Fleet(), [action("n1")], START, mass(limits, 6, START)).fleet
    almost = START + timedelta(seconds=599)
    assert decide(opened, [action("n1")], almost, mass(limits, 6, START)).granted == frozenset()
    then = decide(opened, [action("n1")], START + timedelta(seconds=600), mass(limits, 6, START))
    assert (then.fleet.breaker, set(then.granted)) == (CLOSED, {action("n1")})
    anew = START + timedelta(seconds=700)
    assert decide(then.fleet, [action("n1")], anew, mass(limits, 6, anew)).fleet.breaker == OPEN


def test_a_breaker_that_opens_stops_what_was_granted_and_is_not_done_yet() -> None:
    first = decide(Fleet(), [action("n1")], START, mass(SOME, 1, START))
    assert first.granted == {action("n1")}
    then = decide(first.fleet, [action("n1")], START, mass(SOME, 6, START))
    assert (then.granted, list(then.refused)) == (frozenset(), [action("n1")])


def test_nodes_that_somebody_else_took_out_of_service_count_towards_max_unavailable() -> None:
    found = decide(Fleet(), [action("a")], START, pools(Limits(max_unavailable=2), out=("y", "z")))
    assert found.granted == frozenset()
    assert "nodes are: y, z" in found.refused[action("a")]


def test_an_action_counts_towards_max_unavailable_while_its_fault_lasts() -> None:
    limits = Limits(max_unavailable=1)
    first, other = action("a", 1), action("b", 2)
    lasting = pools(limits, failing={"a": first.since, "b": other.since})
    found = decide(Fleet(), [first, other], START, lasting)
    assert (set(found.granted), list(found.refused)) == ({first}, [other])
    assert "allows 1 nodes out of service (maxUnavailable), and 1 of its" in found.refused[other]
    assert found.refused[other].endswith("nodes are: a")
    over = pools(limits, failing={"b": other.since})
    assert decide(found.fleet, [other], START, over).granted == {other}


def test_a_node_that_is_out_of_service_already_may_be_acted_upon() -> None:
    found = decide(Fleet(), [action("a"), action("b")], START, pools(Limits(max_unavailable=1), out=("a",)))
    assert (set(found.granted), list(found.refused)) == ({action("a")}, [action("b")])


def test_a_node_that_no_policy_reacts_for_any_more_gets_nothing() -> None:
    assert decide(Fleet(), [action("elsewhere")], START, pools()).granted == frozenset()


def test_the_budget_of_one_policy_is_not_used_up_by_another() -> None:
    both = [Pool("p", Limits(per_hour=1), frozenset({"a", "b"})), Pool("q", Limits(per_hour=1), frozenset({"c"}))]
    found = decide(Fleet(), [action("a"), action("b"), action("c")], START, both)
    assert found.granted == {action("a"), action("c")}


@pytest.mark.parametrize(
    "annotation",
    ["", "yes", "2026-11-21T11:00:00Z", "2026-11-21T14:00:00Z", "2026-11-21T12:30:00"],
    ids=["none", "no time", "before it opened", "in the future", "of no zone"],
)
def test_only_a_time_since_it_opened_closes_the_breaker(annotation: str) -> None:
    fleet = Fleet(OPEN, "too many", START.isoformat())
    assert resumed(fleet, annotation, START + timedelta(hours=1)) == fleet


def test_one_annotation_closes_the_breaker_once() -> None:
    fleet = Fleet(OPEN, "too many", START.isoformat())
    said = (START + timedelta(minutes=1)).isoformat()
    closed = resumed(fleet, said, START + timedelta(minutes=2))
    assert (closed.breaker, closed.resumed) == (CLOSED, said)
    opened_again = Fleet(OPEN, "again", START.isoformat(), resumed=said)
    assert resumed(opened_again, said, START + timedelta(hours=1)) == opened_again


def test_the_record_is_bounded_and_keeps_the_newest() -> None:
    fleet = Fleet()
    for index in range(MAX_ACTIONS + 5):
        now = START + timedelta(hours=index)
        fleet = decide(fleet, [action(f"n{index}")], now, pools()).fleet
    assert len(fleet.actions) == MAX_ACTIONS
    assert fleet.actions[-1][0].node == f"n{MAX_ACTIONS + 4}"
    assert from_data(to_data(fleet)) == fleet
    assert len(to_data(fleet)["actions"]) < 100_000, "a ConfigMap holds 1 MiB"


def test_an_action_of_no_known_time_counts_as_recent() -> None:
    fleet = Fleet(actions=((action("a"), "yesterday"), (action("b"), "2099-01-01T00:00:00Z")))
    assert decide(fleet, [action("c")], START, pools()).granted == frozenset()


# --- the gate --------------------------------------------------------------------------------------------------------
class Operator:
    """One life of a gate; `enqueued` are keys for its queue, `answered` nodes that are to be reconciled."""

    def __init__(self, kube: Kube, limits: Limits = SOME) -> None:
        self.now = START
        self.pools = pools(limits)
        self.enqueued: list[str] = []
        self.answered: list[str] = []
        self.gate = FleetGate(
            kube,
            Metrics(),
            namespace="nodedevices-system",
            pools=lambda: self.pools,
            enqueue=self.enqueued.append,
            answered=self.answered.append,
            wall=lambda: self.now,
        )

    def granted(self, *actions: Action) -> list[bool | None]:
        return [None if found is None else found.granted for found in map(self.gate.answer, actions)]


@pytest.fixture
def kube() -> FakeKube:
    return FakeKube()


def recorded(kube: FakeKube) -> Fleet:
    fleet = from_data(kube.objects[RECORD]["data"])
    assert fleet is not None
    return fleet


async def test_the_record_is_written_before_an_action_is_granted(kube: FakeKube) -> None:
    operator = Operator(kube)
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


@pytest.mark.parametrize("before", [0, 1])
async def test_killed_between_record_and_grant_the_next_life_grants_it_and_counts_it_once(
    kube: FakeKube, before: int
) -> None:
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
    operator = Operator(kube, Limits(per_hour=1))
    operator.gate.propose("a", "Evict", [action("a", 9)])
    operator.gate.propose("b", "Evict", [action("b", 1)])
    assert await operator.gate.reconcile(KEY) == AGAIN_SECONDS
    assert operator.granted(action("a", 9), action("b", 1)) == [False, True]
    refused = operator.gate.answer(action("a", 9))
    assert refused is not None
    assert "within the last hour" in refused.reason


async def test_of_two_operators_at_once_only_one_writes_the_record(kube: FakeKube) -> None:
    seed = Operator(kube)
    seed.gate.propose("z", "Evict", [action("z")])
    await seed.gate.reconcile(KEY)
    one, other = Operator(kube, Limits(per_hour=2)), Operator(kube, Limits(per_hour=2))
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


async def test_a_proposal_that_is_withdrawn_is_neither_granted_nor_recorded(kube: FakeKube) -> None:
    operator = Operator(kube)
    operator.gate.propose("a", "Evict", [action("a")])
    operator.gate.propose("a", "Evict", [])
    assert await operator.gate.reconcile(KEY) is None
    assert RECORD not in kube.objects


async def test_a_deleted_record_is_written_again_with_its_open_breaker(kube: FakeKube) -> None:
    operator = Operator(kube)
    wanted = [action(f"n{index}") for index in range(6)]
    operator.pools = mass(SOME, 6, START)
    operator.gate.propose("a", "Evict", wanted)
    await operator.gate.reconcile(KEY)
    assert recorded(kube).breaker == OPEN
    del kube.objects[RECORD]
    operator.gate.propose("a", "Evict", wanted[:1])
    await operator.gate.reconcile(KEY)
    assert (recorded(kube).breaker, operator.granted(wanted[0])) == (OPEN, [False])


async def test_a_person_resumes_with_an_annotation(kube: FakeKube) -> None:
    operator = Operator(kube)
    wanted = [action(f"n{index}") for index in range(6)]
    operator.pools = mass(SOME, 6, START)
    operator.gate.propose("a", "Evict", wanted)
    await operator.gate.reconcile(KEY)
    operator.gate.propose("a", "Evict", wanted[:1])
    annotate(kube, "2026-11-21T12:10:00Z")
    operator.now = START + timedelta(minutes=11)
    await operator.gate.reconcile(KEY)
    assert operator.granted(wanted[0]) == [True]
    assert (recorded(kube).breaker, recorded(kube).resumed) == (CLOSED, "2026-11-21T12:10:00Z")


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"breaker": "Closed"},
        {"breaker": "maybe", "reason": "", "opened": "", "until": "", "closed": "", "resumed": "", "actions": "[]"},
        {
            "breaker": "Closed",
            "reason": "",
            "opened": "",
            "until": "",
            "closed": "",
            "resumed": "",
            "actions": "no JSON",
        },
        {
            "breaker": "Closed",
            "reason": "",
            "opened": "",
            "until": "",
            "closed": "",
            "resumed": "",
            "actions": '[{"node": 1}]',
        },
        {"breaker": "Closed", "reason": "", "opened": "", "until": "", "closed": "", "resumed": "", "actions": "7"},
        {"breaker": "Closed", "reason": "", "opened": "", "until": "", "closed": "", "resumed": "", "actions": '["x"]'},
    ],
)
async def test_a_record_that_somebody_else_wrote_stops_actions_and_is_kept_until_they_resume(
    kube: FakeKube, data: dict[str, str]
) -> None:
    before = kube.put(RECORD, {"metadata": {"name": NAME, "uid": "u"}, "data": data})
    operator = Operator(kube)
    operator.gate.propose("a", "Evict", [action("a")])
    assert await operator.gate.reconcile(KEY) == AGAIN_SECONDS
    assert (operator.granted(action("a")), kube.objects[RECORD]) == ([False], before)
    annotate(kube, "2026-11-21T12:10:00Z")
    operator.now = START + timedelta(minutes=11)
    await operator.gate.reconcile(KEY)
    assert operator.granted(action("a")) == [True]
    assert [it.node for it, _ in recorded(kube).actions] == ["a"]


async def test_a_decided_fleet_writes_nothing_more(kube: FakeKube) -> None:
    operator = Operator(kube)
    operator.gate.propose("a", "Evict", [action("a")])
    await operator.gate.reconcile(KEY)
    kube.writes.clear()
    await operator.gate.reconcile(KEY)
    await Operator(kube).gate.reconcile(KEY)
    assert (kube.writes, operator.answered) == ([], ["a"])


def annotate(kube: FakeKube, value: str) -> None:
    raw = kube.objects[RECORD]
    kube.put(RECORD, raw | {"metadata": raw["metadata"] | {"annotations": {RESUME: value}}})
