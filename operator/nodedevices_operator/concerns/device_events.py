"""Events on the NodeDevices about its devices, and on the pods that held a device when something came that changed no
state; desired/device_news.py says which, and whom.

Of the latter one for each container and kind of notice, however often it comes. Whose pod a holder means is found out
as for marks: the pod is read once, and an Event goes only to one that this NodeDevices may name. What is remembered
saves reads; the Event's name says who wrote it already. A notice of long before the operator's start was reported then.
"""

from __future__ import annotations

from msgspec import Struct, field

from nodedevices_operator.concerns.budget import CallBudget
from nodedevices_operator.concerns.port import Info, Outcome, View
from nodedevices_operator.concerns.tools import Tools
from nodedevices_operator.desired import events, pods
from nodedevices_operator.desired.device_news import Noticed, Reported, news, noticed
from nodedevices_operator.kube.port import KubeError
from nodedevices_operator.records.names import pod_path
from nodedevices_operator.records.objects import HolderRecord


class DeviceEventsConcern:
    info = Info("device-events", section="faults", informs=True)

    def __init__(self, tools: Tools) -> None:
        self._events = tools.events
        self._reported: dict[str, Reported] = {}  # by node

    def forget(self, node: str) -> None:
        self._reported.pop(node, None)
        self._events.forget(node)

    async def reconcile(self, view: View) -> Outcome:
        name, sections = view.record.name, view.sections
        if not view.reported or sections is None or not sections.faults.event:
            return Outcome()
        bodies, self._reported[name], over = news(view.record, self._reported.get(name), view.now)
        for body in bodies:
            self._events.write(name, body)
        waits = (wait for wait in (over, self._events.sum_up(view.record)) if wait is not None)
        return Outcome(requeue_after=min(waits, default=None))


NOT_YET_SECONDS = 2.0  # until a starting pod says enough about itself
READS_AT_ONCE, SECONDS_PER_READ = 128, 1.0  # of pods, for one node
READS_WAIT_SECONDS = 10.0

NoticeKey = tuple[HolderRecord, str, str, str]


class NoticeMemory(Struct):
    """Of one node."""

    reads: CallBudget
    settled: set[NoticeKey] = field(default_factory=set)  # an Event was written, or none is to be


class _Found(Struct):
    memory: NoticeMemory
    to_write: list[tuple[Noticed, str]] = field(default_factory=list)  # with the pod's uid
    requeue_after: float | None = None
    problems: list[KubeError] = field(default_factory=list)


class NoticeEventsConcern:
    info = Info("notice-events", section="faults", informs=True)

    def __init__(self, tools: Tools) -> None:
        self._kube = tools.writer.kube
        self._events = tools.events
        self._clock = tools.clock
        self._nodes: dict[str, NoticeMemory] = {}

    def forget(self, node: str) -> None:
        self._nodes.pop(node, None)

    async def reconcile(self, view: View) -> Outcome:
        sections, record = view.sections, view.record
        if not view.reported or sections is None or not sections.faults.event:
            return Outcome()
        wanted = list(noticed(record))
        memory = self._nodes.get(record.name)
        if memory is None:
            memory = self._nodes[record.name] = NoticeMemory(CallBudget(READS_AT_ONCE, SECONDS_PER_READ, self._clock))
            memory.settled = {each.key for each in wanted if pods.may_have_expired(each.notice.time, view.now)}
        memory.settled &= {each.key for each in wanted}
        found = _Found(memory)
        for each in wanted:
            if each.key not in memory.settled:
                await self._find(found, each, view.scope)
        for each, uid in found.to_write:
            about = events.About("Pod", each.holding.holder.pod, uid, each.holding.holder.namespace)
            what = events.EventIdentity(record.name, each.holding.device, each.notice.code, each.notice.since)
            self._events.write(record.name, events.noticed(about, what, each.text, view.now))
            memory.settled.add(each.key)
        return Outcome(requeue_after=found.requeue_after, problems=tuple(found.problems))

    async def _find(self, found: _Found, each: Noticed, scope: pods.Scope) -> None:
        holder = each.holding.holder
        if not found.memory.reads.take():
            found.requeue_after = READS_WAIT_SECONDS
            return
        try:
            pod = await self._kube.get(pod_path(holder.namespace, holder.pod))
        except KubeError as error:
            if error.status == 404:
                found.memory.settled.add(each.key)
            else:
                found.problems.append(error)
            return
        match pods.match_holder(pod, each.holding, scope):
            case pods.HolderMatch.YES:
                found.to_write.append((each, str(pod["metadata"]["uid"])))
            case pods.HolderMatch.NO:
                found.memory.settled.add(each.key)
            case pods.HolderMatch.NOT_YET:
                found.requeue_after = found.requeue_after or NOT_YET_SECONDS
