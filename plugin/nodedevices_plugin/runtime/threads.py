"""Threads for calls that may wait, so that the event loop, which serves the kubelet, waits for none of them.

`Threads`: calls that come from outside, each of which has a thread at once, however many others wait. A pool with a
fixed number of threads would let calls that wait keep out one that need not. A thread that has had nothing to do for a
while ends.

`Worker`: one thread for calls that may block, such as files on a slow disk or requests to an API server that does not
answer. They run one after another, in their order; one that is cancelled before its turn is dropped, so that calls
behind one that hangs do not pile up.

All are daemons: a call that hangs neither delays the agent's end nor keeps the process alive, which the thread pool of
asyncio would do. `Later` makes one call for many requests, a moment after the first.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

IDLE_SECONDS = 60.0


class Threads:
    """What grpc.server wants of a pool: `submit`. `most`: threads at once; None: how many calls there may be at once is
    for the caller to bound."""

    def __init__(self, name: str, *, most: int | None = None) -> None:
        self._name = name
        self._most = most
        self._jobs: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._more = threading.Condition()
        self._threads = 0
        self._idle = 0
        self._ending = False

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        with self._more:
            if self._threads == self._most:  # they may hang: what was given up behind them is not kept
                self._jobs = deque(job for job in self._jobs if not job[0].cancelled())
            self._jobs.append((future, lambda: call(*arguments, **named)))
            if self._idle >= len(self._jobs) or self._threads == self._most:
                self._more.notify()
                return future
            self._threads += 1
        threading.Thread(target=self._work, name=self._name, daemon=True).start()
        return future

    def end(self) -> None:
        """Let the idle threads end now, and the others when they have nothing more to do. A later call is done all the
        same."""
        with self._more:
            self._ending = True
            self._more.notify_all()

    def _work(self) -> None:
        while True:
            with self._more:
                if not self._jobs and not self._ending:
                    self._idle += 1
                    self._more.wait_for(lambda: self._jobs or self._ending, timeout=IDLE_SECONDS)
                    self._idle -= 1
                if not self._jobs:
                    self._threads -= 1
                    return
                future, call = self._jobs.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:
                    future.set_exception(error)
            del future, call


T = TypeVar("T")


class Worker:
    """Runs functions on its own thread; `await worker.run(f)` gives what f returned or raised."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._busy_since: float | None = None
        self._thread = Threads(name, most=1)

    def submit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Queue the call; the future belongs to the running loop. Cancelling it does not stop a call under way."""
        return asyncio.wrap_future(self._thread.submit(self._timed, call))

    async def run(self, call: Callable[[], T], *, seconds: float | None = None) -> T:
        """Raises TimeoutError after so many seconds; a call that is under way then goes on."""
        async with asyncio.timeout(seconds):
            return await self.submit(call)

    def end(self) -> None:
        """Let the thread end, once it has done what is queued. A later call starts another one."""
        self._thread.end()

    def busy_seconds(self) -> float:
        """Return for how long the current call has run; 0 when there is none."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    def _timed(self, call: Callable[[], T]) -> T:
        self._busy_since = time.monotonic()
        try:
            return call()
        finally:
            self._busy_since = None


def tell(loop: asyncio.AbstractEventLoop | None, call: Callable[[], object]) -> None:
    """Make this call on the loop, from any thread; no call where there is no loop yet, or the agent is ending."""
    if loop is not None:
        with contextlib.suppress(RuntimeError):  # it is closed
            loop.call_soon_threadsafe(call)


class Later:
    """Calls `call` on the running loop `seconds` after the first request since the last call, once for all of them."""

    def __init__(self, call: Callable[[], None], *, seconds: float) -> None:
        self._call = call
        self._seconds = seconds
        self._due: asyncio.TimerHandle | None = None

    def request(self) -> None:
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(self._seconds, self._now)

    def _now(self) -> None:
        self._due = None
        self._call()
