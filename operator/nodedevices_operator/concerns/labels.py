"""Keeping our labels on a Node as they shall be, without ever taking one from another owner.

`desired/labels.py` decides; this writes, by server-side apply without force. What stands there from another owner is
left out beforehand; one that came in between is a 409, and the next look knows it. Labels select nodes for policies,
so a policy can undo its own reason: writes to one node are few in a minute, and then we rest and say so.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from nodedevices_api import conditions as names
from nodedevices_api.sections import Labels

from nodedevices_operator.desired.labels import plan_labels
from nodedevices_operator.desired.policy_status import Verdict
from nodedevices_operator.kube.apply import Writer
from nodedevices_operator.kube.port import KubeError, Object
from nodedevices_operator.records.objects import NodeDevicesRecord, NodeRecord

FORBIDDEN_SECONDS = 60.0
MOST_WRITES, WINDOW_SECONDS = 6, 60.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LabelResult:
    verdict: Verdict | None = None  # of LabelsSynced; None: no policy asks for labels, the condition goes
    again: float | None = None  # seconds after which to look again
    problem: KubeError | None = None  # to be tried again by back-off
    node: Object | None = None  # the Node as it is after a write


class NodeLabels:
    """All nodes; one node at a time by the key queue."""

    def __init__(
        self, writer: Writer, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        self._writer = writer
        self._clock = clock
        self._wall = wall
        self._writes: dict[str, deque[float]] = {}

    def forget(self, node: str) -> None:
        self._writes.pop(node, None)

    async def sync(self, section: Labels, record: NodeDevicesRecord, node: NodeRecord) -> LabelResult:
        """Make the Node show what it shall."""
        plan = plan_labels(section, record, node, now=int(self._wall()))
        asked = section.feature_discovery or bool(section.extra)
        verdict = (plan.status, plan.reason, plan.message) if asked else None
        if plan.matches(node):
            return LabelResult(verdict)
        if self._restless(node.name):
            text = (
                f"{MOST_WRITES} changes within a minute; another writer, or a policy whose nodeSelector depends on "
                "the labels that it sets"
            )
            return LabelResult(("False", names.CONFLICT, text), again=WINDOW_SECONDS)
        try:
            written = await self._writer.labels(node, plan.values)
        except KubeError as error:
            text = f"could not write the Node's labels: {error}"
            if error.forbidden:
                return LabelResult(("False", names.FORBIDDEN, text), again=FORBIDDEN_SECONDS)
            return LabelResult(("False", names.PENDING, text), problem=error)
        log.info("labels set", node=node.name, labels=len(plan.values))
        return LabelResult(verdict, node=written)

    def _restless(self, node: str) -> bool:
        """Whether to rest instead of writing; counts this write when not."""
        now = self._clock()
        writes = self._writes.setdefault(node, deque(maxlen=MOST_WRITES))
        if len(writes) == MOST_WRITES and now - writes[0] < WINDOW_SECONDS:
            return True
        writes.append(now)
        return False
