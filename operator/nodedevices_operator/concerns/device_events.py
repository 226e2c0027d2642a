"""Events on the NodeDevices about its devices, and on the pods that held a device when something came that changed no
state; desired/device_news.py says which, and whom.

Of the latter one for each container and kind of notice, however often it comes. Whose pod a holder means is found out
as for marks: the pod is read once, and an Event goes only to one that this NodeDevices may name. What is remembered
saves reads; the Event's name says who wrote it already. A notice of long before the operator's start was reported then.

And on each pod that requested devices of the node and that its kubelet rejected: how many there are, how many are free,
and why the others are not. Its name is made of the pod's uid, so that a pod has one, also from a restarted operator
(409). A pod of long ago gets none: what the status says now is not why. The agent is given a few seconds to report who
holds what. A controller that makes a pod after the other for a node without room must not cost the node its Events
about faults, nor other pods theirs: each controller has a budget, and what is beyond that is not written, since it says
the same.
"""

from __future__ import annotations

from msgspec import Struct, field
from nodedevices_api.conditions import EVENT_NOTICED, EVENT_UNAVAILABLE

from nodedevices_operator.concerns.budget import CallBudget
from nodedevices_operator.concerns.port import (
    NOT_YET_SECONDS,
    Concern,
    Info,
    Outcome,
    View,
)
from nodedevices_operator.desired import pods
from nodedevices_operator.desired.device_news import (
    NEWS_SECONDS,
    SETTLE_SECONDS,
    Reported,
    age,
    news,
    noticed,
    rejection_text,
)
from nodedevices_operator.desired.events import Event, ObjectRef
from nodedevices_operator.desired.pods import HolderMatch
from nodedevices_operator.kube.port import KubeError
from nodedevices_operator.records.objects import HolderRecord


class DeviceEventsConcern(Concern[Reported]):
    info = Info("device-events", section="faults", informs=True)

    async def reconcile(self, view: View) -> Outcome:
        name, events = view.record.name, self._tools.events
        if not view.reported:
            return Outcome()
        found, self._nodes[name], over = news(view.record, self._nodes.get(name), view.now)
        for event in found:
            events.write(event)
        waits = (wait for wait in (over, events.sum_up(view.record)) if wait is not None)
        return Outcome(requeue_after=min(waits, default=None))


# --- notices ---------------------------------------------------------------------------------------------------------
class NoticeEventsConcern(Concern[set[tuple[HolderRecord, str, str, str]]]):
    """Remembered is of what an Event was written, or none is to be."""

    info = Info("notice-events", section="faults", informs=True)

    async def reconcile(self, view: View) -> Outcome:
        record = view.record
        if not view.reported or view.sections is None:  # without sections the scope is too narrow
            return Outcome()
        wanted = {it.key: it for it in noticed(record)}
        settled = self._nodes.get(record.name)
        if settled is None:
            settled = {key for key, it in wanted.items() if pods.may_have_expired(it.notice.time, view.now)}
        settled = self._nodes[record.name] = settled & wanted.keys()
        again: float | None = None
        problems: list[KubeError] = []
        for key in [key for key in wanted if key not in settled]:
            holding = wanted[key].holding
            try:
                pod = await self._tools.pod(view, holding.holder.namespace, holding.holder.pod)
            except KubeError as error:
                problems.append(error)
                continue
            match = pods.match_holder(pod, holding, view.scope)
            if match is HolderMatch.NOT_YET:
                again = NOT_YET_SECONDS
                continue
            if match is HolderMatch.YES and pod is not None:
                about = ObjectRef.holder(holding.holder, str(pod["metadata"]["uid"]))
                self._tools.events.write(
                    Event(EVENT_NOTICED, about, wanted[key].text, record.name, holding.device, *key[2:])
                )
            settled.add(key)
        return Outcome(requeue_after=again, problems=tuple(problems))


# --- rejected pods ---------------------------------------------------------------------------------------------------
EVENTS_AT_ONCE, SECONDS_PER_EVENT = 16, 30.0  # of one controller's pods on one node
OF_THE_NODE = 4 * EVENTS_AT_ONCE


class RejectionMemory(Struct):
    """The memory about one node."""

    budget: CallBudget
    of_controllers: dict[str, CallBudget] = field(default_factory=dict)
    done: dict[str, float] = field(default_factory=dict)  # uids of pods about which nothing more is written, since when


class RejectionEventsConcern(Concern[RejectionMemory]):
    info = Info("rejection-events", section="faults", informs=True)

    async def reconcile(self, view: View) -> Outcome:
        node, clock = view.record.name, self._tools.clock
        there = self._tools.rejected.on_node(node) if view.reported else ()
        if not there:
            return Outcome()
        memory = self._nodes.setdefault(node, RejectionMemory(CallBudget(OF_THE_NODE, SECONDS_PER_EVENT)))
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
            own = memory.of_controllers.setdefault(pod.owner or pod.uid, CallBudget(EVENTS_AT_ONCE, SECONDS_PER_EVENT))
            if own.take(clock()) and memory.budget.take(clock()):
                about = ObjectRef("Pod", pod.name, pod.uid, pod.namespace)
                self._writer.event(Event(EVENT_UNAVAILABLE, about, text, pod.node))
            else:
                self._tools.metrics.suppressed_events.inc()
            memory.done[pod.uid] = clock()
        return Outcome(requeue_after=min(waits, default=None))
