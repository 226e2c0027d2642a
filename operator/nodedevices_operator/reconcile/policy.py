"""Reconciling one DevicePolicy: its nodes summed up into its status.

What each node means for its policies is handed over by the nodes' own reconciliations, and kept (`Tallies`). A policy
is summed up where a node adds something else to its counts than before, at most about once a second, however many nodes
change: a look at every node, some milliseconds for 5,000 (`benchmarks decisions`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import chain

from nodedevices_api import conditions as names

from nodedevices_operator.cache.rollouts import Rollouts
from nodedevices_operator.cache.store import Cache, Dirty
from nodedevices_operator.concerns.fleet_gate import FleetGate, Stop
from nodedevices_operator.desired.events import Event, ObjectRef
from nodedevices_operator.desired.policy_status import (
    SILENT,
    TURN,
    NodeOutcome,
    Tally,
    WouldAnswer,
    contribution,
    counted,
    effect_lines,
    policy_status,
    rollout_message,
    shows,
)
from nodedevices_operator.desired.pools import SECTION, acts, dry_run_pool
from nodedevices_operator.desired.rollout import RolloutState
from nodedevices_operator.kube.apply import Writer
from nodedevices_operator.records.kinds import Kind, read
from nodedevices_operator.records.objects import PolicyRecord


# --- counts ----------------------------------------------------------------------------------------------------------
class Tallies:
    """What each node means for its policies. Event loop only."""

    def __init__(self) -> None:
        self._outcomes: dict[str, NodeOutcome] = {}

    def put(self, node: str, outcome: NodeOutcome | None) -> frozenset[str]:
        """Set what the node means for its policies now; None: nothing, it is gone. Returns the policies whose counts
        may be others."""
        before, after = self._outcomes.pop(node, NodeOutcome()), outcome or NodeOutcome()
        if outcome is not None:
            self._outcomes[node] = outcome
        if before == after:
            return frozenset()
        concerned = before.concerned | after.concerned
        return frozenset(name for name in concerned if contribution(name, before) != contribution(name, after))

    def tally(self, policy: PolicyRecord, would_answer: WouldAnswer = lambda _nodes, _actions: {}) -> Tally:
        """Count the policy's nodes. `would_answer` answers for what a DryRun policy would do about faults."""
        all_of_them = ((node, contribution(policy.name, outcome)) for node, outcome in self._outcomes.items())
        found = {node: it for node, it in all_of_them if it is not None}
        dry_runs = {node: it.dry_run for node, it in found.items() if it.dry_run is not None}
        failing = {node: it.failure for node, it in found.items() if it.failure}
        mine = {node: it.mine for node, it in found.items() if it.mine is not None}
        supplied = [node for node, its in mine.items() if its.supplies and node not in failing]
        newest = [node for node in supplied if mine[node].generation == policy.generation]
        waiting = {node: found[node].waiting for node in newest if found[node].waiting}
        applied = len(newest) - len(waiting)
        rivals = [its.conflicts for its in mine.values()] + [dry_run.conflicts for dry_run, _ in dry_runs.values()]
        reacting = frozenset(node for node, (dry_run, _) in dry_runs.items() if dry_run.faults is not None)
        return Tally(
            selected=len(found),
            applied=applied,
            overridden=sum(bool(its.overridden) for its in mine.values()),
            failed=len(failing),
            silent=sum(not its.supplies for its in mine.values()),
            outdated=len(supplied) - len(newest),
            older=frozenset(chain.from_iterable(rivals)),
            failing=tuple(sorted(failing.items())),
            waiting=tuple(sorted(waiting.items(), key=lambda it: (it[1] in {SILENT, TURN}, it))),
            unmatched=counted(Counter(note for node in newest for note in found[node].notes), applied=applied),
            would_supply=sum(bool(dry_run.supplies) for dry_run, _ in dry_runs.values()),
            would=effect_lines({node: effect for node, (_, effect) in dry_runs.items()}, reacting, would_answer),
        )


# --- the status ------------------------------------------------------------------------------------------------------
SUM_UP_SECONDS = 1.0
DRY_RUN_SECONDS = 60.0  # until a DryRun policy says again what budget and breaker would allow


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
        self._rollouts.call([name])  # what a person said of it, and its limits
        rollout = self._rollouts.state(name)
        counts = self._tallies.tally(
            policy, lambda nodes, actions: self._gate.would_answer(dry_run_pool(policy, nodes), actions)
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
        return DRY_RUN_SECONDS if policy.dry_run and SECTION in policy.sections and counts.would else None

    def _say(self, policy: PolicyRecord, stop: Stop | None) -> None:
        """Write an Event where the status says something else of the breaker than `policy` did."""
        shown = next((it for it in policy.conditions if it.type == names.ACTIONS_STOPPED), None)
        was = shown is not None and shown.status == "True"
        about = ObjectRef.record(policy)
        if stop is not None and not was:
            self._writer.event(Event(names.ACTIONS_STOPPED, about, stop.message, since=stop.since))
        elif stop is None and was and shown is not None:
            self._writer.event(Event(names.EVENT_RESUMED, about, "taints and evictions continue", since=shown.since))
        if stop is not None and stop.refusal and (shown is None or stop.refusal not in shown.message):
            self._writer.event(
                Event(names.EVENT_RESUME_REFUSED, about, stop.refusal, cause=stop.refusal, since=stop.since)
            )

    def _say_of_rollout(self, policy: PolicyRecord, rollout: RolloutState) -> None:
        """Write an Event where the status says that the roll-out is stopped, and `policy` did not."""
        shown = next((it.reason for it in policy.conditions if it.type == names.ROLLED_OUT), "")
        if rollout.stopped and shown != names.STOPPED:
            about, message = ObjectRef.record(policy), rollout_message(policy, rollout)
            node, since = rollout.worse_off[0][0], str(policy.generation)
            self._writer.event(Event(names.EVENT_ROLLOUT, about, message, device=node, since=since))
