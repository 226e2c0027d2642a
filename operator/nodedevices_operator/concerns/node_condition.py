"""The Node condition nodedevices.io/DevicesHealthy; decided in desired/node.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import structlog
from nodedevices_common.conditions import same

from nodedevices_operator.concerns.port import Info, Outcome, View, hindered
from nodedevices_operator.concerns.tools import Tools
from nodedevices_operator.desired.node import node_condition
from nodedevices_operator.desired.stale import Staleness
from nodedevices_operator.kube.port import KubeError
from nodedevices_operator.records.kinds import Kind
from nodedevices_operator.records.objects import NodeRecord

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class NodeConditionObserved:
    node: NodeRecord
    staleness: Staleness
    wanted: bool  # by the policy


class NodeConditionConcern:
    info = Info("node-condition", section="faults", informs=True)

    def __init__(self, tools: Tools) -> None:
        self._writer = tools.writer

    async def observe(self, view: View) -> NodeConditionObserved | Outcome:
        target = view.target()
        if target is None or view.staleness is None:
            return Outcome()
        node, sections = target
        return NodeConditionObserved(node, view.staleness, sections.faults.node_condition)

    def desired(self, view: View, observed: NodeConditionObserved) -> tuple[NodeRecord, dict[str, Any] | None]:
        node = observed.node
        return node, node_condition(
            view.record, observed.staleness, wanted=observed.wanted, previous=node.condition, now=view.now
        )

    async def apply(self, view: View, desired: tuple[NodeRecord, dict[str, Any] | None]) -> Outcome:
        node, wanted = desired
        if same(node.condition, wanted) or (wanted is None and not node.condition_owned):
            return Outcome()
        try:
            view.wrote(Kind.NODE, await self._writer.node_condition(node, wanted))
        except KubeError as error:
            return Outcome(problems=(error,), hindrance=hindered(error))
        status, reason = (wanted["status"], wanted["reason"]) if wanted is not None else ("removed", "")
        log.info("node condition set", node=node.name, status=status, reason=reason)
        return Outcome()

    def forget(self, node: str) -> None:
        """Nothing is remembered of a node."""
