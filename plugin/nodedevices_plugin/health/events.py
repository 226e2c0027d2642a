"""Edges: which events of a line are new, what an XID does to a device's faults, and what only needs telling.

A probe repeats its events for a while, so that a lost line loses none; `fresh_events` drops what was seen. A flood is
bounded twice: the probe folds equal events, and a device keeps at most one fault per reason and MAX_FAULTS of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from nodedevices_plugin.health.actions import NO_ACTION, asks_for_nothing, asks_more
from nodedevices_plugin.health.catalogue import Xid, XidClass, look_up
from nodedevices_plugin.health.levels import UNUSABLE
from nodedevices_plugin.health.rules import HealthRules
from nodedevices_plugin.model import Fault, HealthState
from nodedevices_plugin.probes.protocol import ProbeEvent, Snapshot

_CLASSES = {"Ignored": XidClass.COUNTED, "Degraded": XidClass.SUSPECT, "Unhealthy": XidClass.FATAL}
_STATES = {XidClass.SUSPECT: HealthState.DEGRADED, XidClass.FATAL: HealthState.UNHEALTHY}
MAX_FAULTS = 16  # of one device: a device that has more different ones is judged by the worst
MAX_NEIGHBOURS = 16
MAX_NOTICES = 256  # of one line
OLDEST_NEWS = timedelta(seconds=60)  # so long a probe repeats an event; one that seems older: a clock was set
CORRELATING = "Correlating"
XID_EVENT = "xid"
CLEANUP = 45  # a killed process was cleaned up: the one correlating XID that is never fatal by itself
CONTAINED_BESIDE_48 = frozenset({63, 94})  # the row is remapped, the error was contained

# Other edges that NVML reports (nvml.h nvmlEventType*): the reading of field 230 says what they ask for.
_OTHER_EDGES: Mapping[str, tuple[str, HealthState, str, str]] = {
    "gpu-unavailable": (
        "GpuUnavailable",
        HealthState.UNHEALTHY,
        "the driver reports the GPU as unavailable",
        "ResetGPU",
    ),
    "poison": ("Poison", HealthState.DEGRADED, "poisoned data was consumed", NO_ACTION),
    "ecc-storm": ("EccStorm", HealthState.DEGRADED, "a storm of corrected ECC errors", NO_ACTION),
}
REASONS = frozenset(edge[0] for edge in _OTHER_EDGES.values())


@dataclass(frozen=True, slots=True)
class EventCursor:
    """Up to which event of which probe process we have listened."""

    instance: str = ""
    sequence: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """An XID that leaves the device's state alone but that people want to know of: an Event, a log line, a count."""

    device_id: str | None
    xid: int
    time: datetime  # of the newest
    count: int
    message: str


def fresh_events(cursor: EventCursor, snapshot: Snapshot) -> tuple[EventCursor, tuple[ProbeEvent, ...]]:
    """The events of this line that were not in an earlier one, oldest first, and the cursor for the next line."""
    seen = cursor.sequence if cursor.instance == snapshot.instance else -1
    news = tuple(
        sorted((event for event in snapshot.events if event.sequence > seen), key=lambda event: event.sequence)
    )
    return EventCursor(snapshot.instance, news[-1].sequence if news else seen), news


def xid_class(row: Xid, rules: HealthRules) -> XidClass:
    """The class of an XID under these rules."""
    rule = rules.rule(f"Xid{row.number}")
    return row.kind if rule is None else _CLASSES[rule.state]


def under_rules(fault: Fault, rules: HealthRules) -> Fault | None:
    """A fault from before as the rules of now have it; None: they ignore it. One that is undecided stays so: it is
    decided by them when its time comes."""
    undecided = fault.reason == CORRELATING
    rule = rules.rule(f"Xid{fault.xid}" if undecided else fault.reason)
    if rule is None or fault.reason in UNUSABLE:
        return fault
    if rule.state == "Ignored":
        return None
    state = HealthState(rule.state)
    if undecided or state is fault.state:
        return fault
    return replace(fault, state=state, action=_action(fault.action, state) if fault.xid is not None else fault.action)


