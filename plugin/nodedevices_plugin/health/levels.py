"""Levels: the conditions that a device's readings show, line by line. Edges are in `events`.

Six conditions exist for every device: not listed, lost, does not answer, its driver requires an action, a PCIe link
with fewer lanes or slower than both ends can do. The others are its vendor's (ECC, row remapping, a link), those of its
counters (`lasting`), and the policy's (`too_high`). A condition is evident, over, or unreadable (the device or driver
does not report it, or it has not lasted long enough); unreadable never ends a fault. When a device is lost or does not
answer, its other conditions are unreadable. When a probe sees no device at all, the devices that it had are Unknown,
not faulty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import get_args

from msgspec.structs import replace
from nodedevices_api.base import wire_name
from nodedevices_api.conditions import MISSING
from nodedevices_api.sections import DegradedRule, Signal
from nodedevices_probe.protocol import Readings

from nodedevices_plugin.health.rules import NO_ACTION, HealthRules
from nodedevices_plugin.model import HealthState, InventoryDevice
from nodedevices_plugin.vendors.faults import FaultCondition, FaultSource

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
SIGNALS: tuple[Signal, ...] = get_args(Signal)


def signal_reason(signal: str) -> str:
    """The health reason of a reading that is too high: the signal with a capital, such as `TemperatureCelsius`."""
    return signal[:1].upper() + signal[1:]


SIGNAL_REASONS = tuple(signal_reason(signal) for signal in SIGNALS)

# Their messages have numbers that may change while the condition lasts.
NUMBERED = frozenset((*SIGNAL_REASONS, PCIE_LINK_NARROW, PCIE_LINK_SLOW))

# The device is not there, or accepts no work: no rule can make it usable.
UNUSABLE = frozenset({MISSING, FALLEN_OFF_BUS, PROBE_ERROR})

_CALLED = frozenset({"gpu", "nic", "fpga", "vf", "dpu"})  # types that are written in capitals


def of_readings(device: InventoryDevice, vendor: FaultSource, rules: HealthRules) -> tuple[FaultCondition, ...]:
    """Return the conditions that a device's readings show line by line, whether or not they have lasted: those of its
    PCIe link, its vendor's and the policy's. Of a reason there may be several."""
    readings = device.fact.readings
    own = (*vendor.read(readings), *pcie_link(readings), *too_high(readings, rules))
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
def too_high(readings: Readings, rules: HealthRules) -> tuple[FaultCondition, ...]:
    """Return a condition for each threshold of the policy, evident or not."""
    return tuple(_too_high(readings, rule) for rule in rules.degraded)


def _too_high(readings: Readings, rule: DegradedRule) -> FaultCondition:
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
