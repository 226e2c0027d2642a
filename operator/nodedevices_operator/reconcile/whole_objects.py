"""Objects that the operator makes as a whole, for the cluster and for no node.

It writes what differs, removes what it made and is not wanted any more (a label says which are ours), and leaves alone
what another manager has. It fails by itself: nothing waits for it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import count
from typing import Any

import structlog

from nodedevices_operator.cache.store import Cache
from nodedevices_operator.kube.apply import Writer
from nodedevices_operator.kube.port import JsonObject, KubeError, delete
from nodedevices_operator.records.names import OURS, named

READ_SECONDS = 600.0  # what others changed meanwhile is put right then
OUR_LABEL = dict([OURS.split("=", 1)])

log = structlog.get_logger()


class WholeObjects(ABC):
    """Event loop only. `what`: for the log. `every_seconds`: from one look to the next."""

    what: str
    every_seconds: float

    def __init__(self, cache: Cache, writer: Writer) -> None:
        self._cache = cache
        self._writer = writer
        self._kept: Mapping[str, Any] | None = None  # as written; None: read it first
        self._said = ""

    async def run(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Never ends by itself."""
        while not self._cache.synced:
            await sleep(1.0)
        for number in count():
            if number % round(READ_SECONDS / self.every_seconds) == 0:
                self._kept = None
            try:
                said = await self.keep()
            except KubeError as error:
                self._kept, said = None, str(error)
            if said and said != self._said:
                log.warning(f"{self.what} are not kept", why=said)
            self._said = said
            await sleep(self.every_seconds)

    @abstractmethod
    async def keep(self) -> str:
        """Make the objects what they should be. Returns why they are not; raises KubeError to be tried again."""

    async def put_right(
        self,
        manager: str,
        collection: str,
        head: Mapping[str, str],
        found: Iterable[JsonObject],
        wanted: Mapping[str, JsonObject],
    ) -> list[str]:
        """Write and remove. `head`: apiVersion and kind; `found`: what is there of ours; `wanted`: specs by name.
        Returns what another has."""
        shown = {item["metadata"]["name"]: item for item in found}
        problems = []
        for name, spec in wanted.items():
            if name not in shown or shown[name].get("spec") != spec:
                body = {**head, "metadata": {"name": name, "labels": OUR_LABEL}, "spec": spec}
                try:
                    answer = await self._writer.apply(manager, named(collection, name), body, force=False)
                except KubeError as error:
                    if error.status != 409:
                        raise
                    problems.append(f"{name}: another manager owns it: {error}")
                else:
                    problems += self.dropped(name, spec, answer)
        for name in shown.keys() - wanted.keys():
            try:
                await delete(self._writer.kube, collection, shown[name])
            except KubeError as error:
                if not error.gone:
                    raise
        return problems

    def dropped(self, name: str, spec: JsonObject, answer: JsonObject) -> list[str]:
        """Return what the API server has not stored of an object."""
        return []
