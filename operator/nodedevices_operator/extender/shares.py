"""Devices that are shared by memory, read from a NodeDevices.

Made from the raw JSON of every watch event: a missing or odd field reads as absent, and what an agent does not say
(`free` came later than `shares`) keeps its resource out, so that its node passes for it.

Requests of a pod for resources that are shared by memory, in the order in which the kubelet allocates; and of the
computing power of the same devices, where that is shared too (nodedevices_common.pod_requests, as the agent reads it).

A pod comes from the scheduler or a watch, as raw JSON: what is missing or odd reads as no request, so that the pod
passes and the kubelet judges it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from sys import intern
from typing import Any

from msgspec import Struct, field
from nodedevices_api.conditions import MISSING, STALE
from nodedevices_common.devices import grouped
from nodedevices_common.pod_requests import ALL, Demand, Want, amounts, pod_containers, raw_containers, wants
from nodedevices_common.raw import Raw, mapping, mappings

OFFERED = ("Healthy", "Degraded")  # states in which a device is offered


class HeldShares(Struct, frozen=True):
    """Shares of a device that one container holds."""

    pod: str  # namespace/name
    container: str
    shares: int
    cores: int  # percent of the device's computing power; 0: not known


class SharedDevice(Struct, frozen=True):
    """A device or a partition whose memory is shared."""

    id: str
    index: int  # of the device, in the driver's order
    total: int
    held: int
    free: int  # offered, healthy and not held
    offered: bool  # whether shares that are given back are free again
    holders: tuple[HeldShares, ...] = ()
    truncated: bool = False  # not all holders are listed
    missing: bool = False  # its driver no longer lists it
    cores_held: int | None = None  # percent; None: computing power is not shared

    @property
    def unlisted(self) -> int:
        """Shares whose holders are not listed."""
        return max(0, self.held - sum(holder.shares for holder in self.holders)) if self.truncated else 0


class WithheldShares(Struct, frozen=True):
    """Shares of a resource that new containers cannot get, for one reason."""

    reason: str  # one of nodedevices_api.withheld, or of a newer agent
    count: int


class MemoryResource(Struct, frozen=True):
    """The devices of a node whose shares have this name, by index; there is at least one."""

    name: str
    spread: bool
    unit: str  # memory of a share
    devices: tuple[SharedDevice, ...]
    capacity: int = 0  # shares that the node has, withheld ones too
    withheld: tuple[WithheldShares, ...] = ()  # the largest count first; empty: none, or the agent does not say


class NodeShares(Struct, frozen=True):
    """A NodeDevices, as far as it is about shares of memory."""

    name: str
    resources: Mapping[str, MemoryResource] = field(default_factory=dict)
    heartbeat: str = ""
    stale: bool = False  # the operator says so


def read(raw: Raw) -> NodeShares:
    """Raises nothing for what a status contains. What DRA serves has no shares here: the scheduler allocates it."""
    status = mapping(raw.get("status"))
    listed = {
        str(resource.get("name", "")): resource
        for resource in mappings(status.get("resources"))
        if resource.get("managedBy") != "dra" and resource.get("unit")  # else it is not shared by memory
    }
    found: dict[str, list[SharedDevice]] = {}
    left_out = _count(status.get("partitionsTruncated"))  # they may have room: then the node passes
    for parts in grouped(status.get("devices")):
        device, index = parts[0], _count(parts[0].get("index"))
        usable = _usable(device)
        for part in parts:
            shares = mapping(part.get("shares"))
            resource = shares.get("resource")
            if not isinstance(resource, str) or resource not in listed or not isinstance(shares.get("free"), int):
                continue
            total, held, free = (_count(shares.get(key)) for key in ("total", "held", "free"))
            shared = SharedDevice(
                id=intern(str(part.get("id", ""))),
                index=index,
                total=total,
                held=held,
                free=free,
                offered=usable and _usable(part) and free + held >= total,
                holders=tuple(_holders(part, resource)),
                truncated=_count(part.get("holdersTruncated")) > 0,
                missing=_missing(device) or _missing(part),
                cores_held=_count(shares["coresHeld"]) if "coresHeld" in shares else None,
            )
            found.setdefault(intern(resource), []).append(shared)
    return NodeShares(
        name=intern(str(mapping(raw.get("metadata")).get("name", ""))),
        resources={
            name: MemoryResource(
                name=name,
                spread=listed[name].get("packing") == "spread",
                unit=str(listed[name]["unit"]),
                devices=tuple(devices),
                capacity=_count(listed[name].get("capacity")),
                withheld=_withheld(listed[name]),
            )
            for name, devices in found.items()
        }
        if not left_out
        else {},
        heartbeat=str(mapping(status.get("agent")).get("heartbeatTime", "")),
        stale=any(it.get("type") == STALE and it.get("status") == "True" for it in mappings(status.get("conditions"))),
    )


def _withheld(resource: Raw) -> tuple[WithheldShares, ...]:
    """Return what an entry of `status.resources` says is withheld, the largest count first."""
    found = (
        WithheldShares(intern(str(withheld.get("reason", ""))), _count(withheld.get("count")))
        for withheld in mappings(resource.get("withheld"))
    )
    return tuple(sorted((it for it in found if it.reason and it.count), key=lambda it: (-it.count, it.reason)))


def _missing(part: Raw) -> bool:
    return mapping(part.get("health")).get("reason") == MISSING


def _usable(part: Raw) -> bool:
    state = mapping(part.get("health")).get("state")
    return (state is None or state in OFFERED) and not part.get("excluded") and not part.get("unschedulable")


def _holders(part: Raw, resource: str) -> Iterator[HeldShares]:
    """Yield the holders of shares of a device or partition under the resource's present name."""
    for holder in mappings(part.get("holders")):
        if holder.get("resource") == resource and (shares := _count(holder.get("shares"))):
            yield HeldShares(
                pod=pod_key(str(holder.get("namespace", "")), str(holder.get("pod", ""))),
                container=intern(str(holder.get("container", ""))),
                shares=shares,
                cores=_count(holder.get("cores")),
            )


