"""Events on their way to the API server. An Event is a courtesy: the conditions say the same, and nothing waits for it.

`put` returns at once; a few senders of our own do the calls. One that the API server refuses, or does not answer, is
counted by the writer and dropped: it would be news of yesterday, and where Events cannot be written (a store of their
own that is away, a limit that others use up, a namespace that ends) all else goes on. A kill loses those that wait. No
more than MOST wait; what is beyond that is dropped and counted, too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from nodedevices_operator.kube.port import JsonObject, KubeError

MOST = 4096  # Events that wait; a fault of 500 nodes with 8 pods each
SENDERS = 2  # calls at once, of the client's 32
SENDER = "event-sender"  # the name of their tasks

log = structlog.get_logger()


class EventOutbox:
    """`send` writes one Event; `dropped` is called for each that found no room."""

    def __init__(self, send: Callable[[JsonObject], Awaitable[object]], dropped: Callable[[], None]) -> None:
        self._send = send
        self._dropped = dropped
        self._waiting: deque[JsonObject] = deque()
        self._senders: set[asyncio.Task[Any] | None] = set()

    def put(self, body: JsonObject) -> None:
        """Have the Event written, soon or never. Inside a running loop."""
        if len(self._waiting) >= MOST:
            self._dropped()
            return
        self._waiting.append(body)
        if len(self._senders) < SENDERS:
            self._senders.add(asyncio.create_task(self._run(), name=SENDER))

    async def _run(self) -> None:
        """Send until none waits."""
        try:
            while self._waiting:
                await self._try(self._waiting.popleft())
        finally:  # at once: the next Event needs another sender
            self._senders.discard(asyncio.current_task())

    async def _try(self, body: JsonObject) -> None:
        try:
            await self._send(body)
        except KubeError as error:
            if error.status != 409:  # one of that name that is there already is as good
                log.warning("event not written", error=str(error))
                await asyncio.sleep(error.retry_after or 0.0)