def notices(events: Iterable[ProbeEvent], rules: HealthRules) -> tuple[Notice, ...]:
    """Application XIDs, and all whose device the driver did not name; one notice per (device, XID), oldest first."""
    found: dict[tuple[str | None, int], Notice] = {}
    for event in events:
        if event.kind != XID_EVENT or event.xid is None:
            continue
        row = look_up(event.xid)
        kind = xid_class(row, rules)
        if kind is XidClass.COUNTED or (kind is not XidClass.APPLICATION and event.device_id is not None):
            continue
        key = (event.device_id, row.number)
        before = found.get(key)
        if before is None and len(found) >= MAX_NOTICES:
            continue
        found[key] = Notice(
            device_id=event.device_id,
            xid=row.number,
            time=event.time if before is None else max(before.time, event.time),
            count=event.count + (before.count if before else 0),
            message=f"{row.meaning} (XID {row.number})",
        )
    return tuple(found.values())


def note_events(
    faults: Mapping[str, Fault],
    events: Sequence[ProbeEvent],
    rules: HealthRules,
    *,
    now: datetime,
    boot_id: str,
    instance: str = "",
) -> dict[str, Fault]:
    """The faults of one device after these events, by reason. `instance`: the probe's process that tells them.

    An event's time is the probe's word: one from the future counts from now, one from long ago from a minute ago.
    """
    result = dict(faults)
    came = [event.xid for event in events if event.kind == XID_EVENT and event.xid is not None]
    for event in events:
        when = max(min(event.time, now), now - OLDEST_NEWS)
        if event.kind != XID_EVENT:
            edge = _OTHER_EDGES.get(event.kind)
            if edge is not None:
                reason, state, message, action = edge
                rule = rules.rule(reason)
                if rule is not None and rule.state == "Ignored":
                    continue
                news = Fault(
                    reason=reason,
                    state=state if rule is None else HealthState(rule.state),
                    message=message,
                    action=action,
                    fault_domain="Device",
                    since=when,
                    last_seen=when,
                    boot_id=boot_id,
                    instance=instance,
                    sequence=event.sequence,
                )
                _remember(result, news)
            continue
        if event.xid is None:
            continue
        row = look_up(event.xid)
        kind = xid_class(row, rules)
        if kind in _STATES:
            _remember(result, _told_by(xid_fault(row, _STATES[kind], when, boot_id), instance, event.sequence))
        elif kind is XidClass.CORRELATING and CORRELATING not in result:
            _remember(result, _told_by(_correlating(row, when, boot_id), instance, event.sequence))
    waiting = result.get(CORRELATING)
    if waiting is not None and came:
        heard = [xid for xid in dict.fromkeys((*waiting.neighbours, *came)) if xid != waiting.xid]
        newest = max(event.sequence for event in events if event.xid is not None)
        waiting = replace(waiting, neighbours=_bounded_neighbours(heard, rules))
        result[CORRELATING] = _told_by(waiting, instance, newest)
    return _bounded(result)


def _bounded_neighbours(heard: Sequence[int], rules: HealthRules) -> tuple[int, ...]:
    """Those that decide something first: a flood of others must not hide them."""
    return tuple(sorted(heard, key=lambda xid: not _bears_on_others(xid, rules))[:MAX_NEIGHBOURS])


def _bears_on_others(xid: int, rules: HealthRules) -> bool:
    return xid in CONTAINED_BESIDE_48 or xid_class(look_up(xid), rules) is XidClass.CORRELATING


def withholds(fault: Fault, rules: HealthRules) -> bool:
    """True while a fault is undecided and may prove fatal: no new pod gets the device meanwhile."""
    if fault.reason != CORRELATING:
        return False
    heard = (*((fault.xid,) if fault.xid is not None else ()), *fault.neighbours)
    bad = {XidClass.CORRELATING, XidClass.FATAL}  # fatal: a rule came meanwhile
    return any(xid != CLEANUP and xid_class(look_up(xid), rules) in bad for xid in heard)


