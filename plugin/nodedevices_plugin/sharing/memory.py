"""Sharing by memory: a share is an amount of one device's memory, and a container requests as many as it needs.

Every share belongs to one device, which its id says, so the kubelet's own record of ids is the whole accounting: no
annotation, no lock, no guess which pod an Allocate is for. All shares of one container are of one device
(granting.packing). What a container gets for them are the forms in which programs read a limit:

- Our variables (`limit_variables`), which every such container has, and those that the resource's name brings, so that
  pods of another system run unchanged (the unit of such a name is in nodedevices_api.sections). Tencent's has none:
  beside NVIDIA_VISIBLE_DEVICES, which every container with a GPU has, gpu-manager sets LD_LIBRARY_PATH alone, for
  libraries of its own that are not there. A courtesy: nothing enforces them.
- Limits of a client of an MPS daemon, where MPS enforces the shares (`mps_variables`).
- Variables with `$(WORD)` in them, and directories of the node, that a policy adds (`container_edits`): for a limiter
  library, or a framework that reads its limit from a variable of its own.

A directory is mounted read-only, and only at or below one that the node's own flag allows, at the time of each
Allocate: the right to write policies does not include the right to read the node. Paths are compared as they are
written, and have no `.` and `..`; links are followed by the container runtime, so that what an allowed directory has is
for the node's administrator alone to write.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from nodedevices_api.container import WORDS, ContainerTemplate
from nodedevices_api.sections import ALIYUN, SharedResource
from nodedevices_common.quantity import MEBIBYTE, from_bytes, to_bytes

from nodedevices_plugin.model import (
    AllocationError,
    ContainerEdits,
    Grant,
    MemoryShares,
    Mount,
    OfferedResource,
    PlanError,
    SharingFacts,
    Unit,
    cuda_mps,
)
from nodedevices_plugin.sharing import mps
from nodedevices_plugin.sharing.base import (
    Settings,
    SharingMode,
    Split,
    SplitRequest,
    device_ids,
    merged,
)


class MemoryFacts(SharingFacts, frozen=True, kw_only=True):
    """The facts that sharing by memory keeps with a resource. Of each device or partition, by id: `indices`, NVML's,
    and `units`, how many shares it is divided into. `container`: what the policy gives each container with shares
    besides; values may hold $(WORD)."""

    indices: Mapping[str, str]
    units: Mapping[str, int]
    container: ContainerEdits


def words(grant: Grant) -> dict[str, str]:
    """Return by the words of a policy's text (nodedevices_api.container) what a container with shares of one device
    has; empty: the device's memory is not known."""
    facts, memory, device = grant.resource.sharing, grant.resource.sharing.memory, grant.ids[0].part_id
    if not isinstance(facts, MemoryFacts) or memory is None or device not in memory.devices:
        return {}
    limit, total = len(grant.ids) * memory.unit_bytes, memory.devices[device]
    return {
        "MEMORY_LIMIT_MIB": str(limit // MEBIBYTE),
        "MEMORY_LIMIT_BYTES": str(limit),
        "MEMORY_TOTAL_MIB": str(total // MEBIBYTE),
        "MEMORY_FRACTION": fraction(limit, total),
        "MEMORY_UNITS": str(len(grant.ids)),
        "DEVICE_ID": device,
        "DEVICE_INDEX": facts.indices[device],
    }


def fraction(limit: int, total: int) -> str:
    """Return it with four decimals, rounded down: a program that keeps to it stays within its limit."""
    parts = limit * 10_000 // total
    return f"{parts // 10_000}.{parts % 10_000:04d}"


# --- variables --------------------------------------------------------------------------------------------------------
def limit_variables(resource: str, has: Mapping[str, str], device_units: int) -> dict[str, str]:
    """Return the variables that tell a program its limit. `has`: the container's words."""
    own = {
        "NODEDEVICES_MEMORY_LIMIT_MIB": has["MEMORY_LIMIT_MIB"],
        "NODEDEVICES_MEMORY_TOTAL_MIB": has["MEMORY_TOTAL_MIB"],
        "NODEDEVICES_MEMORY_FRACTION": has["MEMORY_FRACTION"],
        "NODEDEVICES_MEMORY_UNITS": has["MEMORY_UNITS"],
        "NODEDEVICES_MEMORY_DEVICE": has["DEVICE_ID"],
    }
    if resource != ALIYUN:
        return own
    return own | {  # Aliyun's GPU share; `_POD` has the container's amount: the pod of an Allocate is not known
        "ALIYUN_COM_GPU_MEM_IDX": has["DEVICE_INDEX"],
        "ALIYUN_COM_GPU_MEM_CONTAINER": has["MEMORY_UNITS"],
        "ALIYUN_COM_GPU_MEM_POD": has["MEMORY_UNITS"],
        "ALIYUN_COM_GPU_MEM_DEV": str(device_units),
    }


# --- the limits of a client of an MPS daemon --------------------------------------------------------------------------
def mps_variables(grant: Grant, has: Mapping[str, str], device_units: int) -> dict[str, str]:
    """Return the variables that set the limits of the container's CUDA processes, which the driver enforces; each
    process is a client with limits of its own. `0` is the GPU as the container counts: it sees one.

    They can only lower what the daemon allows (CUDA documentation, Multi-Process Service), which for shares of memory
    is all memory that is divided and all threads (mps.daemon): the daemon cannot know how much a client has, and a
    lower default would limit clients that hold more. So a program that unsets its variables has only the daemon's
    limit.

    Threads: the part of the GPU's that goes with its shares of memory, rounded down, so that all containers together
    have no more than all; 1 is the least that MPS knows. Where computing power is shared on its own it is that part,
    and no limit where the container is not known yet: its demand may be the larger one.
    """
    memory = {cuda_mps.MEMORY_LIMIT: f"0={has['MEMORY_LIMIT_MIB']}M"}
    threads = grant.cores if grant.resource.sharing.cores else max(1, 100 * len(grant.ids) // device_units)
    return memory if threads is None else memory | {cuda_mps.THREAD_PERCENTAGE: str(threads)}


# --- what a policy adds -----------------------------------------------------------------------------------------------
MOUNT_DIR = "--container-mount-dir"  # the flag that allows a directory
# Any other word stays as it is; the API server and the agent accept none (nodedevices_api.container).
_WORD = re.compile(rf"\$\(({'|'.join(WORDS)})\)")


def container_edits(
    resource: str, wanted: ContainerEdits, has: Mapping[str, str], settings: Settings
) -> ContainerEdits:
    """Return what one container gets. Raises AllocationError where the node does not allow a directory (any more)."""
    if not_allowed := _not_allowed(wanted, settings):
        raise AllocationError(
            f"{resource}: its policy mounts {not_allowed}, which this node does not allow ({MOUNT_DIR}); the "
            "cluster's administrator has to correct one of them."
        )
    envs = {name: _WORD.sub(lambda found: has[found[1]], value) for name, value in wanted.envs.items()}
    return ContainerEdits(envs=envs, mounts=wanted.mounts)


def _not_allowed(wanted: ContainerEdits, settings: Settings) -> str:
    """Return the first path that is not at or below a directory that the node allows; empty: none."""
    for mount in wanted.mounts:
        if not any(PurePosixPath(mount.host_path).is_relative_to(directory) for directory in settings.mount_dirs):
            return mount.host_path
    return ""


NAME = "memory"
SHARES_NAME = "nodedevices.io/gpu-memory"
_UNENFORCED = "use enforcement none"


class Memory(SharingMode, frozen=True):
    name = NAME
    shares_name = SHARES_NAME

    def check(self, settings: Settings, rules: Sequence[SharedResource], *, partition_strategy: str) -> None:
        """Always possible, but for what a rule's enforcement needs."""
        for rule in rules:
            if rule.enforcement == mps.NAME:
                place = f"sharing.resources[{rule.name}].enforcement"
                mps.check_node(place, settings, partition_strategy, instead=_UNENFORCED)

    def split(self, request: SplitRequest) -> Split:
        """Split each device by its own memory: a node may have several models. A device without known memory has no
        shares."""
        place, given = f"{request.place}.memoryUnit", request.rule.unit_of_memory or "0"
        unit = to_bytes(given)
        if unit < MEBIBYTE or unit % MEBIBYTE:  # limits are told in MiB
            raise PlanError(place, given, "give whole MiB, such as 1Gi")
        if not request.renamed:
            hint = f"memory has shares of a name of their own; leave rename out for {SHARES_NAME}"
            raise PlanError(f"{request.place}.rename", request.rule.rename, hint)
        enforced_by = mps.Mps() if request.rule.enforcement == mps.NAME else None
        if enforced_by is not None:
            mps.check_name(request)
            mps.check_units(f"{request.place}.enforcement", request.units, instead=_UNENFORCED)
        reserve = to_bytes(request.rule.memory_reserve or "0")
        small = [candidate for candidate in request.units if 0 < candidate.memory_bytes < reserve + unit]
        if small:
            raise PlanError(place, given, _too_large(small[0], reserve), devices=device_ids(small))
        given_to_all = request.rule.container or ContainerTemplate()
        counts = tuple(max(0, (device.memory_bytes - reserve) // unit) for device in request.units)
        return Split(
            counts=counts,
            sharing=MemoryFacts(
                mode=self,
                memory=MemoryShares(
                    unit=from_bytes(unit),
                    unit_bytes=unit,
                    devices={device.id: device.memory_bytes for device in request.units},
                ),
                packing=request.rule.packing or "binpack",
                enforced_by=enforced_by,
                cores=bool(request.rule.cores),
                indices={device.id: device.index for device in request.units},
                units={device.id: count for device, count in zip(request.units, counts, strict=True)},
                container=ContainerEdits(
                    envs={variable.name: variable.value for variable in given_to_all.env},
                    mounts=tuple(
                        Mount(container_path=mount.container_path, host_path=mount.host_path)
                        for mount in given_to_all.mounts
                    ),
                ),
            ),
            numa=bool(request.rule.numa),
        )

    def edits(self, grant: Grant, settings: Settings) -> ContainerEdits:
        """The limit, in forms that programs read; shares of one container are of one device."""
        resource, facts, has = grant.resource, grant.resource.sharing, words(grant)
        if not has or not isinstance(facts, MemoryFacts):
            return ContainerEdits()
        units = facts.units[has["DEVICE_ID"]]
        envs = limit_variables(resource.name, has, units)
        parts = [container_edits(resource.name, facts.container, has, settings), ContainerEdits(envs=envs)]
        if facts.enforced_by is not None:
            parts += [ContainerEdits(envs=mps_variables(grant, has, units)), mps.client_edits(resource, settings)]
        return merged(parts)

    def refusal(self, resource: OfferedResource, settings: Settings) -> PlanError | None:
        """Return why this node does not give what the policy mounts; None: it does."""
        facts = resource.sharing
        if not isinstance(facts, MemoryFacts) or not (not_allowed := _not_allowed(facts.container, settings)):
            return None
        allowed = " and ".join(settings.mount_dirs) or "no directory"
        hint = f"this node allows {allowed} ({MOUNT_DIR})"
        return PlanError("sharing.resources[].container.mounts", not_allowed, hint)


def _too_large(unit: Unit, reserve: int) -> str:
    left = f"{from_bytes(unit.memory_bytes)} of memory" + (f", {from_bytes(reserve)} of it reserved" if reserve else "")
    return f"{unit.id} has {left}: give a smaller unit, or leave the device out (devices, match)"
