"""ClaimOffer: the answers to claims, from the plan in effect and what every claim was given. No I/O, nothing awaited.

As granting.answers is for the device plugin API. Both use one lock: a device is entered here, or granted there, under
it, and under it what is offered is replaced. So no device goes to a claim and to a container of the device plugin.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from msgspec import Struct, field
from msgspec.structs import replace
from nodedevices_common.grouping import grouped

from nodedevices_plugin.claims.devices import Available, Prepare, added, devices_of, prepare
from nodedevices_plugin.claims.records import Claim, ClaimError, NotNowError, Prepared, Record
from nodedevices_plugin.granting.answers import NodeContainers, check_request, edits
from nodedevices_plugin.model import (
    DRA_DRIVER,
    AllocationError,
    Api,
    ContainerEdits,
    Grant,
    Inventory,
    InventoryDevice,
    OfferedResource,
    Plan,
    SchedulableId,
    device_names,
    devices_by_id,
    renumbered,
)
from nodedevices_plugin.offering.occupancy import bound_to
from nodedevices_plugin.sharing.base import merged

Records = Mapping[str, Record]  # by the claim's UID
DROPPED_SECONDS = 5.0  # after which a kubelet that has called unprepare lists the claim no more


class _Offered(Struct, frozen=True, kw_only=True):
    devices: Mapping[str, Available] = field(default_factory=dict)  # by name in the slices
    inventory: Inventory = field(default_factory=Inventory)
    containers: NodeContainers = field(default_factory=NodeContainers)


class ClaimOffer:
    """Threads call `prepare`, `undo`, `edits` and `release`; the event loop `withdraw` and `use`."""

    def __init__(self, granting: AbstractContextManager[object], *, driver: str = DRA_DRIVER) -> None:
        """`granting`: the lock under which ids are granted (kubelet.offer)."""
        self.driver = driver
        self.refuses = ""  # why no claim gets anything new now: another plugin serves the devices
        self._granting = granting
        self._offered = _Offered()
        self._leaving: frozenset[str] = frozenset()  # parts, until the next `use`
        self._released: tuple[tuple[Record, float], ...] = ()  # and when
        self._records: Records = {}

    @property
    def records(self) -> Records:
        """What every claim was given; another mapping after each change."""
        return self._records

    def restore(self, records: Records) -> None:
        """Take the records of an earlier run, before the first plan."""
        self._records = dict(records)

    def use(self, plan: Plan, inventory: Inventory, containers: NodeContainers) -> None:
        devices = available(plan, inventory)
        with self._granting:
            self._offered = _Offered(devices=devices, inventory=inventory, containers=containers)
            self._leaving = frozenset()

    def withdraw(self, plan: Plan, inventory: Inventory, *, known: Records) -> bool:
        """Until the next `use`, give no claim a device that this plan takes away, or that has other nodes in
        `inventory`. False where one of them, or one that has another name in it, was given after `known`, from which
        the plan was decided: decide again."""
        if not self._offered.devices:
            return True
        devices = available(plan, inventory)
        names = {device.part_id: name for name, device in devices.items()}
        stays = {device.part_id: device for device in devices.values() if not device.left_out}
        moved = renumbered(self._offered.inventory, inventory)
        with self._granting:
            self._leaving = frozenset(
                device.part_id
                for device in self._offered.devices.values()
                if device.part_id in moved or not _keeps(device, stays.get(device.part_id))
            )
            new = [record for uid, record in self._records.items() if known.get(uid) is not record]
            given = [entry for record in new for entry in record.prepared]
            renamed = any(names.get(entry.part_id, entry.result.device) != entry.result.device for entry in given)
            return not renamed and not any(entry.part_id in self._leaving for record in new for entry in record.own)

    def prepare(self, claim: Claim) -> Prepare:
        """Give the claim its devices. Raises ClaimError."""
        with self._granting:
            offered = self._offered
            decided = prepare(
                claim,
                offered.devices,
                self._records,
                present=_present(offered.inventory),
                leaving=self._leaving,
            )
            if decided.is_new and self.refuses:
                raise NotNowError(self.refuses)
            if decided.is_new:
                decided = replace(decided, record=_with_added(decided.record, offered))
                self._note_released(claim.uid)
                self._records = {**self._records, claim.uid: decided.record}
        return decided

    def undo(self, decided: Prepare) -> None:
        """The claim was not prepared after all."""
        with self._granting:
            if decided.is_new and self._records.get(decided.record.uid) is decided.record:
                self.release(decided.record.uid)

    def release(self, uid: str) -> None:
        with self._granting:
            self._note_released(uid)
            self._records = {key: record for key, record in self._records.items() if key != uid}

    def _note_released(self, uid: str) -> None:
        if (before := self._records.get(uid)) is not None:
            self._released = (*self._released, (before, time.monotonic()))

    def released(self, taken: float) -> tuple[Record, ...]:
        """Return what a List of PodResources may show that was called then (time.monotonic()), although it was
        released; forget the rest. A kubelet drops a claim when it has our answer."""
        with self._granting:
            self._released = tuple(entry for entry in self._released if entry[1] + DROPPED_SECONDS >= taken)
            return tuple(record for record, _ in self._released)

    def edits(self, record: Record) -> dict[str, ContainerEdits]:
        """Return what a container needs for each request, by the devices as they are now. Raises ClaimError."""
        offered = self._offered
        devices = devices_by_id(offered.inventory)
        by_request = grouped((entry.result.request, entry) for entry in record.prepared)
        for entry in record.prepared:
            if entry.part_id not in devices:
                raise NotNowError(f"device {entry.result.device} ({entry.part_id}) has just left this node")
        try:
            return {
                request: merged(
                    (_of_devices(entries, devices, offered), *(entry.added for entry in entries if entry.added))
                )
                for request, entries in by_request.items()
            }
        except AllocationError as error:
            raise ClaimError(str(error)) from error


def _of_devices(
    entries: Sequence[Prepared], devices: Mapping[str, InventoryDevice], offered: _Offered
) -> ContainerEdits:
    """Return what a container needs for the devices of one request, each once."""
    parts = {entry.part_id: devices[entry.part_id].fact.id for entry in entries}
    ids = tuple(
        SchedulableId(id=part_id, device_id=device_id, partition_id=None if part_id == device_id else part_id)
        for part_id, device_id in parts.items()
    )
    return edits(_grant(entries[0].resource, ids), offered.containers)


def _keeps(before: Available, now: Available | None) -> bool:
    """True when what a claim is given of the device by the plan of before is in the plan of now as well."""
    return (
        now is not None
        and bound_to(before.resource) == bound_to(now.resource)
        and {schedulable.id for schedulable in before.ids} <= {schedulable.id for schedulable in now.ids}
    )


def _with_added(record: Record, offered: _Offered) -> Record:
    """Enter what containers are given for shares: those of one request and resource together. Raises ClaimError."""
    found = grouped(
        ((entry.result.request, entry.resource), number) for number, entry in enumerate(record.prepared) if entry.shares
    )
    prepared = list(record.prepared)
    for numbers in found.values():
        first = numbers[0]
        own = _added([record.prepared[number] for number in numbers], offered)
        prepared[first] = replace(prepared[first], added=own)
    return replace(record, prepared=tuple(prepared))


def _added(entries: Sequence[Prepared], offered: _Offered) -> ContainerEdits:
    resource = offered.devices[entries[0].result.device].resource
    granted = {id_ for entry in entries for id_ in entry.ids}
    ids = tuple(schedulable for schedulable in (*resource.ids, *resource.unlisted) if schedulable.id in granted)
    devices = {
        schedulable.part_id: SchedulableId(
            id=schedulable.part_id, device_id=schedulable.device_id, partition_id=schedulable.partition_id
        )
        for schedulable in ids
    }
    try:
        check_request(resource, ids)
        without = edits(_grant(resource.name, tuple(devices.values())), offered.containers)
        return added(edits(Grant(resource=resource, ids=ids), offered.containers), without)
    except AllocationError as error:
        raise ClaimError(str(error)) from error


def _grant(resource: str, ids: tuple[SchedulableId, ...]) -> Grant:
    return Grant(resource=OfferedResource(name=resource, api=Api.DRA, ids=ids), ids=ids)


def _present(inventory: Inventory) -> frozenset[str]:
    return frozenset(
        id_
        for device in inventory.devices
        if device.present
        for id_ in device.ids
        if id_ not in device.departed_partitions
    )


def available(plan: Plan, inventory: Inventory) -> dict[str, Available]:
    """Return the devices of the plan's DRA resources, by their names in the slices; those that are left out too."""
    names = device_names(inventory)
    return {
        names[device.part_id]: device
        for resource in plan.by(Api.DRA).resources
        for device in devices_of(resource)
        if device.part_id in names
    }
