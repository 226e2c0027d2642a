"""The devices that are here or were, what of them can be handed out, their names, and the most of one product that a
node has had at one time.

Devices and partitions are called `gpu-3`, `nic-0`, `gpu-3-mig-1g10gb-19-0`, as in a ResourceSlice. Every name is a DNS
label and unique on the node: of two devices with the same name the later one, in the inventory's order, has a hash of
its id behind its name. A name by which a claim has a device stays that device's. Programs use ids; names are for
people, claims (DRA) and ResourceSlices.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from msgspec import Struct, field
from nodedevices_api.bounds import MAX_DEVICE_NAME
from nodedevices_api.matching import matches
from nodedevices_api.sections import DeviceMatch
from nodedevices_probe.protocol import DeviceFact, Driver, Machine, Partition, Problem, memory_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryDevice:
    """A device that is here, or was: a vanished one stays, with its last facts, until it returns or is released."""

    fact: DeviceFact
    present: bool
    last_seen: datetime  # of one that is not present: the first line that did not list it
    probe: str = ""  # which of the agent's probes reports it; "": not said yet
    # MIG devices that the driver no longer lists while a pod still holds them: they stay listed, Unhealthy.
    departed_partitions: frozenset[str] = frozenset()

    @property
    def ids(self) -> tuple[str, ...]:
        """Its own id, and those of its partitions."""
        return self.fact.id, *(part.id for part in self.fact.partitions)

    @property
    def partitions(self) -> list[Unit]:
        """Its partitions, by index."""
        return [Unit(self, part) for part in sorted(self.fact.partitions, key=lambda part: (part.index, part.id))]


class Inventory(Struct, frozen=True, kw_only=True):
    """Every device that one probe reports or reported, or all of them together (inventory.together); by type, index
    and id."""

    devices: tuple[InventoryDevice, ...] = ()
    driver: Driver | None = None  # None: no good line yet
    machine: Machine = field(default_factory=Machine)
    boot_id: str = ""
    accelerators_on_bus: int = 0
    problems: tuple[Problem, ...] = ()
    instance: str = ""  # of the probe's process that wrote the line in effect
    newest_event: int = -1  # the newest event of that process, by its sequence number
    read_after: int = -1  # the newest event that had happened when the devices of the line were read
    line_time: datetime | None = None  # agent's clock when the line in effect arrived
    line_monotonic: float | None = None  # seconds, time.monotonic(): silence is measured by it
    pinned: Mapping[str, str] = field(default_factory=dict)  # id -> name, where claims have another than it would have

    @property
    def units(self) -> Iterator[Unit]:
        """Every device as a whole, each followed by its partitions, by index."""
        return (unit for device in self.devices for unit in (Unit(device), *device.partitions))

    @property
    def departed_partitions(self) -> frozenset[str]:
        """Ids of the partitions that are listed and that the driver no longer lists."""
        return frozenset(part for device in self.devices for part in device.departed_partitions)


def devices_by_id(inventory: Inventory) -> dict[str, InventoryDevice]:
    """Return the devices by their ids and by those of their partitions."""
    return {id_: device for device in inventory.devices for id_ in device.ids}


def facts_by_id(inventory: Inventory) -> dict[str, DeviceFact]:
    """Return the facts of `devices_by_id`."""
    return {id_: device.fact for id_, device in devices_by_id(inventory).items()}


class Unit(Struct, frozen=True):
    """One thing that can be handed out whole: a device, or a partition of one."""

    device: InventoryDevice
    partition: Partition | None = None

    @property
    def id(self) -> str:
        return self.partition.id if self.partition else self.device.fact.id

    @property
    def index(self) -> str:
        """NVML's: `3`, or `3:1` for the MIG device 1 of GPU 3."""
        index = str(self.device.fact.index)
        return f"{index}:{self.partition.index}" if self.partition else index

    @property
    def memory_bytes(self) -> int:
        return memory_bytes((self.partition or self.device.fact).capacity)


def renumbered(before: Inventory, now: Inventory) -> frozenset[str]:
    """Return the devices and partitions with other device nodes, or another index: a driver that is loaded again
    numbers anew."""
    old, new = (
        {
            unit.id: (unit.device.fact.device_nodes, unit.partition.device_nodes if unit.partition else (), unit.index)
            for unit in inventory.units
        }
        for inventory in (before, now)
    )
    return frozenset(id_ for id_, numbers in old.items() if new.get(id_, numbers) != numbers)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class MostSeen:
    """`probe`: the name of the probe that listed them."""

    probe: str
    vendor: str
    product_name: str
    count: int


def selects(match: DeviceMatch, fact: DeviceFact, *, any_case: bool = False) -> bool:
    """True when the match selects the device; of partitions it says nothing. The operator decides by the same test.
    `any_case`: to find a near miss."""
    return matches(
        match,
        product_name=fact.product_name,
        type=fact.type,
        ids=(fact.id,),
        any_case=any_case,
    )


HASH_CHARACTERS = 8


def device_names(inventory: Inventory) -> dict[str, str]:
    """Id -> name, of every device and partition of the inventory."""
    names: dict[str, str] = {}
    taken = set(inventory.pinned.values())

    def give(id_: str, wanted: str) -> None:
        name = inventory.pinned.get(id_, wanted)
        if id_ not in inventory.pinned and (name in taken or len(name) > MAX_DEVICE_NAME):
            hash_ = hashlib.sha256(id_.encode()).hexdigest()
            name = f"{wanted[: MAX_DEVICE_NAME - HASH_CHARACTERS - 1].rstrip('-')}-{hash_[:HASH_CHARACTERS]}"
        taken.add(name)
        names[id_] = name

    for device in inventory.devices:
        give(device.fact.id, device.fact.name or usual_name(device.fact))
    for device in inventory.devices:
        for part in device.fact.partitions:
            give(part.id, part.name or f"{names[device.fact.id]}-{plain(part.profile)}-{part.index}")
    return names


def usual_name(fact: DeviceFact) -> str:
    """`gpu-<minor>`, the name in NVIDIA's ResourceSlices; by index where there is no minor number."""
    return f"{fact.type.lower()}-{fact.minor if fact.minor is not None else fact.index}"


def plain(profile: str) -> str:
    """`1g.10gb+me` as it may stand in a name, where only letters, digits and dashes may."""
    return "".join(char for char in profile.lower() if char.isalnum())
