"""What a container gets for its shares of one device's memory: the forms in which programs read a limit.

- Our variables (`variables`), which every such container has, and those that the resource's name brings, so that pods
  of another system run unchanged (the unit of such a name is in nodedevices_api.presets). Tencent's has none: beside
  NVIDIA_VISIBLE_DEVICES, which every container with a GPU has, gpu-manager sets LD_LIBRARY_PATH alone, for libraries
  of its own that are not there. A courtesy: nothing enforces them.
- Limits of a client of an MPS daemon, where MPS enforces the shares (`mps_variables`).
- Variables with `$(WORD)` in them, and directories of the node, that a policy adds (`edits`): for a limiter library, or
  a framework that reads its limit from a variable of its own.

A directory is mounted read-only, and only at or below one that the node's own flag allows, at the time of each
Allocate: the right to write policies does not include the right to read the node. Paths are compared as they are
written, and have no `.` and `..`; links are followed by the container runtime, so that what an allowed directory has is
for the node's administrator alone to write.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePosixPath

from msgspec import Struct
from nodedevices_api.container import ContainerTemplate
from nodedevices_api.presets import ALIYUN
from nodedevices_common.quantity import MEBIBYTE

from nodedevices_plugin.model import AllocationError, ContainerEdits, Grant, Mount, PlanError, SharingFacts, cuda_mps
from nodedevices_plugin.sharing.base import Settings


class MemoryFacts(SharingFacts, frozen=True, kw_only=True):
    """The facts that sharing by memory keeps with a resource. Of each device or partition, by id: `indices`, NVML's,
    and `units`, how many shares it is divided into. `container`: what the policy gives each container with shares
    besides; values may hold $(WORD)."""

    indices: Mapping[str, str]
    units: Mapping[str, int]
    container: ContainerEdits


class MemoryGrant(Struct, frozen=True, kw_only=True):
    """The memory that one container has of a device.

    `resource`: the name under which it was requested. device, index: of the GPU or partition, index as NVML counts.
    total_bytes: all its memory; device_units: how many shares it is divided into. units, limit_bytes: the container's.
    cores_shared: whether computing power is shared as well; cores: then its percentage, where it is certain.
    """

    resource: str
    device: str
    index: str
    total_bytes: int
    device_units: int
    units: int
    limit_bytes: int
    cores_shared: bool
    cores: int | None = None


def memory_grant(grant: Grant) -> MemoryGrant | None:
    """Return the memory of shares of one device; None: its memory is not known."""
    resource, facts = grant.resource, grant.resource.sharing
    device, memory = grant.ids[0].part_id, facts.memory
    if not isinstance(facts, MemoryFacts) or memory is None or device not in memory.devices:
        return None
    return MemoryGrant(
        resource=resource.name,
        device=device,
        index=facts.indices[device],
        total_bytes=memory.devices[device],
        device_units=facts.units[device],
        units=len(grant.ids),
        limit_bytes=len(grant.ids) * memory.unit_bytes,
        cores_shared=facts.cores,
        cores=grant.cores,
    )


# --- variables --------------------------------------------------------------------------------------------------------
def variables(grant: MemoryGrant) -> dict[str, str]:
    """Return the variables that tell a program its limit."""
    own = {
        "NODEDEVICES_MEMORY_LIMIT_MIB": str(grant.limit_bytes // MEBIBYTE),
        "NODEDEVICES_MEMORY_TOTAL_MIB": str(grant.total_bytes // MEBIBYTE),
        "NODEDEVICES_MEMORY_FRACTION": fraction(grant.limit_bytes, grant.total_bytes),
        "NODEDEVICES_MEMORY_UNITS": str(grant.units),
        "NODEDEVICES_MEMORY_DEVICE": grant.device,
    }
    return own | _aliyun(grant) if grant.resource == ALIYUN else own


def fraction(limit: int, total: int) -> str:
    """Return it with four decimals, rounded down: a program that keeps to it stays within its limit."""
    parts = limit * 10_000 // total
    return f"{parts // 10_000}.{parts % 10_000:04d}"


def _aliyun(grant: MemoryGrant) -> dict[str, str]:
    """Return those of Aliyun's GPU share. `_POD` has the container's amount: the pod of an Allocate is not known."""
    prefix = "ALIYUN_COM_GPU_MEM"
    return {
        f"{prefix}_IDX": grant.index,
        f"{prefix}_CONTAINER": str(grant.units),
        f"{prefix}_POD": str(grant.units),
        f"{prefix}_DEV": str(grant.device_units),
    }


# --- the limits of a client of an MPS daemon --------------------------------------------------------------------------
def mps_variables(grant: MemoryGrant) -> dict[str, str]:
    """Return the variables that set the limits of the container's CUDA processes, which the driver enforces; each
    process is a client with limits of its own. `0` is the GPU as the container counts: it sees one.

    They can only lower what the daemon allows (CUDA documentation, Multi-Process Service), which for shares of memory
    is all memory that is divided and all threads (mps.daemon): the daemon cannot know how much a client has, and a
    lower default would limit clients that hold more. So a program that unsets its variables has only the daemon's
    limit.
    """
    memory, percentage = {cuda_mps.MEMORY_LIMIT: f"0={grant.limit_bytes // MEBIBYTE}M"}, _thread_percentage(grant)
    return memory if percentage is None else memory | {cuda_mps.THREAD_PERCENTAGE: str(percentage)}


def _thread_percentage(grant: MemoryGrant) -> int | None:
    """The part of the GPU's threads that goes with its shares of memory, rounded down, so that all containers together
    have no more than all; 1 is the least that MPS knows. Where computing power is shared on its own it is that part,
    and None, no limit, where the container is not known yet: its demand may be the larger one."""
    if grant.cores_shared:
        return grant.cores
    return max(1, 100 * grant.units // grant.device_units)


# --- what a policy adds -----------------------------------------------------------------------------------------------
MOUNT_DIR = "container-mount-dir"  # the flag that allows a directory
_WORDS: Mapping[str, Callable[[MemoryGrant], str]] = {
    "MEMORY_LIMIT_MIB": lambda grant: str(grant.limit_bytes // MEBIBYTE),
    "MEMORY_LIMIT_BYTES": lambda grant: str(grant.limit_bytes),
    "MEMORY_TOTAL_MIB": lambda grant: str(grant.total_bytes // MEBIBYTE),
    "MEMORY_FRACTION": lambda grant: fraction(grant.limit_bytes, grant.total_bytes),
    "MEMORY_UNITS": lambda grant: str(grant.units),
    "DEVICE_ID": lambda grant: grant.device,
    "DEVICE_INDEX": lambda grant: grant.index,
}
# Any other word stays as it is; the API server and the agent accept none (nodedevices_api.container).
_WORD = re.compile(rf"\$\(({'|'.join(_WORDS)})\)")


def template(given: ContainerTemplate | None) -> ContainerEdits:
    """Return the text as the policy has it."""
    if given is None:
        return ContainerEdits()
    mounts = tuple(Mount(container_path=mount.container_path, host_path=mount.host_path) for mount in given.mounts)
    return ContainerEdits(envs={variable.name: variable.value for variable in given.env}, mounts=mounts)


def edits(wanted: ContainerEdits, grant: MemoryGrant, settings: Settings) -> ContainerEdits:
    """Return what one container gets. Raises AllocationError where the node does not allow a directory (any more)."""
    if not_allowed := _not_allowed(wanted, allowed(settings)):
        raise AllocationError(
            f"{grant.resource}: its policy mounts {not_allowed}, which this node does not allow (--{MOUNT_DIR}); the "
            "cluster's administrator has to correct one of them."
        )
    envs = {name: _WORD.sub(lambda found: _WORDS[found[1]](grant), value) for name, value in wanted.envs.items()}
    return ContainerEdits(envs=envs, mounts=wanted.mounts)


def refusal(wanted: ContainerEdits, settings: Settings) -> PlanError | None:
    """Return why this node does not give what the policy mounts; None: it does."""
    some = allowed(settings)
    not_allowed = _not_allowed(wanted, some)
    if not not_allowed:
        return None
    hint = f"this node allows {' and '.join(some)}" if some else "this node allows no directory"
    return PlanError("sharing.resources[].container.mounts", not_allowed, f"{hint} (--{MOUNT_DIR})")


def to_setting(directories: Iterable[str]) -> Settings:
    return {MOUNT_DIR: "\n".join(directories)}


def allowed(settings: Settings) -> tuple[str, ...]:
    return tuple(settings.get(MOUNT_DIR, "").splitlines())


def _not_allowed(wanted: ContainerEdits, directories: tuple[str, ...]) -> str:
    """Return the first path that is not at or below one of them; empty: none."""
    paths = (mount.host_path for mount in wanted.mounts)
    return next(
        (path for path in paths if not any(PurePosixPath(path).is_relative_to(directory) for directory in directories)),
        "",
    )
