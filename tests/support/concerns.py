"""One concern of the operator alone: run once, and its outcome as a test reads it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from nodedevices_api.defaults import with_defaults
from nodedevices_api.sections import Sections
from nodedevices_operator.cache.rejected import RejectedPods
from nodedevices_operator.cache.rollouts import Rollouts
from nodedevices_operator.cache.store import Cache
from nodedevices_operator.concerns.device_events import RejectionEventsConcern
from nodedevices_operator.concerns.fleet_gate import FleetGate
from nodedevices_operator.concerns.port import Concern, Shown, Tools, View
from nodedevices_operator.desired.configuration import Understood
from nodedevices_operator.desired.fleet import Action, ActionAnswer
from nodedevices_operator.kube.apply import Writer, utc_now
from nodedevices_operator.metrics import OperatorMetrics
from nodedevices_operator.records.names import pod_path
from nodedevices_operator.records.objects import NodeDevicesRecord, NodeRecord
from support.fakekube import FakeKube
from support.marking import events_sent
from support.opfacts import SINCE, node


@dataclass(frozen=True)
class Result:
    """`shown`: status, reason and message of the condition, or what becomes of it."""

    shown: tuple[str, str, str] | Shown
    again: float | None
    retried: bool

    @property
    def reason(self) -> str:
        return self.shown[1] if isinstance(self.shown, tuple) else self.shown.name

    @property
    def message(self) -> str:
        return self.shown[2] if isinstance(self.shown, tuple) else ""


class Granting(FleetGate):
    """A fleet gate that grants everything; `proposed` is what every node wants, by kind."""

    def __init__(self) -> None:
        self.proposed: dict[tuple[str, str], Sequence[Action]] = {}

    def propose(self, node: str, kind: str, actions: Sequence[Action]) -> None:
        self.proposed[node, kind] = actions

    def answer(self, _action: Action) -> ActionAnswer | None:
        return ActionAnswer(granted=True)

    def stopped(self) -> str:
        return ""

    def acted_on(self, _node: str) -> None:
        return None


def tools(
    kube: Any,
    clock: Callable[[], float] = time.monotonic,
    wall: Callable[[], float] = time.time,
    *,
    metrics: OperatorMetrics | None = None,
    now: Callable[[], str] = utc_now,
    gate: FleetGate | None = None,
    **more: Any,
) -> Tools:
    """`kube` needs no more of the port than the concern uses."""
    metrics = metrics or OperatorMetrics()
    rollouts = Rollouts(policies=dict, enqueue=lambda _: None, changed=lambda _: None)
    rejected = more.pop("rejected", RejectedPods(kube))
    writer = Writer(kube, metrics, now)
    return Tools(writer, metrics, gate or Granting(), rollouts, rejected, clock=clock, wall=wall, **more)


def view(record: NodeDevicesRecord, node: NodeRecord | None, sections: Sections) -> View:
    return View(
        before=record,
        record=record,
        node=node,
        cache=Cache(),
        dirty=lambda _: None,
        infos=(),
        now="2026-11-21T12:00:00Z",
        understood=Understood(with_defaults(sections)),
    )


async def run(
    concern: Concern[Any], record: NodeDevicesRecord, node: NodeRecord, sections: Sections | None = None
) -> Result:
    return await run_seen(concern, view(record, node, sections or Sections()))


async def run_seen(concern: Concern[Any], seen: View) -> Result:
    """As the reconciler runs it, but that what it raises is raised."""
    found = await concern.reconcile(seen)
    await events_sent()
    return Result(found.verdict, found.requeue_after, found.retried)


class RejectionBench:
    """The concern about rejected pods of node n1, its API server in memory, so many seconds after the pods' start."""

    def __init__(self, shown: NodeDevicesRecord, *, seconds: float, kube: FakeKube | None = None) -> None:
        self.shown, self.seconds = shown, seconds
        self.kube, self.metrics = kube or FakeKube(), OperatorMetrics()
        self.pods = RejectedPods(self.kube)
        self.concern = RejectionEventsConcern(
            tools(
                self.kube,
                lambda: self.seconds,
                metrics=self.metrics,
                now=lambda: SINCE,
                wall=lambda: datetime.fromisoformat(SINCE).timestamp() + self.seconds,
                rejected=self.pods,
            )
        )

    def put(self, raw: dict[str, Any]) -> None:
        self.kube.put(pod_path("ml", raw["metadata"]["name"]), raw)

    async def run(self, shown: NodeDevicesRecord | None = None) -> Result:
        await self.pods.once()
        return await run(self.concern, shown or self.shown, node({}))
