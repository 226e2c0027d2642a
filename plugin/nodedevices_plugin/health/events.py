"""Edges: the new events of a line, the faults that they leave on a device, and the events that are only logged.

An event's meaning comes from its vendor (vendors.faults); a policy's rules come before that.

A probe repeats its events for a while, so that a lost line loses none; `fresh_events` drops events that were seen. A
flood is bounded twice: the probe folds equal events, and a device keeps at most one fault per reason and MAX_FAULTS of
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from msgspec import Struct
from nodedevices_probe.protocol import DeviceFact, ProbeEvent, Snapshot

from nodedevices_plugin.health.levels import SIGNAL_REASONS, UNUSABLE, signal_reason
from nodedevices_plugin.health.rules import CORRELATION_SECONDS, NO_ACTION, HealthRules, action_rank, needs_no_action
from nodedevices_plugin.model import Fault, HealthState, Inventory, InventoryDevice, Usual, devices_by_id
from nodedevices_plugin.vendors.faults import CODED, Effect, FaultSource, FaultSources, Meaning, meaning_of, source_of

_EFFECTS = {"Ignored": Effect.COUNTED, "Degraded": Effect.DEGRADED, "Unhealthy": Effect.UNHEALTHY}
_STATES = {Effect.DEGRADED: HealthState.DEGRADED, Effect.UNHEALTHY: HealthState.UNHEALTHY}
MAX_FAULTS = 16  # of one device; of more, the worst are kept
MAX_NEIGHBOURS = 16
MAX_LOGGED = 256  # of one line
OLDEST_NEWS = timedelta(seconds=60)  # how long a probe repeats an event; one that seems older: a clock was set
CORRELATING = "Correlating"


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SAME_LINE_SECONDS = 0.1  # by which a line of a log may seem younger to the process that reads it again


@dataclass(frozen=True, slots=True)
class EventCursor:
    """The last event that was read, and the probe process that it came from. `newest`: the latest time of one.
    `logged`: how many seconds after which boot the newest was that names a PCI address: a new process of a probe that
    reads a log reads it again."""

    instance: str = ""
    sequence: int = -1
    newest: datetime | None = None
    boot_id: str = ""
    logged: float | None = None


class LoggedEvent(Struct, frozen=True, kw_only=True):
    """Events of one line that do not change the device's state but are worth a log line. `xid` None: the event has no
    number of a device's."""

    device_id: str | None
    pci_bus_id: str = ""
    reason: str
    xid: int | None
    time: datetime  # of the newest
    count: int
    message: str


def fresh_events(
    cursor: EventCursor, snapshot: Snapshot, booted: datetime = EPOCH
) -> tuple[EventCursor, tuple[ProbeEvent, ...]]:
    """Return the cursor for the next line, and the events that were in no earlier line, oldest first. A number that was
    seen, with a time that is later than all that were, is of a process that has the name of an earlier one, such as its
    process id in a container that was started again. Of another process, what names a PCI address and is no newer than
    what an earlier one said in this boot was read again. `booted`: when the machine was, by the clock of now."""
    same, same_boot = cursor.instance == snapshot.instance, cursor.boot_id == snapshot.boot_id
    seen, newest = (cursor.sequence, cursor.newest) if same else (-1, None)
    logged = cursor.logged if same_boot else None

    def is_new(event: ProbeEvent) -> bool:
        return event.sequence > seen or (newest is not None and event.time > newest)

    def is_read_again(event: ProbeEvent) -> bool:
        if same or logged is None or not event.pci_bus_id:
            return False
        return _logged(event, booted) <= logged + SAME_LINE_SECONDS

    came = sorted(filter(is_new, snapshot.events), key=lambda event: event.sequence)
    times = [event.time for event in came] + ([newest] if newest is not None else [])
    places = [_logged(event, booted) for event in came if event.pci_bus_id] + ([logged] if logged is not None else [])
    after = EventCursor(
        instance=snapshot.instance,
        sequence=came[-1].sequence if came else seen,
        newest=max(times, default=None),
        boot_id=snapshot.boot_id,
        logged=max(places, default=None),
    )
    return after, tuple(event for event in came if not is_read_again(event))


def _logged(event: ProbeEvent, booted: datetime) -> float:
    return (event.time - booted).total_seconds()


