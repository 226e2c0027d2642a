"""The holders of ids, as the kubelet shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

import msgspec
from msgspec import Struct


class Holder(Struct, frozen=True, kw_only=True):
    """A container that has devices, as PodResources shows it."""

    namespace: str
    pod: str
    container: str
    resource: str | None = None  # None: a DRA claim
    claim: str | None = None
    ids: tuple[str, ...] = ()  # schedulable ids (device plugin) or device names (DRA), sorted
    also: tuple[str, ...] = ()  # what else it was given: the other devices of a resource that is given whole
    since: datetime  # last Allocate that handed out one of these ids, or first List that showed it
    uid: str = ""  # of the pod, by the kubelet's checkpoint: one that is made anew has the same name. "": not known


def tenure_key(pod_uid: str, container: str, resource: str | None) -> str:
    """Return the key of a container's time with a resource, which a restart of the agent does not end."""
    return f"{pod_uid}/{container} {resource or ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The device, or the partition of it, that a held id named when it was granted. `places`: its device nodes and
    index then (pipeline.places), each with whether no other device had it."""

    device: str
    partition: str | None = None
    places: Mapping[str, bool] = field(default_factory=dict)

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
    """Ids of a resource that the kubelet may allocate, of any plugin, sorted."""

    resource: str
    ids: tuple[str, ...]


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
    def held(self) -> tuple[tuple[str | None, tuple[str, ...]], ...]:
        """Resource and ids of each container that has, or may have, a device."""
        return (
            *((each.resource, each.ids) for each in self.holders),
            *((each.resource, each.ids) for each in self.possible or ()),
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

    devices: Mapping[str, int] = msgspec.field(default_factory=dict)
    holders: Mapping[tuple[str, str, str, str], int] = msgspec.field(default_factory=dict)


class RecentAllocate(Struct, frozen=True, kw_only=True):
    """An Allocate that we answered: the kubelet may not show it in PodResources yet."""

    resource: str
    ids: tuple[str, ...]
    time: datetime
    monotonic: float
