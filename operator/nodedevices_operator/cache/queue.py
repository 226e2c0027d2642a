"""The key queue: which nodes are to be reconciled, and when.

What is queued is a key, never an event, so ten changes of one node are one reconciliation of its latest state. A key is
worked on by one worker at a time; a key added meanwhile is reconciled once more afterwards. A failure waits
exponentially longer each time, with jitter, until a success; a success may request to be reconciled again later
(requeue after). News of a failing key bring its next try forward, to no less than NEWS_SECONDS (a broken node that
changes all the time costs little more than a quiet one), and never to before the time that the server set.

Urgent keys go before all others (lanes) until they succeed. A key that is added `ahead` first has a short pass of its
own, by workers that do nothing else, and is urgent after it: a fault is marked while a policy reaches thousands of
nodes, whose workers hold back meanwhile. That pass only does early what the reconciliation does as well.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from nodedevices_common.backoff import Backoff, Draw

from nodedevices_operator.cache.lanes import Lanes, Timers

BACKOFF = Backoff(initial_seconds=0.5, max_seconds=60.0, jitter=0.2)
NEWS_SECONDS = 2.0
JITTER = 0.2  # of a requested delay; it only grows
MAX_LATE_SECONDS = 5.0  # by jitter, of a requeue after so many seconds


class KeyQueue:
    """Deduplicated keys with delays and back-off. `add`, `take`, `done` and `failed` are all, and `take_ahead` and
    `ahead_done` for the pass before; workers.py drives them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, draw: Draw = random.uniform) -> None:
        self._clock = clock
        self._draw = draw
        self.ready = Lanes()
        self._urgent: set[str] = set()  # until they are taken
        self._ahead: set[str] = set()  # until they are taken for the pass before
        self._running: dict[str, bool] = {}  # whether it was urgent
        self._again: set[str] = set()  # added while running
        self._timers = Timers()
        self._failures: dict[str, int] = {}
        self._not_before: dict[str, float] = {}  # as the server said (Retry-After)
        self.changed: Callable[[], None] = lambda: None  # called when a key is ready, or has another time

    def __len__(self) -> int:
        """Keys that are ready or being worked on: the depth that a person should worry about."""
        return len(self.ready) + len(self._running)

    def age(self) -> float:
        """Seconds that the oldest ready key has waited; 0: none waits."""
        return self.ready.waited(self._clock())

    def add(self, key: str, *, delay: float = 0.0, urgent: bool = False, ahead: bool = False) -> None:
        """Reconcile the key as soon as possible, or after `delay` seconds; the earliest counts. `urgent`: before those
        that are not, whenever its time has come. `ahead`: urgent, and with a pass of its own before that."""
        if urgent or ahead:
            self._urgent.add(key)
        if ahead:
            self._ahead.add(key)
        if delay > 0:
            self._at(key, self._clock() + delay)
        elif key in self._running:
            self._again.add(key)
        elif key in self._failures:
            self._at(key, self._clock() + NEWS_SECONDS)
        else:
            self._push(key)

    def forget(self, key: str) -> None:
        """The object is gone: no timer and no memory of failures stays."""
        for memory in (self._failures, self._not_before):
            memory.pop(key, None)
        self._timers.forget(key)
        self._urgent.discard(key)
        self._ahead.discard(key)

    def take(self) -> str | None:
        """The next key to work on, or None. The caller ends with `done` or `failed`."""
        self.look_at_times()
        key = self.ready.take()
        if key is not None:
            self._running[key] = key in self._urgent
            self._urgent.discard(key)
        return key

    def take_ahead(self) -> str | None:
        """The next key for the pass before, or None. The caller ends with `ahead_done`."""
        self.look_at_times()
        key = self.ready.take_ahead()
        if key is not None:
            self._running[key] = True
            self._ahead.discard(key)
        return key

    def ahead_done(self, key: str) -> None:
        """The pass before is over, whatever came of it: the key is the next of the urgent ones."""
        self._running.pop(key, None)
        self._again.discard(key)
        self._ahead.discard(key)  # what came meanwhile is for the reconciliation, which comes now in any case
        self._urgent.add(key)
        self._push(key)

    def done(self, key: str, requeue_after: float | None = None) -> None:
        """The key was worked on; it is ready again after so many seconds (with jitter), or when it is added."""
        self._running.pop(key, None)
        self._failures.pop(key, None)
        self._not_before.pop(key, None)
        if key in self._again:
            self._again.discard(key)
            self._push(key)
        if requeue_after is not None:
            after = min(requeue_after * self._draw(1.0, 1.0 + JITTER), requeue_after + MAX_LATE_SECONDS)
            self._at(key, self._clock() + after)

    def failed(self, key: str, at_least: float = 0.0) -> float:
        """The key could not be worked on. Returns the seconds after which it is tried again."""
        if self._running.pop(key, False):
            self._urgent.add(key)
        self._again.discard(key)
        count = self._failures[key] = self._failures.get(key, 0) + 1
        delay = BACKOFF.after(count, self._draw, at_least=at_least)
        self._timers.forget(key)
        self._not_before[key] = self._clock() + at_least
        self._at(key, self._clock() + delay)
        return delay

    def next_due(self) -> float | None:
        """Seconds until a delayed key becomes ready; None: none waits."""
        return self._timers.left(self._clock())

    def look_at_times(self) -> None:
        """Keys whose time has come are ready."""
        for due in self._timers.take(self._clock()):
            if due in self._running:
                self._again.add(due)
            else:
                self._push(due)

    def _push(self, key: str) -> None:
        self.ready.push(key, self._clock(), urgent=key in self._urgent, ahead=key in self._ahead)
        self.changed()

    def _at(self, key: str, at: float) -> None:
        if self._timers.set(key, max(at, self._not_before.get(key, at))):
            self.changed()
