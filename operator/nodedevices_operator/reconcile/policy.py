"""Reconciling one DevicePolicy: its nodes summed up into its status.

What each node means for its policies is handed over by the nodes' own reconciliations; the sum is made at most about
once a second for each policy, however many nodes change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nodedevices_operator.cache.store import Cache, Dirty
from nodedevices_operator.desired.policy_status import NodeOutcome, policy_status, shows, tally
from nodedevices_operator.kube.apply import Writer
from nodedevices_operator.records.kinds import Kind, read

SUM_UP_SECONDS = 1.0


class PolicyReconciler:
    """`outcomes` is filled as nodes are reconciled."""

    def __init__(
        self, cache: Cache, writer: Writer, dirty: Callable[[Dirty], None], outcomes: Mapping[str, NodeOutcome]
    ) -> None:
        self._cache = cache
        self._writer = writer
        self._dirty = dirty
        self._outcomes = outcomes

    async def reconcile(self, name: str) -> float | None:
        """Write the policy's status where it differs. Raises to be retried."""
        policy = self._cache.policies.get(name)
        if policy is None:
            return None
        status = policy_status(policy, tally(policy, self._outcomes), self._writer.now())
        if not shows(policy, status):
            raw = await self._writer.policy_status(policy, status)
            self._dirty(self._cache.observe(Kind.POLICY, read(Kind.POLICY, raw)))
        return None
