"""The state machine of health: from previous verdicts, the inventory and new events to a verdict for every device.

A device's faults come from events (edges) and from readings (levels), both as its vendor classifies them
(vendors.faults), and from readings that the policy calls too high (signals). Each fault is kept until there is evidence
that it is over, so none is lost behind a worse one. The verdict shows the worst fault: Unhealthy before Unknown before
Degraded; within a state Missing first, then the fault that requires the most (actions), then one with a number. An
event that is undecided and may prove fatal is shown before all Degraded faults, and no new pod gets the device
meanwhile.

A device recovers on evidence only: the last line is good and lists the device, the fault is no longer evident, the
hold-down since the newest fault is over, and the action that it required is done. Evidence for the action is the
driver's report (the reading recoveryAction), where there is one and it was read after the event (that it requires
nothing is no evidence about what another probe reported, such as the kernel's log); a device that fell off the bus must
besides have left and come back. Without such a report the evidence is a new boot, or that the device or its driver left
and came back, or its driver says that it has repaired the device. A person's confirmation replaces the evidence for the
action and the hold-down, but never counts against a fault that is still evident (a remap failure, a driver that
requires an action). Flapping therefore costs one change, not many.

Faults have times of the wall clock, so that they can be saved. During a run the monotonic clock counts: when the wall
clock is set, `clock_set` moves every time that something waits for (pipeline).

While the probe is silent, or before its first line, verdicts stay: nothing recovers and nothing is forgotten. When a
probe sees none of its devices (`blind`), each of them is Unknown and keeps its faults; a device that it then lists
again was never missing, and needs no hold-down for that.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

from msgspec import Struct
from msgspec.structs import replace
from nodedevices_api.conditions import MISSING
from nodedevices_common.text import clip, some
from nodedevices_probe.protocol import DriverState, ProbeEvent

from nodedevices_plugin.health import events, levels
from nodedevices_plugin.health.rules import (
    CORRELATION_SECONDS,
    NO_ACTION,
    PROVEN_BY_RETURN,
    SILENCE_SECONDS,
    WITHDRAW_SECONDS,
    HealthRules,
    action_rank,
    advice,
    needs_no_action,
)
from nodedevices_plugin.model import (
    Fault,
    HealthState,
    Inventory,
    InventoryDevice,
    Usual,
    Verdict,
    facts_by_id,
    with_each_fault,
)
from nodedevices_plugin.vendors.faults import FaultCondition, FaultSource, FaultSources, source_of

PROBE_SILENT = "ProbeSilent"
DRIVER_NOT_LOADED = "DriverNotLoaded"
VERSION_MISMATCH = "VersionMismatch"
STARTING = "Starting"

_UNUSABLE_DRIVERS = {
    DriverState.NOT_LOADED: (DRIVER_NOT_LOADED, "the driver is not loaded; its devices return when it is loaded"),
    DriverState.UNKNOWN: (DRIVER_NOT_LOADED, "the driver cannot be queried; its devices return when it answers"),
    DriverState.VERSION_MISMATCH: (
        VERSION_MISMATCH,
        "driver and library versions differ; finish the driver upgrade: reload the driver or reboot the node",
    ),
}
_MESSAGE_LIMIT = 512  # bound of health.message in the contract
_ALSO_SHOWN = 3


class _View(Struct, frozen=True, kw_only=True):
    """The inputs of one judgement that are the same for every device."""

    inventory: Inventory
    rules: HealthRules
    now: datetime
    monotonic: float
    vendors: FaultSources
    unknown: tuple[str, str, bool] | None  # reason, message, still offered; None: the last good line counts still
    shown: levels.Lasting
    counts: levels.Counts
    in_use: Callable[[str], bool]
    blind: bool


class _Subject(Struct, frozen=True, kw_only=True):
    """The device that is judged, with the conditions that its readings show. `says`: the action that its driver
    requires (levels.driver_says), None also where the last good line counts no more."""

    view: _View
    device: InventoryDevice
    vendor: FaultSource
    rules: HealthRules  # for this device
    conditions: Mapping[str, FaultCondition]  # by reason
    says: str | None


def judge_all(
    previous: Mapping[str, Verdict],
    inventory: Inventory,
    new_events: Sequence[ProbeEvent],
    rules: HealthRules,
    vendors: FaultSources,
    *,
    now: datetime,
    monotonic: float,
    confirmed: frozenset[str],
    shown: levels.Lasting,
    counts: levels.Counts,
    in_use: Callable[[str], bool],
    blind: bool,
) -> dict[str, Verdict]:
    """Return a verdict for every device of the inventory, and for each partition that has faults of its own.

    `new_events`: those that were not judged before (events.fresh_events), oldest first. `now`: the agent's wall clock,
    which verdicts carry; `monotonic`: seconds of time.monotonic(), by which silence is measured. `confirmed`: ids of
    devices that a person confirmed as recovered. `shown`: conditions that have to last, since when (levels.follow).
    `counts`: what counters have risen by (levels.follow_counters).
    `in_use`: whether a device is in a resource; only called where that matters (FaultCondition.unused). `blind`: the
    probe sees none of the devices that it had (pipeline.lost).

    Judging again with no news changes nothing, with one exception: a fault whose hold-down was over when it came is
    reported once, and is over at the next judgement.
    """
    every = _View(
        inventory=inventory,
        rules=rules,
        now=now,
        monotonic=monotonic,
        vendors=vendors,
        unknown=_unknown(inventory, monotonic),
        shown=shown,
        counts=counts,
        in_use=in_use,
        blind=blind,
    )
    routed = _routed(every, new_events)
    verdicts: dict[str, Verdict] = {}
    for device in inventory.devices:
        own, subject = device.fact.id, _subject(device, every)
        verdicts[own] = _judge(previous.get(own), subject, routed[own], confirmed=own in confirmed)
        for part in device.fact.partitions:
            if part.id in previous or part.id in routed:
                verdict = _judge(
                    previous.get(part.id),
                    subject,
                    routed[part.id],
                    confirmed=part.id in confirmed,
                    has_levels=False,
                )
                if verdict.faults or verdict.ignored:
                    verdicts[part.id] = verdict
    return verdicts


def next_deadline(
    verdicts: Mapping[str, Verdict],
    inventory: Inventory,
    rules: HealthRules,
    *,
    now: datetime,
    monotonic: float,
    shown: levels.Lasting,
) -> float | None:
    """Return when (time.monotonic()) judging again may change a verdict without a new line; None: only a line may."""
    deadlines = [since + condition.for_seconds for condition, since in shown.items()]
    if inventory.line_monotonic is not None:
        deadlines += [inventory.line_monotonic + SILENCE_SECONDS, inventory.line_monotonic + WITHDRAW_SECONDS]
    owners = facts_by_id(inventory)
    for key, verdict in verdicts.items():
        if not verdict.faults or key not in owners:  # another probe's, which has its own deadline
            continue
        own = rules.for_device(owners[key])
        for fault in verdict.faults:
            if fault.reason == events.CORRELATING:
                wait = CORRELATION_SECONDS - (now - fault.since).total_seconds()
                deadlines.append(monotonic + wait)
            held_until = _held_until(fault, verdict.faults, own)
            if held_until is not None:
                deadlines.append(monotonic + (held_until - now).total_seconds())
    return min((deadline for deadline in deadlines if deadline > monotonic), default=None)


def clock_set(verdicts: Mapping[str, Verdict], by: timedelta) -> dict[str, Verdict]:
    """Return the verdicts after the wall clock was set: each wait lasts as long as it would have. The times that are
    shown (`Verdict.since`) stay as they were reported."""
    moved = partial(_with_times, changed=lambda when: when + by)
    return {key: with_each_fault(verdict, moved) for key, verdict in verdicts.items()}


def _with_times(fault: Fault, changed: Callable[[datetime], datetime]) -> Fault:
    last_seen = None if fault.last_seen is None else changed(fault.last_seen)
    return dataclasses.replace(fault, since=changed(fault.since), last_seen=last_seen)


def _unknown(inventory: Inventory, monotonic: float) -> tuple[str, str, bool] | None:
    """Return why the state of these devices is not known: reason, message, and whether they are still offered."""
    driver, line = inventory.driver, inventory.line_monotonic
    if driver is None or line is None:
        return STARTING, "the probe has not reported yet", False
    if driver.state in _UNUSABLE_DRIVERS:
        return *_UNUSABLE_DRIVERS[driver.state], False
    if (silent := monotonic - line) >= SILENCE_SECONDS:
        offered = silent < WITHDRAW_SECONDS
        return PROBE_SILENT, f"the probe has not reported for {SILENCE_SECONDS:.0f} s or more", offered
    return None


def _subject(device: InventoryDevice, view: _View) -> _Subject:
    vendor, rules = source_of(view.vendors, device.fact), view.rules.for_device(device.fact)
    read = levels.of_readings(device, vendor, rules)
    own = (
        *levels.settled(read, device.fact.id, view.shown, monotonic=view.monotonic),
        *levels.counter_conditions(device, vendor, view.counts, monotonic=view.monotonic),
    )
    conditions = levels.levels(device, own, blind=view.blind)
    return _Subject(
        view=view,
        device=device,
        vendor=vendor,
        rules=rules,
        conditions={condition.reason: _as_used(condition, device, view) for condition in conditions},
        says=levels.driver_says(device) if view.unknown is None else None,
    )


def _as_used(condition: FaultCondition, device: InventoryDevice, view: _View) -> FaultCondition:
    if condition.unused is None or not condition.evident or view.in_use(device.fact.id):
        return condition
    return replace(condition, state=condition.unused)


def _routed(view: _View, new_events: Sequence[ProbeEvent]) -> dict[str, list[ProbeEvent]]:
    """Return the events by device: by the physical one, except an error that a MIG instance contained."""
    found: dict[str, list[ProbeEvent]] = defaultdict(list)
    for event, device, meaning in events.with_meanings(new_events, view.inventory, view.vendors):
        named = events.partitions_named(event, device) if meaning is not None and meaning.contained else []
        for key in named or [device.fact.id]:
            found[key].append(event)
    return found


def _judge(
    previous: Verdict | None,
    subject: _Subject,
    new_events: Sequence[ProbeEvent],
    *,
    confirmed: bool,
    has_levels: bool = True,
) -> Verdict:
    """Return the verdict on one device. In this order: new events, levels, repairs, recovery, the worst remaining
    fault.

    `has_levels`: False for a partition: the readings are the physical device's, it has only its own events.
    """
    view, vendor, rules = subject.view, subject.vendor, subject.rules
    inventory = view.inventory
    if previous is not None and confirmed:
        previous = with_each_fault(previous, lambda fault: dataclasses.replace(fault, confirmed=True))
    if previous is not None and inventory.line_monotonic is None:
        return previous
    faults = {
        fault.reason: _with_times(fault, lambda when: min(when, view.now))  # none in the future: a clock was set back
        for known in ((*previous.faults, *previous.ignored) if previous else ())
        if (fault := events.under_rules(known, rules, vendor)) is not None
    }
    before = faults
    faults = events.note_events(
        faults, new_events, rules, vendor, now=view.now, boot_id=inventory.boot_id, instance=inventory.instance
    )
    waiting = faults.get(events.CORRELATING)
    action = _driver_action(waiting, subject) if waiting is not None else None
    faults = events.decide_correlating(faults, rules, vendor, now=view.now, driver_action=action)
    news = {reason for reason, fault in faults.items() if before.get(reason) != fault}
    if view.unknown is None:
        for level in subject.conditions.values() if has_levels else ():
            _apply_level(faults, level, subject)
        faults = {reason: _settled(_gone_before(fault, subject), subject) for reason, fault in faults.items()}
        everything = tuple(faults.values())
        faults = {
            reason: fault
            for reason, fault in faults.items()
            if reason in news  # reported at least once, even where its hold-down is over already
            or reason == events.CORRELATING
            or not (_quiet(fault, everything, subject) and _action_gone(fault, subject))
        }
    elif inventory.driver is not None and inventory.driver.state is DriverState.NOT_LOADED:
        faults = {reason: dataclasses.replace(fault, driver_reloaded=True) for reason, fault in faults.items()}
    return _verdict(previous, tuple(faults.values()), subject)


def _apply_level(faults: dict[str, Fault], level: FaultCondition, subject: _Subject) -> None:
    known = faults.get(level.reason)
    boot_id, now = subject.view.inventory.boot_id, subject.view.now
    if level.opt_in and not subject.rules.names(level.reason):
        faults.pop(level.reason, None)
        return
    if known is not None and level.state is HealthState.UNKNOWN and known.state is not HealthState.UNKNOWN:
        # It was missing while other devices were seen, and it still is.
        level = replace(level, state=known.state, message=known.message, action=known.action)
    if level.evident:
        state = events.ruled(level.state, level.reason, subject.rules)
        domain = "Node" if state is HealthState.UNKNOWN else "Device"
        usual = Usual(state=level.state, action=level.action, domain=domain)
        if known is not None and _reported(known, level, state):
            faults[level.reason] = dataclasses.replace(known, boot_id=boot_id, confirmed=False, usual=usual)
        else:
            faults[level.reason] = Fault(
                reason=level.reason,
                state=state,
                message=level.message,
                action=level.action,
                fault_domain=domain,
                usual=usual,
                since=known.since if known and HealthState.UNKNOWN not in {known.state, state} else now,
                last_seen=None,
                boot_id=boot_id,
            )
    elif known is not None and known.state is HealthState.UNKNOWN:
        del faults[level.reason]  # its probe was blind, and sees it again
    elif known is not None and known.last_seen is None and (level.evident is False or _outdated(known, boot_id)):
        faults[level.reason] = dataclasses.replace(known, last_seen=now)


def _reported(known: Fault, level: FaultCondition, state: HealthState) -> bool:
    """True when this fault says already what the reading shows. A text with numbers is news when they change, as a
    signal's has those of the policy."""
    same_text = level.reason not in levels.NUMBERED or known.message == level.message
    return same_text and (known.last_seen, known.action, known.state) == (None, level.action, state)


