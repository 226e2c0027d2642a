"""The choice of a device, on which the agent and the scheduler extender agree because both call it."""

from __future__ import annotations

from nodedevices_common.pod_requests import choose
from support.cases import cases

FREE = {"gpu-0": 40, "gpu-1": 12, "gpu-2": 15, "gpu-3": 12, "gpu-4": 40}


@cases(
    ("size", "spread", "chosen"),
    (10, False, "gpu-1"),
    (12, False, "gpu-1"),
    (13, False, "gpu-2"),
    (16, False, "gpu-0"),
    (40, False, "gpu-0"),
    (10, True, "gpu-0"),
    (40, True, "gpu-0"),
    (41, False, None),
    (41, True, None),
)
def test_the_fullest_device_with_room_or_the_emptiest_is_chosen(size: int, spread: bool, chosen: str | None) -> None:
    assert choose(FREE, size, spread=spread) == chosen


@cases("spread", False, True)
def test_no_device_is_chosen_where_there_is_none(spread: bool) -> None:
    assert choose({}, 1, spread=spread) is None


def test_only_devices_that_the_caller_allows_are_chosen() -> None:
    assert choose(FREE, 10, spread=False, among={"gpu-2", "gpu-4"}.__contains__) == "gpu-2"
    assert choose(FREE, 10, spread=False, among=lambda device: device not in ("gpu-1", "gpu-2")) == "gpu-3"
    assert choose(FREE, 10, spread=False, among=lambda _: False) is None
