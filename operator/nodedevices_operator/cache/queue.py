"""The key queue: which nodes are to be reconciled, and when.

What is queued is a key, never an event, so ten changes of one node are one reconciliation of its latest state. A key is
worked on by one worker at a time; a key added meanwhile is reconciled once more afterwards. A failure waits
exponentially longer each time, with jitter, until a success; a success may request to be reconciled again later
(requeue after). News of a failing key bring its next try forward, to no less than NEWS_SECONDS (a broken node that
changes all the time costs little more than a quiet one), and never to before the time that the server set.

Urgent keys go before all others, however many of them wait, until they succeed: a fault is marked while a policy
reaches thousands of nodes. After URGENT_IN_A_ROW of them one of the others has its turn: no flood of faults stops them.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from nodedevices_common.backoff import Backoff, Draw

BACKOFF = Backoff(initial_seconds=0.5, max_seconds=60.0, jitter=0.2)
NEWS_SECONDS = 2.0
JITTER = 0.2  # of a requested delay; it only grows
URGENT_IN_A_ROW = 8
MAX_LATE_SECONDS = 5.0  # by jitter, of a requeue after so many seconds

Handler = Callable[[str], Awaitable[float | None]]


class RetryLater(Exception):  # noqa: N818  it is no error: a wait was requested
    """Raised by a handler that knows how long to wait at least, e.g. from Retry-After."""

    def __init__(self, seconds: float, why: str) -> None:
        super().__init__(why)
        self.seconds = seconds


class KeyQueue:
    """Deduplicated keys with delays and back-off. `add`, `take`, `done` and `failed` are all; `run` drives them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, draw: Draw = random.uniform) -> None:
        self._clock = clock
        self._draw = draw
        self._ready: OrderedDict[str, float] = OrderedDict()  # each with since when
        self._first: OrderedDict[str, float] = OrderedDict()  # as _ready, of urgent keys
        self._urgent: set[str] = set()  # until they are taken
        self._in_a_row = 0  # urgent keys that were taken since one of the others was
        self._running: dict[str, bool] = {}  # whether it was urgent
        self._again: set[str] = set()  # added while running
        self._due: dict[str, float] = {}  # the one time at which a key becomes ready by itself
        self._heap: list[tuple[float, str]] = []  # may hold outdated pairs; _due decides
        self._failures: dict[str, int] = {}
        self._not_before: dict[str, float] = {}  # as the server said (Retry-After)
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        """Keys that are ready or being worked on: the depth that a person should worry about."""
        return len(self._first) + len(self._ready) + len(self._running)

    def age(self) -> float:
        """Seconds that the oldest ready key has waited; 0: none waits."""
        since = [next(iter(each.values())) for each in (self._first, self._ready) if each]
        return max(0.0, self._clock() - min(since)) if since else 0.0

    def add(self, key: str, *, delay: float = 0.0, urgent: bool = False) -> None:
        """Reconcile the key as soon as possible, or after `delay` seconds; the earliest counts. `urgent`: before those
        that are not, whenever its time has come."""
        if urgent:
            self._urgent.add(key)
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
        for memory in (self._due, self._failures, self._not_before):
            memory.pop(key, None)
        self._urgent.discard(key)

    def take(self) -> str | None:
        """The next key to work on, or None; whoever takes a key ends with `done` or `failed`."""
        now = self._clock()
        while self._heap and self._heap[0][0] <= now:
            at, key = heapq.heappop(self._heap)
            if self._due.get(key) == at:
                del self._due[key]
                if key in self._running:
                    self._again.add(key)
                else:
                    self._push(key)
        others_turn = self._ready and self._in_a_row >= URGENT_IN_A_ROW
        lane = self._first if self._first and not others_turn else self._ready
        if not lane:
            return None
        key, _ = lane.popitem(last=False)
        self._in_a_row = self._in_a_row + 1 if lane is self._first else 0
        self._running[key] = key in self._urgent
        self._urgent.discard(key)
        return key

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
        delay = max(at_least * self._draw(1.0, 1.0 + JITTER), BACKOFF.after(count, self._draw))
        self._due.pop(key, None)
        self._not_before[key] = self._clock() + at_least
        self._at(key, self._clock() + delay)
        return delay

    def next_due(self) -> float | None:
        """Seconds until a delayed key becomes ready; None: none waits."""
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return max(0.0, self._heap[0][0] - self._clock()) if self._heap else None

    async def run(self, handler: Handler, *, failure: Callable[[str, Exception, float], None]) -> None:
        """One worker, for ever; start as many as shall work at once. `failure` gets what failed, and the delay."""
        while True:
            key = self.take()
            if key is None:
                self._wake.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.next_due()):
                        await self._wake.wait()
                continue
            try:
                after = await handler(key)
            except Exception as error:  # whatever it was, the key is tried again later
                failure(key, error, self.failed(key, error.seconds if isinstance(error, RetryLater) else 0.0))
            else:
                self.done(key, after)
            await asyncio.sleep(0)  # a handler that never had to wait must not starve the others

    def _push(self, key: str) -> None:
        if key in self._first:
            return
        if key in self._urgent:
            self._first[key] = self._ready.pop(key, self._clock())
        else:
            self._ready.setdefault(key, self._clock())
        self._wake.set()

    def _at(self, key: str, at: float) -> None:
        at = max(at, self._not_before.get(key, at))
        if key not in self._due or at < self._due[key]:
            self._due[key] = at
            heapq.heappush(self._heap, (at, key))
            self._wake.set()
