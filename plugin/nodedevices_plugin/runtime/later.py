"""Makes one call for many requests, a moment after the first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Later:
    """Calls `call` on the running loop `seconds` after the first request since the last call, once for all of them."""

    def __init__(self, call: Callable[[], None], *, seconds: float) -> None:
        self._call = call
        self._seconds = seconds
        self._due: asyncio.TimerHandle | None = None

    def request(self) -> None:
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(self._seconds, self._now)

    def _now(self) -> None:
        self._due = None
        self._call()
