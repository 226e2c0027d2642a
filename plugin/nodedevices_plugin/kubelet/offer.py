"""KubeletOffer: the agent's answers when the kubelet allocates devices, through any of its APIs.

An answer has two values. The grant has the ids that go to one container. The edits are what the
container needs to use them: variables, mounts, device nodes, CDI names. The device plugin API wants both at once
(`server`); one that writes a claim's edits into a CDI file, as DRA has it, wants the grant when the claim is
prepared and for the edits when it writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from nodedevices_plugin.model import ContainerEdits, Grant


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


class OpenGate:
    """A gate that never waits, for agents without computing power to share, and for tests."""

    def ready(self, resource: str, size: int, ids: Sequence[str] = ()) -> None:
        pass

    async def before_start(self, resource: str, ids: Sequence[str]) -> None:
        pass
