"""Devices and partitions that are not fit for use: they stay listed, and the kubelet shows their pods that they are
not healthy."""

from __future__ import annotations

from collections.abc import Mapping

from nodedevices_api.withheld import UNHEALTHY

from nodedevices_plugin.gates.base import Check, GateFacts
from nodedevices_plugin.model import Blocked, InventoryDevice, OfferedResource, Plan, SchedulableId, Verdict
from nodedevices_plugin.model.health import HealthState

UNKNOWN = "not reported by its probe yet"
GONE = "no longer listed by its driver"


def health(shape: Plan, facts: GateFacts) -> Check | None:
    devices = {device.fact.id: device for device in facts.inventory.devices}
    found: dict[str, Blocked | None] = {}  # by device or partition
    for device in facts.inventory.devices:
        for part in (None, *(each.id for each in device.fact.partitions)):
            found[part or device.fact.id] = unfit(device, part, facts.verdicts)
    if not any(found.values()) and all(each.part_id in found for resource in shape.resources for each in resource.ids):
        return None

    def check(resource: OfferedResource, each: SchedulableId) -> Blocked | None:
        if each.part_id not in found:
            found[each.part_id] = unfit(devices.get(each.device_id), each.partition_id, facts.verdicts)
        return found[each.part_id]

    return check


def unfit(device: InventoryDevice | None, partition_id: str | None, verdicts: Mapping[str, Verdict]) -> Blocked | None:
    """Return why this device, or this partition of it, is not to be allocated; None: it may be."""
    if device is None:
        return _blocked(GONE)
    verdict = verdicts.get(device.fact.id)
    if verdict is None:
        return _blocked(UNKNOWN)
    if not verdict.offered:
        return _blocked(_said(verdict))
    if not device.present:
        return _blocked(GONE)
    if partition_id is None:
        return None
    listed = any(part.id == partition_id for part in device.fact.partitions)
    if not listed or partition_id in device.departed_partitions:
        return _blocked(GONE)
    own = verdicts.get(partition_id)
    return _blocked(_said(own)) if own is not None and not own.offered else None


def _said(verdict: Verdict) -> str:
    """The reason alone: what is known beside it is in the device's own `health`, and may change by the minute."""
    return verdict.reason or (UNKNOWN if verdict.state is HealthState.UNKNOWN else str(verdict.state))


def _blocked(message: str) -> Blocked:
    return Blocked(reason=UNHEALTHY, message=message)
