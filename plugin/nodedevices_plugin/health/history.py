"""How often each reason came on each device, for rules that count (`health.rules[].after`) and for people: a device
that fails again and again is seen as such, although it was repaired, and is healthy, in between.

An event counts as often as it happened; a condition of readings counts when it begins. `with_events` comes
before the verdicts, so that a rule is met by the very event that completes its number; `with_faults` comes after them,
and what it counts is judged by once more. What a rule ignores does not count, nor do events that are only counted,
unless a rule counts them. Missing devices of a probe that sees none at all were not faulty.

Kept for 80 to 90 days (whole periods of ten), with the times of the last MAX_TIMES; at most MAX_REASONS of a device. Of
a device that a person confirmed as recovered the times go: what came before the repair completes no number. The status
shows a change at once where it is the first within a minute; a flood changes it once a minute.

And notices: events that changed no device's state, kept for the question "was it the code, or the GPU?". Examples: a
program's own error (XID 31), a contained memory error, the clean-up after a killed process. Events that a policy's
rules ignore leave none. Each is kept for a day after its last event, a few for each device, the newest first. A program
may fail a thousand times a second: the first of its errors is shown at once; repeats are added up, and shown once a
minute, so that a flood costs a write of the status a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from datetime import datetime, timedelta

from nodedevices_api.bounds import INT32_MAX
from nodedevices_api.sections import MAX_AFTER
from nodedevices_common.text import clip
from nodedevices_probe.protocol import MAX_MESSAGE, ProbeEvent

from nodedevices_plugin.health.events import (
    CORRELATING,
    effect,
    event_message,
    occurred,
    partitions_named,
    with_meanings,
)
from nodedevices_plugin.health.rules import HealthRules, advice
from nodedevices_plugin.model import (
    Fault,
    HealthState,
    Inventory,
    InventoryDevice,
    Notice,
    Occurrences,
    Period,
    Shown,
    Verdict,
)
from nodedevices_plugin.vendors.faults import Effect, FaultSources, Meaning

PERIOD = timedelta(days=10)
PERIODS = 9
MAX_TIMES = MAX_AFTER
MAX_REASONS = 16  # of one device; those that came last are kept

History = Mapping[str, tuple[Occurrences, ...]]  # by device
_ByReason = dict[str, Occurrences]


def with_events(
    before: History,
    events: Sequence[ProbeEvent],
    inventory: Inventory,
    rules: HealthRules,
    vendors: FaultSources,
    *,
    now: datetime,
    recovered: Set[str],
) -> dict[str, tuple[Occurrences, ...]]:
    """Return the history of every device after these events. `events`: those that were not judged before. `recovered`:
    ids of devices that a person confirmed as recovered."""
    devices = {device.fact.id for device in inventory.devices}
    found = {own: by_reason for own, by_reason in _by_reason(before).items() if own in devices}
    for own in recovered & found.keys():
        found[own] = {reason: replace(occurrences, times=()) for reason, occurrences in found[own].items()}
    for event, device, meaning in with_meanings(events, inventory, vendors):
        if meaning is not None and _counts(meaning, rules, device):
            _add(found.setdefault(device.fact.id, {}), meaning.reason, occurred(event, now), event.count, now)
    return _kept(found, now)


def with_faults(
    before: History,
    previous: Mapping[str, Verdict],
    verdicts: Mapping[str, Verdict],
    inventory: Inventory,
    *,
    now: datetime,
) -> dict[str, tuple[Occurrences, ...]]:
    """Return the history after the verdicts: with the conditions that have begun, and which reasons were faults."""
    found = _by_reason(before)
    for device in inventory.devices:
        own = device.fact.id
        for key in device.ids:
            earlier = {fault.reason: fault for fault in previous[key].faults} if key in previous else {}
            for fault in verdicts[key].faults if key in verdicts else ():
                if _begins(fault, earlier.get(fault.reason)):
                    _add(found.setdefault(own, {}), fault.reason, now, 1, now)
                known = found.get(own, {}).get(fault.reason)
                if known is not None and not known.is_fault:
                    found[own][fault.reason] = replace(known, is_fault=True)
    return _kept(found, now)


def clock_set(
    history: History, by: timedelta, *, booted: datetime, until: datetime
) -> dict[str, tuple[Occurrences, ...]]:
    """Return the history after the wall clock was set: what was a minute ago is a minute ago. `booted`, `until`: the
    machine's boot and now, by the clock as it was. Other times are of another clock, and stay: one that begins in 1970
    at each boot makes no year of what came before it."""

    def moved(when: datetime) -> datetime:
        return when + by if booted <= when <= until else when

    return {own: tuple(_moved(occurrences, moved) for occurrences in listed) for own, listed in history.items()}


def _by_reason(history: History) -> dict[str, _ByReason]:
    return {own: {occurrences.reason: occurrences for occurrences in listed} for own, listed in history.items()}


def _counts(meaning: Meaning, rules: HealthRules, device: InventoryDevice) -> bool:
    if meaning.effect is Effect.REPAIRED:
        return False
    if rules.is_counted(meaning.reason, device.fact):
        return True
    return effect(meaning, rules.for_device(device.fact)) is not Effect.COUNTED


def _begins(fault: Fault, earlier: Fault | None) -> bool:
    """True when a condition of readings was not evident before; events have a time."""
    if fault.last_seen is not None or fault.state is HealthState.UNKNOWN or fault.reason == CORRELATING:
        return False
    return earlier is None or earlier.last_seen is not None or earlier.state is HealthState.UNKNOWN


def _add(of_device: _ByReason, reason: str, when: datetime, count: int, now: datetime) -> None:
    """Times in the future are of a clock that was set back since: they complete no number."""
    known = of_device.get(reason) or Occurrences(
        reason=reason,
        periods=(),
        last=when,
        shown=Shown(count=0, first=when, last=when, at=when - SHOWN_AGAIN),  # nothing yet
    )
    new = Period(number=_number(when), first=when, count=count)
    periods = _renumbered((*known.periods, new), lambda first: first if first <= now else when)
    past = (time_ for time_ in known.times if time_ <= now)
    times = sorted((*past, *[when] * min(count, MAX_TIMES)))[-MAX_TIMES:]
    of_device[reason] = replace(
        known,
        periods=periods,
        last=times[-1],
        times=tuple(times),
    )


def _number(when: datetime) -> int:
    return int(when.timestamp() // PERIOD.total_seconds())


def _kept(found: Mapping[str, _ByReason], now: datetime) -> dict[str, tuple[Occurrences, ...]]:
    kept = {own: tuple(_newest(by_reason.values(), now)) for own, by_reason in found.items()}
    return {own: listed for own, listed in kept.items() if listed}


def _newest(every: Iterable[Occurrences], now: datetime) -> Iterator[Occurrences]:
    oldest = _number(now) - PERIODS
    current = (
        replace(occurrences, periods=tuple(period for period in occurrences.periods if period.number > oldest))
        if occurrences.periods[0].number <= oldest
        else occurrences
        for occurrences in every
        if occurrences.periods  # not so in a damaged state file
    )
    newest = sorted(
        (occurrences for occurrences in current if occurrences.periods),
        key=lambda occurrences: (-occurrences.last.timestamp(), occurrences.reason),
    )
    yield from (_settled(occurrences, now) for occurrences in newest[:MAX_REASONS])


def _settled(occurrences: Occurrences, now: datetime) -> Occurrences:
    """Show what is new, unless it was less than a minute ago that something was; a time in the future is of a clock
    that was set back."""
    count, first, shown = min(occurrences.count, INT32_MAX), occurrences.periods[0].first, occurrences.shown
    same = (shown.count, shown.first, shown.last) == (count, first, occurrences.last)
    if same or timedelta(0) <= now - shown.at < SHOWN_AGAIN:
        return occurrences
    return replace(occurrences, shown=Shown(count=count, first=first, last=occurrences.last, at=now))


def _moved(occurrences: Occurrences, moved: Callable[[datetime], datetime]) -> Occurrences:
    shown, times = occurrences.shown, sorted(map(moved, occurrences.times))
    return replace(
        occurrences,
        periods=_renumbered(occurrences.periods, moved),
        last=max((moved(occurrences.last), *times)),
        times=tuple(times),
        shown=replace(shown, first=moved(shown.first), last=moved(shown.last), at=moved(shown.at)),
    )


def _renumbered(periods: Sequence[Period], moved: Callable[[datetime], datetime]) -> tuple[Period, ...]:
    found: dict[int, Period] = {}
    for period in periods:
        first = moved(period.first)
        number = _number(first)
        known = found.get(number)
        found[number] = Period(
            number=number,
            first=first if known is None else min(known.first, first),
            count=min(period.count + (known.count if known is not None else 0), INT32_MAX),
        )
    return tuple(found[number] for number in sorted(found))


# --- notices: events that changed no device's state ------------------------------------------------------------------
KEPT = timedelta(days=1)  # after it came last
SHOWN_AGAIN = timedelta(seconds=60)  # repeats of a notice
MAX_KEPT = 16  # of one device; fewer are shown

Notices = Mapping[str, tuple[Notice, ...]]  # by device, the newest first


def follow_notices(
    before: Notices,
    events: Sequence[ProbeEvent],
    inventory: Inventory,
    rules: HealthRules,
    vendors: FaultSources,
    *,
    now: datetime,
) -> dict[str, tuple[Notice, ...]]:
    """Return the notices of every device after these events. `events`: those that were not judged before."""
    devices = {device.fact.id for device in inventory.devices}
    found = {
        own: {(notice.code, notice.partition): notice for notice in notices}
        for own, notices in before.items()
        if own in devices
    }
    for event, device, meaning in with_meanings(events, inventory, vendors):
        if meaning is None or not _noticed(meaning, rules.for_device(device.fact)):
            continue
        of_device = found.setdefault(device.fact.id, {})
        part = next(iter(partitions_named(event, device)), "")
        when = occurred(event, now)
        known = of_device.get((meaning.reason, part))
        of_device[meaning.reason, part] = (
            _new(meaning, part, when, event, now)
            if known is None
            else replace(known, repeats=known.repeats + event.count, newest=max(known.newest, when))
        )
    kept = {own: _kept_notices(notices.values(), now) for own, notices in found.items()}
    return {own: notices for own, notices in kept.items() if notices}


def _noticed(meaning: Meaning, rules: HealthRules) -> bool:
    kind = effect(meaning, rules)
    return kind is Effect.NOTICE or (kind is Effect.UNDECIDED and not meaning.may_be_unhealthy)


def _new(meaning: Meaning, partition: str, when: datetime, event: ProbeEvent, now: datetime) -> Notice:
    message = clip("; ".join(filter(None, (event_message(meaning, event), advice(meaning.action)))), MAX_MESSAGE)
    return Notice(
        code=meaning.reason,
        partition=partition,
        message=message,
        since=when,
        time=when,
        count=min(event.count, INT32_MAX),
        counted=now,
        newest=when,
    )


def _kept_notices(notices: Iterable[Notice], now: datetime) -> tuple[Notice, ...]:
    settled = (_settled_notice(notice, now) for notice in notices if abs(now - notice.newest) < KEPT)
    return tuple(
        sorted(settled, key=lambda notice: (-notice.time.timestamp(), notice.code, notice.partition))[:MAX_KEPT]
    )


def _settled_notice(notice: Notice, now: datetime) -> Notice:
    """Show the notice's repeats when it is time, or when its time is in the future: the clock was set back."""
    if notice.repeats and not timedelta(0) <= now - notice.counted < SHOWN_AGAIN:
        count = min(notice.count + notice.repeats, INT32_MAX)
        return replace(notice, count=count, time=min(notice.newest, now), counted=now, repeats=0)
    return notice
