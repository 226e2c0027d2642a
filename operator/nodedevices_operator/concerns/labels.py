"""Our labels on a Node, and on its NodeDevices the Node's labels that people select by (`kubectl get nodedevices -l
pool=x`); decided in desired/labels.py.

Both are written by server-side apply without force. What another owner has set is left out beforehand; one that came in
between is a 409, and the next reconciliation knows it. Labels select nodes for policies, so a policy can undo its own
reason: writes to one node are few in a minute, and then we pause and say so.
"""

from __future__ import annotations

import structlog
from msgspec import Struct
from nodedevices_api import conditions as names
from nodedevices_api.defaults import Resolved

from nodedevices_operator.concerns.budget import FIGHT_WINDOW_SECONDS, CallBudget
from nodedevices_operator.concerns.port import Concern, Info, OnNode, Outcome, Shown, View
from nodedevices_operator.desired.labels import MOST_LABELS, plan_labels, plan_object_labels
from nodedevices_operator.records.kinds import Kind
from nodedevices_operator.records.objects import NodeRecord, shows

MOST_WRITES = 20  # in a minute: a take-over alone changes them several times within a second

log = structlog.get_logger()


class LabelsConcern(OnNode[CallBudget]):
    info = Info("labels", section="labels", action=names.ACTION_LABELS)

    async def keep(self, view: View, node: NodeRecord, sections: Resolved) -> Outcome:
        section = sections.labels
        plan = plan_labels(section, view.record, node, now=int(self._tools.wall()))
        outcome = Outcome(plan.verdict if section.feature_discovery or section.extra else Shown.REMOVED)
        if shows(node.labels, node.labels_owned, plan.values):
            return outcome
        budget = CallBudget(MOST_WRITES, FIGHT_WINDOW_SECONDS / MOST_WRITES)
        if not self._nodes.setdefault(node.name, budget).take(self._tools.clock()):
            text = (
                f"{MOST_WRITES} changes within a minute: another writer changes these labels, or the nodeSelector of a "
                "policy depends on labels that the policy sets"
            )
            return Outcome(("False", names.CONFLICT, text), requeue_after=FIGHT_WINDOW_SECONDS)
        view.wrote(Kind.NODE, await self._writer.labels(node, plan.values))
        log.info("labels set", node=node.name, labels=len(plan.values))
        return outcome


WRITES_AT_ONCE, SECONDS_PER_WRITE = 5, 30.0
NAMED = 5  # keys in a log line


class _Copied(Struct):
    """The memory about one node."""

    budget: CallBudget
    left_out: tuple[str, ...] = ()  # as logged last


class ObjectLabelsConcern(Concern[_Copied]):
    info = Info("object-labels")

    async def reconcile(self, view: View) -> Outcome:
        if view.node is None:
            return Outcome()
        record = view.record
        values, left_out = plan_object_labels(view.node.labels, record)
        memory = self._nodes.setdefault(record.name, _Copied(CallBudget(WRITES_AT_ONCE, SECONDS_PER_WRITE)))
        if left_out and left_out != memory.left_out:
            log.warning(
                "the Node has more labels than its NodeDevices takes; the last by key are left out",
                node=record.name,
                most=MOST_LABELS,
                left_out=len(left_out),
                keys=", ".join(left_out[:NAMED]),
            )
        memory.left_out = left_out
        if shows(record.labels, record.labels_owned, values):
            return Outcome()
        if not memory.budget.take(self._tools.clock()):
            return Outcome(requeue_after=SECONDS_PER_WRITE)
        view.wrote(Kind.NODE_DEVICES, await self._writer.labels(record, values))
        log.info("labels of the NodeDevices set", node=record.name, labels=len(values))
        return Outcome()