def _outdated(fault: Fault, boot_id: str) -> bool:
    """True when a fault whose reading cannot be read now is to end. A device that must be replaced stays so after a
    boot (NVML does not answer for row remapping while MIG devices exist)."""
    restarted = fault.boot_id != boot_id or fault.driver_reloaded
    return fault.confirmed or (restarted and fault.action != "Replace")


def _gone_before(fault: Fault, subject: _Subject) -> Fault:
    """Mark a fault that the device has left the bus since (`left`): while it is lost or not listed, all its other
    faults. Also while the driver requires an action: it knows of the fault, and when it stops, the device was brought
    back."""
    if fault.left or not _read_since(fault, subject.view.inventory):
        return fault
    away = not subject.device.present or subject.device.fact.readings.lost
    its_own_absence = fault.reason in {MISSING, levels.FALLEN_OFF_BUS}
    action_required = subject.says not in {None, NO_ACTION}
    return dataclasses.replace(fault, left=True) if action_required or (away and not its_own_absence) else fault


def _read_since(fault: Fault, inventory: Inventory) -> bool:
    """True when the devices were read after this fault's event. An event number above the newest one is from before
    this process of the probe restarted its count."""
    return fault.instance != inventory.instance or not inventory.read_after < fault.sequence <= inventory.newest_event


