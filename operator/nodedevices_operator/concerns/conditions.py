"""Concerns that say something by conditions alone; decided in desired/conditions.py.

Stale: before a heartbeat is called overdue the object is read: a watch may have stalled, or the API server may have
been away, and then silence says nothing about the agent.

ProblemReported and MaintenanceScheduled: what other monitors and the cloud say on the Node. No policy configures them.

The Node's nodedevices.io/Ready and nodedevices.io/DevicesHealthy, and XidCriticalError where a policy asks for it
(faults.xidNodeCondition). One apply carries the first two: what changes them changes them together. Google's device
plugin writes an XidCriticalError, too. What another wrote is never taken over: the API server refuses a value that
differs (409), and the policy says so.
"""

from __future__ import annotations

import structlog
from nodedevices_api import conditions as names
from nodedevices_api.conditions import NODE_DEVICES_HEALTHY, NODE_READY
from nodedevices_api.defaults import Resolved
from nodedevices_common.conditions import same

from nodedevices_operator.concerns.port import Concern, Info, OnNode, Outcome, Shown, View
from nodedevices_operator.desired.conditions import (
    OVERDUE_AFTER_SECONDS,
    Since,
    Staleness,
    judge,
    maintenance_scheduled,
    next_change,
    node_conditions,
    problem_reported,
    xid_condition,
)
from nodedevices_operator.desired.policy_status import Hindrance
from nodedevices_operator.kube.port import KubeError
from nodedevices_operator.records.kinds import Kind
from nodedevices_operator.records.names import NODE_DEVICES, named
from nodedevices_operator.records.objects import HeartbeatArrival, NodeRecord

AWAY_GRACE_SECONDS = 120.0  # for heartbeats to come after the API server's return


class StalenessConcern(Concern[Since]):
    info = Info("staleness", condition=names.STALE, by_generation=False)

    async def reconcile(self, view: View) -> Outcome:
        name, shown = view.record.name, view.record.condition(names.STALE)
        problems: tuple[KubeError, ...] = ()
        found, since = self._judge(view)
        if found.reason == names.HEARTBEAT_OVERDUE and (shown is None or shown.reason != names.HEARTBEAT_OVERDUE):
            try:
                view.wrote(Kind.NODE_DEVICES, await self._writer.kube.get(named(NODE_DEVICES, name)))
            except KubeError as error:
                view.cache.not_heard(name, self._tools.clock() - OVERDUE_AFTER_SECONDS + AWAY_GRACE_SECONDS)
                problems = (error,)
            found, since = self._judge(view)
        view.staleness = found
        self._nodes[name] = since
        return Outcome((found.status, found.reason, found.message), requeue_after=found.wait, problems=problems)

    def _judge(self, view: View) -> tuple[Staleness, Since]:
        name, now = view.record.name, self._tools.clock()
        arrival = view.cache.heartbeats.get(name) or HeartbeatArrival(now)
        return judge(view.record, view.node, arrival=arrival, since=self._nodes.get(name, Since()), now=now)


class ProblemReportedConcern(Concern[None]):
    info = Info("problem-reported", condition=names.PROBLEM_REPORTED, by_generation=False)

    async def reconcile(self, view: View) -> Outcome:
        return Outcome() if view.node is None else Outcome(problem_reported(view.node.reports) or Shown.REMOVED)


class MaintenanceConcern(Concern[None]):
    info = Info("maintenance", condition=names.MAINTENANCE_SCHEDULED, by_generation=False)

    async def reconcile(self, view: View) -> Outcome:
        if view.node is None:
            return Outcome()
        reports = view.node.reports
        verdict = maintenance_scheduled(reports, view.now) or Shown.REMOVED
        return Outcome(verdict, requeue_after=next_change(reports, view.now))


log = structlog.get_logger()


class NodeConditionConcern(OnNode[None]):
    info = Info("node-condition", section="faults", informs=True)

    async def keep(self, view: View, node: NodeRecord, _sections: Resolved) -> Outcome:
        if view.staleness is None:
            return Outcome()
        wanted = node_conditions(view.record, view.staleness, node, now=view.now)
        by_type = {condition["type"]: condition for condition in wanted}
        shown = {NODE_READY: node.ready_condition, NODE_DEVICES_HEALTHY: node.condition}
        ours = by_type.keys() | node.conditions_owned  # what another wrote and we do not say cannot be taken back
        changed = [kind for kind, it in shown.items() if kind in ours and not same(it, by_type.get(kind))]
        if not changed:
            return Outcome()
        view.wrote(Kind.NODE, await self._writer.node_conditions(node, wanted))
        for kind in changed:
            it = by_type.get(kind, {"status": "removed", "reason": ""})
            log.info("node condition set", node=node.name, condition=kind, status=it["status"], reason=it["reason"])
        return Outcome()


class XidConditionConcern(OnNode[None]):
    info = Info("xid-condition", section="faults", informs=True)

    async def keep(self, view: View, node: NodeRecord, sections: Resolved) -> Outcome:
        wanted = xid_condition(view.record, node, now=view.now) if sections.faults.xid_node_condition else None
        if same(node.xid_condition, wanted) or (wanted is None and not node.xid_condition_owned):
            return Outcome()
        try:
            view.wrote(Kind.NODE, await self._writer.xid_condition(node, wanted))
        except KubeError as error:
            if error.status != 409:
                raise
            return Outcome(problems=(error,), hindrance=Hindrance(f"{names.CONFLICT}: {error}"))
        log.info("xid condition set", node=node.name, xids=wanted["reason"] if wanted is not None else "")
        return Outcome()
