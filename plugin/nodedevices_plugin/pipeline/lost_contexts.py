"""Containers whose device fell off the bus under them: what they had on it is lost, also once the device is back.

They are noticed while the device is at fault, and remembered until they no longer hold it, or the machine has booted.
Whether such a container has restarted since, which ends it, the kubelet's lists do not say: the operator reads the pod.
"""

from __future__ import annotations

from collections.abc import Mapping

from nodedevices_plugin.health.events import must_leave
from nodedevices_plugin.health.levels import FALLEN_OFF_BUS
from nodedevices_plugin.model import HealthState, HoldersState, Holdings, Inventory, Verdict, facts_by_id
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
    lost = {
        device.fact.id: found
        for device in inventory.devices
        if (verdict := verdicts.get(device.fact.id)) is not None
        and (found := _lost(verdict, source_of(vendors, device.fact), inventory.boot_id)) is not None
    }
    if not known and not lost:
        return {}
    devices = facts_by_id(inventory)
    held = {
        key(holder.namespace, holder.pod, holder.container, holder.resource or holder.claim, device): device
        for holder in holdings.holders
        for part in map(physical_id, (*holder.ids, *holder.also))
        for device in [devices[part].id if part in devices else part]
    }
    kept = {name: was for name, was in known.items() if name in held or holdings.state is not HoldersState.SYNCED}
    return kept | {name: lost[device] for name, device in held.items() if device in lost}


def _lost(verdict: Verdict, vendor: FaultSource, boot_id: str) -> Verdict | None:
    """Return the verdict for who holds a device with this one; None: it has not fallen off the bus in this boot."""
    faults = [
        fault
        for fault in verdict.faults
        if fault.state is HealthState.UNHEALTHY
        and fault.boot_id == boot_id
        and (fault.reason == FALLEN_OFF_BUS or must_leave(fault, vendor))
    ]
    if not faults:
        return None
    worst = faults[0]
    return Verdict(
        state=HealthState.UNHEALTHY,
        reason=worst.reason,
        message=f"{worst.message}; what the container had on it then is lost, also once it is back",
        since=max(fault.since for fault in faults),
        offered=False,
        xid=worst.xid,
        recovery_action="RestartApp",
        fault_domain=worst.fault_domain,
    )
