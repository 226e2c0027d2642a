"""An event loop whose time does not pass by itself, for tests of what waits."""

from __future__ import annotations

import asyncio
import selectors


class NoWait(selectors.DefaultSelector):
    """Waits for nothing: what the loop would wait has passed at once."""

    passed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.passed += max(0.0, timeout or 0.0)
        return super().select(timeout if timeout is None else 0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in which time passes only while nothing else is to be done, and then at once."""

    def __init__(self) -> None:
        self._waits = NoWait()
        super().__init__(self._waits)

    def time(self) -> float:
        return 1000.0 + self._waits.passed
