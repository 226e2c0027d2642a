"""What goes on beside the reconciliations of nodes, for tests that drive a manager's queue themselves: the pass before
all others of nodes whose faults have changed, and Events on their way."""

from __future__ import annotations

import asyncio

from nodedevices_operator.kube.apply import SENDER
from nodedevices_operator.manager import Manager


async def next_node(manager: Manager) -> str | None:
    """The next node to reconcile, with the pods marked of all that come before; None: none is due."""
    while (name := manager.nodes.take_ahead()) is not None:
        await manager.mark_node(name)
        manager.nodes.ahead_done(name)
    return manager.nodes.take()


async def events_sent() -> None:
    """Return when no Event is on its way any more."""
    while senders := [task for task in asyncio.all_tasks() if task.get_name() == SENDER]:
        await asyncio.wait(senders)
