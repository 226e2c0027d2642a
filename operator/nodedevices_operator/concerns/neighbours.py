"""The conditions ProblemReported and MaintenanceScheduled: what other monitors and the cloud say on the Node; decided
in desired/neighbours.py. No policy configures them, and nothing is written but the conditions of the NodeDevices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nodedevices_api import conditions as names

from nodedevices_operator.concerns.port import Info, Outcome, Shown, View
from nodedevices_operator.concerns.tools import Tools
from nodedevices_operator.desired.neighbours import maintenance_scheduled, problem_reported
from nodedevices_operator.desired.policy_status import ConditionVerdict
from nodedevices_operator.records.neighbours import ReportRecord

Reports = Sequence[ReportRecord]


class _ReportedConcern:
    info: Info
    _decide: Callable[[Reports], ConditionVerdict | None]

    def __init__(self, _tools: Tools) -> None:
        """Nothing is written here."""

    async def observe(self, view: View) -> Reports | Outcome:
        return Outcome() if view.node is None else view.node.reports

    def desired(self, _view: View, observed: Reports) -> ConditionVerdict | None:
        return type(self)._decide(observed)

    async def apply(self, _view: View, desired: ConditionVerdict | None) -> Outcome:
        return Outcome(Shown.REMOVED if desired is None else desired)

    def forget(self, node: str) -> None:
        """Nothing is remembered of a node."""


class ProblemReportedConcern(_ReportedConcern):
    info = Info("problem-reported", condition=names.PROBLEM_REPORTED, by_generation=False)
    _decide = staticmethod(problem_reported)


class MaintenanceConcern(_ReportedConcern):
    info = Info("maintenance", condition=names.MAINTENANCE_SCHEDULED, by_generation=False)
    _decide = staticmethod(maintenance_scheduled)
