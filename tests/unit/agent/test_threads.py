"""A call from outside has a thread at once, however many others wait; and who waits too long for an answer is seen."""

from __future__ import annotations

import threading

from nodedevices_plugin.kubelet.offer import RecentAllocations
from nodedevices_plugin.runtime.supervise import Supervisor
from nodedevices_plugin.runtime.threads import Threads
from nodedevices_plugin.status.metrics import UNANSWERED_SECONDS, healthz
from support.patience import PATIENCE_SECONDS


def test_calls_that_wait_keep_no_other_call_waiting() -> None:
    threads, all_wait, go = Threads("test"), threading.Barrier(21), threading.Event()

    def waits() -> bool:
        all_wait.wait(PATIENCE_SECONDS)
        return go.wait(PATIENCE_SECONDS)

    waiting = [threads.submit(waits) for _ in range(20)]
    all_wait.wait(PATIENCE_SECONDS)
    assert threads.submit(max, 1, 2).result(PATIENCE_SECONDS) == 2
    go.set()
    assert all(each.result(PATIENCE_SECONDS) for each in waiting)


def test_a_call_that_fails_or_comes_after_the_end_is_done_all_the_same() -> None:
    threads = Threads("test")
    failed = threads.submit(int, "none")
    assert isinstance(failed.exception(PATIENCE_SECONDS), ValueError)
    assert threads.submit(int, "7").result(PATIENCE_SECONDS) == 7
    threads = Threads("test")
    threads.end()
    assert threads.submit(int, "7").result(PATIENCE_SECONDS) == 7


def test_healthz_fails_while_a_call_stays_without_an_answer_as_long_as_that_takes() -> None:
    assert healthz(Supervisor(), 0.0).status == healthz(Supervisor(), UNANSWERED_SECONDS).status == 200
    hung = healthz(Supervisor(), UNANSWERED_SECONDS + 1)
    assert (hung.status, hung.body) == (503, b"a call of the kubelet has not been answered for 61 s\n")
    recent = RecentAllocations()
    assert recent.answering_seconds() == 0.0
    with recent.answering():
        assert recent.answering_seconds() > 0.0
    assert recent.answering_seconds() == 0.0


def test_what_was_granted_since_is_what_was_not_known_then() -> None:
    recent = RecentAllocations()
    recent.add("a/gpu", ("GPU-0",))
    known = recent.entries()
    assert recent.since(known) == ()
    recent.add("a/gpu", ("GPU-0",))
    assert (recent.since(known), recent.since(())) == (recent.entries()[1:], recent.entries())
