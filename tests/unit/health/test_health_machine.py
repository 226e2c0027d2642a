from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Literal

from nodedevices_plugin.health import machine
from nodedevices_plugin.health.rules import HealthRules
from nodedevices_plugin.model import HealthState
from nodedevices_plugin.vendors.faults import FaultCondition, FaultSource
from nodedevices_probe.protocol import DeviceFact, Driver, DriverState, ProbeEvent, Readings
from support.cases import cases
from support.facts import START, Story, gpu, gpu_id, mig_id, old, partition, ruled, well, xid

HOLD = 300
LOADED = Driver(state=DriverState.LOADED)
UNLOADED = Driver(state=DriverState.NOT_LOADED)
OLD = gpu(0, readings=old())  # of a driver without field 230
REQUIRES = gpu(0, readings=well(recovery_action="ResetDevice"))
REQUIRES_BUS = gpu(0, readings=well(recovery_action="ResetBus"))
UNREAD = gpu(0, readings=Readings(recovery_action="None"))
LOST = gpu(0, readings=Readings(lost=True))
HOT = gpu(0, readings=well(thermal_slowdown=True))


def keep_alive(story: Story, device: DeviceFact, *, seconds: int, **line: object) -> Story:
    """Good lines, often enough that the probe is never silent."""
    end = story.clock + seconds
    while story.clock < end:
        story.line(device, at=min(story.clock + 10, end), **line)  # type: ignore[arg-type]
    return story


def test_a_gpu_off_the_bus_is_withdrawn_with_a_message_that_says_what_to_do() -> None:
    story = Story().line(OLD).line(OLD, xids=[xid(79)])
    verdict = story.verdict()
    assert (verdict.state, verdict.reason, verdict.xid, verdict.offered) == (HealthState.UNHEALTHY, "Xid79", 79, False)
    assert verdict.message == "GPU has fallen off the bus (XID 79); reboot the node"
    assert (verdict.recovery_action, verdict.fault_domain) == ("RebootNode", "Device")


@cases("number", 8, 13, 31, 43, 63, 68, 94, 154)
def test_an_application_xid_changes_no_state(number: int) -> None:
    assert Story().line(gpu(0), xids=[xid(number)]).says() == ("Healthy", "")


@cases("number", 61, 123, 142, 167, 999)
def test_an_xid_that_nobody_knows_is_reported_and_the_gpu_stays_offered(number: int) -> None:
    story = Story().line(gpu(0), xids=[xid(number)])
    assert story.says() == ("Degraded", f"Xid{number}")
    assert story.verdict().offered


@cases(
    ("readings", "state", "reason", "action"),
    (Readings(lost=True), "Unhealthy", "FallenOffBus", "RebootNode"),
    (Readings(error="ERROR_UNKNOWN"), "Unhealthy", "ProbeError", "Inspect"),
    (well(recovery_action="DrainAndReset"), "Unhealthy", "RecoveryAction", "DrainAndReset"),
    (well(remap_failure=True), "Unhealthy", "RowRemapFailure", "Replace"),
    (well(sram_threshold_exceeded=True), "Unhealthy", "SramThresholdExceeded", "Replace"),
    (well(ecc_uncorrectable_volatile=1), "Unhealthy", "EccUncorrectable", "ResetDevice"),
    (well(remap_pending=True), "Degraded", "RowRemapPending", "ResetDevice"),
    (well(thermal_slowdown=True), "Degraded", "ThermalSlowdown", "None"),
    (well(ecc_uncorrectable_aggregate=9, remapped_uncorrectable=3), "Healthy", "", "None"),
)
def test_readings_count_for_themselves(readings: Readings, state: str, reason: str, action: str) -> None:
    story = Story().line(gpu(0)).line(gpu(0, readings=readings))
    assert story.says() == (state, reason)
    assert story.verdict().recovery_action == action
    assert story.verdict().offered == (state != "Unhealthy")
    assert {each.fault_domain for each in story.verdict().faults} <= {"Device"}


def test_of_several_faults_the_one_that_requires_most_is_shown_and_the_others_as_bad_named() -> None:
    worst = well(remap_failure=True, ecc_uncorrectable_volatile=2, remap_pending=True)
    verdict = Story().line(gpu(0, readings=worst), xids=[xid(62)]).verdict()
    assert (verdict.reason, verdict.recovery_action) == ("RowRemapFailure", "Replace")
    assert "RowRemapPending" not in verdict.message
    required = replace(worst, recovery_action="ResetDevice", sram_threshold_exceeded=True)
    verdict = Story().line(gpu(0, readings=required), xids=[xid(62)]).verdict()
    also = verdict.message.partition("; also ")[2].split(", ")
    as_bad = {"RecoveryAction", "EccUncorrectable", "Xid62", "RowRemapFailure", "SramThresholdExceeded"}
    assert {verdict.reason, *also} == as_bad, "with the driver's own word, as a rule can be about each"
    assert as_bad == {each.reason for each in verdict.faults if each.state is verdict.state}


def test_an_xid_is_shown_before_the_reading_that_it_explains() -> None:
    assert Story().line(LOST, xids=[xid(79)]).says() == ("Unhealthy", "Xid79")
    assert Story().line(LOST, xids=[xid(62)]).says() == ("Unhealthy", "FallenOffBus")


