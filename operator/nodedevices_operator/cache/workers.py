"""Workers of a key queue: each takes a key when one is ready, hands it over, and says how it went."""

from __future__ import annotations

import asyncio
import contextlib
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
        self._next = asyncio.Event()  # `take` returns a key
        self._ahead = asyncio.Event()  # `take_ahead` does
        self._alarm: asyncio.TimerHandle | None = None  # when the next delayed key is due
        queue.changed = self._look
        self._look()

    async def run(self, handler: KeyHandler, *, failure: Failure) -> None:
        """Work for ever. `failure` gets what failed, and the delay."""
        queue = self._queue
        while True:
            while (key := queue.take()) is None:
                await self._next.wait()
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
            while (key := self._queue.take_ahead()) is None:
                await self._ahead.wait()
            with contextlib.suppress(Exception):
                await handler(key)
            self._queue.ahead_done(key)
            await asyncio.sleep(0)

    def _look(self) -> None:
        """Wake those for whom there is work, and have the alarm ring when the next delayed key is due."""
        for event, there in ((self._next, self._queue.ready.has_next), (self._ahead, self._queue.ready.has_ahead)):
            if there:
                event.set()
            else:
                event.clear()
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
