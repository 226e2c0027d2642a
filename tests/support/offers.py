"""Resources to offer in tests of the kubelet side, and an offer that only records its calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from nodedevices_plugin.granting.answers import NodeContainers, edits, grant
from nodedevices_plugin.model import ContainerEdits, Grant, OfferedResource, Plan, SchedulableId
from nodedevices_plugin.sharing.base import NO_SETTINGS, Settings
from nodedevices_plugin.vendors.base import Containers
from support.plans import UNFIT

GPU = "nvidia.com/gpu"


@dataclass
class EchoOffer:
    """Answers with the requested ids; `on_allocate` or `on_prefer` can misbehave."""

    received: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    on_allocate: Callable[[str, Sequence[str]], ContainerEdits] | None = None
    on_prefer: Callable[[Sequence[str], Sequence[str], int], Sequence[str]] | None = None

    def grant(self, resource: str, ids: Sequence[str]) -> Grant:
        self.received.append((resource, tuple(ids)))
        granted = tuple(SchedulableId(id=each, device_id=each) for each in ids)
        return Grant(resource=OfferedResource(name=resource, ids=granted), ids=granted)

    def edits(self, grant: Grant) -> ContainerEdits:
        resource, ids = grant.resource.name, [each.id for each in grant.ids]
        if self.on_allocate is not None:
            return self.on_allocate(resource, ids)
        return ContainerEdits(envs={"DEVICES": ",".join(ids)})

    def prefer(self, resource: str, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        if self.on_prefer is not None:
            return self.on_prefer(available, must_include, size)
        return tuple(dict.fromkeys((*must_include, *reversed(available))))[:size]


def allocate(
    resource: OfferedResource,
    ids: Sequence[str],
    containers: Containers | NodeContainers,
    *,
    modes: Settings = NO_SETTINGS,
) -> ContainerEdits:
    """Both halves of an answer: who gets what, and what the container needs for it. With one vendor's containers all
    devices are its own."""
    granted = grant(resource, ids)
    if isinstance(containers, NodeContainers):
        return edits(granted, containers)
    vendors = {each.device_id: "theirs" for each in resource.ids}
    node = NodeContainers(vendors=vendors, by_vendor={"theirs": containers}, modes=modes)
    return edits(granted, node)


def offered(
    count: int = 8, *, unhealthy: Iterable[int] = (), name: str = GPU, prefix: str = "GPU-", numa: int | None = None
) -> OfferedResource:
    bad = set(unhealthy)
    ids = tuple(
        SchedulableId(
            id=f"{prefix}{n}", device_id=f"{prefix}{n}", blocked=None if n not in bad else UNFIT, numa_node=numa
        )
        for n in range(count)
    )
    return OfferedResource(name=name, ids=ids)


def plan(*resources: OfferedResource) -> Plan:
    return Plan(resources=tuple(sorted(resources, key=lambda each: each.name)))
