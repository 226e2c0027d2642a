"""Notices: "was it the code, or the GPU?" is answered for each device, whatever a program does, and for a day."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from hypothesis import given, strategies as st
from nodedevices_plugin.health.history import KEPT, MAX_KEPT, SHOWN_AGAIN, Notices, follow_notices
from nodedevices_plugin.health.rules import HealthRules
from nodedevices_plugin.model import Inventory, Notice
from nodedevices_probe.protocol import ProbeEvent
from support.cases import cases
from support.facts import REGISTERED, START, gpu, gpu_id, inventory_of, mig_id, partition, ruled, xid

TWO = inventory_of(gpu(0), gpu(1))
CUT = inventory_of(gpu(0, partitions=(partition(0, 1), partition(0, 2)), mig_enabled=True))


def after(
    seconds: float,
    *events: ProbeEvent,
    before: Notices | None = None,
    rules: HealthRules | None = None,
    inventory: Inventory = TWO,
) -> dict[str, tuple[Notice, ...]]:
    now = START + timedelta(seconds=seconds)
    return follow_notices(before or {}, events, inventory, rules or HealthRules(), REGISTERED, now=now)


def shown(found: Mapping[str, Sequence[Notice]]) -> dict[str, list[tuple[str, int]]]:
    return {own: [(each.code, each.count) for each in listed] for own, listed in found.items()}


@cases("number", 13, 31, 43, 45, 94)
def test_an_error_of_a_program_is_noticed_on_its_device_and_on_no_other(number: int) -> None:
    found = after(0, xid(number, 1))
    assert shown(found) == {gpu_id(1): [(f"Xid{number}", 1)]}


def test_a_notice_says_what_it_means_and_without_a_device_is_nobodys() -> None:
    [[notice]] = after(3, xid(31, after=2)).values()
    assert notice.message == "GPU memory page fault (XID 31); restart the application"
    assert (notice.since, notice.time) == (START + timedelta(seconds=2),) * 2
    assert after(0, xid(31, None)) == {}
    assert after(0, xid(31, 7)) == {}


@cases("number", 48, 62, 63, 74, 79, 154)
def test_what_changes_a_state_or_is_only_counted_is_no_notice(number: int) -> None:
    assert after(0, xid(number)) == {}


@cases("state", "Ignored", "Degraded", "Unhealthy")
def test_what_a_policys_rules_decide_is_no_notice(state: str) -> None:
    assert after(0, xid(31), rules=ruled({"Xid31": state})) == {}  # type: ignore[dict-item]  # one of the literals


def test_repeats_are_shown_once_a_minute() -> None:
    found = after(0, xid(31))
    for second in range(1, 60):
        found = after(second, xid(31, after=second, count=10), before=found)
        assert shown(found) == {gpu_id(0): [("Xid31", 1)]}
    found = after(60, before=found)
    assert shown(found) == {gpu_id(0): [("Xid31", 591)]}
    [[notice]] = found.values()
    assert (notice.since, notice.time) == (START, START + timedelta(seconds=59))


def test_each_partition_of_a_device_has_its_own() -> None:
    named = replace(xid(13), device_id=mig_id(0, 1))
    by_instance = xid(13, gi=9, ci=0)
    [found] = after(0, named, by_instance, xid(13), inventory=CUT).values()
    assert sorted(each.partition for each in found) == ["", mig_id(0, 1), mig_id(0, 2)]


def test_a_notice_is_forgotten_a_day_after_it_came_last_or_with_its_device() -> None:
    found = after(10, xid(31, after=10), before=after(0, xid(31)))
    day = KEPT.total_seconds()
    assert shown(after(day, before=found)) == {gpu_id(0): [("Xid31", 2)]}
    assert after(day + 10, before=found) == {}
    assert after(20, before=found, inventory=inventory_of(gpu(1))) == {}


def test_the_newest_few_come_first_also_of_a_clock_that_was_set() -> None:
    many = [xid(number, after=second) for second, number in enumerate([13, 31, 8, 11, 25, 32, *range(126, 140)])]
    [found] = after(60, *many).values()
    assert len(found) == MAX_KEPT
    assert [each.code for each in found][:2] == ["Xid139", "Xid135"]
    [[early]] = after(0, xid(31, after=-86400 * 365)).values()
    [[late]] = after(0, xid(31, after=86400)).values()
    assert early.time == START - timedelta(seconds=60)
    assert late.time == START


@given(st.lists(st.tuples(st.floats(0, 200), st.sampled_from([13, 31, 45, 79]), st.integers(1, 1000)), max_size=30))
def test_no_repeat_is_lost_and_what_is_shown_changes_once_a_minute_at_most(steps: list[tuple[float, int, int]]) -> None:
    clock, counted = 0.0, 0
    found: dict[str, tuple[Notice, ...]] = {}
    changed: dict[str, datetime] = {}
    for passed, number, count in steps:
        clock += passed
        before = {each.code: each for each in found.get(gpu_id(0), ())}
        found = after(clock, xid(number, after=clock, count=count), before=found)
        counted += count if number != 79 else 0
        now = START + timedelta(seconds=clock)
        for each in found.get(gpu_id(0), ()):
            was = before.get(each.code)
            if was is None or was.count != each.count:
                last = changed.get(each.code)
                assert last is None or now - last >= SHOWN_AGAIN
                changed[each.code] = now
    assert sum(each.count + each.repeats for each in found.get(gpu_id(0), ())) == counted
