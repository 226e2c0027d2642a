"""Extended resources on a Node: the capacity that we own, as it shall be, against drift, other writers, and pods that
need it; and the zeros that the kubelet leaves for names which the agent no longer offers.

`desired/capacity.py` decides the capacity; this module reads what it needs and writes. Three pieces of memory, each
rebuilt from the cluster when lost: names known to be ours (managedFields, the NodeDevices itself, or written by this
process), values written last (a difference is drift), and nodes lowered a moment ago (a pod may have been bound
meanwhile, so they are listed again).

Five minutes after a plugin has ended, the kubelet writes an explicit 0 for its resource, for ever. Such a zero is
removed when the agent has listed the name as retired for six minutes by our clock, no plugin serves it and no policy
owns it, and it is still 0 at that moment: a JSON patch with a test, because server-side apply cannot remove what it
never owned. A restarted operator starts counting again: the agent's times are not compared with ours, because clocks
differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

import structlog
from msgspec import Struct, field
from msgspec.structs import replace
from nodedevices_api import conditions as names
from nodedevices_api.defaults import Resolved

from nodedevices_operator.concerns.budget import FIGHT_WINDOW_SECONDS, CallBudget, repairs
from nodedevices_operator.concerns.port import SETTLED_SECONDS, Info, OnNode, Outcome, Shown, View, failed_to
from nodedevices_operator.desired.capacity import CapacityPlan, plan_capacity, requests
from nodedevices_operator.kube.port import KubeError, node_pods
from nodedevices_operator.records.kinds import Kind
from nodedevices_operator.records.objects import NodeDevicesRecord, NodeRecord, Retirement, shows

HELD_BACK_SECONDS = 60.0  # until the node's pods are listed again
RECHECK_SECONDS = 10.0  # after lowering; the scheduler and the kubelet have seen it by then

log = structlog.get_logger()


class _Memory(Struct):
    values: Mapping[str, int] | None = None  # as written last
    repairs: CallBudget = field(default_factory=repairs)
    recheck: bool = False


class CapacityConcern(OnNode[_Memory]):
    info = Info("capacity", section="capacity", action=names.ACTION_CAPACITY)

    async def keep(self, view: View, node: NodeRecord, sections: Resolved) -> Outcome:
        entries = sections.capacity
        memory = self._nodes.setdefault(view.record.name, _Memory())
        ours = node.owned.union(memory.values or (), claimed_names(view.before))
        shown = view.record.action(names.ACTION_CAPACITY)
        recheck = memory.recheck or (shown is not None and shown.reason in {names.PENDING, names.NOT_WRITTEN})
        plan = plan_capacity(entries, view.record, node, ours=ours)
        if plan.needs_requests or (recheck and entries):
            try:
                there = [pod async for pod in node_pods(self._writer.kube, node.name)]
            except KubeError as error:
                return failed_to("list the node's pods", error)
            requested = requests(there, [entry.name for entry in entries])
            memory.recheck = False
            plan = plan_capacity(entries, view.record, node, ours=ours, requested=requested)
        return await self._write(view, node, memory, plan)

    async def _write(self, view: View, node: NodeRecord, memory: _Memory, plan: CapacityPlan) -> Outcome:
        outcome = Outcome(
            plan.verdict or Shown.REMOVED,
            requeue_after=HELD_BACK_SECONDS if plan.held_back else None,
        )
        if shows(node.capacity, node.owned, plan.values):
            memory.values = plan.values
            return outcome
        if memory.values == plan.values and not memory.repairs.take(self._tools.clock()):
            text = "another writer keeps changing it on the Node; find it in the Node's managedFields"
            return Outcome(("False", names.CONFLICT, text), requeue_after=FIGHT_WINDOW_SECONDS)
        # A pod may be on its way to the node that was promised more: by what the Node shows, or, where we took the key
        # away, by what it showed a moment ago.
        away = -1 if memory.values is None else inf
        lowers = any(node.capacity.get(name, away) > value for name, value in plan.values.items())
        view.wrote(Kind.NODE, await self._writer.capacity(node, plan.values))
        log.info("capacity set", node=node.name, capacity=dict(plan.values))
        memory.values = plan.values
        if lowers:
            memory.recheck = True
            return replace(outcome, requeue_after=min(outcome.requeue_after or RECHECK_SECONDS, RECHECK_SECONDS))
        return outcome


def claimed_names(record: NodeDevicesRecord) -> frozenset[str]:
    """Names that the NodeDevices itself says are ours: its configuration has them, and its action `capacity` of that
    very generation refused none and failed at none: a name that was never written is whose plugin comes first. It
    outlives both our process and a change of managedFields by another writer. What became of other actions says nothing
    about it."""
    shown = record.action(names.ACTION_CAPACITY)
    if shown is None or shown.generation != record.generation or shown.reason not in {names.IN_SYNC, names.PENDING}:
        return frozenset()
    entries = (record.config or {}).get("capacity")
    return frozenset(str(it.get("name")) for it in entries or () if isinstance(it, Mapping))


# --- retired zeros ---------------------------------------------------------------------------------------------------
class RetiredZerosConcern(OnNode[dict[Retirement, float]]):
    info = Info("retired-zeros")

    async def keep(self, view: View, node: NodeRecord, _sections: Resolved) -> Outcome:
        name, now = view.record.name, self._tools.clock()
        before = self._nodes.pop(name, {})
        seen = {retirement: before.get(retirement, now) for retirement in view.record.retired}
        if seen:
            self._nodes[name] = seen
        # What shows no zero needs no requeue: the zero's coming is news of the Node.
        zeros = set(removable(view.record, node))
        left = {it.name: self._tools.retired_seconds - (now - since) for it, since in seen.items() if it.name in zeros}
        due = tuple(name for name, seconds in left.items() if seconds <= 0)
        next_seconds = min((seconds for seconds in left.values() if seconds > 0), default=None)
        if not due:
            return Outcome(requeue_after=next_seconds)
        try:
            view.wrote(Kind.NODE, await self._writer.remove_zeros(node, due))
        except KubeError as error:
            if error.status != 422:  # no longer 0, or no longer there: another client was faster
                raise
            return Outcome(requeue_after=SETTLED_SECONDS)
        log.info("retired zeros removed", node=node.name, names=due)
        return Outcome(requeue_after=next_seconds)


def removable(record: NodeDevicesRecord, node: NodeRecord) -> list[str]:
    """Retired names that the Node shows as 0, that no plugin serves and that are not ours."""
    served = {resource.name for resource in record.resources}
    names = [retirement.name for retirement in record.retired]
    return [name for name in names if node.capacity.get(name) == 0 and name not in served | node.owned]
