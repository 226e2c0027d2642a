"""Which devices a `DeviceMatch` selects: whole devices alone. What is about a partition goes by its device, and
`profile` does not count. The operator decides by the same test (nodedevices_api.matching).
"""

from __future__ import annotations

from collections.abc import Mapping

from nodedevices_api.matching import matches
from nodedevices_api.sections import DeviceMatch
from nodedevices_probe.protocol import DeviceFact, memory_bytes


def selects(
    match: DeviceMatch, fact: DeviceFact, near: Mapping[str, frozenset[str]], *, any_case: bool = False
) -> bool:
    """`near`: by device id, as `matching.near_types` has it. `any_case`: to find a near miss."""
    return matches(
        match,
        vendor=fact.vendor,
        product_name=fact.product_name,
        type=fact.type,
        memory_bytes=memory_bytes(fact.capacity),
        ids=(fact.id,),
        near=near.get(fact.id, ()),
        any_case=any_case,
    )