def occurred(event: ProbeEvent, now: datetime) -> datetime:
    """Return when a new event happened, by a probe's clock that may be set: not in the future, and a minute ago at
    most."""
    return max(min(event.time, now), now - OLDEST_NEWS)


def with_meanings(
    events: Iterable[ProbeEvent], inventory: Inventory, vendors: FaultSources
) -> Iterator[tuple[ProbeEvent, InventoryDevice, Meaning | None]]:
    """Yield the events that name a device or a partition, with the device and with what its vendor says of them."""
    devices = devices_by_id(inventory)
    for event in events:
        device = devices.get(event.device_id or "")
        if device is not None:
            yield event, device, meaning_of(source_of(vendors, device.fact), event)


def partitions_named(event: ProbeEvent, device: InventoryDevice) -> list[str]:
    """Return the partitions of the device that the event names, by id or by instance."""
    return [
        part.id
        for part in device.fact.partitions
        if part.id == event.device_id or (event.gi is not None and part.gi == event.gi and event.ci in {None, part.ci})
    ]


def effect(meaning: Meaning, rules: HealthRules) -> Effect:
    """Return an event's effect under these rules, those of its device (HealthRules.for_device). A repair is evidence,
    and no rule makes it a fault: one for Firmware* is about those that it ends."""
    if meaning.effect is Effect.REPAIRED:
        return meaning.effect
    rule = rules.rule(meaning.reason)
    return meaning.effect if rule is None else _EFFECTS[rule.state]


def _coded(code: int, vendor: FaultSource) -> Meaning:
    """Return the meaning of the event with this number; each has one (FaultSource.event)."""
    return vendor.event(CODED, code) or Meaning(reason=f"Code{code}", effect=Effect.COUNTED, message="", code=code)


def must_leave(fault: Fault, vendor: FaultSource) -> bool:
    """True when the device cannot recover before it has left and come back."""
    return fault.xid is not None and _coded(fault.xid, vendor).must_leave


def under_rules(fault: Fault, rules: HealthRules, vendor: FaultSource) -> Fault | None:
    """Return an earlier fault under the current rules: what they make of it, nothing of earlier ones. None: they no
    longer call its reading too high. One that is undecided stays so: the rules decide it when its window is over."""
    if fault.reason in SIGNAL_REASONS and fault.reason not in {signal_reason(rule.signal) for rule in rules.degraded}:
        return None
    if fault.reason == CORRELATING and fault.xid is not None:
        ignored = ruled(HealthState.DEGRADED, _coded(fault.xid, vendor).reason, rules) is HealthState.HEALTHY
        return replace(fault, state=HealthState.HEALTHY if ignored else HealthState.DEGRADED)
    if fault.reason in UNUSABLE:
        return fault
    return _ruled_fault(fault, rules)


def _ruled_fault(fault: Fault, rules: HealthRules) -> Fault:
    """Return a fault as the rules have it. Where only the policy makes it Unhealthy, its action is the one that ends
    that. Where a rule has counted it, it is the device's: what comes again and again on one device is no longer its
    program's."""
    usual, rule = fault.usual, rules.rule(fault.reason)
    state = ruled(usual.state, fault.reason, rules)
    by_policy = state is HealthState.UNHEALTHY and usual.repair and needs_no_action(usual.action)
    domain = usual.domain if rule is None or rule.after is None else "Device"
    return replace(fault, state=state, action=usual.repair if by_policy else usual.action, fault_domain=domain)


def ruled(usual: HealthState, reason: str, rules: HealthRules) -> HealthState:
    """Return the state that the rules give to a reason that usually means this one; HEALTHY: they ignore it."""
    rule = rules.rule(reason) if reason not in UNUSABLE else None
    return usual if rule is None else _STATES.get(_EFFECTS[rule.state], HealthState.HEALTHY)


