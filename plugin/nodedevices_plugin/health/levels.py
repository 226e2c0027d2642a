"""Levels: the conditions that a device's readings show, line by line. Edges are in `events`.

Six conditions exist for every device: not listed, lost, does not answer, its driver requires an action, a PCIe link
with fewer lanes or slower than both ends can do. The others are its vendor's (ECC, row remapping, a link), those of its
counters, and the policy's (`too_high`). A condition is evident, over, or unreadable (the device or driver does not
report it, or it has not lasted long enough); unreadable never ends a fault. When a device is lost or does not answer,
its other conditions are unreadable. When a probe sees no device at all, those that it had are Unknown, not faulty.

One line does not decide every condition: some are a fault only once they have lasted (FaultCondition.for_seconds), and
counters may rise too fast (FaultSource.counter_limits).

`follow` keeps since when each line has shown such a condition. The count starts again after a line that does not show
it or cannot say, after a probe's silence, and after a restart of the agent. A device that already has the fault keeps
it meanwhile: a condition that has not lasted long enough neither begins a fault nor ends one.

`follow_counters` keeps of each counter its value, and by how much it has risen within the window, in at most PARTS + 1
parts; of one that stands still nothing more than its value. It begins anew with the first line, after a probe's
silence, after lines that did not have the counter, and after a restart of the agent: what a counter rose by meanwhile
may have come slowly, so none of it counts. A counter that is lower than before was set back, by a person or by a driver
that was loaded again: what came before is over. A counter's condition is evident while it has risen by more than the
limit within the window. It is over when it has not, and unreadable until a whole window is known: a fault lasts through
a restart of the agent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import NamedTuple, get_args

from msgspec import Struct
from msgspec.structs import replace
from nodedevices_api.base import wire_name
from nodedevices_api.conditions import MISSING
from nodedevices_api.sections import DegradedRule, Signal
from nodedevices_probe.protocol import DriverState, Readings

from nodedevices_plugin.health.rules import NO_ACTION, SILENCE_SECONDS, HealthRules
from nodedevices_plugin.model import HealthState, Inventory, InventoryDevice
from nodedevices_plugin.vendors.faults import CounterLimit, FaultCondition, FaultSource, FaultSources, source_of

FALLEN_OFF_BUS = "FallenOffBus"
PROBE_ERROR = "ProbeError"
RECOVERY_ACTION = "RecoveryAction"
PCIE_LINK_NARROW = "PcieLinkNarrow"
PCIE_LINK_SLOW = "PcieLinkSlow"
PCIE_SECONDS = 60  # a link trains anew within seconds: after a reset, or when a device changes its power state

_ERROR_SHOWN = 200
UNSEEN = (
    "its probe sees none of its earlier devices (the condition Ready says why), so this device's state is unknown: "
    "its pods are not marked or evicted, and no taint is set"
)

# Of any device, of any maker.
REASONS = (MISSING, FALLEN_OFF_BUS, PROBE_ERROR, RECOVERY_ACTION, PCIE_LINK_NARROW, PCIE_LINK_SLOW)

_FIELDS = {wire_name(field.name): field.name for field in fields(Readings)}


def signal_reason(signal: str) -> str:
    """The health reason of a reading that is too high: the signal with a capital, such as `TemperatureCelsius`."""
    return signal[:1].upper() + signal[1:]


SIGNAL_REASONS = tuple(signal_reason(signal) for signal in get_args(Signal))

# Their messages have numbers that may change while the condition lasts.
NUMBERED = frozenset((*SIGNAL_REASONS, PCIE_LINK_NARROW, PCIE_LINK_SLOW))

# The device is not there, or accepts no work: no rule can make it usable.
UNUSABLE = frozenset({MISSING, FALLEN_OFF_BUS, PROBE_ERROR})

_CALLED = frozenset({"gpu", "nic", "fpga", "vf", "dpu"})  # types that are written in capitals


def of_readings(device: InventoryDevice, vendor: FaultSource, rules: HealthRules) -> tuple[FaultCondition, ...]:
    """Return the conditions that a device's readings show line by line, whether or not they have lasted: those of its
    PCIe link, its vendor's and the policy's. Of a reason there may be several."""
    readings = device.fact.readings
    own = (*vendor.read(readings), *pcie_link(readings), *(too_high(readings, rule) for rule in rules.degraded))
    return own if _answers(device) else tuple(replace(condition, evident=None) for condition in own)


def levels(
    device: InventoryDevice, own: Sequence[FaultCondition], *, blind: bool = False
) -> tuple[FaultCondition, ...]:
    """Return every condition of a device, evident or not. `own`: those of its readings and counters (of_readings,
    rates), one a reason. `blind`: the last good line listed none of the probe's devices."""
    fact, present = device.fact, device.present
    readings = fact.readings
    driver_action = driver_says(device)
    what = fact.type.upper() if fact.type in _CALLED else "device"
    return (
        FaultCondition(
            reason=MISSING,
            state=HealthState.UNKNOWN if blind else HealthState.UNHEALTHY,
            message=UNSEEN if blind else "the device is no longer listed by its driver",
            action=NO_ACTION if blind else "Inspect",
            evident=not present,
            ends_by_itself=True,
        ),
        FaultCondition(
            reason=FALLEN_OFF_BUS,
            state=HealthState.UNHEALTHY,
            message=f"{what} has fallen off the bus",
            action="RebootNode",
            evident=readings.lost if present else None,
        ),
        FaultCondition(
            reason=PROBE_ERROR,
            state=HealthState.UNHEALTHY,
            message=f"the device does not answer: {(readings.error or '')[:_ERROR_SHOWN]}",
            action="Inspect",
            evident=readings.error is not None if present else None,
            ends_by_itself=True,
        ),
        FaultCondition(
            reason=RECOVERY_ACTION,
            state=HealthState.UNHEALTHY,
            message=f"the driver requires an action on this {what}",
            action=driver_action or NO_ACTION,
            evident=None if driver_action is None else driver_action != NO_ACTION,
        ),
        *own,
    )


