"""The tools that every concern is made with."""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct, field

from nodedevices_operator.cache.rejected import RejectedPods
from nodedevices_operator.concerns.events import NodeEvents
from nodedevices_operator.concerns.port import ActionGate, AtOnce, RolloutGate
from nodedevices_operator.concerns.status import NodeStatus
from nodedevices_operator.kube.apply import Writer
from nodedevices_operator.metrics import OperatorMetrics

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
    retired_seconds: float = SETTLED_SECONDS  # --retired-seconds
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
