"""Removing the zeros that the kubelet leaves on the Node for names which the agent no longer offers.

Five minutes after a plugin has ended, the kubelet writes an explicit 0 for its resource, for ever. Such a zero is
removed when the agent has listed the name as retired for six minutes by our clock, no plugin serves it and no policy
owns it, and it is still 0 at that moment: a JSON patch with a test, because server-side apply cannot remove what it
never owned. A restarted operator starts counting again: the agent's times are not compared with ours, because clocks
differ.
"""

from __future__ import annotations

import structlog

from nodedevices_operator.concerns.port import Info, Outcome, View
from nodedevices_operator.concerns.tools import SETTLED_SECONDS, Tools
from nodedevices_operator.kube.port import KubeError
from nodedevices_operator.records.kinds import Kind
from nodedevices_operator.records.objects import NodeDevicesRecord, NodeRecord, Retirement

log = structlog.get_logger()


class RetiredZerosConcern:
    info = Info("retired-zeros")

    def __init__(self, tools: Tools) -> None:
        self._writer = tools.writer
        self._clock = tools.clock
        self._settled = tools.retired_seconds
        self._first_seen: dict[str, dict[Retirement, float]] = {}

    def forget(self, node: str) -> None:
        self._first_seen.pop(node, None)

    async def reconcile(self, view: View) -> Outcome:
        target = view.target()
        if target is None:
            return Outcome()
        node, name, now = target[0], view.record.name, self._clock()
        before = self._first_seen.get(name, {})
        seen = {retirement: before.get(retirement, now) for retirement in view.record.retired}
        if seen:
            self._first_seen[name] = seen
        else:
            self.forget(name)
        # What shows no zero needs no requeue: the zero's coming is news of the Node.
        zeros = set(removable(view.record, node))
        left = {it.name: self._settled - (now - since) for it, since in seen.items() if it.name in zeros}
        due = tuple(name for name, seconds in left.items() if seconds <= 0)
        next_seconds = min((seconds for seconds in left.values() if seconds > 0), default=None)
        if not due:
            return Outcome(requeue_after=next_seconds)
        try:
            view.wrote(Kind.NODE, await self._writer.remove_zeros(node, due))
        except KubeError as error:
            if error.status != 422:  # no longer 0, or no longer there: another client was faster
                raise
            return Outcome(requeue_after=SETTLED_SECONDS)
        log.info("retired zeros removed", node=node.name, names=due)
        return Outcome(requeue_after=next_seconds)


def removable(record: NodeDevicesRecord, node: NodeRecord) -> list[str]:
    """Retired names that the Node shows as 0, that no plugin serves and that are not ours."""
    served = {resource.name for resource in record.resources}
    names = [retirement.name for retirement in record.retired]
    return [name for name in names if node.capacity.get(name) == 0 and name not in served | node.owned]
