"""Resources to offer in tests of the kubelet side, and an offer that only records its calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodedevices_plugin.granting.answers import NodeContainers, edits, grant
from nodedevices_plugin.kubelet.guard import Guard, Lists, Others, Own
from nodedevices_plugin.kubelet.offer import KubeletOffer, RecentAllocations
from nodedevices_plugin.kubelet.plugins import DevicePlugins
from nodedevices_plugin.kubelet.registration import Registering
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


class OpenGate:
    """A StartGate that never waits, as where no computing power is shared."""

    def ready(self, resource: str, size: int, ids: Sequence[str] = ()) -> None:
        pass

    async def before_start(self, resource: str, ids: Sequence[str]) -> None:
        pass


def ignored(*_: object) -> None:
    pass


async def prepared() -> None:
    pass


async def once(_: str, run: Callable[[], Awaitable[None]]) -> None:
    await run()


async def nobody(_name: str, _own: Own, *, taking_over: bool = False) -> str:
    return ""


async def not_known(_name: str) -> bool | None:
    return None


def device_plugins(
    folder: Path, offer: KubeletOffer, *, others: Others = nobody, lists: Lists = not_known, **other: Any
) -> DevicePlugins:
    """The kubelet's side of an agent in the kubelet's folder. No other plugin is in its way and nothing has to be
    waited for, unless a test says otherwise (`other`: fields of Registering)."""
    usual: dict[str, Any] = {
        "recent": RecentAllocations(),
        "on_allocated": ignored,
        "observe": ignored,
        "gate": OpenGate(),
        "kubelet_socket": folder / "kubelet.sock",
        "on_change": ignored,
        "prepare": prepared,
        "keep": once,
    }
    guard = Guard(folder, others=others, lists=lists)
    return DevicePlugins(Registering(folder=folder, offer=offer, guard=guard, **usual | other))


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
