"""Threads for calls that come from outside and may wait: each call has one at once, however many others wait.

A pool with a fixed number of threads would let calls that wait keep out one that need not. A thread that has had
nothing to do for a while ends. All are daemons: a call that hangs does not delay the process's end.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

IDLE_SECONDS = 60.0


class Threads:
    """What grpc.server wants of a pool: `submit`. How many calls there may be at once is for the caller to bound."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._more = threading.Condition()
        self._idle = 0
        self._ending = False

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        with self._more:
            self._jobs.append((future, lambda: call(*arguments, **named)))
            if self._idle >= len(self._jobs):
                self._more.notify()
                return future
        threading.Thread(target=self._work, name=self._name, daemon=True).start()
        return future

    def end(self) -> None:
        """Let the idle threads end now, and the others when they have nothing more to do."""
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
                    return
                future, call = self._jobs.popleft()
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
            del future, call
