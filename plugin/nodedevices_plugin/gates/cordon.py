"""Devices and partitions that people took out of service (NodeDevices `spec.unschedulable`)."""

from __future__ import annotations

from nodedevices_api.withheld import CORDONED
from nodedevices_common.times import rfc3339

from nodedevices_plugin.gates.base import Check, GateFacts
from nodedevices_plugin.model import Blocked, Cordon, OfferedResource, Plan, SchedulableId


def cordon(shape: Plan, facts: GateFacts) -> Check | None:
    if not facts.cordons:
        return None
    by_id = {each.id: Blocked(reason=CORDONED, message=_said(each)) for each in reversed(facts.cordons)}

    def check(resource: OfferedResource, each: SchedulableId) -> Blocked | None:
        return by_id.get(each.device_id) or by_id.get(each.partition_id or "")

    return check


def _said(cordon: Cordon) -> str:
    until = f" until {rfc3339(cordon.until)}" if cordon.until else ""
    by = f" by {cordon.by}" if cordon.by else ""
    why = f": {cordon.reason}" if cordon.reason else ""
    return f"taken out of service{by}{until}{why}"