def logged_events(
    events: Iterable[ProbeEvent], rules: HealthRules, owners: Mapping[str, DeviceFact], vendors: FaultSources
) -> tuple[LoggedEvent, ...]:
    """Return the events that change no state, and all for which the driver named no device; one entry per (device or
    PCI address, reason), oldest first. `owners`: the devices, by their ids and by those of their partitions."""
    found: dict[tuple[str, str], LoggedEvent] = {}
    for event in events:
        at_address = (fact for fact in owners.values() if event.pci_bus_id and fact.pci_bus_id == event.pci_bus_id)
        owner = owners.get(event.device_id or "") or next(at_address, None)
        candidates = vendors.values() if owner is None else (source_of(vendors, owner),)
        meaning = next((known for vendor in candidates if (known := meaning_of(vendor, event)) is not None), None)
        if meaning is None or (meaning.code is None and not event.pci_bus_id):
            continue
        kind = effect(meaning, rules.for_device(owner))
        if kind is Effect.COUNTED or (kind is not Effect.NOTICE and event.device_id is not None):
            continue
        key = (event.device_id or event.pci_bus_id, meaning.reason)
        before = found.get(key)
        if before is None and len(found) >= MAX_LOGGED:
            continue
        found[key] = LoggedEvent(
            device_id=event.device_id,
            pci_bus_id=event.pci_bus_id,
            reason=meaning.reason,
            xid=meaning.code,
            time=event.time if before is None else max(before.time, event.time),
            count=event.count + (before.count if before else 0),
            message=event_message(meaning, event) if before is None else before.message,
        )
    return tuple(found.values())


def event_message(meaning: Meaning, event: ProbeEvent) -> str:
    """Return what an event means, with its details, for people."""
    details = (value if name == "text" else f"{name} {value}" for name, value in event.details.items())
    return ", ".join((meaning.message, *details))


def note_events(
    faults: Mapping[str, Fault],
    events: Sequence[ProbeEvent],
    rules: HealthRules,
    vendor: FaultSource,
    *,
    now: datetime,
    boot_id: str,
    instance: str = "",
) -> dict[str, Fault]:
    """Return the faults of one device after these events, by reason. `instance`: the probe process that reports them,
    but for those that name a PCI address: they are another probe's.

    An event's time is the probe's: one from the future counts from now, one from long ago from a minute ago.
    """
    result = dict(faults)
    came = [event.xid for event in events if event.kind == CODED and event.xid is not None]
    for event in events:
        when = occurred(event, now)
        meaning = meaning_of(vendor, event)
        if meaning is None:
            continue
        kind = effect(meaning, rules)
        if kind is Effect.REPAIRED:
            result |= {reason: replace(result[reason], left=True) for reason in meaning.repairs & result.keys()}
        elif kind is Effect.UNDECIDED and not (meaning.driver_decides and meaning.reason in result):
            if CORRELATING not in result:
                fault = event_fault(meaning, HealthState.DEGRADED, HealthRules(), when, boot_id)
                fault = replace(fault, reason=CORRELATING, action=NO_ACTION)
                _remember(result, _reported_in(fault, instance, event.sequence))
        else:
            usual = _STATES.get(meaning.effect)
            if meaning.effect is Effect.UNDECIDED and meaning.code is not None:  # a rule has decided it
                usual = vendor.decide(meaning.code, came, None)
            if usual is None and kind not in _STATES:
                continue
            fault = event_fault(meaning, usual or HealthState.HEALTHY, rules, when, boot_id)
            elsewhere = bool(event.pci_bus_id)
            origin = ("", -1) if elsewhere else (instance, event.sequence)
            _remember(result, replace(_reported_in(fault, *origin), elsewhere=elsewhere))
    waiting = result.get(CORRELATING)
    if waiting is not None and came:
        codes = [xid for xid in dict.fromkeys((*waiting.neighbours, *came)) if xid != waiting.xid]
        newest = max(event.sequence for event in events if event.xid is not None)
        waiting = replace(waiting, neighbours=_bounded_neighbours(codes, rules, vendor))
        result[CORRELATING] = _reported_in(waiting, instance, newest)
    return _bounded(result)


def _bounded_neighbours(codes: Sequence[int], rules: HealthRules, vendor: FaultSource) -> tuple[int, ...]:
    """Return the first codes, those that decide something before others: a flood must not hide them."""

    def decides(code: int) -> bool:
        meaning = _coded(code, vendor)
        return meaning.decides_others or effect(meaning, rules) is Effect.UNDECIDED

    return tuple(sorted(codes, key=lambda code: not decides(code))[:MAX_NEIGHBOURS])


def withholds(fault: Fault, rules: HealthRules, vendor: FaultSource) -> bool:
    """True while a fault is undecided and may prove fatal: no new pod gets the device meanwhile."""
    if fault.reason != CORRELATING:
        return False
    codes = [_coded(code, vendor) for code in _seen_xids(fault)]
    bad = {Effect.UNDECIDED, Effect.UNHEALTHY}  # Unhealthy: a rule came meanwhile
    return any(meaning.may_be_unhealthy and effect(meaning, rules) in bad for meaning in codes)


