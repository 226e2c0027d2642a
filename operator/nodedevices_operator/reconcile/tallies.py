"""The counts of each policy over all nodes, as running sums: a node that changes costs its own few policies.

`put` takes back what the node added before and adds what it adds now, both worked out from its outcomes, so that
nothing is remembered for each pair of a node and a policy, but for nodes where the policy supplies something and has
failed or is not in effect: a policy has few sections, and one policy supplies each. What is remembered is the same
whatever the order of the changes; the counts equal a sum over all nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

from msgspec import Struct, field

from nodedevices_operator.desired.configuration import Trial
from nodedevices_operator.desired.policy_status import (
    Contribution,
    NodeOutcome,
    Note,
    Rehearse,
    Tally,
    contributes_the_same,
    contribution,
    counted,
    preview_lines,
    waiting_first,
)
from nodedevices_operator.desired.trial import Preview
from nodedevices_operator.records.objects import PolicyRecord

T = TypeVar("T")


class _Supplied(Struct):
    """Nodes where one generation of the policy supplies something and has not failed."""

    applied: int = 0
    waiting: dict[str, str] = field(default_factory=dict)  # node -> why
    notes: Counter[Note] = field(default_factory=Counter)  # of nodes where it is in effect

    @property
    def nodes(self) -> int:
        return self.applied + len(self.waiting)


class _Sum(Struct):
    selected: int = 0
    overridden: int = 0
    silent: int = 0
    older: Counter[str] = field(default_factory=Counter)  # policies that won a conflict, with on how many nodes
    failing: dict[str, str] = field(default_factory=dict)  # node -> why
    supplied: dict[int, _Supplied] = field(default_factory=dict)  # by generation
    trials: dict[str, tuple[Trial, Preview]] = field(default_factory=dict)  # node -> what a DryRun policy would do

    def add(self, node: str, it: Contribution) -> None:
        self._count(it, 1)
        if it.trial is not None:
            self.trials[node] = it.trial
        if it.failure:
            self.failing[node] = it.failure
        elif it.mine is not None and it.mine.supplies:
            supplied = self.supplied.setdefault(it.mine.generation, _Supplied())
            if it.waiting:
                supplied.waiting[node] = it.waiting
            else:
                supplied.applied += 1
                if it.notes:
                    supplied.notes.update(it.notes)

    def remove(self, node: str, it: Contribution) -> None:
        self._count(it, -1)
        self.trials.pop(node, None)
        self.failing.pop(node, None)
        if not it.failure and it.mine is not None and it.mine.supplies:
            supplied = self.supplied[it.mine.generation]
            if it.waiting:
                del supplied.waiting[node]
            else:
                supplied.applied -= 1
                _take(supplied.notes, it.notes)
            if not supplied.nodes:
                del self.supplied[it.mine.generation]

    def _count(self, it: Contribution, by: int) -> None:
        self.selected += by
        if it.mine is not None:
            self.overridden += by * bool(it.mine.overridden)
            self.silent += by * (not it.failure and not it.mine.supplies)
        older = {
            *(it.trial[0].conflicts if it.trial is not None else ()),
            *(it.mine.conflicts if it.mine is not None else ()),
        }
        if older and by > 0:
            self.older.update(older)
        elif older:
            _take(self.older, older)

    def tally(self, generation: int, rehearse: Rehearse) -> Tally:
        """With this generation of the policy as the one that is to be in effect."""
        now = self.supplied.get(generation, _Supplied())
        reacting = frozenset(node for node, (trial, _) in self.trials.items() if trial.faults is not None)
        return Tally(
            selected=self.selected,
            applied=now.applied,
            overridden=self.overridden,
            failed=len(self.failing),
            silent=self.silent,
            outdated=sum(supplied.nodes for supplied in self.supplied.values()) - now.nodes,
            older=frozenset(self.older),
            failing=tuple(sorted(self.failing.items())),
            waiting=waiting_first(now.waiting),
            unmatched=counted(now.notes, applied=now.applied),
            would_supply=sum(bool(trial.supplies) for trial, _ in self.trials.values()),
            would=preview_lines({node: preview for node, (_, preview) in self.trials.items()}, reacting, rehearse),
        )


def _take(counts: Counter[T], gone: Iterable[T]) -> None:
    """Fewer by one of each; none is remembered with 0."""
    for key in gone:
        counts[key] -= 1
        if not counts[key]:
            del counts[key]


class Tallies:
    """Event loop only."""

    def __init__(self) -> None:
        self._outcomes: dict[str, NodeOutcome] = {}
        self._sums: dict[str, _Sum] = {}

    def put(self, node: str, outcome: NodeOutcome | None) -> frozenset[str]:
        """Set what the node means for its policies now; None: nothing, it is gone. Returns the policies whose counts
        may be others."""
        before = self._outcomes.get(node)
        if before == outcome:
            return frozenset()
        if outcome is None:
            del self._outcomes[node]
        else:
            self._outcomes[node] = outcome
        was, now = (frozenset[str]() if side is None else side.concerned for side in (before, outcome))
        return frozenset(policy for policy in was | now if self._put(policy, node, before, outcome))

    def _put(self, policy: str, node: str, before: NodeOutcome | None, after: NodeOutcome | None) -> bool:
        if before is not None and after is not None and contributes_the_same(policy, before, after):
            return False
        was, now = (None if side is None else contribution(policy, side) for side in (before, after))
        if was == now:
            return False
        found = self._sums.get(policy)
        if found is None:
            found = self._sums[policy] = _Sum()
        if was is not None:
            found.remove(node, was)
        if now is not None:
            found.add(node, now)
        if not found.selected:
            del self._sums[policy]
        return True

    def tally(self, policy: PolicyRecord, rehearse: Rehearse = lambda _nodes, _actions: {}) -> Tally:
        """`rehearse` answers for what a DryRun policy would do about faults."""
        return self._sums.get(policy.name, _Sum()).tally(policy.generation, rehearse)
