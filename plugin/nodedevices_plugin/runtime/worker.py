"""One daemon thread for calls that may block: files on a slow disk, requests to an API server that does not answer.

The event loop serves the kubelet, so nothing on it may wait for a disk or a network. Calls run one after another, in
their order; one that is cancelled before its turn is dropped, so that calls behind one that hangs do not pile up. The
thread is a daemon: a call that hangs neither delays the agent's end nor keeps the process alive, which the thread pool
of asyncio would do.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Worker:
    """Runs functions on its own thread; `await worker.run(f)` gives what f returned or raised."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._busy_since: float | None = None
        self._jobs: deque[Callable[[], None]] = deque()
        self._more = threading.Condition()
        self._thread: threading.Thread | None = None

    def submit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Queue the call; the future belongs to the running loop. Cancelling it does not stop a call under way."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is None:
                future.set_result(result)  # type: ignore[arg-type]  # result is a T when there is no error
            else:
                future.set_exception(error)

        def job() -> None:
            if future.cancelled():
                return
            result: T | None = None
            error: BaseException | None = None
            self._busy_since = time.monotonic()
            try:
                result = call()
            except BaseException as caught:
                error = caught
            finally:
                self._busy_since = None
            try:
                loop.call_soon_threadsafe(settle, result, error)
            except RuntimeError:  # the loop is closed: the agent is ending, and nothing waits for this
                return

        with self._more:
            self._jobs.append(job)
            self._more.notify()
        future.add_done_callback(lambda done: self._drop(job) if done.cancelled() else None)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)
            self._thread.start()
        return future

    async def run(self, call: Callable[[], T]) -> T:
        return await self.submit(call)

    def end(self) -> None:
        """Let the thread end, once it has done what is queued. A later call starts another one."""
        if self._thread is not None:
            self._thread = None
            with self._more:
                self._jobs.append(_last)
                self._more.notify()

    def busy_seconds(self) -> float:
        """Return for how long the current call has run; 0 when there is none."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def waiting(self) -> int:
        """Calls that wait for their turn."""
        return len(self._jobs)

    def _drop(self, job: Callable[[], None]) -> None:
        with self._more, contextlib.suppress(ValueError):  # it is under way
            self._jobs.remove(job)

    def _work(self) -> None:
        while True:
            with self._more:
                while not self._jobs:
                    self._more.wait()
                job = self._jobs.popleft()
            if job is _last:
                return
            job()


def _last() -> None:
    """After it the thread ends."""
