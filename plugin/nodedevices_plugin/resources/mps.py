"""NVIDIA's Multi-Process Service: its limits, what a client container needs, and what its daemon is told. Pure.

One control daemon serves all GPUs of one resource, as NVIDIA runs it: its pipe is a directory named like the resource
under the MPS root, which every client mounts, with one /dev/shm for all. Memory and threads are split evenly. A
resource whose daemon does not answer is withheld, since its containers could not use the GPU. Starting the daemon is
the program nodedevices-mps's matter (mps/), asking whether it answers mpsdaemons.py's; what to say to it is here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nodedevices_plugin.model import Inventory, Mount, OfferedResource, Plan, PlanError, Unit

PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
LOG_VARIABLE = "CUDA_MPS_LOG_DIRECTORY"
CONTAINER_ROOT = "/mps"
SHARED_MEMORY = "shm"  # under the root; the clients' /dev/shm
# CUDA documentation, Multi-Process Service: 48 clients on Volta (compute capability 7.0) and later, 16 before. NVIDIA's
# plugin says Volta and compares with 7.5, so that a V100 is held to 16.
CLIENTS = 48
CLIENTS_BEFORE_VOLTA = 16
VOLTA = (7, 0)
MEBIBYTE = 1 << 20
PID_DIGITS = 7  # of the kernel's largest pid, 4194304
MAX_SERVERS = 64
SERVERS = "get_server_list"  # a control command; one server for each user that has clients


# What the daemon of a resource says, by the resource's name and the percentage of threads that a client is to have;
# "" is the right answer, anything else why there is none. A daemon that is not in it has not been asked yet.
UNASKED, BEING_STARTED = "has not been asked yet", "is being started"  # nothing is wrong yet
Answers = Mapping[tuple[str, int], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU of a daemon, and how much memory a client may have of it (MiB; 0: no limit, the GPU does not say)."""

    id: str
    index: int
    limit_mib: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """The control daemon that a resource needs. Its GPUs are to be in compute mode EXCLUSIVE_PROCESS first."""

    resource: str
    percentage: int  # of a GPU's threads, for each client
    gpus: tuple[Gpu, ...]

    @property
    def key(self) -> tuple[str, int]:
        """What tells the daemon that is wanted from one with other limits that still runs (`Answers`)."""
        return (self.resource, self.percentage)


