"""Events on the NodeDevices: a device that people take out of service (spec.unschedulable), and one that they bring
back; desired/service.py says which.

What was taken out long before the operator's start was reported then, and is not reported again. An object that was
deleted comes back with its entries: that is no news.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from nodedevices_operator.concerns.port import Info, Outcome, View
from nodedevices_operator.concerns.tools import Tools
from nodedevices_operator.desired import events
from nodedevices_operator.desired.service import changes, out_of_service
from nodedevices_operator.records.objects import OutOfServiceRecord

KnownOutOfService = Mapping[str, OutOfServiceRecord]  # by id


class ServiceEventsDesired(Struct, frozen=True):
    now: KnownOutOfService
    bodies: tuple[Mapping[str, object], ...]
    next_seconds: float | None  # until an entry is over by itself


class ServiceEventsConcern:
    info = Info("service-events")

    def __init__(self, tools: Tools) -> None:
        self._events = tools.events
        self._known: dict[str, KnownOutOfService] = {}  # by node

    def forget(self, node: str) -> None:
        self._known.pop(node, None)

    async def observe(self, view: View) -> tuple[KnownOutOfService | None] | Outcome:
        known, sections = self._known.get(view.record.name), view.sections
        if sections is not None and not sections.faults.event:
            return Outcome()
        if not view.reported:  # it is not known which devices the node has
            return Outcome()
        if not known and known is not None and not view.record.out_of_service:
            return Outcome()
        return (known,)

    def desired(self, view: View, observed: tuple[KnownOutOfService | None]) -> ServiceEventsDesired:
        now, wait = out_of_service(view.record, view.now)
        about = events.About("NodeDevices", view.record.name, view.record.uid)
        bodies = tuple(
            events.service(about, each.what, each.text, view.now, back=each.back)
            for each in changes(view.record, observed[0], now, view.now)
        )
        return ServiceEventsDesired(now, bodies, wait)

    async def apply(self, view: View, desired: ServiceEventsDesired) -> Outcome:
        for body in desired.bodies:
            self._events.write(view.record.name, body)
        self._known[view.record.name] = desired.now
        return Outcome(requeue_after=desired.next_seconds)
