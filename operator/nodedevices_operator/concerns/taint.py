"""The taint nodedevices.io/device-fault on the Node, where a policy says so; decided in desired/consequences.py.

What it newly takes from pods goes through the fleet gate: a taint where there was none, or NoExecute in the place of
NoSchedule. To take it back, or to name another reason, needs no grant. The list of taints is one value for server-side
apply, so our entry is changed by a JSON patch that holds for the very Node that was read; others' taints stay.

A stale NodeDevices puts no taint there and takes none away; a policy that taints no longer does. Where another writer
keeps changing our entry back (machine controllers set the whole list), we pause after a few repairs, and say so.
"""

from __future__ import annotations

import structlog
from msgspec import Struct, field
from nodedevices_api import conditions as names
from nodedevices_api.defaults import Resolved

from nodedevices_operator.concerns.budget import FIGHT_WINDOW_SECONDS, Repairs
from nodedevices_operator.concerns.port import Info, OnNode, Outcome, Shown, View, not_granted
from nodedevices_operator.desired.consequences import stronger, tainting, taints
from nodedevices_operator.desired.fleet import TAINT, Action
from nodedevices_operator.records.kinds import Kind
from nodedevices_operator.records.names import TAINT as KEY
from nodedevices_operator.records.objects import NodeRecord, TaintRecord

log = structlog.get_logger()


class TaintMemory(Struct):
    """Of one node; lost, one repair more is made."""

    written: tuple[TaintRecord, ...] | None = None  # our entries, as they were last written or found right
    repairs: Repairs = field(default_factory=Repairs)


class TaintConcern(OnNode[TaintMemory]):
    info = Info("taint", section="faults", action=names.ACTION_TAINT)

    def forget(self, node: str) -> None:
        super().forget(node)
        self._tools.gate.propose(node, TAINT, ())

    async def keep(self, view: View, node: NodeRecord, sections: Resolved) -> Outcome:
        section, gate = sections.faults, self._tools.gate
        configured = taints(section)
        if configured and (view.staleness is None or view.staleness.status == "True"):
            gate.propose(node.name, TAINT, ())
            return Outcome()
        wanted = tainting(view.record, section, node.taints, gate.acted_on(node.name))
        action = None
        if wanted is not None and stronger(wanted.taint, node.taints):
            action = Action(wanted.since, node.name, TAINT, wanted.taint.effect, wanted.reason)
        gate.propose(node.name, TAINT, () if action is None else (action,))
        if action is not None:
            answer = gate.answer(action)
            if answer is None or not answer.granted:
                return Outcome(not_granted(answer, gate.stopped()))
        taint = None if wanted is None else wanted.taint
        memory = self._nodes.setdefault(node.name, TaintMemory())
        listed = () if taint is None else (taint,)
        if node.taints != listed:
            if memory.written == listed and memory.repairs.contested(self._tools.clock()):
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
