"""What a pod requests of resources that are shared by memory, in the order in which the kubelet allocates. Pure.

A pod comes from the scheduler or a watch, as raw JSON: what is missing or odd reads as no request, so that the pod
passes and the kubelet judges it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from nodedevices_api.quantity import to_bytes

Raw = Mapping[str, Any]


# Kinds of containers; plain numbers, since they are hashed for every node.
INIT: Final = 0  # ends before the others start, which reuse what it had
SIDECAR: Final = 1  # an init container with restartPolicy Always: keeps what it has
MAIN: Final = 2

Step = tuple[int, int]  # the kind of one container, and how many shares it requests
Steps = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """What the containers of one pod request of one resource; those that request none are left out."""

    steps: Steps
    names: tuple[str, ...]  # of the containers, for messages and holders

    @property
    def single(self) -> int:
        """How many shares, where one container alone requests any; else 0."""
        return self.steps[0][1] if len(self.steps) == 1 else 0


def requests_of(pod: Raw, resources: Collection[str]) -> dict[str, Request]:
    """By resource."""
    found: dict[str, list[tuple[str, Step]]] = {}
    spec = pod.get("spec")
    for kind, container in _containers(spec if isinstance(spec, Mapping) else {}):
        amounts = container.get("resources")
        limits = amounts.get("limits") or amounts.get("requests") if isinstance(amounts, Mapping) else None
        for resource, amount in limits.items() if isinstance(limits, Mapping) else ():
            if resource in resources and (size := count(amount)) > 0:
                found.setdefault(resource, []).append((str(container.get("name", "")), (kind, size)))
    return {
        resource: Request(tuple(step for _, step in entries), tuple(name for name, _ in entries))
        for resource, entries in found.items()
    }


def _containers(spec: Raw) -> Iterator[tuple[int, Raw]]:
    """As the kubelet admits them: init containers first."""
    for each in _mappings(spec.get("initContainers")):
        yield (SIDECAR if each.get("restartPolicy") == "Always" else INIT), each
    for each in _mappings(spec.get("containers")):
        yield MAIN, each


def _mappings(value: object) -> Iterator[Raw]:
    return (each for each in value if isinstance(each, Mapping)) if isinstance(value, list) else iter(())


def count(amount: object) -> int:
    """A whole number, as Kubernetes writes one: 20, "20", "1k". Anything else is 0."""
    if isinstance(amount, bool):
        return 0
    if isinstance(amount, int):
        return max(0, amount)
    if not isinstance(amount, str):
        return 0
    try:
        return to_bytes(amount)
    except ValueError:
        return 0
