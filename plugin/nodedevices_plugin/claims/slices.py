"""The ResourceSlices of a node: its pool, as the API server should have it, and the writes that make it so.

A pool is named as its node. Consumers take the highest generation of a pool, and nothing of it until all of its slices
are there; a device name that stands in it twice makes the whole pool invalid (k8s.io/dynamic-resource-allocation,
structured/internal/stable/pools_stable.go, 0.37.2). So names are unique on the node, slices have fixed names, and each
has 64 devices, as many as are allowed with taints: a taint that comes or goes moves no device to another slice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct, field
from nodedevices_common.quantity import exact

from nodedevices_plugin.claims import shares
from nodedevices_plugin.claims.attributes import describe
from nodedevices_plugin.claims.health import verdict_of
from nodedevices_plugin.claims.taints import is_left_out, taint
from nodedevices_plugin.model import Inventory, OfferedResource, Verdict, device_names

Json = dict[str, Any]

MAX_DEVICES = 64  # of a slice, where a device may have a taint; 128 otherwise
MAX_NAME = 253
TAINTS, SHARING = "taints", "allowMultipleAllocations"  # fields of a device that servers may drop


class Published(Struct, frozen=True, kw_only=True):
    """`devices`: as a slice has them, in the plan's order. `unsaid`: what it cannot say of a device, by name, for
    people."""

    devices: tuple[Json, ...]
    unsaid: Mapping[str, tuple[str, ...]]


class Stored(Struct, frozen=True, kw_only=True):
    """A slice as the API server has it."""

    name: str
    resource_version: str
    spec: Json


class Writes(Struct, frozen=True, kw_only=True):
    """In this order: first what the pool no longer needs is deleted. `updates`: name and resourceVersion -> spec."""

    deletes: tuple[str, ...] = ()
    updates: Mapping[tuple[str, str], Json] = field(default_factory=dict)
    creates: Mapping[str, Json] = field(default_factory=dict)


def publish(
    resources: Sequence[OfferedResource],
    inventory: Inventory,
    verdicts: Mapping[str, Verdict],
    *,
    driver: str,
) -> Published:
    """Return the devices of these resources, which DRA carries."""
    names = device_names(inventory)
    units = {unit.id: unit for unit in inventory.units}
    devices: list[Json] = []
    unsaid: dict[str, tuple[str, ...]] = {}
    for resource in resources:
        for offered in shares.devices_of(resource):
            part_id, blocked = offered.part_id, offered.blocked
            unit = units.get(part_id)
            if unit is None or is_left_out(blocked):
                continue  # None: its driver no longer lists it, and nothing is known of it
            fact, name = unit.device.fact, names[part_id]
            described = describe(
                fact,
                unit.partition,
                parent=names[fact.id],
                resource=resource.name,
                driver=driver,
                capacity=partial(shares.capacity, offered),
            )
            if described.problems:
                unsaid[name] = described.problems
            device: Json = {"name": name, "attributes": {**described.attributes}}
            if offered.shared:
                device["allowMultipleAllocations"] = True
            if described.capacity:
                device["capacity"] = {**described.capacity}
            if found := taint(blocked, verdict_of(part_id, fact.id, verdicts)):
                device["taints"] = [{"key": found.key, "value": found.value, "effect": found.effect}]
            devices.append(device)
    return Published(devices=tuple(devices), unsaid=unsaid)


def slice_name(number: int, driver: str, node: str) -> str:
    """The allocator sorts slices by their names and takes the first device that fits."""
    name = f"{number:05x}-{driver}-{node}"
    return name if len(name) <= MAX_NAME else f"{number:05x}-{driver}-{hashlib.sha256(node.encode()).hexdigest()[:32]}"


def writes(node: str, driver: str, devices: Sequence[Json], stored: Sequence[Stored]) -> Writes:
    """Return what makes the node's pool of these devices, and nothing where it is so already. `stored`: all slices of
    the driver for the node.

    One slice that differs is replaced in place. Where more differ, or their number does, all get the next generation,
    so that no consumer sees half of a change. A taint keeps the time that the server gave it.
    """
    pages = [devices[at : at + MAX_DEVICES] for at in range(0, len(devices), MAX_DEVICES)] or [()]
    known = {piece.name: piece for piece in stored}
    wanted = {slice_name(number, driver, node): page for number, page in enumerate(pages)}
    generation = max((_generation(piece.spec) for piece in stored), default=0)

    def spec(name: str, of: int) -> Json:
        before = known[name].spec if name in known else {}
        return {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": of, "resourceSliceCount": len(pages)},
            "devices": [_with_times(device, before) for device in wanted[name]],
        }

    obsolete = tuple(sorted(known.keys() - wanted.keys()))
    differ = [name for name in wanted if name not in known or not _same(known[name].spec, spec(name, generation))]
    if len(differ) == 1 and not obsolete and differ[0] in known:
        before = known[differ[0]].spec
        now = spec(differ[0], generation)
        if {**before, "devices": []} == {**now, "devices": []}:
            return Writes(updates={(differ[0], known[differ[0]].resource_version): now})
    if not differ and not obsolete:
        return Writes()
    specs = {name: spec(name, generation + 1) for name in wanted}
    return Writes(
        deletes=obsolete,
        updates={(name, known[name].resource_version): spec for name, spec in specs.items() if name in known},
        creates={name: spec for name, spec in specs.items() if name not in known},
    )


def dropped(sent: Json, found: Json) -> frozenset[str]:
    """Return what the API server dropped of devices: TAINTS, SHARING. Its feature gates are off, and it drops fields
    without an error. Such a device must be left out instead."""
    kept = {str(device.get("name")): device for device in devices_of(found)}
    both = [(device, kept[device["name"]]) for device in devices_of(sent) if device["name"] in kept]
    return frozenset(
        field for field in (TAINTS, SHARING) if any(has(one, field) and not has(two, field) for one, two in both)
    )


def has(device: Json, field: str) -> bool:
    """True when the device has taints, or where `field` is SHARING is one that claims share by the amounts they ask."""
    if field == SHARING:
        amounts = (device.get("capacity") or {}).values()
        return bool(device.get(SHARING)) and all(amount.get("requestPolicy") for amount in amounts)
    return bool(device.get(field))


def stored(item: Mapping[str, Any]) -> Stored:
    """Return a ResourceSlice as the API server answered."""
    metadata = item.get("metadata") or {}
    return Stored(
        name=str(metadata.get("name", "")),
        resource_version=str(metadata.get("resourceVersion", "")),
        spec=dict(item.get("spec") or {}),
    )


def devices_of(spec: Json) -> list[Json]:
    """Return the devices of a slice."""
    found = spec.get("devices")
    return [device for device in found if isinstance(device, dict)] if isinstance(found, list) else []


def _generation(spec: Json) -> int:
    pool = spec.get("pool")
    found = pool.get("generation") if isinstance(pool, dict) else None
    return found if isinstance(found, int) else 0


def _with_times(device: Json, before: Json) -> Json:
    """The device, with the time of each taint that the slice of before has as well."""
    if not device.get("taints"):
        return device
    times = {
        (taint.get("key"), taint.get("value", ""), taint.get("effect")): taint.get("timeAdded")
        for known in devices_of(before)
        if known.get("name") == device["name"]
        for taint in known.get("taints") or ()
        if isinstance(taint, dict)
    }
    taints = [
        taint | ({"timeAdded": time} if (time := times.get((taint["key"], taint["value"], taint["effect"]))) else {})
        for taint in device["taints"]
    ]
    return {**device, "taints": taints}


def _same(one: Json, other: Json) -> bool:
    """True when the two say the same. The server leaves out what is empty, and writes quantities in its own way."""
    return _plain(one) == _plain(other)


def _plain(spec: Json) -> Json:
    return {**spec, "devices": [_plain_device(device) for device in devices_of(spec)]}


def _plain_device(device: Json) -> Json:
    found = {key: value for key, value in device.items() if value}
    if capacity := found.get("capacity"):
        found["capacity"] = {key: _exact(amount) for key, amount in capacity.items()}
    if taints := found.get("taints"):
        found["taints"] = [{key: value for key, value in taint.items() if value} for taint in taints]
    return found


def _exact(said: Any) -> Any:
    """A capacity with its request policy, in which every string is a quantity."""
    if isinstance(said, dict):
        return {key: _exact(value) for key, value in said.items() if value is not None}
    return [_exact(value) for value in said] if isinstance(said, list) else exact(said)
