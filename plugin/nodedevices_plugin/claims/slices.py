"""The ResourceSlices of a node: its pool, as the API server should have it, and the writes that make it so.

A pool is named as its node. Consumers take the highest generation of a pool, and nothing of it until all of its slices
are there; a device name that stands in it twice makes the whole pool invalid (k8s.io/dynamic-resource-allocation,
structured/internal/stable/pools_stable.go, 0.37.2). So names are unique on the node, slices have fixed names, and each
has 64 devices, as many as are allowed with taints: a taint that comes or goes moves no device to another slice.

The API server refuses a whole slice for one attribute (pkg/apis/resource/validation of Kubernetes 1.37.2). So an
attribute that it would refuse is left out here, and named: it costs only itself.

Whether a device that goes to no new pod is tainted or left out: any claim may tolerate a taint, so a taint is advice.
It is right where a person may know better: an unhealthy device can be wanted for a diagnosis. Whatever protects another
pod leaves the device out (Available.left_out); of several reasons the plan has such a one (gates.apply). The effect is
never NoExecute: that deletes pods without their PodDisruptionBudgets; evictions are the operator's.

The health of these devices, which the kubelet shows in the status of the pods that have them, is the verdict, and
nothing of who may have the device: one that is out of service for a person's reasons is healthy. The taint of a device
that is not healthy has its reason from the same verdict.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from nodedevices_api import withheld
from nodedevices_api.bounds import ATTRIBUTE_NAME_PATTERN
from nodedevices_api.conditions import MISSING
from nodedevices_api.dra import RESOURCE_ATTRIBUTE
from nodedevices_common.quantity import exact
from nodedevices_common.raw import mapping, mappings
from nodedevices_probe.protocol import Attribute

from nodedevices_plugin.claims import devices as offered_devices
from nodedevices_plugin.claims.records import Record
from nodedevices_plugin.model import HealthState, Inventory, OfferedResource, Unit, Verdict, device_names, devices_by_id

Json = dict[str, Any]
Value = Mapping[str, str | int | bool]  # {"string": ...}, {"int": ...}, {"bool": ...} or {"version": ...}

MAX_DEVICES = 64  # of a slice, where a device may have a taint; 128 otherwise
MAX_NAME = 253
TAINTS, SHARING = "taints", "allowMultipleAllocations"  # fields of a device that servers may drop
STANDARD = "resource.kubernetes.io"  # the domain of attributes that Kubernetes defines
MAX_ATTRIBUTES = 32  # attributes and capacities of a device together
MAX_BYTES = 64  # of a string
MAX_DOMAIN = 63
MAX_VALUE = 63  # of a label, and so of a taint
TAINT_KEYS: Mapping[str, str] = {  # by the reason, which is one of withheld.TOLERABLE
    withheld.UNHEALTHY: "nodedevices.io/unhealthy",
    withheld.CORDONED: "nodedevices.io/unschedulable",
}
_NAME = re.compile(ATTRIBUTE_NAME_PATTERN)
_WRONG_NAME = "not a C identifier of at most 32 characters, with or without a domain of at most 63"


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
    for offered in (offered for resource in resources for offered in offered_devices.devices_of(resource)):
        unit = units.get(offered.part_id)
        if unit is None or offered.left_out:
            continue  # None: its driver no longer lists it, and nothing is known of it
        device, problems = _described(unit, offered, names, driver)
        if problems:
            unsaid[names[unit.id]] = problems
        if offered.blocked is not None:
            reason, verdict = offered.blocked.reason, verdict_of(unit.id, unit.device.fact.id, verdicts)
            value = verdict.reason[:MAX_VALUE] if verdict is not None and reason == withheld.UNHEALTHY else ""
            device["taints"] = [{"key": TAINT_KEYS[reason], "value": value, "effect": "NoSchedule"}]
        devices.append(device)
    return Published(devices=tuple(devices), unsaid=unsaid)


def _described(
    unit: Unit, offered: offered_devices.Available, names: Mapping[str, str], driver: str
) -> tuple[Json, tuple[str, ...]]:
    """Return a device as a slice has it, and what was left out of it, and why, for people. `driver`: its domain is that
    of attributes without one."""
    fact, part = unit.device.fact, unit.partition
    own: dict[str, Value | None] = {
        RESOURCE_ATTRIBUTE: _text(offered.resource.name),
        "type": _text(fact.type),
        "uuid": _text(part.id if part is not None else fact.uuid or fact.id),
        "vendor": _text(fact.vendor),
        "productName": _text(fact.product_name),
        "brand": _text(fact.brand),
        "architecture": _text(fact.architecture),
        "firmware": _text(fact.firmware),
        f"{STANDARD}/pciBusID": _text(fact.pci_bus_id),
        f"{STANDARD}/pcieRoot": _text(fact.pcie_root),
        f"{STANDARD}/numaNode": _number(fact.numa_node),
        "minor": _number(fact.minor),
        "profile": _text(part.profile) if part is not None else None,
        "parent": _text(names[fact.id]) if part is not None else None,
    }
    extra = {key.removeprefix(f"{driver}/"): _value(fact.extra[key]) for key in sorted(fact.extra)}
    amounts = (part or fact).capacity
    capacity = offered_devices.capacity(offered, {key: value for key, value in amounts.items() if _is_name(key)})
    problems = [f"capacity {key}: {_WRONG_NAME}" for key in amounts if not _is_name(key)]
    found: dict[str, Value] = {}
    for key, value in {**own, **{key: value for key, value in extra.items() if key not in own}}.items():
        if value is None:
            continue
        size = max((len(said.encode()) for said in value.values() if isinstance(said, str)), default=0)
        if not _is_name(key):
            problems.append(f"attribute {key}: {_WRONG_NAME}")
        elif size > MAX_BYTES:
            problems.append(f"attribute {key}: {size} bytes; a value has at most {MAX_BYTES}")
        elif len(found) + len(capacity) == MAX_ATTRIBUTES:
            problems.append(f"attribute {key}: a device has at most {MAX_ATTRIBUTES} attributes and capacities")
        else:
            found[key] = value
    device: Json = {"name": names[unit.id], "attributes": found}
    if offered.shared:
        device[SHARING] = True
    if capacity:
        device["capacity"] = capacity
    return device, tuple(problems)


def _is_name(key: str) -> bool:
    return _NAME.fullmatch(key) is not None and len(key.rpartition("/")[0]) <= MAX_DOMAIN


def _value(given: Attribute) -> Value | None:
    if given.version is not None:
        return {"version": given.version}
    if given.boolean is not None:
        return {"bool": given.boolean}
    return _number(given.integer) if given.integer is not None else _text(given.string or "")


def _text(value: str) -> Value | None:
    return {"string": value} if value else None


def _number(value: int | None) -> Value | None:
    return None if value is None else {"int": value}


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
    differ = [
        name for name in wanted if name not in known or _plain(known[name].spec) != _plain(spec(name, generation))
    ]
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
    found = mapping(spec.get("pool")).get("generation")
    return found if isinstance(found, int) else 0


def _with_times(device: Json, before: Json) -> Json:
    """The device, with the time of each taint that the slice of before has as well."""
    if not device.get("taints"):
        return device
    times = {
        (taint.get("key"), taint.get("value", ""), taint.get("effect")): taint.get("timeAdded")
        for known in devices_of(before)
        if known.get("name") == device["name"]
        for taint in mappings(known.get("taints"))
    }
    taints = [
        taint | ({"timeAdded": time} if (time := times.get((taint["key"], taint["value"], taint["effect"]))) else {})
        for taint in device["taints"]
    ]
    return {**device, "taints": taints}


def _plain(spec: Json) -> Json:
    """Equal for two that say the same: the server leaves out what is empty, and writes quantities in its own way."""
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


# --- the health of devices, as the kubelet shows it in the status of pods ---------------------------------------------
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
