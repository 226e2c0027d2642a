from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from nodedevices_api.sections import Health, HealthRule
from nodedevices_plugin.health.events import MAX_LOGGED, EventCursor, fresh_events, logged_events
from nodedevices_plugin.health.rules import HealthRules
from nodedevices_probe.protocol import ProbeEvent
from support.cases import cases
from support.facts import REGISTERED, START, gpu_id, ruled, snapshot, xid


def test_a_new_process_has_new_events_and_they_are_seen_in_their_order() -> None:
    """A process id in a container that was started again; an agent knows of the earlier one from its state file."""
    cursor, _ = fresh_events(EventCursor(), snapshot(events=(xid(79, sequence=9, after=5),)))
    line = snapshot(events=(xid(48, sequence=1, after=100), xid(79, sequence=2, after=101)))
    cursor, fresh = fresh_events(cursor, line)
    assert [event.xid for event in fresh] == [48, 79]
    assert fresh_events(cursor, line)[1] == ()
    assert cursor.sequence == 2
    _, fresh = fresh_events(EventCursor(), snapshot(events=(xid(31, sequence=2), xid(13, sequence=1))))
    assert [event.xid for event in fresh] == [13, 31]


def test_an_event_repeated_in_later_lines_is_seen_once_by_the_numbers_of_its_process() -> None:
    first = snapshot(events=(xid(79, sequence=1),))
    second = snapshot(events=(xid(79, sequence=1), xid(31, sequence=2)))
    cursor, fresh = fresh_events(EventCursor(), first)
    assert [event.xid for event in fresh] == [79]
    cursor, fresh = fresh_events(cursor, second)
    assert [event.xid for event in fresh] == [31]
    assert fresh_events(cursor, second) == (cursor, ())
    cursor, _ = fresh_events(EventCursor(), snapshot(events=(xid(79, sequence=9),)))
    _, fresh = fresh_events(cursor, snapshot(instance="second", events=(xid(62, sequence=1),)))
    assert [event.xid for event in fresh] == [62]


AT = {"pci_bus_id": "0000:1b:00.0"}


def test_of_a_log_that_a_new_process_reads_again_only_what_is_newer_is_news() -> None:
    cursor, _ = fresh_events(EventCursor(), snapshot(events=(xid(79, None, sequence=9, after=60, **AT),)))
    again = (xid(79, None, sequence=1, after=60.05, **AT), xid(48, None, sequence=2, after=60.2, **AT))
    line = snapshot(instance="second", events=again)
    cursor, fresh = fresh_events(cursor, line)
    assert [event.xid for event in fresh] == [48]
    assert fresh_events(cursor, line) == (cursor, ()), "nor is it in its next lines"


def test_a_log_that_is_read_again_is_the_same_whatever_the_clock_was_set_to_meanwhile() -> None:
    cursor, _ = fresh_events(EventCursor(), snapshot(events=(xid(79, None, sequence=9, after=60, **AT),)), START)
    by = timedelta(hours=1)
    again, news = xid(79, None, sequence=1, after=3660, **AT), xid(48, None, sequence=2, after=3661, **AT)
    _, fresh = fresh_events(cursor, snapshot(instance="second", events=(again, news)), START + by)
    assert [event.xid for event in fresh] == [48]


@cases(
    ("before", "line"),
    ({}, {"boot_id": "boot-2"}),
    ({"device": 0}, {}),
    ({}, {"device": 0}),
    ids=["another boot", "no log before", "no log now"],
)
def test_only_a_log_of_this_boot_is_read_again(before: dict[str, Any], line: dict[str, Any]) -> None:
    def event(sequence: int, device: int | None = None) -> ProbeEvent:
        return xid(79, device, sequence=sequence, after=60, **({} if device is not None else AT))

    cursor, _ = fresh_events(EventCursor(), snapshot(events=(event(9, before.get("device")),)))
    boot = {key: value for key, value in line.items() if key == "boot_id"}
    _, fresh = fresh_events(cursor, snapshot(instance="second", events=(event(1, line.get("device")),), **boot))
    assert len(fresh) == 1


def test_application_xids_are_reported_and_equal_ones_folded() -> None:
    logged = logged_events([xid(31), xid(79), xid(63)], HealthRules(), {}, REGISTERED)
    assert [(each.device_id, each.xid, each.message) for each in logged] == [
        (gpu_id(0), 31, "GPU memory page fault (XID 31)")
    ]
    logged = logged_events([xid(31, count=3), xid(31, after=5, count=4), xid(31, 1)], HealthRules(), {}, REGISTERED)
    assert [(each.device_id, each.count) for each in logged] == [(gpu_id(0), 7), (gpu_id(1), 1)]
    assert (logged[0].time - START).total_seconds() == 5


def test_a_notice_is_of_a_device_or_none_and_those_of_a_line_are_bounded() -> None:
    assert [each.xid for each in logged_events([xid(79, None)], HealthRules(), {}, REGISTERED)] == [79]
    assert logged_events([xid(31)], ruled({"Xid31": "Ignored"}), {}, REGISTERED) == ()
    assert logged_events([xid(31)], ruled({"Xid31": "Unhealthy"}), {}, REGISTERED) == ()
    many = [replace(xid(31), device_id=f"GPU-{number}") for number in range(1000)]
    assert len(logged_events(many, HealthRules(), {}, REGISTERED)) == MAX_LOGGED


def test_rules_come_from_the_section() -> None:
    rule = HealthRule(reasons=("Xid13", "Xid14*"), state="Ignored")
    section = Health(rules=(rule,), hold_down_seconds=7)
    assert HealthRules.from_section(section) == HealthRules(rules=(rule,), hold_down_seconds=7)
    assert HealthRules.from_section(Health()) == HealthRules()
