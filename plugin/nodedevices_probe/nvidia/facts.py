"""Facts of one GPU: what it is (read once while it is there), its links, and its MIG devices, as NVML lists them. How
it is: see `readings`.

Every call may fail; see `calls`. Numbers of return codes, fields and bits are nvml.h's, by their names in pynvml.

A MIG device's id says on which card it is and where, not what it is: one that is made anew in the place of another has
the same id (nvGenerateSmcUuid of NVIDIA's open kernel modules). So what is cheap to read is compared at each poll, and
the rest is remembered while that stays the same and once all of it was read. A question without an answer is an error
of the GPU: a MIG device that is not listed would count as gone.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pynvml
from nodedevices_api.bounds import MAX_MINOR, MAX_PARTITIONS
from nodedevices_common.quantity import MEBIBYTE, from_bytes

from nodedevices_probe import nvidia
from nodedevices_probe.node.sysfs import System, mig_device_nodes, parse_mig_minors
from nodedevices_probe.nvidia.calls import NvmlCalls
from nodedevices_probe.protocol import (
    MAX_INTEGER,
    MAX_SMALL,
    PROFILE,
    SWITCH,
    DeviceFact,
    Link,
    Partition,
    PciePath,
    Readings,
    is_device_id,
    memory_bytes,
    normal_bus_id,
    text,
    within,
)

# --- GPUs -------------------------------------------------------------------------------------------------------------
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
    mig: dict[str, tuple[object, Partition]] = field(default_factory=dict)  # by id, with what was compared
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
        state = nvml.call("nvmlDeviceGetNvLinkState", handle, number)
        if state is None and nvml.code == pynvml.NVML_ERROR_INVALID_ARGUMENT:
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


# --- MIG devices ------------------------------------------------------------------------------------------------------
# nvmlGpuInstanceGetInfo names a profile by a number of the card's; which of nvml.h's profiles that is says what it has
# besides slices and memory: by its name there after NVML_GPU_INSTANCE_PROFILE_. The names here are go-nvlib's
# (pkg/nvlib/device/mig_profile.go).
_ATTRIBUTES = {
    "1_SLICE_REV1": "+me",
    "2_SLICE_REV1": "+me",
    "1_SLICE_ALL_ME": "+me.all",
    "2_SLICE_ALL_ME": "+me.all",
    "1_SLICE_GFX": "+gfx",
    "2_SLICE_GFX": "+gfx",
    "3_SLICE_GFX": "+gfx",
    "4_SLICE_GFX": "+gfx",
    "1_SLICE_NO_ME": "-me",
    "2_SLICE_NO_ME": "-me",
}
GIB = 1 << 30
MIG_MINORS, MAX_MINORS_BYTES = "proc/driver/nvidia-caps/mig-minors", 1 << 20
_PROFILE_IN_NAME = re.compile(r"MIG ((?:[0-9]+c\.)?[0-9]+g\.[0-9]+gb\S*)$")


def read_mig(nvml: NvmlCalls, gpu: Any, known: GpuIdentity, system: System) -> tuple[Partition, ...]:
    """Return every MIG device of this GPU, by NVML's index; `known` remembers what was read about each."""
    found, remembered = list[Partition](), dict[str, tuple[object, Partition]]()
    count = nvml.needed("nvmlDeviceGetMaxMigDeviceCount", gpu) if known.mig_enabled else None
    for index in range(min(count or 0, MAX_PARTITIONS)):
        handle = nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", gpu, index)
        identity = handle is not None and nvml.needed("nvmlDeviceGetUUID", handle)
        attributes = nvml.needed("nvmlDeviceGetAttributes_v2", handle) if identity else None
        if not identity or not is_device_id(identity) or attributes is None:
            continue
        name = nvml.call("nvmlDeviceGetName", handle, telemetry=True) or ""
        compared = (index, name, bytes(attributes))
        before, partition = known.mig.get(identity, (None, None))
        whole = True
        if before != compared:
            partition, whole = _partition(
                nvml,
                gpu,
                handle,
                known.fact,
                system,
                identity=identity,
                attributes=attributes,
                name=name,
                index=index,
            )
        if partition is not None:
            found.append(partition)
            if whole:
                remembered[identity] = compared, partition
    known.mig = remembered
    return tuple(found)


