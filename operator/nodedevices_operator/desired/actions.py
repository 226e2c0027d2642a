"""What the operator does on a node (NodeDevices.status.actions), and ActionsSynced, the condition that sums it up.

An action about which nothing was decided stays as the object shows it, with the generation that it was decided for:
also in a new process, and while a NodeDevices is stale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nodedevices_api import conditions as names
from nodedevices_common.conditions import MESSAGE_LIMIT
from nodedevices_common.text import clip

from nodedevices_operator.desired.policy_status import ConditionVerdict
from nodedevices_operator.records.objects import ActionRecord

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
