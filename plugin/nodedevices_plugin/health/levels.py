"""What a device's readings say by themselves, line by line: levels, not edges.

Four conditions are of any device: not listed, lost, does not answer, its driver requires an action; the others are its
vendor's (ECC, row remapping, a link) and the policy's (`signals`). A condition is evident, over, or (the device or
driver does not say) unreadable; unreadable never ends a fault. A device that is lost or does not answer says nothing
else. Of a probe that sees no device at all nothing is learned: what it does not list is Unknown, and no fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nodedevices_api.conditions import MISSING
from nodedevices_probe.protocol import DeviceFact

from nodedevices_plugin.health.actions import NO_ACTION
from nodedevices_plugin.model import HealthState
from nodedevices_plugin.vendors.faults import Condition, FaultSource

FALLEN_OFF_BUS = "FallenOffBus"
PROBE_ERROR = "ProbeError"
RECOVERY_ACTION = "RecoveryAction"

_ERROR_SHOWN = 200
UNSEEN = (
    "its probe sees none of the devices that it had (the condition Ready says why), so nothing is known of this one: "
    "its pods are not marked, tainted for or evicted"
)

REASONS = (MISSING, FALLEN_OFF_BUS, PROBE_ERROR, RECOVERY_ACTION)  # of any device, whoever made it

# There is no device to offer, or it takes no work: no rule can say otherwise.
UNUSABLE = frozenset({MISSING, FALLEN_OFF_BUS, PROBE_ERROR})

_CALLED = frozenset({"gpu", "nic", "fpga", "vf", "dpu"})  # types that people write in capitals


def levels(
    fact: DeviceFact, vendor: FaultSource, *, present: bool, blind: bool = False, of_policy: Sequence[Condition] = ()
) -> tuple[Condition, ...]:
    """Every condition of a device, evident or not. `present`: the last good line listed it. `blind`: it listed none of
    the probe's devices. `of_policy`: what the policy makes of its readings."""
    readings = fact.readings
    answers = present and not readings.lost and readings.error is None
    driver_action = readings.recovery_action if answers else None
    what = fact.type.upper() if fact.type in _CALLED else "device"
    own = (*vendor.read(readings), *of_policy)
    return (
        Condition(
            reason=MISSING,
            state=HealthState.UNKNOWN if blind else HealthState.UNHEALTHY,
            message=UNSEEN if blind else "the device is no longer listed by its driver",
            action=NO_ACTION if blind else "Inspect",
            evident=not present,
            ends_by_itself=True,
        ),
        Condition(
            reason=FALLEN_OFF_BUS,
            state=HealthState.UNHEALTHY,
            message=f"{what} has fallen off the bus",
            action="RebootNode",
            evident=readings.lost if present else None,
        ),
        Condition(
            reason=PROBE_ERROR,
            state=HealthState.UNHEALTHY,
            message=f"the device does not answer: {(readings.error or '')[:_ERROR_SHOWN]}",
            action="Inspect",
            evident=readings.error is not None if present else None,
            ends_by_itself=True,
        ),
        Condition(
            reason=RECOVERY_ACTION,
            state=HealthState.UNHEALTHY,
            message=f"the driver requires an action on this {what}",
            action=driver_action or NO_ACTION,
            evident=None if driver_action is None else driver_action != NO_ACTION,
        ),
        *(own if answers else (replace(each, evident=None) for each in own)),
    )


def driver_says(fact: DeviceFact, *, present: bool) -> str | None:
    """The recovery action that the driver requires, of a device that answers; None: it does not, or its driver does not
    say."""
    readings = fact.readings
    return readings.recovery_action if present and not readings.lost and readings.error is None else None
