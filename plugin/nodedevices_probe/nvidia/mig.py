"""The MIG devices of one GPU, as NVML lists them.

A MIG device's id says on which card it is and where, not what it is: one that is made anew in the place of another has
the same id (nvGenerateSmcUuid of NVIDIA's open kernel modules). So what is cheap to read is compared at each poll, and
the rest is remembered while that stays the same and once all of it was read. A question without an answer is an error
of the GPU: a MIG device that is not listed would count as gone.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

import pynvml
from nodedevices_api.bounds import MAX_PARTITIONS
from nodedevices_common.quantity import MEBIBYTE

from nodedevices_probe import nvidia
from nodedevices_probe.node.sysfs import System, mig_device_nodes, parse_mig_minors
from nodedevices_probe.nvidia.calls import NvmlCalls
from nodedevices_probe.nvidia.facts import memory_capacity, small
from nodedevices_probe.protocol import PROFILE, Partition, is_device_id

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


@dataclass(slots=True)
class MigDevices:
    """Remembers what was read about each MIG device."""

    system: System
    _known: dict[str, tuple[object, Partition]] = field(default_factory=dict)  # with what was compared

    def read(self, nvml: NvmlCalls, gpu: Any, *, minor: int | None, memory_bytes: int) -> tuple[Partition, ...]:
        """Return every MIG device of this GPU, by NVML's index."""
        found = []
        for index in range(min(nvml.needed("nvmlDeviceGetMaxMigDeviceCount", gpu) or 0, MAX_PARTITIONS)):
            handle = nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", gpu, index)
            identity = handle is not None and nvml.needed("nvmlDeviceGetUUID", handle)
            attributes = nvml.needed("nvmlDeviceGetAttributes_v2", handle) if identity else None
            if not identity or not is_device_id(identity) or attributes is None:
                continue
            name = nvml.call("nvmlDeviceGetName", handle, telemetry=True) or ""
            compared = (index, name, bytes(attributes))
            before, partition = self._known.get(identity, (None, None))
            if before != compared:
                partition, whole = self._partition(
                    nvml,
                    gpu,
                    handle,
                    identity,
                    attributes=attributes,
                    name=name,
                    index=index,
                    minor=minor,
                    memory_bytes=memory_bytes,
                )
                if partition is not None and whole:
                    self._known[identity] = (compared, partition)
            found.append(partition)
        return tuple(filter(None, found))

    def keep_only(self, ids: set[str]) -> None:
        """Forget MIG devices that are gone."""
        self._known = {identity: known for identity, known in self._known.items() if identity in ids}

    def _partition(
        self,
        nvml: NvmlCalls,
        gpu: Any,
        handle: Any,
        identity: str,
        *,
        attributes: Any,
        name: str,
        index: int,
        minor: int | None,
        memory_bytes: int,
    ) -> tuple[Partition | None, bool]:
        """Return a MIG device, and whether all of it was read."""
        gi = nvml.needed("nvmlDeviceGetGpuInstanceId", handle)
        ci = nvml.needed("nvmlDeviceGetComputeInstanceId", handle)
        if small(gi) is None or small(ci) is None:
            return None, False  # it went away meanwhile, or the next poll reads it whole
        instance = nvml.call("nvmlDeviceGetGpuInstanceById", gpu, gi, telemetry=True)
        info = instance and nvml.call("nvmlGpuInstanceGetInfo", instance, telemetry=True)
        in_name = _PROFILE_IN_NAME.search(name)
        known_name = in_name is not None and re.fullmatch(PROFILE, in_name[1])
        profile = in_name[1] if in_name and known_name else _profile(attributes, memory_bytes)
        if info and not re.search(r"[+-]", profile):
            profile += _profile_attributes(nvml, gpu, info.profileId)
        start = small(info.placement.start) if info else None
        listed = self.system.roots.read(MIG_MINORS, MAX_MINORS_BYTES) if minor is not None else ""
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


def _profile(attributes: Any, memory_bytes: int) -> str:
    """The profile's name by go-nvlib's rule: memory in eighths of the GPU's, rounded up, in GB as the name has them."""
    eighths = math.ceil(attributes.memorySizeMB * MEBIBYTE / max(memory_bytes, 1) * 8) / 8
    gigabytes = round(eighths * ((memory_bytes + GIB - 1) // GIB))
    compute, whole = attributes.computeInstanceSliceCount, attributes.gpuInstanceSliceCount
    return ("" if compute == whole else f"{compute}c.") + f"{whole}g.{gigabytes}gb"
