"""Marking the pods of one node, and taking marks back, so that a kill between any two calls loses nothing.

The order is the promise: find the pod and its uid; write it into affectedPods; write the pod's condition. Back: write
the condition True, only then remove the entry. So an entry exists whenever a pod may carry our condition because of a
fault, and a restarted operator reads exactly these pods once. No Event is waited for.

A pod is written only while it runs on the node that the NodeDevices is about: what an agent claims, and an entry that
names a pod of another node, change nothing there. A pod that has ended keeps its condition; its entry is dropped.

An agent that has not reported yet (a NodeDevices deleted by hand and created again) takes no mark back. What is
remembered only saves reads: which pod a holder entry means, what a pod's condition says. desired/pods.py decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog
from msgspec import Struct, field
from nodedevices_api import conditions as names
from nodedevices_api.sections import Faults
from nodedevices_common.conditions import same

from nodedevices_operator.concerns.port import (
    NOT_YET_SECONDS,
    Concern,
    Info,
    Outcome,
    View,
    hindered,
    pods_at_first,
    write_status,
)
from nodedevices_operator.desired import pods
from nodedevices_operator.desired.events import Event, ObjectRef
from nodedevices_operator.desired.pods import HolderMatch, Holding, Scope
from nodedevices_operator.kube.port import KubeError
from nodedevices_operator.records.objects import Affected, HolderRecord, NodeDevicesRecord

RECHECK_SECONDS = 60.0  # about a holder entry whose pod is another one
RESTART_SECONDS = 30.0  # between two reads of a pod whose container has to be restarted

log = structlog.get_logger()

HolderKey = tuple[HolderRecord, str]
Mark = tuple[str, str, str, str]  # device, since, state, text


class _Memory(Struct):
    """The memory about one node; rebuilt from the cluster when lost."""

    uids: dict[HolderKey, str] = field(default_factory=dict)  # which pod a holder entry means
    not_ours: dict[HolderKey, float] = field(default_factory=dict)  # until when not to read the pod again
    marked: dict[str, Mark] = field(default_factory=dict)  # uid -> what its condition says
    unmarked: dict[str, Mark] = field(default_factory=dict)  # uid -> what it need not say: the pod shows no condition
    ended: set[str] = field(default_factory=set)  # uids of pods that have ended
    restarted: set[HolderKey] = field(default_factory=set)  # holders whose container runs since after its fault


class _Marking(Struct):
    """Facts about one node's pods; filled by reads alone."""

    view: View
    record: NodeDevicesRecord
    scope: Scope
    faults: Faults
    memory: _Memory
    known: Mapping[str, Affected]  # by uid, the entries of affectedPods and those left behind by an earlier NodeDevices
    marks: dict[str, Holding] = field(default_factory=dict)  # uid -> the worst of what the pod holds
    events_only: dict[str, Holding] = field(default_factory=dict)
    unsure: set[tuple[str, str]] = field(default_factory=set)  # pods of which it is not known yet who they are
    requeue_after: float | None = None
    problems: list[KubeError] = field(default_factory=list)

    def other_fault(self, uid: str, holding: Holding) -> Affected | None:
        """Where the state of what is worst is not known: the fault of another device that the pod was marked for."""
        entry = self.known.get(uid)
        return entry if holding.unknown and entry is not None and entry.device != holding.device else None

    def fault_over(self, uid: str, holding: Holding) -> Affected | None:
        """The same, once that fault is over."""
        entry = self.other_fault(uid, holding)
        return entry if entry is not None and pods.fault_over(self.record, entry) else None


