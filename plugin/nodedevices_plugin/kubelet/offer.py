"""KubeletOffer: the agent's answers when the kubelet allocates devices, through any of its APIs; and what was granted.

An answer has two values. The grant has the ids that go to one container. The edits are what the container needs to use
them: variables, mounts, device nodes, CDI names. The device plugin API wants both at once (`server`); one that writes a
claim's edits into a CDI file, as DRA has it, wants the grant when the claim is prepared and for the edits when it
writes.

PodResources shows what was granted a little later, and some of it never. Ids are granted in threads, while the event
loop decides what is offered next. Both hold one lock, `RecentAllocations.granting`: ids are granted and entered there
under it, and under it what is offered is replaced (answers).
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from time import monotonic
from typing import Protocol

from nodedevices_plugin.model import ContainerEdits, Grant, RecentAllocate


class KubeletOffer(Protocol):
    """Answers from the current plan. All are called in threads, and none may block: the kubelet handles one pod after
    the other, and sets no deadline. `grant` and `edits` are called by one thread at a time."""

    def grant(self, resource: str, ids: Sequence[str]) -> Grant:
        """Grant these ids to one container. Raises AllocationError; its text reaches the pod's status."""
        ...

    def edits(self, grant: Grant) -> ContainerEdits:
        """Return what the container needs; it follows from the grant and the node alone. Raises AllocationError."""
        ...

    def prefer(self, resource: str, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """Return up to `size` of `available`, all of `must_include` among them; none where that is not possible.

        Raises AllocationError for ids that cannot be allocated; on any other error a plain choice is made.
        """
        ...


class StartGate(Protocol):
    """Lets an answer wait, where an allocation depends on the pod that it is for (SharingFacts.cores)."""

    def ready(self, resource: str, size: int, ids: Sequence[str] = ()) -> None:
        """Called in a thread. Return when enough is known for a request of so many ids, after a second at the latest;
        for a resource without computing power at once."""
        ...

    async def before_start(self, resource: str, ids: Sequence[str]) -> None:
        """Called on the event loop. Prepare the start of a container with these ids. Raises AllocationError; its text
        reaches the pod's Events, and the kubelet tries again. Takes 20 s at most."""
        ...


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