def pod_key(namespace: str, name: str) -> str:
    return intern(f"{namespace}/{name}")  # a holder's and a bound pod's are one


def _count(value: Any) -> int:
    return max(0, value) if isinstance(value, int) else 0


Steps = tuple[tuple[int, int], ...]  # the kind of each container, and how many shares it requests


class PodRequest(Struct, frozen=True):
    """Requests of one pod's containers for one resource; those that request none are left out."""

    steps: Steps
    names: tuple[str, ...]  # of the containers, for messages and holders
    demands: tuple[Demand, ...] = ()  # of computing power; empty: as much as its shares are of all, for each
    problem: str = ""  # why no node has computing power for it, where that is shared

    @property
    def single(self) -> int:
        """Number of shares, where one container alone requests any; else 0."""
        return self.steps[0][1] if len(self.steps) == 1 else 0


def requests_of(pod: Raw, resources: Set[str]) -> dict[str, PodRequest]:
    """Return the pod's requests by resource."""
    if all(resources.isdisjoint(amounts(container)) for _, container in raw_containers(mapping(pod.get("spec")))):
        return {}  # nearly all pods of a cluster: no more of them is read
    containers, strays = pod_containers(pod)
    wanted = dict.fromkeys(name for container in containers for name in container.requests if name in resources)
    return {name: _request(wants(containers, name, strays)) for name in wanted}


def _request(found: Sequence[Want]) -> PodRequest:
    steps = tuple((want.kind, want.size) for want in found)
    demands = tuple(ALL if want.problem else want.demand for want in found)
    own = tuple(Demand(units=want.size) for want in found)
    problem = next((want.problem for want in found if want.problem), "")
    return PodRequest(steps, tuple(want.container for want in found), () if demands == own else demands, problem)
