"""NVIDIA's Multi-Process Service: its limits, the needs of a client container, and the commands for its daemon.

One control daemon serves all GPUs of one resource, as NVIDIA runs it: its pipe is a directory named like the resource
under the MPS root, which every client mounts, with one /dev/shm for all. Memory and threads are split evenly, but among
clients with shares by memory, which have limits of their own (memory). The daemon has its GPUs in compute
mode EXCLUSIVE_PROCESS, where no process beside its server gets a context, and its end is the end of its clients'
contexts.
The program nodedevices-mps starts it (mps/), host/mps_daemons.py queries it; the commands for it are here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct
from nodedevices_api.sections import SharedResource
from nodedevices_common.quantity import MEBIBYTE
from nodedevices_probe.nvidia import compute_capability
from nodedevices_probe.protocol import DeviceFact, memory_bytes

from nodedevices_plugin.model import ContainerEdits, Grant, Inventory, Mount, OfferedResource, PlanError, Unit, cuda_mps
from nodedevices_plugin.sharing.base import (
    Settings,
    SharingMode,
    Split,
    SplitRequest,
    by_replicas,
    device_ids,
)

NAME = "mps"
VENDOR = "nvidia"
CONTAINER_ROOT = "/mps"
SHARED_MEMORY = "shm"  # under the root; the clients' /dev/shm
# CUDA documentation, Multi-Process Service: 48 clients on Volta (compute capability 7.0) and later, 16 before. NVIDIA's
# plugin says Volta and compares with 7.5, so that a V100 is held to 16.
CLIENTS = 48
CLIENTS_BEFORE_VOLTA = 16
VOLTA = (7, 0)
PID_DIGITS = 7  # of the kernel's largest pid, 4194304
MAX_SERVERS = 64
SERVERS = "get_server_list"  # a control command; one server for each user that has clients
DOWN = "MpsDaemonDown"  # a device's and a client's health reason while the daemon does not answer
RESTARTED = "MpsDaemonRestarted"  # a client's health reason when another daemon answers
DaemonKey = tuple[str, int]  # resource and percentage: tells the daemon that is wanted from one with other limits


# What the runner, which has privileges, takes of these (mps.records): a resource's name is a path below the root, and a
# GPU's id an argument of nvidia-smi.
_NAME = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\Z"
ResourceName = Annotated[str, Meta(max_length=244, pattern=_NAME)]


class Recorded(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """A part of a file of the MPS root."""


class Gpu(Recorded, frozen=True):
    """A GPU of a daemon, and the most memory that a client may have of it (MiB; 0: no limit, the GPU does not say)."""

    id: Annotated[str, Meta(max_length=96, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]*\Z")]
    index: Annotated[int, Meta(ge=0, le=1023)]
    limit_mib: Annotated[int, Meta(ge=0, le=1 << 31)] = 0


Gpus = Annotated[tuple[Gpu, ...], Meta(max_length=64)]


class MpsDaemon(Recorded, frozen=True):
    """The control daemon that a resource needs. Its GPUs are to be in compute mode EXCLUSIVE_PROCESS first. `waits`:
    not yet, since they are offered otherwise (daemons.announced)."""

    resource: ResourceName
    percentage: Annotated[int, Meta(ge=1, le=100)]  # of a GPU's threads, for each client
    gpus: Gpus
    waits: bool = False

    @property
    def key(self) -> DaemonKey:
        return (self.resource, self.percentage)

    @property
    def device_ids(self) -> frozenset[str]:
        """The GPUs that are out of service while it does not answer."""
        return frozenset(gpu.id for gpu in self.gpus)


def memory_commands(gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """Return the commands by NVML index: the control command does not take UUIDs; NVIDIA's plugin does the same."""
    return tuple(f"set_default_device_pinned_mem_limit {gpu.index} {gpu.limit_mib}M" for gpu in gpus if gpu.limit_mib)


def thread_command(percentage: int) -> str:
    return f"set_default_active_thread_percentage {percentage}"


def server_commands(server: int, daemon: MpsDaemon) -> tuple[str, ...]:
    """The same limits for a server that runs already, which the defaults do not reach, and its clients from now on."""
    return (
        f"set_active_thread_percentage {server} {daemon.percentage}",
        *(f"set_device_pinned_mem_limit {server} {gpu.index} {gpu.limit_mib}M" for gpu in daemon.gpus if gpu.limit_mib),
    )


def servers(answer: str) -> tuple[int, ...]:
    """The process ids that the command SERVERS answers, one a line; no more than a daemon has users. The answer may be
    a client's, who can put its own socket in the daemon's place."""
    lines = (line for line in answer.split() if line.isascii() and line.isdecimal() and len(line) <= PID_DIGITS)
    return tuple(dict.fromkeys(int(line) for line in lines))[:MAX_SERVERS]


def pipe_folder(root: str, resource: str) -> str:
    return f"{root}/{resource}/pipe"


def log_folder(root: str, resource: str) -> str:
    return f"{root}/{resource}/log"


def max_clients(capability: str) -> int:
    """Return how many clients a GPU takes. A GPU that does not report it counts as unlimited: it is lost, and another
    check withholds it."""
    numbers = capability.split(".")
    if not all(number.isascii() and number.isdecimal() for number in numbers):
        return CLIENTS
    return CLIENTS if tuple(int(number) for number in numbers) >= VOLTA else CLIENTS_BEFORE_VOLTA


