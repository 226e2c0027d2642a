"""Keys that are ready, in three lanes: those ahead of all others, which have workers of their own, then urgent ones,
then the others; each lane in the order in which its keys came.

While keys are ahead, the workers of the other lanes hold back. After IN_A_ROW keys of a lane the lanes behind it have
a turn: no flood of faults stops them.

Keys that become ready by themselves: one time for each, the earliest that was set.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator

IN_A_ROW = 8


class Lanes:
    """A key is there once; one that waits may move to a lane before its own and keeps its time, never the other
    way."""

    def __init__(self) -> None:
        self._ahead: OrderedDict[str, float] = OrderedDict()  # each with since when
        self._urgent: OrderedDict[str, float] = OrderedDict()
        self._others: OrderedDict[str, float] = OrderedDict()
        self._ahead_in_a_row = 0  # that were taken since a key of the lanes behind was
        self._urgent_in_a_row = 0

    def __len__(self) -> int:
        return len(self._ahead) + len(self._urgent) + len(self._others)

    def waited(self, now: float) -> float:
        """Return for how long the key that waits longest has been ready; 0: none is."""
        since = (next(iter(lane.values())) for lane in (self._ahead, self._urgent, self._others) if lane)
        return max(0.0, now - min(since, default=now))

    def push(self, key: str, now: float, *, urgent: bool = False, ahead: bool = False) -> None:
        if key in self._ahead:
            return
        if ahead:
            self._ahead[key] = self._urgent.pop(key, self._others.pop(key, now))
        elif key in self._urgent:
            return
        elif urgent:
            self._urgent[key] = self._others.pop(key, now)
        else:
            self._others.setdefault(key, now)

    @property
    def has_ahead(self) -> bool:
        return bool(self._ahead)

    @property
    def has_next(self) -> bool:
        """True when `take` returns a key."""
        held_back = self._ahead and self._ahead_in_a_row < IN_A_ROW
        return bool(self._urgent or self._others) and not held_back

    def take_ahead(self) -> str | None:
        """Return the next key of those ahead; None: there is none."""
        if not self._ahead:
            return None
        self._ahead_in_a_row += 1
        return self._ahead.popitem(last=False)[0]

    def take(self) -> str | None:
        """Return the next key of the lanes behind; None: none is ready, or those ahead go first."""
        if not self.has_next:
            return None
        self._ahead_in_a_row = 0
        others_turn = self._others and self._urgent_in_a_row >= IN_A_ROW
        lane = self._urgent if self._urgent and not others_turn else self._others
        self._urgent_in_a_row = self._urgent_in_a_row + 1 if lane is self._urgent else 0
        return lane.popitem(last=False)[0]


class Timers:
    """Times are of one clock, in seconds."""

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []  # may hold outdated pairs; _due decides

    def set(self, key: str, at: float) -> bool:
        """Set the time at which the key is due. False where it is due as early already."""
        if key in self._due and at >= self._due[key]:
            return False
        self._due[key] = at
        heapq.heappush(self._heap, (at, key))
        return True

    def forget(self, key: str) -> None:
        self._due.pop(key, None)

    def take(self, now: float) -> Iterator[str]:
        """Yield the keys whose time has come, each once."""
        while self._heap and self._heap[0][0] <= now:
            at, key = heapq.heappop(self._heap)
            if self._due.get(key) == at:
                del self._due[key]
                yield key

    def left(self, now: float) -> float | None:
        """Return the time until the next key is due; None: none waits."""
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return max(0.0, self._heap[0][0] - now) if self._heap else None