# --- field 230 ------------------------------------------------------------------------------------------------------
def test_the_drivers_own_word_outranks_the_table_upwards_and_downwards() -> None:
    story = Story().line(REQUIRES, xids=[xid(31)])
    assert story.says() == ("Unhealthy", "RecoveryAction")
    assert story.verdict().recovery_action == "ResetDevice"
    story = Story().line(gpu(0), xids=[xid(119)]).line(gpu(0))
    assert story.says() == ("Unhealthy", "Xid119")
    assert story.verdict().recovery_action == "None"
    assert story.verdict().message.startswith(
        "GSP RPC timeout (XID 119); the driver no longer requires an action, Healthy after"
    )
    assert keep_alive(story, gpu(0), seconds=HOLD).says() == ("Healthy", "")


def test_a_drivers_none_from_before_the_xid_says_nothing_and_one_of_after_it_is_no_matter_of_numbers() -> None:
    story = Story().line(gpu(0), at=0).line(gpu(0), at=1, xids=[xid(119, after=1)])
    assert story.verdict().recovery_action == "ResetDevice", "the line that brings the XID was read before it"
    assert story.verdict().message == "GSP RPC timeout (XID 119); reset the device when its pods have ended"
    assert story.line(gpu(0), read_after=0).verdict().recovery_action == "ResetDevice", "the same readings, sent again"
    assert story.line(gpu(0), read_after=1).verdict().recovery_action == "None"
    story = Story().line(gpu(0), xids=[xid(119)], read_after=1)
    assert story.verdict().recovery_action == "None", "read after the XID, in the very line that brings it"
    story = Story().line(gpu(0), at=0, xids=[xid(13)] * 9 + [xid(119)])
    story.line(gpu(0), at=1, events=(xid(13, sequence=1),))
    assert story.verdict().recovery_action == "None"


def test_a_fall_off_the_bus_is_over_when_the_gpu_left_and_came_back_or_the_driver_required_an_action() -> None:
    story = Story().line(gpu(0), at=0, xids=[xid(79)])
    assert keep_alive(story, gpu(0), seconds=HOLD * 2).says() == ("Unhealthy", "Xid79")
    assert story.verdict().message == "GPU has fallen off the bus (XID 79); reboot the node"
    story.line(LOST).line(gpu(0))
    assert story.verdict().recovery_action == "None"
    assert keep_alive(story, gpu(0), seconds=HOLD).says() == ("Healthy", "")
    story = Story().line(REQUIRES_BUS, at=0, xids=[xid(79)]).line(REQUIRES_BUS)
    assert (story.says(), story.verdict().recovery_action) == (("Unhealthy", "Xid79"), "ResetBus")
    story.line(gpu(0))
    assert keep_alive(story, gpu(0), seconds=HOLD).says() == ("Healthy", "")
    story = Story().line(REQUIRES_BUS, at=0).line(REQUIRES_BUS, at=1, xids=[xid(79, after=1)])
    assert keep_alive(story, gpu(0), seconds=HOLD * 2).says() == ("Unhealthy", "Xid79"), "required before the XID"


def test_a_reboot_is_a_return_to_the_bus() -> None:
    story = Story().line(gpu(0), at=0, xids=[xid(79)]).restart()
    story.line(gpu(0), boot_id="boot-2")
    assert keep_alive(story, gpu(0), seconds=HOLD, boot_id="boot-2").says() == ("Healthy", "")


def test_a_fault_has_the_action_that_the_driver_requires_and_an_unknown_one_is_never_taken_for_none() -> None:
    verdict = Story().line(gpu(0, readings=well(recovery_action="DrainP2P")), xids=[xid(119)]).verdict()
    assert (verdict.reason, verdict.recovery_action) == ("Xid119", "DrainP2P")
    story = Story().line(gpu(0, readings=well(recovery_action="Whatever")))
    assert story.says() == ("Unhealthy", "RecoveryAction")
    assert "reboot the whole system" in story.verdict().message


# --- recovery -------------------------------------------------------------------------------------------------------
def test_a_gpu_recovers_when_nothing_is_required_and_the_hold_down_of_the_newest_fault_is_over() -> None:
    story = keep_alive(Story().line(REQUIRES, at=0, xids=[xid(62)]), REQUIRES, seconds=HOLD * 2)
    assert story.says() == ("Unhealthy", "Xid62")
    story.line(gpu(0), at=story.clock + 1)
    keep_alive(story, gpu(0), seconds=HOLD - 1)
    assert story.says() == ("Unhealthy", "Xid62")
    assert keep_alive(story, gpu(0), seconds=1).says() == ("Healthy", "")
    story = Story().line(gpu(0), at=0, xids=[xid(62)])
    keep_alive(story, gpu(0), seconds=200)
    story.line(gpu(0), at=210, xids=[xid(119, after=210)])
    keep_alive(story, gpu(0), seconds=HOLD - 1)
    assert story.says()[0] == "Unhealthy"
    assert keep_alive(story, gpu(0), seconds=1).says() == ("Healthy", "")


def test_a_flapping_gpu_costs_two_changes() -> None:
    story = Story()
    seen = []
    for second in range(120):
        story.line(LOST if second % 2 else gpu(0), at=second)
        seen.append((story.says(), story.verdict().since))
    assert len(set(seen)) == 2
    assert keep_alive(story, gpu(0), seconds=HOLD + 10).says() == ("Healthy", "")


