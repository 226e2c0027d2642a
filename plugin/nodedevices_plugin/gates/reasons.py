"""Why a new container may not get an id: each reason is a function, asked in the order of apply.GATES.

How the devices and partitions are: not fit for use (these stay listed, and the kubelet shows their pods that they are
not healthy), taken out of service by people (NodeDevices `spec.unschedulable`), of a probe that was taken away
(pipeline.probe_set), or at the place of another one, of now or before (pipeline.places): a pod that holds that one may
reach this.

What containers hold already: devices that pods hold in another shape than this one, such as a whole GPU that is now
offered in shares, a share of a configuration of before, an id of another plugin. The kubelet knows ids and not devices,
and would give the same device out a second time. And ids that a change which waits for pods will take away: unless
held, they go to no new pod, so that it does not wait for more and more of them.

What waits for another program: shares for their MPS daemon, or devices that one keeps to itself; devices that
containers would get by a CDI name, for a specification with the driver's libraries (vendors.cdi); shares of computing
power, for the pods that could request them, since an Allocate names none. What is held stays as it is.

Devices whose MPS daemon serves no further container, even where shares of them are free. A daemon takes a bounded
number of clients of each device (mps.max_clients), and where a container takes as many shares as it needs, that number
says nothing about shares. The free shares of a device with so many containers go to no container until one of them
ends. Containers are counted that the kubelet lists or that were granted just now. Two that are granted between two
steps may be one too many, and a container with several processes is several clients: the daemon refuses those itself.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cache

from msgspec.structs import replace
from nodedevices_api.withheld import (
    CHANGE_WAITS,
    CORDONED,
    HELD_IN_ANOTHER_SHAPE,
    HELPER_IN_USE,
    HELPER_NOT_READY,
    NO_CDI_SPECIFICATION,
    NO_FREE_CLIENTS,
    PODS_UNKNOWN,
    PROBE_REMOVED,
    SAME_PLACE,
    UNHEALTHY,
)
from nodedevices_common.grouping import grouped
from nodedevices_common.times import rfc3339
from nodedevices_probe.nvidia import compute_capability

from nodedevices_plugin.gates.base import Check, GateFacts, by_device
from nodedevices_plugin.model import (
    Blocked,
    Cordon,
    InventoryDevice,
    ListedAs,
    OfferedResource,
    Plan,
    SchedulableId,
    Verdict,
)
from nodedevices_plugin.model.health import HealthState
from nodedevices_plugin.offering.occupancy import bound_to, collide, held_as
from nodedevices_plugin.sharing.daemons import described, has_daemon, not_ready
from nodedevices_plugin.sharing.mps import max_clients

# --- how the devices are ---------------------------------------------------------------------------------------------
UNKNOWN = "not reported by its probe yet"
GONE = "no longer listed by its driver"


def health(shape: Plan, facts: GateFacts) -> Check | None:
    devices = {device.fact.id: device for device in facts.inventory.devices}

    @cache
    def blocked(device_id: str, partition_id: str | None) -> Blocked | None:
        return unfit(devices.get(device_id), partition_id, facts.verdicts)

    parts = {(of.device_id, of.partition_id) for resource in shape.resources for of in resource.ids}
    if not any(blocked(*part) for part in parts):
        return None
    return lambda resource, schedulable: blocked(schedulable.device_id, schedulable.partition_id)


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
    return by_device(CORDONED, {cordon.id: _cordoned(cordon) for cordon in reversed(facts.cordons)})


def _cordoned(cordon: Cordon) -> str:
    until = f" until {rfc3339(cordon.until)}" if cordon.until else ""
    by = f" by {cordon.by}" if cordon.by else ""
    why = f": {cordon.reason}" if cordon.reason else ""
    return f"taken out of service{by}{until}{why}"


def removed_probe(shape: Plan, facts: GateFacts) -> Check | None:
    return by_device(PROBE_REMOVED, facts.removed_probes)


def place(shape: Plan, facts: GateFacts) -> Check | None:
    """A whole device that is at another's place says nothing of its partitions."""
    blocked = {id_: Blocked(reason=SAME_PLACE, message=message) for id_, message in facts.places.items()}
    return (lambda resource, schedulable: blocked.get(schedulable.part_id)) if blocked else None