def decide_correlating(
    faults: Mapping[str, Fault], rules: HealthRules, *, now: datetime, driver_action: str | None
) -> dict[str, Fault]:
    """Ends the waiting of an XID whose meaning depends on its neighbours: at once when a worse fault explains it,
    otherwise when its window is over. `driver_action`: field 230; it decides where the catalogue says "it depends"."""
    waiting = faults.get(CORRELATING)
    if waiting is None:
        return dict(faults)
    rest = {reason: fault for reason, fault in faults.items() if reason != CORRELATING}
    window = timedelta(seconds=rules.correlation_seconds)
    explained = any(
        fault.xid is not None
        and fault.state is HealthState.UNHEALTHY
        and fault.last_seen is not None
        and waiting.since - fault.last_seen <= window
        for fault in rest.values()
    )
    if explained:
        return rest
    if now - waiting.since < window:
        return dict(faults)
    heard = (*((waiting.xid,) if waiting.xid is not None else ()), *waiting.neighbours)
    for xid in heard:
        row = look_up(xid)
        kind = xid_class(row, rules)
        if kind is XidClass.CORRELATING:
            state = _decided(row, heard, driver_action)
        else:  # a rule that came meanwhile
            state = _STATES.get(kind) if f"Xid{xid}" not in rest else None
        if state is not None:
            decided = xid_fault(row, state, waiting.since, waiting.boot_id)
            decided = _told_by(decided, waiting.instance, waiting.sequence)
            _remember(rest, replace(decided, last_seen=waiting.last_seen))
    return _bounded(rest)


def xid_fault(row: Xid, state: HealthState, when: datetime, boot_id: str) -> Fault:
    """The fault that an XID leaves."""
    return Fault(
        reason=f"Xid{row.number}",
        state=state,
        message=f"{row.meaning} (XID {row.number})",
        action=_action(row.action, state),
        fault_domain=row.domain,
        since=when,
        last_seen=when,
        boot_id=boot_id,
        xid=row.number,
    )


def _action(action: str, state: HealthState) -> str:
    """What an XID asks for. One that is fatal by policy alone asks for a reset: that is what ends it."""
    return "ResetGPU" if state is HealthState.UNHEALTHY and asks_for_nothing(action) else action


def _told_by(fault: Fault, instance: str, sequence: int) -> Fault:
    return replace(fault, instance=instance, sequence=sequence)


def _correlating(row: Xid, when: datetime, boot_id: str) -> Fault:
    fault = xid_fault(row, HealthState.DEGRADED, when, boot_id)
    return replace(fault, reason=CORRELATING, action=NO_ACTION)


def _decided(row: Xid, heard: Sequence[int], driver_action: str | None) -> HealthState | None:
    """What a correlating XID comes to when nothing worse came beside it. None: nothing of the device's."""
    if row.number == CLEANUP:  # alone or after an application's error: a process was cleaned up
        return None
    if row.number == 48 and (CONTAINED_BESIDE_48 & set(heard)):
        return HealthState.DEGRADED
    if row.action == "Inspect" or (row.number == 74 and driver_action == NO_ACTION):
        return HealthState.DEGRADED
    return HealthState.UNHEALTHY


def _remember(faults: dict[str, Fault], news: Fault) -> None:
    """A repeat makes the evidence newer, and what was done before it worthless; it changes nothing else. It keeps the
    number of the event that began the fault, so that a storm of one XID does not change what is shown at each line."""
    known = faults.get(news.reason)
    if known is None:
        faults[news.reason] = news
    elif known.last_seen is None or (news.last_seen is not None and news.last_seen > known.last_seen):
        faults[news.reason] = _told_by(replace(news, since=known.since), known.instance, known.sequence)


def _bounded(faults: Mapping[str, Fault]) -> dict[str, Fault]:
    """The worst; one that is undecided is always among them, or it would never be decided."""
    if len(faults) <= MAX_FAULTS:
        return dict(faults)
    worst = sorted(faults.values(), key=lambda fault: (fault.reason == CORRELATING, severity(fault)), reverse=True)
    return {fault.reason: fault for fault in worst[:MAX_FAULTS]}


def severity(fault: Fault) -> tuple[bool, int, bool, str]:
    """Of two faults, the greater is the worse: the state, what it asks for, and of equals the one with an XID."""
    return (fault.state is HealthState.UNHEALTHY, asks_more(fault.action), fault.xid is not None, fault.reason)
