"""The Node condition XidCriticalError, where a policy asks for it (faults.xidNodeCondition); decided in
desired/xid_condition.py.

Google's device plugin writes a condition of that name, too. What another wrote is never taken over: the API server
refuses a value that differs (409), and the policy says so.
"""

from __future__ import annotations

import structlog
from nodedevices_api import conditions as names
from nodedevices_common.conditions import same

from nodedevices_operator.concerns.port import Info, Outcome, View, hindered
from nodedevices_operator.concerns.tools import Tools
from nodedevices_operator.desired.policy_status import Hindrance
from nodedevices_operator.desired.xid_condition import xid_condition
from nodedevices_operator.kube.port import KubeError
from nodedevices_operator.records.kinds import Kind

log = structlog.get_logger()


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