def _answers(device: InventoryDevice) -> bool:
    readings = device.fact.readings
    return device.present and not readings.lost and readings.error is None


def pcie_link(readings: Readings) -> tuple[FaultCondition, ...]:
    """The generation is lowered while many a device is idle, so that it counts only where a rule says so; the number of
    lanes is not."""
    width, lanes = readings.pcie_width, readings.pcie_width_possible
    generation, highest = readings.pcie_generation, readings.pcie_generation_possible
    return (
        FaultCondition(
            reason=PCIE_LINK_NARROW,
            state=HealthState.DEGRADED,
            message=f"its PCIe link has {width} of the {lanes} lanes that both ends support",
            action="Inspect",
            evident=None if width is None or lanes is None else width < lanes,
            ends_by_itself=True,
            for_seconds=PCIE_SECONDS,
        ),
        FaultCondition(
            reason=PCIE_LINK_SLOW,
            state=HealthState.DEGRADED,
            message=f"its PCIe link runs at generation {generation}, but both ends support generation {highest}",
            action="Inspect",
            evident=None if generation is None or highest is None else generation < highest,
            ends_by_itself=True,
            for_seconds=PCIE_SECONDS,
            opt_in=True,
        ),
    )


def driver_says(device: InventoryDevice) -> str | None:
    """Return the recovery action that the driver of a device requires; None: the device does not answer, or the driver
    does not report one."""
    return device.fact.readings.recovery_action if _answers(device) else None


# --- readings that a policy calls too high (`health.degraded`): each makes its device Degraded while it lasts --------
def too_high(readings: Readings, rule: DegradedRule) -> FaultCondition:
    """Return the condition for a threshold of the policy, evident or not."""
    lasting = f" for {rule.for_seconds} s" if rule.for_seconds else ""
    value: int | None = getattr(readings, _FIELDS[rule.signal])
    return FaultCondition(
        reason=signal_reason(rule.signal),
        state=HealthState.DEGRADED,
        message=f"{rule.signal} has been {rule.threshold} or more{lasting} (health.degraded)",
        evident=None if value is None else value >= rule.threshold,
        ends_by_itself=True,
        for_seconds=rule.for_seconds,
        threshold=rule.threshold,
    )


# --- conditions that have to last ------------------------------------------------------------------------------------
class LastingCondition(NamedTuple):
    """A condition that a device shows now."""

    device_id: str
    reason: str
    threshold: int
    for_seconds: float


Lasting = Mapping[LastingCondition, float]  # since when, by time.monotonic()


def follow(
    before: Lasting, inventory: Inventory, rules: HealthRules, vendors: FaultSources, *, monotonic: float
) -> dict[LastingCondition, float]:
    """Return the conditions that have to last and that these devices show now, with the time since when."""
    came = _counts_from(inventory, monotonic)
    if came is None:
        return {}
    keys = (
        _key(device.fact.id, condition)
        for device in inventory.devices
        for condition in of_readings(device, source_of(vendors, device.fact), rules)
        if condition.evident and condition.for_seconds
    )
    return {key: before.get(key, came) for key in keys}


def _counts_from(inventory: Inventory, monotonic: float) -> float | None:
    """Return when the line in effect came; None: there is none, its driver is not loaded, or it is too old."""
    driver, came = inventory.driver, inventory.line_monotonic
    if driver is None or driver.state is not DriverState.LOADED or came is None:
        return None
    return came if monotonic - came < SILENCE_SECONDS else None


