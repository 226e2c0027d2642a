"""What the nvml probe reads beside errors: the fabric, slowdowns, NVLinks, limits, and the PCIe link that sysfs has."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from nodedevices_probe.nvidia.readings import errors_per_exabit
from nodedevices_probe.protocol import MAX_INTEGER, Readings
from support.probes import device
from support.trees import Tree

if TYPE_CHECKING:
    from nvml.conftest import FakeMachine

GPU = "0000:17:00.0"
PORT = "0000:16:01.0"
COMPLETED, IN_PROGRESS, NOT_STARTED = 3, 2, 1


def read(machine: FakeMachine, **said: Any) -> Readings:
    (only,) = machine.gpus(said)
    return only.readings


def test_what_slows_a_gpu_down_is_read_bit_by_bit(machine: FakeMachine) -> None:
    cases = (
        (0x0, set[str]()),
        (0x4, set[str]()),  # SwPowerCap: the usual state of a GPU that works
        (0x8, {"hw_slowdown"}),
        (0x8 | 0x40, {"hw_slowdown", "thermal_slowdown"}),
        (0x8 | 0x80, {"hw_slowdown", "power_brake"}),
        (0x2, {"clocks_limited"}),
    )
    every = ("hw_slowdown", "thermal_slowdown", "power_brake", "clocks_limited")
    for (bits, slowed), seen in zip(cases, machine.gpus(*({"slowdown": bits} for bits, _ in cases)), strict=True):
        assert {each for each in every if getattr(seen.readings, each)} == slowed, bits
        assert all(getattr(seen.readings, each) is not None for each in every)


def test_the_fabric_is_read_as_the_driver_has_it(machine: FakeMachine) -> None:
    cases: tuple[tuple[dict[str, int], str | None, str | None, tuple[str, ...]], ...] = (
        ({"fabric_state": COMPLETED}, "Completed", None, ()),
        ({"fabric_state": IN_PROGRESS, "fabric_status": 999}, "InProgress", None, ()),
        ({"fabric_state": NOT_STARTED}, "NotStarted", None, ()),
        ({"fabric_state": 0}, "NotSupported", None, ()),
        ({"fabric_state": COMPLETED, "fabric_status": 999}, "Completed", "Unknown Error", ()),
        ({"fabric_health": 0x51AA}, "Completed", None, ()),  # all parts say that nothing is wrong
        ({"fabric_health": 0b01}, "Completed", None, ("bandwidthDegraded",)),
        ({"fabric_health": 0b01 << 4}, "Completed", None, ("routeUnhealthy",)),
        ({"fabric_health": 5 << 8}, "Completed", None, ("wrongSetup",)),
        ({"fabric_health": 4 << 8 | 2 << 12}, "Completed", None, ()),  # no partition yet: a tenant's machine
        ({"fabric_health": 2 << 14}, "Completed", None, ("managerDisconnected",)),
    )
    *seen, without = (each.readings for each in machine.gpus(*({"fabric": 3, **said} for said, *_ in cases), {}))
    found = [(each.fabric_state, each.fabric_error, each.fabric_conditions) for each in seen]
    assert found == [case[1:] for case in cases]
    assert {each.error for each in seen} == {None}
    assert (without.fabric_state, without.fabric_was_completed, without.fabric_conditions) == (None, None, ())


def test_a_fabric_that_was_completed_is_remembered_until_the_driver_goes(machine: FakeMachine) -> None:
    machine.say(count=2, gpu0__fabric=3, gpu1__fabric=3, gpu1__fabric_state=IN_PROGRESS)
    with machine.probe() as probe:
        seen = probe.until(lambda seen: len(seen.devices) == 2)
        assert [each.readings.fabric_was_completed for each in seen.devices] == [True, False]
        machine.say(gpu0__lost=1)  # while it is reset
        probe.until(lambda seen: device(seen, 0).readings.lost)
        machine.say(gpu0__lost=0, gpu0__fabric_state=IN_PROGRESS)
        seen = probe.until(lambda seen: device(seen, 0).readings.fabric_state == "InProgress")
        assert device(seen, 0).readings.fabric_was_completed
        machine.say(init=9)
        probe.until(lambda seen: not seen.devices)
        machine.say(init=0)
        seen = probe.until(lambda seen: len(seen.devices) == 2)
        assert device(seen, 0).readings.fabric_was_completed is False


def test_links_to_a_switch_are_counted_apart_from_those_of_a_bridge(machine: FakeMachine) -> None:
    switched, bridged = machine.gpus({"nvlink": "switch", "links_down": 2}, {"nvlink": "pair", "links_down": 2})
    assert (switched.readings.nvlinks_inactive, switched.readings.switch_links_inactive) == (2, 2)
    assert (bridged.readings.nvlinks_inactive, bridged.readings.switch_links_inactive) == (2, None)


def test_of_a_gpus_nvlinks_the_slowest_and_the_worst_are_read(machine: FakeMachine) -> None:
    worst = {"link7.nvlink_speed": 13281, "link9.nvlink_errors": 3 << 8 | 11}
    bad, well = machine.gpus(
        {"nvlink": "switch", **worst}, {"nvlink": "switch", "nvlink_version": 7, "nvlink_speed": 53125}
    )
    found = [
        (one.nvlink_generation, one.nvlink_megabytes_per_second, one.nvlink_errors_per_exabit)
        for one in (bad.readings, well.readings)
    ]
    assert found == [(4, 13_281, 30_000_000), (5, 53_125, 0)]


@pytest.mark.parametrize(
    ("raw", "errors"),
    # 4095 is the least that NVML has, 15e-255: DCGM's tests call it healthy.
    [(0xFFF, 0), (1 << 8 | 12, 10**6), (15 << 8 | 6, 15 * 10**12), (0, 0), (15 << 8, MAX_INTEGER)],
)
def test_an_error_rate_is_decoded_as_nvml_has_it(raw: int, errors: int) -> None:
    assert errors_per_exabit(raw) == errors


def test_limits_are_read(machine: FakeMachine) -> None:
    seen = read(machine, persistence=0, power=690_000, power_limit=650_000, margin=-3)
    assert (seen.persistence_mode, seen.power_milliwatts) == (False, 690_000)
    assert (seen.power_limit_milliwatts, seen.power_default_limit_milliwatts) == (650_000, 700_000)
    assert (seen.temperature_margin_celsius, seen.temperature_slowdown_margin_celsius) == (-3, -2)


def test_what_a_driver_does_not_have_is_not_known_and_no_error(machine: FakeMachine) -> None:
    machine.say(count=1, gpu0__nvlink="switch")
    (only,) = machine.poll(age="old").devices
    unknown = (
        "hw_slowdown",
        "power_limit_milliwatts",
        "temperature_margin_celsius",
        "nvlink_megabytes_per_second",
        "nvlink_errors_per_exabit",
        "fabric_state",
    )
    assert [getattr(only.readings, each) for each in unknown] == [None] * len(unknown)
    assert only.readings.error is None


def test_odd_answers_to_what_only_costs_speed_are_no_error(machine: FakeMachine) -> None:
    asked = ("nvmlDeviceGetPersistenceMode", "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetMarginTemperature")
    machine.say(count=1, **{f"gpu0__fail__{each}": 999 for each in asked})
    assert machine.poll().devices[0].readings.error is None


def test_a_pcie_link_is_read_from_both_of_its_ends(machine: FakeMachine) -> None:
    """What it can be read as, tests/unit/probes/test_pcie_link.py has."""
    tree, port = Tree(machine.root), "pci0000:16/0000:16:01.0"
    for bus_id, behind, widest, fastest in ((PORT, "pci0000:16", 8, 16), (GPU, port, 16, 32)):
        tree.files(
            tree.pci(bus_id, behind=behind, vendor="0x10de"),
            current_link_width=4,
            max_link_width=widest,
            current_link_speed="2.5 GT/s PCIe",
            max_link_speed=f"{fastest}.0 GT/s PCIe",
        )
    seen = read(machine)
    assert (seen.pcie_width, seen.pcie_width_possible) == (4, 8)
    assert (seen.pcie_generation, seen.pcie_generation_possible) == (1, 4)


# --- how much is asked ----------------------------------------------------------------------------------------------
def test_a_poll_asks_the_driver_no_more_than_it_has_to(machine: FakeMachine) -> None:
    """Each call may hang or be slow: what changes seldom is asked once a minute."""
    log = machine.calls = machine.folder / "calls"
    start = "nvmlDeviceGetCount_v2"  # of a poll
    machine.say(count=1, gpu0__nvlink="switch", gpu0__fabric=3)
    with machine.probe() as probe:
        probe.until(lambda _: log.read_text().count(start) > 4)
    calls = log.read_text().split()
    starts = [at for at, name in enumerate(calls) if name == start]
    # From the start of the second poll to that of the last: whole ones, wherever the driver is when this is read.
    asked = Counter(calls[starts[1] : starts[-1]])
    del asked["nvmlEventSetWait_v2"]  # in a thread of its own
    polls = len(starts) - 2
    assert {name: count / polls for name, count in asked.items()} == {
        "nvmlDeviceGetCount_v2": 1,
        "nvmlDeviceGetHandleByIndex_v2": 1,
        "nvmlDeviceGetUUID": 1,
        "nvmlDeviceGetNvLinkState": 18,
        "nvmlDeviceGetMigMode": 1,
        "nvmlDeviceGetRemappedRows": 1,
        "nvmlDeviceGetTotalEccErrors": 2,
        "nvmlDeviceGetCurrentClocksEventReasons": 1,
        "nvmlDeviceGetFieldValues": 1,
        "nvmlDeviceGetSramEccErrorStatus": 1,
        "nvmlDeviceGetTemperature": 1,
        "nvmlDeviceGetPowerUsage": 1,
        "nvmlDeviceGetPcieReplayCounter": 1,
        "nvmlDeviceGetMarginTemperature": 1,
        "nvmlDeviceGetGpuFabricInfoV": 1,
    }
