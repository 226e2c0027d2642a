"""The vendors that this agent knows, one line each, and look-ups by device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set

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

_VENDORS: dict[str, Vendor] = {}
_OF_EVERY_MAKER: dict[str, Vendor] = {}  # by type of device; checking a Protocol costs too much for each device


def add(vendor: Vendor) -> Callable[[], None]:
    """Register a vendor. Returns a function that removes it again."""
    _VENDORS[vendor.name] = vendor
    types = [each for each in vendor.types if isinstance(vendor, EveryMaker) and each not in _OF_EVERY_MAKER]
    _OF_EVERY_MAKER.update(dict.fromkeys(types, vendor))

    def forget() -> None:
        del _VENDORS[vendor.name]
        for each in types:
            del _OF_EVERY_MAKER[each]

    return forget


add(Nvidia())
add(Amd())
add(Intel())
add(Generic())
add(Xilinx())
add(Nic())
add(Remote())


def vendors() -> tuple[Vendor, ...]:
    return tuple(_VENDORS.values())


def known(name: str) -> bool:
    """True when a maker of that name is registered."""
    return name in _VENDORS


def vendor_of(fact: DeviceFact) -> Vendor | None:
    """Return the vendor that knows the device; None: no vendor does."""
    maker = _VENDORS.get(fact.vendor)
    if maker is not None and fact.type in maker.types:
        return maker
    return _OF_EVERY_MAKER.get(fact.type)


def is_elsewhere(fact: DeviceFact) -> bool:
    """True when the device is not hardware of this node."""
    return isinstance(vendor_of(fact), Elsewhere)


def other_names(unit: Unit) -> tuple[str, ...]:
    """Return the unit's names beside its id and index."""
    vendor = vendor_of(unit.device.fact)
    return tuple(vendor.other_names(unit)) if isinstance(vendor, OtherNames) else ()


def without_share(name: str) -> str:
    """Return the device's name for the name of one of its shares; any other name unchanged."""
    for vendor in _VENDORS.values():
        if isinstance(vendor, OtherNames):
            name = vendor.without_share(name)
    return name


def index_ids(fact: DeviceFact) -> IndexIds | None:
    """Return the device's vendor, where it hands devices out by index; else None."""
    vendor = vendor_of(fact)
    return vendor if isinstance(vendor, IndexIds) else None


def described(fact: DeviceFact, files: Mapping[str, object]) -> bool:
    """True when the device's file still describes it; True as well for devices without a file."""
    vendor = vendor_of(fact)
    return vendor.described(fact, files) if isinstance(vendor, Described) else True


def own_nodes(fact: DeviceFact) -> Set[str]:
    """Return the device nodes that no other device has."""
    vendor = vendor_of(fact)
    nodes = vendor.own_nodes(fact) if isinstance(vendor, OwnNodes) else fact.device_nodes
    return {*nodes} - SHARED_NODES


def claim_names(fact: DeviceFact) -> ClaimNames | None:
    """Return the device's vendor, where it has names in claims; else None."""
    vendor = vendor_of(fact)
    return vendor if isinstance(vendor, ClaimNames) else None


def fault_sources() -> FaultSources:
    """Return the vendors that report faults, by the keys of `source_of`."""
    found: dict[str, FaultSource] = {}
    for vendor in _VENDORS.values():
        if isinstance(vendor, FaultSource):
            every = isinstance(vendor, EveryMaker)
            found |= {f"{EVERY if every else vendor.name}/{each}": vendor for each in vendor.types}
            found |= {} if every else {vendor.name: vendor}
    return found


def cdi_vendors() -> Mapping[str, CdiVendor]:
    """Return the vendors whose devices may have CDI names, by name."""
    return {name: vendor for name, vendor in _VENDORS.items() if isinstance(vendor, CdiVendor)}


def own_flags() -> Mapping[str, OwnFlags]:
    """Return the vendors with flags of their own, by name."""
    return {name: vendor for name, vendor in _VENDORS.items() if isinstance(vendor, OwnFlags)}


def device_files() -> tuple[DeviceFile, ...]:
    """Return the device files of all vendors."""
    return tuple(file for vendor in _VENDORS.values() if isinstance(vendor, OwnFiles) for file in vendor.files)


def files_by_option() -> Mapping[str, tuple[str, DeviceFile]]:
    """Return each device file with its vendor's name, by the option's name."""
    own = ((vendor, file) for vendor in _VENDORS.values() if isinstance(vendor, OwnFiles) for file in vendor.files)
    return {file.option.name: (vendor.name, file) for vendor, file in own}


def by_path(paths: Mapping[str, str]) -> list[tuple[DeviceFile, str]]:
    """Return device files with their paths. `paths`: by the option's name."""
    return [(each, paths[each.option.name]) for each in device_files() if each.option.name in paths]


def file_format() -> FileFormat:
    """Return the format of the configuration file: that of the first vendor with one."""
    return next(vendor for vendor in _VENDORS.values() if isinstance(vendor, FileFormat))
