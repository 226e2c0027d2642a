"""The conditions ProblemReported and MaintenanceScheduled of a NodeDevices: what others say on its Node (the list is in
records/neighbours.py). They are shown and nothing follows from them: no device is withheld, no pod evicted, no Node
tainted. Each is there only while it is True, so that a Node of which nobody says anything costs no write.
"""

from __future__ import annotations

from collections.abc import Iterable

from nodedevices_api import conditions as names
from nodedevices_common.text import some

from nodedevices_operator.desired.policy_status import ConditionVerdict
from nodedevices_operator.records.neighbours import ReportRecord, Says

NAMED = 5  # reports in a message


def problem_reported(reports: Iterable[ReportRecord]) -> ConditionVerdict | None:
    """Return the verdict of ProblemReported; its reason is the first monitor's. None: no monitor reports a problem."""
    found = [each for each in reports if each.says is Says.PROBLEM]
    return ("True", found[0].by, _listed(found)) if found else None


def maintenance_scheduled(reports: Iterable[ReportRecord]) -> ConditionVerdict | None:
    """Return the verdict of MaintenanceScheduled; None: none is announced."""
    found = [each for each in reports if each.says is not Says.PROBLEM]
    if not found:
        return None
    ongoing = any(each.says is Says.ONGOING for each in found)
    return "True", names.ONGOING if ongoing else names.SCHEDULED, _listed(found)


def _listed(reports: Iterable[ReportRecord]) -> str:
    return some((f"{each.by}: {each.text}" for each in reports), NAMED)