def test_a_reboot_action_without_field_230_is_over_with_a_new_boot_or_when_a_person_confirms_it() -> None:
    for end in ({"boot_id": "boot-2"}, {"confirmed": [0]}):
        story = keep_alive(Story().line(OLD, at=0, xids=[xid(79)]), OLD, seconds=HOLD * 3)
        assert story.says() == ("Unhealthy", "Xid79")
        assert story.line(OLD, **end).says() == ("Healthy", "")


def test_a_reset_action_without_field_230_is_over_when_the_gpu_came_back_or_the_driver_was_reloaded() -> None:
    story = Story().line(OLD, at=0, xids=[xid(62)])
    assert keep_alive(story, OLD, seconds=HOLD * 2).says() == ("Unhealthy", "Xid62")
    assert story.line().says() == ("Unhealthy", "Missing")
    story.line(OLD)
    assert keep_alive(story, OLD, seconds=HOLD - 1).says()[0] == "Unhealthy"
    assert keep_alive(story, OLD, seconds=1).says() == ("Healthy", "")
    story = keep_alive(Story().line(OLD, at=0, xids=[xid(62)]), OLD, seconds=HOLD)
    assert story.line(driver=UNLOADED).line(OLD, driver=LOADED).says() == ("Healthy", "")
    story = Story().line(OLD, at=0, xids=[xid(62)])
    story.line(driver=UNLOADED).line(OLD, driver=LOADED, xids=[xid(62, after=3)])
    assert keep_alive(story, OLD, seconds=HOLD * 2).says() == ("Unhealthy", "Xid62"), "a repair of before the fault"


def test_a_confirmation_ends_the_hold_down_also_when_the_driver_was_away() -> None:
    story = Story().line(gpu(0), at=0, xids=[xid(62)]).line(gpu(0))
    assert story.verdict().recovery_action == "None", "a driver with field 230 that requires nothing"
    assert story.says() == ("Unhealthy", "Xid62")
    assert story.line(gpu(0), confirmed=[0]).says() == ("Healthy", "")
    story = Story().line(gpu(0), at=0, xids=[xid(62)])
    story.line(driver=UNLOADED, confirmed=[0])
    assert story.says() != ("Healthy", "")
    assert story.line(gpu(0), driver=LOADED).says() == ("Healthy", "")


def test_a_fault_that_a_reboot_did_not_end_is_no_fault_of_before_it() -> None:
    story = Story().line(REQUIRES).line(REQUIRES, boot_id="boot-2").line(OLD, boot_id="boot-2")
    assert story.says()[0] == "Unhealthy", "it cannot be read any more, which ends nothing"
    ended = Story().line(REQUIRES).line(OLD, boot_id="boot-2")
    assert keep_alive(ended, OLD, seconds=HOLD * 2).says() == ("Healthy", "")


def test_a_clock_that_is_set_moves_what_is_waited_for_with_it() -> None:
    story = Story().line(gpu(0), at=0, xids=[xid(79)]).line(gpu(0), at=1)
    fault = story.verdict().faults[0]
    by = timedelta(hours=3)
    [moved] = machine.clock_set(story.verdicts, by)[gpu_id(0)].faults
    assert moved.since == fault.since + by
    assert moved.last_seen == (None if fault.last_seen is None else fault.last_seen + by)


def test_a_confirmation_does_not_outrank_the_facts_or_a_fault_that_comes_with_it_or_later() -> None:
    broken = gpu(0, readings=old(remap_failure=True))
    story = Story().line(broken).line(broken, confirmed=[0])
    assert keep_alive(story, broken, seconds=HOLD * 2).says() == ("Unhealthy", "RowRemapFailure")
    story = Story().line(REQUIRES, at=0, xids=[xid(62)]).line(REQUIRES, confirmed=[0])
    assert (story.says(), story.verdict().recovery_action) == (("Unhealthy", "Xid62"), "ResetDevice")
    story = Story().line(gpu(0), at=0, xids=[xid(62)])
    story.line(gpu(0), at=10, xids=[xid(62, after=10)], confirmed=[0])
    assert story.says() == ("Unhealthy", "Xid62")
    story.line(gpu(0), confirmed=[0]).line(gpu(0), at=20, xids=[xid(62, after=20)])
    assert keep_alive(story, gpu(0), seconds=HOLD - 2).says() == ("Unhealthy", "Xid62")


def test_the_message_says_until_when_the_hold_down_is_and_changes_at_most_once_a_minute() -> None:
    story = Story().line(gpu(0), at=0, xids=[xid(62)]).line(gpu(0))
    until = "Healthy after 300 s without a fault, by 2026-11-21T10:05:00Z"
    assert story.verdict().message.endswith(until)
    assert story.line(gpu(0)).verdict().message.endswith(until)
    messages = set()
    for second in range(1, 61):
        messages.add(story.line(gpu(0), xids=[xid(62, after=5 + second)], at=5 + second).verdict().message[-20:])
    assert messages == {"2026-11-21T10:06:00Z", "2026-11-21T10:07:00Z"}


