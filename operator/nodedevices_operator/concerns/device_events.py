"""Events on the NodeDevices about its devices, and on the pods that held a device when something came that changed no
state; desired/device_news.py says which, and whom.

Of the latter one for each container and kind of notice, however often it comes. Whose pod a holder means is found out
as for marks: the pod is read once, and an Event goes only to one that this NodeDevices may name. What is remembered
saves reads; the Event's name says who wrote it already. A notice of long before the operator's start was reported then.
"""

from __future__ import annotations

from msgspec import Struct, field
from nodedevices_api.conditions import EVENT_NOTICED

from nodedevices_operator.concerns.budget import CallBudget
from nodedevices_operator.concerns.port import (
    NOT_YET_SECONDS,
    READS_WAIT_SECONDS,
    Info,
    Outcome,
    Remembering,
    View,
)
from nodedevices_operator.desired import pods
from nodedevices_operator.desired.device_news import Reported, news, noticed
from nodedevices_operator.desired.events import About, Event
from nodedevices_operator.desired.pods import HolderMatch
from nodedevices_operator.kube.port import KubeError, find
from nodedevices_operator.records.names import pod_path
from nodedevices_operator.records.objects import HolderRecord


class DeviceEventsConcern(Remembering[Reported]):
    info = Info("device-events", section="faults", informs=True)

    def forget(self, node: str) -> None:
        super().forget(node)
        self._tools.events.forget(node)

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
READS_AT_ONCE, SECONDS_PER_READ = 128, 1.0  # of pods, for one node

NoticeKey = tuple[HolderRecord, str, str, str]


class NoticeMemory(Struct):
    """Of one node."""

    reads: CallBudget
    settled: set[NoticeKey] = field(default_factory=set)  # an Event was written, or none is to be


class NoticeEventsConcern(Remembering[NoticeMemory]):
    info = Info("notice-events", section="faults", informs=True)

    async def reconcile(self, view: View) -> Outcome:
        record = view.record
        if not view.reported or view.sections is None:  # without sections the scope is too narrow
            return Outcome()
        wanted = {it.key: it for it in noticed(record)}
        memory = self._nodes.get(record.name)
        if memory is None:
            memory = NoticeMemory(CallBudget(READS_AT_ONCE, SECONDS_PER_READ, self._tools.clock))
            memory.settled = {key for key, it in wanted.items() if pods.may_have_expired(it.notice.time, view.now)}
            self._nodes[record.name] = memory
        memory.settled &= wanted.keys()
        again: float | None = None
        problems: list[KubeError] = []
        for key in [key for key in wanted if key not in memory.settled]:
            holding = wanted[key].holding
            if not memory.reads.take():
                again = READS_WAIT_SECONDS
                break
            try:
                pod = await find(self._writer.kube, pod_path(holding.holder.namespace, holding.holder.pod))
            except KubeError as error:
                problems.append(error)
                continue
            match = pods.match_holder(pod, holding, view.scope)
            if match is HolderMatch.NOT_YET:
                again = NOT_YET_SECONDS
                continue
            if match is HolderMatch.YES and pod is not None:
                about = About.holder(holding.holder, str(pod["metadata"]["uid"]))
                event = Event(EVENT_NOTICED, about, wanted[key].text, record.name, holding.device, *key[2:])
                self._tools.events.write(event)
            memory.settled.add(key)
        return Outcome(requeue_after=again, problems=tuple(problems))
