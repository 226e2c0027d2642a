"""The vendors that an agent knows, as a value that is passed to everything that deals with devices; look-ups by device.

`VENDORS` has the built-in ones; `VENDORS.with_(vendor)` has one more.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

import msgspec
from msgspec import Struct
from nodedevices_probe.protocol import DeviceFact

from nodedevices_plugin.model import Unit
from nodedevices_plugin.vendors.amd.vendor import Amd
from nodedevices_plugin.vendors.base import (
    CdiVendor,
    ClaimNames,
    Described,
    Elsewhere,
    EveryMaker,
    FileFormat,
    IndexIds,
    Naming,
    OtherNames,
    OwnNodes,
    Vendor,
)
from nodedevices_plugin.vendors.device_nodes import SHARED_NODES
from nodedevices_plugin.vendors.faults import EVERY, FaultSource, FaultSources
from nodedevices_plugin.vendors.files import DeviceFile, OwnFiles
from nodedevices_plugin.vendors.flags import OwnFlags
from nodedevices_plugin.vendors.generic.vendor import Generic
from nodedevices_plugin.vendors.intel.vendor import Intel
from nodedevices_plugin.vendors.nic.vendor import Nic
from nodedevices_plugin.vendors.nvidia.vendor import Nvidia
from nodedevices_plugin.vendors.remote.vendor import Remote
from nodedevices_plugin.vendors.xilinx.vendor import Xilinx


@dataclass(frozen=True, slots=True)
class Vendors:
    """`every`: all vendors; where several know a type of device of every maker, the first counts."""

    every: tuple[Vendor, ...]
    _by_name: Mapping[str, Vendor] = field(init=False, repr=False, compare=False)
    # By type of device; checking a Protocol costs too much for each device.
    _of_every_maker: Mapping[str, Vendor] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        of_every_maker: dict[str, Vendor] = {}
        for vendor in self.every:
            for each in vendor.types if isinstance(vendor, EveryMaker) else ():
                of_every_maker.setdefault(each, vendor)
        object.__setattr__(self, "_by_name", {each.name: each for each in self.every})
        object.__setattr__(self, "_of_every_maker", of_every_maker)

    def with_(self, vendor: Vendor) -> Vendors:
        """Return these and one more; it replaces one of the same name."""
        return Vendors((*(each for each in self.every if each.name != vendor.name), vendor))

    def known(self, name: str) -> bool:
        """True when a maker of that name is registered."""
        return name in self._by_name

    def vendor_of(self, fact: DeviceFact) -> Vendor | None:
        """Return the vendor that knows the device; None: no vendor does."""
        maker = self._by_name.get(fact.vendor)
        if maker is not None and fact.type in maker.types:
            return maker
        return self._of_every_maker.get(fact.type)

    def is_elsewhere(self, fact: DeviceFact) -> bool:
        """True when the device is not hardware of this node."""
        return isinstance(self.vendor_of(fact), Elsewhere)

    def other_names(self, unit: Unit) -> tuple[str, ...]:
        """Return the unit's names beside its id and index."""
        vendor = self.vendor_of(unit.device.fact)
        return tuple(vendor.other_names(unit)) if isinstance(vendor, OtherNames) else ()

    def without_share(self, name: str) -> str:
        """Return the device's name for the name of one of its shares; any other name unchanged."""
        for vendor in self.every:
            if isinstance(vendor, OtherNames):
                name = vendor.without_share(name)
        return name

    def index_ids(self, fact: DeviceFact) -> IndexIds | None:
        """Return the device's vendor, where it hands devices out by index; else None."""
        vendor = self.vendor_of(fact)
        return vendor if isinstance(vendor, IndexIds) else None

    def described(self, fact: DeviceFact, files: Mapping[str, object]) -> bool:
        """True when the device's file still describes it; True as well for devices without a file."""
        vendor = self.vendor_of(fact)
        return vendor.described(fact, files) if isinstance(vendor, Described) else True

    def own_nodes(self, fact: DeviceFact) -> Set[str]:
        """Return the device nodes that no other device has."""
        vendor = self.vendor_of(fact)
        nodes = vendor.own_nodes(fact) if isinstance(vendor, OwnNodes) else fact.device_nodes
        return {*nodes} - SHARED_NODES

    def claim_names(self, fact: DeviceFact) -> ClaimNames | None:
        """Return the device's vendor, where it has names in claims; else None."""
        vendor = self.vendor_of(fact)
        return vendor if isinstance(vendor, ClaimNames) else None

    def fault_sources(self) -> FaultSources:
        """Return the vendors that report faults, by the keys of `source_of`."""
        found: dict[str, FaultSource] = {}
        for vendor in self.every:
            if isinstance(vendor, FaultSource):
                every = isinstance(vendor, EveryMaker)
                found |= {f"{EVERY if every else vendor.name}/{each}": vendor for each in vendor.types}
                found |= {} if every else {vendor.name: vendor}
        return found

    def cdi_vendors(self) -> Mapping[str, CdiVendor]:
        """Return the vendors whose devices may have CDI names, by name."""
        return {name: vendor for name, vendor in self._by_name.items() if isinstance(vendor, CdiVendor)}

    def own_flags(self) -> Mapping[str, OwnFlags]:
        """Return the vendors with flags of their own, by name."""
        return {name: vendor for name, vendor in self._by_name.items() if isinstance(vendor, OwnFlags)}

    def device_files(self) -> tuple[DeviceFile, ...]:
        """Return the device files of all vendors."""
        return tuple(file for vendor in self.every if isinstance(vendor, OwnFiles) for file in vendor.files)

    def files_by_option(self) -> Mapping[str, tuple[str, DeviceFile]]:
        """Return each device file with its vendor's name, by the option's name."""
        own = ((vendor, file) for vendor in self.every if isinstance(vendor, OwnFiles) for file in vendor.files)
        return {file.option.name: (vendor.name, file) for vendor, file in own}

    def by_path(self, paths: Mapping[str, str]) -> list[tuple[DeviceFile, str]]:
        """Return device files with their paths. `paths`: by the option's name."""
        return [(each, paths[each.option.name]) for each in self.device_files() if each.option.name in paths]

    def file_format(self) -> FileFormat:
        """Return the format of the configuration file: that of the first vendor with one."""
        return next(vendor for vendor in self.every if isinstance(vendor, FileFormat))


VENDORS = Vendors((Nvidia(), Amd(), Intel(), Generic(), Xilinx(), Nic(), Remote()))


class VendorValues(Struct, frozen=True, kw_only=True):
    """The vendors that are known, and what flags and device files say to them.

    local: of each vendor with flags of its own its value. files: the content of each device file, by the option's name.
    withheld: vendors whose devices have no name, because a file of theirs was never good: they might be meant to have
    others.
    """

    known: Vendors = VENDORS
    local: Mapping[str, object] = msgspec.field(default_factory=dict)
    files: Mapping[str, object] = msgspec.field(default_factory=dict)
    withheld: Set[str] = frozenset()

    def naming(self, vendor: str, *, strategy: str, prefix: str) -> Naming:
        return Naming(strategy=strategy, prefix=prefix, local=self.local.get(vendor), files=self.files)


NOTHING_SAID = VendorValues()
