"""Keys that are ready, in three lanes: those ahead of all others, which have workers of their own, then urgent ones,
then the others; each lane in the order in which its keys came.

While keys are ahead, the workers of the other lanes hold back. After IN_A_ROW keys of a lane the lanes behind it have
a turn: no flood of faults stops them.
"""

from __future__ import annotations

from collections import OrderedDict

IN_A_ROW = 8
AHEAD, URGENT, OTHERS = range(3)


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
