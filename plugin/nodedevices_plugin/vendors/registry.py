"""The vendors that an agent knows, as a value that is passed to everything that deals with devices; look-ups by device.

`VENDORS` has the built-in ones; `Vendors((*VENDORS.every, vendor))` has one more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from msgspec import Struct, field
from nodedevices_probe.protocol import DeviceFact

from nodedevices_plugin.model import InventoryDevice, Unit
from nodedevices_plugin.vendors.amd import Amd
from nodedevices_plugin.vendors.base import DeviceFile, Vendor, VendorFlags, whole_or_partitions
from nodedevices_plugin.vendors.configured import Generic, Remote
from nodedevices_plugin.vendors.faults import EVERY, FaultSource, FaultSources
from nodedevices_plugin.vendors.intel import Intel
from nodedevices_plugin.vendors.nic.vendor import Nic
from nodedevices_plugin.vendors.nvidia.vendor import Nvidia
from nodedevices_plugin.vendors.xilinx import Xilinx


class _Unknown(Vendor):
    """The maker of devices that no vendor knows: they are offered under the name that a rule gives them, whole, or by
    partition with a partitions.strategy other than none; containers get the device nodes of the probe's line."""

    every_maker = True

    def units(self, devices: Sequence[InventoryDevice], *, strategy: str, excluded: Set[str]) -> Sequence[Unit]:
        return [unit for device in devices for unit in whole_or_partitions(device, strategy)]


UNKNOWN = _Unknown()


class Vendors:
    """`every`: all vendors; where several know a type of device of every maker, the first counts."""

    def __init__(self, every: tuple[Vendor, ...]) -> None:
        self.every = every
        self._by_name = {vendor.name: vendor for vendor in every}
        of_every_maker = [vendor for vendor in reversed(every) if vendor.every_maker]
        self._of_every_maker = {type_: vendor for vendor in of_every_maker for type_ in vendor.types}

    def known(self, name: str) -> bool:
        """True when a maker of that name is registered."""
        return name in self._by_name

    def vendor_of(self, fact: DeviceFact) -> Vendor:
        """Return the vendor that knows the device, or UNKNOWN."""
        maker = self._by_name.get(fact.vendor)
        if maker is not None and fact.type in maker.types:
            return maker
        return self._of_every_maker.get(fact.type, UNKNOWN)

    def without_share(self, name: str) -> str:
        """Return the device's name for the name of one of its shares; any other name unchanged."""
        for vendor in self.every:
            name = vendor.without_share(name)
        return name

    def fault_sources(self) -> FaultSources:
        """Return the vendors by the keys of `source_of`."""
        found: dict[str, FaultSource] = {}
        for vendor in self.every:
            found |= {f"{EVERY if vendor.every_maker else vendor.name}/{type_}": vendor for type_ in vendor.types}
            found |= {} if vendor.every_maker else {vendor.name: vendor}
        return found

    def cdi_vendors(self) -> Mapping[str, Vendor]:
        """Return the vendors whose devices may have CDI names, by name."""
        return {vendor.name: vendor for vendor in self.every if vendor.cdi_source is not None}

    def own_flags(self) -> Mapping[str, VendorFlags]:
        """Return the vendors' own flags, by vendor."""
        return {vendor.name: vendor.flags for vendor in self.every if vendor.flags is not None}

    def files_by_name(self) -> Mapping[str, tuple[str, DeviceFile]]:
        """Return each device file with its vendor's name, by its own."""
        return {file.name: (vendor.name, file) for vendor in self.every for file in vendor.files}


VENDORS = Vendors((Nvidia(), Amd(), Intel(), Generic(), Xilinx(), Nic(), Remote()))


class VendorValues(Struct, frozen=True, kw_only=True):
    """The vendors that are known, and what flags and device files say to them.

    local: of each vendor with flags of its own its value. files: the content of each device file, by its name.
    withheld: vendors whose devices have no name, because a file of theirs was never good: they might be meant to have
    others.
    """

    known: Vendors = VENDORS
    local: Mapping[str, object] = field(default_factory=dict)
    files: Mapping[str, object] = field(default_factory=dict)
    withheld: Set[str] = frozenset()


NOTHING_SAID = VendorValues()
