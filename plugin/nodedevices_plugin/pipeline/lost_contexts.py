"""Containers whose device fell off the bus under them: what they had on it is lost, also once the device is back.

They are noticed while the device is at fault, and remembered until they no longer hold it, or the machine has booted.
Whether such a container has restarted since, which ends it, the kubelet's lists do not say: the operator reads the pod.
"""

from __future__ import annotations

from collections.abc import Mapping

from nodedevices_plugin.health.events import must_leave
from nodedevices_plugin.health.levels import FALLEN_OFF_BUS
from nodedevices_plugin.model import HealthState, HoldersState, Holdings, Inventory, Verdict
from nodedevices_plugin.model.ids import physical_id
from nodedevices_plugin.vendors.faults import FaultSource, FaultSources, source_of

LostContexts = Mapping[str, Verdict]  # by `key`: what the container shows once the device itself is no longer at fault


def key(namespace: str, pod: str, container: str, by: str | None, device: str) -> str:
    """`by`: the resource or the claim by which the container has the device."""
    return f"{namespace}/{pod}/{container}/{by} {device}"


def follow(
    before: LostContexts,
    inventory: Inventory,
    verdicts: Mapping[str, Verdict],
    holdings: Holdings,
    vendors: FaultSources,
    *,
    boot_id: str,
) -> LostContexts:
    """Return what is known now. `holdings`: by our own ids; `boot_id`: of the boot that `before` is about."""
    booted = "" not in {boot_id, inventory.boot_id} and boot_id != inventory.boot_id
    known = {} if booted else before
    device_of = {part.id: device.fact.id for device in inventory.devices for part in device.fact.partitions}
    lost = {
        device.fact.id: found
        for device in inventory.devices
        if (verdict := verdicts.get(device.fact.id)) is not None
        and (found := _lost(verdict, source_of(vendors, device.fact), inventory.boot_id)) is not None
    }
    held = {
        key(holder.namespace, holder.pod, holder.container, holder.resource or holder.claim, device): device
        for holder in holdings.holders
        for part in map(physical_id, (*holder.ids, *holder.also))
        for device in [device_of.get(part, part)]
    }
    kept = {each: was for each, was in known.items() if each in held or holdings.state is not HoldersState.SYNCED}
    return kept | {each: lost[device] for each, device in held.items() if device in lost}


def _lost(verdict: Verdict, vendor: FaultSource, boot_id: str) -> Verdict | None:
    """Return the verdict for who holds a device with this one; None: it has not fallen off the bus in this boot."""
    faults = [
        each
        for each in verdict.faults
        if each.state is HealthState.UNHEALTHY
        and each.boot_id == boot_id
        and (each.reason == FALLEN_OFF_BUS or must_leave(each, vendor))
    ]
    if not faults:
        return None
    worst = faults[0]
    return Verdict(
        state=HealthState.UNHEALTHY,
        reason=worst.reason,
        message=f"{worst.message}; what the container had on it then is lost, also once it is back",
        since=max(each.since for each in faults),
        offered=False,
        xid=worst.xid,
        recovery_action="RestartApp",
        fault_domain=worst.fault_domain,
    )
