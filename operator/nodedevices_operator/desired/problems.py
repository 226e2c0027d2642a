"""Conditions and actions of a NodeDevices that are not as they should be, for metrics.

Types and reasons are those of the contract; any other, which only a lying agent writes, is left out or is `Other`: what
becomes a label is a closed set. A reason with numbers is a label without them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nodedevices_api.conditions import (
    ACCEPTED,
    ACTIONS,
    ACTIONS_SYNCED,
    APPLIED,
    CONFLICTED,
    EXPECTED_DEVICES,
    MAINTENANCE_SCHEDULED,
    PROBLEM_REPORTED,
    REASONS,
    ROLLED_OUT,
    STALE,
    TOO_FEW,
    action_reason,
)
from nodedevices_common.conditions import ConditionRecord

from nodedevices_operator.records.objects import NodeDevicesRecord

OTHER = "Other"
TOO_FEW_LABEL = "TooFew"  # for Expected8Found7 and all others with numbers
_TOO_FEW = re.compile(TOO_FEW.format(expected="[0-9]+", found="[0-9]+"))
_GOOD = {
    kind: "False" if kind in {STALE, PROBLEM_REPORTED, MAINTENANCE_SCHEDULED} else "True"
    for kind in REASONS
    if kind not in {ACTIONS_SYNCED, ACCEPTED, APPLIED, CONFLICTED, ROLLED_OUT}
}  # the last four are a DevicePolicy's


def node_problems(record: NodeDevicesRecord) -> Iterator[tuple[str, str]]:
    """Type and reason of each condition that has another status than the good one, at most one of a type; and of
    ActionsSynced the reason of each action that is not in sync."""
    seen: set[str] = set()
    for condition in record.conditions:
        good = _GOOD.get(condition.type)
        if good is None or condition.status == good or condition.type in seen:
            continue
        seen.add(condition.type)
        yield condition.type, _label(condition)
    for action in record.actions:
        if not action.in_sync:
            known = action.reason in ACTIONS.get(action.name, ())
            yield ACTIONS_SYNCED, action_reason(action.name, action.reason) if known else OTHER


def _label(problem: ConditionRecord) -> str:
    if problem.type == EXPECTED_DEVICES and _TOO_FEW.fullmatch(problem.reason):
        return TOO_FEW_LABEL
    known = {reason for reasons in REASONS[problem.type].values() for reason in reasons} - {TOO_FEW}
    return problem.reason if problem.reason in known else OTHER