def test_a_remap_failure_stays_while_it_cannot_be_read_and_an_action_of_the_driver_not_over_a_reload() -> None:
    story = Story().line(gpu(0, readings=well(remap_failure=True)))
    assert keep_alive(story, UNREAD, seconds=HOLD * 2).says() == ("Unhealthy", "RowRemapFailure")
    story.line(UNREAD, boot_id="boot-2")
    assert keep_alive(story, UNREAD, seconds=HOLD * 2, boot_id="boot-2").says() == ("Unhealthy", "RowRemapFailure")
    story.line(UNREAD, boot_id="boot-2", confirmed=[0])
    assert keep_alive(story, UNREAD, seconds=HOLD, boot_id="boot-2").says() == ("Healthy", "")
    story = Story().line(REQUIRES).line(driver=UNLOADED).line(OLD, driver=LOADED)
    assert keep_alive(story, OLD, seconds=HOLD).says() == ("Healthy", "")


@cases("rules", HealthRules(hold_down_seconds=0), HealthRules(hold_down_seconds=60))
def test_a_fault_is_reported_once_however_late_it_came_or_short_the_hold_down_is(rules: HealthRules) -> None:
    story = Story(rules).line(gpu(0), at=0).line(gpu(0), at=100, xids=[xid(62, after=1)])
    assert story.says() == ("Unhealthy", "Xid62")
    assert story.line(gpu(0)).says() == ("Healthy", "")


def test_what_neighbours_decided_is_reported_once_and_an_ecc_error_is_over_with_its_counter() -> None:
    story = Story(HealthRules(hold_down_seconds=1)).line(gpu(0), at=0, xids=[xid(48)])
    assert story.line(gpu(0), at=10).says() == ("Unhealthy", "Xid48")
    assert story.line(gpu(0), at=11).says() == ("Healthy", "")
    story = Story().line(gpu(0, readings=old(ecc_uncorrectable_volatile=3)))
    clean = gpu(0, readings=old(ecc_uncorrectable_volatile=0))
    assert story.line(clean).says() == ("Unhealthy", "EccUncorrectable")
    assert keep_alive(story, clean, seconds=HOLD).says() == ("Healthy", "")


# --- missing --------------------------------------------------------------------------------------------------------
def test_a_gpu_that_is_no_longer_listed_is_missing_and_still_requires_its_reboot() -> None:
    story = Story().line(gpu(0), gpu(1)).line(gpu(0))
    verdict = story.verdict(1)
    assert (story.says(1), verdict.offered, verdict.recovery_action) == (("Unhealthy", "Missing"), False, "Inspect")
    story = Story().line(OLD, xids=[xid(79)]).line()
    assert (story.says(), story.verdict().recovery_action) == (("Unhealthy", "Missing"), "RebootNode")
    assert story.line(OLD).says() == ("Unhealthy", "Xid79")


# --- unknown --------------------------------------------------------------------------------------------------------
def test_a_silent_probe_makes_devices_unknown_and_withdraws_them_later() -> None:
    story = Story().line(gpu(0), at=0)
    assert story.silence(until=14).says() == ("Healthy", "")
    assert story.silence(until=15).says() == ("Unknown", "ProbeSilent")
    assert story.verdict().offered
    assert story.silence(until=299).verdict().offered
    assert not story.silence(until=300).verdict().offered
    assert story.verdict().since == START + timedelta(seconds=15)
    assert story.line(gpu(0)).says() == ("Healthy", "")


def test_a_silent_probe_recovers_nothing() -> None:
    story = Story().line(gpu(0), at=0, xids=[xid(62)])
    assert story.silence(until=HOLD * 3).says() == ("Unhealthy", "Xid62")


@cases(
    ("state", "reason"),
    (DriverState.NOT_LOADED, "DriverNotLoaded"),
    (DriverState.UNKNOWN, "DriverNotLoaded"),
    (DriverState.VERSION_MISMATCH, "VersionMismatch"),
)
def test_without_a_driver_devices_are_withdrawn_at_once(state: DriverState, reason: str) -> None:
    story = Story().line(gpu(0)).line(driver=Driver(state=state))
    assert (story.says(), story.verdict().offered) == (("Unknown", reason), False)
    assert story.verdict().fault_domain == "Node"
    assert story.line(gpu(0), driver=LOADED).says() == ("Healthy", "")


# --- beside another fault ---------------------------------------------------------------------------------------------
def test_a_lesser_fault_keeps_no_worse_one_and_one_as_bad_is_not_said_to_be_over() -> None:
    story = keep_alive(Story().line(HOT, at=0, xids=[xid(62)]), HOT, seconds=HOLD + 10)
    assert story.says() == ("Degraded", "ThermalSlowdown")
    verdict = Story().line(gpu(0)).line(HOT, xids=[xid(999)]).line(HOT).verdict()
    assert verdict.reason == "Xid999"
    assert f"Healthy after {HOLD} s without a fault; also ThermalSlowdown" in verdict.message


def test_what_a_device_answers_instead_of_readings_is_one_fault_whatever_the_words() -> None:
    story = Story().line(gpu(0, readings=Readings(error="ERROR_UNKNOWN")))
    first = story.verdict()
    assert story.line(gpu(0, readings=Readings(error="ERROR_TIMEOUT"))).verdict() == first


