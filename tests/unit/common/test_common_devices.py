"""Devices and their partitions in one list: which belongs to which, whatever stands there."""

from __future__ import annotations

from typing import Any

from nodedevices_common.devices import grouped
from support.cases import cases

WHOLE, OTHER = {"id": "GPU-0", "name": "gpu-0"}, {"id": "GPU-1", "name": "gpu-1"}
ONE, TWO = ({"id": f"MIG-{number}", "name": f"mig-{number}", "parent": "gpu-0"} for number in (1, 2))


def test_a_device_comes_with_its_partitions_wherever_they_stand() -> None:
    assert grouped([WHOLE, ONE, TWO, OTHER]) == [[WHOLE, ONE, TWO], [OTHER]]
    assert grouped([ONE, OTHER, WHOLE, TWO]) == [[OTHER], [WHOLE, ONE, TWO]]


@cases(
    ("devices", "found"),
    (None, []),
    ([7, ONE, OTHER], [[OTHER]]),
    ([WHOLE, {**ONE, "parent": 7}], [[WHOLE], [{**ONE, "parent": 7}]]),
    ([WHOLE, {**OTHER, "name": "gpu-0"}, ONE], [[WHOLE, ONE], [{**OTHER, "name": "gpu-0"}]]),
    ([{**ONE, "name": "gpu-0"}], []),
)
def test_a_partition_of_no_device_is_none_and_no_device_is_lost(devices: Any, found: list[list[Any]]) -> None:
    assert grouped(devices) == found
