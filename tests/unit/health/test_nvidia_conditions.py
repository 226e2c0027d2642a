"""What each reading of a GPU means: on both sides of its threshold, before and after it has lasted."""

from __future__ import annotations

from typing import Any

from nodedevices_plugin.health.rules import HealthRules
from nodedevices_plugin.vendors.nvidia import faults
from nodedevices_plugin.vendors.nvidia.faults import read
from nodedevices_probe.protocol import Readings
from nodedevices_probe.simulated.nvidia import BOARDS
from support.cases import cases
from support.facts import Story, gpu, ruled, well

WELL = ("Healthy", "")
# Reason, readings at which it is not evident, and at which it is.
ROWS: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("RowRemapFailure", {"remap_failure": False}, {"remap_failure": True}),
    ("SramThresholdExceeded", {"sram_threshold_exceeded": False}, {"sram_threshold_exceeded": True}),
    ("EccUncorrectable", {"ecc_uncorrectable_volatile": 0}, {"ecc_uncorrectable_volatile": 1}),
    ("RowRemapPending", {"remap_pending": False}, {"remap_pending": True}),
    ("ThermalSlowdown", {"thermal_slowdown": False}, {"thermal_slowdown": True}),
    (
        "ThermalMarginExceeded",
        {"temperature_margin_celsius": -2, "temperature_slowdown_margin_celsius": -2},
        {"temperature_margin_celsius": -3, "temperature_slowdown_margin_celsius": -2},
    ),
    ("HwSlowdown", {"hw_slowdown": False}, {"hw_slowdown": True}),
    ("PowerBrake", {"power_brake": False}, {"power_brake": True}),
    (
        "PowerAboveLimit",
        {"power_milliwatts": 770_000, "power_limit_milliwatts": 700_000},
        {"power_milliwatts": 770_001, "power_limit_milliwatts": 700_000},
    ),
    (
        "FabricRegistrationFailed",
        {"fabric_state": "Completed"},
        {"fabric_state": "Completed", "fabric_error": "Unknown Error"},
    ),
    (
        "FabricRegistrationLost",
        {"fabric_state": "Completed", "fabric_was_completed": True},
        {"fabric_state": "NotStarted", "fabric_was_completed": True},
    ),
    (
        "FabricNotRegistered",
        {"fabric_state": "NotSupported", "fabric_was_completed": False},
        {"fabric_state": "InProgress", "fabric_was_completed": False},
    ),
    (
        "FabricManagerDisconnected",
        {"fabric_state": "Completed", "fabric_conditions": ("bandwidthDegraded",)},
        {"fabric_state": "Completed", "fabric_conditions": ("managerDisconnected",)},
    ),
    (
        "FabricDegraded",
        {"fabric_state": "Completed", "fabric_conditions": ("managerDisconnected",)},
        {"fabric_state": "Completed", "fabric_conditions": ("routeUnhealthy",)},
    ),
    ("NvlinkDown", {"switch_links_inactive": 0}, {"switch_links_inactive": 1}),
    (
        "NvlinkSlow",
        {"nvlink_generation": 5, "nvlink_megabytes_per_second": 53_125},
        {"nvlink_generation": 5, "nvlink_megabytes_per_second": 53_124},
    ),
    ("NvlinkErrors", {"nvlink_errors_per_exabit": 1_000_000}, {"nvlink_errors_per_exabit": 1_000_001}),
    ("PersistenceModeOff", {"persistence_mode": True}, {"persistence_mode": False}),
    (
        "PowerLimitLowered",
        {"power_limit_milliwatts": 700_000, "power_default_limit_milliwatts": 700_000},
        {"power_limit_milliwatts": 500_000, "power_default_limit_milliwatts": 700_000},
    ),
    ("ClocksLimited", {"clocks_limited": False}, {"clocks_limited": True}),
)
LASTING = {  # seconds
    "ThermalMarginExceeded": 60,
    "HwSlowdown": 60,
    "PowerBrake": 60,
    "PowerAboveLimit": 60,
    "FabricRegistrationLost": 120,
    "FabricNotRegistered": 600,
    "FabricManagerDisconnected": 300,
    "FabricDegraded": 60,
    "NvlinkDown": 120,
    "NvlinkSlow": 120,
    "NvlinkErrors": 120,
    "ClocksLimited": 600,
}
REPLACED = {"RowRemapFailure", "SramThresholdExceeded"}
RESET = {"EccUncorrectable", "RowRemapPending", "NvlinkDown", "NvlinkSlow"}
NO_ACTION = {"ThermalSlowdown", "PersistenceModeOff", "PowerLimitLowered", "ClocksLimited"}
OPT_IN = {"PersistenceModeOff", "PowerLimitLowered", "ClocksLimited"}
UNHEALTHY = {"RowRemapFailure", "SramThresholdExceeded", "EccUncorrectable"}
names = [reason for reason, _, _ in ROWS]


def evident(readings: Readings, reason: str) -> bool | None:
    return {each.reason: each.evident for each in read(readings)}[reason]


def shown_for(story: Story, seconds: float, **readings: Any) -> Story:
    until = story.clock + seconds
    story.line(gpu(0, readings=well(**readings)), at=story.clock)
    while story.clock < until:
        story.line(gpu(0, readings=well(**readings)), at=min(story.clock + 10, until))
    return story


