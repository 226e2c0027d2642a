"""NVIDIA's faults: what a GPU's readings mean, and what XIDs (by the catalogue, xids.py) and NVML's other events do.

Readings: one row a reason, with its threshold, how long it has to last, and its usual state. The usual states keep a
machine in good order silent. Only what makes a GPU unfit for every pod is Unhealthy; what costs speed, or concerns some
pods alone, is Degraded, and a policy's `health.rules` makes more or nothing of it. Rows that are `opt_in` are about how
a node is set up, and say nothing until a rule names them.

Sources: nvml.h for the readings; NVIDIA's GPU memory error management guide for what memory errors require; of the rest
what NVIDIA's Health Validation and DCGM, NVSentinel, Azure's healthagent and Meta's GCM look at.

Some XIDs mean nothing certain alone (NVIDIA's catalogue calls them workflows): 45 follows a killed process or a worse
error, 48 may be contained in its application (94), 74 and 144-150 are NVLink's, of which the driver itself knows more
(field 230, read as recoveryAction). docs/catalogue.md has where others judge differently, and why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace
from nodedevices_probe import kmsg
from nodedevices_probe.protocol import ProbeEvent, Readings

from nodedevices_plugin.model import HealthState
from nodedevices_plugin.vendors.faults import (
    CODED,
    PCIE_MEANINGS,
    Effect,
    FaultCondition,
    FaultSource,
    Meaning,
    node_missing,
)
from nodedevices_plugin.vendors.nvidia import kernel_log
from nodedevices_plugin.vendors.nvidia.xids import MAX_XID, Xid, look_up

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
    """A condition, and the test that makes it evident (None: it cannot be read)."""

    test: Callable[[Readings], bool | None]
    by_evidence: Mapping[bool | None, FaultCondition]  # made once: each step reads every device, most of them twice


def _row(
    reason: str,
    state: HealthState,
    message: str,
    action: str,
    test: Callable[[Readings], bool | None],
    *,
    ends_by_itself: bool = True,  # a counter at zero was reset, a device that is cool runs at full speed
    for_seconds: float = 0,
    opt_in: bool = False,
) -> _Row:
    unread = FaultCondition(
        reason=reason,
        state=state,
        message=message,
        action=action,
        evident=None,
        ends_by_itself=ends_by_itself,
        for_seconds=for_seconds,
        opt_in=opt_in,
    )
    return _Row(test, {evident: replace(unread, evident=evident) for evident in (True, False, None)})


def _above(value: int | None, limit: int | None) -> bool | None:
    return None if value is None or limit is None else value > limit


def _below(value: int | None, limit: int | None) -> bool | None:
    return None if value is None or limit is None else value < limit


def _in_fabric(test: Callable[[Readings], bool]) -> Callable[[Readings], bool | None]:
    """Return the test for GPUs that report an NVLink fabric; None for all others."""
    return lambda readings: None if readings.fabric_state is None else test(readings)


def _slowdown(readings: Readings) -> bool | None:
    """The hardware's bit is set together with those that say why; these are reasons of their own."""
    if readings.hw_slowdown is None:
        return None
    return readings.hw_slowdown and not readings.thermal_slowdown and not readings.power_brake


