"""Reconciling one DevicePolicy: its nodes summed up into its status.

What each node means for its policies is handed over by the nodes' own reconciliations, and kept as running sums
(`Tallies`): a node that changes costs its own few policies. `put` takes back what the node added before and adds what
it adds now, both worked out from its outcomes, so that nothing is remembered for each pair of a node and a policy, but
for nodes where the policy supplies something and has failed or is not in effect: a policy has few sections, and one
policy supplies each. What is remembered is the same whatever the order of the changes; the counts equal a sum over all
nodes. The status is made of the sum at most about once a second for each policy, however many nodes change.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from msgspec import Struct, field
from nodedevices_api import conditions as names

from nodedevices_operator.cache.rollouts import Rollouts
from nodedevices_operator.cache.store import Cache, Dirty
from nodedevices_operator.desired.events import Event, ObjectRef
from nodedevices_operator.desired.policy_status import (
    Contribution,
    NodeOutcome,
    Note,
    Rehearse,
    Tally,
    contributes_the_same,
    contribution,
    counted,
    policy_status,
    preview_lines,
    rollout_message,
    shows,
    waiting_first,
)
from nodedevices_operator.desired.pools import SECTION, acts, trial_pool
from nodedevices_operator.desired.rollout import RolloutState
from nodedevices_operator.kube.apply import Writer
from nodedevices_operator.reconcile.fleet import FleetGate, Stop
from nodedevices_operator.records.kinds import Kind, read
from nodedevices_operator.records.objects import PolicyRecord

Counted = tuple[str, str | int | tuple[int, Note]]  # what is counted, and of which policy or generation


# --- counts ----------------------------------------------------------------------------------------------------------
class _Sum(Struct):
    """The nodes of one policy."""

    counts: Counter[Counted] = field(default_factory=Counter)
    notable: dict[str, Contribution] = field(default_factory=dict)  # nodes where it waits, has failed, or is tried

    def change(self, node: str, before: Contribution | None, after: Contribution | None) -> None:
        for it, by in ((before, -1), (after, 1)):
            for key in () if it is None else _counted(it):
                self.counts[key] += by
                if not self.counts[key]:
                    del self.counts[key]
        self.notable.pop(node, None)
        if after is not None and (after.trial is not None or after.failure or after.waiting):
            self.notable[node] = after

    def tally(self, generation: int, rehearse: Rehearse) -> Tally:
        """With this generation of the policy as the one that is to be in effect."""
        counts, applied = self.counts, self.counts["applied", generation]
        notes = {of[1]: n for (_, of), n in counts.items() if isinstance(of, tuple) and of[0] == generation}
        trials = {node: it.trial for node, it in self.notable.items() if it.trial is not None}
        waiting = {
            node: it.waiting
            for node, it in self.notable.items()
            if it.waiting and it.mine is not None and it.mine.generation == generation
        }
        reacting = frozenset(node for node, (trial, _) in trials.items() if trial.faults is not None)
        return Tally(
            selected=counts["selected", ""],
            applied=applied,
            overridden=counts["overridden", ""],
            failed=counts["failed", ""],
            silent=counts["silent", ""],
            outdated=counts["supplied", ""] - applied - len(waiting),
            older=frozenset(str(name) for kind, name in counts if kind == "older"),
            failing=tuple(sorted((node, it.failure) for node, it in self.notable.items() if it.failure)),
            waiting=waiting_first(waiting),
            unmatched=counted(notes, applied=applied),
            would_supply=sum(bool(trial.supplies) for trial, _ in trials.values()),
            would=preview_lines({node: preview for node, (_, preview) in trials.items()}, reacting, rehearse),
        )


def _counted(it: Contribution) -> Iterator[Counted]:
    """Yield what a node counts for."""
    yield "selected", ""
    mine, trial = it.mine, it.trial
    yield from (("older", name) for name in {*(mine.conflicts if mine else ()), *(trial[0].conflicts if trial else ())})
    if mine is None:
        return
    yield from (("note", (mine.generation, note)) for note in it.notes)  # where it is in effect
    if mine.overridden:
        yield "overridden", ""
    if it.failure:
        yield "failed", ""
    elif not mine.supplies:
        yield "silent", ""
    else:
        yield "supplied", ""
        if not it.waiting:
            yield "applied", mine.generation


class Tallies:
    """Event loop only."""

    def __init__(self) -> None:
        self._outcomes: dict[str, NodeOutcome] = {}
        self._sums = defaultdict[str, _Sum](_Sum)

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
        found = self._sums[policy]
        found.change(node, was, now)
        if not found.counts:
            del self._sums[policy]
        return True

    def tally(self, policy: PolicyRecord, rehearse: Rehearse = lambda _nodes, _actions: {}) -> Tally:
        """`rehearse` answers for what a DryRun policy would do about faults."""
        return self._sums.get(policy.name, _Sum()).tally(policy.generation, rehearse)


# --- the status ------------------------------------------------------------------------------------------------------
SUM_UP_SECONDS = 1.0
REHEARSE_SECONDS = 60.0  # until a DryRun policy says again what budget and breaker would allow


class PolicyReconciler:
    """`tallies` are filled as nodes are reconciled; `gate` has the breaker, and the place of its record."""

    def __init__(
        self,
        cache: Cache,
        writer: Writer,
        dirty: Callable[[Dirty], None],
        tallies: Tallies,
        *,
        gate: FleetGate,
        rollouts: Rollouts,
    ) -> None:
        self._cache = cache
        self._writer = writer
        self._dirty = dirty
        self._tallies = tallies
        self._gate = gate
        self._rollouts = rollouts

    async def reconcile(self, name: str) -> float | None:
        """Write the policy's status where it differs. Raises to be retried."""
        policy = self._cache.policies.get(name)
        if policy is None:
            return None
        self._rollouts.reconsider(name)  # what a person said of it, and its limits
        rollout = self._rollouts.state(name)
        counts = self._tallies.tally(
            policy, lambda nodes, actions: self._gate.rehearse(trial_pool(policy, nodes), actions)
        )
        acting = acts(policy)
        stop = self._gate.stop if acting else None
        verdict = ("True", stop.reason, stop.message) if stop is not None else ("False", names.NOT_STOPPED, "")
        status = policy_status(
            policy,
            counts,
            self._writer.now(),
            rollout=rollout,
            stopped=verdict if acting else None,
            record=(self._gate.place or policy.actions_record) if acting else "",
            resume=stop.record if stop is not None else "",
        )
        if not shows(policy, status):
            raw = await self._writer.policy_status(policy, status)
            self._say(policy, stop)
            self._say_of_rollout(policy, rollout)
            self._dirty(self._cache.observe(Kind.POLICY, read(Kind.POLICY, raw)))
        return REHEARSE_SECONDS if policy.dry_run and SECTION in policy.sections and counts.would else None

    def _say(self, policy: PolicyRecord, stop: Stop | None) -> None:
        """Write an Event where the status says something else of the breaker than `policy` did."""
        shown = next((it for it in policy.conditions if it.type == names.ACTIONS_STOPPED), None)
        was = shown is not None and shown.status == "True"
        about = ObjectRef.record(policy)
        if stop is not None and not was:
            self._writer.event(Event(names.ACTIONS_STOPPED, about, stop.message, since=stop.since))
        elif stop is None and was and shown is not None:
            text = "taints and evictions continue"
            self._writer.event(Event(names.EVENT_RESUMED, about, text, since=shown.since))
        if stop is not None and stop.refusal and (shown is None or stop.refusal not in shown.message):
            refused = Event(names.EVENT_RESUME_REFUSED, about, stop.refusal, cause=stop.refusal, since=stop.since)
            self._writer.event(refused)

    def _say_of_rollout(self, policy: PolicyRecord, rollout: RolloutState) -> None:
        """Write an Event where the status says that the roll-out is stopped, and `policy` did not."""
        shown = next((it.reason for it in policy.conditions if it.type == names.ROLLED_OUT), "")
        if rollout.stopped and shown != names.STOPPED:
            about, message = ObjectRef.record(policy), rollout_message(policy, rollout)
            node, since = rollout.worse_off[0][0], str(policy.generation)
            self._writer.event(Event(names.EVENT_ROLLOUT, about, message, device=node, since=since))
