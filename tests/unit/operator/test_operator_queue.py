"""The key queue with a fake clock: deduplicated, one worker a key, back-off with jitter, requeue after."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, strategies as st
from nodedevices_operator.cache.lanes import IN_A_ROW
from nodedevices_operator.cache.queue import BACKOFF, MAX_LATE_SECONDS, NEWS_SECONDS, KeyQueue
from nodedevices_operator.cache.workers import RetryLater, Workers
from support.cases import cases
from support.clock import Clock
from support.patience import PATIENCE_SECONDS


def even(low: float, high: float) -> float:
    """No jitter."""
    return max(low, 1.0)


@pytest.fixture
def clock() -> Clock:
    return Clock(0.0)


@pytest.fixture
def queue(clock: Clock) -> KeyQueue:
    return KeyQueue(clock, even)


def test_keys_come_once_and_in_the_order_in_which_they_were_added(queue: KeyQueue) -> None:
    for _ in range(10):
        queue.add("n1")
    assert (queue.take(), queue.take()) == ("n1", None)
    for key in ("b", "a", "c"):
        queue.add(key)
    assert [queue.take() for _ in range(3)] == ["b", "a", "c"]


def test_an_urgent_key_goes_before_all_that_wait_and_keeps_its_age(queue: KeyQueue, clock: Clock) -> None:
    for key in ("a", "b", "c"):
        queue.add(key)
    clock.now = 7.0
    queue.add("c", urgent=True)
    queue.add("new", urgent=True)
    assert (len(queue), queue.age()) == (4, 7.0)
    assert [queue.take() for _ in range(5)] == ["c", "new", "a", "b", None]


def test_urgent_keys_do_not_keep_the_others_waiting_for_ever(queue: KeyQueue) -> None:
    queue.add("other")
    for number in range(IN_A_ROW + 1):
        queue.add(f"urgent-{number}", urgent=True)
    taken = [queue.take() for _ in range(IN_A_ROW + 2)]
    assert taken.index("other") == IN_A_ROW


def test_a_key_is_urgent_until_it_succeeds(queue: KeyQueue, clock: Clock) -> None:
    queue.add("n1", urgent=True)
    queue.take()
    queue.add("n2")
    delay = queue.failed("n1")
    clock.now += delay
    assert queue.take() == "n1"
    queue.done("n1")
    queue.add("n1")
    assert [queue.take(), queue.take()] == ["n2", "n1"]


def test_a_key_that_becomes_urgent_while_it_is_worked_on_is_the_next(queue: KeyQueue) -> None:
    queue.add("n1")
    queue.take()
    queue.add("n2")
    queue.add("n1", urgent=True)
    queue.done("n1")
    assert queue.take() == "n1"


def test_a_key_is_with_one_worker_and_is_reconciled_once_more_when_it_changed_meanwhile(queue: KeyQueue) -> None:
    queue.add("n1")
    assert queue.take() == "n1"
    queue.add("n1")
    queue.add("n1")
    assert queue.take() is None
    queue.done("n1")
    assert queue.take() == "n1"
    queue.done("n1")
    assert queue.take() is None
    assert len(queue) == 0


def test_a_success_may_request_to_be_reconciled_again_later(queue: KeyQueue, clock: Clock) -> None:
    queue.add("n1")
    queue.take()
    queue.done("n1", 30.0)
    clock.now = 29.9
    assert queue.take() is None
    clock.now = 30.1
    assert queue.take() == "n1"


def test_failures_wait_longer_each_time_up_to_a_bound_and_a_success_forgets_them(queue: KeyQueue, clock: Clock) -> None:
    delays = []
    queue.add("n1")
    for _ in range(12):
        clock.now += 1000
        assert queue.take() == "n1"
        delays.append(queue.failed("n1"))
    assert delays[:3] == [BACKOFF.initial_seconds, BACKOFF.initial_seconds * 2, BACKOFF.initial_seconds * 4]
    assert delays == sorted(delays)
    assert delays[-1] == BACKOFF.max_seconds
    clock.now += 1000
    queue.take()
    queue.done("n1")
    queue.add("n1")
    queue.take()
    assert queue.failed("n1") == BACKOFF.initial_seconds


def test_news_of_a_failing_key_bring_its_next_try_forward_but_not_to_now(queue: KeyQueue, clock: Clock) -> None:
    queue.add("n1")
    for _ in range(8):
        clock.now += 1000
        queue.take()
        queue.failed("n1")
    queue.add("n1")
    assert queue.take() is None
    clock.now += NEWS_SECONDS + 0.1
    assert queue.take() == "n1"


def test_news_do_not_shorten_what_the_server_requested(queue: KeyQueue, clock: Clock) -> None:
    queue.add("n1")
    queue.take()
    queue.failed("n1", 60.0)
    queue.add("n1")
    queue.add("n1", delay=1.0)
    clock.now = 59.9
    assert queue.take() is None
    clock.now = 60.1
    assert queue.take() == "n1"
    queue.done("n1")
    queue.add("n1")
    assert queue.take() == "n1"


def test_jitter_makes_a_reconciliation_that_was_requested_at_a_time_seconds_late_at_most() -> None:
    clock = Clock(0.0)
    queue = KeyQueue(clock, lambda _, high: high)
    queue.add("n1")
    queue.take()
    queue.done("n1", 900.0)
    clock.now = 900.0 + MAX_LATE_SECONDS
    assert queue.take() == "n1"


def test_the_age_is_that_of_the_key_that_waits_longest_for_a_worker(queue: KeyQueue, clock: Clock) -> None:
    assert queue.age() == 0
    queue.add("a")
    clock.now = 3
    queue.add("b")
    queue.add("later", delay=60)
    clock.now = 5
    queue.add("a")
    assert queue.age() == 5
    queue.take()
    assert queue.age() == 2
    queue.take()
    assert queue.age() == 0, "what is being reconciled, or is not due, does not wait"


def test_of_two_delays_the_earlier_counts(queue: KeyQueue, clock: Clock) -> None:
    queue.add("n1", delay=10.0)
    queue.add("n1", delay=3.0)
    queue.add("n1", delay=20.0)
    assert queue.next_due() == 3.0
    clock.now = 3.0
    assert queue.take() == "n1"
    queue.done("n1")
    clock.now = 30.0
    assert queue.take() is None


STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["add", "later", "take", "done", "fail"])))


@given(STEPS)
def test_no_key_is_ever_lost_and_none_is_with_two_workers(steps: list[tuple[str, str]]) -> None:
    clock = Clock(0.0)
    queue = KeyQueue(clock, even)
    owed: set[str] = set()  # keys that must still be looked at
    running: list[str] = []
    for key, step in steps:
        clock.now += 0.1
        if step in {"add", "later"}:
            queue.add(key, delay=1.0 if step == "later" else 0.0)
            owed.add(key)
        elif step == "take" and (taken := queue.take()) is not None:
            assert taken not in running
            running.append(taken)
            owed.discard(taken)
        elif running and step == "done":
            queue.done(running.pop(0))
        elif running and step == "fail":
            owed.add(running[0])
            queue.failed(running.pop(0))
    for taken in running:
        queue.done(taken)
    for _ in range(10):
        clock.now += 2 * BACKOFF.max_seconds
        while (key_left := queue.take()) is not None:
            owed.discard(key_left)
            queue.done(key_left)
    assert owed == set()


async def test_workers_work_wait_and_go_on_after_a_failure() -> None:
    queue = KeyQueue()
    seen: list[str] = []
    complete = asyncio.Event()
    failures: list[tuple[str, str]] = []

    async def handler(key: str) -> float | None:
        seen.append(key)
        if sorted(seen) == ["bad", "bad", "good", "late"]:
            complete.set()
        if key == "bad" and seen.count("bad") == 1:
            raise RetryLater(0.01, "busy")
        return None

    def failed(key: str, error: Exception, _: float) -> None:
        failures.append((key, str(error)))

    each = Workers(queue)
    workers = [asyncio.create_task(each.run(handler, failure=failed)) for _ in range(3)]
    queue.add("bad")
    queue.add("good")
    queue.add("late", delay=0.02)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await complete.wait()
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    assert failures == [("bad", "busy")]


@cases("ticks", *range(4))
async def test_a_worker_ends_on_request_at_the_moment_a_key_comes(ticks: int) -> None:
    """Python 3.11's asyncio.wait_for forgets a cancellation that comes as what it waits for is done."""
    queue = KeyQueue()

    async def handler(_: str) -> float | None:
        return 60.0

    worker = asyncio.create_task(Workers(queue).run(handler, failure=lambda *_: None))
    queue.add("later")  # so that it waits with a time limit
    await asyncio.sleep(0.01)
    queue.add("now")
    for _ in range(ticks):
        await asyncio.sleep(0)
    worker.cancel()
    done, _ = await asyncio.wait((worker,), timeout=PATIENCE_SECONDS)
    assert done
    assert worker.cancelled()


