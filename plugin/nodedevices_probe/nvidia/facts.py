"""What one GPU is (asked once while it is there) and how it is (asked every time).

Every question may stay unanswered; see `nvml_calls`. Numbers of return codes, fields and bits are nvml.h's, by their
names in pynvml.
"""

from __future__ import annotations

import uuid
from collections import Counter
from ctypes import byref
from dataclasses import dataclass, field, replace
from typing import Any

import pynvml
from nodedevices_api.bounds import MAX_MINOR
from nodedevices_api.quantity import from_bytes

from nodedevices_probe.nvidia import attributes as nvidia
from nodedevices_probe.nvidia.calls import Asker
from nodedevices_probe.protocol import (
    MAX_INTEGER,
    MAX_SMALL,
    DeviceFact,
    Link,
    PciePath,
    Readings,
    text,
    within,
)
from nodedevices_probe.sysfs import System, normal_bus_id

MAX_NVLINKS = 64
TEMPERATURES = (-273, 300)  # degrees Celsius that a card can mean
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
RECOVERY_ACTIONS = {  # NVML_GPU_RECOVERY_ACTION_*, in SCHEMA's names
    0: "None",
    1: "ResetDevice",
    2: "RebootNode",
    3: "DrainP2P",
    4: "DrainAndReset",
    5: "RecoverIMEXDomain",
    6: "ResetBus",
    7: "RebootSystem",
}
UNKNOWN_RECOVERY_ACTION = "RebootSystem"  # a newer driver's word is never taken for "None"
PCIE_PATHS = {  # NVML_TOPOLOGY_*
    0: PciePath.INTERNAL,
    10: PciePath.SINGLE,
    20: PciePath.MULTIPLE,
    30: PciePath.HOSTBRIDGE,
    40: PciePath.NODE,
    50: PciePath.SYSTEM,
}
THERMAL_SLOWDOWN = pynvml.nvmlClocksEventReasonSwThermalSlowdown | pynvml.nvmlClocksEventReasonHwThermalSlowdown
FABRIC_COMPLETED = pynvml.NVML_GPU_FABRIC_STATE_COMPLETED


@dataclass(slots=True)
class Known:
    """What stays true of a GPU while it is there."""

    fact: DeviceFact  # identity, without partitions, links, paths and readings
    clique: str = ""
    link_ends: dict[int, str] = field(default_factory=dict)  # NVLink number -> "switch" or the peer's PCI address
    links: tuple[int, ...] | None = None  # the NVLink numbers that this GPU has; None: not asked yet
    paths: dict[str, PciePath] = field(default_factory=dict)  # id of another GPU -> nearest common ancestor


def identify(asker: Asker, handle: Any, identity: str, index: int, system: System) -> Known:
    """What this GPU is."""
    pci = asker.ask("nvmlDeviceGetPciInfo_v3", handle)
    bus_id = normal_bus_id(pci.busId) if pci is not None else ""
    minor = within(asker.ask("nvmlDeviceGetMinorNumber", handle), 0, MAX_MINOR)
    memory = asker.ask("nvmlDeviceGetMemoryInfo", handle)
    capability = asker.ask("nvmlDeviceGetCudaComputeCapability", handle)
    return Known(
        fact=DeviceFact(
            id=identity,
            index=index,
            minor=minor,
            type="gpu",
            vendor=nvidia.VENDOR,
            product_name=text(asker.ask("nvmlDeviceGetName", handle) or ""),
            brand=BRANDS.get(asker.ask("nvmlDeviceGetBrand", handle, telemetry=True), ""),
            architecture=ARCHITECTURES.get(asker.ask("nvmlDeviceGetArchitecture", handle, telemetry=True), ""),
            pci_bus_id=bus_id,
            pcie_root=system.pcie_root(bus_id) if bus_id else "",
            numa_node=system.numa_node(bus_id) if bus_id else None,
            extra=nvidia.attributes(compute_capability=f"{capability[0]}.{capability[1]}" if capability else ""),
            capacity=memory_capacity(memory.total if memory is not None else 0),
            device_nodes=(f"/dev/nvidia{minor}",) if minor is not None else (),
        ),
    )


def memory_capacity(total: int) -> dict[str, str]:
    """As a quantity; nothing for what no hardware means."""
    known = within(total, 1, MAX_INTEGER)
    return {} if known is None else {"memory": from_bytes(known)}


def fabric_clique(asker: Asker, handle: Any) -> str:
    """`<cluster uuid>.<clique id>` of the NVLink fabric, once the GPU has joined one; else ""."""
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    if asker.ask("nvmlDeviceGetGpuFabricInfoV", handle, byref(info), telemetry=True) is None:
        return ""
    cluster = bytes(info.clusterUuid)
    if info.state != FABRIC_COMPLETED or info.status != pynvml.NVML_SUCCESS or not any(cluster):
        return ""
    return f"{uuid.UUID(bytes=cluster)}.{info.cliqueId}"


