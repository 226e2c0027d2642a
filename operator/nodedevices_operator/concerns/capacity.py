"""Keeping the capacity that we own on a Node as it shall be, against drift, other writers, and pods that need it.

`desired/capacity.py` decides; this looks up what it needs and writes. Three rests of memory, each rebuilt from the
cluster when lost: names known to be ours (managedFields, the NodeDevices' own word, or written by this process), values
written last (a difference is drift), and nodes lowered a moment ago (a pod may have been bound meanwhile: look again).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import structlog
from nodedevices_api import conditions as names
from nodedevices_api.sections import CapacityEntry

from nodedevices_operator.desired.capacity import CapacityPlan, plan_capacity, requests
from nodedevices_operator.kube.apply import Writer
from nodedevices_operator.kube.port import KubeError, Object
from nodedevices_operator.records.names import PODS
from nodedevices_operator.records.objects import NodeDevicesRecord, NodeRecord

HELD_BACK_SECONDS = 60.0  # until the node's pods are looked at again
RECHECK_SECONDS = 10.0  # after lowering; the scheduler and the kubelet have heard of it by then
FORBIDDEN_SECONDS = 60.0
# Another writer that changes our value back: after so many repairs within the window we rest, and say so.
FIGHT_REPAIRS, FIGHT_WINDOW_SECONDS = 3, 60.0

log = structlog.get_logger()


@dataclass(slots=True)
class _Memory:
    names: frozenset[str] = frozenset()
    values: Mapping[str, int] | None = None
    repairs: deque[float] = field(default_factory=lambda: deque(maxlen=FIGHT_REPAIRS))
    recheck: bool = False


@dataclass(frozen=True, slots=True)
class CapacityResult:
    status: str
    reason: str
    message: str
    again: float | None = None  # seconds after which to look again
    problem: KubeError | None = None  # to be tried again by back-off
    node: Object | None = None  # the Node as it is after a write


class OwnedCapacity:
    """All nodes; one node at a time by the key queue."""

    def __init__(self, writer: Writer, clock: Callable[[], float] = time.monotonic) -> None:
        self._writer = writer
        self._clock = clock
        self._nodes: dict[str, _Memory] = {}

    def forget(self, node: str) -> None:
        self._nodes.pop(node, None)

    async def sync(
        self, entries: Sequence[CapacityEntry], record: NodeDevicesRecord, node: NodeRecord, claimed: frozenset[str]
    ) -> CapacityResult:
        """Make the Node show what it shall. `claimed` are names that the NodeDevices says are ours."""
        memory = self._nodes.setdefault(record.name, _Memory())
        ours = node.owned | memory.names | claimed
        shown = record.condition(names.CAPACITY_SYNCED)
        look = memory.recheck or (shown is not None and shown.reason == names.PENDING)
        plan = plan_capacity(entries, record, node, ours=ours)
        if plan.needs_requests or (look and entries):
            try:
                requested = await self._requests(node.name, [entry.name for entry in entries])
            except KubeError as error:
                return self._failed("list the node's pods", error)
            memory.recheck = False
            plan = plan_capacity(entries, record, node, ours=ours, requested=requested)
        result = CapacityResult(
            plan.status, plan.reason, plan.message, again=HELD_BACK_SECONDS if plan.held_back else None
        )
        if plan.matches(node):
            memory.names, memory.values = frozenset(plan.values), plan.values
            return result
        if self._fighting(memory, plan):
            text = "another writer keeps changing it on the Node; find it in the Node's managedFields"
            return CapacityResult("False", names.CONFLICT, text, again=FIGHT_WINDOW_SECONDS)
        lowers = any(self._lowers(memory, node, name, value) for name, value in plan.values.items())
        try:
            written = await self._writer.capacity(node, plan.values)
        except KubeError as error:
            return self._failed("write the Node's capacity", error)
        log.info("capacity set", node=node.name, capacity=dict(plan.values))
        memory.names, memory.values = frozenset(plan.values), plan.values
        if lowers:
            memory.recheck = True
            return replace(result, node=written, again=min(result.again or RECHECK_SECONDS, RECHECK_SECONDS))
        return replace(result, node=written)

    async def _requests(self, node: str, wanted: Sequence[str]) -> dict[str, int]:
        sums = dict.fromkeys(wanted, 0)
        async for page in self._writer.kube.pages(PODS, fieldSelector=f"spec.nodeName={node}"):
            for name, count in requests(page, wanted).items():
                sums[name] += count
        return sums

    @staticmethod
    def _lowers(memory: _Memory, node: NodeRecord, name: str, value: int) -> bool:
        """Whether a pod may be on its way to the node that was promised more: by what the Node shows, or, where we
        took the key away, by what it showed a moment ago."""
        shown = node.capacity.get(name)
        return memory.values is not None if shown is None else shown > value

    def _fighting(self, memory: _Memory, plan: CapacityPlan) -> bool:
        """Whether to rest instead of repairing; counts this repair when not."""
        if memory.values != plan.values:
            return False  # our own wish changed: no drift
        now = self._clock()
        if len(memory.repairs) == FIGHT_REPAIRS and now - memory.repairs[0] < FIGHT_WINDOW_SECONDS:
            return True
        memory.repairs.append(now)
        return False

    @staticmethod
    def _failed(what: str, error: KubeError) -> CapacityResult:
        text = f"could not {what}: {error}"
        if error.forbidden:
            return CapacityResult("False", names.FORBIDDEN, text, again=FORBIDDEN_SECONDS)
        return CapacityResult("False", names.PENDING, text, problem=error)


def claimed_names(record: NodeDevicesRecord) -> frozenset[str]:
    """Names that the NodeDevices itself says are ours: its configuration asks for them, and CapacitySynced of that very
    generation refused none. It outlives both our process and a change of managedFields by another writer."""
    shown = record.condition(names.CAPACITY_SYNCED)
    if shown is None or shown.generation != record.generation or shown.reason not in {names.IN_SYNC, names.PENDING}:
        return frozenset()
    entries = (record.config or {}).get("capacity")
    return frozenset(str(it.get("name")) for it in entries or () if isinstance(it, Mapping))
