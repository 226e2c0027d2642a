"""The vendors whose devices are described by labels, one line each, and their port: what its devices put on a Node,
where a policy enables feature discovery.

A vendor answers from the record of a NodeDevices alone. Which of its labels may be set on the Node, what others have
there, and when anything is written is decided for all vendors alike (desired.labels, concerns.labels).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from nodedevices_operator.desired.vendors import amd, nvidia
from nodedevices_operator.records.objects import NodeDevicesRecord


class VendorLabels(Struct, frozen=True):
    """One vendor's labels."""

    prefixes: tuple[str, ...]  # how they begin, `nvidia.com/`: no two vendors' overlap. One that does not is left out
    labels: Callable[[NodeDevicesRecord], Mapping[str, str]]
    """Return them without the timestamp; none where the node has no device of the vendor's. Follows from what a status
    says: the same record, the same labels."""
    timestamp: str = ""  # a label that says when another label last changed, in seconds since 1970


VENDORS: tuple[VendorLabels, ...] = (
    VendorLabels(nvidia.PREFIXES, nvidia.labels, nvidia.TIMESTAMP),
    VendorLabels(amd.PREFIXES, amd.labels),
)
