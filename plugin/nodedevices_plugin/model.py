"""The values that pass between the agent's stages. Frozen; no behaviour beyond what the words mean.

    probe line -> Inventory -> {device id: Verdict} -> Plan -> kubelet
                       \\            |               |
                        `------------+--- holders ---+--> report -> publisher

Each stage takes the latest values and makes its own. Nothing here imports grpc, kubernetes, kopf or pynvml.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from nodedevices_common.errors import RefusedError

from nodedevices_plugin.probes.protocol import DeviceFact, Driver, Machine, Partition, Trouble, memory_bytes

CONFIRM = "nodedevices.io/confirm"  # annotation of NodeDevices: a person's word, <device id>=recovered|removed[,...]


class HealthState(StrEnum):
    """SCHEMA: `health.state`."""

    HEALTHY = "Healthy"
    DEGRADED = "Degraded"  # told, still offered
    UNHEALTHY = "Unhealthy"  # not offered
    UNKNOWN = "Unknown"  # nobody can tell


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that is wrong with a device, kept until the evidence says that it is over.

    An XID is an edge: it is remembered here and, with the verdict, in the state file. A reading (lost, ECC, ...) is a
    level: `last_seen` is None while it lasts, and the time of the first line without it afterwards.
    """

    reason: str  # Xid79, FallenOffBus, Missing, RowRemapFailure, ...; one fault a reason
    state: HealthState  # DEGRADED or UNHEALTHY
    message: str  # what happened, without what to do
    action: str  # SCHEMA recoveryAction that the table asks for
    fault_domain: str  # Application | Device | Node
    since: datetime
    last_seen: datetime | None = None  # newest evidence, from which the hold-down counts; None: still evident
    boot_id: str  # of the boot in which it was last seen
    xid: int | None = None
    neighbours: tuple[int, ...] = ()  # XIDs that came within the correlation window of this one
    instance: str = ""  # the probe's process that told the event which began it, and its number there; "": no event
    sequence: int = -1
    left: bool = False  # since the event the device left (lost or not listed), or the driver asked for an action
    driver_reloaded: bool = False  # the driver was unloaded since
    confirmed: bool = False  # a person said that it is over (nodedevices.io/confirm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is known about one physical device (or one partition, where it differs from its GPU).

    `offered` says whether the kubelet is told Healthy: true for Healthy and Degraded, and for Unknown until it is
    withdrawn. `since` belongs to (state, reason) and is never bumped by a repeat. A verdict with faults goes into the
    state file; without them there is nothing to remember.
    """

    state: HealthState
    reason: str  # "" when Healthy; Xid79, FallenOffBus, Missing, RowRemapFailure, ProbeSilent, ...
    message: str
    since: datetime
    offered: bool
    xid: int | None = None
    recovery_action: str = "None"
    fault_domain: str | None = None  # Application | Device | Node
    faults: tuple[Fault, ...] = ()  # worst first; what recovery is judged by, not published


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryDevice:
    """A device that is here, or was: a vanished one stays, with its last facts, until it returns or is released."""

    fact: DeviceFact
    present: bool
    last_seen: datetime
    probe: str = ""  # which of the agent's probes reports it; "": not said yet, or a state file of before
    # MIG devices that the driver no longer lists while a pod still holds them: they stay listed, Unhealthy.
    departed_partitions: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Every device that one probe reports or reported, or all of them together (inventory.together); by type, index
    and id."""

    devices: tuple[InventoryDevice, ...] = ()
    driver: Driver | None = None  # None: no good line yet
    machine: Machine = field(default_factory=Machine)
    boot_id: str = ""
    accelerators_on_bus: int = 0
    troubles: tuple[Trouble, ...] = ()
    instance: str = ""  # of the probe's process that wrote the line in force
    heard: int = -1  # the newest event of that process, by its sequence number
    read_after: int = -1  # the newest event that had happened when the devices of the line were asked
    line_time: datetime | None = None  # agent's clock when the line in force arrived
    line_monotonic: float | None = None  # seconds, time.monotonic(): silence is measured by it


@dataclass(frozen=True, slots=True)
class Unit:
    """One thing that can be handed out whole: a device, or a partition of one."""

    device: InventoryDevice
    partition: Partition | None = None

    @property
    def id(self) -> str:
        return self.partition.id if self.partition else self.device.fact.id

    @property
    def index(self) -> str:
        """NVML's: `3`, or `3:1` for the MIG device 1 of GPU 3."""
        index = str(self.device.fact.index)
        return f"{index}:{self.partition.index}" if self.partition else index

    @property
    def memory_bytes(self) -> int:
        return memory_bytes((self.partition or self.device.fact).capacity)