def _driver_action(fault: Fault, subject: _Subject) -> str | None:
    """Return the action that the driver reports for this fault; None: it reports none, or "None" from before it, or
    about what it may not know of."""
    if subject.says == NO_ACTION and (fault.elsewhere or not _read_since(fault, subject.view.inventory)):
        return None
    return subject.says


def _settled(fault: Fault, subject: _Subject) -> Fault:
    """Start the hold-down of an edge without a time (from the state file) at the first good line."""
    edge = fault.last_seen is None and fault.reason not in subject.conditions
    return dataclasses.replace(fault, last_seen=subject.view.now) if edge else fault


def _held_until(fault: Fault, everything: Sequence[Fault], rules: HealthRules) -> datetime | None:
    """Return when the hold-downs of this fault and of all as bad ones end. None: one of them is still evident."""
    as_bad = [known for known in everything if known.state is HealthState.UNHEALTHY or known.state is fault.state]
    ends = [
        known.last_seen + timedelta(seconds=rules.hold_down(known.reason))
        for known in as_bad
        if known.last_seen is not None
    ]
    return max(ends) if len(ends) == len(as_bad) else None


def _quiet(fault: Fault, everything: Sequence[Fault], subject: _Subject) -> bool:
    """True when no fault as bad is evident, and the hold-down is over or a person confirmed the repair."""
    held_until = _held_until(fault, everything, subject.rules)
    return held_until is not None and (fault.confirmed or subject.view.now >= held_until)