# --- the pass before -------------------------------------------------------------------------------------------------
def test_a_key_that_is_added_ahead_has_its_pass_first_and_is_urgent_after_it(queue: KeyQueue) -> None:
    for key in ("a", "b"):
        queue.add(key)
    queue.add("b", ahead=True)
    assert queue.take() is None  # workers of the roll-out hold back
    assert queue.take_ahead() == "b"
    queue.ahead_done("b")
    assert [queue.take(), queue.take(), queue.take_ahead()] == ["b", "a", None]


def test_keys_ahead_do_not_hold_the_others_back_for_ever(queue: KeyQueue) -> None:
    queue.add("other")
    for number in range(2 * IN_A_ROW):
        queue.add(f"ahead-{number}", ahead=True)
    for _ in range(IN_A_ROW):
        assert queue.take() is None
        queue.take_ahead()
    assert (queue.take(), queue.take()) == ("other", None)


def test_a_node_is_with_one_worker_in_both_passes(queue: KeyQueue) -> None:
    queue.add("n1")
    queue.take()
    queue.add("n1", ahead=True)
    assert queue.take_ahead() is None
    queue.done("n1")
    assert (queue.take(), queue.take_ahead()) == (None, "n1")
    queue.add("n1")
    assert (queue.take(), queue.take_ahead()) == (None, None)
    queue.ahead_done("n1")
    assert queue.take() == "n1"