class PlanError(RefusedError):
    """A configuration that makes no sense here: the last good one stays in effect, and this is shown where it was set.

    `field` is its place (`sharing.resources[nvidia.com/gpu].replicas`), `value` what stands there, `hint` what would
    be right.
    """

    def __init__(self, field: str, value: object, hint: str) -> None:
        self.field = field
        self.value = value
        self.hint = hint
        super().__init__(f"{field}: {value!s}: {hint}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    container_path: str
    host_path: str
    read_only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    container_path: str
    host_path: str
    permissions: str = "rw"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerEdits:
    """What a container needs to use what it was given, whichever API of the kubelet asks. `cdi_devices` are qualified
    names; `annotations` are the container runtime's, not the pod's."""

    envs: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulableId:
    """One id of one resource, as ListAndWatch shows it."""

    id: str  # GPU-..., MIG-..., GPU-...::3
    device_id: str  # the physical device whose health it carries
    partition_id: str | None = None
    replica: int | None = None
    healthy: bool
    numa_node: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedResource:
    """One extended resource that this node's agent serves to the kubelet."""

    name: str  # nvidia.com/gpu
    ids: tuple[SchedulableId, ...]  # sorted by (device index, partition index, replica): a stable order
    sharing: str = "none"  # none | timeSlicing | mps | memory
    replicas: int | None = None
    fail_requests_greater_than_one: bool = False
    retained: tuple[SchedulableId, ...] = ()  # no longer offered, and held by pods (resources.occupancy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Who gets what: ids of one resource that go to one container, in the order in which they were asked for."""

    resource: OfferedResource
    ids: tuple[SchedulableId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the kubelet is told. Equal plans need no message."""

    resources: tuple[OfferedResource, ...] = ()  # sorted by name


class AllocationError(RefusedError):
    """A request that cannot be granted; its text reaches the pod's status verbatim and says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A container that has devices, as PodResources shows it."""

    namespace: str
    pod: str
    container: str
    resource: str | None = None  # None: a DRA claim
    claim: str | None = None
    ids: tuple[str, ...] = ()  # schedulable ids (device plugin) or device names (DRA), sorted
    since: (
        datetime  # see SCHEMA "Whose pod": last Allocate that handed out one of these ids, or first List that shows it
    )


class HoldersState(StrEnum):
    """The reasons of the condition HoldersKnown. Only SYNCED means that whoever is not listed holds nothing."""

    SYNCED = "Synced"
    INCOMPLETE = "PodResourcesIncomplete"  # it answers, but a kubelet that has just started does not know its pods yet
    UNAVAILABLE = "PodResourcesUnavailable"
    RATE_LIMITED = "RateLimited"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Ids of a resource that the kubelet may hand out (whoever's plugin serves it), sorted."""

    resource: str
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """Who holds what; on trouble the last good list stays, and `state` says that it may be old.

    `offered`: what the kubelet calls healthy, of every plugin on the node; None: not asked for (Observe asks, and an
    agent with nothing in force yet), or not answered, and `message` says why.
    `possible`: ids that the kubelet's checkpoint gives to containers, whoever they are, while `state` is not SYNCED: a
    superset of what is held. None: it cannot be read.
    """

    state: HoldersState
    message: str = ""
    holders: tuple[Holder, ...] = ()
    offered: tuple[Offer, ...] | None = None
    possible: tuple[Offer, ...] | None = None
    taken: float = 0.0  # time.monotonic() when the last complete List was asked for; 0.0: there was none


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentAllocate:
    """An Allocate that we answered: the kubelet may not show it in PodResources yet."""

    resource: str
    ids: tuple[str, ...]
    time: datetime
    monotonic: float


class RegistrationState(StrEnum):
    PENDING = "Pending"
    REGISTERED = "Registered"  # the kubelet has an open ListAndWatch stream
    KUBELET_UNREACHABLE = "KubeletUnreachable"
    REJECTED = "RegistrationRejected"
    SERVED_BY_ANOTHER = "ServedByAnother"  # another device plugin has the name; we register when it is gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """How one resource stands with the kubelet."""

    resource: str
    state: RegistrationState
    message: str = ""


# --- what the agent has to say about its configuration ---------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Why a configuration is not applied. `section`: of a policy; empty: none. `field`: its place, where known."""

    section: str = ""
    field: str = ""
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmatched:
    """An entry that matches nothing on this node. `entry`: its place within the section, and what stands there."""

    section: str
    entry: str
    message: str

    @property
    def text(self) -> str:
        """For people."""
        return f"{self.section}.{self.entry}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingPod:
    """A pod that holds what a change waits for. `resource` empty: by a ResourceClaim."""

    namespace: str
    pod: str
    resource: str
    ids: tuple[str, ...]


def served_by_others(registrations: Iterable[Registration]) -> frozenset[str]:
    """Names of the plan that another device plugin serves to the kubelet: nothing of them is reported as ours."""
    return frozenset(each.resource for each in registrations if each.state is RegistrationState.SERVED_BY_ANOTHER)
