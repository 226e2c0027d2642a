"""The probe's memory of events: bounded, folded, and no first sign lost."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings, strategies as st
from nodedevices_probe.loop import REPEATED_SECONDS, EventKey, EventLog
from nodedevices_probe.protocol import MAX_EVENTS
from support.clock import Clock


def xid(number: int, device: str = "GPU-a") -> EventKey:
    return EventKey(kind="xid", xid=number, device_id=device)


def test_an_event_is_repeated_for_a_while_under_its_sequence() -> None:
    clock = Clock(100.0)
    log = EventLog(clock=clock)
    log.record(xid(79))
    (first,) = log.for_line()
    clock.now += REPEATED_SECONDS
    assert log.for_line() == (first,)
    clock.now += 1
    assert log.for_line() == ()


def test_equal_events_between_two_lines_are_one_with_a_count() -> None:
    log = EventLog(clock=Clock(100.0))
    for _ in range(10_000):
        log.record(xid(31))
    log.record(xid(31, "GPU-b"))
    assert [(event.device_id, event.count) for event in log.for_line()] == [("GPU-a", 10_000), ("GPU-b", 1)]


def test_folded_events_have_the_details_of_the_first_and_the_same_again_a_new_sequence() -> None:
    log = EventLog(clock=Clock(100.0))
    for number, address in enumerate(("0000:1b:00.0", "0000:1b:00.0", "0000:3b:00.0")):
        log.record(EventKey(kind="sxid", xid=20034, pci_bus_id=address), details={"link": str(number)})
    assert [(event.pci_bus_id, event.details, event.count) for event in log.for_line()] == [
        ("0000:1b:00.0", {"link": "0"}, 2),
        ("0000:3b:00.0", {"link": "2"}, 1),
    ]
    log = EventLog(clock=Clock(100.0))
    log.record(xid(31), count=3)
    (before,) = log.for_line()
    log.record(xid(31))
    (after,) = log.for_line()
    assert (before.count, after.count) == (3, 1)
    assert after.sequence > before.sequence


def test_events_beyond_what_a_line_holds_are_dropped_and_counted_and_news_wake_the_writer() -> None:
    log = EventLog(clock=Clock(100.0))
    for number in range(MAX_EVENTS + 5):
        log.record(xid(number))
    assert len(log.for_line()) == MAX_EVENTS
    assert log.dropped == 5
    log = EventLog(clock=Clock(100.0))
    assert not log.wake.is_set()
    assert not log.pending()
    log.record(xid(79))
    assert log.wake.is_set()
    assert log.pending()


@settings(deadline=None)
@given(st.lists(st.integers(0, 20) | st.none(), max_size=200))
def test_nothing_is_lost_or_reported_twice_by_one_who_reads_every_line(steps: Any) -> None:
    """None writes a line; a number is an XID."""
    log = EventLog(clock=Clock(100.0))
    written: dict[int, tuple[int | None, int]] = {}
    for step in [*steps, None]:
        if step is not None:
            log.record(xid(step))
            continue
        line = log.for_line()
        assert len(line) <= MAX_EVENTS
        for event in line:
            written[event.sequence] = (event.xid, event.count)
        sequences = [event.sequence for event in line]
        assert sequences == sorted(set(sequences))
    for number in range(21):
        assert sum(count for each, count in written.values() if each == number) == steps.count(number)
