"""The vendors whose devices are described by labels, one line each."""

from __future__ import annotations

from nodedevices_operator.desired.vendors.amd import AmdLabels
from nodedevices_operator.desired.vendors.nvidia import GpuFeatureDiscovery
from nodedevices_operator.desired.vendors.port import VendorLabels

VENDORS: tuple[VendorLabels, ...] = (
    GpuFeatureDiscovery(),
    AmdLabels(),
)
