"""Limits of what one node's agent, or another writer on its Node, may make the operator do: so much at once, and so
much over time.

An agent decides how often its status changes and what it names there. What that costs the API server, the workers that
the other nodes wait for and the people who read Events is decided by these. The memory is a few numbers for each node;
lost with the operator's, the bucket is full again.

Events that a node's budget does not cover are counted, and summed up once a minute in one Event about the NodeDevices.
One that was suppressed is never written later: it is news of yesterday, and the conditions show what is so now.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct

from nodedevices_operator.desired.events import Event, ObjectRef, suppressed
from nodedevices_operator.kube.apply import Writer
from nodedevices_operator.metrics import OperatorMetrics
from nodedevices_operator.records.objects import NodeDevicesRecord

# Another writer that changes our value back: after so many repairs within the window we stop for a while, and say so.
FIGHT_REPAIRS, FIGHT_WINDOW_SECONDS = 3, 60.0


class CallBudget(Struct):
    """A token bucket, full at first. Times are by the monotonic clock."""

    burst: int
    seconds_per_token: float
    _taken: float = 0.0  # tokens that are not back yet
    _counted: float = 0.0  # when they were counted

    def take(self, now: float) -> bool:
        """Take one token. True when there was one."""
        self._taken = max(0.0, self._taken - (now - self._counted) / self.seconds_per_token)
        self._counted = now
        if self._taken > self.burst - 1:
            return False
        self._taken += 1
        return True


def repairs() -> CallBudget:
    """Return the budget of writes of one value that another writer may keep changing back."""
    return CallBudget(FIGHT_REPAIRS, FIGHT_WINDOW_SECONDS / FIGHT_REPAIRS)


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

    def write(self, event: Event) -> None:
        """Have the Event written, or count it where the node has had too many."""
        of_node = self._nodes.setdefault(event.node, _NodeBudget(CallBudget(BURST, SECONDS_PER_EVENT)))
        if of_node.budget.take(self._clock()):
            self._writer.event(event)
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
        self._writer.event(suppressed(ObjectRef.record(record), of_node.suppressed, of_node.first, LIMIT))
        of_node.suppressed = 0
        return None
