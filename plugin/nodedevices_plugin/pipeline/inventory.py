"""The inventory: the devices that this node has, and those that it had.

A device is known by its id. A device that the probe no longer lists stays, not present, with its last facts. It goes
when no pod holds it and a person confirmed its removal or `forget_missing_seconds` are over: for an id that is dropped
from ListAndWatch the kubelet shows Healthy in the pod's status, so a vanished device must stay listed. The same holds
for a MIG device while a pod holds it. Only a good line makes a device missing or forgotten, neither silence nor a
restart; a device that comes back after it was forgotten is a new one. A device that does not answer keeps its known
facts, and one that a pod holds its attributes. While the driver is not loaded nothing can be seen, so nothing counts as
gone.

Each probe has its own inventory, so that its line, silence or driver does not affect another probe's devices; all of
them together are the node's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence, Set
from datetime import datetime, timedelta

from msgspec.structs import replace
from nodedevices_api.bounds import MAX_DEVICES, MAX_PARTITIONS
from nodedevices_common.text import some
from nodedevices_probe.node.sysfs import NODE_MISSING
from nodedevices_probe.protocol import (
    MAX_MESSAGE,
    MAX_OWN,
    DeviceFact,
    DriverState,
    Machine,
    Problem,
    Snapshot,
    text,
)

from nodedevices_plugin.model import Inventory, InventoryDevice

TOO_MANY_DEVICES = "TooManyDevices"
MISSING_KEPT = 32  # missing devices that are kept before those that are here, where there are too many
LEFT_OUT_NAMED = 8
SAME_ID = "SameId"
NODES_MISSING = "DeviceNodeMissing"


def update(
    previous: Inventory,
    snapshot: Snapshot,
    *,
    now: datetime,
    monotonic: float,
    held_partitions: frozenset[str] = frozenset(),
    held_devices: frozenset[str] = frozenset(),
    removed: frozenset[str] = frozenset(),
    forget_missing_seconds: int | None = None,
) -> Inventory:
    """The inventory after this line.

    `now` and `monotonic` (seconds, time.monotonic()) are when the line arrived, by the agent's clocks.
    `held_partitions`: ids of MIG devices that a pod holds (all, while that is not known).
    `held_devices`: ids of devices that a pod holds, whole or in part (all, while that is not known).
    `removed`: ids that a person confirmed as taken out, and that no pod holds.
    `forget_missing_seconds`: after how long a missing device that no pod holds is dropped; None: never.
    """
    before = {device.fact.id: device for device in previous.devices}
    driver_loaded = snapshot.driver.state is DriverState.LOADED
    listed = {fact.id: fact for fact in snapshot.devices}
    live = {part.id: fact.id for fact in listed.values() for part in fact.partitions}
    gone = held_partitions - live.keys()
    devices = [
        _seen(before.get(fact.id), fact, now, live, gone, held=fact.id in held_devices) for fact in listed.values()
    ]
    for device in (known for known in previous.devices if known.fact.id not in listed):
        if device.present and not driver_loaded:
            devices.append(device)
            continue
        kept = dataclasses.replace(device, present=False, last_seen=now) if device.present else device
        forget = forget_missing_seconds if driver_loaded and kept.fact.id not in held_devices else None
        if not is_released(kept, now, removed, forget):
            parts = frozenset(part.id for part in kept.fact.partitions)  # listed only while a pod holds them
            kept = dataclasses.replace(kept, departed_partitions=parts)
            devices.append(without_partitions(kept, parts - gone))
    newest_before = previous.newest_event if previous.instance == snapshot.instance else -1
    kept_devices, too_many = _ordered(devices)
    return Inventory(
        devices=kept_devices,
        driver=snapshot.driver,
        machine=snapshot.machine,
        boot_id=snapshot.boot_id,
        accelerators_on_bus=snapshot.accelerators_on_bus,
        problems=(*snapshot.problems, *too_many),
        instance=snapshot.instance,
        newest_event=max((event.sequence for event in snapshot.events), default=newest_before),
        read_after=newest_before if snapshot.read_after is None else snapshot.read_after,
        line_time=now,
        line_monotonic=monotonic,
    )


def owned(parts: Mapping[str, Inventory]) -> dict[str, Inventory]:
    """Return each probe's own devices, by name, the first probe first. An id that two of them list belongs to the one
    that has it here, else to the first; for the other it is a problem, not a device."""
    here = {device.fact.id for part in parts.values() for device in part.devices if device.present}
    taken: dict[str, str] = {}
    result = {}
    for name, part in parts.items():
        kept, problems = [], list(part.problems)
        for device in part.devices:
            owner = next((taken[id_] for id_ in device.ids if id_ in taken), None)
            if owner is not None and device.present:
                problems.append(
                    Problem(code=SAME_ID, message=f"{device.fact.id} is also reported by the probe {owner}")
                )
            elif owner is None and (device.present or device.fact.id not in here):
                taken |= dict.fromkeys(device.ids, name)
                kept.append(device if device.probe == name else dataclasses.replace(device, probe=name))
        result[name] = replace(part, devices=tuple(kept), problems=tuple(problems))
    return result


def with_missing_nodes(part: Inventory, missing: Mapping[str, Sequence[str]]) -> Inventory:
    """Return a probe's devices, each with the condition that some of its device nodes are missing, and their paths as
    problems. `missing`: by device."""
    if not missing:
        return part
    devices = tuple(_without_nodes(device) if device.fact.id in missing else device for device in part.devices)
    paths = dict.fromkeys(path for lacking in missing.values() for path in lacking)
    why = f"{some(list(paths), LEFT_OUT_NAMED)}: missing, and containers need it"
    problem = Problem(code=NODES_MISSING, message=text(why, MAX_MESSAGE))
    return replace(part, devices=devices, problems=(*part.problems, problem))


def _without_nodes(device: InventoryDevice) -> InventoryDevice:
    readings = device.fact.readings
    conditions = (*readings.conditions, NODE_MISSING)
    return dataclasses.replace(
        device, fact=dataclasses.replace(device.fact, readings=dataclasses.replace(readings, conditions=conditions))
    )


def together(parts: Mapping[str, Inventory], *, complete: bool) -> Inventory:
    """All probes' devices. What a node has once is the first probe's that knows it. `complete`: every probe has
    reported, or was waited for long enough; before, this inventory has no line."""
    every = list(parts.values())
    if len(every) == 1:
        return every[0]
    reported = [part for part in every if part.line_monotonic is not None] if complete else []
    first = reported[0] if reported else Inventory()
    machine = next((part.machine for part in every if part.machine != Machine()), Machine())
    devices, too_many = _ordered(device for part in every for device in part.devices)
    return replace(
        first,
        devices=devices,
        machine=machine,
        boot_id=next((part.boot_id for part in every if part.boot_id), ""),
        accelerators_on_bus=max((part.accelerators_on_bus for part in every), default=0),
        problems=(
            *too_many,
            *(
                Problem(code=it.code, message=text(f"{name}: {it.message}", MAX_MESSAGE))
                for name, part in parts.items()
                for it in part.problems
            ),
        ),
    )


def restore(devices: Iterable[InventoryDevice], *, boot_id: str = "") -> Inventory:
    """Return the devices of the state file, before the first line of the probe: none of them has been seen in this
    run."""
    return Inventory(devices=_ordered(devices)[0], boot_id=boot_id)


def clock_set(inventory: Inventory, by: timedelta) -> Inventory:
    """The inventory after the wall clock was set: what is missing is missing for as long as it was."""
    devices = tuple(dataclasses.replace(device, last_seen=device.last_seen + by) for device in inventory.devices)
    return replace(inventory, devices=devices)


def release(
    inventory: Inventory, *, held_partitions: frozenset[str], removed: frozenset[str] = frozenset()
) -> Inventory:
    """The inventory without what nothing keeps any more, between two lines: a pod ended, a person confirmed."""
    kept = (
        without_partitions(device, device.departed_partitions - held_partitions)
        for device in inventory.devices
        if device.present or device.fact.id not in removed
    )
    return replace(inventory, devices=tuple(kept))


def _as_known(fact: DeviceFact, before: DeviceFact) -> DeviceFact:
    """Return the device with its earlier attributes where the line has none."""
    room = MAX_OWN - len(fact.extra) - len(fact.capacity)
    missing = [(name, value) for name, value in before.extra.items() if name not in fact.extra]
    return dataclasses.replace(fact, extra={**fact.extra, **dict(missing[:room])}) if missing and room > 0 else fact


def _seen(
    before: InventoryDevice | None,
    fact: DeviceFact,
    now: datetime,
    live: Mapping[str, str],
    departed_and_held: frozenset[str],
    *,
    held: bool,
) -> InventoryDevice:
    """Return a device that the line lists. Facts that it does not answer for now are taken from before.

    `live`: the device of each partition of the line; one that moved to another device is only that device's. `held`: a
    pod holds it, and may have parts in its network namespace that the line lacks (a NIC's interface, its RDMA device):
    a name that depends on them must stay the same meanwhile.
    """
    if before is None:
        return InventoryDevice(fact=fact, present=True, last_seen=now)
    if _is_silent(fact):
        parts = tuple(part for part in before.fact.partitions if live.get(part.id, fact.id) == fact.id)
        known = dataclasses.replace(before.fact, index=fact.index, readings=fact.readings, partitions=parts)
        return dataclasses.replace(before, fact=known, present=True, last_seen=now)
    if held:
        fact = _as_known(fact, before.fact)
    room = MAX_PARTITIONS - len(fact.partitions)
    gone = tuple(part for part in before.fact.partitions if part.id in departed_and_held)[:room]
    if gone:
        fact = dataclasses.replace(fact, partitions=(*fact.partitions, *gone))
    departed = frozenset(part.id for part in gone)
    return InventoryDevice(fact=fact, present=True, last_seen=now, departed_partitions=departed)


def without_partitions(device: InventoryDevice, ids: Set[str]) -> InventoryDevice:
    """Return the device without these of its partitions."""
    if ids.isdisjoint(part.id for part in device.fact.partitions):
        return device
    left = tuple(part for part in device.fact.partitions if part.id not in ids)
    fact, departed = dataclasses.replace(device.fact, partitions=left), device.departed_partitions - ids
    return dataclasses.replace(device, fact=fact, departed_partitions=departed)


def is_released(device: InventoryDevice, now: datetime, removed: Set[str], forget_seconds: int | None) -> bool:
    """True when a missing device is no longer kept."""
    overdue = forget_seconds is not None and (now - device.last_seen).total_seconds() >= forget_seconds
    return overdue or device.fact.id in removed


def _ordered(devices: Iterable[InventoryDevice]) -> tuple[tuple[InventoryDevice, ...], tuple[Problem, ...]]:
    """Return the devices by type, index and id: the order of `status.devices` and of every list that the kubelet gets.
    Of too many only as many as there is room for, and a problem that names the others.

    Faulty ones are kept first: the fault of a device that is left out is not reported, and the kubelet calls it
    healthy. But of missing ones only the newest are kept, since ids that never come back must not push out devices that
    are here.
    """
    every = sorted(devices, key=_place)
    if len(every) <= MAX_DEVICES:
        return tuple(every), ()
    missing = sorted(
        (device for device in every if not device.present), key=lambda device: device.last_seen, reverse=True
    )
    first = {device.fact.id for device in missing[:MISSING_KEPT]}
    first |= {device.fact.id for device in every if device.present and _is_silent(device.fact)}
    ranked = sorted(every, key=lambda device: (device.fact.id not in first, not device.present))  # each in its order
    left = [device.fact.id + ("" if device.present else " (missing)") for device in ranked[MAX_DEVICES:]]
    why = f"{len(every)} devices, of which {MAX_DEVICES} are kept, faulty ones first; without "
    said = text(why + some(left, LEFT_OUT_NAMED), MAX_MESSAGE)
    kept = tuple(sorted(ranked[:MAX_DEVICES], key=_place))
    return kept, (Problem(code=TOO_MANY_DEVICES, message=said),)


def _is_silent(fact: DeviceFact) -> bool:
    return fact.readings.lost or fact.readings.error is not None


def _place(device: InventoryDevice) -> tuple[str, int, str]:
    return (device.fact.type, device.fact.index, device.fact.id)
