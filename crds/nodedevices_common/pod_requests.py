"""Requests of a pod's containers for devices: how many of a resource, and, where shares of a device are given out,
how much of its computing power, and of which device a container gets them.

The agent books by it what the kubelet allocates, the scheduler extender foresees it, and the operator adds up what a
node's pods request. All call these functions, so that they agree. A missing or odd field reads as absent, but for the
text of an annotation: what is no percentage is a problem for the pod's owner.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from nodedevices_common.quantity import whole_units
from nodedevices_common.raw import Raw, mapping, mappings

# Kinds of containers; plain numbers, since the extender hashes them for every node.
INIT: Final = 0  # ends before the others start, which reuse what it had
SIDECAR: Final = 1  # an init container with restartPolicy Always: keeps what it has
MAIN: Final = 2

CORES_ANNOTATION = "nodedevices.io/gpu-cores."  # and the container's name
VCUDA_CORE = "tencent.com/vcuda-core"
WHOLE = 100  # percent of one device
MAX_STRAYS = 4  # of a pod; one is named

_PERCENT = re.compile(r"[1-9][0-9]?|100", re.ASCII)


class Demand(NamedTuple):
    """A container's need of a device's computing power: `percent` of it, and not a smaller part than `units` of its
    shares are of all its shares."""

    percent: int = 0
    units: int = 0

    def scaled(self, total: int) -> int:
        """Return the demand on a device with so many shares, in percent times that number: whole numbers, so that parts
        add up exactly. Never more than all of it."""
        return min(WHOLE * total, max(self.percent * total, WHOLE * self.units))

    def percent_of(self, total: int) -> int:
        """The same in percent, rounded up, for people and programs."""
        return -(-self.scaled(total) // total) if total else 0

    def __or__(self, other: Demand) -> Demand:
        """Return the larger one."""
        return Demand(max(self.percent, other.percent), max(self.units, other.units))


ALL = Demand(percent=WHOLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """`requests`: extended resources. `cores`: the annotation's value, None where there is none."""

    name: str
    kind: int = MAIN
    requests: Mapping[str, int] = field(default_factory=dict)
    cores: str | None = None


class Want(NamedTuple):
    """A container's want of a resource. `demand`: with what it inherits of init containers. `problem`: why it cannot
    have computing power, for the pod's owner."""

    container: str
    kind: int
    size: int
    demand: Demand
    problem: str = ""


# --- from raw pods ---------------------------------------------------------------------------------------------------
def raw_containers(spec: Raw) -> Iterator[tuple[int, Raw]]:
    """Each with its kind, in the order in which the kubelet allocates: init containers first."""
    for container in mappings(spec.get("initContainers")):
        yield (SIDECAR if container.get("restartPolicy") == "Always" else INIT), container
    for container in mappings(spec.get("containers")):
        yield MAIN, container


def amounts(container: Raw) -> Raw:
    """Return what it requests of any resource, as it is written: of an extended resource request and limit are
    equal."""
    resources = mapping(container.get("resources"))
    requests, limits = mapping(resources.get("requests")), mapping(resources.get("limits"))
    return {**requests, **limits} if requests else limits


def extended_resources(container: Raw) -> dict[str, int]:
    """Return how many of each extended resource it requests."""
    return {name: count for name, value in amounts(container).items() if "/" in name and (count := whole_units(value))}


def pod_containers(pod: Raw) -> tuple[tuple[Container, ...], tuple[str, ...]]:
    """In the order in which the kubelet allocates; and the names in the pod's annotations that no container has."""
    said = {
        key.removeprefix(CORES_ANNOTATION): value if isinstance(value, str) else ""
        for key, value in mapping(mapping(pod.get("metadata")).get("annotations")).items()
        if key.startswith(CORES_ANNOTATION)
    }
    containers = tuple(
        Container(
            name=(name := str(container.get("name") or "")),
            kind=kind,
            requests=extended_resources(container),
            cores=said.pop(name, None),
        )
        for kind, container in raw_containers(mapping(pod.get("spec")))
    )
    return containers, tuple(sorted(said)[:MAX_STRAYS])


# --- what they want --------------------------------------------------------------------------------------------------
def wants(containers: Sequence[Container], resource: str, strays: Sequence[str] = ()) -> list[Want]:
    """Return what those containers of a pod want that request the resource, in the order in which the kubelet
    allocates. `strays`: names in its annotations that no container has.

    The kubelet gives an init container's ids to the pod's sidecars and to its first container that wants some, so that
    these carry the largest demand of the init containers, too.
    """
    wanting = [container for container in containers if container.requests.get(resource, 0) > 0]
    own = [_own(container, resource) for container in wanting]
    carried = Demand()
    for container, (demand, _) in zip(wanting, own, strict=True):
        if container.kind == INIT:
            carried |= demand
    alone = ""
    if wanting and all(container.kind == INIT for container in wanting):  # their ids would be in no List of the kubelet
        alone = (
            f"its init container {wanting[0].name} requests {resource} and no container does; request the same amount "
            "in a container."
        )
    first = next((container for container in wanting if container.kind == MAIN), None)
    found = []
    for container, (demand, problem) in zip(wanting, own, strict=True):
        unnamed = ""
        if strays and container.cores is None:  # it is probably meant
            unnamed = (
                f"annotation {CORES_ANNOTATION}{strays[0][:64]} names no container of the pod; did you mean "
                f"{CORES_ANNOTATION}{container.name}? Correct it, or remove it for a part like the container's memory."
            )
        found.append(
            Want(
                container=container.name,
                kind=container.kind,
                size=container.requests[resource],
                demand=demand | carried if container.kind != MAIN or container is first else demand,
                problem=problem or unnamed or alone,
            )
        )
    return found


def _own(container: Container, resource: str) -> tuple[Demand, str]:
    """The container's own demand, and what is wrong with how it says so."""
    if container.cores is not None:
        if _PERCENT.fullmatch(container.cores):
            return Demand(percent=int(container.cores)), ""
        right = 'give a percentage of one device, "1" to "100".'
        return ALL, f"annotation {CORES_ANNOTATION}{container.name}: {container.cores[:64]!r}: {right}"
    if vcuda := container.requests.get(VCUDA_CORE, 0):
        if vcuda < WHOLE:
            return Demand(percent=vcuda), ""
        right = f"{WHOLE} and more are whole GPUs, which have all their memory; leave {resource} out, or give 1 to 99."
        return ALL, f"container {container.name} requests {vcuda} of {VCUDA_CORE}: {right}"
    return Demand(units=container.requests[resource]), ""


# --- which device ----------------------------------------------------------------------------------------------------
def choose(
    free: Mapping[str, int], size: int, *, spread: bool, among: Callable[[str], bool] | None = None
) -> str | None:
    """The device that gets `size` shares: of those with room the fullest (`spread`: the emptiest), of equals the first.

    `free` has the free shares of each device, by index. With `among`, only devices for which it is true. None: no
    device has room.
    """
    best: str | None = None
    for device, count in free.items():
        if count < size or (among is not None and not among(device)):
            continue
        if best is None or (count > free[best] if spread else count < free[best]):
            best = device
    return best
