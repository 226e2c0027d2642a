"""The vendors that this agent knows, one line each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nodedevices_probe.protocol import DeviceFact

from nodedevices_plugin.vendors.amd.vendor import Amd
from nodedevices_plugin.vendors.base import CdiVendor, ClaimNames, FileFormat, IndexIds, Vendor
from nodedevices_plugin.vendors.faults import FaultSource, FaultSources
from nodedevices_plugin.vendors.flags import OwnFlags
from nodedevices_plugin.vendors.intel.vendor import Intel
from nodedevices_plugin.vendors.nvidia.vendor import Nvidia

_VENDORS: dict[str, Vendor] = {}


def add(vendor: Vendor) -> Callable[[], None]:
    """From now on this agent knows the vendor. Returns what takes it back."""
    _VENDORS[vendor.name] = vendor

    def forget() -> None:
        del _VENDORS[vendor.name]

    return forget


add(Nvidia())
add(Amd())
add(Intel())


def vendors() -> tuple[Vendor, ...]:
    return tuple(_VENDORS.values())


def known(name: str) -> bool:
    """Whether a vendor of that name is registered."""
    return name in _VENDORS


def of(fact: DeviceFact) -> Vendor | None:
    """The vendor that knows the device; None: nobody does."""
    vendor = _VENDORS.get(fact.vendor)
    return vendor if vendor is not None and fact.type in vendor.types else None


def index_ids(fact: DeviceFact) -> IndexIds | None:
    """Who says by which indices the device may be handed out; None: by none."""
    vendor = of(fact)
    return vendor if isinstance(vendor, IndexIds) else None


def claim_names(fact: DeviceFact) -> ClaimNames | None:
    """Who says what the device is called in claims; None: nobody."""
    vendor = of(fact)
    return vendor if isinstance(vendor, ClaimNames) else None


def fault_sources() -> FaultSources:
    """The vendors that say what is wrong with their devices."""
    return {name: vendor for name, vendor in _VENDORS.items() if isinstance(vendor, FaultSource)}


def cdi_vendors() -> Mapping[str, CdiVendor]:
    """The vendors whose devices may have CDI names, by their names."""
    return {name: vendor for name, vendor in _VENDORS.items() if isinstance(vendor, CdiVendor)}


def own_flags() -> Mapping[str, OwnFlags]:
    """The vendors that have some, by their names."""
    return {name: vendor for name, vendor in _VENDORS.items() if isinstance(vendor, OwnFlags)}


def file_format() -> FileFormat:
    """Of the configuration file; the first vendor's that has one."""
    return next(vendor for vendor in _VENDORS.values() if isinstance(vendor, FileFormat))
