"""Work that is done again and again, because no event says when it is needed: one loop for all that is polled.

A run that takes long delays the next one; two never overlap. What it raises ends `run`, and the supervisor of that
starts it again (in the agent supervise.Supervisor). Work that may block belongs on a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

Work = Callable[[], Awaitable[None]]
T = TypeVar("T")


async def within(seconds: float | None, awaitable: Awaitable[T]) -> T | None:
    """Return what it returns; None where it takes longer (None: as long as it takes), and is cancelled."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            return await awaitable
    return None


class Periodic:
    """Does `work` every `seconds`, and at once after `soon`.

    seconds: or a function, called after every run; None: only when `soon` is called. patience_seconds: what `first` may
    take; None: as long as it takes.
    """

    def __init__(
        self,
        work: Work,
        *,
        seconds: float | Callable[[], float | None],
        patience_seconds: float | None = None,
    ) -> None:
        self._work = work
        self._seconds = seconds if callable(seconds) else lambda: seconds
        self._patience_seconds = patience_seconds
        self._soon = asyncio.Event()

    async def first(self) -> bool:
        """Once, before anything else is done. False where it took too long and was cancelled."""
        try:
            async with asyncio.timeout(self._patience_seconds):
                await self._work()
        except TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Wait, work, and again, until cancelled."""
        while True:
            await within(self._seconds(), self._soon.wait())
            self._soon.clear()
            await self._work()

    def soon(self) -> None:
        """Do it now, or once more when it is being done now."""
        self._soon.set()
