"""Reconciling one DevicePolicy: its nodes summed up into its status.

What each node means for its policies is handed over by the nodes' own reconciliations, and summed up as it changes
(tallies.py); the status is made of the sum at most about once a second for each policy, however many nodes change.
"""

from __future__ import annotations

from collections.abc import Callable

from nodedevices_api import conditions as names

from nodedevices_operator.cache.store import Cache, Dirty
from nodedevices_operator.desired import events
from nodedevices_operator.desired.policy_status import (
    ConditionVerdict,
    policy_status,
    rollout_message,
    shows,
)
from nodedevices_operator.desired.pools import SECTION, acts, trial_pool
from nodedevices_operator.desired.rollout import RolloutState
from nodedevices_operator.kube.apply import Writer
from nodedevices_operator.reconcile.fleet import FleetGate, Stop
from nodedevices_operator.reconcile.rollouts import Rollouts
from nodedevices_operator.reconcile.tallies import Tallies
from nodedevices_operator.records.kinds import Kind, read
from nodedevices_operator.records.objects import PolicyRecord

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
        now = self._writer.now()
        stop = self._gate.stop if acts(policy) else None
        if acts(policy):
            record = self._gate.place or policy.actions_record
            resume = stop.record if stop else ""
            status = policy_status(
                policy, counts, now, rollout=rollout, stopped=_verdict(stop), record=record, resume=resume
            )
        else:
            status = policy_status(policy, counts, now, rollout=rollout)
        if not shows(policy, status):
            raw = await self._writer.policy_status(policy, status)
            self._say(policy, stop)
            self._say_of_rollout(policy, rollout, now)
            self._dirty(self._cache.observe(Kind.POLICY, read(Kind.POLICY, raw)))
        return REHEARSE_SECONDS if policy.dry_run and SECTION in policy.sections and counts.would else None

    def _say(self, policy: PolicyRecord, stop: Stop | None) -> None:
        """Write an Event where the status says something else of the breaker than `policy` did."""
        shown = next((it for it in policy.conditions if it.type == names.ACTIONS_STOPPED), None)
        was, now = shown is not None and shown.status == "True", self._writer.now()
        about = events.About("DevicePolicy", policy.name, policy.uid)
        if stop is not None and not was:
            self._writer.event(events.stopped(about, stop.message, stop.since, now))
        elif stop is None and was and shown is not None:
            self._writer.event(events.resumed(about, "taints and evictions continue", shown.since, now))
        if stop is not None and stop.refusal and (shown is None or stop.refusal not in shown.message):
            self._writer.event(events.resume_refused(about, stop.refusal, stop.since, now))

    def _say_of_rollout(self, policy: PolicyRecord, rollout: RolloutState, now: str) -> None:
        """Write an Event where the status says that the roll-out is stopped, and `policy` did not."""
        shown = next((it.reason for it in policy.conditions if it.type == names.ROLLED_OUT), "")
        if rollout.stopped and shown != names.STOPPED:
            about = events.About("DevicePolicy", policy.name, policy.uid)
            what = events.EventIdentity("", rollout.worse_off[0][0], "", str(policy.generation))
            self._writer.event(events.worse_off(about, what, rollout_message(policy, rollout), now))


def _verdict(stop: Stop | None) -> ConditionVerdict:
    if stop is None:
        return "False", names.NOT_STOPPED, ""
    return "True", stop.reason, stop.message
