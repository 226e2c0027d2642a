"""What a pod requests of resources that are shared by memory, in the order in which the kubelet allocates; and of the
computing power of the same devices, where that is shared too. Pure.

A pod comes from the scheduler or a watch, as raw JSON: what is missing or odd reads as no request, so that the pod
passes and the kubelet judges it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from nodedevices_api.quantity import whole_units

Raw = Mapping[str, Any]


# Kinds of containers; plain numbers, since they are hashed for every node.
INIT: Final = 0  # ends before the others start, which reuse what it had
SIDECAR: Final = 1  # an init container with restartPolicy Always: keeps what it has
MAIN: Final = 2

CORES = "nodedevices.io/gpu-cores."  # annotation, and the container's name
VCUDA_CORE = "tencent.com/vcuda-core"
WHOLE = 100  # percent of one device

_PERCENT = re.compile(r"[1-9][0-9]?|100", re.ASCII)

Step = tuple[int, int]  # the kind of one container, and how many shares it requests
Steps = tuple[Step, ...]
Demand = tuple[int, int]  # percent of a device, and not less than so many of its shares are of all its shares


@dataclass(frozen=True, slots=True)
class Request:
    """What the containers of one pod request of one resource; those that request none are left out."""

    steps: Steps
    names: tuple[str, ...]  # of the containers, for messages and holders
    demands: tuple[Demand, ...] = ()  # of computing power; empty: as much as its shares are of all, for each

    @property
    def single(self) -> int:
        """How many shares, where one container alone requests any; else 0."""
        return self.steps[0][1] if len(self.steps) == 1 else 0


def requests_of(pod: Raw, resources: Collection[str]) -> dict[str, Request]:
    """By resource."""
    found: dict[str, list[tuple[str, Step, Demand]]] = {}
    spec, metadata = pod.get("spec"), pod.get("metadata")
    said = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    annotations = said if isinstance(said, Mapping) else {}
    for kind, container in _containers(spec if isinstance(spec, Mapping) else {}):
        amounts = container.get("resources")
        given = amounts.get("limits") or amounts.get("requests") if isinstance(amounts, Mapping) else None
        name, limits = str(container.get("name", "")), given if isinstance(given, Mapping) else {}
        for resource, amount in limits.items():
            if resource in resources and (size := whole_units(amount)) > 0:
                cores = _cores(name, limits, annotations)
                found.setdefault(resource, []).append((name, (kind, size), (cores, 0) if cores else (0, size)))
    return {resource: _request(entries) for resource, entries in found.items()}


def _request(entries: list[tuple[str, Step, Demand]]) -> Request:
    steps, names = tuple(step for _, step, _ in entries), tuple(name for name, _, _ in entries)
    demands = tuple(_carried(entries))
    own = tuple((0, size) for _, size in steps)
    return Request(steps, names, () if demands == own else demands)


def _carried(entries: list[tuple[str, Step, Demand]]) -> Iterator[Demand]:
    """As the agent counts: whoever gets an init container's ids has the largest demand of all of these."""
    before = [demand for _, (kind, _), demand in entries if kind == INIT]
    first = True
    for _, (kind, _), demand in entries:
        carries = kind != MAIN or first
        first = first and kind != MAIN
        of = [demand, *before] if carries else [demand]
        yield max(percent for percent, _ in of), max(units for _, units in of)


def _cores(name: str, limits: Raw, annotations: Raw) -> int:
    """In percent; 0: the container says nothing. What is no percentage counts as all, and its node refuses it."""
    said = annotations.get(f"{CORES}{name}")
    if said is not None:
        return int(said) if isinstance(said, str) and _PERCENT.fullmatch(said) else WHOLE
    return min(WHOLE, whole_units(limits.get(VCUDA_CORE)))


def _containers(spec: Raw) -> Iterator[tuple[int, Raw]]:
    """As the kubelet admits them: init containers first."""
    for each in _mappings(spec.get("initContainers")):
        yield (SIDECAR if each.get("restartPolicy") == "Always" else INIT), each
    for each in _mappings(spec.get("containers")):
        yield MAIN, each


def _mappings(value: object) -> Iterator[Raw]:
    return (each for each in value if isinstance(each, Mapping)) if isinstance(value, list) else iter(())
