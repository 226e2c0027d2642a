"""The key queue: which nodes are to be reconciled, and when.

What is queued is a key, never an event, so ten changes of one node are one reconciliation of its latest state. A key is
worked on by one worker at a time; a key added meanwhile is reconciled once more afterwards. A failure waits
exponentially longer each time, with jitter, until a success; a success may request to be reconciled again later
(requeue after). News of a failing key bring its next try forward, to no less than NEWS_SECONDS (a broken node that
changes all the time costs little more than a quiet one), and never to before the time that the server set.

Keys that are ready are in three lanes: those ahead of all others, which have workers of their own, then urgent ones,
then the others; each lane in the order in which its keys came. A key that is added `ahead` first has a short pass of
its own, by workers that do nothing else, and is urgent until it succeeds: a fault is marked while a policy reaches
thousands of nodes, whose workers hold back meanwhile. That pass only does early what the reconciliation does as well.
After IN_A_ROW keys of a lane the lanes behind it have a turn: no flood of faults stops them.
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

IN_A_ROW = 8
AHEAD, URGENT, OTHERS = range(3)
BACKOFF = Backoff(initial_seconds=0.5, max_seconds=60.0, jitter=0.2)
NEWS_SECONDS = 2.0
JITTER = 0.2  # of a requested delay; it only grows
MAX_LATE_SECONDS = 5.0  # by jitter, of a requeue after so many seconds


class Lanes:
    """A key is there once; one that waits may move to a lane before its own and keeps its time, never the other
    way."""

    def __init__(self) -> None:
        self._lanes = tuple(OrderedDict[str, float]() for _ in range(3))  # each key with since when
        self._in_a_row = [0, 0]  # keys that were taken of the first two, since one of the lanes behind was

    def __len__(self) -> int:
        return sum(map(len, self._lanes))

    def waited(self, now: float) -> float:
        """Return for how long the key that waits longest has been ready; 0: none is."""
        return max((now - next(iter(lane.values())) for lane in self._lanes if lane), default=0.0)

    def push(self, key: str, lane: int, now: float) -> None:
        if any(key in before for before in self._lanes[: lane + 1]):
            return
        for behind in self._lanes[lane + 1 :]:
            now = behind.pop(key, now)
        self._lanes[lane][key] = now

    @property
    def has_ahead(self) -> bool:
        """True when `take_ahead` returns a key."""
        return bool(self._lanes[AHEAD])

    @property
    def has_next(self) -> bool:
        """True when `take` returns a key: one is ready, and those ahead do not go first."""
        held_back = self._lanes[AHEAD] and self._in_a_row[AHEAD] < IN_A_ROW
        return bool(self._lanes[URGENT] or self._lanes[OTHERS]) and not held_back

    def take_ahead(self) -> str:
        """Return the next key of those ahead. KeyError: there is none."""
        self._in_a_row[AHEAD] += 1
        return self._lanes[AHEAD].popitem(last=False)[0]

    def take(self) -> str:
        """Return the next key of the lanes behind. KeyError: none is ready."""
        others_turn = self._lanes[OTHERS] and self._in_a_row[URGENT] >= IN_A_ROW
        lane = URGENT if self._lanes[URGENT] and not others_turn else OTHERS
        self._in_a_row = [0, self._in_a_row[URGENT] + 1 if lane == URGENT else 0]
        return self._lanes[lane].popitem(last=False)[0]


class KeyQueue:
    """Deduplicated keys with delays and back-off. `add`, `take`, `done` and `failed` are all, and `take_ahead` and
    `ahead_done` for the pass before."""

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


# --- workers ---------------------------------------------------------------------------------------------------------


class RetryLater(Exception):  # noqa: N818  it is no error: a wait was requested
    """Raised by a handler that knows how long to wait at least, e.g. from Retry-After."""

    def __init__(self, seconds: float, why: str) -> None:
        super().__init__(why)
        self.seconds = seconds


class Workers:
    """The workers of one queue. Event loop only; start `run` and `run_ahead` as many times as shall work at once."""

    def __init__(self, queue: KeyQueue) -> None:
        self._queue = queue
        self._next = asyncio.Event()  # `take` returns a key
        self._ahead = asyncio.Event()  # `take_ahead` does
        self._alarm: asyncio.TimerHandle | None = None  # when the next delayed key is due
        queue.changed = self._look
        self._look()

    async def run(
        self, handler: Callable[[str], Awaitable[float | None]], *, failure: Callable[[str, Exception, float], None]
    ) -> None:
        """Work for ever. `failure` gets what failed, and the delay."""
        queue = self._queue
        while True:
            while (key := queue.take()) is None:
                await self._next.wait()
            try:
                after = await handler(key)
            except Exception as error:  # whatever it was, the key is tried again later
                failure(key, error, queue.failed(key, error.seconds if isinstance(error, RetryLater) else 0.0))
            else:
                queue.done(key, after)
            await asyncio.sleep(0)  # a handler that never had to wait must not starve the others

    async def run_ahead(self, handler: Callable[[str], Awaitable[None]]) -> None:
        """Work for ever at the pass before. What the handler raises the reconciliation meets as well."""
        while True:
            while (key := self._queue.take_ahead()) is None:
                await self._ahead.wait()
            with contextlib.suppress(Exception):
                await handler(key)
            self._queue.ahead_done(key)
            await asyncio.sleep(0)

    def _look(self) -> None:
        """Wake those for whom there is work, and have the alarm ring when the next delayed key is due."""
        for event, there in ((self._next, self._queue.ready.has_next), (self._ahead, self._queue.ready.has_ahead)):
            if there:
                event.set()
            else:
                event.clear()
        left = self._queue.next_due()
        if left is None:
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + left
        if self._alarm is not None and self._alarm.when() > at:
            self._alarm.cancel()
            self._alarm = None
        if self._alarm is None:
            self._alarm = loop.call_at(at, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._queue.look_at_times()
        self._look()