# --- what containers hold already ------------------------------------------------------------------------------------
OTHERWISE = "held under another resource or id"
ANNOUNCED = "a claim may still be given it: the node's ResourceSlices have it, or had it a moment ago"


def held_otherwise(shape: Plan, facts: GateFacts) -> Check | None:
    if not facts.held_otherwise:
        return None
    listed = {unit.partition.id: unit.partition for unit in facts.inventory.units if unit.partition is not None}
    departed = facts.inventory.departed_partitions
    by_device = grouped((held_id.device_id, held_id) for held_id in facts.held_otherwise)

    @cache
    def blocked(device_id: str, partition_id: str | None) -> Blocked | None:
        here = [
            held_id
            for held_id in by_device.get(device_id, ())
            if collide(partition_id, held_id, listed=listed, departed=departed)
        ]
        pods = dict.fromkeys(held_id.holder for held_id in here if held_id.holder)
        why = ANNOUNCED if all(held_id.announced for held_id in here) else OTHERWISE
        return Blocked(reason=HELD_IN_ANOTHER_SHAPE, message=why, waits_for=tuple(pods)) if here else None

    return lambda resource, schedulable: blocked(schedulable.device_id, schedulable.partition_id)


CHANGE = "a configuration change that waits for pods takes it away"


def waiting_change(shape: Plan, facts: GateFacts) -> Check | None:
    if facts.change is None:
        return None
    kept = {(name, *id_) for name, ids in held_as(facts.change.shape).items() for id_ in ids}
    bound = {resource.name: bound_to(resource) for resource in shape.resources}
    return facts.unless_held(
        Blocked(reason=CHANGE_WAITS, message=CHANGE, waits_for=facts.change.waits_for),
        lambda resource, schedulable: (resource.name, schedulable.id, resource.api, bound[resource.name]) not in kept,
    )


def counts_containers(plan: Plan) -> bool:
    """True when an Allocate may change the answer to the next one: devices take only so many containers."""
    return any(resource.sharing.memory is not None and has_daemon(resource) for resource in plan.resources)


def full(shape: Plan, facts: GateFacts) -> Check | None:
    found = {resource.name: full_here for resource in shape.resources if (full_here := _full(resource, facts))}

    def check(resource: OfferedResource, schedulable: SchedulableId) -> Blocked | None:
        devices, held = found.get(resource.name, ({}, set()))
        return None if schedulable.id in held else devices.get(schedulable.device_id)

    return check if found else None


def _full(resource: OfferedResource, facts: GateFacts) -> tuple[dict[str, Blocked], set[str]] | None:
    """Return the resource's devices that have all the containers that they can have, and the ids that are held."""
    if resource.sharing.memory is None or not has_daemon(resource):
        return None
    unnamed = {(allocate.resource, allocate.ids) for allocate in facts.unconfirmed}
    unnamed |= {(offer.resource, offer.ids) for offer in facts.holdings.possible or ()}
    device_of = {schedulable.id: schedulable.device_id for schedulable in resource.ids}
    containers: dict[str, set[Hashable]] = {}
    held: set[str] = set()
    listed: list[tuple[Hashable, str | None, tuple[str, ...]]] = [
        ((holder.namespace, holder.pod, holder.container), holder.resource, holder.ids)
        for holder in facts.holdings.holders
    ]
    for who, name, ids_held in [*listed, *((pair, *pair) for pair in unnamed)]:
        for id_ in ids_held if name == resource.name else ():
            held.add(id_)
            if id_ in device_of:
                containers.setdefault(device_of[id_], set()).add(who)
    most = {
        device.fact.id: max_clients(compute_capability(device.fact))
        for device in facts.inventory.devices
        if device.fact.id in containers
    }
    devices = {
        id_: Blocked(reason=NO_FREE_CLIENTS, message=f"{limit} containers use it, and its MPS daemon accepts no more")
        for id_, limit in most.items()
        if len(containers[id_]) >= limit
    }
    return (devices, held) if devices else None