# --- a probe that sees none of its devices ----------------------------------------------------------------------------
def test_what_a_blind_probe_does_not_see_is_unknown_and_what_it_sees_again_was_never_missing() -> None:
    story = Story().line(gpu(0), gpu(1)).line(gpu(1), xids=[xid(999, 1)])
    assert (story.says(0), story.says(1)) == (("Unhealthy", "Missing"), ("Degraded", "Xid999"))
    story.blind = True
    story.line()
    assert story.says(0) == ("Unhealthy", "Missing"), "missing before its probe became blind"
    assert story.says(1) == ("Unknown", "Missing"), "whatever lesser fault it has"
    assert story.verdict(1).fault_domain == "Node"
    story = Story().line(gpu(0))
    story.blind = True
    assert story.line().says() == ("Unknown", "Missing")
    story.blind = False
    assert story.line(gpu(0)).says() == ("Healthy", "")


@cases(
    ("state", "says"),
    (DriverState.NOT_LOADED, ("Healthy", "")),
    (DriverState.UNKNOWN, ("Unhealthy", "Xid48")),
    (DriverState.VERSION_MISMATCH, ("Unhealthy", "Xid48")),
)
def test_a_driver_that_could_not_be_queried_was_not_loaded_anew(state: DriverState, says: tuple[str, str]) -> None:
    story = Story().line(OLD, at=0, xids=[xid(48)]).line(OLD, at=20)
    story.line(driver=Driver(state=state), at=2 * HOLD).line(OLD, driver=LOADED)
    assert story.line(OLD, at=4 * HOLD).says() == says


def test_a_fault_is_shown_while_the_driver_is_away_and_remembered_by_a_restarted_agent() -> None:
    story = Story().line(gpu(0), xids=[xid(79)]).line(driver=UNLOADED)
    assert story.says() == ("Unhealthy", "Xid79")
    story = Story().line(OLD, gpu(1), xids=[xid(79)])
    before = story.verdict()
    story.restart()
    assert replace(story.verdict(), faults=()) == replace(before, faults=())
    assert (story.says(1), story.verdict(1).offered) == (("Unknown", "Starting"), False)
    story.line(OLD, gpu(1))
    assert (story.says(0), story.says(1)) == (("Unhealthy", "Xid79"), ("Healthy", ""))
    assert story.verdict().since == before.since


# --- restart of the agent -------------------------------------------------------------------------------------------


def test_after_a_restart_a_hold_down_begins_again_a_new_boot_needs_a_good_line_and_the_vanished_is_missing() -> None:
    story = Story().line(gpu(0), at=0, xids=[xid(62)])
    faults = tuple(replace(fault, last_seen=None) for fault in story.verdict().faults)
    story.verdicts[gpu_id(0)] = replace(story.verdict(), faults=faults)
    story.restart()
    story.line(gpu(0), at=HOLD)
    assert keep_alive(story, gpu(0), seconds=HOLD - 1).says() == ("Unhealthy", "Xid62")
    assert keep_alive(story, gpu(0), seconds=1).says() == ("Healthy", "")
    story = Story().line(OLD, at=0, xids=[xid(79)]).restart()
    story.clock = HOLD
    assert story.line(boot_id="boot-2", driver=UNLOADED).says() == ("Unhealthy", "Xid79")
    assert story.line(OLD, boot_id="boot-2", driver=LOADED).says() == ("Healthy", "")
    story = Story().line(gpu(0), gpu(1)).restart().line(gpu(0))
    assert story.says(1) == ("Unhealthy", "Missing")


# --- correlation ----------------------------------------------------------------------------------------------------
@cases("number", 45, 48, 74, *range(144, 151))
def test_an_xid_that_depends_on_its_neighbours_waits_for_them(number: int) -> None:
    fine = gpu(0, readings=well() if number in {45, 48, 74} else old())
    story = Story().line(fine, at=0, xids=[xid(number)])
    assert (story.says(), story.verdict().offered) == (("Degraded", "Correlating"), number == 45)
    assert story.line(fine, at=9).says() == ("Degraded", "Correlating")
    assert story.line(fine, at=10).says() != ("Degraded", "Correlating")


@cases("number", *range(144, 151))
def test_an_nvlink_xid_waits_only_for_the_answer_of_its_driver(number: int) -> None:
    said = ("Degraded", f"Xid{number}")
    story = Story().line(gpu(0), at=0, xids=[xid(number)])
    assert not story.verdict().offered, "what the driver said may be from before"
    story.line(gpu(0), at=1)
    assert (story.says(), story.verdict().offered) == (said, True)
    assert story.line(REQUIRES, at=2).says() == ("Unhealthy", "RecoveryAction")


@cases("readings", well(), old())
@cases("number", *range(144, 151))
def test_an_nvlink_xid_again_and_again_withholds_nothing_again(number: int, readings: Readings) -> None:
    fine = gpu(0, readings=readings)
    story = Story().line(fine, at=0, xids=[xid(number)]).line(fine, at=10)
    for at in range(11, 60, 4):
        story.line(fine, at=at, xids=[xid(number, after=at)])
        assert (story.says(), story.verdict().offered) == (("Degraded", f"Xid{number}"), True)


