"""When a node has taken a change and when it is worse off, at the bounds of each rule.

test_operator_rollout.py has the stories of a whole fleet.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from msgspec.structs import replace
from nodedevices_api import conditions as names
from nodedevices_common.conditions import ConditionRecord
from nodedevices_operator.desired.configuration import MAX_POLICIES, Configuration
from nodedevices_operator.desired.rollout import (
    LOSS_SECONDS,
    STARTING_SECONDS,
    RolloutState,
    RolloutWatch,
    Standing,
    accounted,
    held_back,
    most_nodes,
    next_change,
    pause_of,
    resumed,
    standing,
    suppliers,
    watch,
    wrong_word,
)
from nodedevices_operator.records.kinds import node_devices_record, policy_record
from nodedevices_operator.records.objects import ChangeRecord, NodeDevicesRecord, NodeRecord, PolicyRef, SummaryRecord
from support.cases import cases
from support.opfacts import raw_policy

SHARING = {"strategy": "none"}
NODE = NodeRecord(name="n1", uid="u")
CHANGE = ChangeRecord(time="2026-11-21T12:00:00Z", devices=8, policies=("p",))


def ref(name: str, *sections: str, priority: int = 0, generation: int = 1) -> PolicyRef:
    return PolicyRef(name, generation, priority, sections)


def said(kind: str, status: str, reason: str = "", message: str = "") -> ConditionRecord:
    return ConditionRecord(type=kind, status=status, reason=reason, message=message)


APPLIED = said(names.CONFIG_APPLIED, "True", names.APPLIED)
HELD = said(names.CONFIG_APPLIED, "False", names.WAITING_FOR_HOLDERS)
INVALID = said(names.CONFIG_APPLIED, "False", names.CONFIG_INVALID, "sharing: 0")


def record(*conditions: ConditionRecord, **fields: Any) -> NodeDevicesRecord:
    """A node that has applied its change, and offers all its 8 devices."""
    known: dict[str, Any] = {
        "name": "n1",
        "uid": "nd",
        "generation": 3,
        "observed_generation": 3,
        "config": {"sharing": SHARING},
        "config_hash": "aa",
        "applied_hash": "aa",
        "policies": (ref("p", "sharing"),),
        "change": CHANGE,
        "summary": SummaryRecord(offered=8),
        "conditions": conditions or (APPLIED,),
    }
    return dataclasses.replace(node_devices_record({}), **(known | fields))


def wanted(config: dict[str, object], *refs: PolicyRef) -> Configuration:
    return Configuration(
        config=config, config_name="c", config_hash="h", policies=refs, status="True", reason="", message="m"
    )


def stands(
    one: NodeDevicesRecord, *, seconds: float = 60, pause: float = 0.0, settle: float = 0.0, node: NodeRecord = NODE
) -> Standing:
    """So many seconds after the change was written."""
    now = f"2026-11-21T12:{int(seconds // 60):02}:{seconds % 60:02.0f}Z"
    same = wanted({"sharing": SHARING}, ref("p", "sharing"))
    return standing(one, node, same, pause_seconds=pause, settle_seconds=settle, now=now)


# --- who has a say ----------------------------------------------------------------------------------------------------
def test_only_staged_sections_that_are_there_have_a_supplier() -> None:
    refs = (ref("a", "sharing", "labels", "health"), ref("b", "faults"))
    assert suppliers(refs, {"sharing": {}, "labels": {}, "faults": {}}) == {"sharing": "a"}
    assert suppliers(refs, None) == {}
    staged = ("serving", "resources", "sharing", "partitions", "injection", "health", "discovery", "expect")
    assert suppliers((ref("a", *staged),), dict.fromkeys(staged, 0)) == dict.fromkeys(staged, "a")


def test_a_section_that_changes_waits_for_the_policies_that_supply_it_before_and_after() -> None:
    one = record(
        change=None,
        config={"sharing": SHARING, "health": {"a": 1}, "labels": {}},
        policies=(ref("p", "sharing", "health", "labels"),),
    )
    new = wanted({"sharing": {"strategy": "mps"}, "health": {"a": 1}, "serving": {}}, ref("q", "sharing", "serving"))
    found = standing(one, NODE, new, pause_seconds=0, settle_seconds=0, now="2026-11-21T12:00:00Z")
    assert found == Standing(
        members=frozenset({"p", "q"}), pending={"serving": frozenset({"q"}), "sharing": frozenset({"p", "q"})}
    )


# --- has it taken the change? -----------------------------------------------------------------------------------------
def test_a_node_that_offers_all_its_devices_has_taken_the_change_after_the_pause() -> None:
    assert stands(record()) == Standing(members=frozenset({"p"}))
    assert stands(record(), pause=60) == Standing(members=frozenset({"p"}))
    waits = stands(record(), pause=90)
    assert (waits.under_way, waits.again, waits.worse_off) == (frozenset({"p"}), 30.0, "")
    assert stands(record(), pause=90, settle=45.0).again == 45.0
    assert stands(record(change=dataclasses.replace(CHANGE, time="soon")), pause=90) == Standing(
        members=frozenset({"p"})
    )


@cases("summary", SummaryRecord(offered=5, excluded=2, unschedulable=1), SummaryRecord(offered=9))
def test_what_people_took_out_or_a_policy_excludes_is_not_lost(summary: SummaryRecord) -> None:
    assert stands(record(summary=summary)).worse_off == ""
    assert accounted(record(summary=summary)) >= 8


@cases(("seconds", "worse"), (LOSS_SECONDS - 1, False), (LOSS_SECONDS, True))
def test_a_device_that_is_no_longer_offered_is_lost_after_half_a_minute(seconds: float, worse: bool) -> None:
    found = stands(record(summary=SummaryRecord(offered=7)), seconds=seconds)
    assert found.under_way == {"p"}
    assert (found.worse_off, found.again) == (
        ("1 of 8 devices are no longer offered", None) if worse else ("", LOSS_SECONDS - seconds)
    )
    unknown = stands(record(summary=SummaryRecord()), seconds=seconds)
    assert (unknown.worse_off == "8 of 8 devices are no longer offered") is worse


def test_devices_that_pods_hold_in_their_old_shape_are_not_lost_while_the_change_waits_for_them() -> None:
    held = SummaryRecord(offered=6, held=2)
    assert stands(record(HELD, summary=held, applied_hash="old")).worse_off == ""
    assert stands(record(HELD, summary=dataclasses.replace(held, held=1), applied_hash="old")).worse_off != ""
    assert stands(record(APPLIED, summary=held)).worse_off != "", "it has been applied: they would be offered"


@cases(
    "one",
    record(said("Ready", "True")),
    record(observed_generation=2),
    record(applied_hash="old"),
    record(said(names.CONFIG_APPLIED, "False", "Other")),
)
def test_a_node_whose_agent_has_not_applied_the_change_is_waited_for(one: NodeDevicesRecord) -> None:
    found = stands(one, pause=0)
    assert (found.under_way, found.again, found.worse_off) == (frozenset({"p"}), None, "")


def test_a_node_that_refuses_the_change_or_is_not_ready_is_worse_off_unless_a_person_accepted_it() -> None:
    assert stands(record(INVALID)).worse_off == "sharing: 0"
    assert stands(record(INVALID)).again is None, "no time changes that"
    assert stands(record(dataclasses.replace(INVALID, message=""))).worse_off == names.CONFIG_INVALID
    assert stands(record(dataclasses.replace(INVALID, status="True"))).worse_off == "", "it has got over it"
    gone = stands(record(), node=dataclasses.replace(NODE, ready=False))
    assert (gone.worse_off, gone.again) == ("its Node is not Ready", None)
    assert stands(record(INVALID, confirm="GPU-1=removed,config=accepted@aa")) == Standing(members=frozenset({"p"}))
    assert stands(record(INVALID, confirm="config=accepted@bb")).worse_off != "", "that was another change"
    assert stands(record(INVALID, confirm="config=accepted@", config_hash="")).worse_off != ""


@cases(
    ("fields", "free"),
    ({}, False),
    ({"config": None, "policies": ()}, True),
    ({"summary": SummaryRecord(offered=0)}, True),
    ({"summary": SummaryRecord()}, True),
    ({"conditions": (APPLIED, said(names.STALE, "True"))}, True),
    ({"conditions": (APPLIED, said(names.STALE, "False"))}, False),
    ({"conditions": (INVALID,)}, True),
    ({"conditions": ()}, False),
)
def test_a_node_that_can_lose_nothing_gets_its_configuration_at_once(fields: dict[str, Any], free: bool) -> None:
    assert stands(record(**({"change": None} | fields))).free is free
    assert stands(record(change=None), node=dataclasses.replace(NODE, ready=False)).free


# --- what this operator saw -------------------------------------------------------------------------------------------
def test_a_node_is_watched_from_its_agents_answer_and_some_seconds_after_its_last_probe() -> None:
    assert watch(record(observed_generation=2), None, 5.0) is None
    assert watch(record(change=None), None, 5.0) is None
    assert watch(record(applied_hash="old"), None, 5.0) is None
    seen = watch(record(), None, 5.0)
    assert seen == RolloutWatch("aa", applied=5.0, started=5.0)
    assert watch(record(), seen, 9.0) == seen
    assert watch(record(config_hash="bb", applied_hash="bb"), seen, 9.0) == RolloutWatch("bb", applied=9.0, started=9.0)
    assert seen.remaining(7.0) == 8.0, "10 s, as docs/policies.md says"
    first = watch(record(probe_starting=True), None, 5.0)
    assert first == RolloutWatch("aa", applied=5.0, started=5.0, starting=True)
    later = watch(record(probe_starting=True), first, 12.0)
    assert later == RolloutWatch("aa", applied=5.0, started=12.0, starting=True)
    assert watch(record(), later, 14.0) == RolloutWatch("aa", applied=5.0, started=14.0)
    late = watch(record(probe_starting=True), later, 5.0 + STARTING_SECONDS)
    assert late == RolloutWatch("aa", applied=5.0, started=5.0 + STARTING_SECONDS), "it is given up"
    assert watch(record(probe_starting=True), late, 99.0) == late


# --- what changes next ------------------------------------------------------------------------------------------------
def test_a_change_names_whose_sections_change_and_how_many_devices_there_were() -> None:
    pending = {"sharing": frozenset({"p", "q"}), "health": frozenset({"r"})}
    now, some = "2026-11-21T13:00:00Z", record(summary=SummaryRecord(offered=6, excluded=1))
    assert next_change(some, Standing(pending=pending), {"health"}, now) == ChangeRecord(now, 7, ("p", "q"))
    assert next_change(some, Standing(pending=pending), {"health", "sharing"}, now) is None
    bare = record(summary=SummaryRecord(offered=0), change=None)
    assert next_change(bare, Standing(pending=pending), set(), now) == ChangeRecord(now, 0, ("p", "q", "r"))
    assert next_change(some, Standing(pending=pending, free=True), set(), now) is None
    watched = Standing(pending=pending, under_way=frozenset({"p", "z"}))
    assert next_change(some, watched, {"sharing"}, now) == ChangeRecord(now, 8, ("p", "r", "z"))
    assert next_change(some, watched, {"sharing", "health"}, now) == CHANGE
    assert next_change(some, replace(watched, free=True), {"sharing"}, now) == ChangeRecord(now, 8, ("p", "r", "z"))


def test_a_section_that_stays_is_there_with_the_policy_and_the_generation_that_it_is_of() -> None:
    health: dict[str, object] = {"rules": []}
    one = record(policies=(ref("p", "sharing", generation=1), ref("old", "labels")))
    new = wanted(
        {"health": health, "sharing": {"strategy": "timeSlicing"}},
        ref("top", "health", priority=9),
        ref("p", "sharing", "injection", generation=2),
        ref("none"),
    )
    assert held_back(new, one, set(), "why") == new
    found = held_back(new, one, {"sharing"}, "it waits")
    assert found.config == {"health": health, "sharing": SHARING}
    assert found.policies == (ref("top", "health", priority=9), ref("p", "sharing", "injection"), ref("none"))
    assert (found.message, found.held, found.config_hash == "h") == ("m; it waits", frozenset({"p"}), False)
    gone = held_back(wanted({"sharing": SHARING}, ref("p", "sharing")), record(config={}), {"sharing"}, "why")
    assert (gone.config, gone.held) == ({}, frozenset({"p"})), "what was not there does not come"
    stays = held_back(wanted({}, ref("q", "labels")), record(), {"sharing"}, "why")
    assert stays.policies == (ref("q", "labels"), ref("p", "sharing"))
    assert stays.held == {"p"}


def test_of_too_many_policies_the_last_are_left_out_and_one_that_says_nothing_has_the_default() -> None:
    silent = [ref(f"s{number:02}", priority=number) for number in range(MAX_POLICIES)]
    new = wanted({"sharing": SHARING}, *silent, ref("q", "sharing", priority=-1), ref("r", "labels", priority=-2))
    found = held_back(new, record(), {"sharing"}, "why").policies
    assert len(found) == MAX_POLICIES
    named = [each.name for each in found]
    assert named == [*(f"s{number:02}" for number in range(MAX_POLICIES - 1, 1, -1)), "p", "r"]
    assert pause_of(None) == pause_of(policy_record(raw_policy("p", partitions={})))
    assert pause_of(policy_record(raw_policy("p", partitions={}, rollout={"pauseSeconds": 7}))) == 7


# --- a policy's own words ---------------------------------------------------------------------------------------------
@cases(("most", "nodes", "at_once"), ("10%", 1, 1), ("10%", 10, 1), ("10%", 11, 2), ("1%", 0, 1), (4, 9, 4))
def test_a_percentage_of_nodes_is_rounded_up_and_one_at_least(most: Any, nodes: int, at_once: int) -> None:
    assert most_nodes(policy_record(raw_policy("p", partitions={}, rollout={"maxNodes": most})), nodes) == at_once


@cases(
    ("word", "goes_on", "wrong"),
    ("rollout=resumed@3", True, False),
    (" rollout=resumed@2 ,rollout=resumed@3", True, False),
    ("rollout=resumed@2", False, False),
    ("", False, False),
    ("rollout=resumed@4", False, True),
    ("rollout=resumed@03", False, True),
    ("rollout=resumed@yes", False, True),
    ("rollout=resumed@٣", False, True),
    ("rollout=resumed@" + "9" * 5000, False, True),
    ("rollout=resumed@3@3", False, True),
    ("rollout=resumed", False, True),
    ("GPU-1=recovered@2026-11-21T12:00:00Z", False, True),
    ("3", False, True),
)
def test_a_roll_out_goes_on_by_its_own_generation_alone(word: str, goes_on: bool, wrong: bool) -> None:
    policy = dataclasses.replace(policy_record(raw_policy("p", partitions={})), generation=3, confirm=word)
    assert resumed(policy) is goes_on
    assert wrong_word(policy).startswith("annotation nodedevices.io/confirm: ") is wrong
    assert bool(wrong_word(policy)) is wrong
    assert not resumed(None)


@cases(
    ("state", "is_stopped", "is_done"),
    (RolloutState(), False, True),
    (RolloutState(waiting=1), False, False),
    (RolloutState(under_way_count=1), False, False),
    (RolloutState(under_way_count=1, resumed=True), False, True),
    (RolloutState(worse_off=(("n", "w"),)), True, True),
    (RolloutState(waiting=1, worse_off=(("n", "w"),), resumed=True), False, False),
)
def test_a_roll_out_is_stopped_by_a_node_that_is_worse_off_until_a_person_says_that_it_goes_on(
    state: RolloutState, is_stopped: bool, is_done: bool
) -> None:
    assert (state.stopped, state.done) == (is_stopped, is_done)
