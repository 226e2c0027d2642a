"""Lists what can be offered: whole devices and partitions, before they get a name (offering.naming).

Their vendor decides which these are (vendors.base). A device that no vendor knows is offered whole, or, with a
partitions.strategy other than none, by its partitions where it has some. Devices that `resources.exclude` names are
left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from nodedevices_plugin.model import Inventory, InventoryDevice, Unit
from nodedevices_plugin.vendors.base import Vendor, whole_or_partitions
from nodedevices_plugin.vendors.registry import VENDORS, Vendors


def units(
    inventory: Inventory, strategy: str, exclude: Sequence[str] = (), vendors: Vendors = VENDORS
) -> tuple[Unit, ...]:
    """All units, by device then partition. `exclude`: ids or globs over ids; a device's takes its partitions along.
    Raises PlanError where the strategy makes no sense with these devices."""
    ids = [
        id_
        for device in inventory.devices
        for id_ in (device.fact.id, *(partition.id for partition in device.fact.partitions))
    ]
    excluded = frozenset(id_ for id_ in ids if excluded_by(id_, exclude) is not None)
    by_vendor: dict[str, tuple[Vendor, list[InventoryDevice]]] = {}
    found: dict[str, list[Unit]] = {}
    for device in inventory.devices:
        if device.fact.id in excluded:
            continue
        vendor = vendors.vendor_of(device.fact)
        if vendor is None:
            found[device.fact.id] = whole_or_partitions(device, strategy)
        else:
            by_vendor.setdefault(vendor.name, (vendor, []))[1].append(device)
    for vendor, devices in by_vendor.values():
        for unit in vendor.units(devices, strategy=strategy, excluded=excluded):
            found.setdefault(unit.device.fact.id, []).append(unit)
    in_order = (unit for device in inventory.devices for unit in found.get(device.fact.id, ()))
    return tuple(unit for unit in in_order if unit.id not in excluded)


def excluded_by(device_id: str, exclude: Sequence[str]) -> str | None:
    """Return the first entry that this id matches."""
    return next((pattern for pattern in exclude if fnmatchcase(device_id, pattern)), None)
