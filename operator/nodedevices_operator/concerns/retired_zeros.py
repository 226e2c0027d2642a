"""Removing the zeros that the kubelet leaves on the Node for names which the agent no longer offers.

Five minutes after a plugin has ended, the kubelet writes an explicit 0 for its resource, for ever. Such a zero is
removed when the agent has listed the name as retired for six minutes by our clock, nobody serves or owns it, and it is
still 0 at that moment: a JSON patch with a test, because server-side apply cannot remove what it never owned. A
restarted operator counts anew: the agent's times are not compared with ours, because clocks differ.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from nodedevices_operator.kube.apply import Writer
from nodedevices_operator.kube.port import KubeError, Object
from nodedevices_operator.records.objects import NodeDevicesRecord, NodeRecord

SETTLED_SECONDS = 6 * 60.0  # the kubelet's endpointStopGracePeriod is 5 min, checked with the next node status

log = structlog.get_logger()

Retirement = tuple[str, str]  # name, and since when by the agent's clock: one that comes and goes again is another


class RetiredZeros:
    """All nodes; one node at a time by the key queue."""

    def __init__(
        self, writer: Writer, clock: Callable[[], float] = time.monotonic, *, settled_seconds: float = SETTLED_SECONDS
    ) -> None:
        self._writer = writer
        self._clock = clock
        self._settled = settled_seconds
        self._first_seen: dict[str, dict[Retirement, float]] = {}

    def forget(self, node: str) -> None:
        self._first_seen.pop(node, None)

    async def sync(self, record: NodeDevicesRecord, node: NodeRecord) -> tuple[Object | None, float | None]:
        """The Node as it is after a removal, and the seconds until the next one may be due. May raise KubeError."""
        now = self._clock()
        before = self._first_seen.get(record.name, {})
        seen = {each: before.get(each, now) for each in record.retired}
        if seen:
            self._first_seen[record.name] = seen
        else:
            self.forget(record.name)
        # What shows no zero needs no other look: the zero's coming is news of the Node.
        zeros = set(removable(record, node))
        left = {name: self._settled - (now - since) for (name, _), since in seen.items() if name in zeros}
        due = [name for name, seconds in left.items() if seconds <= 0]
        waiting = min((seconds for seconds in left.values() if seconds > 0), default=None)
        if not due:
            return None, waiting
        try:
            changed = await self._writer.remove_zeros(node, due)
        except KubeError as error:
            if error.status != 422:  # no longer 0, or no longer there: somebody was faster
                raise
            return None, SETTLED_SECONDS
        log.info("retired zeros removed", node=node.name, names=due)
        return changed, waiting


def removable(record: NodeDevicesRecord, node: NodeRecord) -> list[str]:
    """Retired names that the Node shows as 0, that no plugin serves and that are not ours."""
    served = {resource.name for resource in record.resources}
    return [name for name, _ in record.retired if node.capacity.get(name) == 0 and name not in served | node.owned]
