"""Which devices of a node a `DeviceMatch` selects, by what NodeDevices says of them; the agent decides by the same test
(nodedevices_api.matching).

Devices are selected, never partitions: what is about a partition goes by its device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from nodedevices_api.matching import described, matches, near_types
from nodedevices_api.sections import DeviceMatch, ExpectedDevices
from nodedevices_common.quantity import MEBIBYTE

from nodedevices_operator.records.objects import DeviceRecord

Near = Mapping[str, frozenset[str]]  # device id -> types of the other devices on its PCIe root


def near_devices(devices: Iterable[DeviceRecord]) -> Near:
    """`devices`: all of one node."""
    return near_types((device.id, device.type, device.pcie_root) for device in devices)


def lacking(expect: Iterable[ExpectedDevices], devices: Sequence[DeviceRecord]) -> dict[int, str]:
    """Return the entries, by place, of which a node has fewer devices, a text each. `devices`: all of one node."""
    near = near_devices(devices)
    here = [device for device in devices if not device.missing]
    counted = ((entry, sum(selects(entry.match, device, near) for device in here)) for entry in expect)
    return {
        index: f"{described(entry.match)}: {found} of {entry.count} found"
        for index, (entry, found) in enumerate(counted)
        if found < entry.count
    }


def selects(match: DeviceMatch, device: DeviceRecord, near: Near) -> bool:
    """True when the device is one of those. `near`: of its node (near_devices). `profile` does not count."""
    return matches(
        match,
        vendor=device.model.vendor,
        product_name=device.model.product,
        type=device.type,
        memory_bytes=device.memory_mib * MEBIBYTE,
        ids=(device.id,),
        near=near[device.id],
    )
