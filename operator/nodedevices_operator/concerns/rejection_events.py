"""An Event on each pod that the node's kubelet rejected while it requested devices of the node: how many there are, how
many are free, and why the others are not; desired/rejection.py says it.

The Event's name is made of the pod's uid, so that a pod has one, also from a restarted operator (409). A pod of long
ago gets none: what the status says now is not why. The agent is given a few seconds to report who holds what.

A controller that makes a pod after the other for a node without room must not cost the node its Events about faults:
these have a budget of their own, and what is beyond it is not written, since it says the same.
"""

from __future__ import annotations

from msgspec import Struct, field

from nodedevices_operator.concerns.budget import CallBudget
from nodedevices_operator.concerns.port import Info, Outcome, View
from nodedevices_operator.concerns.tools import Tools
from nodedevices_operator.desired import events
from nodedevices_operator.desired.rejection import NEWS_SECONDS, SETTLE_SECONDS, age, rejection_text

BURST, SECONDS_PER_EVENT = 16, 30.0  # of one node


class RejectionMemory(Struct):
    """Of one node."""

    budget: CallBudget
    done: dict[str, float] = field(default_factory=dict)  # uids of pods about which nothing more is written, since when


class RejectionEventsConcern:
    info = Info("rejection-events", section="faults", informs=True)

    def __init__(self, tools: Tools) -> None:
        self._pods = tools.rejected
        self._writer = tools.writer
        self._metrics = tools.metrics
        self._clock = tools.clock
        self._wall = tools.wall
        self._nodes: dict[str, RejectionMemory] = {}

    def forget(self, node: str) -> None:
        self._nodes.pop(node, None)

    async def reconcile(self, view: View) -> Outcome:
        sections, node = view.sections, view.record.name
        there = self._pods.on_node(node) if self._pods is not None and view.reported else ()
        if not there or sections is None or not sections.faults.event:
            return Outcome()
        memory = self._nodes.get(node)
        if memory is None:
            memory = self._nodes[node] = RejectionMemory(CallBudget(BURST, SECONDS_PER_EVENT, self._clock))
        news = self._clock() - NEWS_SECONDS  # of an older pod nothing is written anyway
        memory.done = {uid: since for uid, since in memory.done.items() if since > news}
        waits: list[float] = []
        for pod in there:
            seconds = None if pod.uid in memory.done else age(pod, self._wall())
            text = None if seconds is None or seconds >= NEWS_SECONDS else rejection_text(pod, view.record)
            if seconds is None or text is None:
                continue
            if seconds < SETTLE_SECONDS:
                waits.append(SETTLE_SECONDS - seconds)
                continue
            if memory.budget.take():
                about = events.About("Pod", pod.name, pod.uid, pod.namespace)
                self._writer.event(events.unavailable(about, pod.node, text, view.now))
            else:
                self._metrics.suppressed_events.inc()
            memory.done[pod.uid] = self._clock()
        return Outcome(requeue_after=min(waits, default=None))
