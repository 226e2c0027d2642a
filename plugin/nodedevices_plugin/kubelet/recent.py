"""What was granted lately: PodResources shows it a little later, and some of it never.

Ids are granted in threads, while the event loop decides what is offered next. Both hold one lock, `granting`: ids are
granted and entered here under it, and under it what is offered is replaced (answers).
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from time import monotonic

from nodedevices_plugin.model import RecentAllocate

RECENT_ALLOCATIONS = 1024  # many times the pods that a kubelet admits in half a minute


class RecentAllocations:
    """The newest Allocates that we answered, oldest first; bounded. All methods may be called in any thread.

    Who holds `granting` knows every id that was granted, and none is granted meanwhile.
    """

    def __init__(self) -> None:
        self.granting = threading.RLock()
        self._entries: deque[RecentAllocate] = deque(maxlen=RECENT_ALLOCATIONS)
        self._under_way: dict[object, float] = {}

    def add(self, resource: str, ids: tuple[str, ...]) -> None:
        entry = RecentAllocate(resource=resource, ids=ids, time=datetime.now(UTC), monotonic=monotonic())
        with self.granting:
            self._entries.append(entry)

    def entries(self) -> tuple[RecentAllocate, ...]:
        with self.granting:
            return tuple(self._entries)

    def since(self, known: Sequence[RecentAllocate]) -> tuple[RecentAllocate, ...]:
        """Return those that were added after `entries` gave these."""
        every = self.entries()
        if not known:
            return every
        at = next((at for at in range(len(every), 0, -1) if every[at - 1] is known[-1]), 0)
        return every[at:]

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """A call of the kubelet is answered in the block."""
        call = object()
        self._under_way[call] = monotonic()
        try:
            yield
        finally:
            del self._under_way[call]

    def answering_seconds(self) -> float:
        """Return for how long the oldest call has waited for its answer; 0 when there is none."""
        now = monotonic()
        return max((now - since for since in tuple(self._under_way.values())), default=0.0)
