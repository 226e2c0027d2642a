"""Background parts: none of them ends unseen, and one that keeps failing fails liveness."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from nodedevices_plugin.runtime.supervise import HANGING_AFTER_SECONDS, Supervisor
from nodedevices_plugin.runtime.threads import Worker
from support.clock import Clock
from support.patience import PATIENCE_SECONDS


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def parts(clock: Clock) -> Supervisor:
    return Supervisor(clock=clock, start_again_seconds=0.0)


@contextlib.asynccontextmanager
async def kept(parts: Supervisor, run: Callable[[], Awaitable[None]]) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(parts.keep("looks", run))
    yield task
    task.cancel()
    await asyncio.wait([task])


async def failed(parts: Supervisor, times: int) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while parts.failures().get("looks", 0) < times:  # noqa: ASYNC110  a test's patience
            await asyncio.sleep(0)


class Part:
    """Runs until cancelled, or raises what it is given."""

    def __init__(self) -> None:
        self.started = 0
        self.problem: list[BaseException] = []
        self.waiting = asyncio.Event()

    async def __call__(self) -> None:
        self.started += 1
        self.waiting.clear()
        if self.problem:
            raise self.problem.pop(0)
        await self.waiting.wait()


@pytest.mark.parametrize(
    "error", [ValueError("embedded null byte"), ExceptionGroup("two", [ValueError("embedded null byte")])]
)
async def test_a_part_that_fails_is_started_again_counted_and_shown(parts: Supervisor, error: Exception) -> None:
    part = Part()
    part.problem = [error]
    async with kept(parts, part):
        await failed(parts, 1)
        assert parts.problems() == ("looks failed 1 times in the last 0 s: ValueError: embedded null byte",)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while part.started < 2:  # noqa: ASYNC110  a test's patience
                await asyncio.sleep(0)


async def test_a_part_that_ends_by_itself_has_failed(parts: Supervisor) -> None:
    part = Part()
    async with kept(parts, part):
        await asyncio.sleep(0)
        part.waiting.set()
        await failed(parts, 1)
        assert parts.problems() == ("looks failed 1 times in the last 0 s: it ended unexpectedly",)


async def test_a_part_whose_own_task_was_cancelled_has_failed_and_goes_on(parts: Supervisor) -> None:
    part = Part()
    part.problem = [asyncio.CancelledError()]
    async with kept(parts, part) as task:
        await failed(parts, 1)
        await asyncio.sleep(0)
        assert not task.done()


async def test_a_minute_without_a_failure_makes_it_well_again(parts: Supervisor, clock: Clock) -> None:
    part = Part()
    part.problem = [ValueError("once")]
    async with kept(parts, part):
        await failed(parts, 1)
        clock.now += 59
        assert parts.problems()
        clock.now += 2
        assert parts.problems() == ()
        assert parts.failures() == {"looks": 1}


async def test_a_part_that_keeps_failing_fails_liveness_after_ten_minutes(parts: Supervisor, clock: Clock) -> None:
    async def fails() -> None:
        clock.now += 30
        raise ValueError("always")

    async with kept(parts, fails):
        await failed(parts, 10)
        assert parts.unhealthy() == ()
        await failed(parts, 22)
        assert parts.unhealthy()[0].startswith("looks has kept failing for 6")


async def test_failures_that_are_far_apart_never_fail_liveness(parts: Supervisor, clock: Clock) -> None:
    async def fails_now_and_then() -> None:
        clock.now += 90
        raise ValueError("now and then")

    async with kept(parts, fails_now_and_then):
        await failed(parts, 12)
        assert parts.unhealthy() == ()


async def test_cancelling_ends_it(parts: Supervisor) -> None:
    async with kept(parts, Part()) as task:
        await asyncio.sleep(0)
    assert task.cancelled()
    assert parts.failures() == {"looks": 0}


async def test_a_call_that_does_not_return_is_shown_and_is_no_reason_to_restart() -> None:
    worker = Worker("files")
    let_go = threading.Event()
    parts = Supervisor(workers=lambda: (worker,))
    assert parts.busy() == {"files": 0.0}
    call = worker.submit(let_go.wait)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not parts.busy()["files"]:  # noqa: ASYNC110  a test's patience
            await asyncio.sleep(0)
    assert parts.problems() == ()
    let_go.set()
    await call
    assert parts.unhealthy() == ()


class HungWorker(Worker):
    def busy_seconds(self) -> float:
        return HANGING_AFTER_SECONDS + 5


def test_a_call_that_hangs_is_named() -> None:
    parts = Supervisor(workers=lambda: (HungWorker("files"),))
    assert parts.problems() == ("files: a call has not returned for 35 s (a disk or a mount may be hanging)",)
    assert parts.unhealthy() == ()


async def test_what_is_given_up_behind_a_call_that_hangs_does_not_pile_up() -> None:
    worker, let_go = Worker("files"), threading.Event()
    hanging = worker.submit(let_go.wait)
    left = weakref.WeakSet[threading.Event]()
    for _ in range(100):
        given_up = threading.Event()
        left.add(given_up)
        worker.submit(given_up.set).cancel()
        await asyncio.sleep(0)
    del given_up
    assert len(left) <= 1
    let_go.set()
    await hanging
    assert await worker.run(lambda: "next") == "next"


async def test_the_thread_of_a_worker_that_is_no_longer_needed_ends_after_what_is_queued() -> None:
    worker, ran = Worker("short-lived"), []
    last = worker.submit(lambda: ran.append(threading.current_thread()))
    worker.end()
    await last
    [thread] = ran
    await asyncio.to_thread(thread.join, 20)
    assert not thread.is_alive()
    assert await worker.run(lambda: 7) == 7, "a later call starts another one"
    worker.end()
