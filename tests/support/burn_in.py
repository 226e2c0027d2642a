# ruff: noqa: I001  the imports as plugin/ has them
"""The gate of docs/extending.md: devices that a burn-in test has not passed go to no new container."""

from __future__ import annotations

from nodedevices_probe.protocol import Attribute

from nodedevices_plugin.gates.base import Check, GateFacts, by_device
from nodedevices_plugin.model import Plan

BURN_IN = "BurnIn"  # step 3 moves it to nodedevices_api.withheld


def burn_in(shape: Plan, facts: GateFacts) -> Check | None:
    devices = (device.fact for device in facts.inventory.devices)
    running = [each.id for each in devices if each.extra.get("burnIn") == Attribute(string="running")]
    return by_device(BURN_IN, dict.fromkeys(running, "its burn-in test runs"))
