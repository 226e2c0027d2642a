"""A node's devices by every name that others give them: ids, a vendor's indices, the names of its DRA driver.

Made once a step from the inventory. Some names mean a device only for ids of a certain resource.
"""

from __future__ import annotations

from copy import copy
from typing import Self

from msgspec import Struct

from nodedevices_plugin.model import DRA_DRIVER, Inventory, Unit
from nodedevices_plugin.model.ids import split
from nodedevices_plugin.model.resource_names import device_names
from nodedevices_plugin.vendors.base import Naming, partitions
from nodedevices_plugin.vendors.registry import VENDORS, Vendors


class IndexedPart(Struct, frozen=True):
    """The device, or the partition of it, that an id names."""

    device_id: str
    partition_id: str | None = None

    @property
    def id(self) -> str:
        return self.partition_id or self.device_id


class DeviceIndex:
    """The devices of one inventory. `index_prefix`: the domain of resources whose ids may be indices, empty for each
    vendor's own, None for none; a bare number under any other name is none of our devices."""

    __slots__ = ("_by_claim", "_by_id", "_by_index", "_drivers", "_inventory", "_prefix", "_vendors")

    def __init__(self, inventory: Inventory, *, index_prefix: str | None = None, vendors: Vendors = VENDORS) -> None:
        self._inventory = inventory
        self._vendors = vendors
        self._prefix = index_prefix
        self._by_id: dict[str, IndexedPart] = {}
        self._by_index: dict[str | None, dict[tuple[str, str], IndexedPart]] = {None: {}}  # by prefix; domain and index
        self._by_claim: dict[tuple[str, str], IndexedPart] = {}  # by DRA driver and name
        self._drivers = {vendor.dra_driver: vendor for vendor in vendors.every if vendor.dra_driver}
        called = device_names(inventory)
        for device in inventory.devices:
            fact = device.fact
            units = (Unit(device), *partitions(device))
            for unit in units:
                self._by_id[unit.id] = IndexedPart(fact.id, unit.partition.id if unit.partition else None)
                self._by_claim[DRA_DRIVER, called[unit.id]] = self._by_id[unit.id]
            if (vendor := vendors.vendor_of(fact)) is not None and vendor.dra_driver:
                for unit in units:
                    name = vendor.claim_name(unit, called[fact.id])
                    self._by_claim[vendor.dra_driver, name] = self._by_id[unit.id]

    def under(self, index_prefix: str | None) -> Self:
        """The same devices, where resources of this domain may have indices as ids."""
        if index_prefix == self._prefix:
            return self
        other = copy(self)
        other._prefix = index_prefix
        return other

    def part(self, id_: str) -> IndexedPart | None:
        """Return the device or partition with this id; None: this node has none."""
        return self._by_id.get(id_)

    def unit(self, resource: str, id_: str) -> tuple[IndexedPart, int | None] | None:
        """Return the part that an id of a resource names, and its share; None: not one of our devices."""
        base, replica = split(id_)
        found = self._by_id.get(base)
        if found is None:
            found = self._indices().get((resource.partition("/")[0], base))
        return None if found is None else (found, replica)

    def claimed(self, name: str) -> IndexedPart | None:
        """Return the part that a claim's `<driver>/<pool>/<device>` names; None: not one of our devices."""
        driver, _, rest = name.partition("/")
        if driver == DRA_DRIVER:
            return self.in_slices(rest.rpartition("/")[2])
        vendor = self._drivers.get(driver)
        if vendor is None:
            return None
        names = vendor.claimed(rest.rpartition("/")[2])
        return next(
            (self._by_claim[driver, candidate] for candidate in names if (driver, candidate) in self._by_claim), None
        )

    def in_slices(self, name: str) -> IndexedPart | None:
        """Return the part that our own ResourceSlices call so; None: this node has none."""
        return self._by_claim.get((DRA_DRIVER, name))

    def _indices(self) -> dict[tuple[str, str], IndexedPart]:
        """Return the parts by domain and index: only these domains have ids that are indices."""
        if self._prefix not in self._by_index:
            found: dict[tuple[str, str], IndexedPart] = {}
            for device in self._inventory.devices:
                vendor = self._vendors.vendor_of(device.fact)
                if vendor is None or vendor.index_id(Unit(device)) is None:
                    continue
                usual = vendor.usual_name(Unit(device), Naming(prefix=self._prefix or "")) or ""
                domain = usual.partition("/")[0]
                units = (Unit(device), *partitions(device))
                indices = ((vendor.index_id(unit), unit) for unit in units)
                found |= {(domain, index): self._by_id[unit.id] for index, unit in indices if index is not None}
            self._by_index[self._prefix] = found
        return self._by_index[self._prefix]
