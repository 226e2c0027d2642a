"""Workers of a key queue: each takes a key when one is ready, hands it over, and says how it went.

A key that becomes ready wakes one worker, not all of them, and a key that is taken wakes the next if there is more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable

from nodedevices_operator.cache.queue import KeyQueue

KeyHandler = Callable[[str], Awaitable[float | None]]
Failure = Callable[[str, Exception, float], None]


class RetryLater(Exception):  # noqa: N818  it is no error: a wait was requested
    """Raised by a handler that knows how long to wait at least, e.g. from Retry-After."""

    def __init__(self, seconds: float, why: str) -> None:
        super().__init__(why)
        self.seconds = seconds


class Workers:
    """The workers of one queue. Event loop only; start `run` and `run_ahead` as many times as shall work at once."""

    def __init__(self, queue: KeyQueue) -> None:
        self._queue = queue
        self._idle: deque[asyncio.Future[None]] = deque()  # workers without work, the longest waiting first
        self._idle_ahead: deque[asyncio.Future[None]] = deque()
        self._alarm: asyncio.TimerHandle | None = None  # when the next delayed key is due
        queue.changed = self._look
        self._look()

    async def run(self, handler: KeyHandler, *, failure: Failure) -> None:
        """Work for ever. `failure` gets what failed, and the delay."""
        queue = self._queue
        while True:
            key = await _next(queue.take, self._idle)
            try:
                after = await handler(key)
            except Exception as error:  # whatever it was, the key is tried again later
                failure(key, error, queue.failed(key, error.seconds if isinstance(error, RetryLater) else 0.0))
            else:
                queue.done(key, after)
            await asyncio.sleep(0)  # a handler that never had to wait must not starve the others

    async def run_ahead(self, handler: Callable[[str], Awaitable[None]]) -> None:
        """Work for ever at the pass before. What the handler raises the reconciliation meets as well."""
        while True:
            key = await _next(self._queue.take_ahead, self._idle_ahead)
            with contextlib.suppress(Exception):
                await handler(key)
            self._queue.ahead_done(key)
            await asyncio.sleep(0)

    def _look(self) -> None:
        """Wake one of each kind for which there is work, and have the alarm ring when the next delayed key is due."""
        if self._queue.ready.has_next:
            _wake(self._idle)
        if self._queue.ready.has_ahead:
            _wake(self._idle_ahead)
        left = self._queue.next_due()
        if left is None:
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + left
        if self._alarm is not None and self._alarm.when() > at:
            self._alarm.cancel()
            self._alarm = None
        if self._alarm is None:
            self._alarm = loop.call_at(at, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._queue.look_at_times()
        self._look()


async def _next(take: Callable[[], str | None], idle: deque[asyncio.Future[None]]) -> str:
    """Return the next key, once there is one; `idle`: those who wait for it."""
    while (key := take()) is None:
        woken = asyncio.get_running_loop().create_future()
        idle.append(woken)
        await woken
    return key


def _wake(idle: deque[asyncio.Future[None]]) -> None:
    """Wake the one that waits longest."""
    while idle:
        woken = idle.popleft()
        if not woken.done():  # its worker was cancelled
            woken.set_result(None)
            return
