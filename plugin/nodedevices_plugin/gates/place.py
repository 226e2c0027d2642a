"""Devices and partitions at the place of another one, of now or before: a pod that holds that one may reach this
(pipeline.places)."""

from __future__ import annotations

from nodedevices_api.withheld import SAME_PLACE

from nodedevices_plugin.gates.base import Check, GateFacts, by_device
from nodedevices_plugin.model import Plan


def place(shape: Plan, facts: GateFacts) -> Check | None:
    return by_device(SAME_PLACE, facts.places, parts=True)
