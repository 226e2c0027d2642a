"""Reconciling one node: its concerns, each alone, in the registry's order; then their outcomes summed up.

Level-based, and safe to be killed anywhere. Nothing is written that the cache shows already, and nothing at all before
the cache is synced. What a concern raises is its own: the others go on, and the node is reconciled again after a
back-off. What a policy's status says of the node is handed over at the end.

When a node's faults change, its concerns that are `first` have run once by then, alone (`mark`): pods are marked while
policies, Nodes and Events wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import structlog
from nodedevices_api.conditions import EVENT_REFUSED, REFUSED
from nodedevices_common.errors import OperationError

from nodedevices_operator.cache.store import Cache, Dirty
from nodedevices_operator.concerns.port import Concern, Outcome, Tools, View, forbidden, hindered, write_status
from nodedevices_operator.concerns.registry import CONCERNS, Factory
from nodedevices_operator.desired.events import Event, ObjectRef
from nodedevices_operator.desired.policy_status import Hindrance, hindrances, node_outcome
from nodedevices_operator.kube.port import KubeError
from nodedevices_operator.reconcile.leftovers import Leftovers
from nodedevices_operator.reconcile.policy import Tallies
from nodedevices_operator.records.objects import NodeDevicesRecord, NodeRecord

FORBIDDEN_SECONDS = 60.0

log = structlog.get_logger()


class ConcernError(OperationError):
    """A concern failed by its own fault; logged already, with where."""


class NodeReconciler:
    """`dirty` is called with what our own writes have made worth another reconciliation; `tallies` are what nodes mean
    for policies."""

    def __init__(
        self,
        *,
        cache: Cache,
        tools: Tools,
        dirty: Callable[[Dirty], None],
        tallies: Tallies,
        concerns: Sequence[Factory] = CONCERNS,
    ) -> None:
        self._cache = cache
        self._tools = tools
        self._dirty = dirty
        self._tallies = tallies
        self._leftovers = Leftovers(cache, tools.writer.kube, dirty, tools.clock)
        self._concerns: list[Concern[Any]] = [make(tools) for make in concerns]
        self._infos = tuple(concern.info for concern in self._concerns)
        self._uids: dict[str, str] = {}  # by node, of the Node that what is remembered is about

    async def mark(self, name: str) -> None:
        """Run the concerns that are first, by the configuration that is in effect; `reconcile` comes next and is the
        one that is retried. Nothing is done for a node that has not been reconciled before: it has no conditions of
        ours, and what an earlier NodeDevices has left on its pods is looked for first."""
        record, node = self._cache.node_devices.get(name), self._cache.nodes.get(name)
        if record is None or node is None or self._uids.get(name, node.uid) != node.uid or not belongs(record, node):
            return
        view = self._view(record, node)
        if view.first:
            return
        for concern in self._concerns:
            if concern.info.first:
                view.outcomes[concern.info.name] = await self._run(concern, view)

    async def reconcile(self, name: str) -> float | None:
        """Returns the seconds after which to reconcile without any event; raises to be retried."""
        record = self._cache.node_devices.get(name)
        if record is None:
            self.forget(name)
            return await self._leftovers.reconcile(name)
        self._leftovers.forget(name)
        node = self._cache.nodes.get(name)
        if node is not None and self._uids.setdefault(name, node.uid) != node.uid:
            self.forget(name)  # deleted and created again between two reconciliations
            self._uids[name] = node.uid
        view = self._view(record, node if node is not None and belongs(record, node) else None)
        for concern in self._concerns:
            view.outcomes[concern.info.name] = await self._run(concern, view)
        problems = [error for outcome in view.outcomes.values() for error in outcome.problems]
        if view.affected is not None:
            try:
                await write_status(self._tools.writer, view, view.affected)
            except KubeError as error:
                problems.append(error)
        self._account(view)
        self._say_refused(view)
        return self._finish(view, problems)

    def _say_refused(self, view: View) -> None:
        """Write an Event where a budget refuses what it did not refuse before."""
        record = view.record
        for action, verdict in view.decided().items():
            shown = view.before.action(action)
            if verdict is not None and verdict[1] == REFUSED and (shown is None or shown.reason != REFUSED):
                about, text = ObjectRef.record(record), f"{action}: {verdict[2]}"
                self._tools.events.write(Event(EVENT_REFUSED, about, text, record.name, cause=action, since=view.now))

    def _view(self, record: NodeDevicesRecord, node: NodeRecord | None) -> View:
        return View(
            before=record,
            record=record,
            node=node,
            cache=self._cache,
            dirty=self._dirty,
            infos=self._infos,
            now=self._tools.writer.now(),
        )

    async def _run(self, concern: Concern[Any], view: View) -> Outcome:
        """One concern, alone: whatever it raises is its own outcome."""
        name = concern.info.name
        try:
            if (why := view.left_alone(concern.info)) is not None:
                return Outcome(hindrance=why)
            outcome = await concern.reconcile(view)
        except KubeError as error:
            outcome = Outcome(problems=(error,), hindrance=hindered(error))
        except Exception as error:
            log.exception("concern failed", concern=name, node=view.record.name)
            failure = ConcernError(f"{name}: {type(error).__name__}: {error}")
            outcome = Outcome(problems=(failure,), hindrance=Hindrance(str(failure), passing=True))
        result = ("failed" if outcome.retried else "forbidden") if outcome.problems else "done"
        self._tools.metrics.concerns.labels(name, result).inc()
        return outcome

    def _account(self, view: View) -> None:
        """Policies whose counts change by this node are summed up soon."""
        if view.configuration is None or view.node is None:
            return
        name = view.record.name
        sections = {info.action: info.section for info in self._infos if info.action}
        hindered = hindrances(view.record, view.decided(), sections)
        for info in self._infos:
            hindrance = view.outcomes[info.name].hindrance
            if info.section and hindrance is not None:
                hindered[info.section] = hindrance
        outcome = node_outcome(
            view.node.labels,
            self._cache.policies,
            view.configuration,
            view.record,
            hindered,
            taints=view.node.taints,
            kubelet=view.node.kubelet,
        )
        if changed := self._tallies.put(name, outcome):
            self._dirty(Dirty(policies=changed))

    def _finish(self, view: View, problems: list[Exception]) -> float | None:
        retried = [error for error in problems if not forbidden(error)]
        if retried:  # the longest wait counts for all
            raise max(retried, key=lambda error: getattr(error, "retry_after", None) or 0.0)
        waits = [it.requeue_after for it in view.outcomes.values() if it.requeue_after is not None]
        for error in problems:
            log.warning("forbidden", node=view.record.name, error=str(error))
            waits.append(FORBIDDEN_SECONDS)
        return min(waits, default=None)

    def forget(self, name: str) -> None:
        """Forget a node that is gone, or is another one."""
        self.forget_writes(name)
        if changed := self._tallies.put(name, None):
            self._dirty(Dirty(policies=changed))

    def forget_writes(self, name: str) -> None:
        """Forget what was written, as it may be undone; what the node means for its policies is worked out anew with
        the node."""
        for concern in self._concerns:
            concern.forget(name)
        self._uids.pop(name, None)
        self._tools.reads.pop(name, None)
        self._tools.events.forget(name)


def belongs(record: NodeDevicesRecord, node: NodeRecord) -> bool:
    """True when the NodeDevices is of this very Node: one of an earlier Node of that name never drives the new one."""
    return record.owner_uid in {"", node.uid} and record.node_uid in {"", node.uid}
