"""What a device's readings say by themselves, line by line: levels, not edges.

Each row is one condition: lost, not listed, ECC, row remapping, ... It is evident, over, or (the device or driver does
not say) unreadable; unreadable never ends a fault. A device that is lost or does not answer says nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nodedevices_plugin.health.actions import NO_ACTION
from nodedevices_plugin.model import HealthState
from nodedevices_plugin.probes.protocol import DeviceFact, Readings

FALLEN_OFF_BUS = "FallenOffBus"
MISSING = "Missing"
PROBE_ERROR = "ProbeError"
RECOVERY_ACTION = "RecoveryAction"
ROW_REMAP_FAILURE = "RowRemapFailure"

_ERROR_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Level:
    """One condition, as it stands now. `evident` None: not readable at present."""

    reason: str
    state: HealthState
    message: str
    action: str
    evident: bool | None


@dataclass(frozen=True, slots=True)
class _Reading:
    reason: str
    state: HealthState
    message: str
    action: str
    test: Callable[[Readings], bool | None]


def _above_zero(value: int | None) -> bool | None:
    return None if value is None else value > 0


# Sources: nvml.h for the fields; NVIDIA's GPU memory error management guide for what they ask for.
_READINGS = (
    _Reading(
        ROW_REMAP_FAILURE,
        HealthState.UNHEALTHY,
        "GPU memory rows can no longer be remapped",
        "Replace",
        lambda readings: readings.remap_failure,
    ),
    _Reading(
        "SramThresholdExceeded",
        HealthState.UNHEALTHY,
        "uncorrectable SRAM errors exceed the threshold",
        "Replace",
        lambda readings: readings.sram_threshold_exceeded,
    ),
    _Reading(
        "EccUncorrectable",
        HealthState.UNHEALTHY,
        "uncorrectable ECC errors since the last reset",
        "ResetGPU",
        lambda readings: _above_zero(readings.ecc_uncorrectable_volatile),
    ),
    _Reading(
        "RowRemapPending",
        HealthState.DEGRADED,
        "GPU memory rows wait to be remapped at the next reset",
        "ResetGPU",
        lambda readings: readings.remap_pending,
    ),
    _Reading(
        "ThermalSlowdown",
        HealthState.DEGRADED,
        "the GPU slows itself down because of its temperature",
        NO_ACTION,
        lambda readings: readings.thermal_slowdown,
    ),
)

REASONS = frozenset({MISSING, FALLEN_OFF_BUS, PROBE_ERROR, RECOVERY_ACTION, *(row.reason for row in _READINGS)})

# There is no device to offer, or it takes no work: no rule can say otherwise.
UNUSABLE = frozenset({MISSING, FALLEN_OFF_BUS, PROBE_ERROR})

# Conditions whose end is itself the proof: a volatile counter at zero was reset, a missing device came back, ...
ENDS_BY_ITSELF = frozenset({MISSING, PROBE_ERROR, "EccUncorrectable", "RowRemapPending", "ThermalSlowdown"})


def levels(fact: DeviceFact, *, present: bool) -> tuple[Level, ...]:
    """Every condition of a device, evident or not. `present`: the last good line listed it."""
    readings = fact.readings
    answers = present and not readings.lost and readings.error is None
    missing = Level(
        MISSING, HealthState.UNHEALTHY, "the device is no longer listed by its driver", "Inspect", not present
    )
    lost = Level(
        FALLEN_OFF_BUS,
        HealthState.UNHEALTHY,
        "GPU has fallen off the bus",
        "RebootNode",
        readings.lost if present else None,
    )
    text = f"the device does not answer: {(readings.error or '')[:_ERROR_SHOWN]}"
    error = Level(PROBE_ERROR, HealthState.UNHEALTHY, text, "Inspect", readings.error is not None if present else None)
    asked = readings.recovery_action if answers else None
    wanted = Level(
        RECOVERY_ACTION,
        HealthState.UNHEALTHY,
        "the driver asks for an action on this GPU",
        asked or NO_ACTION,
        None if asked is None else asked != NO_ACTION,
    )
    read = (
        Level(row.reason, row.state, row.message, row.action, row.test(readings) if answers else None)
        for row in _READINGS
    )
    return (missing, lost, error, wanted, *read)


def driver_says(fact: DeviceFact, *, present: bool) -> str | None:
    """NVML field 230 of a device that answers; None: it does not, or its driver has no such field."""
    readings = fact.readings
    return readings.recovery_action if present and not readings.lost and readings.error is None else None
