"""Losses: all devices of a probe, or what a container had on a device.

A probe that sees none of the devices that the node has makes the agent not ready, and no device faulty
(health.machine's `blind`).

A roll-out that loses the driver (a library that is not mounted, a forgotten RuntimeClass, another probe than before) is
to stop at the first node, and a DaemonSet stops only at a pod that is not Ready. What the node has is known from the
state file, which remembers the devices of every probe, and from the hardware that the kernel shows.

A node that never had a device lacks none. Neither does one whose devices are all out of service by hand, were confirmed
as removed or were forgotten (`health.forgetMissingSeconds`): a person has said so. A device that is present and faulty
is not lost: that is what health is for, and a new version of the agent would change nothing about it.

A container whose device fell off the bus under it has lost what it had there, also once the device is back. Such
containers are noticed while the device is at fault, and remembered until they no longer hold it, or the machine has
booted. Whether such a container has restarted since, which ends it, the kubelet's lists do not say: the operator reads
the pod.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from nodedevices_common.text import NAMED, listing
from nodedevices_probe.protocol import DriverState

from nodedevices_plugin.health.events import must_leave
from nodedevices_plugin.health.levels import FALLEN_OFF_BUS
from nodedevices_plugin.model import (
    HealthState,
    HoldersState,
    Holdings,
    Inventory,
    Verdict,
    device_names,
    facts_by_id,
    physical_id,
)
from nodedevices_plugin.vendors.faults import FaultSource, FaultSources, source_of


def lost_devices(
    parts: Mapping[str, Inventory],
    *,
    hardware: Set[str],
    given_up: Set[str],
    left: Mapping[str, int],
) -> dict[str, str]:
    """Return why each of these probes counts as having lost its devices, for people; empty: none has.

    `parts`: each running probe's devices, reported or remembered, by name. `hardware`: the names of the built-in probes
    with hardware that the kernel shows. `given_up`: ids of devices that people took out of service, or confirmed as
    removed. `left`: by probe that no longer runs, how many devices the state file had at the start of this agent.
    """
    found = {name: why for name, part in parts.items() if (why := _why(part, name in hardware, given_up))}
    return found | {
        name: f"its {count} devices were offered before this agent started, and no probe that runs now sees any;"
        " if the probe was removed on purpose, delete this pod once more"
        for name, count in left_behind(parts, left).items()
    }


def left_behind(parts: Mapping[str, Inventory], left: Mapping[str, int]) -> Mapping[str, int]:
    """Return how many devices the probes had that no longer run, where no probe that runs sees any device."""
    return {} if any(_seen(part) for part in parts.values()) else left


def is_blind(part: Inventory, given_up: Set[str]) -> bool:
    """True when the probe sees none of the devices that it had: then it knows nothing about any of them."""
    return not _seen(part) and any(device.fact.id not in given_up for device in part.devices)


def _seen(part: Inventory) -> bool:
    loaded = part.driver is not None and part.driver.state is DriverState.LOADED
    return loaded and any(device.present for device in part.devices)


def _why(part: Inventory, hardware: bool, given_up: Set[str]) -> str:
    if _seen(part):
        return ""
    if is_blind(part, given_up):
        known = [device for device in part.devices if device.fact.id not in given_up]
        names = device_names(part)
        listed = listing([names[device.fact.id] for device in known])
        return f"{len(known)} devices were here ({listed}), but none is seen now: {_said(part)}"
    if part.driver is not None and part.driver.state is not DriverState.LOADED and hardware and not part.devices:
        return f"its hardware is on this node, but its driver is not loaded: {_said(part)}"
    return ""


def _said(part: Inventory) -> str:
    """Return the probe's own report of it."""
    if part.line_monotonic is None:
        return "it has not reported yet"
    problems = "; ".join(f"{problem.code}: {problem.message}" for problem in part.problems[:NAMED])
    return problems or "it reports no device"


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
        message=f"{worst.message}; what the container had on the device is lost, even after the device returns",
        since=max(fault.since for fault in faults),
        offered=False,
        xid=worst.xid,
        recovery_action="RestartApp",
        fault_domain=worst.fault_domain,
    )