def settled(
    conditions: Iterable[FaultCondition], device_id: str, lasting: Lasting, *, monotonic: float
) -> tuple[FaultCondition, ...]:
    """Return one condition for each reason: of several, the first that is evident, else the first that is not over.
    One that has not lasted long enough is not readable yet."""
    return _one_a_reason(_as_lasted(condition, device_id, lasting, monotonic) for condition in conditions)


def _as_lasted(condition: FaultCondition, device_id: str, lasting: Lasting, monotonic: float) -> FaultCondition:
    if condition.evident and condition.for_seconds:
        since = lasting.get(_key(device_id, condition))
        if since is None or monotonic - since < condition.for_seconds:
            return replace(condition, evident=None)
    return condition


def _one_a_reason(conditions: Iterable[FaultCondition]) -> tuple[FaultCondition, ...]:
    """Return of each reason the first condition that is evident, else the first that is not over."""
    certainty = (False, None, True).index
    found: dict[str, FaultCondition] = {}
    for condition in conditions:
        known = found.get(condition.reason)
        if known is None or certainty(condition.evident) > certainty(known.evident):
            found[condition.reason] = condition
    return tuple(found.values())


def _key(device_id: str, condition: FaultCondition) -> LastingCondition:
    return LastingCondition(device_id, condition.reason, condition.threshold, condition.for_seconds)


# --- counters that rise too fast -------------------------------------------------------------------------------------
PARTS = 12  # of a window: a rise counts for up to a twelfth of it less than the whole
CounterKey = tuple[str, str, str]  # device, reason, counter


class Count(Struct, frozen=True, kw_only=True):
    """Times are those of time.monotonic()."""

    value: int
    known_from: float  # all that it has risen by since then is known
    risen: tuple[tuple[float, int], ...] = ()  # since when, by how much; oldest first
    over_since: float | None = None  # since when it has been over the limit


Counts = Mapping[CounterKey, Count]


def follow_counters(
    before: Counts, inventory: Inventory, vendors: FaultSources, *, monotonic: float
) -> dict[CounterKey, Count]:
    """Return the counters of these devices after the line in effect."""
    came = _counts_from(inventory, monotonic)
    if came is None:
        return {}
    found = {}
    for device in inventory.devices:
        readings = device.fact.readings
        if not readings.counters or not _answers(device):
            continue
        for limit in source_of(vendors, device.fact).counter_limits:
            if (value := readings.counters.get(limit.counter)) is not None:
                key = device.fact.id, limit.reason, limit.counter
                found[key] = _count(before.get(key), value, limit, came)
    return found


def counter_conditions(
    device: InventoryDevice, vendor: FaultSource, counts: Counts, *, monotonic: float
) -> tuple[FaultCondition, ...]:
    """Return a condition for each reason of the vendor's limits, evident or not."""
    limits = [(limit, counts.get((device.fact.id, limit.reason, limit.counter))) for limit in vendor.counter_limits]
    counted = {limit.reason for limit, count in limits if count is not None}
    return _one_a_reason(
        FaultCondition(
            reason=limit.reason,
            state=limit.state,
            message=limit.message,
            evident=None if count is None else _is_too_fast(count, limit, monotonic),
            action=limit.action,
            ends_by_itself=True,
            unused=limit.unused,
        )
        for limit, count in limits
        if count is not None or limit.reason not in counted  # one that is absent says nothing beside others
    )


def _count(before: Count | None, value: int, limit: CounterLimit, came: float) -> Count:
    if before is None:
        return Count(value=value, known_from=came)
    if value < before.value:
        return Count(value=value, known_from=-math.inf)
    if value == before.value and not before.risen:
        return before
    risen = [rise for rise in before.risen if rise[0] > came - limit.window_seconds]
    if value > before.value:
        if risen and came - risen[-1][0] < limit.window_seconds / PARTS:
            since, by = risen.pop()
            risen.append((since, by + value - before.value))
        else:
            risen.append((came, value - before.value))
    is_over = sum(by for _, by in risen) > limit.limit
    since_over = came if before.over_since is None else before.over_since
    return Count(
        value=value, known_from=before.known_from, risen=tuple(risen), over_since=since_over if is_over else None
    )


def _is_too_fast(count: Count, limit: CounterLimit, monotonic: float) -> bool | None:
    """Return whether a counter rises too fast; None: it is not clear yet."""
    if count.over_since is not None:
        return monotonic - count.over_since >= limit.for_seconds or None
    stopped = limit.most is not None and count.value >= limit.most
    return None if stopped or monotonic - count.known_from < limit.window_seconds else False