def memory_commands(gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """By NVML index, for the control command does not take UUIDs; NVIDIA's plugin does the same."""
    return tuple(f"set_default_device_pinned_mem_limit {gpu.index} {gpu.limit_mib}M" for gpu in gpus if gpu.limit_mib)


def thread_command(percentage: int) -> str:
    return f"set_default_active_thread_percentage {percentage}"


def server_commands(server: int, daemon: Daemon) -> tuple[str, ...]:
    """The same limits for a server that runs already, which the defaults do not reach, and its clients from now on."""
    return (
        f"set_active_thread_percentage {server} {daemon.percentage}",
        *(f"set_device_pinned_mem_limit {server} {gpu.index} {gpu.limit_mib}M" for gpu in daemon.gpus if gpu.limit_mib),
    )


def servers(answer: str) -> tuple[int, ...]:
    """The process ids that the command SERVERS answers, one a line; no more than a daemon has users. The answer may be
    a client's, who can put a socket of its own in the daemon's place."""
    lines = (line for line in answer.split() if line.isascii() and line.isdecimal() and len(line) <= PID_DIGITS)
    return tuple(dict.fromkeys(int(line) for line in lines))[:MAX_SERVERS]


def pipe_folder(root: str, resource: str) -> str:
    return f"{_root(root)}/{resource}/pipe"


def log_folder(root: str, resource: str) -> str:
    return f"{_root(root)}/{resource}/log"


def max_clients(compute_capability: str) -> int:
    """How many clients a GPU takes. One that does not say is not held back: it is lost, and another check's matter."""
    numbers = compute_capability.split(".")
    if not all(each.isascii() and each.isdecimal() for each in numbers):
        return CLIENTS
    return CLIENTS if tuple(int(each) for each in numbers) >= VOLTA else CLIENTS_BEFORE_VOLTA


def check(place: str, units: Sequence[Unit], replicas: int) -> None:
    """Whether MPS can share these units. `place`: where the rule stands. Raises PlanError."""
    for unit in units:
        if unit.partition is not None:
            raise PlanError(place, unit.id, "MPS cannot share MIG devices; use timeSlicing for them")
        capability = unit.device.fact.compute_capability
        most = max_clients(capability)
        if replicas > most:
            hint = f"GPU {unit.index} (compute capability {capability or 'unknown'}) takes {most} MPS clients at most"
            raise PlanError(f"{place}.replicas", replicas, hint)


def check_node(mig_strategy: str, root: str) -> None:
    """Whether MPS can be at work on this node at all. Raises PlanError."""
    if mig_strategy == "mixed":
        raise PlanError(
            "sharing.strategy", "mps", "not possible with partitions.strategy mixed; use timeSlicing, or none"
        )
    if not root:
        raise PlanError(
            "sharing.strategy",
            "mps",
            "needs the host's directory for MPS; install the component mps, or give --mps-root (MPS_ROOT)",
        )


def client(resource: str, root: str) -> tuple[dict[str, str], tuple[Mount, ...]]:
    """Environment and mounts of a container that has a share of this resource. `root`: on the host."""
    pipe = pipe_folder(CONTAINER_ROOT, resource)
    mounts = (
        Mount(container_path=pipe, host_path=pipe_folder(root, resource), read_only=False),
        Mount(container_path="/dev/shm", host_path=f"{_root(root)}/{SHARED_MEMORY}", read_only=False),  # noqa: S108
    )
    return {PIPE_VARIABLE: pipe}, mounts


def daemons(plan: Plan, inventory: Inventory) -> tuple[Daemon, ...]:
    """The daemons that this plan needs, by resource name. A device that left needs none, and comes back to its own."""
    return tuple(_daemon(resource, inventory) for resource in plan.resources if _needs_daemon(resource))


def silent(plan: Plan, answers: Answers) -> str:
    """Why a resource of this plan cannot be offered: its daemon does not answer. Empty: all of them do."""
    for resource in plan.resources:
        why = _silence(resource, answers)
        if why:
            return f"sharing.strategy: mps: the control daemon of {resource.name} {why}"
    return ""


def unanswered(plan: Plan, answers: Answers) -> tuple[OfferedResource, ...]:
    """The resources of this plan that need a daemon which does not answer: one that may still have to be started."""
    return tuple(resource for resource in plan.resources if _silence(resource, answers))


def starting(plan: Plan, answers: Answers) -> bool:
    """Whether the daemons that do not answer are only being started: nothing has to be corrected yet."""
    return {_silence(resource, answers) for resource in plan.resources} <= {"", UNASKED, BEING_STARTED}


def withheld(plan: Plan, told: Plan | None, answers: Answers) -> Plan:
    """The plan without what cannot be used: shares whose daemon does not answer.

    What the kubelet was told (`told`: the plan before) stays listed, as unhealthy: it goes on showing an id that is
    dropped as healthy to the pods that have it. What it was not told yet is not registered.
    """
    shown = {each.name for each in (told or Plan()).resources if each.ids}
    return Plan(
        resources=tuple(
            each if not _silence(each, answers) else _without(each, listed=each.name in shown)
            for each in plan.resources
        )
    )


def _without(resource: OfferedResource, *, listed: bool) -> OfferedResource:
    ids = tuple(replace(each, healthy=False) for each in resource.ids) if listed else ()
    return replace(resource, ids=ids)


def _needs_daemon(resource: OfferedResource) -> bool:
    return resource.sharing == "mps" and bool(resource.ids)


def _silence(resource: OfferedResource, answers: Answers) -> str:
    if not _needs_daemon(resource):
        return ""
    return answers.get((resource.name, _percentage(resource)), UNASKED)


def _percentage(resource: OfferedResource) -> int:
    return 100 // (resource.replicas or 1)


def _daemon(resource: OfferedResource, inventory: Inventory) -> Daemon:
    ids = frozenset(each.device_id for each in resource.ids)
    replicas = resource.replicas or 1
    facts = [device.fact for device in inventory.devices if device.present and device.fact.id in ids]
    gpus = tuple(
        Gpu(id=fact.id, index=fact.index, limit_mib=(fact.memory_bytes or 0) // replicas // MEBIBYTE) for fact in facts
    )
    return Daemon(resource=resource.name, percentage=_percentage(resource), gpus=gpus)


def _root(root: str) -> str:
    return root.rstrip("/")
