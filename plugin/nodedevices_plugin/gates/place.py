"""Devices whose place another one has, or had: a pod that holds that one may reach this (pipeline.places)."""

from __future__ import annotations

from nodedevices_api.withheld import SAME_PLACE

from nodedevices_plugin.gates.base import Check, GateFacts
from nodedevices_plugin.model import Blocked, OfferedResource, Plan, SchedulableId


def place(shape: Plan, facts: GateFacts) -> Check | None:
    by_device = {id_: Blocked(reason=SAME_PLACE, message=why) for id_, why in facts.places.items()}

    def check(resource: OfferedResource, each: SchedulableId) -> Blocked | None:
        return by_device.get(each.device_id)

    return check if by_device else None
