"""An Event on the NodeDevices when its kubelet has given a device to two pods, as the condition AllocatedOnce says.

One for each device and set of pods that it names. One of long before the operator's start was written then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from nodedevices_api.conditions import ALLOCATED_ONCE, DOUBLE_ALLOCATION
from nodedevices_common.conditions import ConditionRecord

from nodedevices_operator.concerns.port import Info, Outcome, View
from nodedevices_operator.concerns.tools import Tools
from nodedevices_operator.desired import events
from nodedevices_operator.desired.pods import may_have_expired


class DoubleAllocationNews(Struct, frozen=True):
    """What the condition says, and the Event about it; None: it was written long ago."""

    message: str
    event: Mapping[str, Any] | None


class DoubleAllocationEventsConcern:
    info = Info("double-allocation-events", section="faults", informs=True)

    def __init__(self, tools: Tools) -> None:
        self._events = tools.events
        self._written: dict[str, str] = {}  # by node: the message of the condition that an Event was written about

    def forget(self, node: str) -> None:
        self._written.pop(node, None)

    async def observe(self, view: View) -> tuple[ConditionRecord, bool] | Outcome:
        """The condition, and whether an earlier one is known."""
        sections, shown = view.sections, view.record.condition(ALLOCATED_ONCE)
        if shown is None or shown.status != "False":
            self._written.pop(view.record.name, None)
            return Outcome()
        said = self._written.get(view.record.name) == shown.message
        if said or not view.reported or sections is None or not sections.faults.event:
            return Outcome()
        return shown, view.record.name in self._written

    def desired(self, view: View, observed: tuple[ConditionRecord, bool]) -> DoubleAllocationNews:
        shown, earlier = observed
        if not earlier and may_have_expired(shown.since, view.now):
            return DoubleAllocationNews(shown.message, None)
        about = events.About("NodeDevices", view.record.name, view.record.uid)
        what = events.EventIdentity(view.record.name, shown.message, DOUBLE_ALLOCATION, shown.since)
        return DoubleAllocationNews(shown.message, events.double_allocation(about, what, shown.message, view.now))

    async def apply(self, view: View, desired: DoubleAllocationNews) -> Outcome:
        if desired.event is not None:
            self._events.write(view.record.name, desired.event)
        self._written[view.record.name] = desired.message
        return Outcome()
