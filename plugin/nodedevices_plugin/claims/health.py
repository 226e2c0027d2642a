"""The health of the devices that DRA serves, as the kubelet shows it in the status of the pods that have them.

It is the verdict, and nothing of who may have the device: one that is out of service for a person's reasons is
healthy. The taint of a device that is not healthy has its reason from the same verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct
from nodedevices_api.conditions import MISSING

from nodedevices_plugin.claims.records import Record
from nodedevices_plugin.model import HealthState, Inventory, OfferedResource, Verdict, device_names, devices_by_id


class DeviceHealth(Struct, frozen=True, kw_only=True):
    """`name`: in the slices. `reason`: of the verdict; its message may change by the minute, and a pod's status with
    it."""

    name: str
    state: HealthState
    reason: str = ""


def verdict_of(part_id: str, device_id: str, verdicts: Mapping[str, Verdict]) -> Verdict | None:
    """Return the verdict on a device, or on a partition: that of its device where that one is not offered."""
    whole = verdicts.get(device_id)
    return whole if whole is not None and not whole.offered else verdicts.get(part_id, whole)


def pool_health(
    resources: Iterable[OfferedResource],
    records: Iterable[Record],
    inventory: Inventory,
    verdicts: Mapping[str, Verdict],
) -> tuple[DeviceHealth, ...]:
    """Return the health of what these resources offer, and of what claims have."""
    names = device_names(inventory)
    parts = {
        schedulable.part_id: names.get(schedulable.part_id)
        for resource in resources
        for schedulable in (*resource.ids, *resource.unlisted)
    } | {entry.part_id: entry.result.device for record in records for entry in record.prepared}
    devices = devices_by_id(inventory)
    found = []
    for part_id, name in parts.items():
        if name is None:
            continue  # its driver no longer lists it, and no claim has it
        device = devices.get(part_id)
        if device is None or part_id in device.departed_partitions:
            found.append(DeviceHealth(name=name, state=HealthState.UNHEALTHY, reason=MISSING))
        elif (verdict := verdict_of(part_id, device.fact.id, verdicts)) is None:
            found.append(DeviceHealth(name=name, state=HealthState.UNKNOWN))
        else:
            found.append(DeviceHealth(name=name, state=verdict.state, reason=verdict.reason))
    return tuple(found)
