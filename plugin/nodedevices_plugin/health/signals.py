"""Readings that a policy calls too high (`health.degraded`): each makes its device Degraded while it lasts.

`follow` keeps since when each line has had a reading at its threshold or above. The count starts again after a line
with a lower reading or without one, after a probe's silence, and after a restart of the agent. A device that is already
Degraded for it stays so meanwhile: a reading that has been high, but not for long enough, neither begins a fault nor
ends one. The reason is the signal with a capital: `TemperatureCelsius`; rules of `health.rules` may name it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import get_args

from nodedevices_api.base import wire_name
from nodedevices_api.sections import DegradedRule, Signal
from nodedevices_probe.protocol import DriverState, Readings

from nodedevices_plugin.health.rules import HealthRules
from nodedevices_plugin.model import HealthState, Inventory, InventoryDevice
from nodedevices_plugin.vendors.faults import FaultCondition

HighReadings = Mapping[tuple[str, str, int], float]  # device, signal, threshold -> since when, by time.monotonic()

_FIELDS = {wire_name(each.name): each.name for each in fields(Readings)}
SIGNALS: tuple[Signal, ...] = get_args(Signal)


def reason(signal: str) -> str:
    """The health reason of a reading that is too high."""
    return signal[:1].upper() + signal[1:]


REASONS = tuple(reason(each) for each in SIGNALS)


def follow(
    before: HighReadings, inventory: Inventory, rules: HealthRules, *, monotonic: float
) -> dict[tuple[str, str, int], float]:
    """Return the readings of these devices that are at a threshold or above, with the time since when."""
    driver, came = inventory.driver, inventory.line_monotonic
    if driver is None or driver.state is not DriverState.LOADED or came is None:
        return {}
    if monotonic - came >= rules.silence_seconds:
        return {}
    keys = (
        (device.fact.id, rule.signal, rule.threshold)
        for device in inventory.devices
        for rule in rules.degraded
        if (value := _value(device, rule.signal)) is not None and value >= rule.threshold
    )
    return {key: before.get(key, came) for key in keys}


def conditions(
    device: InventoryDevice, rules: HealthRules, above: HighReadings, *, monotonic: float
) -> tuple[FaultCondition, ...]:
    """Return a condition for each signal that the policy names, evident or not."""
    by_signal: dict[str, list[DegradedRule]] = {}
    for rule in rules.degraded:
        by_signal.setdefault(rule.signal, []).append(rule)
    return tuple(_condition(device, named, above, monotonic) for named in by_signal.values())


def deadlines(above: HighReadings, rules: HealthRules) -> list[float]:
    """Return when (time.monotonic()) readings that are high now will have been so for long enough."""
    return [
        since + rule.for_seconds
        for (_, signal, threshold), since in above.items()
        for rule in rules.degraded
        if (rule.signal, rule.threshold) == (signal, threshold)
    ]


def _condition(
    device: InventoryDevice, rules: list[DegradedRule], above: HighReadings, monotonic: float
) -> FaultCondition:
    signal = rules[0].signal
    since = {rule: above.get((device.fact.id, signal, rule.threshold)) for rule in rules}
    over = [rule for rule, when in since.items() if when is not None and monotonic - when >= rule.for_seconds]
    shown = over[0] if over else rules[0]
    lasting = f" for {shown.for_seconds} s" if shown.for_seconds else ""
    unclear = _value(device, signal) is None or any(when is not None for when in since.values())
    return FaultCondition(
        reason=reason(signal),
        state=HealthState.DEGRADED,
        message=f"{signal} has been {shown.threshold} or more{lasting} (health.degraded)",
        evident=True if over else None if unclear else False,
        ends_by_itself=True,
    )


def _value(device: InventoryDevice, signal: str) -> int | None:
    """Return the reading; None: it cannot be read, or the device is not there."""
    readings = device.fact.readings
    if not device.present or readings.lost or readings.error is not None:
        return None
    value: int | None = getattr(readings, _FIELDS[signal])
    return value
