"""The operator's part of NodeDevices.status: the conditions of all concerns, and affectedPods. One field manager, so
one apply carries everything; a condition about which nothing was decided is written unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nodedevices_common.conditions import build, same

from nodedevices_operator.concerns.port import Shown, View
from nodedevices_operator.kube.apply import Writer
from nodedevices_operator.records.kinds import Kind
from nodedevices_operator.records.objects import Affected


class NodeStatus:
    """Writes it where it differs from the current one."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def write(self, view: View, affected: Sequence[Affected]) -> None:
        """Write the status. May raise KubeError."""
        record, verdicts = view.record, view.verdicts()
        state = (frozenset(affected), tuple(verdicts.items()))
        if view.status == state:
            return
        shown = {item.type: item for item in record.conditions}
        conditions: list[dict[str, Any]] = []
        unchanged = state[0] == set(record.affected)
        for info in view.infos:
            old, verdict = shown.get(info.condition), verdicts.get(info.condition, Shown.KEPT)
            if verdict is Shown.REMOVED:
                unchanged = unchanged and old is None
                continue
            if not isinstance(verdict, Shown):
                generation = record.generation if info.by_generation else None
            elif old is not None:
                verdict, generation = (old.status, old.reason, old.message), old.generation
            else:
                continue
            made = build(info.condition, *verdict, shown=old, generation=generation, now=view.now)
            conditions.append(made)
            unchanged = unchanged and same(old, made)
        if not unchanged:
            view.wrote(Kind.NODE_DEVICES, await self._writer.status(record, conditions, affected))
        view.status = state
