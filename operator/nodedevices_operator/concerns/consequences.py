"""Consequences of a fault, where a policy says so: the taint nodedevices.io/device-fault on the Node, and the eviction
of the pods that hold the device; decided in desired/consequences.py. What takes something from pods is proposed to the
fleet gate, and done only once that has granted it.

The taint: a grant is needed for a taint where there was none, and for NoExecute in the place of NoSchedule, not to take
one back or to name another reason. The list of taints is one value for server-side apply, so our entry is changed by a
JSON patch that holds for the very Node that was read; others' taints stay. A stale NodeDevices puts no taint there and
takes none away; a policy that taints no longer does. Where another writer keeps changing our entry back (machine
controllers set the whole list), we pause after a few repairs, and say so.

Evictions: a pod is evicted when it is the holder (as for marks: of this node, by uid), its condition says so (where the
policy has one written), its grace is over, nothing keeps it, and the fleet gate has granted it. The order is the
promise: the pod's condition, the record of the action, the eviction with the pod's uid as a precondition. Killed in
between, a restarted operator finds the same pod and the same record. A pod that is being deleted is done, whichever
client deletes it, and one whose container has restarted is left where that is all that its fault required.

PodDisruptionBudgets are honoured: a refused eviction is shown on the pod and on the NodeDevices, and tried again with
back-off. What is remembered only saves calls: which pod a holder entry means, and when to try again. A stale
NodeDevices, or one whose agent cannot say which pods hold what, evicts no pod.

When a fault was first seen is noticed whether or not a policy evicts for it, because a grace counts from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import structlog
from msgspec import Struct, field
from nodedevices_api import conditions as names
from nodedevices_api.defaults import Resolved
from nodedevices_common.backoff import Backoff
from nodedevices_common.times import rfc3339

from nodedevices_operator.concerns.budget import FIGHT_WINDOW_SECONDS, CallBudget, repairs
from nodedevices_operator.concerns.port import (
    NOT_YET_SECONDS,
    Info,
    OnNode,
    Outcome,
    Shown,
    Tools,
    View,
    failure,
    not_granted,
)
from nodedevices_operator.desired import consequences, pods
from nodedevices_operator.desired.conditions import ConditionVerdict
from nodedevices_operator.desired.consequences import Due, HeldFault
from nodedevices_operator.desired.fleet import EVICT, HOUR, TAINT, Action
from nodedevices_operator.desired.pods import HolderMatch
from nodedevices_operator.kube.port import KubeError, find
from nodedevices_operator.records.kinds import Kind
from nodedevices_operator.records.names import TAINT as KEY, pod_path
from nodedevices_operator.records.objects import HolderRecord, NodeDevicesRecord, NodeRecord, TaintRecord

log = structlog.get_logger()


# --- the taint -------------------------------------------------------------------------------------------------------
class TaintMemory(Struct):
    """The memory about one node; if it is lost, one repair more is made."""

    written: tuple[TaintRecord, ...] | None = None  # our entries, as they were last written or found right
    repairs: CallBudget = field(default_factory=repairs)


class TaintConcern(OnNode[TaintMemory]):
    info = Info("taint", section="faults", action=names.ACTION_TAINT)

    def forget(self, node: str) -> None:
        super().forget(node)
        self._tools.gate.propose(node, TAINT, ())

    async def keep(self, view: View, node: NodeRecord, sections: Resolved) -> Outcome:
        section, gate = sections.faults, self._tools.gate
        configured = consequences.taints(section)
        if configured and (view.staleness is None or view.staleness.status == "True"):
            gate.propose(node.name, TAINT, ())
            return Outcome()
        wanted = consequences.tainting(view.record, section, node.taints, gate.acted_on(node.name))
        action = None if wanted is None else wanted.action(node.name, node.taints)
        gate.propose(node.name, TAINT, () if action is None else (action,))
        if action is not None:
            answer = gate.answer(action)
            if answer is None or not answer.granted:
                return Outcome(not_granted(answer, gate.stopped()))
        taint = None if wanted is None else wanted.taint
        memory = self._nodes.setdefault(node.name, TaintMemory())
        listed = () if taint is None else (taint,)
        if node.taints != listed:
            if memory.written == listed and not memory.repairs.take(self._tools.clock()):
                text = f"another writer keeps changing the taint {KEY} on the Node; find it in the Node's managedFields"
                return Outcome(("False", names.CONFLICT, text), requeue_after=FIGHT_WINDOW_SECONDS)
            view.wrote(Kind.NODE, await self._writer.taint(node, taint))
            log.info(
                "taint set",
                node=node.name,
                effect=taint.effect if taint else "none",
                reason=taint.value if taint else "",
            )
            if action is not None:
                self._tools.metrics.actions.labels(TAINT, "done").inc()
        memory.written = listed
        if not configured:
            return Outcome(Shown.REMOVED)
        text = "no fault requires a taint" if taint is None else f"tainted {taint.effect} for {taint.value}"
        return Outcome(("True", names.IN_SYNC, text))


# --- evictions -------------------------------------------------------------------------------------------------------
ASK_AGAIN_SECONDS = 60.0  # about a holder entry whose pod is another one, or a pod that is kept
BLOCKED = Backoff(initial_seconds=5.0, max_seconds=120.0, jitter=0.2)
MAX_LISTED = 5  # pods in the message
# Of the reason, what a person can help with first.
_ORDER = (
    names.FORBIDDEN,
    names.NOT_WRITTEN,
    names.STOPPED,
    names.REFUSED,
    names.BLOCKED,
    names.PENDING,
    names.IN_SYNC,
)

EvictionKey = tuple[HolderRecord, str, str]  # of a holder entry, its device, and since when that is at fault


class Subject(Struct):
    """A pod that a holder entry means; rebuilt from the cluster when lost. Times are by the monotonic clock."""

    uid: str = ""  # "": it is not the pod that is meant
    began: datetime = consequences.LONG_AGO  # its grace
    marked: bool = False  # its condition says that a device is at fault
    kept: str = ""  # why it is not evicted
    leaving: bool = False
    again: float = 0.0  # when to read or try it again
    tries: int = 0  # that were blocked
    blocked: str = ""


class EvictionTally(Struct):
    """Pods by what became of them, and when to go on."""

    lines: list[tuple[str, str]] = field(default_factory=list)  # reason, text
    waits: list[float] = field(default_factory=list)
    problems: list[Exception] = field(default_factory=list)

    def add(self, reason: str, text: str, again: float | None = None) -> None:
        self.lines.append((reason, text))
        self.waits += [] if again is None else [again]

    def verdict(self) -> ConditionVerdict:
        lines = sorted(self.lines, key=lambda it: (_ORDER.index(it[0]), it[1]))
        reason = lines[0][0] if lines else names.IN_SYNC
        texts = [text for _, text in lines[:MAX_LISTED]]
        more = len(lines) - len(texts)
        message = "; ".join([*texts, *([f"and {more} more"] if more else [])]) or "no pod needs to be evicted"
        return "True" if reason == names.IN_SYNC else "False", reason, message


class EvictionsConcern(OnNode[dict[EvictionKey, Subject]]):
    info = Info("evictions", section="faults", action=names.ACTION_EVICTIONS)

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        # By node, when each fault was first seen, by the wall clock; None: it was there when the node was.
        self._noticed: dict[str, dict[HeldFault, datetime | None]] = {}

    def forget(self, node: str) -> None:
        self._noticed.pop(node, None)
        self._evict_nobody(node)

    def _evict_nobody(self, node: str) -> None:
        super().forget(node)
        self._tools.gate.propose(node, EVICT, ())

    def _notice(self, record: NodeDevicesRecord) -> None:
        before, now = self._noticed.get(record.name), self._now()
        self._noticed[record.name] = {
            fault: None if before is None else before.get(fault, now) for fault in consequences.held_faults(record)
        }

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._tools.wall(), UTC)

    async def reconcile(self, view: View) -> Outcome:
        self._notice(view.record)
        return await super().reconcile(view)

    async def keep(self, view: View, node: NodeRecord, sections: Resolved) -> Outcome:
        if view.staleness is None:
            return Outcome()
        section = sections.faults
        if not consequences.evicts(section):
            self._evict_nobody(node.name)
            return Outcome(Shown.REMOVED)
        due = consequences.evictions(view.record, section, view.restarted)
        if due and (why := _unknown(view)):
            self._tools.gate.propose(node.name, EVICT, ())
            return Outcome(("False", names.PENDING, why))
        return await self._act(view, node, due)

    async def _act(self, view: View, node: NodeRecord, due: Sequence[Due]) -> Outcome:
        """Evict those that are ready, as far as that is granted."""
        now, stopped, tally = self._now(), self._tools.gate.stopped(), EvictionTally()
        before, subjects = self._nodes.get(node.name, {}), dict[EvictionKey, Subject]()
        self._nodes[node.name] = subjects
        ready: list[tuple[Due, Subject, Action]] = []
        for eviction in due:
            try:
                subject = await self._subject(eviction, before.get(_key(eviction)), view)
            except KubeError as error:
                tally.problems.append(error)
                continue
            if subject is None:
                tally.waits.append(NOT_YET_SECONDS)
                continue
            subjects[_key(eviction)] = subject
            pod, at = _shown(eviction), subject.began + eviction.grace
            if not subject.uid:
                tally.waits.append(ASK_AGAIN_SECONDS)
            elif subject.leaving:
                tally.add(names.IN_SYNC, f"{pod} is ending")
            elif consequences.on_offer(view.record, eviction.holding, node.taints):
                tally.add(names.IN_SYNC, f"{pod} is not evicted: {consequences.ON_OFFER}")
            elif subject.kept:
                tally.add(names.IN_SYNC, f"{pod} is not evicted: {subject.kept}", ASK_AGAIN_SECONDS)
            elif not subject.marked:  # or as soon as the mark is tried again
                text = f"{pod} is not marked yet, and is evicted only after that"
                tally.add(names.PENDING, text, ASK_AGAIN_SECONDS)
            elif at > now:
                reason, text = names.PENDING, f"{pod} is evicted after {rfc3339(at)}"
                if stopped:
                    reason, text = names.STOPPED, f"{pod}: {stopped}"
                tally.add(reason, text, (at - now).total_seconds())
            else:
                health = eviction.holding.health
                action = Action(health.since, node.name, EVICT, f"{pod}/{subject.uid}", health.reason)
                ready.append((eviction, subject, action))
        self._tools.gate.propose(node.name, EVICT, [action for _, _, action in ready])
        for eviction, subject, action in ready:
            answer = self._tools.gate.answer(action)
            if answer is not None and answer.granted:
                await self._evict(view, eviction, subject, tally)
            else:
                _, reason, text = not_granted(answer, stopped)
                tally.add(reason, f"{_shown(eviction)}: {text}")
        return Outcome(tally.verdict(), min(tally.waits, default=None), tuple(tally.problems))

    async def _subject(self, due: Due, known: Subject | None, view: View) -> Subject | None:
        """Return the pod that is meant. None: it does not say enough about itself so far."""
        if known is None:
            return await self._read_pod(due, view)
        unsettled = not known.uid or known.kept or not known.marked
        return await self._read_pod(due, view) if unsettled and known.again <= self._tools.clock() else known

    async def _read_pod(self, due: Due, view: View) -> Subject | None:
        """Read the pod. None: it does not say enough about itself so far."""
        holder = due.holding.holder
        not_ours = Subject(again=self._tools.clock() + ASK_AGAIN_SECONDS)
        pod = await find(self._writer.kube, pod_path(holder.namespace, holder.pod))
        answer = pods.match_holder(pod, due.holding, view.scope)
        if pod is None or answer is not HolderMatch.YES:
            return not_ours if answer is HolderMatch.NO else None
        noticed = self._noticed.get(view.record.name, {}).get(consequences.held_fault(due.holding))
        kept = consequences.kept(pod)
        given = consequences.given_after(due.holding, pod)
        if not kept and given is not None and (until := given + HOUR) > self._now():
            kept = f"it got the device after the fault was known, and is not evicted for it before {rfc3339(until)}"
        if due.holding.ends_with_restart and pods.restarted(pod, due.holding):
            kept = "its container has restarted since then, and nothing more is needed"
        shown, sections = pods.own_condition(pod), view.sections
        unwritten = sections is not None and sections.faults.pod_condition == "Never"
        marked = unwritten or (shown is not None and shown.status == "False")
        return Subject(
            uid=str(pod["metadata"]["uid"]),
            began=consequences.grace_begins(due, pod, noticed, self._now()),
            marked=marked,
            kept=kept,
            leaving=pods.leaving(pod),
            again=not_ours.again if marked else self._tools.clock(),
        )

    async def _evict(self, view: View, due: Due, subject: Subject, tally: EvictionTally) -> None:
        """Try the eviction once, where it is time for a try."""
        holder, shown = due.holding.holder, _shown(due)
        wait = subject.again - self._tools.clock() if subject.tries else 0.0
        if wait > 0:
            tally.add(names.BLOCKED, f"{shown}: {subject.blocked}", wait)
            return
        try:
            fresh = await self._read_pod(due, view)
            same = fresh is not None and fresh.uid == subject.uid and fresh.marked
            if fresh is None or not same or fresh.kept or fresh.leaving:
                self._nodes[view.record.name].pop(_key(due), None)  # found again, next time
                tally.add(names.PENDING, f"{shown} has changed", NOT_YET_SECONDS)
                return
            if not subject.tries:
                text = f"evicting the pod: {pods.fault_text(due.holding)}"
                event = pods.event(names.EVENT_EVICTION, due.holding, subject.uid, view.record.name, text)
                self._tools.events.write(event)
            await self._writer.evict(holder.namespace, holder.pod, subject.uid)
        except KubeError as error:
            self._refused(view, due, subject, error, tally)
            return
        subject.leaving, subject.blocked = True, ""
        self._tools.metrics.actions.labels(EVICT, "done").inc()
        health = due.holding.health
        fault = ", ".join(health.reasons or (health.reason,))
        log.info("pod evicted", node=view.record.name, pod=shown, fault=fault)
        tally.add(names.IN_SYNC, f"{shown} is ending")

    def _refused(self, view: View, due: Due, subject: Subject, error: KubeError, tally: EvictionTally) -> None:
        shown = _shown(due)
        if error.blocked:
            subject.tries, subject.blocked = subject.tries + 1, error.blocked
            wait = BLOCKED.after(subject.tries)
            subject.again = self._tools.clock() + wait
            tally.add(names.BLOCKED, f"{shown}: {error.blocked}", wait)
            self._tools.metrics.actions.labels(EVICT, "blocked").inc()
            if subject.tries == 1:
                text = (
                    f"{pods.fault_text(due.holding)} The eviction is blocked and will be tried again: {error.blocked}"
                )
                event = pods.event(names.EVENT_BLOCKED, due.holding, subject.uid, view.record.name, text)
                self._tools.events.write(event)
        elif error.gone:
            self._nodes[view.record.name].pop(_key(due), None)
            tally.add(names.PENDING, f"{shown} is gone, or another pod has its name", NOT_YET_SECONDS)
        else:
            tally.problems.append(error)
            tally.add(failure(error), f"could not evict {shown}: {error}")


def _key(due: Due) -> EvictionKey:
    return due.holding.holder, due.holding.device, due.holding.health.since


def _shown(due: Due) -> str:
    return f"{due.holding.holder.namespace}/{due.holding.holder.pod}"


def _unknown(view: View) -> str:
    """Return why it is not known which pods hold what; empty: the agent says it."""
    if view.staleness is not None and view.staleness.status == "True":
        return f"no pod is evicted while the NodeDevices is stale: {view.staleness.message}"
    if not view.record.is_true(names.HOLDERS_KNOWN):
        return "no pod is evicted while the agent does not know which pods hold devices"
    return ""
