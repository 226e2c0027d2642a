"""The holders of ids, as the kubelet shows them; the pods of this node, as far as it matters which containers request a
share and how much computing power they need; and how containers use the devices that they hold (pipeline.idle).

`requests` and `cores` of a container are as they were when its pod was first seen: so what was reserved for it stays
enough, also after its annotations are edited.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from msgspec import Struct, field
from nodedevices_common.pod_requests import Container


class Holder(Struct, frozen=True, kw_only=True):
    """A container that has devices, as PodResources shows it."""

    namespace: str
    pod: str
    container: str
    resource: str | None = None  # None: of a DRA claim, but for its shares
    claim: str | None = None
    ids: tuple[str, ...] = ()  # schedulable ids (device plugin) or device names (DRA), sorted
    also: tuple[str, ...] = ()  # what else it was given: the other devices of a resource that is given whole
    since: datetime  # last Allocate that handed out one of these ids, or first List that showed it
    uid: str = ""  # of the pod, by the kubelet's checkpoint: one that is made anew has the same name. "": not known

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """The container, and by what it was allocated: a List has one holder of each. Also the order of holders."""
        return (self.namespace, self.pod, self.container, self.resource or "", self.claim or "")


def tenure_key(pod_uid: str, container: str, resource: str | None) -> str:
    """Return the key of a container's time with a resource, which a restart of the agent does not end."""
    return f"{pod_uid}/{container} {resource or ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The device, or the partition of it, that a held id named when it was granted. `places`: its device nodes and
    index then (pipeline.places), each with whether no other device had it."""

    device: str
    partition: str | None = None
    places: Mapping[str, bool] = dataclasses.field(default_factory=dict)

    @property
    def part_id(self) -> str:
        """The partition's id, or the device's where it is whole."""
        return self.partition or self.device


def held_key(resource: str | None, id_: str) -> str:
    """Return the key of a held id, as the kubelet names it, for what was given with it."""
    return f"{resource or ''} {id_}"


class HoldersState(StrEnum):
    """The reasons of the condition HoldersKnown. Only with SYNCED a container that is not listed holds nothing, except
    init containers: they are never listed (Holdings.possible)."""

    SYNCED = "Synced"
    INCOMPLETE = "PodResourcesIncomplete"  # it answers, but a kubelet that has just started does not know its pods yet
    UNAVAILABLE = "PodResourcesUnavailable"
    RATE_LIMITED = "RateLimited"


class Offer(Struct, frozen=True, kw_only=True):
    """Ids of a resource that the kubelet may allocate, of any plugin, sorted. `claim`: <namespace>/<name> of the claim
    that has them, which no List shows (Holdings.possible)."""

    resource: str
    ids: tuple[str, ...]
    claim: str = ""


class Holdings(Struct, frozen=True, kw_only=True):
    """The holders; after a problem the last good list stays, and `state` says that it may be old.

    `offered`: what the kubelet calls healthy, of every plugin on the node; None: not read (Observe reads it, and an
    agent with nothing in effect yet), or not answered, and `message` says why.
    `possible`: what the kubelet's checkpoint gives to a container and none of `holders` has, an entry each: an init
    container's, which no List shows, a pod's that is not listed yet, or that of one that has ended since the kubelet
    wrote it. With `holders` it never lacks an id that is held. None: it cannot be read, and no earlier one is known.
    `unread_because`: why the checkpoint cannot be read; `possible` is then what it said before.
    `forgotten`: what pods had before the kubelet was started again, which lists these pods and nothing of it: it has
    lost its record, and may allocate it to others.
    """

    state: HoldersState
    message: str = ""
    holders: tuple[Holder, ...] = ()
    offered: tuple[Offer, ...] | None = None
    possible: tuple[Offer, ...] | None = None
    unread_because: str = ""
    forgotten: tuple[Holder, ...] = ()
    taken: float = 0.0  # time.monotonic() when the last complete List was called; 0.0: there was none

    @property
    def known(self) -> bool:
        """True when `holders` and `possible` have every id that is held, and `holders` none that is not."""
        return self.state is HoldersState.SYNCED and not self.unread_because

    @property
    def were_known(self) -> bool:
        """True when the holders were known at least once: before that, everything would seem to be free."""
        return self.state is HoldersState.SYNCED or self.taken > 0.0

    @property
    def held(self) -> tuple[tuple[str | None, tuple[str, ...]], ...]:
        """Resource and ids of each container that has, or may have, a device."""
        return (
            *((holder.resource, holder.ids) for holder in self.holders),
            *((offer.resource, offer.ids) for offer in self.possible or ()),
        )

    @property
    def unknown_because(self) -> str:
        """Why `known` is False, for people."""
        if self.state is HoldersState.SYNCED:
            return self.unread_because
        return f"{self.state.value}: {self.message}" if self.message else self.state.value


class CoresHeld(Struct, frozen=True, kw_only=True):
    """Computing power that containers hold, in percent of a device: by device or partition, and by namespace, pod,
    container and resource. A device that is not in it does not share its own."""

    devices: Mapping[str, int] = field(default_factory=dict)
    holders: Mapping[tuple[str, str, str, str], int] = field(default_factory=dict)


class RecentAllocate(Struct, frozen=True, kw_only=True):
    """An Allocate that we answered: the kubelet may not show it in PodResources yet."""

    resource: str
    ids: tuple[str, ...]
    time: datetime
    monotonic: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PodContainer(Container):
    """`started`: the kubelet has started it, so that its devices were allocated before."""

    started: bool = False


class NodePod(Struct, frozen=True, kw_only=True):
    """`containers`: in the order in which the kubelet allocates. `acknowledged`: the kubelet has admitted it.
    `seen`: time.monotonic() when it was first seen. `strays`: names in its annotations that none of its containers
    has, as they were then."""

    uid: str
    namespace: str
    name: str
    containers: tuple[PodContainer, ...] = ()
    finished: bool = False
    acknowledged: bool = False
    strays: tuple[str, ...] = ()
    seen: float = 0.0


class NodePods(Struct, frozen=True, kw_only=True):
    """`pods` None: not known, for the reason in `problem`. Afterwards the last ones that are known stay, and a problem
    says that they may be old. `forbidden`: the API server refuses to tell."""

    pods: tuple[NodePod, ...] | None = None
    problem: str = ""
    forbidden: bool = False


NEVER_USED = "NeverUsed"
IDLE = "Idle"
MEMORY_ONLY = "MemoryOnly"
UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenure:
    """A container's time with a device; it survives a restart of the agent (state file)."""

    holder: str  # namespace/pod/container, and by what it was allocated
    since: datetime  # of the Holder; a restarted agent sees another one
    began: datetime
    whole: bool  # observed from its beginning
    uid: str = ""  # of its pod; "": not known
    used: bool = False  # a process was seen, or something was computed


class DeviceUse(Struct, frozen=True, kw_only=True):
    """The use of one held device. Times without a zone are time.monotonic()."""

    word: str = ""  # one of the above; "": in use, or not observed for long enough
    since: datetime | None = None  # of the word, where it says that the device is not used
    tenure: Tenure | None = None  # None: several containers hold it, or parts of it
    began: float  # this record
    line: float | None = None  # the last line that was looked at
    read: float | None = None  # the last reading of how busy it is
    quiet: float | None = None  # since when every reading was 0 %, without a gap

    @property
    def unused(self) -> bool:
        return self.since is not None


class HeldSeconds(Struct, frozen=True, kw_only=True):
    """Device-seconds of one namespace since the agent's start."""

    held: float = 0.0
    unused: float = 0.0


class Uses(Struct, frozen=True, kw_only=True):
    """The use of all held devices."""

    devices: Mapping[str, DeviceUse] = field(default_factory=dict)  # by id
    namespaces: Mapping[str, HeldSeconds] = field(default_factory=dict)
    at: float  # time.monotonic()
