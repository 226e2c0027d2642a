"""Facts of one GPU: what it is (read once while it is there) and how it is (read at every poll).

Every call may fail; see `calls`. Numbers of return codes, fields and bits are nvml.h's, by their
names in pynvml.
"""

from __future__ import annotations

from collections import Counter
from ctypes import byref
from dataclasses import dataclass, field, replace
from typing import Any

import pynvml
from nodedevices_api.bounds import MAX_MINOR
from nodedevices_common.quantity import from_bytes

from nodedevices_probe import nvidia
from nodedevices_probe.node.sysfs import System
from nodedevices_probe.nvidia.calls import NvmlCalls
from nodedevices_probe.nvidia.slow import TEMPERATURES, SlowFacts
from nodedevices_probe.protocol import (
    MAX_INTEGER,
    MAX_SMALL,
    SWITCH,
    DeviceFact,
    Link,
    PciePath,
    Readings,
    normal_bus_id,
    text,
    within,
)

MAX_NVLINKS = 64
ARCHITECTURES = {  # NVML_DEVICE_ARCH_*, named as NVIDIA's DRA driver does
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada Lovelace",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}
BRANDS = {  # NVML_BRAND_*, the same
    1: "Quadro",
    2: "Tesla",
    3: "NVS",
    4: "Grid",
    5: "GeForce",
    6: "Titan",
    7: "NvidiaVApps",
    8: "NvidiaVPC",
    9: "NvidiaVCS",
    10: "NvidiaVWS",
    11: "NvidiaCloudGaming",
    12: "QuadroRTX",
    13: "NvidiaRTX",
    14: "Nvidia",
    15: "GeForceRTX",
    16: "TitanRTX",
}
RECOVERY_ACTIONS = {  # NVML_GPU_RECOVERY_ACTION_*, in the names of health.recoveryAction
    0: "None",
    1: "ResetDevice",
    2: "RebootNode",
    3: "DrainP2P",
    4: "DrainAndReset",
    5: "RecoverIMEXDomain",
    6: "ResetBus",
    7: "RebootSystem",
}
UNKNOWN_RECOVERY_ACTION = "RebootSystem"  # a newer driver's value is never taken for "None"
PCIE_PATHS = {  # NVML_TOPOLOGY_*
    0: PciePath.INTERNAL,
    10: PciePath.SINGLE,
    20: PciePath.MULTIPLE,
    30: PciePath.HOSTBRIDGE,
    40: PciePath.NODE,
    50: PciePath.SYSTEM,
}
THERMAL_SLOWDOWN = pynvml.nvmlClocksEventReasonSwThermalSlowdown | pynvml.nvmlClocksEventReasonHwThermalSlowdown


@dataclass(slots=True)
class GpuIdentity:
    """What stays true of a GPU while it is there."""

    fact: DeviceFact  # identity, without partitions, links, paths and readings
    whole: bool = True  # all of that was read; else it is read again
    mig_enabled: bool | None = None  # as it was said last; None: never
    clique: str = ""  # the same
    link_ends: dict[int, str] = field(default_factory=dict)  # NVLink number -> "switch" or the peer's PCI address
    links: tuple[int, ...] | None = None  # the NVLink numbers that this GPU has; None: not read yet
    slow: SlowFacts | None = None
    paths: dict[str, PciePath] = field(default_factory=dict)  # id of another GPU -> nearest common ancestor


def identify(nvml: NvmlCalls, handle: Any, identity: str, index: int, system: System) -> GpuIdentity:
    """Return what stays true of this GPU."""
    pci = nvml.call("nvmlDeviceGetPciInfo_v3", handle)
    bus_id = normal_bus_id(pci.busId) if pci is not None else ""
    minor = within(nvml.call("nvmlDeviceGetMinorNumber", handle), 0, MAX_MINOR)
    memory = nvml.call("nvmlDeviceGetMemoryInfo", handle)
    capability = nvml.call("nvmlDeviceGetCudaComputeCapability", handle)
    name = nvml.call("nvmlDeviceGetName", handle)
    return GpuIdentity(
        fact=DeviceFact(
            id=identity,
            index=index,
            minor=minor,
            type="gpu",
            vendor=nvidia.VENDOR,
            product_name=text(name or ""),
            brand=BRANDS.get(nvml.call("nvmlDeviceGetBrand", handle, telemetry=True), ""),
            architecture=ARCHITECTURES.get(nvml.call("nvmlDeviceGetArchitecture", handle, telemetry=True), ""),
            pci_bus_id=bus_id,
            pcie_root=system.pcie_root(bus_id) if bus_id else "",
            numa_node=system.numa_node(bus_id) if bus_id else None,
            extra=nvidia.attributes(compute_capability=f"{capability[0]}.{capability[1]}" if capability else ""),
            capacity=memory_capacity(memory.total if memory is not None else 0),
            device_nodes=(f"/dev/nvidia{minor}",) if minor is not None else (),
        ),
        whole=None not in (pci, minor, memory, capability, name),
    )


def memory_capacity(total: int) -> dict[str, str]:
    """As a quantity; nothing for what no hardware means."""
    known = within(total, 1, MAX_INTEGER)
    return {} if known is None else {"memory": from_bytes(known)}


def read_links(nvml: NvmlCalls, handle: Any, known: GpuIdentity) -> int | None:
    """Look at every NVLink and learn where it ends. How many are down; None without NVLink, or if it is not known."""
    numbers, inactive = [], 0
    for number in known.links if known.links is not None else range(MAX_NVLINKS):
        code, state = _link_state(nvml, handle, number)
        if code == pynvml.NVML_ERROR_INVALID_ARGUMENT:
            break  # past the last link this driver knows
        if state is None:
            continue
        numbers.append(number)
        if not state:
            inactive += 1
        elif number not in known.link_ends:
            end = _link_end(nvml, handle, number)
            if end:
                known.link_ends[number] = end
    if nvml.lost:
        return None
    if known.links is None and not nvml.error:
        known.links = tuple(numbers)
    every = known.links is not None and len(numbers) == len(known.links)
    return inactive if numbers and (inactive or every) else None  # links that do not say are not up


def has_switch(known: GpuIdentity) -> bool:
    return SWITCH in known.link_ends.values()


def _link_state(nvml: NvmlCalls, handle: Any, number: int) -> tuple[int, int | None]:
    if nvml.lost:
        return pynvml.NVML_ERROR_GPU_IS_LOST, None
    try:
        return pynvml.NVML_SUCCESS, pynvml.nvmlDeviceGetNvLinkState(handle, number)
    except pynvml.NVMLError as error:
        nvml.judge("nvmlDeviceGetNvLinkState", error.value)
        return error.value, None


def _link_end(nvml: NvmlCalls, handle: Any, number: int) -> str:
    kind = nvml.call("nvmlDeviceGetNvLinkRemoteDeviceType", handle, number, telemetry=True)
    if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
        return SWITCH
    if kind is not None and kind != pynvml.NVML_NVLINK_DEVICE_TYPE_GPU:
        return ""
    remote = nvml.call("nvmlDeviceGetNvLinkRemotePciInfo", handle, number, telemetry=True)
    return normal_bus_id(remote.busId) if remote is not None else ""


def links_of(known: GpuIdentity, ids_by_bus: dict[str, str]) -> tuple[Link, ...]:
    """Links counted by where they end: the switch first, then GPUs of this machine by id."""
    ends = Counter(end if end == SWITCH else ids_by_bus.get(end, "") for end in known.link_ends.values())
    ends.pop("", None)
    return tuple(
        Link(kind="NVLink", to=to, count=count)
        for to, count in sorted(ends.items(), key=lambda pair: (pair[0] != SWITCH, pair[0]))
    )


def pcie_path(nvml: NvmlCalls, handle: Any, other: Any) -> PciePath | None:
    """Return the nearest common ancestor of two GPUs."""
    return PCIE_PATHS.get(nvml.call("nvmlDeviceGetTopologyCommonAncestor", handle, other, telemetry=True))


def read_health(nvml: NvmlCalls, handle: Any, known: GpuIdentity, *, nvlinks_inactive: int | None) -> Readings:
    """Everything that bears on health, but for the fabric and the PCIe link. `lost` and `error` are what this or an
    earlier question met."""
    rows = nvml.call("nvmlDeviceGetRemappedRows", handle) or (None, None, None, None)
    volatile, aggregate = (
        nvml.call("nvmlDeviceGetTotalEccErrors", handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, counter)
        for counter in (pynvml.NVML_VOLATILE_ECC, pynvml.NVML_AGGREGATE_ECC)
    )
    slowdown = nvml.call("nvmlDeviceGetCurrentClocksEventReasons", handle, telemetry=True)
    if slowdown is None:  # its name before driver 535
        slowdown = nvml.call("nvmlDeviceGetCurrentClocksThrottleReasons", handle, telemetry=True)
    slow = known.slow or SlowFacts()
    action = _recovery_action(nvml, handle)
    sram = _sram_threshold_exceeded(nvml, handle)
    temperature = nvml.call("nvmlDeviceGetTemperature", handle, pynvml.NVML_TEMPERATURE_GPU, telemetry=True)
    power = nvml.call("nvmlDeviceGetPowerUsage", handle, telemetry=True)
    replays = nvml.call("nvmlDeviceGetPcieReplayCounter", handle, telemetry=True)
    margin = None  # where there is no slowdown margin to compare it with (A100), it is not asked for
    if slow.slowdown_margin_celsius is not None:
        margin = within(nvml.call("nvmlDeviceGetMarginTemperature", handle, telemetry=True), *TEMPERATURES)
    return Readings(
        lost=nvml.lost,
        error=None if nvml.lost else nvml.error,
        recovery_action=action,
        remapped_correctable=_count(rows[0]),
        remapped_uncorrectable=_count(rows[1]),
        remap_pending=None if rows[2] is None else bool(rows[2]),
        remap_failure=None if rows[3] is None else bool(rows[3]),
        ecc_uncorrectable_volatile=_count(volatile),
        ecc_uncorrectable_aggregate=_count(aggregate),
        sram_threshold_exceeded=sram,
        nvlinks_inactive=nvlinks_inactive,
        pcie_replays=_count(replays),
        thermal_slowdown=_has(slowdown, THERMAL_SLOWDOWN),
        temperature_celsius=within(temperature, *TEMPERATURES),
        power_milliwatts=_count(power),
        hw_slowdown=_has(slowdown, pynvml.nvmlClocksThrottleReasonHwSlowdown),
        power_brake=_has(slowdown, pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown),
        clocks_limited=_has(slowdown, pynvml.nvmlClocksEventReasonApplicationsClocksSetting),
        persistence_mode=slow.persistence_mode,
        power_limit_milliwatts=slow.power_limit_milliwatts,
        power_default_limit_milliwatts=slow.power_default_limit_milliwatts,
        temperature_margin_celsius=margin,
        temperature_slowdown_margin_celsius=slow.slowdown_margin_celsius,
        switch_links_inactive=nvlinks_inactive if has_switch(known) else None,
        nvlink_generation=slow.nvlink_generation,
        nvlink_megabytes_per_second=slow.nvlink_megabytes_per_second,
        nvlink_errors_per_exabit=slow.nvlink_errors_per_exabit,
    )


def _has(reasons: int | None, bits: int) -> bool | None:
    return None if reasons is None else bool(reasons & bits)


def read_telemetry(nvml: NvmlCalls, handle: Any, readings: Readings) -> Readings:
    """The same with what bears on nothing and changes all the time."""
    memory = nvml.call("nvmlDeviceGetMemoryInfo", handle, telemetry=True)
    return replace(
        readings,
        fan_percent=_small(nvml.call("nvmlDeviceGetFanSpeed", handle, telemetry=True)),
        utilization_percent=_utilization(nvml, handle),
        memory_used_bytes=_count(memory.used) if memory is not None else None,
        sm_clock_mhz=_small(nvml.call("nvmlDeviceGetClockInfo", handle, pynvml.NVML_CLOCK_SM, telemetry=True)),
        memory_clock_mhz=_small(nvml.call("nvmlDeviceGetClockInfo", handle, pynvml.NVML_CLOCK_MEM, telemetry=True)),
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
        processes=_small(len(seen)) if known else None,
        memory_allocated_bytes=_count(allocated),
        utilization_percent=_utilization(nvml, handle) if busy is None else busy,
    )


def _utilization(nvml: NvmlCalls, handle: Any) -> int | None:
    rates = nvml.call("nvmlDeviceGetUtilizationRates", handle, telemetry=True)
    return _small(rates.gpu) if rates is not None else None


def _small(value: int | None) -> int | None:
    return within(value, 0, MAX_SMALL)


def _count(value: int | None) -> int | None:
    return within(value, 0, MAX_INTEGER)


def _recovery_action(nvml: NvmlCalls, handle: Any) -> str | None:
    values = nvml.call("nvmlDeviceGetFieldValues", handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    if values is None or not nvml.judge("field 230, GPU recovery action", values[0].nvmlReturn):
        return None
    return RECOVERY_ACTIONS.get(values[0].value.uiVal, UNKNOWN_RECOVERY_ACTION)


def _sram_threshold_exceeded(nvml: NvmlCalls, handle: Any) -> bool | None:
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    answered = nvml.call("nvmlDeviceGetSramEccErrorStatus", handle, byref(status)) is not None
    return bool(status.bThresholdExceeded) if answered else None
