"""What claims are answered from: the plan in effect, and what every claim was given. No I/O, nothing awaited.

As granting.answers is for the device plugin API. Both use one lock: a device is entered here, or granted there, under
it, and under it what is offered is replaced. So no device goes to a claim and to a container of the device plugin.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

from msgspec import Struct, field

from nodedevices_plugin.claims import decide
from nodedevices_plugin.claims.decide import Available, Prepare
from nodedevices_plugin.claims.records import Record
from nodedevices_plugin.claims.request import Claim, ClaimError, NotNowError
from nodedevices_plugin.claims.taints import is_left_out
from nodedevices_plugin.granting.answers import NodeContainers, edits
from nodedevices_plugin.model import (
    DRA_DRIVER,
    AllocationError,
    Api,
    ContainerEdits,
    Grant,
    Inventory,
    OfferedResource,
    Plan,
    SchedulableId,
    numbered,
)
from nodedevices_plugin.model.inventory import devices_by_id
from nodedevices_plugin.model.resource_names import device_names

Records = Mapping[str, Record]  # by the claim's UID


class _Offered(Struct, frozen=True, kw_only=True):
    devices: Mapping[str, Available] = field(default_factory=dict)  # by name in the slices
    inventory: Inventory = field(default_factory=Inventory)
    containers: NodeContainers = field(default_factory=NodeContainers)


class ClaimOffer:
    """Threads call `prepare`, `undo`, `edits` and `release`; the event loop `withdraw` and `use`."""

    def __init__(self, granting: AbstractContextManager[object], *, driver: str = DRA_DRIVER) -> None:
        """`granting`: the lock under which ids are granted (kubelet.recent)."""
        self.driver = driver
        self.refuses = ""  # why no claim gets anything new now: another plugin serves the devices
        self._granting = granting
        self._offered = _Offered()
        self._leaving: frozenset[str] = frozenset()  # parts, until the next `use`
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
        stay = {device.part_id for device in devices.values() if not is_left_out(device.blocked)}
        names = {device.part_id: name for name, device in devices.items()}
        before, now = numbered(self._offered.inventory), numbered(inventory)
        moved = {id_ for id_, numbers in before.items() if now.get(id_, numbers) != numbers}
        with self._granting:
            offered = {device.part_id for device in self._offered.devices.values()}
            self._leaving = frozenset(offered - stay | offered & moved)
            new = [record for uid, record in self._records.items() if known.get(uid) is not record]
            given = [entry for record in new for entry in record.prepared]
            renamed = any(names.get(entry.part_id, entry.result.device) != entry.result.device for entry in given)
            return not renamed and not any(self._leaving & record.held for record in new)

    def prepare(self, claim: Claim) -> Prepare:
        """Give the claim its devices. Raises ClaimError."""
        with self._granting:
            offered = self._offered
            decided = decide.prepare(
                claim,
                offered.devices,
                self._records,
                present=_present(offered.inventory),
                leaving=self._leaving,
            )
            if decided.is_new and self.refuses:
                raise NotNowError(self.refuses)
            if decided.is_new:
                self._records = {**self._records, claim.uid: decided.record}
        return decided

    def undo(self, decided: Prepare) -> None:
        """The claim was not prepared after all."""
        with self._granting:
            if decided.is_new and self._records.get(decided.record.uid) is decided.record:
                self.release(decided.record.uid)

    def release(self, uid: str) -> None:
        with self._granting:
            self._records = {key: record for key, record in self._records.items() if key != uid}

    def edits(self, record: Record) -> dict[str, ContainerEdits]:
        """Return what a container needs for each request, by the devices as they are now. Raises ClaimError."""
        offered = self._offered
        devices = devices_by_id(offered.inventory)
        by_request: dict[str, list[SchedulableId]] = {}
        names: dict[str, str] = {}
        for entry in record.prepared:
            part_id = entry.part_id
            if part_id not in devices:
                raise NotNowError(f"device {entry.result.device} ({part_id}) has just left this node")
            device_id = devices[part_id].fact.id
            partition_id = None if part_id == device_id else part_id
            schedulable = SchedulableId(id=part_id, device_id=device_id, partition_id=partition_id)
            by_request.setdefault(entry.result.request, []).append(schedulable)
            names.setdefault(entry.result.request, entry.resource)
        try:
            return {
                request: edits(_grant(names[request], tuple(ids)), offered.containers)
                for request, ids in by_request.items()
            }
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
    resources = [resource for resource in plan.resources if resource.api is Api.DRA]
    if not resources:
        return {}
    names = device_names(inventory)
    return {
        names[schedulable.part_id]: Available(
            part_id=schedulable.part_id, resource=resource.name, blocked=schedulable.blocked
        )
        for resource in resources
        for schedulable in (*resource.ids, *resource.unlisted)
        if schedulable.part_id in names
    }
