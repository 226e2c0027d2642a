"""The conditions ProblemReported and MaintenanceScheduled: what other monitors and the cloud say on the Node; decided
in desired/neighbours.py. No policy configures them, and nothing is written but the conditions of the NodeDevices.
"""

from __future__ import annotations

from nodedevices_api import conditions as names

from nodedevices_operator.concerns.port import Info, Outcome, Shown, View
from nodedevices_operator.concerns.tools import Tools
from nodedevices_operator.desired.neighbours import maintenance_scheduled, next_change, problem_reported


class _ReportedConcern:
    def __init__(self, _tools: Tools) -> None:
        """Nothing is written here."""

    def forget(self, node: str) -> None:
        """Nothing is remembered of a node."""


class ProblemReportedConcern(_ReportedConcern):
    info = Info("problem-reported", condition=names.PROBLEM_REPORTED, by_generation=False)

    async def reconcile(self, view: View) -> Outcome:
        return Outcome() if view.node is None else Outcome(problem_reported(view.node.reports) or Shown.REMOVED)


class MaintenanceConcern(_ReportedConcern):
    info = Info("maintenance", condition=names.MAINTENANCE_SCHEDULED, by_generation=False)

    async def reconcile(self, view: View) -> Outcome:
        if view.node is None:
            return Outcome()
        reports = view.node.reports
        verdict = maintenance_scheduled(reports, view.now) or Shown.REMOVED
        return Outcome(verdict, requeue_after=next_change(reports, view.now))
