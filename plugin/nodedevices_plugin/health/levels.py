"""Levels: the conditions that a device's readings show, line by line. Edges are in `events`.

Four conditions exist for every device: not listed, lost, does not answer, its driver requires an action. The others are
its vendor's (ECC, row remapping, a link), those of its counters (`rates`), and the policy's (`signals`). A condition is
evident, over, or unreadable (the device or driver does not report it); unreadable never ends a fault. When a device is
lost or does not answer, its other conditions are unreadable. When a probe sees no device at all, the devices that it
had are Unknown, not faulty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nodedevices_api.conditions import MISSING
from nodedevices_probe.protocol import DeviceFact

from nodedevices_plugin.health.actions import NO_ACTION
from nodedevices_plugin.model import HealthState
from nodedevices_plugin.vendors.faults import FaultCondition, FaultSource

FALLEN_OFF_BUS = "FallenOffBus"
PROBE_ERROR = "ProbeError"
RECOVERY_ACTION = "RecoveryAction"

_ERROR_SHOWN = 200
UNSEEN = (
    "its probe sees none of the devices that it had (the condition Ready says why), so nothing is known of this one: "
    "its pods are not marked, tainted for or evicted"
)

REASONS = (MISSING, FALLEN_OFF_BUS, PROBE_ERROR, RECOVERY_ACTION)  # of any device, of any maker

# The device is not there, or accepts no work: no rule can make it usable.
UNUSABLE = frozenset({MISSING, FALLEN_OFF_BUS, PROBE_ERROR})

_CALLED = frozenset({"gpu", "nic", "fpga", "vf", "dpu"})  # types that are written in capitals


def levels(
    fact: DeviceFact,
    vendor: FaultSource,
    *,
    present: bool,
    blind: bool = False,
    followed: Sequence[FaultCondition] = (),
) -> tuple[FaultCondition, ...]:
    """Return every condition of a device, evident or not. `present`: the last good line listed it. `blind`: that line
    listed none of the probe's devices. `followed`: conditions of several lines (signals, rates)."""
    readings = fact.readings
    answers = present and not readings.lost and readings.error is None
    driver_action = readings.recovery_action if answers else None
    what = fact.type.upper() if fact.type in _CALLED else "device"
    own = (*vendor.read(readings), *followed)
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
        *(own if answers else (replace(each, evident=None) for each in own)),
    )


def driver_says(fact: DeviceFact, *, present: bool) -> str | None:
    """Return the recovery action that the driver of a device requires; None: the device does not answer, or the driver
    does not report one."""
    readings = fact.readings
    return readings.recovery_action if present and not readings.lost and readings.error is None else None