def _action_gone(fault: Fault, subject: _Subject) -> bool:
    """True when the action that a fault required was done, or is no longer required."""
    if fault.confirmed:
        return True
    boot_id = subject.view.inventory.boot_id
    rebooted = bool(fault.boot_id and boot_id and fault.boot_id != boot_id)
    action = _driver_action(fault, subject)
    if action is not None:
        gone = events.must_leave(fault, subject.vendor)
        return action == NO_ACTION and (not gone or fault.left or rebooted)
    condition = subject.conditions.get(fault.reason)
    by_itself = condition is not None and condition.ends_by_itself
    if needs_no_action(fault.action) or by_itself or rebooted:
        return True
    return fault.action in PROVEN_BY_RETURN and (fault.left or fault.driver_reloaded)


def _required_action(fault: Fault, subject: _Subject) -> str:
    """Return the action to show for a fault: the driver's before the catalogue's, None once it was done."""
    if fault.last_seen is None:
        return fault.action
    if subject.says not in {None, NO_ACTION}:
        return str(subject.says)
    return NO_ACTION if _action_gone(fault, subject) else fault.action


def _verdict(previous: Verdict | None, faults: tuple[Fault, ...], subject: _Subject) -> Verdict:
    view = subject.view
    waits = {fault.reason for fault in faults if events.withholds(fault, subject.rules, subject.vendor)}
    shown = (fault for fault in faults if fault.state is not HealthState.HEALTHY)
    ignored = tuple(fault for fault in faults if fault.state is HealthState.HEALTHY)
    ordered = tuple(sorted(shown, key=lambda fault: _display_order(fault, waits), reverse=True))
    withheld = bool(waits)
    worst = ordered[0] if ordered else None
    if worst is not None and worst.state is not HealthState.UNHEALTHY and view.unknown is not None:
        worst = None
    if worst is not None:
        as_bad = [fault for fault in ordered if fault.state is worst.state]
        action = max((_required_action(fault, subject) for fault in as_bad), key=action_rank)
        verdict = Verdict(
            state=worst.state,
            reason=worst.reason,
            message=_message(worst, as_bad, action, subject, withheld=worst.reason in waits),
            since=view.now,
            offered=worst.state is HealthState.DEGRADED and not withheld,
            xid=worst.xid,
            recovery_action=action,
            fault_domain=worst.fault_domain,
            faults=ordered,
        )
    elif view.unknown is not None:
        reason, message, offered = view.unknown
        verdict = Verdict(
            state=HealthState.UNKNOWN,
            reason=reason,
            message=message,
            since=view.now,
            offered=offered and not withheld,
            fault_domain="Node",
            faults=ordered,
        )
    else:
        verdict = Verdict(state=HealthState.HEALTHY, reason="", message="", since=view.now, offered=True)
    verdict = dataclasses.replace(verdict, ignored=ignored)
    if previous is not None and (previous.state, previous.reason) == (verdict.state, verdict.reason):
        return dataclasses.replace(verdict, since=previous.since)
    return verdict


