"""Writing Events, so many for each node and no more.

An agent decides how often a device of its node fails, and for how many pods; what it may cost the API server and the
people who read Events is decided here. Each node has a token bucket; what it does not cover is counted, and summed up
once a minute in one Event about the NodeDevices. An Event that was suppressed is never written later: it is news of
yesterday, and the conditions show what is so now.

The memory is three numbers for each node. Lost with the operator's, it starts again with a full bucket.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from nodedevices_operator.concerns.budget import CallBudget
from nodedevices_operator.desired import events
from nodedevices_operator.kube.apply import Writer
from nodedevices_operator.metrics import OperatorMetrics
from nodedevices_operator.records.objects import NodeDevicesRecord

BURST = 128  # 8 devices, 16 shares of each: a node's pods all hear of one fault
SECONDS_PER_EVENT = 10.0
SUM_UP_SECONDS = 60.0  # from the first suppressed Event to the one that sums them up
LIMIT = f"at most {BURST} at once, then one every {SECONDS_PER_EVENT:g} s"


class _NodeBudget(Struct):
    """Budgets of one node. Times are by the monotonic clock."""

    budget: CallBudget
    suppressed: int = 0
    first: str = ""  # when the first of them was suppressed, for people
    due: float = 0.0  # when to sum up


class NodeEvents:
    """All nodes; one node at a time by the key queue."""

    def __init__(self, writer: Writer, metrics: OperatorMetrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._writer = writer
        self._metrics = metrics
        self._clock = clock
        self._nodes: dict[str, _NodeBudget] = {}

    def forget(self, node: str) -> None:
        self._nodes.pop(node, None)

    def write(self, node: str, body: Mapping[str, Any]) -> None:
        """Have the Event written, or count it where the node has had too many."""
        of_node = self._nodes.get(node)
        if of_node is None:
            of_node = self._nodes[node] = _NodeBudget(CallBudget(BURST, SECONDS_PER_EVENT, self._clock))
        if of_node.budget.take():
            self._writer.event(body)
            return
        if not of_node.suppressed:
            of_node.first, of_node.due = self._writer.now(), self._clock() + SUM_UP_SECONDS
        of_node.suppressed += 1
        self._metrics.suppressed_events.inc()

    def sum_up(self, record: NodeDevicesRecord) -> float | None:
        """Report how many were suppressed, when it is time. Returns the seconds until then; None: there are none."""
        of_node = self._nodes.get(record.name)
        if of_node is None or not of_node.suppressed:
            return None
        wait = of_node.due - self._clock()
        if wait > 0:
            return wait
        about = events.About("NodeDevices", record.name, record.uid)
        self._writer.event(events.suppressed(about, of_node.suppressed, of_node.first, LIMIT, self._writer.now()))
        of_node.suppressed = 0
        return None
