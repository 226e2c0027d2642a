"""A sharing mode that the agent does not come with, as somebody else would write it: all of it is in this file.

`exclusiveWindow`: the containers of a device use it one after the other. A window keeper, a program on the node, lets
them: it runs where a file with the resource's name is in its folder, and the file has the keeper's instance.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path

from nodedevices_plugin.model import ContainerEdits, Grant, Inventory, OfferedResource, PlanError
from nodedevices_plugin.sharing.base import (
    NOT_QUERIED,
    READY,
    Helper,
    HelperAnswer,
    HelperFacts,
    HelperKind,
    HelperProcess,
    HelperState,
    HelperTexts,
    NodeTraits,
    Settings,
    Split,
    SplitRequest,
    by_replicas,
)
from nodedevices_probe.protocol import DeviceFact

NAME = "exclusiveWindow"
MOST = 8


TEXTS = HelperTexts(
    title="exclusive windows",
    program="window keeper",
    down="WindowKeeperDown",
    down_means="its containers get no window",
    restarted="WindowKeeperRestarted",
    state="place in the queue",
    log="container without its window keeper",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeper:
    resource: str
    windows: int
    device_ids: frozenset[str]
    mode: str = NAME
    kind: HelperKind = field(default_factory=lambda: KeeperKind())  # noqa: PLW0108 it is defined below

    @property
    def key(self) -> tuple[str, int]:
        return (self.resource, self.windows)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperKind:
    exclusive: bool = True
    texts: HelperTexts = TEXTS

    def key(self, resource: OfferedResource) -> Hashable:
        return (resource.name, resource.sharing.replicas or 1)

    def most_clients(self, device: DeviceFact) -> None:
        return None

    def wanted(self, resource: OfferedResource, inventory: Inventory) -> Keeper:
        here = {each.fact.id for each in inventory.devices if each.present}
        ids = frozenset(each.device_id for each in resource.ids) & here
        return Keeper(resource=resource.name, windows=resource.sharing.replicas or 1, device_ids=ids, kind=self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExclusiveWindow:
    name: str = NAME
    helper: KeeperKind = KeeperKind()

    def check(self, node: NodeTraits) -> None:
        if node.partition_strategy != "none":
            raise PlanError("sharing.strategy", NAME, "windows are of whole devices; use partitions.strategy none")

    def split(self, request: SplitRequest) -> Split:
        split = by_replicas(self, request)
        replicas = split.sharing.replicas or 0
        if replicas > MOST:
            raise PlanError(f"{request.place}.replicas", replicas, f"a device has {MOST} windows at most")
        return split

    def edits(self, grant: Grant, settings: Settings) -> ContainerEdits:
        windows = ",".join(str(each.replica) for each in grant.ids)
        return ContainerEdits(envs={"EXCLUSIVE_WINDOW": f"{windows} of {grant.resource.sharing.replicas}"})


class Keepers:
    """The manager: has nothing to start, and looks every moment whether the keepers run."""

    def __init__(self, folder: Path, *, on_change: Callable[[], None]) -> None:
        self._folder = folder
        self._on_change = on_change
        self._wanted: tuple[Helper, ...] = ()
        self.facts = HelperFacts()

    def want(self, helpers: tuple[Helper, ...] | None) -> None:
        if helpers is not None:
            self._wanted = helpers

    async def run(self) -> None:
        while True:
            instances = {each: self._instance(each.resource) for each in self._wanted}
            before, self.facts = (
                self.facts,
                HelperFacts(
                    answers={each.key: READY if found else self._missing() for each, found in instances.items()},
                    processes={
                        each.resource: HelperProcess(answers=bool(found), instance=found)
                        for each, found in instances.items()
                    },
                ),
            )
            if self.facts != before:
                self._on_change()
            await asyncio.sleep(0.05)

    def _missing(self) -> HelperAnswer:
        return HelperAnswer(state=HelperState.SILENT, message="does not run") if self._folder.exists() else NOT_QUERIED

    def _instance(self, resource: str) -> str:
        file = self._folder / resource.replace("/", "_")
        return file.read_text() if file.exists() else ""
