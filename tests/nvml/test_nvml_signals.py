"""What the nvml probe reads beside errors: the fabric, slowdowns, NVLinks, limits, and the PCIe link that sysfs has."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from nodedevices_probe.nvidia.slow import errors_per_exabit
from nodedevices_probe.protocol import MAX_INTEGER, Readings
from support.probes import device

if TYPE_CHECKING:
    from nvml.conftest import FakeMachine

GPU = "0000:17:00.0"
PORT = "0000:16:01.0"
COMPLETED, IN_PROGRESS, NOT_STARTED = 3, 2, 1


def read(machine: FakeMachine, **said: Any) -> Readings:
    machine.say(count=1, **{f"gpu0__{key}": value for key, value in said.items()})
    (only,) = machine.poll().devices
    return only.readings


def on_a_port(machine: FakeMachine, device: dict[str, str], port: dict[str, str]) -> None:
    """A GPU with its PCIe link, as sysfs shows it."""
    place = f"sys/devices/pci0000:16/{PORT}"
    for at, files in ((place, port), (f"{place}/{GPU}", device)):
        for name, content in files.items():
            machine.file(f"{at}/{name}", f"{content}\n")
    bus = machine.root / "sys/bus/pci/devices"
    bus.mkdir(parents=True, exist_ok=True)
    (bus / GPU).symlink_to(f"../../../devices/pci0000:16/{PORT}/{GPU}")
    (bus / PORT).symlink_to(f"../../../devices/pci0000:16/{PORT}")


def link(width: int, widest: int, speed: str = "32.0", fastest: str = "32.0") -> dict[str, str]:
    return {
        "vendor": "0x10de",
        "current_link_width": str(width),
        "max_link_width": str(widest),
        "current_link_speed": f"{speed} GT/s PCIe",
        "max_link_speed": f"{fastest} GT/s PCIe",
    }


@pytest.mark.parametrize(
    ("bits", "readings"),
    [
        (0x0, set()),
        (0x4, set()),  # SwPowerCap: the usual state of a GPU that works
        (0x8, {"hw_slowdown"}),
        (0x8 | 0x40, {"hw_slowdown", "thermal_slowdown"}),
        (0x8 | 0x80, {"hw_slowdown", "power_brake"}),
        (0x2, {"clocks_limited"}),
    ],
)
def test_what_slows_a_gpu_down_is_read_bit_by_bit(machine: FakeMachine, bits: int, readings: set[str]) -> None:
    seen = read(machine, slowdown=bits)
    every = ("hw_slowdown", "thermal_slowdown", "power_brake", "clocks_limited")
    assert {each: getattr(seen, each) for each in every} == {each: each in readings for each in every}


@pytest.mark.parametrize(
    ("said", "state", "error", "conditions"),
    [
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
    ],
)
def test_the_fabric_is_read_as_the_driver_has_it(
    machine: FakeMachine, said: Any, state: str, error: str | None, conditions: tuple[str, ...]
) -> None:
    seen = read(machine, fabric=3, **said)
    assert (seen.fabric_state, seen.fabric_error, seen.fabric_conditions) == (state, error, conditions)
    assert seen.error is None


def test_a_gpu_without_a_fabric_says_nothing_of_one(machine: FakeMachine) -> None:
    seen = read(machine)
    assert (seen.fabric_state, seen.fabric_was_completed, seen.fabric_conditions) == (None, None, ())


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
    machine.say(count=2, gpu0__nvlink="switch", gpu0__links_down=2, gpu1__nvlink="pair", gpu1__links_down=2)
    switched, bridged = (each.readings for each in machine.poll().devices)
    assert (switched.nvlinks_inactive, switched.switch_links_inactive) == (2, 2)
    assert (bridged.nvlinks_inactive, bridged.switch_links_inactive) == (2, None)


def test_of_a_gpus_nvlinks_the_slowest_and_the_worst_are_read(machine: FakeMachine) -> None:
    seen = read(machine, nvlink="switch", link7__nvlink_speed=13281, link9__nvlink_errors=3 << 8 | 11)
    assert (seen.nvlink_generation, seen.nvlink_megabytes_per_second) == (4, 13_281)
    assert seen.nvlink_errors_per_exabit == 30_000_000


def test_nvlinks_that_are_well_have_no_errors_and_their_full_speed(machine: FakeMachine) -> None:
    seen = read(machine, nvlink="switch", nvlink_version=7, nvlink_speed=53125)
    assert (seen.nvlink_generation, seen.nvlink_megabytes_per_second) == (5, 53_125)
    assert seen.nvlink_errors_per_exabit == 0


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


# --- PCIe -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("gpu", "port", "read_as"),
    [
        (link(16, 16), link(16, 16), (16, 16, 5, 5)),
        (link(8, 16), link(8, 16), (8, 16, 5, 5)),
        (link(8, 16), link(8, 8), (8, 8, 5, 5)),  # in a slot of 8 lanes
        (link(16, 16, "2.5"), link(16, 16, "2.5", "64.0"), (16, 16, 1, 5)),  # idle, in a slot that can do more
        (link(8, 16), {**link(8, 16), "vendor": "0x1b36"}, (None, None, None, None)),  # QEMU's port
        (link(63, 16), link(16, 16), (None, 16, 5, 5)),  # it has left the bus
        ({}, {}, (None, None, None, None)),
    ],
)
def test_a_pcie_link_is_read_from_both_of_its_ends(
    machine: FakeMachine, gpu: dict[str, str], port: dict[str, str], read_as: tuple[int | None, ...]
) -> None:
    on_a_port(machine, gpu, port)
    seen = read(machine)
    found = (seen.pcie_width, seen.pcie_width_possible, seen.pcie_generation, seen.pcie_generation_possible)
    assert found == read_as


# --- how much is asked ----------------------------------------------------------------------------------------------
def test_a_poll_asks_the_driver_no_more_than_it_has_to(machine: FakeMachine) -> None:
    """Each call may hang or be slow: what changes seldom is asked once a minute."""
    machine.calls = machine.folder / "calls"
    machine.say(count=1, gpu0__nvlink="switch", gpu0__fabric=3)
    with machine.probe() as probe:
        first = probe.until(lambda seen: seen.devices).sequence
        at_first = Counter(machine.calls.read_text().split())
        probe.until(lambda seen: seen.sequence >= first + 4)
        asked = Counter(machine.calls.read_text().split()) - at_first
    del asked["nvmlEventSetWait_v2"]  # in a thread of its own
    polls = asked["nvmlDeviceGetUUID"]
    assert {name: round(count / polls) for name, count in asked.items()} == {
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
