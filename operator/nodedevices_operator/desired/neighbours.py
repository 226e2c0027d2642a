"""The conditions ProblemReported and MaintenanceScheduled of a NodeDevices: what others say on its Node (the list is in
records/neighbours.py). They are shown and nothing follows from them: no device is withheld, no pod evicted, no Node
tainted. Each is there only while it is True, so that a Node of which nobody says anything costs no write.

Maintenance whose time has come is Due until it is Ongoing. A cloud that neither begins it within a day nor takes its
label away has forgotten it, and so does the condition.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nodedevices_api import conditions as names
from nodedevices_common.text import some
from nodedevices_common.times import seconds_between

from nodedevices_operator.desired.policy_status import ConditionVerdict
from nodedevices_operator.records.neighbours import ReportRecord, Says

NAMED = 5  # reports in a message
FORGOTTEN_SECONDS = 24 * 3600.0  # after its time


def problem_reported(reports: Iterable[ReportRecord]) -> ConditionVerdict | None:
    """Return the verdict of ProblemReported; its reason is the first monitor's. None: no monitor reports a problem."""
    found = [report for report in reports if report.says is Says.PROBLEM]
    return ("True", found[0].by, _listed(found)) if found else None


def maintenance_scheduled(reports: Iterable[ReportRecord], now: str) -> ConditionVerdict | None:
    """Return the verdict of MaintenanceScheduled; None: none is announced."""
    found = [(report, _wait(report, now)) for report in reports if report.says is not Says.PROBLEM]
    found = [(report, wait) for report, wait in found if wait is None or wait > -FORGOTTEN_SECONDS]
    if not found:
        return None
    reason = names.SCHEDULED
    if any(report.says is Says.ONGOING for report, _ in found):
        reason = names.ONGOING
    elif any(wait is not None and wait <= 0 for _, wait in found):
        reason = names.DUE
    return "True", reason, _listed(report for report, _ in found)


def next_change(reports: Sequence[ReportRecord], now: str) -> float | None:
    """Return in how many seconds the verdict changes though the Node does not; None: never."""
    waits = [wait for report in reports if (wait := _wait(report, now)) is not None and wait > -FORGOTTEN_SECONDS]
    return min((wait if wait > 0 else wait + FORGOTTEN_SECONDS for wait in waits), default=None)


def _wait(report: ReportRecord, now: str) -> float | None:
    return seconds_between(now, report.at) if report.at else None


def _listed(reports: Iterable[ReportRecord]) -> str:
    return some((f"{report.by}: {report.text}" for report in reports), NAMED)
