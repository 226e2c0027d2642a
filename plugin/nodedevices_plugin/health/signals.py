"""Readings that a policy calls too high (`health.degraded`): each makes its device Degraded while it lasts.

The reason is the signal with a capital: `TemperatureCelsius`; rules of `health.rules` may name it. How long a reading
has been high, `lasting` follows.
"""

from __future__ import annotations

from dataclasses import fields
from typing import get_args

from nodedevices_api.base import wire_name
from nodedevices_api.sections import DegradedRule, Signal
from nodedevices_probe.protocol import Readings

from nodedevices_plugin.health.rules import HealthRules
from nodedevices_plugin.model import HealthState
from nodedevices_plugin.vendors.faults import FaultCondition

_FIELDS = {wire_name(field.name): field.name for field in fields(Readings)}
SIGNALS: tuple[Signal, ...] = get_args(Signal)


def reason(signal: str) -> str:
    """The health reason of a reading that is too high."""
    return signal[:1].upper() + signal[1:]


REASONS = tuple(reason(signal) for signal in SIGNALS)


def conditions(readings: Readings, rules: HealthRules) -> tuple[FaultCondition, ...]:
    """Return a condition for each threshold of the policy, evident or not."""
    return tuple(_condition(readings, rule) for rule in rules.degraded)


def _condition(readings: Readings, rule: DegradedRule) -> FaultCondition:
    lasting = f" for {rule.for_seconds} s" if rule.for_seconds else ""
    value: int | None = getattr(readings, _FIELDS[rule.signal])
    return FaultCondition(
        reason=reason(rule.signal),
        state=HealthState.DEGRADED,
        message=f"{rule.signal} has been {rule.threshold} or more{lasting} (health.degraded)",
        evident=None if value is None else value >= rule.threshold,
        ends_by_itself=True,
        for_seconds=rule.for_seconds,
        threshold=rule.threshold,
    )
