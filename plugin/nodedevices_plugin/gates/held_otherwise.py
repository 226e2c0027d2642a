"""Devices that pods hold in another shape than this one: a whole GPU that is now offered in shares, a share of a
configuration of before, an id of another plugin. The kubelet knows ids and not devices, and would give the same device
out a second time."""

from __future__ import annotations

from nodedevices_api.withheld import HELD_IN_ANOTHER_SHAPE

from nodedevices_plugin.gates.base import Check, GateFacts
from nodedevices_plugin.model import Blocked, OfferedResource, Plan, SchedulableId
from nodedevices_plugin.offering.occupancy import HeldId, Parts, collide

MESSAGE = "held under another resource or id"


def held_otherwise(shape: Plan, facts: GateFacts) -> Check | None:
    if not facts.held_otherwise:
        return None
    parts = Parts.from_inventory(facts.inventory)
    by_device: dict[str, list[HeldId]] = {}
    for each in facts.held_otherwise:
        by_device.setdefault(each.device_id, []).append(each)
    found: dict[str, Blocked | None] = {}

    def blocked(device_id: str, partition_id: str | None) -> Blocked | None:
        here = [each for each in by_device.get(device_id, ()) if collide(partition_id, each, parts)]
        pods = dict.fromkeys(each.holder for each in here if each.holder)
        return Blocked(reason=HELD_IN_ANOTHER_SHAPE, message=MESSAGE, waits_for=tuple(pods)) if here else None

    def check(resource: OfferedResource, each: SchedulableId) -> Blocked | None:
        part = each.partition_id or each.device_id
        if part not in found:
            found[part] = blocked(each.device_id, each.partition_id)
        return found[part]

    return check
