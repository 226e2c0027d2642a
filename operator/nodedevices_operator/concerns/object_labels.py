"""The Node's labels that people select by, on its NodeDevices: `kubectl get nodedevices -l pool=x`.

`desired/object_labels.py` decides; this module writes, by server-side apply without force. What came in between is a
409, and the next reconciliation knows it. Who keeps changing a label of a Node costs few writes in a minute.
"""

from __future__ import annotations

import structlog

from nodedevices_operator.concerns.budget import CallBudget
from nodedevices_operator.concerns.port import Info, Outcome, View
from nodedevices_operator.concerns.tools import Tools
from nodedevices_operator.desired.object_labels import MOST_LABELS, plan_object_labels
from nodedevices_operator.records.kinds import Kind

WRITES_AT_ONCE, SECONDS_PER_WRITE = 5, 30.0
NAMED = 5  # keys in a log line

log = structlog.get_logger()


class ObjectLabelsConcern:
    info = Info("object-labels")

    def __init__(self, tools: Tools) -> None:
        self._writer = tools.writer
        self._clock = tools.clock
        self._budgets: dict[str, CallBudget] = {}  # of nodes that were written
        self._cut: dict[str, tuple[str, ...]] = {}  # as logged last

    def forget(self, node: str) -> None:
        self._budgets.pop(node, None)
        self._cut.pop(node, None)

    async def reconcile(self, view: View) -> Outcome:
        if view.node is None:
            return Outcome()
        record = view.record
        plan = plan_object_labels(view.node.labels, record)
        self._log_cut(record.name, plan.cut)
        if plan.matches(record):
            return Outcome()
        budget = self._budgets.get(record.name)
        if budget is None:
            budget = self._budgets[record.name] = CallBudget(WRITES_AT_ONCE, SECONDS_PER_WRITE, self._clock)
        if not budget.take():
            return Outcome(requeue_after=SECONDS_PER_WRITE)
        view.wrote(Kind.NODE_DEVICES, await self._writer.object_labels(record, plan.values))
        log.info("labels of the NodeDevices set", node=record.name, labels=len(plan.values))
        return Outcome()

    def _log_cut(self, node: str, cut: tuple[str, ...]) -> None:
        if cut == self._cut.get(node, ()):
            return
        if cut:
            self._cut[node] = cut
            log.warning(
                "the Node has more labels than its NodeDevices takes; the last by key are left out",
                node=node,
                most=MOST_LABELS,
                left_out=len(cut),
                keys=", ".join(cut[:NAMED]),
            )
        else:
            del self._cut[node]