def _seen_xids(waiting: Fault) -> tuple[int, ...]:
    return (*((waiting.xid,) if waiting.xid is not None else ()), *waiting.neighbours)


def decide_correlating(
    faults: Mapping[str, Fault], rules: HealthRules, vendor: FaultSource, *, now: datetime, driver_action: str | None
) -> dict[str, Fault]:
    """Decide an event whose meaning depends on its neighbours: at once when a worse fault explains it, or when the
    driver's answer is enough, else when its window is over. `driver_action`: the action that the driver itself
    requires; it may decide."""
    waiting = faults.get(CORRELATING)
    if waiting is None:
        return dict(faults)
    rest = {reason: fault for reason, fault in faults.items() if reason != CORRELATING}
    window = timedelta(seconds=CORRELATION_SECONDS)
    explained = any(
        fault.xid is not None
        and fault.state is HealthState.UNHEALTHY
        and fault.last_seen is not None
        and waiting.since - fault.last_seen <= window
        for fault in rest.values()
    )
    if explained:
        return rest
    codes = _seen_xids(waiting)
    undecided = (meaning for code in codes if (meaning := _coded(code, vendor)).effect is Effect.UNDECIDED)
    answered = driver_action is not None and all(meaning.driver_decides for meaning in undecided)
    if not answered and now - waiting.since < window:
        return dict(faults)
    for code in codes:
        meaning = _coded(code, vendor)
        usual = vendor.decide(code, codes, driver_action) if meaning.effect is Effect.UNDECIDED else None
        rule = rules.rule(meaning.reason)  # one that came meanwhile decides, but for what is a fault already
        if usual is None and (rule is None or rule.state == "Ignored" or meaning.reason in rest):
            continue
        decided = event_fault(meaning, usual or HealthState.HEALTHY, rules, waiting.since, waiting.boot_id)
        decided = _reported_in(decided, waiting.instance, waiting.sequence)
        _remember(rest, replace(decided, last_seen=waiting.last_seen))
    return _bounded(rest)


def event_fault(meaning: Meaning, usual: HealthState, rules: HealthRules, when: datetime, boot_id: str) -> Fault:
    """Return the fault that an event leaves, which without rules is in that state."""
    fault = Fault(
        reason=meaning.reason,
        state=usual,
        message=meaning.message,
        action=meaning.action,
        fault_domain=meaning.domain,
        usual=Usual(state=usual, action=meaning.action, domain=meaning.domain, repair=meaning.repair),
        since=when,
        last_seen=when,
        boot_id=boot_id,
        xid=meaning.code,
    )
    return _ruled_fault(fault, rules)


def _reported_in(fault: Fault, instance: str, sequence: int) -> Fault:
    return replace(fault, instance=instance, sequence=sequence)


def _remember(faults: dict[str, Fault], news: Fault) -> None:
    """Add a fault. A repeat makes its evidence newer and voids repairs before it; nothing else changes. It keeps the
    number of the event that began the fault, so that a storm of one XID does not change the status at each line."""
    known = faults.get(news.reason)
    if known is None:
        faults[news.reason] = news
    elif known.last_seen is None or (news.last_seen is not None and news.last_seen > known.last_seen):
        faults[news.reason] = _reported_in(replace(news, since=known.since), known.instance, known.sequence)


def _bounded(faults: Mapping[str, Fault]) -> dict[str, Fault]:
    """Keep the worst faults; an undecided one is always among them, else it would never be decided."""
    if len(faults) <= MAX_FAULTS:
        return dict(faults)

    def rank(fault: Fault) -> tuple[object, ...]:
        return fault.reason == CORRELATING, fault.state is not HealthState.HEALTHY, severity(fault)

    return {fault.reason: fault for fault in sorted(faults.values(), key=rank, reverse=True)[:MAX_FAULTS]}


def severity(fault: Fault) -> tuple[bool, int, bool, str]:
    """Sort key; the worse fault is greater: by state, then recovery action, then the one with an XID."""
    return (fault.state is HealthState.UNHEALTHY, action_rank(fault.action), fault.xid is not None, fault.reason)
