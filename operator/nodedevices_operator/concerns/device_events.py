"""Events on the NodeDevices about its devices; desired/device_news.py says which."""

from __future__ import annotations

from nodedevices_operator.concerns.port import Info, Outcome, View
from nodedevices_operator.concerns.tools import Tools
from nodedevices_operator.desired.device_news import Reported, news


class DeviceEventsConcern:
    info = Info("device-events", section="faults", informs=True)

    def __init__(self, tools: Tools) -> None:
        self._events = tools.events
        self._reported: dict[str, Reported] = {}  # by node

    def forget(self, node: str) -> None:
        self._reported.pop(node, None)
        self._events.forget(node)

    async def reconcile(self, view: View) -> Outcome:
        name, sections = view.record.name, view.sections
        if not view.reported or sections is None or not sections.faults.event:
            return Outcome()
        bodies, self._reported[name], over = news(view.record, self._reported.get(name), view.now)
        for body in bodies:
            self._events.write(name, body)
        waits = (wait for wait in (over, self._events.sum_up(view.record)) if wait is not None)
        return Outcome(requeue_after=min(waits, default=None))
