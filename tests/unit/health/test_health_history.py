"""Repetition: rules that count, and what a device has had lately, through repairs, restarts and floods."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from hypothesis import given, strategies as st
from msgspec.structs import replace
from nodedevices_api.nodedevices import MAX_HISTORY
from nodedevices_api.sections import MAX_AFTER, HealthRule
from nodedevices_plugin.health import history
from nodedevices_plugin.health.history import MAX_REASONS, MAX_TIMES, PERIOD, PERIODS, History
from nodedevices_plugin.health.rules import HealthRules
from nodedevices_plugin.model import Inventory, Occurrences
from nodedevices_plugin.pipeline.state import StateFile
from nodedevices_probe.protocol import DeviceFact, ProbeEvent
from support.cases import cases
from support.facts import (
    CONFIRMED,
    REGISTERED,
    START,
    gpu,
    gpu_id,
    inventory_of,
    mig_id,
    partition,
    ruled,
    snapshot,
    well,
    xid,
)
from support.stepped_node import Node, report_of

TWO = inventory_of(gpu(0), gpu(1))
HOT, COOL = well(thermal_slowdown=True), well(thermal_slowdown=False)
DAY = 86400


def rule(*reasons: str, count: int, window: int, state: str = "Unhealthy", **more: Any) -> dict[str, Any]:
    return {"reasons": list(reasons), "state": state, "after": {"count": count, "windowSeconds": window}, **more}


def policy(*rules: dict[str, Any], **health: Any) -> dict[str, Any]:
    return {"health": {"rules": list(rules), **health}}


def node(*rules: dict[str, Any], devices: Sequence[DeviceFact] = (gpu(0), gpu(1)), **health: Any) -> Node:
    return Node(*devices).now(policy(*rules, **health))


def state(of: Node, device: int = 0) -> tuple[str, str]:
    return of.states[gpu_id(device)]


def strike(of: Node, *numbers: int, device: int = 0, count: int = 1, wait: float = 1.0) -> Node:
    """These XIDs, at the time of the line that reports them."""
    time = of.time + timedelta(seconds=wait)
    return of.line(
        after=wait, xids=tuple(dataclasses.replace(xid(each, device, count=count), time=time) for each in numbers)
    )


def shown(of: Node, device: int = 0) -> list[tuple[str, int, bool]]:
    [found] = [each for each in report_of(of.world, of.time).devices if each.id == gpu_id(device)]
    return [(each.reason, each.count, each.fault) for each in found.history]


# --- rules that count ------------------------------------------------------------------------------------------------
def test_what_comes_twice_on_one_device_is_the_devices_and_on_two_the_programs() -> None:
    of = node(rule("Xid31", count=2, window=DAY))
    strike(of, 31, device=0)
    strike(of, 31, device=1)
    assert (state(of, 0), state(of, 1)) == (("Healthy", ""), ("Healthy", ""))
    strike(of, 31, device=1, wait=3600)
    assert (state(of, 0), state(of, 1)) == (("Healthy", ""), ("Unhealthy", "Xid31"))
    of = strike(node(rule("Xid31", count=2, window=DAY)), 31, count=2)
    assert of.world.known.verdicts[gpu_id(0)].fault_domain == "Device"
    of = strike(node({"reasons": ["Xid31"], "state": "Unhealthy"}), 31)
    assert of.world.known.verdicts[gpu_id(0)].fault_domain == "Application", (
        "from the first time on it is the program's"
    )


def test_a_device_says_that_a_rule_that_counts_decided_and_the_text_stays_while_more_events_come() -> None:
    of = strike(node(rule("Xid31", count=3, window=DAY)), 31, count=3)
    said = "GPU memory page fault (XID 31), 3 times or more within 86400 s (health.rules); "
    assert of.world.known.verdicts[gpu_id(0)].message.startswith(said)
    assert strike(of, 31, count=5).world.known.verdicts[gpu_id(0)].message.startswith(said)
    several = strike(node(rule("Xid13", "Xid3?", count=2, window=60)), 13, 31)
    assert "(XID 31); Xid13, Xid3?: 2 times or more within 60 s (" in several.world.known.verdicts[gpu_id(0)].message


def test_a_reading_says_that_a_rule_that_counts_decided_as_long_as_it_does() -> None:
    counts = rule("ThermalSlowdown", count=2, window=DAY)
    of = node(counts, holdDownSeconds=1)
    for temperature in (HOT, COOL, HOT):
        assert "times or more" not in of.world.known.verdicts[gpu_id(0)].message
        of.line(gpu(0, readings=temperature), gpu(1), after=10.0).line(after=10.0)
    said = of.world.known.verdicts[gpu_id(0)]
    assert said.message.endswith("because of its temperature, 2 times or more within 86400 s (health.rules)")
    of.now(policy({"reasons": ["ThermalSlowdown"], "state": "Unhealthy"}))
    assert "times or more" not in of.world.known.verdicts[gpu_id(0)].message


def test_only_what_came_within_the_window_by_reasons_of_the_rule_counts() -> None:
    of = strike(strike(node(rule("Xid31", count=2, window=60)), 31), 31, wait=61)
    assert state(of) == ("Healthy", "")
    assert state(strike(of, 31, wait=60)) == ("Unhealthy", "Xid31")
    of = strike(node(rule("Xid13", "Xid31", count=3, window=DAY)), 13, 43, 31)
    assert state(of) == ("Healthy", "")
    assert state(strike(of, 13)) == ("Unhealthy", "Xid13")


def test_a_folded_event_counts_as_often_as_it_happened_also_where_it_is_only_counted() -> None:
    of = strike(node(rule("Xid31", count=5, window=DAY)), 31, count=4)
    assert state(of) == ("Healthy", "")
    assert state(strike(of, 31)) == ("Unhealthy", "Xid31")
    only_counted = 63
    assert shown(strike(node(), only_counted)) == []
    of = strike(node(rule("Xid63", count=2, window=DAY)), only_counted)
    assert state(of) == ("Healthy", "")
    assert state(strike(of, only_counted)) == ("Unhealthy", "Xid63")


def test_a_reading_counts_each_time_it_begins_and_a_rule_met_long_ago_holds_for_none() -> None:
    of = node(rule("ThermalSlowdown", count=3, window=DAY), devices=(gpu(0),), holdDownSeconds=5)
    for _ in range(2):
        for readings in (HOT, COOL):
            for _ in range(10):
                of.line(gpu(0, readings=readings))
    assert state(of.line(gpu(0, readings=HOT))) == ("Unhealthy", "ThermalSlowdown"), "it began for the third time"
    assert of.world.state.history[gpu_id(0)][0].count == 3
    of = node(rule("ThermalSlowdown", count=2, window=60), devices=(gpu(0),), holdDownSeconds=1)
    for readings in (HOT, COOL, COOL, HOT, COOL):
        of.line(gpu(0, readings=readings), after=5)
    of.line(gpu(0, readings=COOL), after=60)
    assert (state(of), of.world.state.history[gpu_id(0)][0].count) == (("Healthy", ""), 2)
    assert state(of.line(gpu(0, readings=HOT), after=30 * DAY)) == ("Degraded", "ThermalSlowdown")


@cases(("window", "hold_down"), (600, 10), (60, 600))
def test_what_a_rule_makes_is_over_after_its_window_and_the_hold_down_and_five_a_day_keep_a_gpu_out_for_a_day(
    window: int, hold_down: int
) -> None:
    of = node(rule("Xid31", count=2, window=window), devices=(gpu(0),), holdDownSeconds=hold_down)
    strike(strike(of, 31), 31)
    for _ in range(59):
        of.line(after=10.0)
    assert state(of) == ("Unhealthy", "Xid31")
    assert "after 600 s without a fault" in of.world.known.verdicts[gpu_id(0)].message
    assert state(of.line(after=20.0)) == ("Healthy", "")
    assert state(strike(of, 31)) == ("Healthy", ""), "the next one is a first one again"
    of = node(rule("Xid*", count=5, window=DAY), devices=(gpu(0),), holdDownSeconds=10)
    for number in range(5):
        strike(of, 95, wait=60).line(after=30.0)
        assert state(of) == (("Unhealthy", "Xid95") if number == 4 else ("Healthy", "")), number
    assert state(of.line(after=3600.0)) == ("Unhealthy", "Xid95")
    assert state(of.line(after=float(DAY))) == ("Healthy", "")


def test_a_confirmed_repair_begins_the_count_anew_and_what_a_probe_repeats_counts_once() -> None:
    of = strike(node(rule("Xid31", count=3, window=DAY)), 31, count=3)
    assert state(of) == ("Unhealthy", "Xid31")
    of.sees(confirm=f"{gpu_id(0)}=recovered@{CONFIRMED}").line()
    assert state(of) == ("Healthy", "")
    assert state(strike(of, 31, count=2)) == ("Healthy", "")
    assert shown(of.wait(61.0)) == [("Xid31", 5, True)], "what came stays visible"
    of = node(rule("Xid31", count=3, window=DAY))
    came = dataclasses.replace(xid(31, sequence=1), time=of.time)
    for _ in range(4):
        of.line(events=(came,)).restarts()
    assert (shown(of.line(events=(came,))), state(of)) == ([("Xid31", 1, False)], ("Healthy", ""))
    assert state(of.line(events=(came, dataclasses.replace(came, sequence=2, count=2)))) == ("Unhealthy", "Xid31")


def test_a_rule_that_is_met_in_part_is_met_in_whole_after_a_restart(tmp_path: Path) -> None:
    of = strike(node(rule("Xid31", count=2, window=DAY)), 31)
    file = StateFile(tmp_path / "state.json")
    file.save(of.world.state)
    again = Node(gpu(0), gpu(1), state=file.load(), clock=of.clock).now(policy(rule("Xid31", count=2, window=DAY)))
    assert file.unread == ""
    assert state(strike(again, 31)) == ("Unhealthy", "Xid31")


def test_a_clock_that_is_set_keeps_the_window_also_after_a_confirmed_repair() -> None:
    of = strike(node(rule("Xid31", count=2, window=60)), 31)
    of.ahead = 7200.0
    assert state(strike(of, 31, wait=50)) == ("Unhealthy", "Xid31")
    of = strike(node(rule("Xid31", count=2, window=DAY)), 31)
    of.sees(confirm=f"{gpu_id(0)}=recovered@{CONFIRMED}").line()
    assert of.world.state.history[gpu_id(0)][0].times == ()
    of.ahead = 7200.0
    assert shown(of.line()) == [("Xid31", 1, False)]


def test_a_clock_that_begins_in_1970_at_each_boot_moves_nothing_of_the_boots_before() -> None:
    rules = rule("Xid31", count=3, window=DAY)
    of = strike(node(rules), 31)
    before = of.world.state.history[gpu_id(0)][0].last
    again = Node(gpu(0), gpu(1), clock=5.0, state=of.world.state)
    again.ahead = -START.timestamp()
    again.begin(of.world.state)
    strike(again.now(policy(rules)), 31, wait=10)
    again.ahead = 30 * DAY  # it is set
    [found] = again.line().world.state.history[gpu_id(0)]
    assert (found.count, found.last, again.time - found.last) == (2, found.times[-1], timedelta(seconds=1))
    assert found.periods[0].first >= before
    assert state(strike(again, 31)) == ("Healthy", ""), "two within a day, and one a month ago"
    assert state(strike(again, 31)) == ("Unhealthy", "Xid31")


def test_what_came_by_a_clock_that_was_ahead_completes_no_number() -> None:
    of = node(rule("Xid31", count=MAX_AFTER, window=DAY))
    of.ahead = 900 * DAY
    strike(of, 31, count=MAX_AFTER - 1)
    again = of.restarted().now(policy(rule("Xid31", count=MAX_AFTER, window=DAY)))  # and the clock is right again
    assert state(strike(again, 31)) == ("Healthy", "")
    assert shown(again.wait(61)) == [("Xid31", MAX_AFTER, False)]
    [found] = again.world.state.history[gpu_id(0)]
    assert (len(found.times), found.last <= again.time, found.periods[-1].first <= again.time) == (1, True, True)


def test_an_error_in_a_partition_counts_for_its_device() -> None:
    cut = gpu(0, mig_enabled=True, partitions=(partition(0, 0), partition(0, 1)))
    of = node(rule("Xid13", count=2, window=DAY), devices=(cut,))
    of.line(xids=(dataclasses.replace(xid(13), device_id=mig_id(0, 0)),)).line(
        xids=(dataclasses.replace(xid(13), device_id=mig_id(0, 1)),)
    )
    assert state(of) == ("Unhealthy", "Xid13")


# --- what is shown ---------------------------------------------------------------------------------------------------
def test_a_gpu_that_was_repaired_shows_what_it_has_had_and_errors_of_programs_are_no_faults() -> None:
    of = strike(node(holdDownSeconds=1), 95, device=1).line(after=10.0)
    assert state(of, 1) == ("Healthy", "")
    assert (shown(of, 0), shown(of, 1)) == ([], [("Xid95", 1, True)])
    of = strike(node(), 31, count=100)
    assert shown(of) == [("Xid31", 100, False)]


def test_a_flood_changes_the_status_once_a_minute_with_the_newest_reasons() -> None:
    of = strike(node(), 31)
    reports = set()
    for _ in range(50):
        reports.add(tuple(shown(strike(of, 31, count=1000))))
    assert reports == {(("Xid31", 1, False),)}
    assert shown(of.wait(20.0)) == [("Xid31", 50_001, False)]
    of = node()
    for number in range(1, 40):
        strike(of, number)
    found = shown(of)
    assert len(found) == MAX_HISTORY
    assert len(of.world.state.history[gpu_id(0)]) == MAX_REASONS


def test_what_is_not_listed_while_the_probe_sees_nothing_has_had_no_fault() -> None:
    of = node().line(gpu(0), gpu(1))
    of.step(snapshot())
    assert {each for each, _ in of.states.values()} == {"Unknown"}
    assert of.world.state.history == {}
    of = node().line(gpu(0), gpu(1))
    of.step(snapshot()).line(gpu(0)).line(gpu(0))
    assert shown(of, 1) == [("Missing", 1, True)]
    of.step(snapshot()).line(gpu(0))
    assert shown(of, 1) == [("Missing", 1, True)], "it was and is"


def test_what_came_before_it_was_reported_is_shown_at_once_from_its_earliest_event() -> None:
    [[only]] = after(300, xid(31)).values()
    assert only.shown.count == 1
    [[only]] = after(20, xid(31, after=5), before=after(10, xid(31, after=10))).values()
    assert [each.first for each in only.periods] == [START + timedelta(seconds=5)]


def test_periods_that_a_clock_makes_one_begin_with_the_earlier_and_may_be_of_a_boot_before() -> None:
    """One ends between the two events, and another one before and after both once the clock is five days ahead."""
    first, then = 1 * DAY, 2 * DAY
    [[apart]] = (found := after(then, xid(31, after=then), before=after(first, xid(31, after=first)))).values()
    assert len(apart.periods) == 2
    by = timedelta(days=5)
    [[one]] = history.clock_set(found, by, booted=START, until=START + timedelta(seconds=then)).values()
    assert [(each.first, each.count) for each in one.periods] == [(START + timedelta(seconds=first) + by, 2)]
    found = after(DAY, xid(31, after=DAY), before=after(0, xid(31)))
    booted = START + timedelta(seconds=1)
    moved = history.clock_set(found, timedelta(days=-3), booted=booted, until=START + timedelta(seconds=DAY))
    [[only]] = moved.values()
    assert (only.times, only.last) == ((START - timedelta(days=2), START), START)


def test_an_event_without_its_device_is_no_history_and_a_partitions_is_its_devices() -> None:
    assert list(after(0, xid(31, 7), xid(31, 1))) == [gpu_id(1)]
    assert after(1, before=after(0, xid(31, 1)), inventory=inventory_of(gpu(0))) == {}
    cut = gpu(0, mig_enabled=True, partitions=(partition(0, 0), partition(0, 1)))
    of = node({"reasons": ["Xid94"], "state": "Unhealthy"}, devices=(cut,))
    of.line(xids=(dataclasses.replace(xid(94, gi=8, ci=0), time=of.time),))
    assert (state(of), of.states[mig_id(0, 1)][0]) == (("Healthy", ""), "Unhealthy")
    assert shown(of) == [("Xid94", 1, True)]


# --- bounds ----------------------------------------------------------------------------------------------------------
def after(
    seconds: float,
    *events: ProbeEvent,
    before: History | None = None,
    inventory: Inventory = TWO,
) -> History:
    now = START + timedelta(seconds=seconds)
    return history.with_events(
        before or {},
        events,
        inventory,
        HealthRules(),
        REGISTERED,
        now=now,
        recovered=frozenset(),
    )


def test_what_came_ninety_days_ago_is_forgotten_and_what_came_eighty_days_ago_is_not() -> None:
    for day in range(10):
        found = after(day * DAY, xid(31, after=day * DAY))
        assert after((day + 80) * DAY, before=found) == found
        assert after((day + 90) * DAY, before=found) == {}


def test_counts_of_old_periods_go_one_by_one() -> None:
    found: History = {}
    for period in range(PERIODS + 3):
        seconds = period * PERIOD.total_seconds()
        found = after(seconds, dataclasses.replace(xid(31), time=START + timedelta(seconds=seconds)), before=found)
    [[only]] = found.values()
    assert only.count == PERIODS
    assert only.periods[0].first == START + 3 * PERIOD


EVENTS = st.lists(
    st.tuples(st.sampled_from([13, 31, 43, 48, 79, 94, 95]), st.integers(1, 10**6), st.integers(0, 40 * DAY)),
    max_size=60,
)


@given(EVENTS)
def test_no_flood_makes_it_larger_than_its_bounds(events: list[tuple[int, int, int]]) -> None:
    found: History = {}
    clock = 0.0
    for number, count, gap in events:
        clock += gap
        event = dataclasses.replace(xid(number, count=count), time=START + timedelta(seconds=clock))
        found = after(clock, event, before=found)
        for each in (each for listed in found.values() for each in listed):
            _sound(each)
    assert all(len(listed) <= MAX_REASONS for listed in found.values())


def _sound(each: Occurrences) -> None:
    assert 1 <= len(each.periods) <= PERIODS
    assert len(each.times) <= MAX_TIMES
    assert list(each.times) == sorted(each.times)
    assert each.times[-1] == each.last
    assert each.shown.count <= each.count or each.shown.first < each.periods[0].first


@given(EVENTS, st.integers(-400 * DAY, 400 * DAY))
def test_a_clock_that_is_set_changes_no_distance_nor_number(events: list[tuple[int, int, int]], seconds: int) -> None:
    found: History = {}
    clock = 0.0
    for number, count, gap in events:
        clock += gap / 10
        found = after(
            clock, dataclasses.replace(xid(number, count=count), time=START + timedelta(seconds=clock)), before=found
        )
    until = START + timedelta(seconds=clock)
    moved = history.clock_set(found, timedelta(seconds=seconds), booted=START, until=until)
    for own, listed in found.items():
        for one, other in zip(listed, moved[own], strict=True):
            assert one.count == other.count
            assert [each + timedelta(seconds=seconds) for each in one.times] == list(other.times)


@given(st.lists(st.integers(0, 3 * DAY), min_size=1, max_size=20), st.integers(2, 5), st.integers(60, 2 * DAY))
def test_a_rule_is_met_by_the_event_that_completes_its_number_alone(gaps: list[int], count: int, window: int) -> None:
    rules = HealthRules(rules=(HealthRule.model_validate(rule("Xid31", count=count, window=window)),))
    found: History = {}
    came: list[float] = []
    clock = 0.0
    for gap in gaps:
        clock += gap
        came.append(clock)
        found = after(clock, dataclasses.replace(xid(31), time=START + timedelta(seconds=clock)), before=found)
        met = replace(rules, occurrences=found).for_device(gpu(0)).rule("Xid31") is not None
        assert met == (len(came) >= count and came[-1] - came[-count] <= window)


# --- what is refused -------------------------------------------------------------------------------------------------
@cases(
    ("wrong", "says"),
    ({"count": 1, "windowSeconds": 60}, "after.count"),
    ({"count": MAX_AFTER + 1, "windowSeconds": 60}, "after.count"),
    ({"count": 2, "windowSeconds": 0}, "after.windowSeconds"),
    ({"count": 2, "windowSeconds": 31 * DAY}, "after.windowSeconds"),
    ({"count": 2}, "after.windowSeconds"),
    ({"count": 2, "windowSeconds": 60, "within": 1}, "after.within"),
)
def test_a_number_that_can_never_be_met_is_refused_with_its_place(wrong: dict[str, int], says: str) -> None:
    refused = Node(gpu(0)).now(policy({"reasons": ["Xid31"], "state": "Unhealthy", "after": wrong}))
    assert says in json.dumps([refused.refused.field, refused.refused.message])


def test_what_is_ignored_or_repeats_nothing_costs_and_counts_nothing() -> None:
    refused = Node(gpu(0)).now(policy(rule("Xid31", count=2, window=60, state="Ignored")))
    assert "what is ignored is not counted" in refused.refused.message
    rules = ruled({"Xid31": "Unhealthy"})
    assert rules.for_device(gpu(0)) is rules
    assert shown(strike(node({"reasons": ["Xid31"], "state": "Ignored"}), 31)) == []