def _power_above_limit(readings: Readings) -> bool | None:
    limit = readings.power_limit_milliwatts
    return _above(readings.power_milliwatts, limit * POWER_PERCENT // 100 if limit else None)


_ROWS = (
    _row(
        "RowRemapFailure",
        HealthState.UNHEALTHY,
        "GPU memory rows can no longer be remapped",
        "Replace",
        lambda readings: readings.remap_failure,
        ends_by_itself=False,
    ),
    _row(
        "SramThresholdExceeded",
        HealthState.UNHEALTHY,
        "uncorrectable SRAM errors exceed the threshold",
        "Replace",
        lambda readings: readings.sram_threshold_exceeded,
        ends_by_itself=False,
    ),
    _row(
        "EccUncorrectable",
        HealthState.UNHEALTHY,
        "uncorrectable ECC errors since the last reset",
        "ResetDevice",
        lambda readings: _above(readings.ecc_uncorrectable_volatile, 0),
    ),
    _row(
        "RowRemapPending",
        HealthState.DEGRADED,
        "GPU memory rows wait to be remapped at the next reset",
        "ResetDevice",
        lambda readings: readings.remap_pending,
    ),
    _row(
        "ThermalSlowdown",
        HealthState.DEGRADED,
        "the GPU slows itself down because of its temperature",
        "None",
        lambda readings: readings.thermal_slowdown,
    ),
    _row(
        "ThermalMarginExceeded",
        HealthState.DEGRADED,
        "the GPU is hotter than the temperature at which its hardware slows it down",
        "Inspect",
        lambda readings: _below(readings.temperature_margin_celsius, readings.temperature_slowdown_margin_celsius),
        for_seconds=PASSING_SECONDS,
    ),
    _row(
        "HwSlowdown",
        HealthState.DEGRADED,
        "the hardware has lowered the GPU's clocks to half or less, and gives no reason",
        "Inspect",
        _slowdown,
        for_seconds=PASSING_SECONDS,
    ),
    _row(
        "PowerBrake",
        HealthState.DEGRADED,
        "the machine's power supply makes the GPU slow down",
        "Inspect",
        lambda readings: readings.power_brake,
        for_seconds=PASSING_SECONDS,
    ),
    _row(
        "PowerAboveLimit",
        HealthState.DEGRADED,
        f"the GPU draws more than {POWER_PERCENT} % of its power limit",
        "Inspect",
        _power_above_limit,
        for_seconds=PASSING_SECONDS,
    ),
    _row(
        "FabricRegistrationFailed",
        HealthState.DEGRADED,
        "the GPU's registration with the NVLink fabric has failed: it has no NVLink to other GPUs",
        "Inspect",
        _in_fabric(lambda readings: readings.fabric_state == COMPLETED and readings.fabric_error is not None),
    ),
    _row(
        "FabricRegistrationLost",
        HealthState.DEGRADED,
        "the GPU was registered with the NVLink fabric and no longer is; is the fabric manager dead?",
        "Inspect",
        _in_fabric(lambda readings: readings.fabric_state != COMPLETED and bool(readings.fabric_was_completed)),
        for_seconds=REGISTRATION_AGAIN_SECONDS,
    ),
    _row(
        "FabricNotRegistered",
        HealthState.DEGRADED,
        "the GPU is not registered with the NVLink fabric: CUDA may not start on it; does the fabric manager run?",
        "Inspect",
        _in_fabric(lambda readings: readings.fabric_state in IN_PROGRESS and not readings.fabric_was_completed),
        for_seconds=REGISTRATION_SECONDS,
    ),
    _row(
        "FabricManagerDisconnected",
        HealthState.DEGRADED,
        "the GPU has lost its fabric manager: failures on the NVLink fabric are not repaired",
        "Inspect",
        _in_fabric(lambda readings: MANAGER_DISCONNECTED in readings.fabric_conditions),
        for_seconds=MANAGER_SECONDS,
    ),
    _row(
        "FabricDegraded",
        HealthState.DEGRADED,
        "the driver reports the GPU's NVLink fabric as degraded (nvidia-smi -q, Fabric): bandwidth, routes or setup",
        "Inspect",
        _in_fabric(lambda readings: any(found != MANAGER_DISCONNECTED for found in readings.fabric_conditions)),
        for_seconds=PASSING_SECONDS,
    ),
    _row(
        "NvlinkDown",
        HealthState.DEGRADED,
        "an NVLink to a switch is down, while others of the GPU are up",
        "ResetDevice",
        lambda readings: _above(readings.switch_links_inactive, 0),
        for_seconds=NVLINK_SECONDS,
    ),
    _row(
        "NvlinkSlow",
        HealthState.DEGRADED,
        "an NVLink is slower than is normal for its generation",
        "ResetDevice",
        lambda readings: _below(
            readings.nvlink_megabytes_per_second, NVLINK_MEGABYTES_PER_SECOND.get(readings.nvlink_generation or 0)
        ),
        for_seconds=NVLINK_SECONDS,
    ),
    _row(
        "NvlinkErrors",
        HealthState.DEGRADED,
        "an NVLink has more than 1 error in 10^12 bits that is not corrected",
        "Inspect",
        lambda readings: _above(readings.nvlink_errors_per_exabit, NVLINK_ERRORS_PER_EXABIT),
        for_seconds=NVLINK_SECONDS,
    ),
    _row(
        "PersistenceModeOff",
        HealthState.DEGRADED,
        "persistence mode is off: the first program waits for the driver, and settings are lost when the last one ends",
        "None",
        lambda readings: None if readings.persistence_mode is None else not readings.persistence_mode,
        opt_in=True,
    ),
    _row(
        "PowerLimitLowered",
        HealthState.DEGRADED,
        "the GPU's power limit is below its default",
        "None",
        lambda readings: _below(readings.power_limit_milliwatts, readings.power_default_limit_milliwatts),
        opt_in=True,
    ),
    _row(
        "ClocksLimited",
        HealthState.DEGRADED,
        "a setting of the application clocks holds the GPU's clocks down",
        "None",
        lambda readings: readings.clocks_limited,
        for_seconds=LIMITED_SECONDS,
        opt_in=True,
    ),
)


def read(readings: Readings) -> tuple[FaultCondition, ...]:
    return tuple(row.by_evidence[row.test(readings)] for row in _ROWS)


CLEANUP = 45  # a killed process was cleaned up: the one undecided XID that is never fatal by itself
DOUBLE_BIT = 48
NVLINK = 74
REMAPPED = 63
CONTAINED = 94
DECIDE_48 = frozenset({REMAPPED, CONTAINED})

# Events beside XIDs (nvml.h nvmlEventType*): the reading recoveryAction says what they require.
MEANINGS: Mapping[str, Meaning] = {
    **kernel_log.MEANINGS,
    "gpu-unavailable": Meaning(
        reason="GpuUnavailable",
        effect=Effect.UNHEALTHY,
        message="the driver reports the GPU as unavailable",
        action="ResetDevice",
        repair="ResetDevice",
    ),
    "poison": Meaning(
        reason="Poison",
        effect=Effect.DEGRADED,
        message="poisoned data was consumed",
        action="None",
        repair="ResetDevice",
    ),
    "ecc-storm": Meaning(
        reason="EccStorm",
        effect=Effect.DEGRADED,
        message="a storm of corrected ECC errors",
        action="None",
        repair="ResetDevice",
    ),
    **PCIE_MEANINGS,
}
NUMBERED = (
    *(f"Xid{number}" for number in range(1, MAX_XID + 1)),
    *(f"Sxid{number}" for number in sorted(kernel_log.SXIDS)),
    kernel_log.UNLISTED,
)


def meaning(row: Xid) -> Meaning:
    """Return the meaning of a row of the catalogue."""
    return Meaning(
        reason=f"Xid{row.number}",
        effect=row.effect,
        message=f"{row.meaning} (XID {row.number})",
        action=row.action,
        repair="ResetDevice",
        domain=row.domain,
        code=row.number,
        contained=row.contained,
        must_leave=row.off_bus,
        may_be_unhealthy=row.number != CLEANUP,
        driver_decides=row.effect is Effect.UNDECIDED and row.action == "Inspect",
        decides_others=row.number in DECIDE_48,
    )


class NvidiaFaults(FaultSource):
    reasons = NUMBERED
    meanings = MEANINGS

    def kind_of(self, event: ProbeEvent) -> str:
        return kernel_log.kind_of_detail(event) if event.kind == kmsg.XID_DETAIL else event.kind

    def event(self, kind: str, code: int | None) -> Meaning | None:
        if code is not None and kind == CODED:
            return meaning(look_up(code))
        if code is not None and kind in {kmsg.SXID, kmsg.SXID_FATAL}:
            return kernel_log.switch(code, fatal=kind == kmsg.SXID_FATAL)
        return self.meanings.get(kind)

    def decide(self, code: int, together: Sequence[int], driver_action: str | None) -> HealthState | None:
        """Return the state that an XID causes when no worse one came beside it."""
        row = look_up(code)
        if code == CLEANUP:  # alone or after an application's error: a process was cleaned up
            return None
        if code == DOUBLE_BIT and CONTAINED in together:
            return HealthState.DEGRADED
        # A row that is marked (63) is remapped with the next reset: NVIDIA's workflow for 48 says to drain, then to
        # reset. A driver that requires nothing has said that the GPU can be used again.
        if code == DOUBLE_BIT and REMAPPED in together and driver_action == "None":
            return HealthState.DEGRADED
        if row.action == "Inspect" or (code == NVLINK and driver_action == "None"):
            return HealthState.DEGRADED
        return HealthState.UNHEALTHY

    def read(self, readings: Readings) -> tuple[FaultCondition, ...]:
        return (node_missing(readings), *read(readings))
