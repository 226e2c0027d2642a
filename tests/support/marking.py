"""The pass before all others of nodes whose faults have changed, for tests that drive a manager's queue themselves."""

from __future__ import annotations

from nodedevices_operator.manager import Manager


async def next_node(manager: Manager) -> str | None:
    """The next node to reconcile, with the pods marked of all that come before; None: none is due."""
    while (name := manager.nodes.take_ahead()) is not None:
        await manager.mark_node(name)
        manager.nodes.ahead_done(name)
    return manager.nodes.take()