@cases(
    ("first", "beside", "readings", "expected"),
    (45, [], old(), ("Healthy", "")),  # a process was cleaned up
    (45, [31], old(), ("Healthy", "")),
    (45, [62], old(), ("Unhealthy", "Xid62")),
    (48, [], old(), ("Unhealthy", "Xid48")),
    (48, [63], old(), ("Unhealthy", "Xid48")),  # the row is remapped with the next reset
    (48, [63], well(), ("Degraded", "Xid48")),  # the driver requires nothing
    (48, [94], old(), ("Degraded", "Xid48")),
    (48, [94], old(ecc_uncorrectable_volatile=1), ("Unhealthy", "EccUncorrectable")),
    (48, [63, 94], old(), ("Degraded", "Xid48")),
    (48, [64], old(), ("Unhealthy", "Xid64")),
    (48, [95], old(), ("Unhealthy", "Xid95")),
    (74, [], old(), ("Unhealthy", "Xid74")),
    (74, [], well(), ("Degraded", "Xid74")),  # the driver requires nothing
    (74, [79], old(), ("Unhealthy", "Xid79")),
    (149, [], old(), ("Degraded", "Xid149")),
    (149, [45], well(), ("Degraded", "Xid149")),
    (149, [48], old(), ("Unhealthy", "Xid48")),
)
def test_neighbours_decide(first: int, beside: list[int], readings: Readings, expected: tuple[str, str]) -> None:
    fine = gpu(0, readings=readings)
    story = Story().line(fine, at=0, xids=[xid(first)])
    story.line(fine, at=3, xids=[xid(number, after=3) for number in beside])
    assert story.line(fine, at=10).says() == expected


def test_no_new_pod_gets_a_gpu_while_a_neighbour_that_may_be_fatal_is_undecided() -> None:
    story = Story().line(gpu(0), at=0, xids=[xid(45)])
    assert story.verdict().offered
    assert not story.line(gpu(0), at=3, xids=[xid(48, after=3)]).verdict().offered
    flood = [xid(number, after=4) for number in range(200, 240)]
    assert not story.line(gpu(0), at=4, xids=flood).verdict().offered, "not even when others drown it"
    assert story.line(gpu(0), at=10).says() == ("Unhealthy", "Xid48")


def test_an_undecided_xid_withholds_a_gpu_beside_lesser_faults_and_silence() -> None:
    story = Story().line(gpu(0, readings=well(remap_pending=True)), at=0, xids=[xid(74)])
    assert (story.says(), story.verdict().offered) == (("Degraded", "Correlating"), False)
    assert "not offered to new pods until then; also RowRemapPending" in story.verdict().message
    story = Story().line(gpu(0), at=0).silence(until=16, xids=[xid(48, after=16)])
    assert (story.says(), story.verdict().offered) == (("Unknown", "ProbeSilent"), False)


@cases("number", 48, 79)
def test_a_fatal_xid_for_which_the_driver_names_no_gpu_takes_none_out(number: int) -> None:
    story = Story().line(gpu(0), gpu(1), at=0, xids=[xid(number, None)])
    assert (story.says(0), story.says(1)) == (("Healthy", ""), ("Healthy", ""))
    story.line(gpu(0), gpu(1), at=10)
    assert [story.verdict(index).offered for index in (0, 1)] == [True, True]


def test_neighbours_of_another_gpu_decide_nothing_and_waiting_survives_a_restart() -> None:
    story = Story().line(gpu(0), gpu(1), at=0, xids=[xid(45, 0), xid(62, 1)])
    story.line(gpu(0), gpu(1), at=10)
    assert (story.says(0), story.says(1)) == (("Healthy", ""), ("Unhealthy", "Xid62"))
    story = Story().line(OLD, at=0, xids=[xid(48)]).restart().line(OLD, at=10)
    assert story.says() == ("Unhealthy", "Xid48")


# --- policy ---------------------------------------------------------------------------------------------------------
@cases(
    ("states", "xids", "says"),
    ({"Xid62": "Unhealthy", "Xid*": "Ignored"}, [62, 79], [("Unhealthy", "Xid62"), ("Healthy", "")]),
    ({"Xid109": "Degraded"}, [109], [("Degraded", "Xid109")]),
    ({"Xid48": "Degraded", "Xid74": "Unhealthy"}, [48, 74], [("Degraded", "Xid48"), ("Unhealthy", "Xid74")]),
    (
        {"Xid14[0-4]": "Degraded", "Xid14*": "Ignored", "Xid*": "Unhealthy"},
        [140, 145, 13],
        [("Degraded", "Xid140"), ("Healthy", ""), ("Unhealthy", "Xid13")],
    ),
    ids=[
        "only these XIDs",
        "a fatal one degrades, and the GPU stays offered",
        "what a rule decides waits for no neighbours",
        "the first that matches",
    ],
)
def test_rules_say_what_an_xid_means(
    states: dict[str, Literal["Ignored", "Degraded", "Unhealthy"]], xids: list[int], says: list[tuple[str, str]]
) -> None:
    struck = [xid(number, index) for index, number in enumerate(xids)]
    story = Story(ruled(states)).line(*map(gpu, range(len(xids))), xids=struck)
    assert [story.says(index) for index in range(len(xids))] == says
    assert [story.verdict(index).offered for index in range(len(xids))] == [it[0] != "Unhealthy" for it in says]


