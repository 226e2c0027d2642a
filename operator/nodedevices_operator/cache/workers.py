"""Workers of a key queue: each takes a key when one is ready, hands it over, and says how it went.

A key that becomes ready wakes one worker, not all of them; a worker that has taken a key wakes the next one if there is
more. One timer of the loop wakes them for what is delayed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable

from nodedevices_operator.cache.queue import KeyQueue

KeyHandler = Callable[[str], Awaitable[float | None]]
Failure = Callable[[str, Exception, float], None]
_Waiting = deque[asyncio.Future[None]]


class RetryLater(Exception):  # noqa: N818  it is no error: a wait was requested
    """Raised by a handler that knows how long to wait at least, e.g. from Retry-After."""

    def __init__(self, seconds: float, why: str) -> None:
        super().__init__(why)
        self.seconds = seconds


class Workers:
    """Of one queue. Event loop only; start `run` and `run_ahead` as many times as shall work at once."""

    def __init__(self, queue: KeyQueue) -> None:
        self._queue = queue
        self._waiting: _Waiting = deque()  # without work
        self._waiting_ahead: _Waiting = deque()
        self._alarm: asyncio.TimerHandle | None = None  # when the next delayed key is due
        queue.changed = self._stir

    async def run(self, handler: KeyHandler, *, failure: Failure) -> None:
        """Work for ever. `failure` gets what failed, and the delay."""
        queue = self._queue
        while True:
            key = queue.take()
            if key is None:
                await self._wait(self._waiting)
                continue
            self._stir()
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
            key = self._queue.take_ahead()
            if key is None:
                await self._wait(self._waiting_ahead)
                continue
            self._stir()
            try:
                with contextlib.suppress(Exception):
                    await handler(key)
            finally:
                self._queue.ahead_done(key)
            await asyncio.sleep(0)

    async def _wait(self, workers: _Waiting) -> None:
        """Until there may be work for one of these workers."""
        mine = asyncio.get_running_loop().create_future()
        workers.append(mine)
        self._set_alarm()
        try:
            await mine
        finally:
            with contextlib.suppress(ValueError):
                workers.remove(mine)

    def _stir(self) -> None:
        """Wake a worker of either kind for which there is work."""
        if self._waiting_ahead and self._queue.ready.has_ahead:
            _wake(self._waiting_ahead)
        if self._waiting and self._queue.ready.has_next:
            _wake(self._waiting)
        self._set_alarm()

    def _set_alarm(self) -> None:
        """Have workers woken when the next delayed key is due, if any waits."""
        if not (self._waiting or self._waiting_ahead) or (left := self._queue.next_due()) is None:
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
        self._set_alarm()


def _wake(workers: _Waiting) -> None:
    """Wake the one that waits longest."""
    while workers:
        worker = workers.popleft()
        if not worker.done():
            worker.set_result(None)
            return