class PodMarksConcern(Concern[_Memory]):
    info = Info("pod-marks", section="faults", informs=True, first=True)

    async def reconcile(self, view: View) -> Outcome:
        sections, record = view.sections, view.record
        left: tuple[Affected, ...] = ()
        problems: list[KubeError] = []
        try:
            # Of an earlier NodeDevices of this node, which took its affectedPods with it.
            if left := pods.bounded(pods.left_behind(await pods_at_first(view, self._writer.kube))):
                log.info("marks of an earlier NodeDevices found", node=record.name, pods=len(left))
        except KubeError as error:
            if not error.forbidden:
                return Outcome(problems=(error,))  # nothing says yet that they were searched for
            problems.append(error)
        view.affected = pods.bounded((*record.affected, *left))
        if not view.reported or sections is None:
            return Outcome(problems=tuple(problems))
        known = {entry.uid: entry for entry in (*left, *record.affected)}
        holdings = pods.holdings(record, healthy_too=sections.faults.pod_condition == "Always")
        memory = self._nodes.get(record.name, _Memory())
        if holdings or known:  # most nodes are well, and there is nothing to remember of them
            self._nodes[record.name] = memory
        seen = _Marking(view, record, view.scope, sections.faults, memory, known, problems=problems)
        self._prune(memory, holdings)
        for holding in holdings:
            try:
                await self._sort_in(seen, holding)
            except KubeError as error:
                problems.append(error)
                seen.unsure.add((holding.holder.namespace, holding.holder.pod))
        view.restarted = frozenset(memory.restarted)
        return await self._keep(seen)

    async def _keep(self, seen: _Marking) -> Outcome:
        """Write affectedPods, then mark the pods, and take marks back."""
        view, memory = seen.view, seen.memory
        at_fault = {uid: holding for uid, holding in seen.marks.items() if holding.severity}
        others = [it for it in seen.known.values() if it.uid not in at_fault]
        staying = [it for it in others if (it.namespace, it.name) in seen.unsure]
        leaving = [it for it in others if it not in staying]
        # An entry names the fault that the mark is for, until the mark is written anew.
        marked = [seen.other_fault(uid, it) or pods.affected(it, uid) for uid, it in at_fault.items()]
        entries = pods.bounded([*leaving, *staying, *marked])
        left_out = {entry.uid: entry for entry in marked if entry not in entries}
        for entry in left_out.values():
            log.warning("pod not marked, affectedPods is full", node=view.record.name, pod=entry.name)
        try:
            await write_status(self._writer, view, entries)
        except KubeError as error:  # no pod is marked that affectedPods does not name
            view.affected = None
            return Outcome(problems=(*seen.problems, error))
        view.affected = entries  # whatever happens to the pods
        gone: set[str] = set()
        replaced: dict[str, Affected] = {}
        for uid, holding in seen.marks.items():
            if uid in left_out or not (holding.severity or uid not in seen.known):
                continue
            try:
                if not await self._mark(seen, uid, holding):
                    gone.add(uid)
                elif seen.fault_over(uid, holding) is not None:
                    replaced[uid] = pods.affected(holding, uid)
            except KubeError as error:
                memory.marked.pop(uid, None)
                if error.gone:  # the name may belong to another pod by now: read it again
                    memory.uids.pop((holding.holder, holding.device), None)
                    seen.requeue_after = NOT_YET_SECONDS
                else:
                    seen.problems.append(error)
        for uid, holding in seen.events_only.items():
            self._fault_event(seen, uid, holding)
        for entry in leaving:
            try:
                if await self._take_back(seen, entry):
                    gone.add(entry.uid)
                    memory.marked.pop(entry.uid, None)
            except KubeError as error:
                if error.gone:
                    gone.add(entry.uid)
                else:
                    seen.problems.append(error)
        view.affected = tuple(replaced.get(entry.uid, entry) for entry in entries if entry.uid not in gone)
        return Outcome(
            requeue_after=seen.requeue_after, problems=tuple(seen.problems), hindrance=hindered(*seen.problems)
        )

    # --- finding -----------------------------------------------------------------------------------------------------
    async def _sort_in(self, seen: _Marking, holding: Holding) -> None:
        """Find out whether the pod of this holder is to be marked, or only told by an Event."""
        condition = seen.faults.pod_condition
        if holding.undecided:
            seen.unsure.add((holding.holder.namespace, holding.holder.pod))
            return
        uid = await self._resolve(seen, holding)
        if uid is None or uid in seen.memory.ended:
            return
        if holding.ends_with_restart and await self._restarted(seen, holding):
            holding = pods.without_own_health(holding)
        if holding.application:
            seen.events_only.setdefault(uid, holding)
            holding = pods.without_own_health(holding)
        if holding.application or not (holding.severity or condition == "Always"):
            return
        if condition == "Never":
            seen.events_only.setdefault(uid, holding)
        elif condition == "Always" or uid in seen.known or await self._should_mark(seen, uid, holding):
            seen.marks.setdefault(uid, holding)

    async def _resolve(self, seen: _Marking, holding: Holding) -> str | None:
        """The uid of the pod that the holder entry means; None: none that this NodeDevices may name (now)."""
        memory, holder = seen.memory, holding.holder
        key = (holder, holding.device)
        if key in memory.uids:
            return memory.uids[key]
        if memory.not_ours.get(key, 0.0) > self._tools.clock():
            return None
        pod = await self._tools.pod(seen.view, holder.namespace, holder.pod)
        answer = pods.match_holder(pod, holding, seen.scope)
        if answer is HolderMatch.YES and pod is not None:
            memory.uids[key] = str(pod["metadata"]["uid"])
            return memory.uids[key]
        if answer is HolderMatch.NO:
            memory.not_ours[key] = self._tools.clock() + RECHECK_SECONDS
        else:
            seen.unsure.add((holder.namespace, holder.pod))
            seen.requeue_after = NOT_YET_SECONDS
        return None

    async def _restarted(self, seen: _Marking, holding: Holding) -> bool:
        """Pods are not watched: such a one is read again now and then, until its container has restarted."""
        key = (holding.holder, holding.device)
        if key in seen.memory.restarted:
            return True
        pod = await self._tools.pod(seen.view, holding.holder.namespace, holding.holder.pod)
        if pod is not None and pods.restarted(pod, holding):
            seen.memory.restarted.add(key)
            return True
        seen.requeue_after = seen.requeue_after or RESTART_SECONDS
        return False

    async def _should_mark(self, seen: _Marking, uid: str, holding: Holding) -> bool:
        """True when the pod is to be marked, by podCondition OnFault: that the state of its device is not known, is no
        news for a pod that shows no condition."""
        if not holding.unknown:
            return True
        mark = _mark_of(holding)
        if seen.memory.unmarked.get(uid) == mark:
            return False
        pod = await self._tools.pod(seen.view, holding.holder.namespace, holding.holder.pod)
        if pod is not None and pods.own_condition(pod) is not None:
            return True
        seen.memory.unmarked[uid] = mark
        return False

    @staticmethod
    def _prune(memory: _Memory, holdings: list[Holding]) -> None:
        """Only what is still listed is remembered, so memory is bounded by the node's holders."""
        live = {(holding.holder, holding.device) for holding in holdings}
        memory.uids = {key: uid for key, uid in memory.uids.items() if key in live}
        memory.not_ours = {key: until for key, until in memory.not_ours.items() if key in live}
        uids = set(memory.uids.values())
        memory.marked = {uid: mark for uid, mark in memory.marked.items() if uid in uids}
        memory.unmarked = {uid: mark for uid, mark in memory.unmarked.items() if uid in uids}
        memory.ended &= uids
        memory.restarted &= live

    # --- writing -----------------------------------------------------------------------------------------------------
    async def _mark(self, seen: _Marking, uid: str, holding: Holding) -> bool:
        """Write the pod's condition and Event. False: it has ended, and nothing is written to it any more."""
        mark, over = _mark_of(holding), seen.fault_over(uid, holding)
        if seen.memory.marked.get(uid) == mark and over is None:
            return True
        entry = pods.affected(holding, uid)
        pod = await self._tools.pod(seen.view, entry.namespace, entry.name)
        if pod is None or pod["metadata"]["uid"] != uid:
            raise KubeError(f"pod {entry.namespace}/{entry.name} of uid {uid} is gone", status=404)
        if pods.finished(pod) or not pods.on_node(pod, seen.record.name):
            seen.memory.ended.add(uid)
            return False
        shown = pods.own_condition(pod)
        condition = pods.pod_condition(holding, shown, self._writer.now(), fault_over=over is not None)
        if over is not None and shown is not None and shown.status == "False":
            self._recovered_event(seen, over, f"{over.device} is no longer at fault; was {over.reason}")
        shown_before = same(shown, condition)
        if not shown_before:
            await self._set_condition(seen, entry, condition)
            known_at = seen.view.cache.changed_at.get(seen.record.name)  # when the newest fault came to be known
            if known_at is not None and holding.severity:
                self._tools.metrics.marked.observe(max(0.0, self._tools.clock() - known_at))
        # A restarted operator writes the Event again, a 409; but not when the first one may have expired by now.
        if not (shown is not None and shown_before and pods.may_have_expired(shown.since, self._writer.now())):
            self._fault_event(seen, uid, holding)
        seen.memory.marked[uid] = mark
        return True

    async def _set_condition(self, seen: _Marking, entry: Affected, condition: Mapping[str, Any]) -> None:
        await self._writer.pod_condition(entry, condition)
        log.info(
            "pod condition set",
            node=seen.record.name,
            pod=f"{entry.namespace}/{entry.name}",
            device=entry.device,
            status=condition["status"],
            reason=condition["reason"],
        )

    def _fault_event(self, seen: _Marking, uid: str, holding: Holding) -> None:
        if not (holding.health.state == "Unhealthy" or holding.application):
            return
        kind = names.EVENT_NOTICED if holding.application else names.EVENT_FAULT
        self._tools.events.write(pods.event(kind, holding, uid, seen.record.name, pods.fault_text(holding)))

    async def _take_back(self, seen: _Marking, entry: Affected) -> bool:
        """Returns True when the entry can be removed. A pod that has ended keeps its condition: that is evidence."""
        record, never = seen.record, seen.faults.pod_condition == "Never"
        named = [(d, p) for d in record.devices for p in d.parts if entry.device in (p.id, pods.NO_DEVICE)]
        well = all(part.health.state == "Healthy" for _, part in named)
        if not (well or never or record.is_true(names.HOLDERS_KNOWN)):
            return False  # it is still at fault, and it is not known who holds it
        pod = await self._tools.pod(seen.view, entry.namespace, entry.name)
        if pod is None or pod["metadata"]["uid"] != entry.uid:
            return True
        if not pods.on_node(pod, record.name):
            log.warning(
                "affectedPods names a pod of another node", node=record.name, pod=f"{entry.namespace}/{entry.name}"
            )
            return True
        shown = pods.own_condition(pod)
        if shown is None or pods.finished(pod) or pods.leaving(pod):
            return True
        if never:
            await self._writer.pod_condition(entry, pods.released_condition(pod, self._writer.now()))
            return True
        if not well and any(device.unlisted for device, _ in named):
            return False  # it may be one of the holders that are left out
        text = "all devices of this pod are healthy"
        if entry.device != pods.NO_DEVICE:
            name = " ".join([*(device.name for device, _ in named), entry.device])
            text = f"{name} is healthy" if well else f"{name} is no longer held by this pod"
        if shown.status == "False":
            self._recovered_event(seen, entry, f"{text} again; was {entry.reason}" if well else text)
        condition = pods.condition("True", "Healthy", text, shown, self._writer.now())
        if not same(shown, condition):
            await self._set_condition(seen, entry, condition)
        return True

    def _recovered_event(self, seen: _Marking, entry: Affected, message: str) -> None:
        about = ObjectRef("Pod", entry.name, entry.uid, entry.namespace)
        fault = (seen.record.name, entry.device, entry.reason, entry.since)
        self._tools.events.write(Event(names.EVENT_RECOVERED, about, message, *fault))


def _mark_of(holding: Holding) -> Mark:
    return (holding.device, holding.health.since, holding.health.state, pods.fault_text(holding))
