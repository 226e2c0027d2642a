"""The one loop for what is polled: at its time, at once on request, never twice at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from nodedevices_common.periodic import Periodic
from support.patience import PATIENCE_SECONDS

NEVER = 3600.0


class Work:
    def __init__(self) -> None:
        self.done = 0
        self.running = 0
        self.most = 0
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.began = asyncio.Event()

    async def __call__(self) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        self.began.set()
        try:
            await self.may_end.wait()
            self.done += 1
        finally:
            self.running -= 1


@asynccontextmanager
async def running(periodic: Periodic) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(periodic.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110  it is the condition that is tested
            await asyncio.sleep(0.001)


async def test_it_is_done_again_and_again_and_a_first_run_that_takes_too_long_is_given_up() -> None:
    work = Work()
    async with running(Periodic(work, seconds=0.001)):
        await until(lambda: work.done >= 5)
    work = Work()
    work.may_end.clear()
    assert not await Periodic(work, seconds=NEVER, patience_seconds=0.001).first()
    assert work.running == 0
    work.may_end.set()
    assert await Periodic(work, seconds=NEVER, patience_seconds=PATIENCE_SECONDS).first()


async def test_requested_it_is_done_now_and_not_before() -> None:
    work = Work()
    periodic = Periodic(work, seconds=NEVER)
    async with running(periodic):
        await asyncio.sleep(0)
        assert work.done == 0
        periodic.soon()
        await until(lambda: work.done == 1)


async def test_requested_while_it_is_done_it_is_done_once_more_and_never_twice_at_once() -> None:
    work = Work()
    work.may_end.clear()
    periodic = Periodic(work, seconds=NEVER)
    async with running(periodic):
        periodic.soon()
        await work.began.wait()
        for _ in range(10):
            periodic.soon()
        work.may_end.set()
        await until(lambda: work.done == 2)
        for _ in range(10):
            await asyncio.sleep(0)
    assert (work.done, work.most) == (2, 1)


async def test_the_period_is_requested_after_every_run_and_none_waits_for_news() -> None:
    work = Work()
    periods: list[float | None] = [0.0, 0.0, None]
    periodic = Periodic(work, seconds=lambda: periods.pop(0) if len(periods) > 1 else periods[0])
    async with running(periodic):
        await until(lambda: work.done == 2)
        periodic.soon()
        await until(lambda: work.done == 3)


async def test_what_fails_is_reported_to_whoever_runs_it() -> None:
    async def fails() -> None:
        raise OSError("no such folder")

    periodic = Periodic(fails, seconds=0.0)
    with pytest.raises(OSError, match="no such folder"):
        await periodic.first()
    async with running(periodic) as task:
        with pytest.raises(OSError, match="no such folder"):
            await task
