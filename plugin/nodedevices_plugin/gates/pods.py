"""Shares of computing power, while it is not known which pods could request them: an Allocate names none. Those that
are held stay as they are."""

from __future__ import annotations

from nodedevices_api.withheld import PODS_UNKNOWN

from nodedevices_plugin.gates.base import Check, GateFacts
from nodedevices_plugin.model import Blocked, OfferedResource, Plan, SchedulableId


def pods_unknown(shape: Plan, facts: GateFacts) -> Check | None:
    if facts.pods.pods is not None or not any(each.sharing.cores for each in shape.resources):
        return None
    in_use = facts.in_use()
    blocked = Blocked(reason=PODS_UNKNOWN, message=f"this node's pods are not known: {facts.pods.problem}")

    def check(resource: OfferedResource, each: SchedulableId) -> Blocked | None:
        return blocked if resource.sharing.cores and (resource.name, each.id) not in in_use else None

    return check
