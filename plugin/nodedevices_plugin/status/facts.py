"""The facts of a node at one moment, which reports, metrics and /readyz show; and their counts: ids that are held,
healthy, free and withheld, shares of devices, drivers.

A share is held where a container holds its id, and free where it is offered, healthy and not held. Every other share is
not offered: its device has failed, was taken out of service, or waits for holders of an earlier configuration. Only
memory can be in no share at all: the reserve, and the rest of a device that is less than a unit.

How much memory a container holds follows from its ids, independently of the current unit.

Nothing here needs the contract's models, which are loaded later (reporter).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import Struct, field
from nodedevices_api.meta import Condition
from nodedevices_api.withheld import MEANINGS, SERVED_BY_ANOTHER
from nodedevices_common.grouping import grouped
from nodedevices_probe.protocol import Driver, DriverState

from nodedevices_plugin.model import (
    Api,
    Blocked,
    CoresHeld,
    Inventory,
    OfferedResource,
    Plan,
    Registration,
    SchedulableId,
    Verdict,
    memory_held,
    served_by_others,
    share_of,
)
from nodedevices_plugin.pipeline.configuration import ConfigStatus
from nodedevices_plugin.pipeline.world import World

if TYPE_CHECKING:
    from nodedevices_api.nodedevices import Probe

MAX_RESOURCES = 32
NO_DRIVER = frozenset({DriverState.NOT_LOADED, DriverState.UNKNOWN})


class ShareCounts(Struct, frozen=True, kw_only=True):
    """The shares that one resource has of one device or partition (`part`)."""

    resource: OfferedResource
    part: str
    device_id: str
    total: int
    held: int
    free: int

    @property
    def not_offered(self) -> int:
        return max(0, self.total - self.held - self.free)

    @property
    def unallocatable_bytes(self) -> int | None:
        """Of the device's memory; None: it is not shared by memory."""
        memory = self.resource.sharing.memory
        if memory is None or self.part not in memory.devices:
            return None
        return max(0, memory.devices[self.part] - self.total * memory.unit_bytes)


def count(
    resources: Iterable[OfferedResource], held: Mapping[str, Collection[str]], *, not_free: Collection[str] = ()
) -> tuple[ShareCounts, ...]:
    """Count the shares of every device that is offered in shares. `held`: by resource, the ids that containers hold, as
    `own_id` makes them. `not_free`: resources without free shares, such as those that another plugin serves."""
    found = []
    amounts = memory_held(id_ for ids in held.values() for id_ in ids)
    for resource in resources:
        parts = grouped(
            (schedulable.part_id, schedulable)
            for schedulable in resource.ids
            if schedulable.replica is not None and resource.per_device is None
        )
        taken = set(held.get(resource.name, ()))
        for part, ids in parts.items():
            own = {own_id(schedulable): schedulable.healthy for schedulable in ids}
            in_plan = len(own.keys() & taken)
            free = sum(healthy and id_ not in taken for id_, healthy in own.items())
            found.append(
                ShareCounts(
                    resource=resource,
                    part=part,
                    device_id=ids[0].device_id,
                    total=len(ids),
                    held=_held(resource, in_plan, len(ids), amounts.get(part, 0)),
                    free=0 if resource.name in not_free else free,
                )
            )
    return tuple(found)


