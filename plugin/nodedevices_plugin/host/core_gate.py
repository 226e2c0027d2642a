"""Where computing power is shared: the moments in which an answer to the kubelet may wait for what is not known yet.

Before an allocation a pod that has not been seen may still come, within a second: the kubelet and this agent learn of
it at the same time, by two watches. Nobody waits longer than that, and without it the pod counts as all of a device.
Before a container starts PodResources says whose ids these are; the kubelet gives that 30 seconds, and tries a refused
start again. A container that is known to start again, and one that all of a device was free for, is never refused
because PodResources does not answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic

from nodedevices_common.errors import OperationError

from nodedevices_plugin.cores.book import Allocated, CoreBook
from nodedevices_plugin.model import AllocationError, Holdings

SEEN_SECONDS = 1.0  # for a pod to be seen, before it is allocated
KNOWN_SECONDS = 10.0  # for a pod to be known, before it starts
LIST_AGAIN_SECONDS = 0.5


class CoreGate:
    """The StartGate of this agent. `holdings`: lists them now; `write`: writes down what a container has."""

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
        self._changed = asyncio.Event()

    def pods_changed(self) -> None:
        """The book knows others than before."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def ready(self, resource: str, size: int, ids: Sequence[str] = ()) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._seen_seconds):
                while not self._book.knows(resource, size, ids):
                    await self._changed.wait()

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
