"""Pods that the node's kubelet rejected: an Event on each that says why, in the words of desired/rejected.py.

The Event is on each pod that requested devices of the node: how many there are, how many are free, and why the others
are not. Its name is made of the pod's uid, so that a pod has one, also from a restarted operator (409). A pod of long
ago gets none: what the status says now is not why. The agent is given a few seconds to report who holds what. A
controller that makes a pod after the other for a node without room must not cost the node its Events about faults, nor
other pods theirs: each controller has a budget, and what is beyond that is not written, since it says the same.
"""

from __future__ import annotations

from msgspec import Struct, field
from nodedevices_api.conditions import EVENT_UNAVAILABLE

from nodedevices_operator.concerns.budget import CallBudget
from nodedevices_operator.concerns.port import Info, Outcome, Remembering, View
from nodedevices_operator.desired.events import About, Event
from nodedevices_operator.desired.rejected import NEWS_SECONDS, SETTLE_SECONDS, age, rejection_text

EVENTS_AT_ONCE, SECONDS_PER_EVENT = 16, 30.0  # of one controller's pods on one node
OF_THE_NODE = 4 * EVENTS_AT_ONCE


class RejectionMemory(Struct):
    """Of one node."""

    budget: CallBudget
    of_controllers: dict[str, CallBudget] = field(default_factory=dict)
    done: dict[str, float] = field(default_factory=dict)  # uids of pods about which nothing more is written, since when


class RejectionEventsConcern(Remembering[RejectionMemory]):
    info = Info("rejection-events", section="faults", informs=True)

    async def reconcile(self, view: View) -> Outcome:
        node, clock = view.record.name, self._tools.clock
        watched = self._tools.rejected
        there = watched.on_node(node) if watched is not None and view.reported else ()
        if not there:
            return Outcome()
        memory = self._nodes.get(node)
        if memory is None:
            memory = self._nodes[node] = RejectionMemory(CallBudget(OF_THE_NODE, SECONDS_PER_EVENT, clock))
        news = clock() - NEWS_SECONDS  # of an older pod nothing is written anyway
        owners = {pod.owner or pod.uid for pod in there}
        memory.of_controllers = {owner: kept for owner, kept in memory.of_controllers.items() if owner in owners}
        memory.done = {uid: since for uid, since in memory.done.items() if since > news}
        waits: list[float] = []
        for pod in there:
            seconds = None if pod.uid in memory.done else age(pod, self._tools.wall())
            text = None if seconds is None or seconds >= NEWS_SECONDS else rejection_text(pod, view.record)
            if seconds is None or text is None:
                continue
            if seconds < SETTLE_SECONDS:
                waits.append(SETTLE_SECONDS - seconds)
                continue
            own = memory.of_controllers.setdefault(
                pod.owner or pod.uid, CallBudget(EVENTS_AT_ONCE, SECONDS_PER_EVENT, clock)
            )
            if own.take() and memory.budget.take():
                about = About("Pod", pod.name, pod.uid, pod.namespace)
                self._writer.event(Event(EVENT_UNAVAILABLE, about, text, pod.node))
            else:
                self._tools.metrics.suppressed_events.inc()
            memory.done[pod.uid] = clock()
        return Outcome(requeue_after=min(waits, default=None))
