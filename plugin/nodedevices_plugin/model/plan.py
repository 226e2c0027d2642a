"""The node's offer to the kubelet, and a container's grant.

How a resource is shared, as its sharing mode decided.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import IntEnum, StrEnum
from typing import Protocol

from msgspec import Struct, field
from nodedevices_api.sections import SECTION_NAMES
from nodedevices_common.errors import RefusedError
from nodedevices_common.text import place_of

WHOLE = "none"  # what the way to share is called where there is none


class Mode(Protocol):
    """A sharing mode (sharing.base.SharingMode), as far as what knows none of them has to know it."""

    @property
    def name(self) -> str: ...


class MemoryShares(Struct, frozen=True, kw_only=True):
    """Shares that are amounts of memory: a container requests as many as it needs. `unit`: what one share is, as ids
    and messages have it (1Gi); `devices`: all memory of each device or partition, in bytes, by id."""

    unit: str
    unit_bytes: int
    devices: Mapping[str, int]


class SharingFacts(Struct, frozen=True, kw_only=True):
    """How one resource is shared: made by its mode (sharing.base.SharingMode.split), and given back to it unchanged.

    The fields here exist for every mode. A fact that only one mode needs is a field of its own record, which derives
    from this one, and only that mode reads it.
    """

    mode: Mode | None = None  # None: its devices are handed out whole
    replicas: int | None = None  # how many shares each device has, where that is one number for all of them
    memory: MemoryShares | None = None
    packing: str | None = None  # a container's are of one device: the fullest (binpack) or emptiest (spread)
    enforced_by: Mode | None = None  # keeps containers to their shares, where this mode does not
    cores: bool = False  # computing power is shared as well (cores.ledger)

    @property
    def name(self) -> str:
        """none | timeSlicing | mps | memory; shared: by its nature (Vendor.shares)."""
        return WHOLE if self.mode is None else self.mode.name


NOT_SHARED = SharingFacts()


class PlanError(RefusedError):
    """A configuration that does not fit this node: the previous one stays in effect, and this is shown at its source.

    `field` is its place (`sharing.resources[nvidia.com/gpu].replicas`), `value` what stands there, `hint` what would
    be right. `devices`: ids of those without which it would make sense, where some are of another kind than the rest.
    """

    def __init__(self, field: str, value: object, hint: str, *, devices: Collection[str] = ()) -> None:
        self.field = field
        self.value = value
        self.hint = hint
        self.devices = frozenset(devices)
        super().__init__(f"{field}: {value!s}: {hint}")


class Mount(Struct, frozen=True, kw_only=True):
    container_path: str
    host_path: str
    read_only: bool = True


class DeviceNode(Struct, frozen=True, kw_only=True):
    container_path: str
    host_path: str
    permissions: str = "rw"


class ContainerEdits(Struct, frozen=True, kw_only=True):
    """What a container needs for its grant, through any of the kubelet's APIs. `cdi_devices` are qualified names;
    `annotations` are the container runtime's, not the pod's."""

    envs: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()


class ListedAs(IntEnum):
    """How a blocked id is shown in the kubelet's list. Of several the highest one counts."""

    UNHEALTHY = 0  # it is listed as Unhealthy
    NOT_LISTED = 1  # it is left out (OfferedResource.unlisted): the kubelet has not been shown it
    KEPT_FOR_HOLDER = 2  # it is kept for the pod that holds it alone (OfferedResource.retained)


class Blocked(Struct, frozen=True, kw_only=True):
    """Why a new container may not get an id (package gates). `reason`: one of nodedevices_api.withheld; `message`: for
    people, the same as long as nothing changes; `waits_for`: the pods that keep it blocked, <namespace>/<pod>."""

    reason: str
    message: str
    waits_for: tuple[str, ...] = ()
    listed_as: ListedAs = ListedAs.UNHEALTHY


class Part(Struct, frozen=True):
    """A physical device, or a partition of it, by their ids."""

    device_id: str
    partition_id: str | None = None

    @property
    def part_id(self) -> str:
        """The partition's id, or the device's where it is whole."""
        return self.partition_id or self.device_id


class SchedulableId(Part, frozen=True, kw_only=True):
    """One id of one resource, as ListAndWatch shows it. Its health is that of its device; `device_id` "": it has none,
    and is counted (OfferedResource.counts)."""

    id: str  # GPU-..., MIG-..., GPU-...::3
    replica: int | None = None
    numa_node: int | None = None
    blocked: Blocked | None = None

    @property
    def healthy(self) -> bool:
        """True when the kubelet is sent Healthy."""
        return self.blocked is None


class Api(StrEnum):
    """How a node's devices reach pods."""

    DEVICE_PLUGIN = "DevicePlugin"  # v1beta1: the kubelet counts ids, and allocates them
    DRA = "DRA"  # resource.k8s.io/v1: the scheduler allocates devices to claims, the kubelet has them prepared


