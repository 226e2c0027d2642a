"""Readings of one GPU: its health at every poll, what changes seldom, telemetry, who uses it, and the fabric around it.

Every call may fail; see `calls`. Numbers of return codes, fields and bits are nvml.h's, by their names in pynvml.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from ctypes import byref
from dataclasses import replace
from typing import Any

import pynvml

from nodedevices_probe import nvidia
from nodedevices_probe.nvidia.calls import NvmlCalls, describe
from nodedevices_probe.nvidia.facts import GpuIdentity, small
from nodedevices_probe.protocol import MAX_INTEGER, MAX_MESSAGE, SWITCH, Readings, text, within

UNKNOWN_RECOVERY_ACTION = "RebootSystem"  # a newer driver's value is never taken for "None"
THERMAL_SLOWDOWN = pynvml.nvmlClocksEventReasonSwThermalSlowdown | pynvml.nvmlClocksEventReasonHwThermalSlowdown
SLOW_SECONDS = 60.0
TEMPERATURES = (-273, 300)  # degrees Celsius that a card can mean
# The fields that a GPU has once. Limits are in milliwatts; a margin is signed.
_POWER_DEFAULT = pynvml.NVML_FI_DEV_POWER_DEFAULT_LIMIT
_POWER_LIMIT = pynvml.NVML_FI_DEV_POWER_CURRENT_LIMIT
_SLOWDOWN_MARGIN = pynvml.NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT
# Those that each of its NVLinks has.
_VERSION = pynvml.NVML_FI_DEV_NVLINK_GET_VERSION
_SPEED = pynvml.NVML_FI_DEV_NVLINK_GET_SPEED
_ERRORS = pynvml.NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER
_GENERATIONS = {
    pynvml.NVML_NVLINK_VERSION_1_0: 1,
    pynvml.NVML_NVLINK_VERSION_2_0: 2,
    pynvml.NVML_NVLINK_VERSION_2_2: 2,
    pynvml.NVML_NVLINK_VERSION_3_0: 3,
    pynvml.NVML_NVLINK_VERSION_3_1: 3,
    pynvml.NVML_NVLINK_VERSION_4_0: 4,
    pynvml.NVML_NVLINK_VERSION_5_0: 5,
    pynvml.NVML_NVLINK_VERSION_6_0: 6,
}
_TYPES = {  # where a field's value is in its union
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
}
COMPLETED = "Completed"
# Parts of the health mask by their names in nvml.h (NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_*, ..._WIDTH_*), the value of
# each that says there is a fault, and what it is called here. Left out is whether a partition is assigned: where
# partitions are given to machines, it is normal that none is. A GPU without a partition is not Completed.
_FABRIC_FAULTS = (
    ("DEGRADED_BW", "TRUE", "bandwidthDegraded"),
    ("ROUTE_RECOVERY", "TRUE", "routeRecovery"),
    ("ROUTE_UNHEALTHY", "TRUE", "routeUnhealthy"),
    ("ACCESS_TIMEOUT_RECOVERY", "TRUE", "accessTimeoutRecovery"),
    ("GFM_STATE", "DISCONNECTED", "managerDisconnected"),
)
_FABRIC_SETUP, _SETUP_WELL = "INCORRECT_CONFIGURATION", ("NOT_SUPPORTED", "NONE", "NO_PARTITION")


def read_health(nvml: NvmlCalls, handle: Any, known: GpuIdentity, *, nvlinks_inactive: int | None) -> Readings:
    """Everything that bears on health, but for the fabric and the PCIe link; with what `read_slow` found. `lost` and
    `error` are what this or an earlier question met."""
    rows = nvml.call("nvmlDeviceGetRemappedRows", handle) or (None, None, None, None)
    volatile, aggregate = (
        nvml.call("nvmlDeviceGetTotalEccErrors", handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, counter)
        for counter in (pynvml.NVML_VOLATILE_ECC, pynvml.NVML_AGGREGATE_ECC)
    )
    slowdown = nvml.call("nvmlDeviceGetCurrentClocksEventReasons", handle, telemetry=True)
    if slowdown is None:  # its name before driver 535
        slowdown = nvml.call("nvmlDeviceGetCurrentClocksThrottleReasons", handle, telemetry=True)
    margin = None  # where there is no slowdown margin to compare it with (A100), it is not asked for
    if known.slow.temperature_slowdown_margin_celsius is not None:
        margin = within(nvml.call("nvmlDeviceGetMarginTemperature", handle, telemetry=True), *TEMPERATURES)
    temperature = nvml.call("nvmlDeviceGetTemperature", handle, pynvml.NVML_TEMPERATURE_GPU, telemetry=True)
    readings = replace(
        known.slow,
        recovery_action=_recovery_action(nvml, handle),
        remapped_correctable=_count(rows[0]),
        remapped_uncorrectable=_count(rows[1]),
        remap_pending=None if rows[2] is None else bool(rows[2]),
        remap_failure=None if rows[3] is None else bool(rows[3]),
        ecc_uncorrectable_volatile=_count(volatile),
        ecc_uncorrectable_aggregate=_count(aggregate),
        sram_threshold_exceeded=_sram_threshold_exceeded(nvml, handle),
        nvlinks_inactive=nvlinks_inactive,
        pcie_replays=_count(nvml.call("nvmlDeviceGetPcieReplayCounter", handle, telemetry=True)),
        thermal_slowdown=_has(slowdown, THERMAL_SLOWDOWN),
        temperature_celsius=within(temperature, *TEMPERATURES),
        power_milliwatts=_count(nvml.call("nvmlDeviceGetPowerUsage", handle, telemetry=True)),
        hw_slowdown=_has(slowdown, pynvml.nvmlClocksThrottleReasonHwSlowdown),
        power_brake=_has(slowdown, pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown),
        clocks_limited=_has(slowdown, pynvml.nvmlClocksEventReasonApplicationsClocksSetting),
        temperature_margin_celsius=margin,
        switch_links_inactive=nvlinks_inactive if SWITCH in known.link_ends.values() else None,
    )
    return replace(readings, lost=nvml.lost, error=None if nvml.lost else nvml.error)


def _has(reasons: int | None, bits: int) -> bool | None:
    return None if reasons is None else bool(reasons & bits)


def read_telemetry(nvml: NvmlCalls, handle: Any, readings: Readings) -> Readings:
    """The same with what bears on nothing and changes all the time."""
    memory = nvml.call("nvmlDeviceGetMemoryInfo", handle, telemetry=True)
    return replace(
        readings,
        fan_percent=small(nvml.call("nvmlDeviceGetFanSpeed", handle, telemetry=True)),
        utilization_percent=_utilization(nvml, handle),
        memory_used_bytes=_count(memory.used) if memory is not None else None,
        sm_clock_mhz=small(nvml.call("nvmlDeviceGetClockInfo", handle, pynvml.NVML_CLOCK_SM, telemetry=True)),
        memory_clock_mhz=small(nvml.call("nvmlDeviceGetClockInfo", handle, pynvml.NVML_CLOCK_MEM, telemetry=True)),
    )


def read_use(nvml: NvmlCalls, handle: Any, readings: Readings, *, sees_all: bool) -> Readings:
    """The same with who uses the GPU. `sees_all`: the driver lists the processes of all containers to this one; newer
    drivers leave out those of pid namespaces that this process cannot see (gpu_rmapi.c of NVIDIA's open kernel modules,
    _gpuConvertPid), so that none is no evidence."""
    listed = [
        nvml.call(function, handle, telemetry=True)
        for function in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3")
    ]
    seen = {process.pid for some in listed if some is not None for process in some}
    known = bool(seen) or (sees_all and None not in listed)
    memory = nvml.call("nvmlDeviceGetMemoryInfo", handle, pynvml.nvmlMemory_v2, telemetry=True)
    # Whether `used` has the reserve in it differs between the manuals of R525 and R590.
    allocated = memory.total - memory.free - memory.reserved if memory is not None else None
    busy = readings.utilization_percent  # telemetry has read it already
    return replace(
        readings,
        processes=small(len(seen)) if known else None,
        memory_allocated_bytes=_count(allocated),
        utilization_percent=_utilization(nvml, handle) if busy is None else busy,
    )


def _utilization(nvml: NvmlCalls, handle: Any) -> int | None:
    rates = nvml.call("nvmlDeviceGetUtilizationRates", handle, telemetry=True)
    return small(rates.gpu) if rates is not None else None


def _count(value: int | None) -> int | None:
    return within(value, 0, MAX_INTEGER)


def _recovery_action(nvml: NvmlCalls, handle: Any) -> str | None:
    values = nvml.call("nvmlDeviceGetFieldValues", handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    if values is None or not nvml.judge("field 230, GPU recovery action", values[0].nvmlReturn):
        return None
    return dict(enumerate(nvidia.RECOVERY_ACTIONS)).get(values[0].value.uiVal, UNKNOWN_RECOVERY_ACTION)


def _sram_threshold_exceeded(nvml: NvmlCalls, handle: Any) -> bool | None:
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    answered = nvml.call("nvmlDeviceGetSramEccErrorStatus", handle, byref(status)) is not None
    return bool(status.bThresholdExceeded) if answered else None


def read_slow(nvml: NvmlCalls, handle: Any, links: Sequence[int]) -> Readings:
    """Return what changes seldom: read once a minute, so that a poll is as short as it was without. `links`: the
    NVLinks of the GPU that have been up. Most are fields, which one call reads: limits of power and temperature, and of
    each NVLink its generation, speed and error rate. What a driver or a card does not have is never an error of the
    GPU."""
    fields = [_POWER_DEFAULT, _POWER_LIMIT, _SLOWDOWN_MARGIN]
    fields += [(field, link) for field in (_VERSION, _SPEED, _ERRORS) for link in links]
    found = nvml.call("nvmlDeviceGetFieldValues", handle, fields, telemetry=True)
    persistence = nvml.call("nvmlDeviceGetPersistenceMode", handle, telemetry=True)
    values = [value for value in found or () if value.nvmlReturn == pynvml.NVML_SUCCESS]
    speeds = [number for number in _numbers(values, _SPEED) if number > 0]  # a link that is down has none
    return Readings(
        persistence_mode=None if persistence is None else bool(persistence),
        power_limit_milliwatts=min(_numbers(values, _POWER_LIMIT), default=None),
        power_default_limit_milliwatts=min(_numbers(values, _POWER_DEFAULT), default=None),
        temperature_slowdown_margin_celsius=min(_numbers(values, _SLOWDOWN_MARGIN, *TEMPERATURES), default=None),
        nvlink_generation=_GENERATIONS.get(min(_numbers(values, _VERSION), default=0)),
        nvlink_megabytes_per_second=min(speeds, default=None),
        nvlink_errors_per_exabit=max(map(errors_per_exabit, _numbers(values, _ERRORS)), default=None),
    )


def errors_per_exabit(rate: int) -> int:
    """Return an error rate as NVML has it, 4 bits of mantissa before 8 of a negative exponent of ten (nvml.h,
    NVML_NVLINK_BER_*), in errors per 10^18 bits, as many as a line can say."""
    mantissa, exponent = rate >> 8 & 0xF, rate & 0xFF
    return min(mantissa * 10**18 // int(10**exponent), MAX_INTEGER)


def _numbers(values: Iterable[Any], field: int, low: int = 0, high: int = MAX_INTEGER) -> list[int]:
    """Return what a field says, of each link, where it is a number that the hardware can mean."""
    found = (
        getattr(value.value, _TYPES[value.valueType])
        for value in values
        if value.fieldId == field and value.valueType in _TYPES
    )
    return [number for number in found if low <= number <= high]


def read_fabric(nvml: NvmlCalls, handle: Any, readings: Readings) -> tuple[Readings, str]:
    """Return the readings with those of the NVLink fabric of a machine or rack with switches, as the driver of one GPU
    sees it, and the clique, <cluster uuid>.<clique id>, once the GPU has joined one.

    A fabric manager registers each GPU with the fabric, at boot and after a reset. The state stays Completed when the
    manager dies later: what says so then is the health mask of newer drivers, and that a GPU which was Completed is not
    any more."""
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    if nvml.call("nvmlDeviceGetGpuFabricInfoV", handle, byref(info), telemetry=True) is None:
        return readings, ""
    readings = replace(readings, fabric_state=dict(enumerate(nvidia.FABRIC_STATES)).get(info.state))
    if (
        readings.fabric_state != COMPLETED
    ):  # "must be checked only if state returns complete", says nvml.h of the status
        return readings, ""
    if info.status != pynvml.NVML_SUCCESS:
        return replace(readings, fabric_error=text(describe(info.status), MAX_MESSAGE)), ""
    cluster = bytes(info.clusterUuid)
    clique = f"{uuid.UUID(bytes=cluster)}.{info.cliqueId}" if any(cluster) else ""
    return replace(readings, fabric_conditions=_conditions(info.healthMask)), clique


def _conditions(mask: int) -> tuple[str, ...]:
    found = [name for part, fault, name in _FABRIC_FAULTS if _is(mask, part, fault)]
    return (*found, *(() if any(_is(mask, _FABRIC_SETUP, well) for well in _SETUP_WELL) else ("wrongSetup",)))


def _is(mask: int, part: str, value: str) -> bool:
    """True when a part of the health mask has the value of this name."""
    shift, width, expected = (
        getattr(pynvml, f"NVML_GPU_FABRIC_HEALTH_MASK_{name}")
        for name in (f"SHIFT_{part}", f"WIDTH_{part}", f"{part}_{value}")
    )
    return bool(mask >> shift & width == expected)
