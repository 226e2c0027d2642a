"""Exponential back-off with jitter: how long to wait before something that failed is tried again.

As wait.Backoff of k8s.io/apimachinery, but without state: the caller that counts the failures knows what a success is.
Jitter only shortens a wait, so `max_seconds` is what it says, and a fleet that failed together does not come back
together. What a server asks for (Retry-After) is waited for and, for the same reason, a little longer.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

Draw = Callable[[float, float], float]  # random.uniform, or a test's own

MAX_EXPONENT: Final = 64
LATE: Final = 0.2  # of a wait that a server asks for, which only grows


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """`initial_seconds`, then `factor` times as long after each failure, up to `max_seconds`; each wait is shortened by
    a random part of up to `jitter` of itself (0 to 1)."""

    initial_seconds: float
    max_seconds: float
    factor: float = 2.0
    jitter: float = 0.5

    def after(self, failures: int, draw: Draw = random.uniform, *, at_least: float | None = None) -> float:
        """Return the seconds to wait after so many failures in a row (1 is the first). `at_least`: what the server asks
        for."""
        exponent = min(max(failures - 1, 0), MAX_EXPONENT)
        base: float = min(self.max_seconds, self.initial_seconds * self.factor**exponent)
        own = base * draw(1.0 - self.jitter, 1.0)
        return max(own, at_least * draw(1.0, 1.0 + LATE)) if at_least else own