def test_a_node_whose_faults_never_stop_changing_is_reconciled_all_the_same(queue: KeyQueue) -> None:
    queue.add("n1", ahead=True)
    assert queue.take_ahead() == "n1"
    queue.add("n1", ahead=True)
    queue.ahead_done("n1")
    assert (queue.take_ahead(), queue.take()) == (None, "n1")


async def test_workers_of_both_kinds_wake_for_what_comes_and_when_it_is_due() -> None:
    real = KeyQueue()
    done: list[str] = []
    all_done = asyncio.Event()

    async def mark(key: str) -> None:
        done.append(f"mark {key}")
        raise RuntimeError("the reconciliation meets it, too")

    async def reconcile(key: str) -> float | None:
        done.append(key)
        if len(done) == 5:
            all_done.set()
        return None

    each = Workers(real)
    workers = [asyncio.create_task(each.run(reconcile, failure=lambda *_: None)) for _ in range(2)]
    workers += [asyncio.create_task(each.run_ahead(mark)) for _ in range(2)]
    await asyncio.sleep(0)  # all of them wait
    real.add("now")
    real.add("fault", ahead=True)
    real.add("late", delay=0.05)
    real.add("later", delay=0.1)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await all_done.wait()
    assert sorted(done) == ["fault", "late", "later", "mark fault", "now"]
    assert done.index("mark fault") < done.index("fault")
    assert done[-2:] == ["late", "later"]
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
