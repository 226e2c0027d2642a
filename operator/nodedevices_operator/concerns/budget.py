"""Limits of what one node's agent, or another writer on its Node, may make the operator do: so much at once, and so
much over time.

An agent decides how often its status changes and what it names there. What that costs the API server, and the workers
that the other nodes wait for, is decided by these. The memory is two numbers; lost with the operator's, the bucket is
full again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import Struct

# Another writer that changes our value back: after so many repairs within the window we stop for a while, and say so.
FIGHT_REPAIRS, FIGHT_WINDOW_SECONDS = 3, 60.0


class Repairs(Struct):
    """Repairs of one value that another writer may keep changing back. Times are by the monotonic clock."""

    _times: tuple[float, ...] = ()  # of the last of them; most nodes have none

    def contested(self, now: float) -> bool:
        """Count one more repair. True when it is better to pause than to repair; then it is not counted."""
        if len(self._times) == FIGHT_REPAIRS and now - self._times[0] < FIGHT_WINDOW_SECONDS:
            return True
        self._times = (*self._times, now)[-FIGHT_REPAIRS:]
        return False


@dataclass(slots=True)
class CallBudget:
    """A token bucket, full at first. `clock` is monotonic."""

    burst: int
    seconds_per_token: float
    clock: Callable[[], float]
    _tokens: float = field(init=False)
    _filled: float = field(init=False)  # when the tokens were counted

    def __post_init__(self) -> None:
        self._tokens, self._filled = float(self.burst), self.clock()

    def take(self) -> bool:
        """Take one token. True when there was one."""
        now = self.clock()
        self._tokens = min(float(self.burst), self._tokens + (now - self._filled) / self.seconds_per_token)
        self._filled = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
