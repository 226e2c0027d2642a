"""The status of a DevicePolicy: Accepted, Applied, Conflicted, and counts of nodes.

Counted are nodes that have a NodeDevices: a policy is about devices, and a node without any would never apply it.

An agent takes a configuration as a whole or not at all, but for a file of the node that is wrong while its last good
content holds: that is said on the node, and the policies are in effect. Where it refuses one, the policy that
supplies the section at fault there has failed; one that supplies others waits for it, and one that supplies nothing
there has no part in it. What the operator itself puts in effect (capacity, labels, marks) is judged in the same way
by what it could write. An entry that matches nothing is no failure, since one policy serves many nodes, and is
reported with the count of nodes; an excluded id, or one of a list of devices, only where no node has it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from msgspec import Struct, field
from nodedevices_api import conditions as names
from nodedevices_common.conditions import MESSAGE_LIMIT, build, same
from nodedevices_common.observing import without_effect
from nodedevices_common.text import clip, place_of, some

from nodedevices_operator.desired.conditions import ConditionVerdict
from nodedevices_operator.desired.configuration import Configuration, DryRun, PolicyOutcome
from nodedevices_operator.desired.dry_run import SECTIONS, DryRunEffect, dry_run_effect
from nodedevices_operator.desired.fleet import Action, ActionAnswer
from nodedevices_operator.desired.rollout import REFUSED, RolloutState
from nodedevices_operator.records.objects import NodeDevicesRecord, Note, PolicyRecord, TaintRecord
from nodedevices_operator.records.shared import shared

MAX_NAMES = 5  # in a message
MAX_NOTES = 3  # entries that match nothing, in a message
COUNT_IDS = " (kubectl nodedevices policy dry-run counts ids)"
MAX_FAILURES = 3  # different ones, in a message
REASON_LIMIT = 300  # characters of one node's reason, in a policy's message
PASSING = (names.PENDING, names.NOT_WRITTEN)  # reasons that end by themselves
_HELD_BACK = {
    names.ACTION_TAINT: (names.PENDING, names.REFUSED, names.STOPPED),
    names.ACTION_EVICTIONS: (names.PENDING, names.REFUSED, names.STOPPED, names.BLOCKED),
}
# Of the nodes where a policy reacts to faults, and of its actions there: what the fleet gate would answer.
WouldAnswer = Callable[[frozenset[str], Sequence[Action]], Mapping[Action, ActionAnswer]]
TURN = "it waits for its turn in the roll-out"
SILENT = "its agent has not applied it yet"

_ONE_OF_A_LIST = re.compile(r"\.devices\[[0-9]+\] ")  # of sharing.resources: another node may have it


class Hindrance(Struct, frozen=True):
    """Why the operator could not put a section in effect on a node."""

    message: str
    passing: bool = False  # it ends by itself: pods end, the API server is back


class NodeOutcome(Struct, frozen=True):
    """The state of one node with regard to the policies that select it."""

    selected: frozenset[str] = frozenset()  # policies, refused ones included
    outcomes: Mapping[str, PolicyOutcome] | None = None
    active: bool = False  # the agent says that the node's whole configuration is in effect
    failure: str = ""  # why it cannot be: the agent's message
    refused_section: str = ""  # the section at fault then; empty: no policy's, or not known
    misfit: str = ""  # why it cannot be: the policies do not fit together
    waiting: str = ""  # why it is not yet
    held: frozenset[str] = frozenset()  # policies whose change waits for its turn there
    unmatched: tuple[Note, ...] = ()  # what of it matches nothing there, or has no effect
    dry_runs: Mapping[str, tuple[DryRun, DryRunEffect]] = field(default_factory=dict)  # of DryRun policies
    hindered: Mapping[str, Hindrance] = field(
        default_factory=dict
    )  # sections that the operator could not put in effect

    @property
    def concerned(self) -> frozenset[str]:
        """Policies whose counts this node is part of."""
        return self.selected | frozenset(self.outcomes or ())

    def failed(self, mine: PolicyOutcome) -> str:
        """Why the policy with this outcome has failed here; empty: it has not.

        Where the agent names no section, as of a missing file, every policy that supplies a section has failed.
        """
        if not mine.supplies:
            return ""
        if mine.failed:
            return self.misfit or "it cannot be combined with the other policies there"
        if self.failure and (not self.refused_section or self.refused_section in mine.supplies):
            return self.failure
        return self._hindered(mine, passing=False)

    def delayed(self, mine: PolicyOutcome) -> str:
        """Why the policy with this outcome is not in effect here yet, where nothing has failed; empty: it is."""
        if not self.active:
            return self.waiting or SILENT
        return self._hindered(mine, passing=True)

    def _hindered(self, mine: PolicyOutcome, *, passing: bool) -> str:
        if not self.hindered:
            return ""
        found = [(section, self.hindered[section]) for section in mine.supplies if section in self.hindered]
        return "; ".join(f"{section}: {it.message}" for section, it in found if it.passing == passing)


class Contribution(Struct, frozen=True):
    """Numbers that one node adds to the counts of one policy that it is one of the nodes of."""

    mine: PolicyOutcome | None = None
    dry_run: tuple[DryRun, DryRunEffect] | None = None
    failure: str = ""  # why the policy has failed there
    waiting: str = ""  # why it is not in effect there yet
    notes: tuple[Note, ...] = ()  # what of it matches nothing there, or has no effect


class Tally(Struct, frozen=True, kw_only=True):
    selected: int
    applied: int
    overridden: int
    failed: int
    silent: int  # nodes where stronger policies supply everything
    outdated: int  # nodes where an earlier generation is in effect
    older: frozenset[str]  # policies that won a conflict
    failing: tuple[tuple[str, str], ...]  # nodes by name, each with why
    waiting: tuple[tuple[str, str], ...]  # the same of nodes that have not failed; those that only are silent last
    unmatched: tuple[tuple[str, int], ...]  # notes on entries that match nothing, and on how many nodes
    would_supply: int  # nodes, of a DryRun policy
    would: tuple[tuple[str, str], ...]  # nodes by name that it would change, each with what


def node_outcome(
    labels: Mapping[str, str],
    policies: Mapping[str, PolicyRecord],
    configuration: Configuration,
    record: NodeDevicesRecord,
    hindered: Mapping[str, Hindrance] | None = None,
    *,
    taints: Sequence[TaintRecord] = (),
    kubelet: str = "",
) -> NodeOutcome:
    """Return what the node's resolved configuration, the agent's answer and our own writes mean for its policies."""
    applied = record.condition(names.CONFIG_APPLIED)
    invalid = applied is not None and applied.status == "False" and applied.reason in REFUSED
    echoed = record.applied_hash == configuration.config_hash == record.config_hash
    beside = invalid and echoed and record.configuration.files_alone  # a file of the node, and no policy's matter
    active = echoed and (applied is None or applied.status == "True" or beside)
    stale = record.condition(names.STALE)
    if stale is not None and stale.status == "True":
        waiting = stale.message
    else:
        waiting = applied.message if applied is not None and applied.status != "True" else ""
    return NodeOutcome(
        selected=shared(name for name, policy in policies.items() if policy.selects(labels)),
        outcomes=configuration.outcomes,
        held=configuration.held,
        active=active,
        failure=applied.message if invalid and not beside and applied is not None else "",
        misfit=configuration.message if any(outcome.failed for outcome in configuration.outcomes.values()) else "",
        waiting="" if active else waiting,
        refused_section=record.configuration.refused_section,
        unmatched=_notes(configuration, record) if active else (),
        hindered=dict(hindered or {}),
        dry_runs={
            name: (it, dry_run_effect(it, record, taints, kubelet)) for name, it in configuration.dry_runs.items()
        },
    )


def hindrances(
    record: NodeDevicesRecord, verdicts: Mapping[str, ConditionVerdict | None], sections: Mapping[str, str]
) -> dict[str, Hindrance]:
    """Sections that are not in effect by the actions with which the operator reports its own writes: those that it has
    just found, else those of the object. `sections` are the actions' sections.

    An action that waits for its grace, or that a budget, the breaker or a PodDisruptionBudget holds back, is what the
    policy sets.
    """
    found = {}
    for name, section in sections.items():
        shown = record.action(name)
        verdict = verdicts.get(name, None if shown is None else ("", shown.reason, shown.message))
        if verdict is not None and verdict[1] not in {names.IN_SYNC, *_HELD_BACK.get(name, ())}:
            found[section] = Hindrance(f"{verdict[1]}: {verdict[2]}", passing=verdict[1] in PASSING)
    return found


def _notes(configuration: Configuration, record: NodeDevicesRecord) -> tuple[Note, ...]:
    found = tuple(
        replace(it, text=f"{place_of(it.section, it.entry)}: {it.text}") for it in record.configuration.unmatched
    )
    if record.observes:
        found += tuple(Note(section, "", text) for section, text in without_effect(configuration.config))
    for name in _HELD_BACK:
        shown = record.action(name)
        if shown is not None and shown.reason == names.REFUSED:
            found += (Note("faults", name, f"faults: {name}: {names.REFUSED}: {shown.message}"),)
    return found


def contribution(policy: str, outcome: NodeOutcome) -> Contribution | None:
    """Return what the node adds to the policy's counts; None: nothing, it is none of the policy's nodes."""
    mine, dry_run = (outcome.outcomes or {}).get(policy), outcome.dry_runs.get(policy)
    if mine is None:
        return Contribution(dry_run=dry_run) if policy in outcome.selected else None
    failure, waiting = outcome.failed(mine), ""
    if mine.supplies and not failure:
        waiting = TURN if policy in outcome.held else outcome.delayed(mine)
    notes = () if failure or waiting else outcome.unmatched
    return Contribution(mine, dry_run, failure, waiting, tuple(note for note in notes if note.section in mine.supplies))


def effect_lines(
    effects: Mapping[str, DryRunEffect], reacting: frozenset[str], would_answer: WouldAnswer
) -> tuple[tuple[str, str], ...]:
    """Return what would change, by node: the fleet answers for the actions of all of them together."""
    actions = [action for each in effects.values() for action in each.actions]
    answers = would_answer(reacting, actions) if actions else {}
    texts = {node: each.text(answers) for node, each in effects.items()}
    return tuple(sorted((node, text) for node, text in texts.items() if text))


def counted(notes: Mapping[Note, int], *, applied: int) -> tuple[tuple[str, int], ...]:
    """By entry, most frequent first; what a node has instead differs by node, and one is shown for all of them. An
    excluded id, or a device of a list, that one of the nodes has is right: a policy for many nodes names those of each
    of them."""
    by_entry: dict[tuple[str, str], tuple[str, int]] = {}
    for note, number in notes.items():
        text, so_far = by_entry.get((note.section, note.entry), (note.text, 0))
        by_entry[note.section, note.entry] = min(text, note.text), so_far + number
    shown = [
        (text, number)
        for (_, entry), (text, number) in by_entry.items()
        if number == applied or not (entry.startswith("exclude[") or _ONE_OF_A_LIST.search(entry))
    ]
    return tuple(sorted(shown, key=lambda item: (-item[1], item[0])))


def policy_status(
    policy: PolicyRecord,
    counts: Tally,
    now: str,
    *,
    rollout: RolloutState | None = None,
    stopped: ConditionVerdict | None = None,
    record: str = "",
    resume: str = "",
) -> dict[str, Any]:
    """The policy's whole status, as applied; equal to the current one when nothing changed. `stopped`: whether the
    breaker stops what it does about faults; None: it does nothing. `record`: where what it does is recorded; `resume`:
    where a person lets it go on."""
    rolled_out = None if rollout is None or policy.dry_run else _rolled_out(policy, rollout, counts.failed)
    if policy.paused:
        rolled_out = "False", names.PAUSED, f"spec.mode is Paused: nodes keep what they have; {_in_effect(counts)}"
    wanted = (
        (names.ACCEPTED, ("False", policy.refusal, policy.problem) if policy.refusal else ("True", names.ACCEPTED, "")),
        (names.APPLIED, _applied(policy, counts)),
        (names.CONFLICTED, _conflicted(counts)),
        *(() if rolled_out is None else ((names.ROLLED_OUT, rolled_out),)),
        *(() if stopped is None else ((names.ACTIONS_STOPPED, stopped),)),
    )
    shown = {condition.type: condition for condition in policy.conditions}
    return {
        "observedGeneration": policy.generation,
        "nodes": {
            "selected": counts.selected,
            "applied": counts.applied,
            "overridden": counts.overridden,
            "failed": counts.failed,
            **({"unmatched": unmatched} if (unmatched := max((n for _, n in counts.unmatched), default=0)) else {}),
            **({"waiting": rollout.waiting} if rollout is not None and rollout.waiting else {}),
        },
        "conditions": [
            build(kind, *verdict, shown=shown.get(kind), generation=policy.generation, now=now)
            for kind, verdict in wanted
        ],
        **({"actionsRecord": record} if record else {}),
        **({"resumeRecord": resume} if resume else {}),
    }


def shows(policy: PolicyRecord, status: Mapping[str, Any]) -> bool:
    """True when the policy shows this status already."""
    shown = {it.type: it for it in policy.conditions}
    wanted = {it["type"]: it for it in status["conditions"]}
    return (
        policy.observed_generation == status["observedGeneration"]
        and policy.actions_record == status.get("actionsRecord", "")
        and policy.resume_record == status.get("resumeRecord", "")
        and dict(policy.counts or {}) == status["nodes"]
        and shown.keys() == wanted.keys()
        and all(same(shown[kind], condition) for kind, condition in wanted.items())
    )


def _applied(policy: PolicyRecord, counts: Tally) -> ConditionVerdict:
    if policy.refusal:
        kept = f"; an earlier generation stays in effect on {counts.outdated} nodes" if counts.outdated else ""
        return "False", names.NOT_ACCEPTED, f"see the condition Accepted{kept}"
    if not counts.selected:
        return "False", names.NO_NODES, "spec.nodeSelector matches no node with devices"
    if policy.dry_run:
        changed = _listed(counts.would, most=MAX_FAILURES, limit=MESSAGE_LIMIT) or "no node would change"
        where = f"it would be active on {counts.would_supply} of {counts.selected} nodes"
        numbers = COUNT_IDS if counts.would and not policy.sections.keys().isdisjoint(SECTIONS) else ""
        return "False", names.DRY_RUN, f"{where}{numbers}; {changed}"
    if counts.failed:
        parts = _listed(counts.failing, most=MAX_FAILURES)
        return "False", names.FAILED, f"{counts.failed} of {counts.selected} nodes: {parts}"
    expected = counts.selected - counts.silent
    if not expected:
        return (
            "False",
            names.NO_NODES,
            "policies of higher priority supply all of its sections on every node that it selects",
        )
    if counts.applied < expected:
        so_far = f"{_in_effect(counts)}{_unmatched(counts)}"
        parts = "spec.mode is Paused" if policy.paused else _listed(counts.waiting, most=1)
        return "False", names.PROGRESSING, f"{so_far}; {parts}" if parts else so_far
    return "True", names.APPLIED, f"in effect on {counts.applied} nodes{_unmatched(counts)}"


def _in_effect(counts: Tally) -> str:
    return f"in effect on {counts.applied} of {counts.selected - counts.silent} nodes"


def _listed(nodes: Sequence[tuple[str, str]], *, most: int, limit: int = REASON_LIMIT) -> str:
    """The first node of each different reason, with that reason, and how many more nodes there are."""
    first: dict[str, str] = {}
    for node, why in nodes:
        if why not in first and len(first) < most:
            first[why] = node
    parts = [f"{node}: {clip(why, limit)}" for why, node in first.items()]
    more = len(nodes) - len(parts)
    return "; ".join([*parts, *([f"and {more} more node{'s' if more > 1 else ''}"] if more else [])])


def _unmatched(counts: Tally) -> str:
    parts = [f"; on {nodes} of them {note}" for note, nodes in counts.unmatched[:MAX_NOTES]]
    more = len(counts.unmatched) - MAX_NOTES
    return "".join(parts) + (
        f"; and {more} more entr{'ies' if more > 1 else 'y'} without effect on some nodes" if more > 0 else ""
    )


def _rolled_out(policy: PolicyRecord, rollout: RolloutState, failed: int) -> ConditionVerdict:
    refused = f"; {rollout.refused}" if rollout.refused else ""
    if rollout.stopped:
        return "False", names.STOPPED, rollout_message(policy, rollout) + refused
    if rollout.done and failed:
        return "False", names.FAILED, f"{failed} node{' has' if failed == 1 else 's have'} failed: see Applied{refused}"
    if rollout.done:
        return "True", names.DONE, rollout.refused
    first = ", ".join(rollout.under_way)
    more = rollout.under_way_count - len(rollout.under_way)
    on = f"{rollout.under_way_count} under way"
    on += f" ({first}{f' and {more} more' if more else ''})" if first else ""
    return "False", names.PROGRESSING, f"{rollout.waiting} nodes are waiting, {on}{refused}"


def rollout_message(policy: PolicyRecord, rollout: RolloutState) -> str:
    """Return why it is stopped, and how a person goes on."""
    worse_off = "; ".join(f"{node}: {clip(why, REASON_LIMIT)}" for node, why in rollout.worse_off)
    return (
        f"{worse_off}; {rollout.waiting} nodes are waiting. Change the policy, or continue anyway: "
        f"kubectl nodedevices confirm policy/{policy.name} resumed"
    )


def _conflicted(counts: Tally) -> ConditionVerdict:
    if not counts.older:
        return "False", names.NO_CONFLICT, ""
    older = some(sorted(counts.older), MAX_NAMES)
    why = "older, has the same priority and sets the same section differently; give one a higher priority"
    return "True", names.SAME_PRIORITY, f"{older}: {why}"
