"""The Node conditions nodedevices.io/Ready and nodedevices.io/DevicesHealthy, and XidCriticalError where a policy asks
for it (faults.xidNodeCondition); decided in desired/node_conditions.py.

One apply carries the first two: what changes them changes them together. Google's device plugin writes an
XidCriticalError, too. What another wrote is never taken over: the API server refuses a value that differs (409), and
the policy says so.
"""

from __future__ import annotations

import structlog
from nodedevices_api import conditions as names
from nodedevices_api.conditions import NODE_DEVICES_HEALTHY, NODE_READY
from nodedevices_common.conditions import same

from nodedevices_operator.concerns.port import Info, Outcome, View, hindered
from nodedevices_operator.concerns.tools import Tools
from nodedevices_operator.desired.node_conditions import node_conditions, xid_condition
from nodedevices_operator.desired.policy_status import Hindrance
from nodedevices_operator.kube.port import KubeError
from nodedevices_operator.records.kinds import Kind

log = structlog.get_logger()


class NodeConditionConcern:
    info = Info("node-condition", section="faults", informs=True)

    def __init__(self, tools: Tools) -> None:
        self._writer = tools.writer

    async def reconcile(self, view: View) -> Outcome:
        target = view.target()
        if target is None or view.staleness is None:
            return Outcome()
        node, faults = target[0], target[1].faults
        wanted = node_conditions(view.record, view.staleness, node, wanted=faults.node_condition, now=view.now)
        by_type = {condition["type"]: condition for condition in wanted}
        shown = {NODE_READY: node.ready_condition, NODE_DEVICES_HEALTHY: node.condition}
        ours = by_type.keys() | node.conditions_owned  # what another wrote and we do not say cannot be taken back
        changed = [kind for kind, it in shown.items() if kind in ours and not same(it, by_type.get(kind))]
        if not changed:
            return Outcome()
        try:
            view.wrote(Kind.NODE, await self._writer.node_conditions(node, wanted))
        except KubeError as error:
            return Outcome(problems=(error,), hindrance=hindered(error))
        for kind in changed:
            it = by_type.get(kind, {"status": "removed", "reason": ""})
            log.info("node condition set", node=node.name, condition=kind, status=it["status"], reason=it["reason"])
        return Outcome()

    def forget(self, node: str) -> None:
        """Nothing is remembered of a node."""


class XidConditionConcern:
    info = Info("xid-condition", section="faults", informs=True)

    def __init__(self, tools: Tools) -> None:
        self._writer = tools.writer

    async def reconcile(self, view: View) -> Outcome:
        target = view.target()
        if target is None:
            return Outcome()
        node, faults = target[0], target[1].faults
        wanted = xid_condition(view.record, node, now=view.now) if faults.xid_node_condition else None
        if same(node.xid_condition, wanted) or (wanted is None and not node.xid_condition_owned):
            return Outcome()
        try:
            view.wrote(Kind.NODE, await self._writer.xid_condition(node, wanted))
        except KubeError as error:
            conflict = Hindrance(f"{names.CONFLICT}: {error}") if error.status == 409 else None
            hindrance = conflict or hindered(error)
            return Outcome(problems=(error,), hindrance=hindrance)
        log.info("xid condition set", node=node.name, xids=wanted["reason"] if wanted is not None else "")
        return Outcome()

    def forget(self, node: str) -> None:
        """Nothing is remembered of a node."""
