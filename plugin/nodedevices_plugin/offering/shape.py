"""The shape of the plan: from devices and configuration to the ids that exist, and their names.

Always holds: an id belongs to one resource (kubelets before 1.34 find a pod by the id alone); an id is listed as long
as its device is in the inventory, fit for use or not; the order is stable, so equal facts give equal plans and no
message. Whether a new container may get an id is not decided here: see the package gates.

What can be offered are units: whole devices or partitions, as their vendor decides (vendors.base), without those that
`resources.exclude` names. offering.resources gives them names and says how many shares each has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypeVar

from msgspec.structs import replace
from nodedevices_api.sections import Serving
from nodedevices_common.grouping import grouped
from nodedevices_common.quantity import from_bytes

from nodedevices_plugin.cores import ids as core_ids
from nodedevices_plugin.model import (
    Api,
    Inventory,
    OfferedResource,
    Plan,
    PlanError,
    SchedulableId,
    Unit,
    Unmatched,
    devices_by_id,
    ids,
)
from nodedevices_plugin.offering.resources import PlanSettings, Share, by_name, near, share
from nodedevices_plugin.sharing.registry import SHARED
from nodedevices_plugin.vendors.registry import Vendors

__all__ = ["PlanError", "PlanSettings", "fitting", "make_shape", "shape_of"]

T = TypeVar("T")

MAX_ATTRIBUTE_BYTES = 64  # of a string in a ResourceSlice
# One ListAndWatch answer is one gRPC message, and the kubelet reads 4 MiB (grpc-go's default) at most.
MAX_ANSWER_BYTES = 3 * 1024 * 1024
# Protobuf around an id in ListAndWatchResponse: four tags with lengths, "Unhealthy", one NUMA node.
_BYTES_BESIDES_ID = 32


def make_shape(inventory: Inventory, settings: PlanSettings) -> Plan:
    """The shape: a plan in which nothing is blocked. Raises PlanError for a configuration that makes no sense on this
    node; see `shape_of` for what to do then."""
    if settings.serving.mode == "Observe":
        return Plan()
    sharing = settings.sharing
    for name in dict.fromkeys((sharing.strategy, *map(sharing.strategy_of, sharing.resources))):
        mode = settings.sharing_modes.by_strategy(name)
        mode.check(settings.modes, sharing.resources, partition_strategy=settings.partitions.strategy)
    named = named_units(inventory, settings)
    anywhere = _without_topology(named, settings)
    resources = tuple(_offered(shared, anywhere) for shared in share(named, settings))
    if settings.serving.api == Api.DRA.value:
        resources = tuple(
            resource if not_by_dra(resource) else replace(resource, api=Api.DRA) for resource in resources
        )
    return Plan(resources=resources)


def not_by_dra(resource: OfferedResource) -> str:
    """Return why DRA cannot serve the resource, so that it stays with the device plugin; empty: it can."""
    if resource.together:
        return "a container gets all of its devices"
    if resource.counts or resource.per_device is not None or resource.sharing.cores:
        return "it shares computing power"
    if resource.sharing.name == SHARED:
        return "its devices are shared by their nature"
    if len(resource.name.encode()) > MAX_ATTRIBUTE_BYTES:
        return f"its name has {len(resource.name.encode())} bytes; an attribute has at most {MAX_ATTRIBUTE_BYTES}"
    return ""


def no_way_for_claims(strategies: Sequence[str], inventory: Inventory, vendors: Vendors) -> str:
    """Return why claims cannot get devices by these injection.deviceListStrategies; empty: they can. Variables of two
    requests of one container would replace each other, so what a vendor's runtime reads of variables is no way for DRA.
    """
    listed = set(strategies)
    if listed & {"cdi-cri", "driver-directory"} and not listed & {"cdi-annotations", "envvar"}:
        return ""
    named = {vendors.vendor_of(device.fact).name for device in inventory.devices}
    if not named.intersection(vendors.cdi_vendors()):
        return ""
    shown = ", ".join(strategies)
    return (
        f"injection.deviceListStrategies: {shown}: with serving.api DRA write [cdi-cri], and install the component cdi"
    )


def staying(shape: Plan, serving: Serving) -> tuple[Unmatched, ...]:
    """Return a note for each resource that stays with the device plugin API although DRA is to serve the node."""
    if serving.api != Api.DRA.value:
        return ()
    return tuple(
        Unmatched(
            section="serving",
            entry=f"api DRA for {resource.name}",
            message=f"it stays with the device plugin API: {not_by_dra(resource)}",
        )
        for resource in shape.by(Api.DEVICE_PLUGIN).resources
    )


def fitting(inventory: Inventory, make: Callable[[Inventory], T]) -> tuple[T | None, PlanError | None]:
    """Return what `make` makes of these devices, and why it cannot be made of all that are here: then of those with
    which it makes sense, if the error names the others. Devices that are not here decide nothing: they are left out
    where it makes no sense with them, and ids of theirs that pods hold stay listed as such (gates.apply)."""
    why: PlanError | None = None
    left: frozenset[str] = frozenset()
    while True:
        devices = tuple(device for device in inventory.devices if device.fact.id not in left)
        try:
            return make(replace(inventory, devices=devices)), why
        except PlanError as error:
            gone = frozenset(device.fact.id for device in devices if not device.present)
            odd = (error.devices & gone) or gone
            if not odd:
                why = why or error
                odd = error.devices - left
            if not odd:
                return None, why
            left |= odd


def named_units(inventory: Inventory, settings: PlanSettings) -> Mapping[str, tuple[Unit, ...]]:
    """Resource name -> its units, before sharing. Raises PlanError."""
    return by_name(units(inventory, settings), settings, near(inventory))


def shape_of(plan: Plan) -> Plan:
    """Return the shape that a plan was made of, as far as the kubelet was sent it: it stays in effect while a
    configuration is not possible here. Ids of devices that are gone since stay in it, for the gates to block."""
    kept = (
        replace(resource, ids=tuple(replace(id_, blocked=None) for id_ in resource.ids), retained=(), unlisted=())
        for resource in plan.resources
        if resource.ids or not resource.retained
    )
    return Plan(resources=tuple(kept))


def _without_topology(named: Mapping[str, Sequence[Unit]], settings: PlanSettings) -> frozenset[str]:
    """Return the ids of units that are sent to the kubelet without their NUMA node."""
    known = settings.vendors.known
    names = {vendor.name: frozenset(vendor.without_topology(settings.naming(vendor))) for vendor in known.every}
    return frozenset(
        unit.id
        for name in frozenset().union(*names.values()).intersection(named)
        for unit in named[name]
        if name in names.get(known.vendor_of(unit.device.fact).name, ())
    )


def _offered(shared: Share, anywhere: frozenset[str]) -> OfferedResource:
    """`anywhere`: ids of units that are sent to the kubelet without their NUMA node."""
    if shared.cores_of is not None:
        return _cores(shared, shared.cores_of)
    schedulable: list[SchedulableId] = []
    size, too_many = 0, dict[str, None]()
    memory = shared.sharing.memory
    share_is = memory.unit if memory is not None else None
    for unit, replicas in shared.units:
        whole = _schedulable(unit)
        whole = replace(whole, numa_node=None) if unit.id in anywhere else whole
        if replicas is None:
            schedulable.append(whole)  # these alone are never so many
            continue
        whole = whole if shared.numa else replace(whole, numa_node=None)
        size += replicas * (len(ids.compose(whole.id, replicas, share_is)) + _BYTES_BESIDES_ID)
        if size > MAX_ANSWER_BYTES:
            too_many[whole.device_id] = None
            continue
        schedulable += (
            SchedulableId(
                id=ids.compose(whole.id, n, share_is),
                device_id=whole.device_id,
                partition_id=whole.partition_id,
                replica=n,
                numa_node=whole.numa_node,
            )
            for n in range(replicas)
        )
    if too_many:
        if memory is not None:
            hint = _next_unit(shared, memory.unit_bytes)
            raise PlanError(f"{shared.place}.memoryUnit", memory.unit, hint, devices=too_many)
        hint = f"with {len(shared.units)} devices one answer to the kubelet would exceed 3 MiB; give fewer replicas"
        raise PlanError(f"{shared.place or shared.name}.replicas", shared.sharing.replicas, hint, devices=too_many)
    return OfferedResource(
        name=shared.name,
        ids=tuple(schedulable),
        sharing=shared.sharing,
        fail_requests_greater_than_one=shared.fail_requests_greater_than_one,
        together=shared.together,
    )


def _cores(shared: Share, counts: tuple[str, ...]) -> OfferedResource:
    """Without NUMA nodes: by them the kubelet would choose ids of whole devices for who shares one."""
    whole = (replace(_schedulable(unit), numa_node=None) for unit, _ in shared.units)
    own = tuple(
        replace(schedulable, id=ids.compose(schedulable.id, number, ids.CORE), replica=number)
        for schedulable in whole
        for number in range(core_ids.PER_DEVICE)
    )
    return OfferedResource(
        name=shared.name, ids=own + core_ids.counted(len(counts)), per_device=core_ids.PER_DEVICE, counts=counts
    )


def _next_unit(shared: Share, unit: int) -> str:
    """Return a better unit, where an answer to the kubelet would be too long."""
    counts = {unit.id: count or 0 for unit, count in shared.units}
    size = MAX_ANSWER_BYTES + 1
    doubled, better = 0, ""
    while size > MAX_ANSWER_BYTES:
        doubled += 1
        better = from_bytes(unit << doubled)
        size = sum(
            (count >> doubled) * (len(ids.compose(id_, count, better)) + _BYTES_BESIDES_ID)
            for id_, count in counts.items()
        )
    return f"gives {sum(counts.values())} shares, and one answer to the kubelet would exceed 3 MiB; give {better}"


def _schedulable(unit: Unit) -> SchedulableId:
    return SchedulableId(
        id=unit.id,
        device_id=unit.device.fact.id,
        partition_id=unit.partition.id if unit.partition else None,
        numa_node=unit.device.fact.numa_node,
    )


def units(inventory: Inventory, settings: PlanSettings) -> tuple[Unit, ...]:
    """All units that are not excluded, by device then partition; a device's exclusion takes its partitions along.
    Raises PlanError where the strategy makes no sense with these devices."""
    exclude, strategy = settings.resources.exclude, settings.partitions.strategy
    excluded = frozenset(id_ for id_ in devices_by_id(inventory) if excluded_by(id_, exclude) is not None)
    by_vendor = grouped(
        (settings.vendors.known.vendor_of(device.fact), device)
        for device in inventory.devices
        if device.fact.id not in excluded
    )
    found = grouped(
        (unit.device.fact.id, unit)
        for vendor, devices in by_vendor.items()
        for unit in vendor.units(devices, strategy=strategy, excluded=excluded)
    )
    in_order = (unit for device in inventory.devices for unit in found.get(device.fact.id, ()))
    return tuple(unit for unit in in_order if unit.id not in excluded)


def excluded_by(device_id: str, exclude: Sequence[str]) -> str | None:
    """Return the first entry that this id matches."""
    return next((pattern for pattern in exclude if fnmatchcase(device_id, pattern)), None)
