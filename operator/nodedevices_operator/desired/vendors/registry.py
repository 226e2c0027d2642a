"""The vendors whose devices are described by labels, one line each."""

from __future__ import annotations

from collections.abc import Callable

from nodedevices_operator.desired.vendors.amd import AmdLabels
from nodedevices_operator.desired.vendors.nvidia import GpuFeatureDiscovery
from nodedevices_operator.desired.vendors.port import VendorLabels

_VENDORS: list[VendorLabels] = []


def add(vendor: VendorLabels) -> Callable[[], None]:
    """From now on the operator knows its labels. Returns what takes it back."""
    _VENDORS.append(vendor)

    def forget() -> None:
        _VENDORS.remove(vendor)

    return forget


add(GpuFeatureDiscovery())
add(AmdLabels())


def vendors() -> tuple[VendorLabels, ...]:
    return tuple(_VENDORS)
