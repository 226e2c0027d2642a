"""What the operator does on a node (NodeDevices.status.actions); ActionsSynced, the condition that sums it up; and
which conditions and actions are not as they should be, for metrics.

An action about which nothing was decided stays as the object shows it, with the generation that it was decided for:
also in a new process, and while a NodeDevices is stale.

Types and reasons of metrics are those of the contract; any other, which only a lying agent writes, is left out or is
`Other`: what becomes a label is a closed set. A reason with numbers is a label without them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from nodedevices_api import conditions as names
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
from nodedevices_common.conditions import MESSAGE_LIMIT, ConditionRecord
from nodedevices_common.text import clip

from nodedevices_operator.desired.conditions import ConditionVerdict
from nodedevices_operator.records.objects import ActionRecord, NodeDevicesRecord

_WORDS = {names.ACTION_IDLE_PODS: "idle pods"}  # for people, where they differ from the name


def next_actions(
    shown: Sequence[ActionRecord], verdicts: Mapping[str, ConditionVerdict | None], generation: int
) -> tuple[ActionRecord, ...]:
    """The actions as the object shall show them. `verdicts`: of those about which something was decided, for this
    generation; None: the action is no longer needed."""
    found = {it.name: it for it in shown if it.name in names.ACTIONS and it.name not in verdicts}
    for name, verdict in verdicts.items():
        if verdict is not None:
            _, reason, message = verdict
            found[name] = ActionRecord(name, reason, clip(message, MESSAGE_LIMIT), generation)
    return tuple(found[name] for name in names.ACTIONS if name in found)


def summed_up(actions: Sequence[ActionRecord]) -> tuple[ConditionVerdict, int | None] | None:
    """The verdict of ActionsSynced with the generation that all of it is about; None: there is no action."""
    if not actions:
        return None
    generation = min((it.generation for it in actions if it.generation is not None), default=None)
    wrong = [it for it in actions if not it.in_sync]
    if not wrong:
        said = "; ".join(f"{_words(it)}: {it.message}" for it in actions if it.message)
        return ("True", names.IN_SYNC, said), generation
    reason = names.action_reason(wrong[0].name, wrong[0].reason)
    return ("False", reason, "; ".join(f"{_words(it)} {it.reason}: {it.message}" for it in wrong)), generation


def _words(action: ActionRecord) -> str:
    return _WORDS.get(action.name, action.name)


# --- for metrics -----------------------------------------------------------------------------------------------------
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
