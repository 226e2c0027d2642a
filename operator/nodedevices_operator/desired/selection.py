"""Which devices of a node a `DeviceMatch` selects, by what NodeDevices says of them; the agent decides by the same test
(nodedevices_api.matching).

Devices are selected, never partitions: what is about a partition goes by its device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nodedevices_api.matching import described, matches
from nodedevices_api.sections import DeviceMatch, ExpectedDevices

from nodedevices_operator.records.objects import DeviceRecord


def lacking(expect: Iterable[ExpectedDevices], devices: Sequence[DeviceRecord]) -> dict[int, str]:
    """Return the entries, by place, of which a node has fewer devices, a text each. `devices`: all of one node."""
    here = [device for device in devices if not device.missing]
    wanted = [(entry.match, entry.count) for entry in expect]
    counted = ((match, count, sum(selects(match, device) for device in here)) for match, count in wanted)
    return {
        index: f"{described(match)}: {found} of {count} found"
        for index, (match, count, found) in enumerate(counted)
        if found < count
    }


def selects(match: DeviceMatch, device: DeviceRecord) -> bool:
    """True when the device is one of those."""
    return matches(
        match,
        product_name=device.model.product,
        type=device.type,
        ids=(device.id,),
    )
