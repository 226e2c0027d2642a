"""The gate of docs/extending.md: devices that a burn-in test has not passed go to no new container."""

from __future__ import annotations

from nodedevices_plugin.gates.base import Check, GateFacts
from nodedevices_plugin.model import Blocked, OfferedResource, Plan, SchedulableId
from nodedevices_probe.protocol import Attribute


def burn_in(shape: Plan, facts: GateFacts) -> Check | None:
    devices = (device.fact for device in facts.inventory.devices)
    running = {each.id for each in devices if each.extra.get("burnIn") == Attribute(string="running")}
    if not running:
        return None
    blocked = Blocked(reason="BurnIn", message="its burn-in test runs")

    def check(resource: OfferedResource, each: SchedulableId) -> Blocked | None:
        return blocked if each.device_id in running else None

    return check
