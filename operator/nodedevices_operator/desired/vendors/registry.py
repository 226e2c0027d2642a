"""The vendors whose devices are described by labels, one line each, and their port: what its devices put on a Node,
where a policy enables feature discovery.

A vendor answers from the record of a NodeDevices alone. Which of its labels may be set on the Node, what others have
there, and when anything is written is decided for all vendors alike (desired.labels, concerns.labels).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from nodedevices_operator.desired.vendors.amd import AmdLabels
from nodedevices_operator.desired.vendors.nvidia import GpuFeatureDiscovery
from nodedevices_operator.records.objects import NodeDevicesRecord


class VendorLabels(Protocol):
    """One vendor's labels. Frozen, without state."""

    @property
    def prefixes(self) -> Sequence[str]:
        """Return how its labels begin, `nvidia.com/`: no two vendors' overlap. A label that does not is left out."""
        ...

    @property
    def timestamp(self) -> str:
        """A label below one of these that says when another label last changed, in seconds since 1970; empty: none."""
        ...

    def labels(self, record: NodeDevicesRecord) -> Mapping[str, str]:
        """Its labels, without the timestamp; none where the node has no device of its. Follows from what a status says:
        the same record, the same labels."""
        ...


VENDORS: tuple[VendorLabels, ...] = (
    GpuFeatureDiscovery(),
    AmdLabels(),
)