# --- what waits for another program ----------------------------------------------------------------------------------
TAKEN = "an MPS daemon is starting or ending, and reserves the device"


def daemon_not_ready(shape: Plan, facts: GateFacts) -> Check | None:
    """A resource that the kubelet has been sent stays listed: for an id that is dropped, the kubelet goes on showing
    Healthy to the pods that have it. A resource that it has not been sent is not registered before the daemon is
    ready."""
    blocked = {
        resource.name: Blocked(
            reason=HELPER_NOT_READY,
            message=why,
            listed_as=ListedAs.UNHEALTHY if resource.name in facts.shown else ListedAs.NOT_LISTED,
        )
        for resource in shape.resources
        if (why := not_ready(resource, facts.statuses))
    }
    return (lambda resource, schedulable: blocked.get(resource.name)) if blocked else None


def daemon_in_use(shape: Plan, facts: GateFacts) -> Check | None:
    """A daemon with running clients stays although it is not wanted any more, and admits no other process to its
    devices. The ids that its clients hold are kept, but not for the next pod."""
    devices = {id_ for daemon in facts.staying for id_ in daemon.device_ids}  # reserved to the daemons' clients
    here = [held_id for held_id in facts.held if held_id.device_id in devices]
    pods = tuple(dict.fromkeys(held_id.holder for held_id in here if held_id.holder))
    theirs = Blocked(reason=HELPER_IN_USE, message=described(facts.staying), waits_for=pods)
    kept = replace(theirs, listed_as=ListedAs.KEPT_FOR_HOLDER)
    in_use = {(held_id.resource, held_id.id) for held_id in facts.held}

    def check(resource: OfferedResource, schedulable: SchedulableId) -> Blocked | None:
        if schedulable.device_id not in devices:
            return None
        return kept if (resource.name, schedulable.id) in in_use else theirs

    return check if devices else None


def daemon_taken(shape: Plan, facts: GateFacts) -> Check | None:
    """A daemon reserves its devices before it answers, and until it has ended: those are offered as its shares alone.
    What a pod holds otherwise stays as it is."""
    otherwise = {resource.name for resource in shape.resources if not has_daemon(resource)}
    check = facts.unless_held(
        Blocked(reason=HELPER_IN_USE, message=TAKEN),
        lambda resource, schedulable: schedulable.device_id in facts.taken and resource.name in otherwise,
    )
    return check if facts.taken else None


def no_specification(shape: Plan, facts: GateFacts) -> Check | None:
    """A resource that the kubelet has not been sent, and that has no usable id, is not registered."""
    if not facts.no_specification:
        return None
    unshown = {
        resource.name
        for resource in shape.resources
        if resource.name not in facts.shown and all(_why(id_, facts) for id_ in resource.ids)
    }

    def check(resource: OfferedResource, schedulable: SchedulableId) -> Blocked | None:
        why = _why(schedulable, facts)
        listed_as = ListedAs.NOT_LISTED if resource.name in unshown else ListedAs.UNHEALTHY
        return Blocked(reason=NO_CDI_SPECIFICATION, message=why, listed_as=listed_as) if why else None

    return check


def _why(schedulable: SchedulableId, facts: GateFacts) -> str | None:
    for lacking in facts.no_specification:
        if schedulable.device_id in lacking.devices and schedulable.part_id not in lacking.elsewhere:
            return lacking.why
    return None


def pods_unknown(shape: Plan, facts: GateFacts) -> Check | None:
    if facts.pods.pods is not None or not any(resource.sharing.cores for resource in shape.resources):
        return None
    blocked = Blocked(reason=PODS_UNKNOWN, message=f"this node's pods are not known: {facts.pods.problem}")
    return facts.unless_held(blocked, lambda resource, schedulable: resource.sharing.cores)
