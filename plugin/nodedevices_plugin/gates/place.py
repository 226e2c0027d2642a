"""Devices and partitions at the place of another one, of now or before: a pod that holds that one may reach this
(pipeline.places)."""

from __future__ import annotations

from nodedevices_api.withheld import SAME_PLACE

from nodedevices_plugin.gates.base import Check, GateFacts
from nodedevices_plugin.model import Blocked, OfferedResource, Plan, SchedulableId


def place(shape: Plan, facts: GateFacts) -> Check | None:
    blocked = {id_: Blocked(reason=SAME_PLACE, message=message) for id_, message in facts.places.items()}

    def check(resource: OfferedResource, each: SchedulableId) -> Blocked | None:
        return blocked.get(each.part_id)

    return check if blocked else None