def _display_order(fault: Fault, waits: Collection[str]) -> tuple[bool, bool, bool, bool, tuple[bool, int, bool, str]]:
    unhealthy = fault.state is HealthState.UNHEALTHY
    missing = fault.reason == MISSING and fault.last_seen is None and unhealthy
    unknown = fault.state is HealthState.UNKNOWN
    return (missing, unhealthy, unknown, fault.reason in waits, events.severity(fault))


def _message(worst: Fault, as_bad: Sequence[Fault], action: str, subject: _Subject, *, withheld: bool) -> str:
    """Return what happened and what to do, for people. No countdown, so that it stays the same while nothing
    changes."""
    if worst.reason == events.CORRELATING:
        until = f"decided within {CORRELATION_SECONDS:.0f} s by the XIDs that follow it"
        parts = [worst.message, f"{until}, not offered to new pods until then" if withheld else until]
    elif action == NO_ACTION and worst.last_seen is not None:
        what = f"recovering from {worst.reason}" if worst.reason in subject.conditions else _what(worst, subject.rules)
        now = "the driver no longer requires an action" if subject.says == NO_ACTION else "no action is needed any more"
        parts = [what, f"{now}, Healthy {_hold_down_text(worst, as_bad, subject.rules)}"]
    else:
        parts = [_what(worst, subject.rules), advice(action)]
    also = [fault.reason for fault in as_bad if fault is not worst]
    if also:
        parts.append("also " + ", ".join(also))
    return clip("; ".join(part for part in parts if part), _MESSAGE_LIMIT)


def _what(fault: Fault, rules: HealthRules) -> str:
    """Return what happened; where a rule that counts has decided the state, with its count and window, which stay the
    same while more events come."""
    rule = rules.rule(fault.reason)
    if rule is None or rule.after is None or fault.reason in levels.UNUSABLE or fault.state.value != rule.state:
        return fault.message
    together = "," if rule.reasons == (fault.reason,) else f"; {some(rule.reasons, _ALSO_SHOWN)}:"
    often = f"{rule.after.count} times or more within {rule.after.window_seconds} s (health.rules)"
    return f"{fault.message}{together} {often}"


def _hold_down_text(worst: Fault, as_bad: Sequence[Fault], rules: HealthRules) -> str:
    """Return when the hold-down is over, rounded up to a minute: a fault each second changes the text once a minute."""
    text = f"after {max(rules.hold_down(fault.reason) for fault in as_bad):.0f} s without a fault"
    held_until = _held_until(worst, as_bad, rules)
    if held_until is None:
        return text
    until = held_until.astimezone(UTC)
    minute = until.replace(second=0, microsecond=0)
    return f"{text}, by {minute if minute == until else minute + timedelta(minutes=1):%Y-%m-%dT%H:%M:%SZ}"
