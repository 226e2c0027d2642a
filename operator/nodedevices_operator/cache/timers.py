"""Keys that become ready by themselves: one time for each, the earliest that was set."""

from __future__ import annotations

import heapq
from collections.abc import Iterator


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