def test_a_policy_may_call_an_xid_fatal_or_ignore_it() -> None:
    story = Story(ruled({"Xid31": "Unhealthy"})).line(OLD, xids=[xid(31)])
    assert (story.says(), story.verdict().recovery_action) == (("Unhealthy", "Xid31"), "ResetDevice")
    story = Story(ruled({"Xid79": "Ignored"}))
    assert story.line(gpu(0), xids=[xid(79), xid(45)]).says() == ("Degraded", "Correlating")
    assert story.line(gpu(0), at=20).says() == ("Healthy", "")
    story = Story(ruled({"Xid*": "Ignored"})).line(LOST, xids=[xid(79)])
    assert story.says() == ("Unhealthy", "FallenOffBus"), "which hides not that the GPU is lost"


def test_ignoring_an_xid_ends_it_and_what_a_policy_degrades_ends_as_what_the_catalogue_does() -> None:
    story = Story().line(gpu(0), xids=[xid(62)])
    story.rules = ruled({"Xid62": "Ignored"})
    assert story.line(gpu(0)).says() == ("Healthy", "")
    story = Story(ruled({"Xid31": "Degraded"})).line(gpu(0), xids=[xid(31)])
    assert story.says() == ("Degraded", "Xid31")
    assert keep_alive(story, gpu(0), seconds=HOLD).says() == ("Healthy", "")


@cases(
    ("reason", "readings", "state", "says"),
    ("EccUncorrectable", Readings(ecc_uncorrectable_volatile=1), "Ignored", ("Healthy", "")),
    ("EccUncorrectable", Readings(ecc_uncorrectable_volatile=1), "Degraded", ("Degraded", "EccUncorrectable")),
    ("ThermalSlowdown", Readings(thermal_slowdown=True), "Unhealthy", ("Unhealthy", "ThermalSlowdown")),
    ("RecoveryAction", Readings(recovery_action="ResetDevice"), "Ignored", ("Healthy", "")),
    ("*", Readings(lost=True), "Ignored", ("Unhealthy", "FallenOffBus")),
    ("*", Readings(error="no answer"), "Degraded", ("Unhealthy", "ProbeError")),
)
def test_a_rule_says_what_a_reading_means_but_never_that_an_unusable_device_can_be_used(
    reason: str, readings: Readings, state: Literal["Ignored", "Degraded", "Unhealthy"], says: tuple[str, str]
) -> None:
    story = Story(ruled({reason: state})).line(gpu(0, readings=readings))
    assert story.says() == says
    assert story.verdict().offered == (says[0] != "Unhealthy")


def test_a_missing_device_is_missing_whatever_a_rule_says() -> None:
    story = Story(ruled({"*": "Ignored"})).line(gpu(0), gpu(1)).line(gpu(0))
    assert story.says(1) == ("Unhealthy", "Missing")


@cases(
    ("kind", "state", "says"),
    ("poison", "Unhealthy", ("Unhealthy", "Poison")),
    ("gpu-unavailable", "Ignored", ("Healthy", "")),
)
def test_a_rule_says_what_events_mean(kind: str, state: Literal["Ignored", "Unhealthy"], says: tuple[str, str]) -> None:
    reason = {"poison": "Poison", "gpu-unavailable": "GpuUnavailable"}[kind]
    event = replace(xid(1), kind=kind, xid=None)
    assert Story(ruled({reason: state})).line(gpu(0), xids=[event]).says() == says


def test_a_rule_that_comes_later_judges_what_is_remembered_and_one_that_goes_lets_readings_count_again() -> None:
    bad = Readings(ecc_uncorrectable_volatile=1)
    story = Story().line(gpu(0, readings=bad), gpu(1), xids=[xid(62, 1)])
    assert (story.says(0), story.says(1)) == (("Unhealthy", "EccUncorrectable"), ("Unhealthy", "Xid62"))
    story.rules = ruled({"EccUncorrectable": "Degraded", "Xid62": "Degraded"})
    story.line(gpu(0, readings=bad), gpu(1))
    assert (story.says(0), story.says(1)) == (("Degraded", "EccUncorrectable"), ("Degraded", "Xid62"))
    story.rules = ruled({"Xid62": "Unhealthy"})
    story.line(gpu(0, readings=bad), gpu(1))
    assert (story.says(0), story.says(1)) == (("Unhealthy", "EccUncorrectable"), ("Unhealthy", "Xid62"))


@cases(
    ("state", "says"),
    ("Unhealthy", ("Unhealthy", "Xid48")),
    ("Degraded", ("Degraded", "Xid48")),
    ("Ignored", ("Healthy", "")),
)
def test_a_rule_that_comes_while_an_xid_is_undecided_decides_it(
    state: Literal["Ignored", "Degraded", "Unhealthy"], says: tuple[str, str]
) -> None:
    story = Story().line(gpu(0), at=0, xids=[xid(48)])
    story.rules = ruled({"Xid48": state})
    assert story.line(gpu(0), at=2).verdict().offered == (state != "Unhealthy")
    assert story.line(gpu(0), at=12).says() == says


# --- partitions -----------------------------------------------------------------------------------------------------
def cut(*, readings: Readings | None = None) -> DeviceFact:
    return gpu(0, mig_enabled=True, partitions=(partition(0, 0), partition(0, 1)), readings=readings)


def test_an_xid_of_a_mig_instance_marks_the_gpu() -> None:
    story = Story().line(cut(), xids=[xid(62, gi=7, ci=0)])
    assert story.says() == ("Unhealthy", "Xid62")
    assert set(story.verdicts) == {gpu_id(0)}
    story = Story(ruled({"Xid94": "Unhealthy"})).line(cut(), xids=[xid(94)])
    assert story.says() == ("Unhealthy", "Xid94"), "contained, though nobody knows in which instance"


