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

import heapq
import random
import time
from collections.abc import Callable

from nodedevices_common.backoff import Backoff, Draw

from nodedevices_operator.cache.lanes import AHEAD, OTHERS, URGENT, Lanes

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
        self._lane: dict[str, int] = {}  # the best that was wanted for a key since it was taken; absent: OTHERS
        self._running: dict[str, int] = {}  # the lane that it had
        self._again: set[str] = set()  # added while running
        self._due: dict[str, float] = {}  # when delayed keys become ready
        self._heap: list[tuple[float, str]] = []  # the same, with some that are outdated
        self._failures: dict[str, int] = {}
        self._not_before: dict[str, float] = {}  # as the server said (Retry-After)
        self.changed: Callable[[], None] = lambda: None  # called when other keys are ready, or one has another time

    def __len__(self) -> int:
        """Keys that are ready or being worked on: the depth that a person should worry about."""
        return len(self.ready) + len(self._running)

    def age(self) -> float:
        """Seconds that the oldest ready key has waited; 0: none waits."""
        return self.ready.waited(self._clock())

    def add(self, key: str, *, delay: float = 0.0, urgent: bool = False, ahead: bool = False) -> None:
        """Reconcile the key as soon as possible, or after `delay` seconds; the earliest counts. `urgent`: before those
        that are not, whenever its time has come. `ahead`: urgent, and with a pass of its own before that."""
        self._want(key, AHEAD if ahead else URGENT if urgent else OTHERS)
        if delay > 0:
            self._at(key, self._clock() + delay)
        elif key in self._failures and key not in self._running:
            self._at(key, self._clock() + NEWS_SECONDS)
        else:
            self._push(key)

    def take(self) -> str | None:
        """The next key to work on, or None. The caller ends with `done` or `failed`."""
        self.look_at_times()
        return self._begin(self.ready.take()) if self.ready.has_next else None

    def take_ahead(self) -> str | None:
        """The next key for the pass before, or None. The caller ends with `ahead_done`."""
        self.look_at_times()
        return self._begin(self.ready.take_ahead()) if self.ready.has_ahead else None

    def ahead_done(self, key: str) -> None:
        """The pass before is over, whatever came of it: the key is the next of the urgent ones."""
        del self._running[key]
        self._again.discard(key)  # what came meanwhile is for the reconciliation, which comes now in any case
        self._lane[key] = URGENT
        self._push(key)

    def done(self, key: str, requeue_after: float | None = None) -> None:
        """The key was worked on; it is ready again after so many seconds (with jitter), or when it is added."""
        del self._running[key]
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
        if self._running.pop(key) != OTHERS:
            self._want(key, URGENT)
        self._again.discard(key)
        count = self._failures[key] = self._failures.get(key, 0) + 1
        delay = BACKOFF.after(count, self._draw, at_least=at_least)
        self._due.pop(key, None)
        self._not_before[key] = self._clock() + at_least
        self._at(key, self._clock() + delay)
        return delay

    def next_due(self) -> float | None:
        """Seconds until a delayed key becomes ready; None: none waits."""
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return max(0.0, self._heap[0][0] - self._clock()) if self._heap else None

    def look_at_times(self) -> None:
        """Keys whose time has come are ready."""
        while self.next_due() == 0.0:
            _, key = heapq.heappop(self._heap)
            del self._due[key]
            self._push(key)

    def _begin(self, key: str) -> str:
        self._running[key] = self._lane.pop(key, OTHERS)
        self.changed()
        return key

    def _want(self, key: str, lane: int) -> None:
        if lane < self._lane.get(key, OTHERS):
            self._lane[key] = lane

    def _push(self, key: str) -> None:
        if key in self._running:
            self._again.add(key)
        else:
            self.ready.push(key, self._lane.get(key, OTHERS), self._clock())
            self.changed()

    def _at(self, key: str, at: float) -> None:
        at = max(at, self._not_before.get(key, at))
        if key not in self._due or at < self._due[key]:
            self._due[key] = at
            heapq.heappush(self._heap, (at, key))
            self.changed()
