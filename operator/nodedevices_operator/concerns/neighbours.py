"""The conditions ProblemReported and MaintenanceScheduled: what other monitors and the cloud say on the Node; decided
in desired/neighbours.py. No policy configures them, and nothing is written but the conditions of the NodeDevices.
"""

from __future__ import annotations

from collections.abc import Sequence

from nodedevices_api import conditions as names

from nodedevices_operator.concerns.port import Info, Outcome, Shown, View
from nodedevices_operator.concerns.tools import Tools
from nodedevices_operator.desired.neighbours import maintenance_scheduled, next_change, problem_reported
from nodedevices_operator.desired.policy_status import ConditionVerdict
from nodedevices_operator.records.neighbours import ReportRecord

Reports = Sequence[ReportRecord]
Decided = tuple[ConditionVerdict | None, float | None]  # with the seconds until it changes by itself


class _ReportedConcern:
    info: Info

    def __init__(self, _tools: Tools) -> None:
        """Nothing is written here."""

    async def observe(self, view: View) -> Reports | Outcome:
        return Outcome() if view.node is None else view.node.reports

    async def apply(self, _view: View, desired: Decided) -> Outcome:
        verdict, wait = desired
        return Outcome(Shown.REMOVED if verdict is None else verdict, requeue_after=wait)

    def forget(self, node: str) -> None:
        """Nothing is remembered of a node."""


class ProblemReportedConcern(_ReportedConcern):
    info = Info("problem-reported", condition=names.PROBLEM_REPORTED, by_generation=False)

    def desired(self, _view: View, observed: Reports) -> Decided:
        return problem_reported(observed), None


class MaintenanceConcern(_ReportedConcern):
    info = Info("maintenance", condition=names.MAINTENANCE_SCHEDULED, by_generation=False)

    def desired(self, view: View, observed: Reports) -> Decided:
        return maintenance_scheduled(observed, view.now), next_change(observed, view.now)