def read_links(asker: Asker, handle: Any, known: Known) -> int | None:
    """Look at every NVLink and learn where it ends. How many are down; None without NVLink."""
    numbers, inactive = [], 0
    for number in known.links if known.links is not None else range(MAX_NVLINKS):
        code, state = _link_state(asker, handle, number)
        if code == pynvml.NVML_ERROR_INVALID_ARGUMENT:
            break  # past the last link this driver knows
        if state is None:
            continue
        numbers.append(number)
        if not state:
            inactive += 1
        elif number not in known.link_ends:
            end = _link_end(asker, handle, number)
            if end:
                known.link_ends[number] = end
    if asker.lost:
        return None
    if known.links is None:
        known.links = tuple(numbers)
    return inactive if known.links else None


def _link_state(asker: Asker, handle: Any, number: int) -> tuple[int, int | None]:
    if asker.lost:
        return pynvml.NVML_ERROR_GPU_IS_LOST, None
    try:
        return pynvml.NVML_SUCCESS, pynvml.nvmlDeviceGetNvLinkState(handle, number)
    except pynvml.NVMLError as error:
        asker.judge("nvmlDeviceGetNvLinkState", error.value)
        return error.value, None


def _link_end(asker: Asker, handle: Any, number: int) -> str:
    kind = asker.ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, number, telemetry=True)
    if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
        return "switch"
    if kind is not None and kind != pynvml.NVML_NVLINK_DEVICE_TYPE_GPU:
        return ""
    remote = asker.ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, number, telemetry=True)
    return normal_bus_id(remote.busId) if remote is not None else ""


def links_of(known: Known, ids_by_bus: dict[str, str]) -> tuple[Link, ...]:
    """Links counted by where they end: the switch first, then GPUs of this machine by id."""
    ends = Counter(end if end == "switch" else ids_by_bus.get(end, "") for end in known.link_ends.values())
    ends.pop("", None)
    return tuple(
        Link(kind="NVLink", to=to, count=count)
        for to, count in sorted(ends.items(), key=lambda each: (each[0] != "switch", each[0]))
    )


def pcie_path(asker: Asker, handle: Any, other: Any) -> PciePath | None:
    """The nearest common ancestor of two GPUs."""
    return PCIE_PATHS.get(asker.ask("nvmlDeviceGetTopologyCommonAncestor", handle, other, telemetry=True))


def read_health(asker: Asker, handle: Any, *, nvlinks_inactive: int | None) -> Readings:
    """Everything that bears on health. `lost` and `error` are what this or an earlier question met."""
    rows = asker.ask("nvmlDeviceGetRemappedRows", handle) or (None, None, None, None)
    volatile, aggregate = (
        asker.ask("nvmlDeviceGetTotalEccErrors", handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, counter)
        for counter in (pynvml.NVML_VOLATILE_ECC, pynvml.NVML_AGGREGATE_ECC)
    )
    slowdown = asker.ask("nvmlDeviceGetCurrentClocksEventReasons", handle, telemetry=True)
    if slowdown is None:  # its name before driver 535
        slowdown = asker.ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle, telemetry=True)
    action = _recovery_action(asker, handle)
    sram = _sram_threshold_exceeded(asker, handle)
    temperature = asker.ask("nvmlDeviceGetTemperature", handle, pynvml.NVML_TEMPERATURE_GPU, telemetry=True)
    power = asker.ask("nvmlDeviceGetPowerUsage", handle, telemetry=True)
    replays = asker.ask("nvmlDeviceGetPcieReplayCounter", handle, telemetry=True)
    return Readings(
        lost=asker.lost,
        error=None if asker.lost else asker.error,
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
        thermal_slowdown=None if slowdown is None else bool(slowdown & THERMAL_SLOWDOWN),
        temperature_celsius=within(temperature, *TEMPERATURES),
        power_milliwatts=_count(power),
    )


def read_telemetry(asker: Asker, handle: Any, readings: Readings) -> Readings:
    """The same with what bears on nothing and changes all the time."""
    memory = asker.ask("nvmlDeviceGetMemoryInfo", handle, telemetry=True)
    utilization = asker.ask("nvmlDeviceGetUtilizationRates", handle, telemetry=True)
    return replace(
        readings,
        fan_percent=_small(asker.ask("nvmlDeviceGetFanSpeed", handle, telemetry=True)),
        utilization_percent=_small(utilization.gpu) if utilization is not None else None,
        memory_used_bytes=_count(memory.used) if memory is not None else None,
        sm_clock_mhz=_small(asker.ask("nvmlDeviceGetClockInfo", handle, pynvml.NVML_CLOCK_SM, telemetry=True)),
        memory_clock_mhz=_small(asker.ask("nvmlDeviceGetClockInfo", handle, pynvml.NVML_CLOCK_MEM, telemetry=True)),
    )


def _small(value: int | None) -> int | None:
    return within(value, 0, MAX_SMALL)


def _count(value: int | None) -> int | None:
    return within(value, 0, MAX_INTEGER)


def _recovery_action(asker: Asker, handle: Any) -> str | None:
    values = asker.ask("nvmlDeviceGetFieldValues", handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    if values is None or not asker.judge("field 230, GPU recovery action", values[0].nvmlReturn):
        return None
    return RECOVERY_ACTIONS.get(values[0].value.uiVal, UNKNOWN_RECOVERY_ACTION)


def _sram_threshold_exceeded(asker: Asker, handle: Any) -> bool | None:
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    answered = asker.ask("nvmlDeviceGetSramEccErrorStatus", handle, byref(status)) is not None
    return bool(status.bThresholdExceeded) if answered else None
