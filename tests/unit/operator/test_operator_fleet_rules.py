"""What takes devices from pods, at the bounds of each rule: the breaker, the budgets, the record and what closes it.

test_operator_fleet.py has the stories, and the gate that writes the record.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec.structs import replace
from nodedevices_api import conditions as names
from nodedevices_operator.desired import pools
from nodedevices_operator.desired.fleet import (
    CLOSED,
    EVICT,
    MAX_ACTIONS,
    MAX_IDS,
    MAX_MAP_BYTES,
    OPEN,
    TAINT,
    Action,
    ActionAnswer,
    Arrivals,
    Claims,
    Fleet,
    PolicyLimits,
    Pool,
    Survey,
    arrivals,
    checked,
    decide,
    from_data,
    judged,
    out_of_service,
    refusal,
    resumed,
    stopped,
    to_data,
    why_stopped,
    would_answer,
)
from support.cases import cases
from support.opfacts import Decided, policy

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
WORD = "actions=resumed@2026-11-21T12:00:30Z"
ANY = PolicyLimits()
NODES = tuple(f"n{number:02}" for number in range(10))


def at(**ago: float) -> str:
    return (NOW - timedelta(**ago)).isoformat()


def action(node: str, *, since: str = "2026-11-21T11:50:00+00:00", target: str = "ml/a/uid") -> Action:
    return Action(since, node, "Evict", target, "Xid79")


def pool(limits: PolicyLimits = ANY, nodes: Sequence[str] = NODES, **more: Any) -> Pool:
    return Pool("p", limits, frozenset(nodes), **more)


def faults(*nodes: str, since: str = "2026-11-21T11:50:00+00:00") -> dict[str, dict[str, str]]:
    return {node: {f"GPU-{node}": since} for node in nodes}


def decided(
    fleet: Fleet, wanted: Sequence[Action], survey: Survey, seen: Arrivals | None = None, now: datetime = NOW
) -> Decided:
    found = arrivals(None, survey.faults, 0.0) if seen is None else seen
    return Decided.of(decide(fleet, wanted, now, survey, found))


def granted(*ago: timedelta, node: str = "n00") -> Fleet:
    """A record of actions that were granted so long ago."""
    return Fleet(
        actions=tuple(
            (action(node, target=f"ml/{number}/u"), (NOW - each).isoformat()) for number, each in enumerate(ago)
        )
    )


# --- budgets ----------------------------------------------------------------------------------------------------------
@cases(
    ("ago", "may"),
    ((timedelta(minutes=59), timedelta(minutes=60)), True),
    ((timedelta(minutes=59), timedelta(minutes=59)), False),
    ((timedelta(minutes=59), timedelta(minutes=-5)), False),
)
def test_an_action_counts_for_an_hour_and_one_from_the_future_too(ago: tuple[timedelta, ...], may: bool) -> None:
    new = action("n05")
    found = decided(granted(*ago), [new], Survey([pool(PolicyLimits(per_hour=2))], faults("n05")))
    assert (new in found.granted) is may
    if not may:
        assert found.refused[new] == (
            "the budget of policy p allows 2 actions an hour (perHour), and as many were granted within the last hour"
        )


def test_no_more_actions_an_hour_are_granted_than_the_record_holds() -> None:
    new = action("n05")
    survey = Survey([pool()], faults("n05"))
    assert new in decided(granted(*[timedelta(minutes=1)] * (MAX_ACTIONS - 1)), [new], survey).granted
    full = granted(*[timedelta(minutes=1)] * MAX_ACTIONS)
    assert decided(full, [new], survey).refused == {
        new: "200 actions within the last hour, in the whole fleet: the record can hold no more"
    }


def test_every_grant_of_one_decision_counts_for_the_next() -> None:
    wanted = [action(node) for node in ("n02", "n01", "n03")]
    found = decided(Fleet(), wanted, Survey([pool(PolicyLimits(per_hour=2))], faults("n01", "n02", "n03")))
    assert found.granted == {action("n01"), action("n02")}, "of equally old faults by the node's name"
    assert found.answers == {
        action("n01"): ActionAnswer(granted=True),
        action("n02"): ActionAnswer(granted=True),
        action("n03"): ActionAnswer(granted=False, reason=found.refused[action("n03")]),
    }


def test_no_more_nodes_go_out_of_service_than_a_policy_allows_and_they_are_named() -> None:
    out = NODES[:6]
    limits, new = PolicyLimits(max_unavailable=6), action("n09")
    assert decided(Fleet(), [new], Survey([pool(PolicyLimits(max_unavailable=7), out=frozenset(out))])).granted == {new}
    refused = decided(Fleet(), [new], Survey([pool(limits, out=frozenset(out), coming=frozenset({"new"}))])).refused
    assert refused[new] == (
        "the budget of policy p allows 6 nodes out of service (maxUnavailable), and 6 of its 11 nodes are: n00, n01, "
        "n02, n03, n04 and 1 more"
    )
    five = Survey([pool(PolicyLimits(max_unavailable=5), out=frozenset(out[:5]))])
    assert decided(Fleet(), [new], five).refused[new].endswith("5 of its 10 nodes are: n00, n01, n02, n03, n04")
    none = Survey([pool(PolicyLimits(max_unavailable=0))])
    assert decided(Fleet(), [new], none).refused[new].endswith("0 of its 10 nodes are")


def test_a_node_is_out_of_service_while_anything_that_was_acted_upon_is_at_fault_or_not_known() -> None:
    fleet = Fleet(unavailable={"n01": ("a", "b"), "n02": ("c",), "n03": ("d",), "other": ("e",)})
    known = {"n01": {"b": at()}, "n02": {"x": at()}, "other": {"e": at()}}
    others = frozenset({"other"})
    survey = Survey([pool()], known, {"n02": frozenset({"y"})}, frozenset({"n03"}), others=others)
    assert out_of_service(pool(out=frozenset({"n04"})), fleet, survey) == {"n01", "n03", "n04"}
    unclear = replace(survey, unclear={"n02": frozenset({"c"})})
    assert out_of_service(pool(), fleet, unclear) == {"n01", "n02", "n03"}
    after = decided(fleet, [], survey).fleet.unavailable
    assert after == {"n01": ("a", "b"), "n03": ("d",), "other": ("e",)}, "one in no pool now says nothing"


# --- the record -------------------------------------------------------------------------------------------------------
def test_a_granted_action_is_recorded_with_what_was_at_fault_by_then() -> None:
    since = "2026-11-21T11:50:00+00:00"
    its = {"n01": {"GPU-b": since, "GPU-a": since, "later": at()}}
    found = decided(
        Fleet(unavailable={"n02": ("x",)}), [action("n01", since=since)], Survey([pool()], its | faults("n02"))
    )
    assert found.fleet.unavailable == {"n01": ("GPU-a", "GPU-b")}, "n02 is well again"
    assert found.fleet.actions == ((action("n01", since=since), NOW.isoformat()),)
    renamed = decided(Fleet(), [action("n01", since="2026-11-21T11:00:00+00:00")], Survey([pool()], its))
    assert renamed.fleet.unavailable == {"n01": ("GPU-a", "GPU-b", "later")}, "whatever it is called by now"
    gone = decided(Fleet(), [action("n01")], Survey([pool()], {}))
    assert (gone.fleet.unavailable, len(gone.fleet.actions)) == ({}, 1)


def test_what_is_recorded_is_bounded_and_the_oldest_goes_first() -> None:
    ids = {f"GPU-{number:02}": action("n01").since for number in range(MAX_IDS + 4)}
    nodes = {f"m{number}": ("x" * 1000,) for number in range(MAX_MAP_BYTES // 1000)}
    survey = Survey([pool()], {"n01": ids}, others=frozenset(nodes))
    found = decided(
        replace(granted(*[timedelta(hours=2)] * MAX_ACTIONS), unavailable=nodes), [action("n01")], survey
    ).fleet
    assert len(found.unavailable["n01"]) == MAX_IDS
    assert [*found.unavailable] == [*[*nodes][1 - len(found.unavailable) :], "n01"], "the oldest are gone"
    assert MAX_MAP_BYTES * 0.95 < len(to_data(found)["unavailable"]) <= MAX_MAP_BYTES
    assert len(found.actions) == MAX_ACTIONS
    assert found.actions[-1][0] == action("n01")
    again = decided(
        Fleet(unavailable={"n01": ("GPU-30",), "n02": ("GPU-n02",)}),
        [action("n01")],
        Survey([pool()], {"n01": {"GPU-30": "x", "GPU-31": action("n01").since}} | faults("n02")),
    ).fleet
    assert [*again.unavailable.items()] == [("n02", ("GPU-n02",)), ("n01", ("GPU-30", "GPU-31"))], "n01 is the newest"


@cases("map_of", "unavailable", "answered")
def test_a_node_that_there_is_no_more_goes_out_of_the_record_and_one_without_a_policy_stays(map_of: str) -> None:
    entry: Any = ("GPU-a",) if map_of == "unavailable" else "2026-11-21T11:50:00Z"
    entries: Any = {map_of: dict.fromkeys(("replaced", "idle"), entry)}
    before = Fleet(**entries)
    found = decided(before, [], Survey([pool()], others=frozenset({"idle"}))).fleet
    assert getattr(found, map_of) == {"idle": entry}


def test_the_record_of_the_largest_fleets_fits_into_a_config_map() -> None:
    long, since = "n" * 250, "2026-11-21T11:50:00.123456+00:00"
    its = {f"{long}{number:02}": f"{since}{number}" for number in range(16)}
    many = {f"{long}{number:03}": its for number in range(999)}
    actions = tuple(
        (Action(since, long, EVICT, f"{long}/{long}/uid", "Xid79"), at(hours=2)) for _ in range(MAX_ACTIONS)
    )
    closed = resumed(stopped(Fleet(actions=actions), "c", "why", NOW), WORD, NOW, many)
    full = replace(closed, unavailable={node: tuple(its) for node in many})
    last = [*many][-1]
    found = decided(full, [action(last)], Survey([pool(PolicyLimits(percent=100), tuple(many))], many)).fleet
    assert (last in found.unavailable, last in found.answered) == (True, True)
    assert sum(map(len, to_data(found).values())) < 1 << 20


def test_what_was_written_is_read_again_and_anything_else_is_no_record() -> None:
    fleet = replace(
        granted(timedelta()),
        breaker=OPEN,
        reason="r",
        opened="o",
        cause="c",
        closed="cl",
        resumed="re",
        place="ns/n",
        answered={"n01": "t"},
        unavailable={"n02": ("a", "b")},
    )
    data = to_data(fleet)
    assert from_data(data) == fleet
    for key in data:
        assert from_data({each: value for each, value in data.items() if each != key}) is None, key
    for key, odd in (
        ("breaker", "Ajar"),
        ("reason", 7),
        ("actions", "[{}]"),
        ("actions", '[{"since":1,"node":"n","kind":"k","target":"t","reason":"r","at":"a"}]'),
        ("actions", "{"),
        ("answered", '{"n": 7}'),
        ("unavailable", '{"n": [7]}'),
        ("unavailable", "7"),
    ):
        assert from_data(data | {key: odd}) is None, (key, odd)
    assert from_data(data | {"breaker": CLOSED}) == replace(fleet, breaker=CLOSED)


def test_what_an_earlier_version_has_written_is_read_and_coming_nodes_are_some_of_a_policys() -> None:
    """The words of the record are its format."""
    assert (OPEN, CLOSED, TAINT, EVICT) == ("Open", "Closed", "Taint", "Evict")
    its = faults("n00", "n01", "n02")
    some = pool(nodes=NODES[:4], coming=frozenset({"m1", "m2"}))
    assert judged(Fleet(), Survey([some], its), arrivals(None, its, 0.0), NOW).breaker == CLOSED
    assert judged(Fleet(), Survey([pool(nodes=NODES[:4])], its), arrivals(None, its, 0.0), NOW).breaker == OPEN


# --- the breaker ------------------------------------------------------------------------------------------------------
@cases(
    ("limits", "failing", "total", "opens"),
    (PolicyLimits(percent=50), 5, 10, False),
    (PolicyLimits(percent=50), 6, 10, True),
    (PolicyLimits(percent=0), 1, 10, False),
    (PolicyLimits(percent=0), 2, 10, True),
    (PolicyLimits(percent=50), 1, 1, False),
)
def test_more_than_its_share_of_a_policys_nodes_and_two_at_least_are_a_mass_fault(
    limits: PolicyLimits, failing: int, total: int, opens: bool
) -> None:
    its = faults(*NODES[:failing])
    found = judged(Fleet(), Survey([pool(limits, NODES[:total])], its), arrivals(None, its, 0.0), NOW)
    assert found.breaker == (OPEN if opens else CLOSED)
    last = faults(*NODES[total - failing : total])
    assert judged(Fleet(), Survey([pool(limits, NODES[:total])], last), arrivals(None, last, 0.0), NOW).breaker == (
        found.breaker
    ), "whichever nodes they are"
    if opens:
        assert (found.cause, found.opened) == (names.MASS_FAULT, "2026-11-21T12:00:00Z")
        assert found.reason == (
            f"{failing} of the {total} nodes of policy p failed within 300 s, which is more than {limits.percent} %"
        )


@cases(("apart", "opens"), (299, True), (300, False))
def test_faults_are_together_that_lie_less_than_the_window_apart(apart: int, opens: bool) -> None:
    limits = PolicyLimits(percent=10)
    by_nodes = {"n00": {"a": at(seconds=apart)}, "n01": {"b": at()}}
    survey = Survey([pool(limits)], by_nodes)
    assert (judged(Fleet(), survey, arrivals(None, by_nodes, 0.0), NOW).breaker == OPEN) is opens
    spread_out = {"n00": {"a": at(hours=9)}, "n01": {"b": at(hours=2)}}
    first = arrivals({}, {"n00": spread_out["n00"]}, 1000.0)
    seen = arrivals(first, spread_out, 1000.0 + apart)
    assert (judged(Fleet(), Survey([pool(limits)], spread_out), seen, NOW).breaker == OPEN) is opens


def test_of_one_node_many_faults_are_one_and_it_may_fail_again_later() -> None:
    limits = PolicyLimits(percent=10)
    one = {"n00": {"a": at(seconds=400), "b": at(seconds=350), "c": at(seconds=200)}}
    assert judged(Fleet(), Survey([pool(limits)], one), arrivals(None, one, 0.0), NOW).breaker == CLOSED
    two = one | {"n01": {"x": at(seconds=100)}}
    assert judged(Fleet(), Survey([pool(limits)], two), arrivals(None, two, 0.0), NOW).breaker == OPEN
    apart = {"n00": {"a": at(seconds=900), "b": at(seconds=500)}, "n01": {"x": at(seconds=100)}}
    assert judged(Fleet(), Survey([pool(limits)], apart), arrivals(None, apart, 0.0), NOW).breaker == CLOSED


def test_what_a_person_has_answered_for_counts_no_more_and_what_came_later_does() -> None:
    limits = PolicyLimits(percent=10)
    its = {"n00": {"a": at(seconds=20)}, "n01": {"b": at(seconds=10)}}
    seen = arrivals({}, its, 5.0)
    survey = Survey([pool(limits)], its)
    answered = {"n00": at(seconds=20), "n01": at(seconds=10)}
    assert judged(Fleet(answered=answered), survey, seen, NOW).breaker == CLOSED
    assert judged(Fleet(answered=answered | {"n01": at(seconds=11)}), survey, seen, NOW).breaker == CLOSED, "one alone"
    assert judged(Fleet(answered={"n00": at(seconds=21), "n01": at(seconds=11)}), survey, seen, NOW).breaker == OPEN
    old = {f"old-{number}": at(seconds=60 + number) for number in range(20)}
    both = {node: old | faults for node, faults in its.items()}
    known = Fleet(answered=dict.fromkeys(("n00", "n01"), " ".join(old.values())))
    assert judged(known, Survey([pool(limits)], dict.fromkeys(its, old)), {}, NOW).breaker == CLOSED
    assert judged(known, Survey([pool(limits)], both), arrivals({}, both, 5.0), NOW).breaker == OPEN, "those beside it"
    odd = {"n00": {"a": "soon"}, "n01": {"b": "later"}}
    assert judged(Fleet(), Survey([pool(limits)], odd), arrivals({}, odd, 5.0), NOW).breaker == OPEN, "by their arrival"


@cases("restarted", False, True)
def test_a_fault_of_a_node_whose_clock_was_ahead_hides_no_later_one(restarted: bool) -> None:
    """S20: what is answered for are these very faults, not all until then."""
    limits = PolicyLimits(percent=10)
    ahead = {node: {"a": at(seconds=-7200 - index)} for index, node in enumerate(("n00", "n01"))}
    closed = resumed(stopped(Fleet(), names.MASS_FAULT, "why", NOW), WORD, NOW, ahead)
    assert judged(closed, Survey([pool(limits)], ahead), arrivals(None, ahead, 0.0), NOW).breaker == CLOSED
    later = {node: {"a": at(seconds=-60)} for node in ahead}
    seen = arrivals(None, later, 0.0) if restarted else arrivals(arrivals(None, ahead, 0.0), later, 9.0)
    assert judged(closed, Survey([pool(limits)], later), seen, NOW).breaker == OPEN


def test_a_fault_that_is_there_still_keeps_its_time_of_arrival_and_a_new_one_has_its_own() -> None:
    old, new = ("a", "t1"), ("b", "t2")
    first = arrivals({}, {"n00": dict([old])}, 1.0)
    assert arrivals(first, {"n00": dict([old])}, 2.0) == {"n00": {old: 1.0}}
    assert arrivals(first, {"n00": dict([old, new])}, 2.0) == {"n00": {old: 1.0, new: 2.0}}
    assert arrivals(first, {"n01": dict([new])}, 2.0) == {"n01": {new: 2.0}}
    assert arrivals(None, {"n00": dict([old])}, 2.0) == {"n00": {old: None}}


def test_one_policy_with_a_mass_fault_stops_the_actions_of_all_if_any_acts() -> None:
    its = faults("n00", "n01")
    quiet, busy = pool(PolicyLimits(percent=10), acts=False), pool(nodes=("m1",))
    both = judged(Fleet(), Survey([quiet, busy], its), arrivals(None, its, 0.0), NOW)
    assert both.breaker == OPEN
    assert judged(Fleet(), Survey([quiet], its), arrivals(None, its, 0.0), NOW).breaker == CLOSED
    earlier = stopped(Fleet(), "Other", "why", NOW - timedelta(hours=1))
    assert judged(earlier, Survey([busy, quiet], its), arrivals(None, its, 0.0), NOW) == earlier
    assert stopped(earlier, "Another", "x", NOW) == earlier, "one that is open stays as it is"


def test_a_breaker_opens_before_what_is_proposed_with_it_and_each_answer_says_so() -> None:
    its = faults("n00", "n01")
    found = decided(Fleet(), [action("n00")], Survey([pool(PolicyLimits(percent=10))], its))
    assert found.granted == frozenset()
    answer = found.answers[action("n00")]
    assert (answer.granted, answer.stopped) == (False, True)
    assert answer.reason == (
        f"actions are stopped since 2026-11-21T12:00:00Z: {found.fleet.reason}; until a person resumes them: "
        "kubectl nodedevices confirm actions resumed"
    )
    assert why_stopped(found.fleet, "it is late").endswith("; it is late")


def test_no_time_closes_a_breaker_nor_one_that_an_earlier_version_gave() -> None:
    fleet = from_data(to_data(stopped(Fleet(), names.MASS_FAULT, "why", NOW)) | {"until": "2026-11-21T12:10:00Z"})
    assert fleet is not None
    assert decided(fleet, [], Survey([pool()]), now=NOW + timedelta(days=9)).fleet.breaker == OPEN


def test_who_resumes_answers_for_every_fault_of_every_node() -> None:
    fleet = stopped(Fleet(), names.MASS_FAULT, "why", NOW)
    its = {"n00": {"a": at(minutes=9), "b": at(minutes=5), "c": "soon"}, "n01": {"x": "odd"}, "n02": {}}
    found = resumed(fleet, WORD, NOW + timedelta(minutes=1), its)
    assert found == Fleet(
        closed="2026-11-21T12:01:00Z",
        resumed=WORD,
        answered={"n00": f"{at(minutes=9)} {at(minutes=5)} soon", "n01": "odd"},
    )
    assert resumed(found, "actions=resumed@2026-11-21T12:02:00Z", NOW, its) == found, "it is closed"
    again = replace(stopped(found, "c", "why", NOW), resumed=WORD)
    assert resumed(again, f" {WORD},", NOW, its) == again, "each entry closes it once"
    assert resumed(again, "", NOW, its) == again


GIVE = "give actions=resumed@<RFC 3339 time with a zone>"


@cases(
    ("annotation", "why"),
    ("actions=resumed@2026-11-21T12:00:00Z", ""),
    ("actions=resumed@2026-11-21T12:11:00Z", ""),
    ("", ""),
    ("actions=resumed@2026-11-21T12:11:01Z", "it is in the future by the operator's clock"),
    ("actions=resumed@2026-11-21T11:59:59Z", "it is before 2026-11-21T12:00:00Z, when actions were stopped"),
    ("actions=resumed@2026-11-21T12:00:00", GIVE),
    ("actions=resumed@yes", GIVE),
    ("actions=resumed", GIVE),
    ("2026-11-21T12:00:00Z", GIVE),
    ("rollout=resumed@3", GIVE),
)
def test_what_resumes_is_a_time_since_the_breaker_opened_up_to_a_minute_from_now(annotation: str, why: str) -> None:
    fleet = stopped(Fleet(), names.MASS_FAULT, "why", NOW)
    said = refusal(fleet, annotation, NOW + timedelta(minutes=10))
    right = "give the time now, as `date -u +%FT%TZ` prints it"
    assert said == (f"annotation nodedevices.io/confirm is refused: {annotation}: {why}; {right}" if why else "")
    assert refusal(Fleet(), annotation, NOW) == "", "nothing is stopped"
    assert (resumed(fleet, annotation, NOW + timedelta(minutes=10), {}).breaker == CLOSED) is (
        not why and annotation != ""
    )


def test_one_good_entry_resumes_and_of_what_is_refused_the_first_are_named_in_part() -> None:
    fleet = stopped(Fleet(resumed="actions=resumed@2026-11-20T12:00:00Z"), names.MASS_FAULT, "why", NOW)
    beside = "x,actions=resumed@2026-11-21T11:00:00Z,actions=resumed@2026-11-20T12:00:00Z"
    assert refusal(fleet, beside, NOW).count("actions=resumed@2026") == 1, "one was acted on"
    assert resumed(fleet, beside, NOW, {}) == fleet
    assert refusal(fleet, f"{beside},{WORD}", NOW) == ""
    assert resumed(fleet, f"{beside},{WORD}", NOW, {}).resumed == WORD
    fleet = stopped(Fleet(), names.MASS_FAULT, "why", NOW)
    said = refusal(fleet, ",".join(["x" * 9000] * 9), NOW)
    assert "and 6 more; give the time now" in said
    assert len(said) < 1000


@cases(
    ("claims", "lost", "open_"),
    (Claims(), False, False),
    (Claims(elsewhere="ours/actions"), False, False),
    (Claims(elsewhere="theirs/actions"), False, True),
    (Claims(stopped=True), False, False),
    (Claims(stopped=True), True, True),
    (Claims(), True, False),
)
def test_a_record_that_cannot_be_all_that_was_done_stops_actions(claims: Claims, lost: bool, open_: bool) -> None:
    fleet = Fleet(place="ours/actions")
    found = checked(fleet, claims, "ours/actions", NOW, lost=lost)
    assert (found.breaker, found.cause) == ((OPEN, names.RECORD_MISSING) if open_ else (CLOSED, ""))
    assert checked(Fleet(), Claims(), "ours/actions", NOW, lost=False).place == "ours/actions"
    assert found.place == "ours/actions"
    goes_on = Fleet(place="theirs/actions"), Claims(elsewhere="theirs/actions")
    assert checked(*goes_on, "ours/actions", NOW, lost=False).place == "theirs/actions"
    if claims.elsewhere.startswith("theirs"):
        assert "recorded in ConfigMap actions of namespace theirs (the policies' status.actionsRecord)" in found.reason


# --- what would be ----------------------------------------------------------------------------------------------------
def test_a_dry_run_answers_as_if_the_policy_were_enforced_in_the_place_of_others() -> None:
    other = Pool("other", PolicyLimits(per_hour=0), frozenset(NODES), out=frozenset(NODES[:9]))
    its = faults("n00", "n01")
    mine = pool(PolicyLimits(max_unavailable=3, percent=90), nodes=NODES[:4])

    def tried(
        fleet: Fleet, some: Pool, known: Mapping[str, Mapping[str, str]], **more: Any
    ) -> Mapping[Action, ActionAnswer]:
        survey = Survey([other], known, **more)
        seen = arrivals(None, known, 0.0)
        return would_answer(fleet, some, [action("n00")], now=NOW, survey=survey, seen=seen)

    assert tried(Fleet(), mine, its)[action("n00")] == ActionAnswer(granted=True)
    full = tried(Fleet(), mine, its, out=frozenset({"n01", "n02", "n03", "n09"}))[action("n00")]
    assert "maxUnavailable), and 3 of its 4 nodes are: n01, n02, n03" in full.reason
    wide = replace(mine, limits=PolicyLimits(percent=10))
    stops = tried(Fleet(), wide, its)[action("n00")]
    assert (stops.granted, stops.stopped) == (False, True)
    assert stops.reason.startswith("all actions would be stopped, 2 of the 4 nodes of policy p failed within 300 s")
    held = tried(stopped(Fleet(), "c", "why", NOW), wide, its)[action("n00")]
    assert held.stopped
    assert held.reason.startswith("actions are stopped since")


def test_of_several_records_that_policies_name_one_is_said_and_always_the_same() -> None:
    named = [
        dataclasses.replace(policy(name), actions_record=f"{name}/actions") for name in ("ours", "theirs", "others")
    ]
    for order in (named, named[::-1]):
        assert pools.claims(order, "ours/actions") == Claims(elsewhere="others/actions")
