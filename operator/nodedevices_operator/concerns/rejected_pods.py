"""Pods that the node's kubelet rejected: an Event that says why, and, where people want it, their deletion; both
decided in desired/rejected.py.

The Event is on each pod that requested devices of the node: how many there are, how many are free, and why the others
are not. Its name is made of the pod's uid, so that a pod has one, also from a restarted operator (409). A pod of long
ago gets none: what the status says now is not why. The agent is given a few seconds to report who holds what. A
controller that makes a pod after the other for a node without room must not cost the node its Events about faults, nor
other pods theirs: each controller has a budget, and what is beyond that is not written, since it says the same.

Deleted are those that were rejected for want of a device with enough free memory; off by default. Such a pod is
terminal and holds nothing, its controller has made another one, and it stays until Kubernetes' pod garbage collector,
which begins at 12,500 of them. It is deleted in the very state (uid and resourceVersion) in which it was found Failed,
and an Event on it says so. A restarted operator finds the same pod, the same Event (409), and deletes it; a pod that
has changed or gone is left. Deletions have one budget for the whole fleet, so that a controller which makes pods faster
than anybody can place them costs the API server little.
"""

from __future__ import annotations

import structlog
from msgspec import Struct, field

from nodedevices_operator.concerns.budget import CallBudget
from nodedevices_operator.concerns.port import Concern, Info, Outcome, Remembering, Tools, View
from nodedevices_operator.desired import rejected
from nodedevices_operator.desired.events import About, Event, EventIdentity, EventKind
from nodedevices_operator.desired.rejected import NEWS_SECONDS, SETTLE_SECONDS, age, rejection_text
from nodedevices_operator.kube.port import KubeError
from nodedevices_operator.records.pods import REASON, RejectedPod

BURST, SECONDS_PER_POD = 50, 0.2  # deletions, in the whole fleet
MAX_AT_ONCE = 10  # for one node, while others wait for the worker
AGAIN_SECONDS = 1.0

log = structlog.get_logger()


class RejectedPodsConcern(Concern):
    info = Info("rejected-pods")

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._pods = tools.rejected if tools.delete_rejected else None
        self._budget = CallBudget(BURST, SECONDS_PER_POD, tools.clock)
        self._waiting: set[str] = set()  # nodes that the budget did not suffice for

    def forget(self, node: str) -> None:
        self._waiting.discard(node)

    async def reconcile(self, view: View) -> Outcome:
        self._waiting.discard(view.record.name)
        found = self._pods.on_node(view.record.name) if self._pods is not None and view.reported else ()
        if not found:
            return Outcome()
        now, waits, left = self._tools.wall(), [], MAX_AT_ONCE
        resources = rejected.shares_by_memory(view.record)
        for pod in found:
            resource = rejected.named(pod.message, resources) if pod.owner else None
            if resource is None:
                continue
            wait = rejected.remaining(pod, now)
            if wait > 0:
                waits.append(wait)
            elif left and self._budget.take():
                left -= 1
                await self._delete(pod, resource)
            else:  # until those before it have had their turn
                waits.append(AGAIN_SECONDS + SECONDS_PER_POD * len(self._waiting))
                self._waiting.add(view.record.name)
                break
        return Outcome(requeue_after=min(waits, default=None))

    async def _delete(self, pod: RejectedPod, resource: str) -> None:
        """Raises KubeError for what may succeed later."""
        self._event(pod, resource)
        try:
            await self._writer.delete_rejected(pod)
        except KubeError as error:
            if not error.gone:
                raise
            log.info("rejected pod has changed or gone", node=pod.node, pod=pod.shown)
        else:
            self._tools.metrics.deleted_rejected_pods.inc()
            log.info("rejected pod deleted", node=pod.node, pod=pod.shown, owner=pod.owner, resource=resource)
        if self._pods is not None:
            self._pods.drop(pod)

    def _event(self, pod: RejectedPod, resource: str) -> None:
        about = About("Pod", pod.name, pod.uid, pod.namespace)
        what = EventIdentity(pod.node, resource, REASON, pod.since)
        text = (
            f"deleting the pod: node {pod.node} rejected it, so it never runs, and {pod.owner} replaces it. "
            f"The node's reason: {pod.message}"
        )
        self._tools.events.write(Event(EventKind.DELETING, about, what, text))


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
                self._writer.event(Event(EventKind.UNAVAILABLE, about, EventIdentity(pod.node), text))
            else:
                self._tools.metrics.suppressed_events.inc()
            memory.done[pod.uid] = clock()
        return Outcome(requeue_after=min(waits, default=None))