def test_every_row_is_tested() -> None:
    assert names == [each.reason for each in read(Readings())]


@cases(("reason", "fine", "bad"), *ROWS, ids=names)
def test_a_row_is_evident_beyond_its_threshold_and_unknown_where_nothing_is_said(
    reason: str, fine: dict[str, Any], bad: dict[str, Any]
) -> None:
    assert evident(Readings(**fine), reason) is False
    assert evident(Readings(**bad), reason) is True
    assert evident(Readings(), reason) is None


@cases(("reason", "fine", "bad"), *ROWS, ids=names)
def test_a_row_that_lasts_is_a_fault_and_only_memory_is_fatal(
    reason: str, fine: dict[str, Any], bad: dict[str, Any]
) -> None:
    [row] = [each for each in read(Readings()) if each.reason == reason]
    rules = ruled({reason: "Degraded"}) if reason in OPT_IN else HealthRules()
    story = Story(rules)
    assert (row.opt_in, row.state.value) == (reason in OPT_IN, "Unhealthy" if reason in UNHEALTHY else "Degraded")
    if row.for_seconds:
        assert shown_for(story, row.for_seconds - 1, **bad).says() == WELL
    assert shown_for(story, 1, **bad).says() == (row.state.value, reason)
    assert story.verdict().offered is (reason not in UNHEALTHY)
    assert row.ends_by_itself is (reason not in {"RowRemapFailure", "SramThresholdExceeded"})
    over = {**fine, "fabric_conditions": ()}  # another reason's, which would keep it Degraded
    assert shown_for(story, 300, **over).verdict().faults == ()


def test_how_long_a_row_has_to_last_and_what_to_do_are_as_documented() -> None:
    """docs/maintenance.md, the reasons of a device."""
    rows = read(Readings())
    assert {each.reason: each.for_seconds for each in rows if each.for_seconds} == LASTING
    for each in rows:
        actions = {"Replace": REPLACED, "ResetDevice": RESET, "None": NO_ACTION}
        action = next((action for action, reasons in actions.items() if each.reason in reasons), "Inspect")
        assert (each.reason, each.action) == (each.reason, action)


@cases(("reason", "fine", "bad"), *ROWS, ids=names)
def test_a_rule_makes_nothing_of_a_row(reason: str, fine: dict[str, Any], bad: dict[str, Any]) -> None:
    assert shown_for(Story(ruled({reason: "Ignored"})), 700, **bad).says() == WELL


@cases("reason", *sorted(OPT_IN))
def test_how_a_node_is_set_up_is_no_fault_of_its_own(reason: str) -> None:
    [bad] = [bad for each, _, bad in ROWS if each == reason]
    assert shown_for(Story(), 700, **bad).says() == WELL


@cases("model", *sorted(BOARDS))
def test_a_machine_in_good_order_is_silent(model: str) -> None:
    story = Story()
    for at in range(0, 700, 10):
        story.line(gpu(0, readings=Readings(**BOARDS[model].well)), at=at)
    assert story.verdict().faults == ()


@cases(
    ("slowed", "unexplained"),
    (Readings(hw_slowdown=True), True),
    (Readings(hw_slowdown=True, thermal_slowdown=True), False),
    (Readings(hw_slowdown=True, power_brake=True), False),
)
def test_a_slowdown_with_a_reason_of_the_hardware_is_reported_by_it_alone(slowed: Readings, unexplained: bool) -> None:
    assert evident(slowed, "HwSlowdown") is unexplained


def test_a_fabric_manager_that_died_is_known_by_a_gpu_that_does_not_come_back() -> None:
    """It is reset while the others are Completed still; nothing else shows that the manager is dead."""
    story = shown_for(Story(), 60, fabric_state="Completed", fabric_was_completed=True)
    shown_for(story, faults.REGISTRATION_AGAIN_SECONDS - 1, fabric_state="InProgress", fabric_was_completed=True)
    assert story.says() == WELL
    shown_for(story, 1, fabric_state="InProgress", fabric_was_completed=True)
    assert story.says() == ("Degraded", "FabricRegistrationLost")


def test_a_rack_that_boots_slowly_is_no_fault_and_an_nvlink_is_slow_below_its_generation() -> None:
    at_boot = {"fabric_state": "InProgress", "fabric_was_completed": False}
    story = shown_for(Story(), faults.REGISTRATION_SECONDS - 1, **at_boot)
    assert story.says() == WELL
    assert shown_for(story, 1, **at_boot).says() == ("Degraded", "FabricNotRegistered")
    assert evident(Readings(fabric_state="NotStarted"), "FabricNotRegistered")
    assert evident(Readings(nvlink_generation=4, nvlink_megabytes_per_second=26_562), "NvlinkSlow") is False
    assert evident(Readings(nvlink_generation=4, nvlink_megabytes_per_second=26_561), "NvlinkSlow") is True


@cases(("generation", "speed"), (3, 1), (None, 1), (6, 1), (4, None))
def test_an_nvlinks_speed_is_judged_where_what_is_right_is_known(generation: int | None, speed: int | None) -> None:
    readings = Readings(nvlink_generation=generation, nvlink_megabytes_per_second=speed)
    assert evident(readings, "NvlinkSlow") is None
