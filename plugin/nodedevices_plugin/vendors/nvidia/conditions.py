"""What a GPU's readings mean: one row a reason, with its threshold, how long it has to last, and its usual state.

The usual states keep a machine in good order silent. Only what makes a GPU unfit for every pod is Unhealthy; what
costs speed, or concerns some pods alone, is Degraded, and a policy's `health.rules` makes more or nothing of it. Rows
that are `opt_in` are about how a node is set up, and say nothing until a rule names them.

Sources: nvml.h for the readings; NVIDIA's GPU memory error management guide for what memory errors require; of the rest
what NVIDIA's Health Validation and DCGM, NVSentinel, Azure's healthagent and Meta's GCM look at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct
from nodedevices_probe.protocol import Readings

from nodedevices_plugin.model import HealthState
from nodedevices_plugin.vendors.faults import FaultCondition

NO_ACTION: Final = "None"
RESET: Final = "ResetDevice"
INSPECT: Final = "Inspect"
REPLACE: Final = "Replace"

# --- thresholds -----------------------------------------------------------------------------------------------------
# Clocks that change and links that train anew show these conditions for seconds (nvml.h, NvmlClocksEventReasons).
PASSING_SECONDS: Final = 60
# A machine's fabric manager, and a rack's, registers its GPUs within minutes of a boot. One that did so before takes
# seconds after a reset, unless it is dead: then the state of the others stays Completed (NVSentinel's issue 883).
REGISTRATION_SECONDS: Final = 600
REGISTRATION_AGAIN_SECONDS: Final = 120
MANAGER_SECONDS: Final = 300  # while it is restarted or upgraded, the fabric works on
NVLINK_SECONDS: Final = 120  # twice as long as the probe waits between two readings of their speed and errors
# By generation, as NVIDIA's Health Validation has it (nvlink_bandwidth_count_speed: H100, and GB200).
NVLINK_MEGABYTES_PER_SECOND: Final[Mapping[int, int]] = {4: 26_562, 5: 53_125}
# 1 in 10^12, the most that InfiniBand allows a link. DCGM fails at anything above NVML's least, which is 1.5 in 10^254.
NVLINK_ERRORS_PER_EXABIT: Final = 1_000_000
POWER_PERCENT: Final = 110  # of the limit, which the hardware keeps within some percent over a second
LIMITED_SECONDS: Final = 600  # a clock's setting is changed on purpose, for a benchmark

IN_PROGRESS = frozenset({"NotStarted", "InProgress"})  # fabric_state
COMPLETED = "Completed"
MANAGER_DISCONNECTED = "managerDisconnected"


class _Row(Struct, frozen=True):
    reason: str
    state: HealthState
    message: str
    action: str
    test: Callable[[Readings], bool | None]
    ends_by_itself: bool = True  # a counter at zero was reset, a device that is cool runs at full speed
    for_seconds: float = 0
    opt_in: bool = False

    def condition(self, evident: bool | None) -> FaultCondition:
        return FaultCondition(
            reason=self.reason,
            state=self.state,
            message=self.message,
            action=self.action,
            evident=evident,
            ends_by_itself=self.ends_by_itself,
            for_seconds=self.for_seconds,
            opt_in=self.opt_in,
        )


def _above(value: int | None, limit: int | None) -> bool | None:
    return None if value is None or limit is None else value > limit


def _below(value: int | None, limit: int | None) -> bool | None:
    return None if value is None or limit is None else value < limit


def _unregistered(readings: Readings) -> bool | None:
    if readings.fabric_state is None:
        return None
    return readings.fabric_state in IN_PROGRESS and not readings.fabric_was_completed


def _registration_lost(readings: Readings) -> bool | None:
    if readings.fabric_state is None:
        return None
    return readings.fabric_state != COMPLETED and bool(readings.fabric_was_completed)


def _registration_failed(readings: Readings) -> bool | None:
    if readings.fabric_state is None:
        return None
    return readings.fabric_state == COMPLETED and readings.fabric_error is not None


def _manager_disconnected(readings: Readings) -> bool | None:
    return None if readings.fabric_state is None else MANAGER_DISCONNECTED in readings.fabric_conditions


def _fabric_degraded(readings: Readings) -> bool | None:
    if readings.fabric_state is None:
        return None
    return any(condition != MANAGER_DISCONNECTED for condition in readings.fabric_conditions)


def _slowdown(readings: Readings) -> bool | None:
    """The hardware's bit is set together with those that say why; these are reasons of their own."""
    if readings.hw_slowdown is None:
        return None
    return readings.hw_slowdown and not readings.thermal_slowdown and not readings.power_brake