def _partition(
    nvml: NvmlCalls,
    gpu: Any,
    handle: Any,
    fact: DeviceFact,
    system: System,
    *,
    identity: str,
    attributes: Any,
    name: str,
    index: int,
) -> tuple[Partition | None, bool]:
    """Return a MIG device, and whether all of it was read."""
    minor = fact.minor
    gi = nvml.needed("nvmlDeviceGetGpuInstanceId", handle)
    ci = nvml.needed("nvmlDeviceGetComputeInstanceId", handle)
    if small(gi) is None or small(ci) is None:
        return None, False  # it went away meanwhile, or the next poll reads it whole
    instance = nvml.call("nvmlDeviceGetGpuInstanceById", gpu, gi, telemetry=True)
    info = instance and nvml.call("nvmlGpuInstanceGetInfo", instance, telemetry=True)
    in_name = _PROFILE_IN_NAME.search(name)
    known_name = in_name is not None and re.fullmatch(PROFILE, in_name[1])
    profile = in_name[1] if in_name and known_name else _profile(attributes, memory_bytes(fact.capacity))
    if info and not re.search(r"[+-]", profile):
        profile += _profile_attributes(nvml, gpu, info.profileId)
    start = small(info.placement.start) if info else None
    listed = system.roots.read(MIG_MINORS, MAX_MINORS_BYTES) if minor is not None else ""
    minors = parse_mig_minors(listed)
    nodes = mig_device_nodes(minors, minor, gi, ci) if minor is not None else ()
    partition = Partition(
        id=identity,
        name=nvidia.mig_name(f"gpu-{minor}", profile, info.profileId, start, ci)
        if minor is not None and info and start is not None
        else None,
        profile=profile,
        index=index,
        gi=gi,
        ci=ci,
        start=start,
        size=small(info.placement.size) if info else None,
        capacity=memory_capacity(attributes.memorySizeMB * MEBIBYTE)
        | nvidia.counts(
            {
                "multiprocessors": small(attributes.multiprocessorCount),
                "copyEngines": small(attributes.sharedCopyEngineCount),
                "decoders": small(attributes.sharedDecoderCount),
                "encoders": small(attributes.sharedEncoderCount),
                "jpegEngines": small(attributes.sharedJpegCount),
                "ofaEngines": small(attributes.sharedOfaCount),
            }
        ),
        device_nodes=nodes,
    )
    return partition, bool(info) and (len(nodes) == 2 or not minors)


def _profile_attributes(nvml: NvmlCalls, gpu: Any, profile_id: int) -> str:
    """`+me`, `+gfx`, `-me`, ... of the profile that this card calls by that number; "" for a plain or unknown one."""
    for name, attributes in _ATTRIBUTES.items():
        profile = getattr(pynvml, f"NVML_GPU_INSTANCE_PROFILE_{name}")
        info = nvml.call("nvmlDeviceGetGpuInstanceProfileInfo", gpu, profile, 1, telemetry=True)
        if info is not None and info.id == profile_id:
            return attributes
    return ""


def _profile(attributes: Any, memory: int) -> str:
    """The profile's name by go-nvlib's rule: memory in eighths of the GPU's, rounded up, in GB as the name has them."""
    eighths = math.ceil(attributes.memorySizeMB * MEBIBYTE / max(memory, 1) * 8) / 8
    gigabytes = round(eighths * ((memory + GIB - 1) // GIB))
    compute, whole = attributes.computeInstanceSliceCount, attributes.gpuInstanceSliceCount
    return ("" if compute == whole else f"{compute}c.") + f"{whole}g.{gigabytes}gb"