class OfferedResource(Struct, frozen=True, kw_only=True):
    """One extended resource that this node's agent serves to the kubelet."""

    name: str  # nvidia.com/gpu
    api: Api = Api.DEVICE_PLUGIN
    ids: tuple[SchedulableId, ...]  # sorted by (device index, partition index, replica): a stable order
    sharing: SharingFacts = NOT_SHARED
    per_device: int | None = None  # how many ids a device has that one container gets all of (cores.ids)
    counts: tuple[str, ...] = ()  # devices and partitions with as many ids more, which name none of them (cores.ids)
    fail_requests_greater_than_one: bool = False
    together: bool = False  # a container with one id gets all devices of the resource (Vendor.shares)
    retained: tuple[SchedulableId, ...] = ()  # no longer offered, and held by pods (offering.occupancy)
    unlisted: tuple[SchedulableId, ...] = ()  # blocked, and left out of the kubelet's list: shown to people alone


class Grant(Struct, frozen=True, kw_only=True):
    """The ids of one resource that go to one container, in the order of the request. `cores`: the percentage of the
    device's computing power that it has, where that is shared and certain."""

    resource: OfferedResource
    ids: tuple[SchedulableId, ...]
    cores: int | None = None


class Plan(Struct, frozen=True, kw_only=True):
    """The offer that the kubelet is sent. Equal plans need no message."""

    resources: tuple[OfferedResource, ...] = ()  # sorted by name

    def by(self, api: Api) -> Plan:
        """Return what is served by this API. A name may be in both while pods hold its devices by the other one."""
        return Plan(resources=tuple(resource for resource in self.resources if resource.api is api))


class AllocationError(RefusedError):
    """A request that cannot be granted; its text reaches the pod's status verbatim and says what to do."""


# --- the registrations of the plan's resources with the kubelet, and the calls between it and the agent --------------
class RegistrationState(StrEnum):
    PENDING = "Pending"
    REGISTERED = "Registered"  # the kubelet has an open ListAndWatch stream
    KUBELET_UNREACHABLE = "KubeletUnreachable"
    REJECTED = "RegistrationRejected"
    SERVED_BY_ANOTHER = "ServedByAnother"  # another device plugin has the name; we register when it is gone


class Registration(Struct, frozen=True, kw_only=True):
    """The state of one resource's registration."""

    resource: str
    state: RegistrationState
    message: str = ""


# --- what the agent has to say about its configuration ---------------------------------------------------------------


def served_by_others(registrations: Iterable[Registration]) -> frozenset[str]:
    """Names of the plan that another device plugin serves to the kubelet: nothing of them is reported as ours."""
    return frozenset(
        registration.resource
        for registration in registrations
        if registration.state is RegistrationState.SERVED_BY_ANOTHER
    )


class Method(StrEnum):
    """The method's name in the device plugin API, or in DRA's. Register is the agent's call, the others are the
    kubelet's."""

    REGISTER = "Register"
    ALLOCATE = "Allocate"
    PREFERRED = "GetPreferredAllocation"
    PREPARE = "NodePrepareResources"
    UNPREPARE = "NodeUnprepareResources"


class Result(StrEnum):
    GRANTED = "granted"
    REFUSED = "refused"  # with a reason that the other side shows
    FAILED = "failed"  # Allocate, GetPreferredAllocation: by a bug; Register: the kubelet did not answer


class KubeletCall(Struct, frozen=True):
    """`seconds`: its duration, on the agent's side."""

    method: Method
    resource: str
    result: Result
    seconds: float


CallObserver = Callable[[KubeletCall], None]
"""Gets each call as it ends, in any thread and before the kubelet has its answer: it neither blocks nor raises."""


class ProbeCounters(Struct):
    """Since the agent started; for metrics. A start is one of its process, or a connection to its socket."""

    lines: int = 0  # good ones
    bad_lines: int = 0
    starts: int = 0
    kills: int = 0  # for silence


class DraCounters(Struct, frozen=True, kw_only=True):
    """For metrics. `slice_writes`: since the agent started."""

    driver: str
    prepared: int  # claims that have devices of this node now
    slice_writes: int


class Refused(Struct, frozen=True, kw_only=True):
    """A configuration that is not applied, and why. `field`: its place, where known."""

    field: str = ""
    message: str

    @property
    def section(self) -> str:
        """The section of a policy that the field is in; empty: none."""
        section = re.split(r"[.:\[]", self.field, maxsplit=1)[0]
        return section if section in SECTION_NAMES else ""


class Unmatched(Struct, frozen=True, kw_only=True):
    """An entry without effect on this node. `entry`: its place within the section, and what stands there."""

    section: str
    entry: str
    message: str

    @property
    def text(self) -> str:
        """The note for people."""
        return f"{place_of(self.section, self.entry)}: {self.message}"
