"""The tools that concerns are made with: among them the writer of our part of NodeDevices.status, and what an earlier
NodeDevices of a node has left on its pods.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct, field
from nodedevices_api import conditions as names
from nodedevices_common.conditions import build, same

from nodedevices_operator.cache.rejected import RejectedPods
from nodedevices_operator.concerns.budget import NodeEvents
from nodedevices_operator.concerns.port import ActionGate, AtOnce, RolloutGate, Shown, View
from nodedevices_operator.desired.actions import next_actions, summed_up
from nodedevices_operator.kube.apply import Writer
from nodedevices_operator.kube.port import JsonObject, Kube
from nodedevices_operator.metrics import OperatorMetrics
from nodedevices_operator.records.kinds import Kind
from nodedevices_operator.records.names import PODS
from nodedevices_operator.records.objects import Affected

SETTLED_SECONDS = 6 * 60.0  # the kubelet's endpointStopGracePeriod is 5 min, checked with the next node status


class Tools(Struct, frozen=True):
    """One set for all concerns. A concern takes what it needs."""

    writer: Writer
    metrics: OperatorMetrics
    events: NodeEvents
    status: NodeStatus
    gate: ActionGate
    rollouts: RolloutGate = field(default_factory=AtOnce)
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    retired_seconds: float = SETTLED_SECONDS
    rejected: RejectedPods | None = None  # None: not watched
    delete_rejected: bool = False  # --delete-rejected-pods

    @classmethod
    def over(
        cls,
        writer: Writer,
        metrics: OperatorMetrics,
        *,
        gate: ActionGate,
        rollouts: RolloutGate | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        retired_seconds: float = SETTLED_SECONDS,
        rejected: RejectedPods | None = None,
        delete_rejected: bool = False,
    ) -> Tools:
        """Return the usual tools over this writer."""
        events = NodeEvents(writer, metrics, clock)
        return cls(
            writer,
            metrics,
            events,
            NodeStatus(writer),
            gate,
            AtOnce() if rollouts is None else rollouts,
            clock,
            wall,
            retired_seconds,
            rejected,
            delete_rejected,
        )


class NodeStatus:
    """Writes the operator's part of NodeDevices.status: the conditions and actions of all concerns, and affectedPods.
    One field manager, so one apply carries everything; what nothing was decided about is written unchanged."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def write(self, view: View, affected: Sequence[Affected]) -> None:
        """Write the status. May raise KubeError."""
        record, verdicts = view.record, view.verdicts()
        actions = next_actions(record.actions, view.decided(), record.generation)
        state = (frozenset(affected), tuple(verdicts.items()), actions)
        if view.status == state:
            return
        shown = {item.type: item for item in record.conditions}
        conditions: list[dict[str, Any]] = []
        unchanged = state[0] == set(record.affected) and set(actions) == {
            it for it in record.actions if it.name in names.ACTIONS
        }
        for info in view.infos:
            old, verdict = shown.get(info.condition), verdicts.get(info.condition, Shown.KEPT)
            if verdict is Shown.REMOVED:
                unchanged = unchanged and old is None
                continue
            if not isinstance(verdict, Shown):
                generation = record.generation if info.by_generation else None
            elif old is not None:
                verdict, generation = (old.status, old.reason, old.message), old.generation
            else:
                continue
            made = build(info.condition, *verdict, shown=old, generation=generation, now=view.now)
            conditions.append(made)
            unchanged = unchanged and same(old, made)
        old, summary = shown.get(names.ACTIONS_SYNCED), None
        if (summed := summed_up(actions)) is not None:
            summary = build(names.ACTIONS_SYNCED, *summed[0], shown=old, generation=summed[1], now=view.now)
            conditions.append(summary)
        if not (unchanged and same(old, summary)):
            view.wrote(Kind.NODE_DEVICES, await self._writer.status(record, conditions, actions, affected))
        view.status = state


async def pods_at_first(view: View, kube: Kube) -> Sequence[JsonObject]:
    """Return the node's pods in the first reconciliation, listed once for all concerns; later none. May raise
    KubeError.

    An earlier NodeDevices, deleted by hand or with its CRD, took the record of what it left on pods with it. It is
    looked for once: before the NodeDevices has our conditions. What is found is recorded by the same write that puts
    these there, so that a kill in between finds nothing half done.
    """
    if not view.first:
        return ()
    if view.pods_at_first is None:
        pages = kube.pages(PODS, fieldSelector=f"spec.nodeName={view.record.name}")
        view.pods_at_first = [pod async for page in pages for pod in page]
    return view.pods_at_first
