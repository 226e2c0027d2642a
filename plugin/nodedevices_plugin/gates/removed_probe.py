"""Devices of a probe that was taken away (pipeline.probe_set), and what another reports at their places."""

from __future__ import annotations

from nodedevices_api.withheld import PROBE_REMOVED

from nodedevices_plugin.gates.base import Check, GateFacts
from nodedevices_plugin.model import Blocked, OfferedResource, Plan, SchedulableId


def removed_probe(shape: Plan, facts: GateFacts) -> Check | None:
    by_device = {id_: Blocked(reason=PROBE_REMOVED, message=why) for id_, why in facts.removed_probes.items()}

    def check(resource: OfferedResource, each: SchedulableId) -> Blocked | None:
        return by_device.get(each.device_id)

    return check if by_device else None
