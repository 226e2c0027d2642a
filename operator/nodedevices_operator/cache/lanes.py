"""Keys that are ready, in two lanes: urgent ones go before all others, in the order in which they came.

After URGENT_IN_A_ROW urgent keys one of the others has its turn: no flood of faults stops them.
"""

from __future__ import annotations

from collections import OrderedDict

URGENT_IN_A_ROW = 8


class Lanes:
    """A key is there once; one that waits among the others becomes urgent and keeps its time, never the other way."""

    def __init__(self) -> None:
        self._urgent: OrderedDict[str, float] = OrderedDict()  # each with since when
        self._others: OrderedDict[str, float] = OrderedDict()
        self._in_a_row = 0  # urgent keys that were taken since one of the others was

    def __len__(self) -> int:
        return len(self._urgent) + len(self._others)

    def waited(self, now: float) -> float:
        """Return for how long the key that waits longest has been ready; 0: none is."""
        since = (next(iter(each.values())) for each in (self._urgent, self._others) if each)
        return max(0.0, now - min(since, default=now))

    def push(self, key: str, now: float, *, urgent: bool) -> None:
        if key in self._urgent:
            return
        if urgent:
            self._urgent[key] = self._others.pop(key, now)
        else:
            self._others.setdefault(key, now)

    def take(self) -> str | None:
        """Return the next key; None: none is ready."""
        others_turn = self._others and self._in_a_row >= URGENT_IN_A_ROW
        lane = self._urgent if self._urgent and not others_turn else self._others
        if not lane:
            return None
        self._in_a_row = self._in_a_row + 1 if lane is self._urgent else 0
        key, _ = lane.popitem(last=False)
        return key
