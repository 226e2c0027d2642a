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

import structlog
from msgspec import Struct, field
from msgspec.structs import replace
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
Said = tuple[tuple[IdleHolding, ...], str]  # with why the node was stale; empty: it was not


class _Memory(Struct):
    """The memory about one node."""

    told: set[Period]  # of which there is an Event, or was long ago
    carrying: dict[str, ObjectRef]  # by uid, pods that may show more than InUse
    said: dict[tuple[str, str], tuple[str, Said]] = field(default_factory=dict)  # uid, and what the pod says; "": of a
    # holder that means another pod


class IdlePodsConcern(Concern[_Memory]):
    info = Info("idle-pods", section="idle", action=names.ACTION_IDLE_PODS, informs=True)

    async def reconcile(self, view: View) -> Outcome:
        sections, record = view.sections, view.record
        shown = record.action(names.ACTION_IDLE_PODS)
        try:
            left = marked(await pods_at_first(view, self._writer.kube))
        except KubeError as error:
            return Outcome(problems=(error,)) if error.forbidden else failed_to("list the node's pods", error)
        after = None if sections is None else sections.idle.after_seconds
        if shown is None and (left or (view.reported and after is not None)):
            return Outcome(("False", names.PENDING, "the node's pods are being read"), requeue_after=SOON_SECONDS)
        if not view.reported or sections is None or shown is None:
            return Outcome()
        wanted = {} if after is None else idle_pods(record)
        periods = {_period(pod, holding) for pod, held in wanted.items() for holding in held}
        memory = self._nodes.get(record.name)
        if (
            memory is None or after is None
        ):  # where no policy asks for it any more, pods that show InUse are listed, too
            try:
                there = marked([pod async for pod in node_pods(self._writer.kube, record.name)])
            except KubeError as error:
                return failed_to("list the node's pods", error)
            # The agent said so `after` seconds later.
            old = {it for it in periods if pods.may_have_expired(it[3], view.now, after=after or 0)}
            memory = self._nodes[record.name] = _Memory(old, {pod.uid: pod for pod in there})
        memory.said = {pod: said for pod, said in memory.said.items() if pod in wanted}
        memory.told &= periods
        return await self._keep(view, memory, wanted, asked=after is not None)

    async def _keep(self, view: View, memory: _Memory, wanted: Pods, *, asked: bool) -> Outcome:
        problems: list[KubeError] = []
        again: float | None = None
        unsure: set[tuple[str, str]] = set()
        events: list[Event] = []
        for at, held in wanted.items():
            try:
                told = await self._tell(view, memory, at, held)
            except KubeError as error:
                told = None
                problems += [] if error.gone else [error]  # the name may belong to another pod by now
            if told is None:
                again = NOT_YET_SECONDS
                unsure.add(at)
            else:
                events += told
        for event in events:
            self._tools.events.write(event)
        back = list(memory.carrying.values())
        if asked:  # else all of it goes, whatever is known
            keeping = {uid for uid, _ in memory.said.values()}
            known = view.record.is_true(HOLDERS_KNOWN)  # else who holds what may be old: nothing is taken back
            back = [it for it in back if known and it.uid not in keeping and (it.namespace, it.name) not in unsure]
        for who in back:
            try:
                await self._take_back(who, view.now, asked=asked)
                del memory.carrying[who.uid]
            except KubeError as error:
                if error.gone:
                    del memory.carrying[who.uid]
                else:
                    problems.append(error)
        if not asked:
            if memory.carrying or problems:
                return Outcome(problems=tuple(problems))
            self.forget(view.record.name)
            return Outcome(Shown.REMOVED)
        text = f"pods that hold devices and do not use them: {len(wanted)}" if wanted else ""
        outcome = failed_to("mark pods", problems[-1]) if problems else Outcome(("True", names.IN_SYNC, text))
        return replace(outcome, requeue_after=again, problems=tuple(problems))

    async def _tell(
        self, view: View, memory: _Memory, at: tuple[str, str], held: tuple[IdleHolding, ...]
    ) -> list[Event] | None:
        """Write on the pod what it does not use. Returns the Events to write then; None: it is not known yet who it
        is."""
        stale = view.staleness if view.staleness is not None and view.staleness.status == "True" else None
        said = held, "" if stale is None else stale.reason
        if memory.said.get(at, ("", None))[1] == said:
            return []
        pod = await self._tools.pod(view, *at)
        match = pods.match_holder(pod, held[0].holding, view.scope)
        if match is HolderMatch.NOT_YET:
            return None
        if match is HolderMatch.NO or pod is None or pods.leaving(pod):
            memory.said[at] = "", said
            return []
        who, shown = ObjectRef.pod(pod), pods.own_condition(pod, names.POD_DEVICE_IDLE)
        condition = idle_condition(held, shown, view.now, stale=stale)
        if condition is not None and not same(shown, condition):
            await self._writer.pod_condition(who, condition)
            memory.carrying[who.uid] = who
            log.info("idle pod marked", node=view.record.name, pod=f"{who.namespace}/{who.name}")
        memory.said[at] = who.uid, said
        news = [idle for idle in held if stale is None and _period(at, idle) not in memory.told]
        memory.told |= {_period(at, idle) for idle in news}
        return [
            Event(
                names.EVENT_IDLE,
                who,
                f"{idle.word}: {idle.text}",
                view.record.name,
                idle.holding.device,
                idle.word,
                idle.since,
            )
            for idle in news
        ]

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
