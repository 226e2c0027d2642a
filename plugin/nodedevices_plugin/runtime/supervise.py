"""Keeps the agent's background parts running, and makes it visible when one of them does not.

Every task that the agent starts runs under one `Supervisor`. A part that raises, or returns although it should run
until it is cancelled, is logged, counted, and started again after a second: a bug of ours in one of them must not take
the node's devices away. It is visible on /readyz until it has run for a minute without failing. A part that keeps
failing for ten minutes fails /healthz, so that the kubelet restarts the agent with fresh state: seldom enough that
the kubelet's own back-off for restarted containers (it forgets after ten minutes) does not add to it.

A thread cannot be started again from outside: those of `Worker` catch everything, and a call on one that does not
return (a disk that hangs) is visible on /readyz and in the metrics. It never fails /healthz: a restart would not make
the disk answer, and the agent serves the kubelet without it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

import structlog
from msgspec import Struct

from nodedevices_plugin.runtime.threads import Worker

log = structlog.get_logger(__name__)

START_AGAIN_SECONDS = 1.0
WELL_AFTER_SECONDS = 60.0  # without a failure
UNHEALTHY_AFTER_SECONDS = 600.0  # of failures that are never WELL_AFTER_SECONDS apart
HANGING_AFTER_SECONDS = 30.0
MAX_PROBLEM = 300


class SupervisedPart(Struct):
    """One background part and its failures. Times are monotonic seconds."""

    failures: int = 0  # since the start
    in_a_row: int = 0  # never WELL_AFTER_SECONDS apart
    failing_since: float = 0.0
    failed_at: float = 0.0
    problem: str = ""

    def failed(self, problem: str, now: float) -> bool:
        """Remember it. True when it is news worth a traceback in the log."""
        if not self.failing(now):
            self.in_a_row, self.failing_since, self.problem = 0, now, ""
        news = problem != self.problem or self.in_a_row.bit_count() <= 1  # the 1st, 2nd, 3rd, 5th, 9th, ... of a kind
        self.failures += 1
        self.in_a_row += 1
        self.failed_at, self.problem = now, problem
        return news

    def failing(self, now: float) -> bool:
        return self.in_a_row > 0 and now - self.failed_at < WELL_AFTER_SECONDS

    def unhealthy(self, now: float) -> bool:
        return self.failing(now) and now - self.failing_since >= UNHEALTHY_AFTER_SECONDS


class Supervisor:
    """`keep` runs a part until cancelled; the other methods report the state of all parts."""

    def __init__(
        self,
        *,
        workers: Callable[[], tuple[Worker, ...]] = tuple,
        clock: Callable[[], float] = time.monotonic,
        start_again_seconds: float = START_AGAIN_SECONDS,
    ) -> None:
        self._workers = workers
        self._clock = clock
        self._start_again_seconds = start_again_seconds
        self._parts: dict[str, SupervisedPart] = {}

    async def keep(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Run it until this coroutine is cancelled, again and again."""
        part = self._parts.setdefault(name, SupervisedPart())
        while True:
            failure: BaseException | None = None
            try:
                await run()
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise  # from outside
                failure = error  # of something that it waited for
            except Exception as error:
                failure = error
            if part.failed(describe(failure) if failure else "it ended unexpectedly", self._clock()):
                what = "failed" if failure else "ended"
                log.error(f"background task {what}, restarting", part=name, exc_info=failure)
            await asyncio.sleep(self._start_again_seconds)

    def failures(self) -> Mapping[str, int]:
        """Return for each part how often it has failed since the start."""
        return {name: part.failures for name, part in self._parts.items()}

    def busy(self) -> Mapping[str, float]:
        """Return for each worker for how many seconds its current call has run; 0 for an idle one."""
        return {worker.name: worker.busy_seconds() for worker in self._workers()}

    def problems(self) -> tuple[str, ...]:
        """Return the problems for /readyz: parts that failed within the last minute, and calls that do not return."""
        now = self._clock()
        failing = [
            f"{name} failed {part.in_a_row} times in the last {now - part.failing_since:.0f} s: {part.problem}"
            for name, part in sorted(self._parts.items())
            if part.failing(now)
        ]
        hanging = [
            f"{name}: a call has not returned for {seconds:.0f} s (a disk or a mount may be hanging)"
            for name, seconds in sorted(self.busy().items())
            if seconds >= HANGING_AFTER_SECONDS
        ]
        return (*failing, *hanging)

    def unhealthy(self) -> tuple[str, ...]:
        """Return the problems for /healthz: the parts that have kept failing for ten minutes."""
        now = self._clock()
        return tuple(
            f"{name} has kept failing for {now - part.failing_since:.0f} s: {part.problem}"
            for name, part in sorted(self._parts.items())
            if part.unhealthy(now)
        )


def describe(error: BaseException) -> str:
    """One line for an error; of a group its first member."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return " ".join(f"{type(error).__name__}: {error}".split())[:MAX_PROBLEM]
