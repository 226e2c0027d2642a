"""The StartGate where computing power is shared: answers to the kubelet wait a moment for facts that are still missing.

At an allocation the pod may not have been seen yet: the kubelet and this agent learn of it at the same time, by two
watches. The answer waits a second at most, in a thread of its own; a pod that is still unknown counts as all of a
device. Before a container starts, PodResources shows which container the ids belong to; the kubelet allows 30 seconds
for that, and tries a refused start again. A container that is known to start again, or for which all of a device was
free, is never refused because PodResources does not answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic

from nodedevices_common.errors import OperationError

from nodedevices_plugin.cores.book import Allocated, CoreBook
from nodedevices_plugin.model import AllocationError, Holdings

SEEN_SECONDS = 1.0  # for a pod to be seen, before it is allocated
KNOWN_SECONDS = 10.0  # for a pod to be known, before it starts
LIST_AGAIN_SECONDS = 0.5


class CoreGate:
    """The StartGate of this agent. `holdings`: lists the holders now; `write`: records what a container has."""

    def __init__(
        self,
        book: CoreBook,
        *,
        holdings: Callable[[], Awaitable[Holdings]],
        write: Callable[[Allocated], Awaitable[None]],
        seen_seconds: float = SEEN_SECONDS,
        known_seconds: float = KNOWN_SECONDS,
    ) -> None:
        self._book = book
        self._holdings = holdings
        self._write = write
        self._seen_seconds = seen_seconds
        self._known_seconds = known_seconds
        self._changed = asyncio.Event()  # for the loop
        self._seen = threading.Condition()  # for threads

    def pods_changed(self) -> None:
        """Check again: the book knows other pods than before."""
        self._changed.set()
        self._changed = asyncio.Event()
        with self._seen:
            self._seen.notify_all()

    def ready(self, resource: str, size: int, ids: Sequence[str] = ()) -> None:
        with self._seen:
            self._seen.wait_for(lambda: self._book.knows(resource, size, ids), timeout=self._seen_seconds)

    async def before_start(self, resource: str, ids: Sequence[str]) -> None:
        deadline = monotonic() + self._known_seconds
        start = self._book.start(resource, ids)
        while start.wait and (left := deadline - monotonic()) > 0:
            with contextlib.suppress(TimeoutError):  # others may wait for a List before this one
                async with asyncio.timeout(left):
                    self._book.observe(await self._holdings())
            start = self._book.start(resource, ids)
            if start.wait:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LIST_AGAIN_SECONDS):
                        await self._changed.wait()
                start = self._book.start(resource, ids)
        if start.refusal:
            raise AllocationError(start.refusal)
        if start.allocated is not None:
            try:
                await self._write(start.allocated)
            except OperationError as error:
                raise AllocationError(f"{resource}: {error}; the kubelet tries again") from error
