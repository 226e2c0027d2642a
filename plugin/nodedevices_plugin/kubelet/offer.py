"""KubeletOffer: what the agent answers when the kubelet allocates devices, through whichever of its APIs.

An answer is two values. The grant says who gets what: the ids that go to one container. The edits are what the
container needs to use them: variables, mounts, device nodes, CDI names. The device plugin API wants both at once
(`server`); one that writes a claim's edits into a CDI file, as DRA has it, wants the grant when the claim is
prepared and for the edits when it writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from nodedevices_plugin.model import ContainerEdits, Grant


class KubeletOffer(Protocol):
    """Answers from the current plan. All are called on the event loop, and none may block: the kubelet handles one pod
    after the other, and sets no deadline."""

    def grant(self, resource: str, ids: Sequence[str]) -> Grant:
        """These ids for one container. Raises AllocationError, whose text reaches the pod's status."""
        ...

    def edits(self, grant: Grant) -> ContainerEdits:
        """What the container needs. Follows from the grant and the node alone. Raises AllocationError, too."""
        ...

    def prefer(self, resource: str, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """Up to `size` of `available`, all of `must_include` among them; none where that cannot be.

        Raises AllocationError for ids that cannot be allocated; on any other error a plain choice is made.
        """
        ...


class StartGate(Protocol):
    """What an answer may wait for, where an allocation depends on whose it is (SharingFacts.cores)."""

    async def ready(self, resource: str, size: int, ids: Sequence[str] = ()) -> None:
        """Returns when enough is known for a request of so many, and after a second at the latest. For all other
        resources at once."""
        ...

    async def before_start(self, resource: str, ids: Sequence[str]) -> None:
        """A container with these ids is about to start. Raises AllocationError, whose text reaches the pod's Events;
        the kubelet then tries again. Takes 20 s at most."""
        ...


class OpenGate:
    """Of whoever has nothing to wait for."""

    async def ready(self, resource: str, size: int, ids: Sequence[str] = ()) -> None:
        pass

    async def before_start(self, resource: str, ids: Sequence[str]) -> None:
        pass