def test_an_error_that_an_instance_contained_stays_in_it() -> None:
    story = Story(ruled({"Xid94": "Unhealthy"})).line(cut(), xids=[xid(94, gi=8, ci=0)])
    assert story.says() == ("Healthy", "")
    own = story.verdicts[mig_id(0, 1)]
    assert (own.state, own.reason, own.offered) == (HealthState.UNHEALTHY, "Xid94", False)
    assert mig_id(0, 0) not in story.verdicts
    keep_alive(story, cut(), seconds=HOLD)
    assert mig_id(0, 1) not in story.verdicts
    story = Story(ruled({"Xid94": "Unhealthy"})).line(cut(), xids=[xid(94, gi=8, ci=0)])
    story.line(cut(readings=well(remap_failure=True)))
    assert story.says() == ("Unhealthy", "RowRemapFailure")
    assert [each.reason for each in story.verdicts[mig_id(0, 1)].faults] == ["Xid94"], "what is read is the GPU's"


# --- other edges, and bounds ----------------------------------------------------------------------------------------
@cases(
    ("kind", "expected"),
    ("gpu-unavailable", ("Unhealthy", "GpuUnavailable")),
    ("poison", ("Degraded", "Poison")),
    ("ecc-storm", ("Degraded", "EccStorm")),
    ("recovery-action", ("Healthy", "")),
    ("mig-config", ("Healthy", "")),
    ("something-new", ("Healthy", "")),
)
def test_other_events(kind: str, expected: tuple[str, str]) -> None:
    event = ProbeEvent(sequence=1, time=START, kind=kind, device_id=gpu_id(0))
    assert Story().line(gpu(0), xids=[event]).says() == expected


def test_an_xid_of_no_known_gpu_hurts_none_and_one_from_the_future_counts_from_now() -> None:
    story = Story().line(gpu(0), xids=[xid(79, None), xid(79, 5)])
    assert story.says() == ("Healthy", "")
    story.line(gpu(0), xids=[xid(62, None), xid(62, 5), xid(79)])
    assert story.says() == ("Unhealthy", "Xid79"), "and hides none"
    story = Story().line(gpu(0), at=0, xids=[xid(62, after=10**6)])
    assert keep_alive(story, gpu(0), seconds=HOLD).says() == ("Healthy", "")


def test_a_flood_is_one_fault_and_one_since() -> None:
    story = Story().line(gpu(0), at=0, xids=[xid(79)])
    first = story.verdict()
    flood = [xid(number, after=1) for number in range(1000)]
    verdict = story.line(gpu(0), at=1, xids=flood).verdict()
    assert (verdict.reason, verdict.since) == (first.reason, first.since)
    assert len(verdict.faults) <= 16
    assert len(verdict.message) <= 512


@cases("last_seen", None, timedelta(hours=2))
def test_a_remembered_fault_of_a_clock_that_was_ahead_counts_from_now(last_seen: timedelta | None) -> None:
    story = Story().line(OLD, at=0, xids=[xid(79)])
    [known] = story.verdict().faults
    later = None if last_seen is None else story.now + last_seen
    ahead = replace(known, since=story.now + timedelta(hours=1), last_seen=later)
    story.verdicts = {gpu_id(0): replace(story.verdict(), faults=(ahead,))}
    [found] = story.line(OLD, at=1).verdict().faults
    assert (found.since, found.last_seen is None or found.last_seen <= story.now) == (story.now, True)


def test_messages_are_bounded_whoever_writes_them() -> None:
    assert len(Story().line(gpu(0, readings=Readings(error="x" * 5000))).verdict().message) <= 512
    message = Story(vendors={"nvidia": Talkative()}).line(gpu(0)).verdict().message
    assert message == "x" * 511 + "\u2026"


class Talkative(FaultSource):
    reasons = ("Broken",)

    def read(self, readings: Readings) -> tuple[FaultCondition, ...]:
        return (FaultCondition(reason="Broken", state=HealthState.UNHEALTHY, message="x" * 600, evident=True),)


# --- deadlines ------------------------------------------------------------------------------------------------------
def test_the_next_deadline_is_when_something_could_change_without_a_line() -> None:
    story = Story().line(gpu(0), at=0)
    assert story.deadline() == 15
    assert story.silence(until=15).deadline() == 300
    assert story.silence(until=300).deadline() is None
    story.line(gpu(0), at=400, xids=[xid(48, after=400)])
    assert story.deadline() == 410
    story.rules = HealthRules(hold_down_seconds=5)
    story.line(gpu(1), gpu(0), at=500)
    story.line(gpu(1), gpu(0), at=501, xids=[xid(62, 1, after=501)])
    story.line(gpu(1), gpu(0), at=502)
    assert story.deadline() == 506
    assert story.silence(until=506).says(1) == ("Healthy", "")


def test_a_deadline_is_of_what_waits_alone() -> None:
    story = Story(HealthRules(hold_down_seconds=2)).line(OLD, at=0, xids=[xid(79)]).line(OLD, at=5)
    assert story.says() == ("Unhealthy", "Xid79")
    assert story.deadline() == 20
    assert Story().deadline() is None
