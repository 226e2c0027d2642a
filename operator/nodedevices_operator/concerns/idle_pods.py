"""Pods that hold devices and do not use them: the condition nodedevices.io/DeviceIdle, and an Event for each such
period (section `idle`); desired/idle.py says what they say.

Which pods carry the condition is known from the pods themselves: those of the node are listed once by this process, as
soon as a policy asks for it or the NodeDevices shows that one did (its action idlePods, which is written before the
first pod), and once more when no policy asks for it any more. What an earlier NodeDevices of the node has
left on pods is looked for in the first reconciliation of a new one, as marks of faults are. Whose pod a holder means is
found out as for these. A pod that ends keeps its condition. While the NodeDevices is stale the condition is Unknown:
nobody must end a pod for what was so before its agent was lost. A period that was reported long before the operator's
start has had its Event then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import structlog
from msgspec import Struct, field
from nodedevices_api import conditions as names
from nodedevices_api.conditions import HOLDERS_KNOWN
from nodedevices_common.conditions import same

from nodedevices_operator.concerns.port import (
    NOT_YET_SECONDS,
    Concern,
    Info,
    Outcome,
    Shown,
    View,
    failed_to,
    pods_at_first,
)
from nodedevices_operator.desired import pods
from nodedevices_operator.desired.conditions import Staleness
from nodedevices_operator.desired.events import Event, ObjectRef
from nodedevices_operator.desired.idle import (
    IdleHolding,
    Pods,
    idle_condition,
    idle_pods,
    in_use_condition,
    marked,
)
from nodedevices_operator.desired.pods import HolderMatch
from nodedevices_operator.kube.port import KubeError, node_pods
from nodedevices_operator.records.names import pod_path

SOON_SECONDS = 0.1  # until the pods are marked, once the NodeDevices says that they are to be

log = structlog.get_logger()

Period = tuple[tuple[str, str], str, str, str]  # the pod, the device, the word, since
Settled = tuple[tuple[IdleHolding, ...], str]  # with why the node was stale; empty: it was not


class _Memory(Struct):
    """Of one node."""

    told: set[Period]  # of which there is an Event, or was long ago
    asked: bool  # a policy asked for it when this node was last looked at
    carrying: dict[str, ObjectRef] | None = None  # by uid, pods that may show more than InUse; None: not listed yet
    settled: dict[tuple[str, str], Settled] = field(default_factory=dict)  # what was told of a pod
    uids: dict[tuple[str, str], str | None] = field(default_factory=dict)  # None: the holder means another pod


class _Looking(Struct):
    asked: bool
    memory: _Memory
    wanted: Pods
    stale: Staleness | None  # None: the record is up to date
    found: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)  # pods whose condition may differ
    unsure: set[tuple[str, str]] = field(default_factory=set)
    requeue_after: float | None = None
    problems: list[KubeError] = field(default_factory=list)

    def settled(self, pod: tuple[str, str]) -> Settled:
        return self.wanted[pod], "" if self.stale is None else self.stale.reason


class IdlePodsConcern(Concern[_Memory]):
    info = Info("idle-pods", section="idle", action=names.ACTION_IDLE_PODS, informs=True)

    async def reconcile(self, view: View) -> Outcome:
        seen = await self._seen(view)
        return seen if isinstance(seen, Outcome) else await self._write(view, seen)

    async def _seen(self, view: View) -> _Looking | Outcome:
        """Find the pods; reads alone. An Outcome: there is nothing to decide."""
        sections, record = view.sections, view.record
        shown = record.action(names.ACTION_IDLE_PODS)
        try:
            left = marked(await pods_at_first(view, self._writer.kube))
        except KubeError as error:
            return Outcome(problems=(error,)) if error.forbidden else failed_to("list the node's pods", error)
        after = None if sections is None else sections.idle.after_seconds
        asked = after is not None
        if shown is None and (left or (view.reported and asked)):
            text = "the node's pods are being read"
            return Outcome(("False", names.PENDING, text), requeue_after=SOON_SECONDS)
        if not view.reported or sections is None:
            return Outcome()
        if shown is None:
            self.forget(record.name)
            return Outcome()
        wanted = idle_pods(record) if asked else {}
        periods = {_period(pod, holding) for pod, held in wanted.items() for holding in held}
        memory = self._nodes.get(record.name)
        if memory is None:
            # The agent said so `after` seconds later.
            old = {it for it in periods if pods.may_have_expired(it[3], view.now, after=after or 0)}
            memory = _Memory(old, asked)
            self._nodes[record.name] = memory
        if memory.asked and not asked:
            memory.carrying = None  # pods that show InUse are listed, too
        memory.asked = asked
        if memory.carrying is None:
            try:
                there = marked([pod async for pod in node_pods(self._writer.kube, record.name)])
                memory.carrying = {idle_pod.uid: idle_pod for idle_pod in there}
            except KubeError as error:
                return failed_to("list the node's pods", error)
            memory.settled = {}
        memory.settled = {pod: held for pod, held in memory.settled.items() if pod in wanted}
        memory.uids = {pod: uid for pod, uid in memory.uids.items() if pod in wanted}
        memory.told &= periods
        stale = view.staleness if view.staleness is not None and view.staleness.status == "True" else None
        seen = _Looking(asked, memory, wanted, stale)
        for pod, held in wanted.items():
            if memory.settled.get(pod) != seen.settled(pod):
                await self._find(seen, view, pod, held)
        if not record.is_true(HOLDERS_KNOWN):  # who holds what may be old: nothing is taken back
            seen.unsure.update((idle_pod.namespace, idle_pod.name) for idle_pod in (memory.carrying or {}).values())
        return seen

    async def _find(self, seen: _Looking, view: View, at: tuple[str, str], held: Sequence[IdleHolding]) -> None:
        seen.unsure.add(at)
        try:
            pod = await self._tools.pod(view, *at)
        except KubeError as error:
            seen.problems.append(error)
            return
        match = pods.match_holder(pod, held[0].holding, view.scope)
        if match is HolderMatch.NOT_YET:
            seen.requeue_after = seen.requeue_after or NOT_YET_SECONDS
            return
        seen.unsure.discard(at)
        if match is HolderMatch.YES and pod is not None and not pods.leaving(pod):
            seen.found[at] = pod
            seen.memory.uids[at] = str(pod["metadata"]["uid"])
        else:
            seen.memory.uids[at] = None
            seen.memory.settled[at] = seen.settled(at)

    async def _write(self, view: View, seen: _Looking) -> Outcome:
        memory, problems = seen.memory, seen.problems
        carrying = {} if memory.carrying is None else memory.carrying
        back = list(carrying.values())
        if seen.asked:  # else all of it goes, whatever is known
            keeping = {memory.uids.get(at) for at in seen.wanted}
            back = [it for it in back if it.uid not in keeping and (it.namespace, it.name) not in seen.unsure]
        told: list[Event] = []
        for at, pod in seen.found.items():
            who, idle, shown = ObjectRef.pod(pod), seen.wanted[at], pods.own_condition(pod, names.POD_DEVICE_IDLE)
            told += _news(view, seen, at, who)
            condition = idle_condition(idle, shown, view.now, stale=seen.stale)
            try:
                if condition is not None and not same(shown, condition):
                    await self._writer.pod_condition(who, condition)
                    carrying[who.uid] = who
                    log.info("idle pod marked", node=view.record.name, pod=f"{who.namespace}/{who.name}")
                memory.settled[at] = seen.settled(at)
            except KubeError as error:
                if error.gone:  # the name may belong to another pod by now
                    seen.requeue_after = seen.requeue_after or NOT_YET_SECONDS
                else:
                    problems.append(error)
        for event in told:
            self._tools.events.write(event)
        for who in back:
            try:
                await self._take_back(who, view.now, asked=seen.asked)
                carrying.pop(who.uid, None)
            except KubeError as error:
                if error.gone:
                    carrying.pop(who.uid, None)
                else:
                    problems.append(error)
        if not seen.asked:
            done = not carrying and not problems
            verdict = Shown.REMOVED if done else Shown.KEPT
            return Outcome(verdict, requeue_after=seen.requeue_after, problems=tuple(problems))
        if problems:
            outcome = failed_to("mark pods", problems[-1])
            return Outcome(outcome.verdict, requeue_after=seen.requeue_after, problems=tuple(problems))
        text = f"pods that hold devices and do not use them: {len(seen.wanted)}" if seen.wanted else ""
        return Outcome(("True", names.IN_SYNC, text), requeue_after=seen.requeue_after)

    async def _take_back(self, who: ObjectRef, now: str, *, asked: bool) -> None:
        """The condition becomes False, or goes where no policy asks for it any more."""
        pod = await self._writer.kube.get(pod_path(who.namespace, who.name))
        shown = pods.own_condition(pod, names.POD_DEVICE_IDLE)
        if pod["metadata"]["uid"] != who.uid or shown is None or pods.finished(pod) or pods.leaving(pod):
            return
        wanted = in_use_condition(shown, now) if asked else None
        if wanted is None or not same(shown, wanted):
            await self._writer.pod_condition(who, wanted)


def _period(pod: tuple[str, str], idle: IdleHolding) -> Period:
    return pod, idle.holding.device, idle.word, idle.since


def _news(view: View, seen: _Looking, at: tuple[str, str], who: ObjectRef) -> Iterator[Event]:
    """Yield the Events about what the pod does not use, each once for a period."""
    if seen.stale is not None:
        return
    for idle in seen.wanted[at]:
        period, device = _period(at, idle), idle.holding.device
        if period not in seen.memory.told:
            seen.memory.told.add(period)
            text = f"{idle.word}: {idle.text}"
            yield Event(names.EVENT_IDLE, who, text, view.record.name, device, idle.word, idle.since)
