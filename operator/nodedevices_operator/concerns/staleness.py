"""The condition Stale: whether the NodeDevices may be out of date; decided in desired/stale.py.

Before a heartbeat is called overdue the object is read: a watch may have stalled, or the API server may have been away,
and then silence says nothing about the agent.
"""

from __future__ import annotations

from nodedevices_api import conditions as names

from nodedevices_operator.concerns.port import Info, Outcome, View
from nodedevices_operator.concerns.tools import Tools
from nodedevices_operator.desired.stale import OVERDUE_AFTER_SECONDS, Since, Staleness, judge
from nodedevices_operator.kube.port import KubeError
from nodedevices_operator.records.kinds import Kind
from nodedevices_operator.records.names import NODE_DEVICES, named
from nodedevices_operator.records.objects import HeartbeatArrival

AWAY_GRACE_SECONDS = 120.0  # for heartbeats to come after the API server's return


class StalenessConcern:
    info = Info("staleness", condition=names.STALE, by_generation=False)

    def __init__(self, tools: Tools) -> None:
        self._kube = tools.writer.kube
        self._clock = tools.clock
        self._since: dict[str, Since] = {}  # by node, what `judge` remembers

    async def reconcile(self, view: View) -> Outcome:
        name, shown = view.record.name, view.record.condition(names.STALE)
        problems: tuple[KubeError, ...] = ()
        found, since = self._judge(view)
        overdue = names.HEARTBEAT_OVERDUE
        if found.reason == overdue and (shown is None or shown.reason != overdue):
            try:
                view.wrote(Kind.NODE_DEVICES, await self._kube.get(named(NODE_DEVICES, name)))
            except KubeError as error:
                view.cache.not_heard(name, self._clock() - OVERDUE_AFTER_SECONDS + AWAY_GRACE_SECONDS)
                problems = (error,)
            found, since = self._judge(view)
        view.staleness = found
        self._since[name] = since
        return Outcome((found.status, found.reason, found.message), requeue_after=found.wait, problems=problems)

    def forget(self, node: str) -> None:
        self._since.pop(node, None)

    def _judge(self, view: View) -> tuple[Staleness, Since]:
        name, now = view.record.name, self._clock()
        arrival = view.cache.heartbeats.get(name) or HeartbeatArrival(now)
        return judge(view.record, view.node, arrival=arrival, since=self._since.get(name, Since()), now=now)
