"""The condition Stale: whether the NodeDevices may be out of date; decided in desired/stale.py.

Before a heartbeat is called overdue the object is read: a watch may have stalled, or the API server may have been away,
and then silence says nothing about the agent.
"""

from __future__ import annotations

from msgspec import Struct
from nodedevices_api import conditions as names

from nodedevices_operator.concerns.port import Info, Outcome, View
from nodedevices_operator.concerns.tools import Tools
from nodedevices_operator.desired.stale import OVERDUE_AFTER_SECONDS, Since, Staleness, judge
from nodedevices_operator.kube.port import KubeError
from nodedevices_operator.records.kinds import Kind
from nodedevices_operator.records.names import NODE_DEVICES, named
from nodedevices_operator.records.objects import HeartbeatArrival

AWAY_GRACE_SECONDS = 120.0  # for heartbeats to come after the API server's return


class Signs(Struct, frozen=True):
    """Signs that the agent runs, by the operator's monotonic clock."""

    arrival: HeartbeatArrival
    since: Since
    now: float
    problems: tuple[KubeError, ...] = ()


class Judged(Struct, frozen=True):
    staleness: Staleness
    since: Since
    problems: tuple[KubeError, ...]


class StalenessConcern:
    info = Info("staleness", condition=names.STALE, by_generation=False)

    def __init__(self, tools: Tools) -> None:
        self._kube = tools.writer.kube
        self._clock = tools.clock
        self._since: dict[str, Since] = {}  # by node, what `judge` remembers

    async def observe(self, view: View) -> Signs | Outcome:
        signs = self._signs(view)
        shown = view.record.condition(names.STALE)
        overdue = names.HEARTBEAT_OVERDUE
        if self.desired(view, signs).staleness.reason != overdue or (shown is not None and shown.reason == overdue):
            return signs
        name = view.record.name
        try:
            view.wrote(Kind.NODE_DEVICES, await self._kube.get(named(NODE_DEVICES, name)))
        except KubeError as error:
            view.cache.not_heard(name, self._clock() - OVERDUE_AFTER_SECONDS + AWAY_GRACE_SECONDS)
            return self._signs(view, error)
        return self._signs(view)

    def desired(self, view: View, observed: Signs) -> Judged:
        staleness, since = judge(
            view.record, view.node, arrival=observed.arrival, since=observed.since, now=observed.now
        )
        return Judged(staleness, since, observed.problems)

    async def apply(self, view: View, desired: Judged) -> Outcome:
        found = view.staleness = desired.staleness
        self._since[view.record.name] = desired.since
        return Outcome((found.status, found.reason, found.message), requeue_after=found.wait, problems=desired.problems)

    def forget(self, node: str) -> None:
        self._since.pop(node, None)

    def _signs(self, view: View, *problems: KubeError) -> Signs:
        name, now = view.record.name, self._clock()
        return Signs(
            view.cache.heartbeats.get(name) or HeartbeatArrival(now), self._since.get(name, Since()), now, problems
        )