def key(resource: OfferedResource) -> DaemonKey:
    return (resource.name, _percentage(resource))


def daemon(resource: OfferedResource, inventory: Inventory) -> MpsDaemon:
    """The daemon of this resource. A device that left is none of its GPUs, and comes back to its own daemon."""
    shares = Counter(schedulable.device_id for schedulable in resource.ids)
    gpus = tuple(
        Gpu(id=fact.id, index=fact.index, limit_mib=_limit(resource, fact, shares[fact.id]) // MEBIBYTE)
        for fact in (device.fact for device in inventory.devices if device.present)
        if fact.id in shares
    )
    return MpsDaemon(resource=resource.name, percentage=_percentage(resource), gpus=gpus)


class Mps(SharingMode, frozen=True):
    name = NAME

    def check(self, settings: Settings, rules: Sequence[SharedResource], *, partition_strategy: str) -> None:
        check_node("sharing.strategy", settings, partition_strategy)

    def split(self, request: SplitRequest) -> Split:
        check_name(request)
        split = by_replicas(self, request)
        check_units(request.place, request.units)
        _check_replicas(request.place, request.units, split.sharing.replicas or 0)
        if request.units and request.rest and not request.renamed:
            hint = "clients of MPS and whole devices need names of their own; give rename, or renameByDefault"
            asked, rest = ", ".join(request.rule.devices or ())[:128], device_ids(request.rest)
            raise PlanError(f"{request.place}.devices", asked, hint, devices=rest)
        return split

    def edits(self, grant: Grant, settings: Settings) -> ContainerEdits:
        return client_edits(grant.resource, settings)


def client_edits(resource: OfferedResource, settings: Settings) -> ContainerEdits:
    """The pipe of its daemon, and the memory in which they meet."""
    root, pipe = settings.mps_root.rstrip("/"), pipe_folder(CONTAINER_ROOT, resource.name)
    mounts = (
        Mount(container_path=pipe, host_path=pipe_folder(root, resource.name), read_only=False),
        Mount(container_path="/dev/shm", host_path=f"{root}/{SHARED_MEMORY}", read_only=False),  # noqa: S108
    )
    return ContainerEdits(envs={cuda_mps.PIPE_DIRECTORY: pipe}, mounts=mounts)


def check_node(
    place: str, settings: Settings, partition_strategy: str, *, instead: str = "use timeSlicing, or none"
) -> None:
    """Raises PlanError where no daemon can run on this node. `place`: the field that requests one."""
    if partition_strategy == "mixed":
        raise PlanError(place, NAME, f"not possible with partitions.strategy mixed; {instead}")
    if not settings.mps_root:
        hint = "needs the host's directory for MPS; install the component mps, or give --mps-root (MPS_ROOT)"
        raise PlanError(place, NAME, hint)


def check_units(place: str, units: Sequence[Unit], *, instead: str = "") -> None:
    """Raises PlanError for devices that no daemon shares. `instead`: what would be right."""
    others = [unit for unit in units if unit.device.fact.vendor != VENDOR]
    parts = [unit for unit in units if unit.partition is not None]
    odd = device_ids([*others, *parts])
    if others:
        hint = f"MPS shares NVIDIA's GPUs; {instead or 'use timeSlicing for other devices'}"
        raise PlanError(place, others[0].id, hint, devices=odd)
    if parts:
        hint = f"MPS cannot share MIG devices; {instead or 'use timeSlicing for them'}"
        raise PlanError(place, parts[0].id, hint, devices=odd)


def check_name(request: SplitRequest) -> None:
    """Raise PlanError for a name that would have its folder under the MPS root inside the clients' /dev/shm."""
    domain, _, own = request.name.partition("/")
    if request.units and domain == SHARED_MEMORY:
        place = f"{request.place}.{'rename' if request.rule.rename else 'name'}"
        hint = (
            f"MPS keeps its clients' /dev/shm under {SHARED_MEMORY}/; choose another domain, such as nvidia.com/{own}"
        )
        raise PlanError(place, request.name, hint)


def _check_replicas(place: str, units: Sequence[Unit], replicas: int) -> None:
    odd = [unit for unit in units if replicas > max_clients(compute_capability(unit.device.fact))]
    if odd:
        capability = compute_capability(odd[0].device.fact)
        hint = f"GPU {odd[0].index} (compute capability {capability or 'unknown'}) takes {max_clients(capability)} MPS"
        raise PlanError(f"{place}.replicas", replicas, f"{hint} clients at most", devices=device_ids(odd))


def _limit(resource: OfferedResource, fact: DeviceFact, shares: int) -> int:
    """Return in bytes the limit of a client that sets none of its own: an equal part; where each container sets its own
    (memory in units), all memory that is divided. A client's own limit can only be lower."""
    sharing = resource.sharing
    if sharing.memory is not None:
        return shares * sharing.memory.unit_bytes
    return memory_bytes(fact.capacity) // (sharing.replicas or 1)


def _percentage(resource: OfferedResource) -> int:
    return 100 // (resource.sharing.replicas or 1)
