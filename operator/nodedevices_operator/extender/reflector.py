"""List and watch of one kind: page by page, line by line, and nothing is kept but what the store keeps.

kopf, which watches for the operator, costs ten times as much for an event and keeps the object it handles
(docs/benchmarks.md); of a cluster's pods nearly all are dropped here at once.

A watch that ends goes on from the version it has reached. Where the API server no longer has that version (410), or an
event cannot be read, everything is listed again; a list replaces what is remembered only when it is complete. While the
API server is away the store keeps what it has: `age` says how old that may be.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import structlog
from nodedevices_common.backoff import Backoff
from nodedevices_common.raw import Raw, mapping, mappings

from nodedevices_operator.cache.rejected import again_and_again
from nodedevices_operator.kube.port import KubeError, WatchingKube, watch_event

PAGE_SIZE = 500
WATCH_SECONDS = 300  # until the API server ends a watch by itself
GONE = 410  # the API server no longer has the version from which to go on
BACKOFF = Backoff(initial_seconds=0.5, max_seconds=30.0, jitter=0.2)

T = TypeVar("T")
Listing = tuple[Callable[[Raw], T | None], Callable[[list[T]], None]]
"""Reads an object of a LIST (None: it does not matter); and gets what was read of all of them."""

log = structlog.get_logger()


class Reflector(Generic[T]):
    """Fills a store, for ever: `listing` is called when a LIST begins, `event` with an object and whether it is
    gone. Nothing raises for what an object contains."""

    def __init__(
        self,
        kube: WatchingKube,
        path: str,
        listing: Callable[[], Listing[T]],
        event: Callable[[Raw, bool], None],
        *,
        query: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._path = path
        self._listing = listing
        self._event = event
        self._query = dict(query or {})
        self._clock = clock
        self._again = asyncio.Event()
        self._version = ""  # from which to go on; empty: everything is to be listed
        self._heard: float | None = None  # clock
        self.synced = False  # everything was listed once
        self.lists = 0
        self.problem = ""  # why it is not connected

    @property
    def age(self) -> float:
        """Seconds since the last sign of life: what is remembered may be so old."""
        return self._clock() - self._heard if self._heard is not None else float("inf")

    def list_again(self) -> None:
        """LIST again as soon as possible."""
        self._again.set()

    async def run(self) -> None:
        """List and watch until cancelled."""
        await again_and_again(self._once, "watch failed", BACKOFF)

    async def _once(self) -> None:
        """One watch, until it ends; before it, everything is listed where that is needed."""
        try:
            if not self._version:
                self._again.clear()
                await self._list()
            await self._watch()
        except KubeError as error:
            if error.status != GONE:
                self.problem = str(error)
                raise
            log.info("listing again", path=self._path, why=str(error))
            self._version = ""
        finally:
            if self._again.is_set():
                self._version = ""

    async def _list(self) -> None:
        read, complete = self._listing()
        found: list[T] = []
        async for page in self._kube.pages(self._path, {**self._query, "limit": str(PAGE_SIZE)}):
            found += [it for it in map(read, mappings(page["items"])) if it is not None]
            version = page["metadata"].get("resourceVersion")
        complete(found)
        self._heard, self.problem, self.synced = self._clock(), "", True
        self.lists += 1
        self._version = str(version or "")

    async def _watch(self) -> None:
        """Until it ends, or everything is to be listed again."""
        query = {
            **self._query,
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        reading = asyncio.create_task(self._read(query))
        again = asyncio.create_task(self._again.wait())
        try:
            await asyncio.wait([reading, again], return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                reading.result()
        finally:
            for task in (reading, again):
                task.cancel()
            await asyncio.gather(reading, again, return_exceptions=True)

    async def _read(self, query: Mapping[str, str]) -> None:
        async for line in self._kube.watch(self._path, query):
            self._heard, self.problem = self._clock(), ""
            try:
                kind, item = watch_event(self._path, line)
            except KubeError as error:
                raise KubeError(str(error), status=GONE) from error
            self._version = str(mapping(item.get("metadata")).get("resourceVersion") or self._version)
            if kind != "BOOKMARK":
                self._event(item, kind == "DELETED")
        self._heard, self.problem = self._clock(), ""