def _held(resource: OfferedResource, in_plan: int, total: int, amount: int) -> int:
    """Return the held amount in shares of the current unit, also where pods hold some of an earlier unit or name."""
    memory = resource.sharing.memory
    return in_plan if memory is None else min(total, max(in_plan, -(-amount // memory.unit_bytes)))


def own_id(schedulable: SchedulableId) -> str:
    """Return the id as holders have it: another plugin's id may be an index."""
    if not schedulable.device_id:
        return schedulable.id
    unit = schedulable.part_id
    if schedulable.replica is None:
        return unit
    own = schedulable.id.startswith(unit)  # there may be thousands
    return schedulable.id if own else share_of(unit, schedulable.id)


def share_counts(facts: NodeFacts) -> tuple[ShareCounts, ...]:
    """Count the shares of every device and partition that is offered in shares. None is free before the holders were
    known once."""
    resources = facts.offered.resources[:MAX_RESOURCES]
    known = facts.world.holdings.were_known
    not_free = served_by_others(facts.registrations) if known else {resource.name for resource in resources}
    return count(resources, held_ids(facts), not_free=not_free)


def held_ids(facts: NodeFacts) -> dict[str, set[str]]:
    """Return by resource the ids that containers hold."""
    held: dict[str, set[str]] = defaultdict(set)
    for holder in facts.world.holdings.holders:
        if holder.resource is not None:
            held[holder.resource].update(holder.ids)
    by_claims = {id_ for holder in facts.world.holdings.holders if holder.resource is None for id_ in holder.ids}
    for resource in facts.offered.by(Api.DRA).resources if by_claims else ():
        held[resource.name] |= by_claims
    return held


def loaded_drivers(facts: NodeFacts) -> tuple[Driver, ...]:
    """Return the loaded drivers; where two probes name the same one, the first probe's."""
    found: dict[str, Driver] = {}
    for probe in facts.probes:
        driver = probe.inventory.driver
        if driver is not None and driver.state not in NO_DRIVER and driver.name:
            found.setdefault(driver.name, driver)
    return tuple(found.values())


def problems(inventory: Inventory) -> tuple[str, ...]:
    """The problems that the probe reports, each with its code."""
    return tuple(f"{problem.code}: {problem.message}" for problem in inventory.problems)


def missing_parts(inventory: Inventory) -> set[str]:
    """Return the devices and partitions that their drivers no longer list."""
    gone = {part for device in inventory.devices for part in device.departed_partitions}
    for device in inventory.devices:
        if not device.present:
            gone.update(device.ids)
    return gone


# --- ids that are not reported to the kubelet as Healthy -------------------------------------------------------------
_ORDER = {reason: number for number, reason in enumerate(MEANINGS)}
_SERVED_BY_ANOTHER = Blocked(reason=SERVED_BY_ANOTHER, message="another device plugin serves this resource")


class Withheld(Struct, frozen=True, kw_only=True):
    """The ids that one reason withholds, with each id's own message."""

    reason: str
    ids: tuple[tuple[SchedulableId, Blocked], ...]


def withheld(resource: OfferedResource, *, mine: bool) -> tuple[Withheld, ...]:
    """Return the withheld ids by reason, in the order of the reference. Together with the Healthy ones they are the
    capacity. `mine`: this agent serves it to the kubelet."""
    found = grouped(
        (blocked.reason, (schedulable, blocked))
        for schedulable in (*resource.ids, *resource.unlisted)
        if (blocked := schedulable.blocked if mine else _SERVED_BY_ANOTHER) is not None
    )
    return tuple(
        Withheld(reason=reason, ids=tuple(found[reason]))
        for reason in sorted(found, key=lambda reason: _ORDER.get(reason, len(_ORDER)))
    )


class ResourceCounts(Struct, frozen=True, kw_only=True):
    """The ids of one resource."""

    resource: OfferedResource
    capacity: int  # all, whether or not the kubelet has been shown them
    healthy: int  # that are sent to the kubelet as Healthy
    allocated: int  # that containers hold
    free: int  # that a new container can get
    withheld: tuple[Withheld, ...]


def resource_counts(facts: NodeFacts) -> Iterator[ResourceCounts]:
    """Count the ids of each offered resource. Of one that another plugin serves none is healthy or free."""
    held, others = held_ids(facts), served_by_others(facts.registrations)
    for resource in facts.offered.resources:
        taken, mine = held.get(resource.name, set()), resource.name not in others
        healthy = [own_id(schedulable) for schedulable in resource.ids if schedulable.healthy and mine]
        yield ResourceCounts(
            resource=resource,
            capacity=len(resource.ids) + len(resource.unlisted),
            healthy=len(healthy),
            allocated=len(taken.intersection(map(own_id, (*resource.ids, *resource.retained)))),
            free=sum(id_ not in taken for id_ in healthy),
            withheld=withheld(resource, mine=mine),
        )


# --- the input of a report, the metrics and /readyz: the latest values of every stage, at one moment -----------------
STARTING_SECONDS = 15.0  # how long a first answer of the kubelet may take


class ProbeFacts(Struct, frozen=True, kw_only=True):
    """One probe and its state."""

    name: str  # as configured
    inventory: Inventory  # its own devices
    silent: bool = False  # no good line for 15 s, or none within 15 s of the start
    error: str | None = None  # why its last line or process was no good


class NodeFacts(Struct, frozen=True, kw_only=True):
    """The whole input of a report: the world after a step, and what is outside it."""

    world: World
    verdicts: Mapping[str, Verdict]  # with what their MPS daemons say (sharing.daemons)
    probes: tuple[ProbeFacts, ...]
    registrations: tuple[Registration, ...] = ()
    config: ConfigStatus = field(default_factory=ConfigStatus)  # with the kubelet's part (reporter)
    unschedulable: Mapping[str, str] = field(default_factory=dict)  # taken out of service by people: id -> why
    cores: CoresHeld = field(default_factory=CoresHeld)
    started: datetime
    running_seconds: float = STARTING_SECONDS  # since then, by time.monotonic()
    problems: Mapping[str, str] = field(default_factory=dict)  # what does not work -> why; empty: it works
    previous: tuple[Condition, ...] = ()
    previous_probes: tuple[Probe, ...] = ()
    stopping: bool = False  # the last report of this agent
    left_out: tuple[str, ...] = ()  # parts of a report that could not be made, and why (report)
    now: datetime

    @property
    def inventory(self) -> Inventory:
        return self.world.known.inventory

    @property
    def offered(self) -> Plan:
        """The plan that the kubelet is sent, by this agent or by other plugins; of a name that DRA serves not what
        stays registered for earlier pods (OfferedResource.retained)."""
        plan = self.world.observed or self.world.plan or Plan()
        by_dra = {resource.name for resource in plan.by(Api.DRA).resources}
        if not by_dra:
            return plan
        return Plan(
            resources=tuple(
                resource for resource in plan.resources if resource.api is Api.DRA or resource.name not in by_dra
            )
        )


def whole_second(when: datetime) -> datetime:
    """Models made by name skip no validation, but equal values must be equal before a round trip, too."""
    return when.replace(microsecond=0)
