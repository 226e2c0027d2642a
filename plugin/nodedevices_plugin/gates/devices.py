"""Devices and partitions that no new container gets because of how they are: not fit for use (these stay listed, and
the kubelet shows their pods that they are not healthy), taken out of service by people (NodeDevices
`spec.unschedulable`), of a probe that was taken away (pipeline.probe_set), or at the place of another one, of now or
before (pipeline.places): a pod that holds that one may reach this.
"""

from __future__ import annotations

from collections.abc import Mapping

from nodedevices_api.withheld import CORDONED, PROBE_REMOVED, SAME_PLACE, UNHEALTHY
from nodedevices_common.times import rfc3339

from nodedevices_plugin.gates.base import Check, GateFacts, by_device
from nodedevices_plugin.model import Blocked, Cordon, InventoryDevice, OfferedResource, Plan, SchedulableId, Verdict
from nodedevices_plugin.model.health import HealthState

UNKNOWN = "not reported by its probe yet"
GONE = "no longer listed by its driver"


def health(shape: Plan, facts: GateFacts) -> Check | None:
    devices = {device.fact.id: device for device in facts.inventory.devices}
    found: dict[str, Blocked | None] = {}  # by device or partition
    for device in facts.inventory.devices:
        for part in (None, *(partition.id for partition in device.fact.partitions)):
            found[part or device.fact.id] = unfit(device, part, facts.verdicts)
    if not any(found.values()) and all(
        schedulable.part_id in found for resource in shape.resources for schedulable in resource.ids
    ):
        return None

    def check(resource: OfferedResource, schedulable: SchedulableId) -> Blocked | None:
        if schedulable.part_id not in found:
            found[schedulable.part_id] = unfit(
                devices.get(schedulable.device_id), schedulable.partition_id, facts.verdicts
            )
        return found[schedulable.part_id]

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


def cordon(shape: Plan, facts: GateFacts) -> Check | None:
    if not facts.cordons:
        return None
    by_id = {cordon.id: Blocked(reason=CORDONED, message=_cordoned(cordon)) for cordon in reversed(facts.cordons)}

    def check(resource: OfferedResource, schedulable: SchedulableId) -> Blocked | None:
        return by_id.get(schedulable.device_id) or by_id.get(schedulable.partition_id or "")

    return check


def _cordoned(cordon: Cordon) -> str:
    until = f" until {rfc3339(cordon.until)}" if cordon.until else ""
    by = f" by {cordon.by}" if cordon.by else ""
    why = f": {cordon.reason}" if cordon.reason else ""
    return f"taken out of service{by}{until}{why}"


def removed_probe(shape: Plan, facts: GateFacts) -> Check | None:
    return by_device(PROBE_REMOVED, facts.removed_probes)


def place(shape: Plan, facts: GateFacts) -> Check | None:
    return by_device(SAME_PLACE, facts.places, parts=True)
