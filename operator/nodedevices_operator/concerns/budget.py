"""How much one node's agent may make the operator do: so much at once, and so much over time.

An agent decides how often its status changes and what it names there. What that costs the API server, and the workers
that the other nodes wait for, is decided by these. The memory is two numbers; lost with the operator's, the bucket is
full again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Budget:
    """A token bucket, full at first. `clock` is monotonic."""

    burst: int
    seconds_per_token: float
    clock: Callable[[], float]
    _tokens: float = field(init=False)
    _filled: float = field(init=False)  # when the tokens were counted

    def __post_init__(self) -> None:
        self._tokens, self._filled = float(self.burst), self.clock()

    def take(self) -> bool:
        """Whether there is one more; if so, it is taken."""
        now = self.clock()
        self._tokens = min(float(self.burst), self._tokens + (now - self._filled) / self.seconds_per_token)
        self._filled = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
