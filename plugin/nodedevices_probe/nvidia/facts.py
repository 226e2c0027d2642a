"""Facts of one GPU: what it is (read once while it is there), and its links. How it is: see `readings`.

Every call may fail; see `calls`. Numbers of return codes, fields and bits are nvml.h's, by their
names in pynvml.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pynvml
from nodedevices_api.bounds import MAX_MINOR
from nodedevices_common.quantity import from_bytes

from nodedevices_probe import nvidia
from nodedevices_probe.node.sysfs import System
from nodedevices_probe.nvidia.calls import NvmlCalls
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
KERNEL_GPUS = "proc/driver/nvidia/gpus"
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
PCIE_PATHS = {  # NVML_TOPOLOGY_*
    0: PciePath.INTERNAL,
    10: PciePath.SINGLE,
    20: PciePath.MULTIPLE,
    30: PciePath.HOSTBRIDGE,
    40: PciePath.NODE,
    50: PciePath.SYSTEM,
}


@dataclass(slots=True)
class GpuIdentity:
    """What stays true of a GPU while it is there."""

    fact: DeviceFact  # identity, without partitions, links, paths and readings
    whole: bool = True  # all of that was read; else it is read again
    mig_enabled: bool | None = None  # as it was said last; None: never
    clique: str = ""  # the same
    link_ends: dict[int, str] = field(default_factory=dict)  # NVLink number -> "switch" or the peer's PCI address
    links: tuple[int, ...] | None = None  # the NVLink numbers that this GPU has; None: not read yet
    slow: Readings = field(default_factory=Readings)  # those that change seldom (readings.read_slow)
    slow_read_at: float = -math.inf  # time.monotonic()
    paths: dict[str, PciePath] = field(default_factory=dict)  # id of another GPU -> nearest common ancestor


def identify(nvml: NvmlCalls, handle: Any, identity: str, index: int, system: System) -> GpuIdentity:
    """Return what stays true of this GPU."""
    pci = nvml.call("nvmlDeviceGetPciInfo_v3", handle)
    bus_id = normal_bus_id(pci.busId) if pci is not None else ""
    place = system.place(bus_id)
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
            pcie_root=place.root,
            numa_node=place.numa_node,
            extra=nvidia.attributes(compute_capability=f"{capability[0]}.{capability[1]}" if capability else ""),
            capacity=memory_capacity(memory.total if memory is not None else 0),
            device_nodes=_device_nodes(minor),
        ),
        whole=None not in (pci, minor, memory, capability, name),
    )


def kernel_gpus(system: System) -> list[DeviceFact]:
    """Return every GPU of the NVIDIA kernel module, by PCI address, as NVML counts them: what the kernel knows even of
    one that NVML cannot reach. Its id is its UUID, or PCI-<address> where that was never read."""
    gpus = list[DeviceFact]()
    for bus_id in sorted(filter(None, map(normal_bus_id, system.roots.names(KERNEL_GPUS)))):
        lines = system.roots.read(f"{KERNEL_GPUS}/{bus_id}/information").splitlines()
        said = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        identity, number, place = said.get("GPU UUID", ""), said.get("Device Minor", ""), system.place(bus_id)
        minor = int(number) if number.isdecimal() and len(number) < 6 else None
        gpus.append(
            DeviceFact(
                id=identity if re.fullmatch(r"GPU-[0-9a-f-]{36}", identity) else f"PCI-{bus_id}",
                index=len(gpus),
                minor=minor,
                type="gpu",
                vendor=nvidia.VENDOR,
                product_name=text(said.get("Model", "")),
                pci_bus_id=bus_id,
                pcie_root=place.root,
                numa_node=place.numa_node,
                device_nodes=_device_nodes(minor),
            )
        )
    return gpus


def _device_nodes(minor: int | None) -> tuple[str, ...]:
    return (f"/dev/nvidia{minor}",) if minor is not None else ()


def small(value: int | None) -> int | None:
    return within(value, 0, MAX_SMALL)


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
        elif number not in known.link_ends and (end := _link_end(nvml, handle, number)):
            known.link_ends[number] = end
    if nvml.lost:
        return None
    if known.links is None and not nvml.error:
        known.links = tuple(numbers)
    every = known.links is not None and len(numbers) == len(known.links)
    return inactive if numbers and (inactive or every) else None  # links that do not say are not up


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
