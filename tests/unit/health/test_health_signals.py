"""Readings that a policy calls too high make a device Degraded: for as long as they last, and no pod loses it."""

from __future__ import annotations

from typing import get_args

from nodedevices_api.sections import DegradedRule, Health, HealthRule, Signal
from nodedevices_plugin.health import levels
from nodedevices_plugin.health.reasons import known
from nodedevices_plugin.health.rules import HealthRules
from nodedevices_probe.protocol import Readings
from support.cases import cases
from support.facts import REGISTERED, Story, gpu, well

HOLD = 300


def hot(at: int | None) -> Readings:
    return well(temperature_celsius=at)


def rule(threshold: int = 85, *, lasting: int = 0, signal: Signal = "temperatureCelsius") -> DegradedRule:
    return DegradedRule(signal=signal, threshold=threshold, for_seconds=lasting)


def ruled_by(*degraded: DegradedRule, rules: tuple[HealthRule, ...] = ()) -> Story:
    return Story(HealthRules(degraded=degraded, rules=rules))


def lines(story: Story, celsius: int | None, *, until: float) -> Story:
    while story.clock < until:
        story.line(gpu(0, readings=hot(celsius)), at=min(story.clock + 5, until))
    return story


HOT, WELL = ("Degraded", "TemperatureCelsius"), ("Healthy", "")


@cases("signal", *get_args(Signal))
def test_every_signal_is_a_reading_and_a_reason_that_rules_may_name(signal: Signal) -> None:
    story = ruled_by(rule(7, signal=signal))
    field = levels._FIELDS[signal]
    story.line(gpu(0, readings=well(**{field: 6})), gpu(1, readings=well(**{field: 7})))
    reasons = [{fault.reason for fault in story.verdict(each).faults} for each in (0, 1)]
    assert [levels.signal_reason(signal) in each for each in reasons] == [False, True]
    assert levels.signal_reason(signal) in known(REGISTERED)


def test_no_vendor_gives_a_reason_of_a_signal_another_meaning() -> None:
    theirs = {reason for vendor in REGISTERED.values() for reason in vendor.reasons}
    assert not theirs & set(levels.SIGNAL_REASONS)
    assert not set(levels.REASONS) & set(levels.SIGNAL_REASONS)


def test_a_device_at_any_threshold_is_degraded_still_offered_and_says_by_which_numbers() -> None:
    story = ruled_by(rule(85)).line(gpu(0, readings=hot(84)), gpu(1, readings=hot(20)))
    assert story.says() == WELL
    verdict = story.line(gpu(0, readings=hot(85)), gpu(1, readings=hot(20))).verdict()
    assert (story.says(), verdict.offered, verdict.recovery_action) == (HOT, True, "None")
    assert verdict.message == "temperatureCelsius has been 85 or more (health.degraded)"
    assert story.says(1) == WELL, "its neighbour"
    story = ruled_by(rule(80, lasting=600), rule(95))
    assert lines(story, 90, until=10).says() == WELL
    assert lines(story, 95, until=11).verdict().message == "temperatureCelsius has been 95 or more (health.degraded)"
    other = lines(ruled_by(rule(80, lasting=600), rule(95)), 85, until=605)
    assert other.verdict().message == "temperatureCelsius has been 80 or more for 600 s (health.degraded)"


def test_only_a_policy_lets_readings_degrade_and_cooler_is_healthy_after_the_hold_down() -> None:
    assert ruled_by().line(gpu(0, readings=hot(200))).says() == WELL
    assert HealthRules.from_section(Health(degraded=(rule(),))).degraded == (rule(),)
    story = lines(lines(ruled_by(rule()), 90, until=20), 60, until=25 + HOLD - 1)
    assert story.says() == HOT
    assert "recovering from TemperatureCelsius" in story.verdict().message
    assert lines(story, 60, until=25 + HOLD).says() == WELL


def test_flapping_around_the_threshold_costs_one_change_and_what_cannot_be_read_ends_nothing() -> None:
    story = ruled_by(rule(85)).line(gpu(0, readings=hot(85)))
    since = story.verdict().since
    for celsius in (84, 86, 80, 85, 84) * 20:
        story.line(gpu(0, readings=hot(celsius)))
        assert (story.says(), story.verdict().since) == (HOT, since)
    story = lines(ruled_by(rule()), 90, until=10)
    assert lines(story, None, until=10 + 3 * HOLD).says() == HOT


def test_a_restart_of_the_agent_keeps_a_degraded_device_and_counts_anew_for_another() -> None:
    story = ruled_by(rule(lasting=60))
    while story.clock < 65:
        story.line(gpu(0, readings=hot(90)), gpu(1, readings=hot(90 if story.clock > 30 else 20)), at=story.clock + 5)
    assert (story.says(0), story.says(1)) == (HOT, WELL)
    story.restart()
    while story.clock < 65 + 60:
        story.line(gpu(0, readings=hot(90)), gpu(1, readings=hot(90)), at=story.clock + 5)
        assert (story.says(0), story.says(1)) == (HOT, WELL)
    story.line(gpu(0, readings=hot(90)), gpu(1, readings=hot(90)), at=130)
    assert (story.says(0), story.says(1)) == (HOT, HOT)


def test_a_policy_that_drops_its_rule_or_raises_its_threshold_applies_to_what_came_before() -> None:
    story = lines(ruled_by(rule(85)), 90, until=10)
    story.rules = HealthRules()
    assert lines(story, 90, until=11).says() == WELL
    story.rules = HealthRules(degraded=(rule(88),))
    assert "88 or more" in lines(story, 90, until=12).verdict().message
    story.rules = HealthRules(degraded=(rule(89),))
    assert "89 or more" in lines(story, 90, until=13).verdict().message
    story.rules = HealthRules(degraded=(rule(95),))
    assert lines(lines(story, 90, until=14), 90, until=14 + HOLD).says() == WELL


@cases(("state", "says", "offered"), ("Unhealthy", ("Unhealthy", "TemperatureCelsius"), False), ("Ignored", WELL, True))
def test_a_health_rule_may_make_more_or_nothing_of_it(state: str, says: tuple[str, str], offered: bool) -> None:
    named = HealthRule.model_validate({"reasons": ["Temperature*"], "state": state})
    story = ruled_by(rule(), rules=(named,)).line(gpu(0, readings=hot(90)))
    assert (story.says(), story.verdict().offered) == (says, offered)


def test_a_worse_fault_is_shown_first_and_a_lost_device_says_nothing_else() -> None:
    story = lines(ruled_by(rule()), 90, until=5)
    story.line(gpu(0, readings=Readings(lost=True, temperature_celsius=90)))
    assert story.says() == ("Unhealthy", "FallenOffBus")
    assert ruled_by(rule()).line(gpu(0, readings=Readings(error="ERROR", temperature_celsius=90))).verdict().faults[
        0
    ].reason == ("ProbeError")