def _power_above_limit(readings: Readings) -> bool | None:
    limit = readings.power_limit_milliwatts
    return _above(readings.power_milliwatts, limit * POWER_PERCENT // 100 if limit else None)


def _nvlink_slow(readings: Readings) -> bool | None:
    """None for a generation of which the speed is not known here."""
    return _below(
        readings.nvlink_megabytes_per_second, NVLINK_MEGABYTES_PER_SECOND.get(readings.nvlink_generation or 0)
    )


_ROWS = (
    _Row(
        "RowRemapFailure",
        HealthState.UNHEALTHY,
        "GPU memory rows can no longer be remapped",
        REPLACE,
        lambda readings: readings.remap_failure,
        ends_by_itself=False,
    ),
    _Row(
        "SramThresholdExceeded",
        HealthState.UNHEALTHY,
        "uncorrectable SRAM errors exceed the threshold",
        REPLACE,
        lambda readings: readings.sram_threshold_exceeded,
        ends_by_itself=False,
    ),
    _Row(
        "EccUncorrectable",
        HealthState.UNHEALTHY,
        "uncorrectable ECC errors since the last reset",
        RESET,
        lambda readings: _above(readings.ecc_uncorrectable_volatile, 0),
    ),
    _Row(
        "RowRemapPending",
        HealthState.DEGRADED,
        "GPU memory rows wait to be remapped at the next reset",
        RESET,
        lambda readings: readings.remap_pending,
    ),
    _Row(
        "ThermalSlowdown",
        HealthState.DEGRADED,
        "the GPU slows itself down because of its temperature",
        NO_ACTION,
        lambda readings: readings.thermal_slowdown,
    ),
    _Row(
        "ThermalMarginExceeded",
        HealthState.DEGRADED,
        "the GPU is hotter than the temperature at which its hardware slows it down",
        INSPECT,
        lambda readings: _below(readings.temperature_margin_celsius, readings.temperature_slowdown_margin_celsius),
        for_seconds=PASSING_SECONDS,
    ),
    _Row(
        "HwSlowdown",
        HealthState.DEGRADED,
        "the hardware has lowered the GPU's clocks to half or less, and gives no reason",
        INSPECT,
        _slowdown,
        for_seconds=PASSING_SECONDS,
    ),
    _Row(
        "PowerBrake",
        HealthState.DEGRADED,
        "the machine's power supply makes the GPU slow down",
        INSPECT,
        lambda readings: readings.power_brake,
        for_seconds=PASSING_SECONDS,
    ),
    _Row(
        "PowerAboveLimit",
        HealthState.DEGRADED,
        f"the GPU draws more than {POWER_PERCENT} % of its power limit",
        INSPECT,
        _power_above_limit,
        for_seconds=PASSING_SECONDS,
    ),
    _Row(
        "FabricRegistrationFailed",
        HealthState.DEGRADED,
        "the GPU's registration with the NVLink fabric has failed: it has no NVLink to other GPUs",
        INSPECT,
        _registration_failed,
    ),
    _Row(
        "FabricRegistrationLost",
        HealthState.DEGRADED,
        "the GPU was registered with the NVLink fabric and no longer is; is the fabric manager dead?",
        INSPECT,
        _registration_lost,
        for_seconds=REGISTRATION_AGAIN_SECONDS,
    ),
    _Row(
        "FabricNotRegistered",
        HealthState.DEGRADED,
        "the GPU is not registered with the NVLink fabric: CUDA may not start on it; does the fabric manager run?",
        INSPECT,
        _unregistered,
        for_seconds=REGISTRATION_SECONDS,
    ),
    _Row(
        "FabricManagerDisconnected",
        HealthState.DEGRADED,
        "the GPU has lost its fabric manager: failures on the NVLink fabric are not repaired",
        INSPECT,
        _manager_disconnected,
        for_seconds=MANAGER_SECONDS,
    ),
    _Row(
        "FabricDegraded",
        HealthState.DEGRADED,
        "the driver reports the GPU's NVLink fabric as degraded (nvidia-smi -q, Fabric): bandwidth, routes or setup",
        INSPECT,
        _fabric_degraded,
        for_seconds=PASSING_SECONDS,
    ),
    _Row(
        "NvlinkDown",
        HealthState.DEGRADED,
        "an NVLink to a switch is down, while others of the GPU are up",
        RESET,
        lambda readings: _above(readings.switch_links_inactive, 0),
        for_seconds=NVLINK_SECONDS,
    ),
    _Row(
        "NvlinkSlow",
        HealthState.DEGRADED,
        "an NVLink is slower than is normal for its generation",
        RESET,
        _nvlink_slow,
        for_seconds=NVLINK_SECONDS,
    ),
    _Row(
        "NvlinkErrors",
        HealthState.DEGRADED,
        "an NVLink has more than 1 error in 10^12 bits that is not corrected",
        INSPECT,
        lambda readings: _above(readings.nvlink_errors_per_exabit, NVLINK_ERRORS_PER_EXABIT),
        for_seconds=NVLINK_SECONDS,
    ),
    _Row(
        "PersistenceModeOff",
        HealthState.DEGRADED,
        "persistence mode is off: the first program waits for the driver, and settings are lost when the last one ends",
        NO_ACTION,
        lambda readings: None if readings.persistence_mode is None else not readings.persistence_mode,
        opt_in=True,
    ),
    _Row(
        "PowerLimitLowered",
        HealthState.DEGRADED,
        "the GPU's power limit is below its default",
        NO_ACTION,
        lambda readings: _below(readings.power_limit_milliwatts, readings.power_default_limit_milliwatts),
        opt_in=True,
    ),
    _Row(
        "ClocksLimited",
        HealthState.DEGRADED,
        "a setting of the application clocks holds the GPU's clocks down",
        NO_ACTION,
        lambda readings: readings.clocks_limited,
        for_seconds=LIMITED_SECONDS,
        opt_in=True,
    ),
)
REASONS = tuple(row.reason for row in _ROWS)


# Made once: each step reads every device, most of them twice.
_CONDITIONS = tuple((row.test, {evident: row.condition(evident) for evident in (True, False, None)}) for row in _ROWS)


def read(readings: Readings) -> tuple[FaultCondition, ...]:
    return tuple(by_evidence[test(readings)] for test, by_evidence in _CONDITIONS)
