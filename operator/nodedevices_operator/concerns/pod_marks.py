"""Marking the pods of one node, and taking marks back, so that a kill between any two calls loses nothing.

The order is the promise: find the pod and its uid; write it into affectedPods; write the pod's condition; tell the
Event. Back: tell the Event, write the condition True, only then take the entry out. So an entry exists whenever a pod
may carry our condition because of a fault, and a restarted operator looks at exactly these pods once.

A pod is written only while it runs on the node that the NodeDevices is about: an agent's word, and an entry that names
a pod of another node, change nothing there. A pod that has ended keeps what it was told; its entry is dropped.

What is remembered here only saves reads: which pod a holder entry means, what a pod was last told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog
from nodedevices_api.conditions import HOLDERS_KNOWN
from nodedevices_api.sections import Faults

from nodedevices_operator.concerns.events import NodeEvents
from nodedevices_operator.desired import events, pods
from nodedevices_operator.desired.pods import Answer, Concern
from nodedevices_operator.kube.apply import Writer
from nodedevices_operator.kube.port import KubeError
from nodedevices_operator.metrics import Metrics
from nodedevices_operator.records.names import pod_path
from nodedevices_operator.records.objects import Affected, Holder, NodeDevicesRecord

ASK_AGAIN_SECONDS = 60.0  # about a holder entry whose pod is another one
STARTED_ANEW_SECONDS = 30.0  # between two looks at a container that has to be started anew
NOT_YET_SECONDS = 2.0  # until a starting pod says enough about itself

log = structlog.get_logger()

Key = tuple[Holder, str]
Telling = tuple[str, str, str, str]  # device, since, state, text


@dataclass(slots=True)
class Memory:
    """Of one node; rebuilt from the cluster when lost."""

    uids: dict[Key, str] = field(default_factory=dict)  # who a holder entry means
    not_ours: dict[Key, float] = field(default_factory=dict)  # until when not to ask again
    told: dict[str, Telling] = field(default_factory=dict)  # uid -> what it was told last
    untold: dict[str, Telling] = field(default_factory=dict)  # uid -> what it need not be told: it shows no condition
    ended: set[str] = field(default_factory=set)  # uids of pods that have ended
    started_anew: set[Key] = field(default_factory=set)  # holders whose container runs since after its fault


@dataclass(slots=True)
class Plan:
    """What to write for one node, and what was seen on the way. `entries` is affectedPods while marking."""

    record: NodeDevicesRecord
    faults: Faults
    memory: Memory
    marks: dict[str, Concern] = field(default_factory=dict)  # uid -> the worst concern
    events_only: dict[str, Concern] = field(default_factory=dict)
    leaving: tuple[Affected, ...] = ()
    entries: tuple[Affected, ...] = ()
    found: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # pods read in this look, by uid
    unsure: set[tuple[str, str]] = field(default_factory=set)  # pods of which nobody could tell yet who they are
    again: float | None = None  # seconds after which to look again
    problems: list[KubeError] = field(default_factory=list)


class PodMarks:
    """The pods of all nodes; one node at a time by the key queue."""

    def __init__(
        self, writer: Writer, metrics: Metrics, events: NodeEvents, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._writer = writer
        self._metrics = metrics
        self._events = events
        self._clock = clock
        self._nodes: dict[str, Memory] = {}

    def forget(self, node: str) -> None:
        self._nodes.pop(node, None)

    async def plan(self, record: NodeDevicesRecord, faults: Faults, left: tuple[Affected, ...]) -> Plan:
        """Find the pods; reads only. `left` are entries that affectedPods does not have yet."""
        memory = self._nodes.setdefault(record.name, Memory())
        plan = Plan(record, faults, memory)
        concerns = pods.concerns(record, healthy_too=faults.pod_condition == "Always")
        self._prune(memory, concerns)
        known = {entry.uid: entry for entry in (*left, *record.affected)}
        for concern in concerns:
            if concern.undecided:
                plan.unsure.add((concern.holder.namespace, concern.holder.pod))
                continue
            uid = await self._resolve(plan, concern)
            if uid is None or uid in memory.ended:
                continue
            if concern.ends_with_restart and await self._started_anew(plan, concern):
                concern = pods.without_own_health(concern)  # noqa: PLW2901
                if not concern.severity and faults.pod_condition != "Always":
                    continue
            if concern.application or faults.pod_condition == "Never":
                plan.events_only.setdefault(uid, concern)
            elif faults.pod_condition == "Always" or uid in known or await self._to_be_told(plan, uid, concern):
                plan.marks.setdefault(uid, concern)
        at_fault = {uid: concern for uid, concern in plan.marks.items() if concern.severity}
        staying = [it for it in known.values() if it.uid not in at_fault and (it.namespace, it.name) in plan.unsure]
        plan.leaving = tuple(it for it in known.values() if it.uid not in at_fault and it not in staying)
        plan.marks = {uid: it for uid, it in plan.marks.items() if it.severity or uid not in known}
        marked = [pods.affected(concern, uid) for uid, concern in at_fault.items()]
        plan.entries = pods.bounded([*plan.leaving, *staying, *marked])
        for entry in marked:
            if entry not in plan.entries:
                log.warning("pod not told, affectedPods is full", node=record.name, pod=entry.name)
                del plan.marks[entry.uid]
        return plan

    async def write(self, plan: Plan, seen: float | None) -> tuple[Affected, ...]:
        """Tell the pods, once `plan.entries` stands in affectedPods. Returns what affectedPods shall be afterwards.

        `seen` is when the operator first knew of the newest fault, by its clock.
        """
        gone: set[str] = set()
        for uid, concern in plan.marks.items():
            try:
                if not await self._mark(plan, uid, concern, seen):
                    gone.add(uid)
            except KubeError as error:
                self._failed(plan, uid, concern, error)
        for uid, concern in plan.events_only.items():
            try:
                await self._tell_fault(plan, uid, concern)
            except KubeError as error:
                plan.problems.append(error)
        for entry in plan.leaving:
            try:
                if await self._take_back(plan, entry):
                    gone.add(entry.uid)
                    plan.memory.told.pop(entry.uid, None)
            except KubeError as error:
                if error.gone:
                    gone.add(entry.uid)
                else:
                    plan.problems.append(error)
        return tuple(entry for entry in plan.entries if entry.uid not in gone)

    # --- finding -----------------------------------------------------------------------------------------------------
    async def _resolve(self, plan: Plan, concern: Concern) -> str | None:
        """The uid of the pod that the holder entry means; None: none that we may speak for (now)."""
        memory, holder = plan.memory, concern.holder
        key = (holder, concern.device)
        if key in memory.uids:
            return memory.uids[key]
        if memory.not_ours.get(key, 0.0) > self._clock():
            return None
        try:
            pod = await self._read(plan, holder.namespace, holder.pod)
        except KubeError as error:
            plan.problems.append(error)
            plan.unsure.add((holder.namespace, holder.pod))
            return None
        answer = Answer.NO if pod is None else pods.may_speak(pod, concern, plan.record.name)
        if answer is Answer.YES and pod is not None:
            memory.uids[key] = str(pod["metadata"]["uid"])
            return memory.uids[key]
        if answer is Answer.NO:
            memory.not_ours[key] = self._clock() + ASK_AGAIN_SECONDS
        else:
            plan.unsure.add((holder.namespace, holder.pod))
            plan.again = NOT_YET_SECONDS
        return None

    async def _started_anew(self, plan: Plan, concern: Concern) -> bool:
        """Nobody watches pods: such a one is looked at again now and then, until its container was started anew."""
        key = (concern.holder, concern.device)
        if key in plan.memory.started_anew:
            return True
        try:
            pod = await self._read(plan, concern.holder.namespace, concern.holder.pod)
        except KubeError as error:
            plan.problems.append(error)
            return False
        if pod is not None and pods.started_anew(pod, concern):
            plan.memory.started_anew.add(key)
            return True
        plan.again = plan.again or STARTED_ANEW_SECONDS
        return False

    async def _to_be_told(self, plan: Plan, uid: str, concern: Concern) -> bool:
        """Whether the pod is to be told, by podCondition OnFault: that nobody can tell is no news for a pod that shows
        no condition."""
        if not concern.unknown:
            return True
        telling = _telling(concern)
        if plan.memory.untold.get(uid) == telling:
            return False
        try:
            pod = await self._read(plan, concern.holder.namespace, concern.holder.pod)
        except KubeError as error:
            plan.problems.append(error)
            return False
        if pod is not None and pods.own_condition(pod) is not None:
            return True
        plan.memory.untold[uid] = telling
        return False

    async def _read(self, plan: Plan, namespace: str, name: str) -> Mapping[str, Any] | None:
        for pod in plan.found.values():
            if (pod["metadata"]["namespace"], pod["metadata"]["name"]) == (namespace, name):
                return pod
        try:
            pod = await self._writer.kube.get(pod_path(namespace, name))
        except KubeError as error:
            if error.status == 404:
                return None
            raise
        plan.found[str(pod["metadata"]["uid"])] = pod
        return pod

    @staticmethod
    def _prune(memory: Memory, concerns: list[Concern]) -> None:
        """Only what is still listed is remembered, so memory is bounded by the node's holders."""
        live = {(concern.holder, concern.device) for concern in concerns}
        memory.uids = {key: uid for key, uid in memory.uids.items() if key in live}
        memory.not_ours = {key: until for key, until in memory.not_ours.items() if key in live}
        uids = set(memory.uids.values())
        memory.told = {uid: told for uid, told in memory.told.items() if uid in uids}
        memory.untold = {uid: untold for uid, untold in memory.untold.items() if uid in uids}
        memory.ended &= uids
        memory.started_anew &= live

    # --- telling -----------------------------------------------------------------------------------------------------
    async def _mark(self, plan: Plan, uid: str, concern: Concern, seen: float | None) -> bool:
        """Tell the pod. False: it has ended, and is told nothing any more."""
        telling = _telling(concern)
        if plan.memory.told.get(uid) == telling:
            return True
        entry = pods.affected(concern, uid)
        pod = await self._read(plan, entry.namespace, entry.name)
        if pod is None or pod["metadata"]["uid"] != uid:
            raise KubeError(f"pod {entry.namespace}/{entry.name} of uid {uid} is gone", status=404)
        if pods.finished(pod) or not pods.on_node(pod, plan.record.name):
            plan.memory.ended.add(uid)
            return False
        shown = pods.own_condition(pod)
        condition = pods.pod_condition(concern, shown, self._writer.now())
        told_before = pods.says_the_same(shown, condition)
        if not told_before:
            await self._tell(plan, entry, condition)
            if seen is not None and concern.severity:
                self._metrics.marked.observe(max(0.0, self._clock() - seen))
        # A restarted operator tells the Event again, a 409; but not when the first one may have expired by now.
        if not (told_before and pods.long_ago((shown or {}).get("lastTransitionTime"), self._writer.now())):
            await self._tell_fault(plan, uid, concern)
        plan.memory.told[uid] = telling
        return True

    async def _tell(self, plan: Plan, entry: Affected, condition: Mapping[str, Any]) -> None:
        await self._writer.pod_condition(entry, condition)
        log.info(
            "pod told",
            node=plan.record.name,
            pod=f"{entry.namespace}/{entry.name}",
            device=entry.device,
            status=condition["status"],
            reason=condition["reason"],
        )

    async def _tell_fault(self, plan: Plan, uid: str, concern: Concern) -> None:
        if not plan.faults.event or not (concern.health.state == "Unhealthy" or concern.application):
            return
        about = events.About("Pod", concern.holder.pod, uid, concern.holder.namespace)
        what = events.Fault(plan.record.name, concern.device, concern.health.reason, concern.health.since)
        await self._event(plan, events.fault(about, what, pods.fault_text(concern), self._writer.now()))

    async def _take_back(self, plan: Plan, entry: Affected) -> bool:
        """Whether the entry has done its duty. A pod that has ended keeps what it was told: that is evidence."""
        record, never = plan.record, plan.faults.pod_condition == "Never"
        device, part = next(((d, p) for d in record.devices for p in d.parts if p.id == entry.device), (None, None))
        if entry.device == pods.NO_DEVICE:
            well = all(p.health.state == "Healthy" for d in record.devices for p in d.parts)
        else:
            well = part is None or part.health.state == "Healthy"
        known = record.condition(HOLDERS_KNOWN)
        if not well and not never and (known is None or known.status != "True"):
            return False  # it is still at fault, and nobody can say who holds it
        pod = await self._read(plan, entry.namespace, entry.name)
        if pod is None or pod["metadata"]["uid"] != entry.uid:
            return True
        if not pods.on_node(pod, record.name):
            log.warning(
                "affectedPods names a pod of another node", node=record.name, pod=f"{entry.namespace}/{entry.name}"
            )
            return True
        shown = pods.own_condition(pod)
        if shown is None or pods.finished(pod):
            return True
        if never:
            await self._writer.pod_condition(entry, pods.released_condition(pod, self._writer.now()))
            return True
        if not well and device is not None and device.unlisted:
            return False  # it may be one of the holders that are left out
        if entry.device == pods.NO_DEVICE:
            text = "what this pod holds is healthy"
        else:
            name = f"{device.name} {entry.device}" if device is not None else entry.device
            text = f"{name} is healthy" if well else f"{name} is no longer held by this pod"
        if shown.get("status") == "False" and plan.faults.event:
            about = events.About("Pod", entry.name, entry.uid, entry.namespace)
            what = events.Fault(record.name, entry.device, entry.reason, entry.since)
            message = f"{text} again; it was {entry.reason}" if well else text
            await self._event(plan, events.recovered(about, what, message, self._writer.now()))
        condition = pods.healthy_condition(text, shown, self._writer.now())
        if not pods.says_the_same(shown, condition):
            await self._tell(plan, entry, condition)
        return True

    async def _event(self, plan: Plan, body: Mapping[str, Any]) -> None:
        """An Event is a service: where it may not be written (a namespace that is ending), the condition stands."""
        try:
            await self._events.write(plan.record.name, body)
        except KubeError as error:
            if not (error.forbidden or error.status == 404):
                raise
            log.warning("event refused", error=str(error))

    @staticmethod
    def _failed(plan: Plan, uid: str, concern: Concern, error: KubeError) -> None:
        if error.gone:  # the name may belong to another pod by now: ask anew
            plan.memory.uids.pop((concern.holder, concern.device), None)
            plan.again = NOT_YET_SECONDS
        else:
            plan.problems.append(error)
        plan.memory.told.pop(uid, None)


def _telling(concern: Concern) -> Telling:
    return (concern.device, concern.health.since, concern.health.state, pods.fault_text(concern))
