"""Something on the node that is looked at again and again, since nobody tells when it changes.

The look itself is on a worker thread: a file system that hangs must not keep the node's devices away.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from nodedevices_plugin.worker import Worker

LOOK_SECONDS = 5.0

T = TypeVar("T")


class Lookout(ABC, Generic[T]):
    """`found` is what the last look gave, `nothing` before it. `on_change` is called on the loop when it is another."""

    def __init__(self, nothing: T, *, worker: Worker, on_change: Callable[[], None], first_look_seconds: float) -> None:
        self.found = nothing
        self._worker = worker
        self._on_change = on_change
        self._first_look_seconds = first_look_seconds

    async def first(self) -> None:
        """One look before anything is offered, unless it takes too long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._first_look_seconds):
                await self._look_again()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self._look_again()

    async def _look_again(self) -> None:
        found = await self._worker.run(self._look())
        if found != self.found:
            self.found = found
            self._on_change()

    @abstractmethod
    def _look(self) -> Callable[[], T]:
        """What the worker is to do; made on the loop, where the configuration is."""
