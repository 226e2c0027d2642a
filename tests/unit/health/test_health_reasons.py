"""Health rules that decide nothing are named: a typo in a rule would otherwise be silence."""

from __future__ import annotations

from typing import Any, Literal

from nodedevices_api.sections import FaultRule, HealthRule
from nodedevices_plugin.health.reasons import unmatched, unmatched_faults
from nodedevices_plugin.vendors.nvidia.flags import rules_from_environment
from support.cases import cases
from support.facts import REGISTERED

State = Literal["Ignored", "Degraded", "Unhealthy"]


def notes(*reasons: str, state: State = "Ignored") -> list[str]:
    return [each.text for each in unmatched((HealthRule(reasons=reasons, state=state),), REGISTERED)]


@cases("reason", "Xid109", "Xid14*", "Xid1023", "Xid[0-9]", "Ecc*", "RowRemapPending", "Poison", "*")
def test_a_rule_about_a_reason_that_there_is_decides_something(reason: str) -> None:
    assert notes(reason) == []


def test_a_rule_about_no_reason_is_named_with_what_there_is_or_is_right() -> None:
    [note] = notes("Xid109", "RowRemapPendign")
    assert note.startswith("health.rules[0].reasons RowRemapPendign: no such reason; known reasons: RowRemapPending, ")
    [note] = notes("Xdi79")
    assert "Xid<number>" in note
    assert notes("xid79") == ["health.rules[0].reasons xid79: no such reason; case matters: Xid79 differs only in case"]


def test_a_reason_of_faults_that_no_device_and_no_holder_can_have_is_named() -> None:
    rules = [
        FaultRule(reasons=("Xid79", "EccUncorrectable", "RecoveryAction", "Missing", "MpsDaemonDown")),
        FaultRule(reasons=("MpsDaemonRestarted", "XID79", "Falle0ffBus")),
        FaultRule(recovery_actions=("RebootNode",)),
    ]
    case, other = [each.text for each in unmatched_faults(rules, REGISTERED)]
    assert case.startswith("faults.rules[1].reasons XID79: no such reason; case matters: Xid79 differs")
    assert other.startswith("faults.rules[1].reasons Falle0ffBus: no such reason; known reasons: FallenOffBus, ")


def test_a_rule_about_a_recovery_or_an_unusable_device_is_named() -> None:
    assert notes("FirmwareFatal") == []
    [note] = notes("FirmwareRecovered")
    assert "no such reason" in note
    [note] = notes("Missing")
    assert note.startswith("health.rules[0].reasons Missing: Missing is always Unhealthy, whatever a rule says")
    assert notes("Missing", "FallenOffBus", state="Unhealthy") == []


def test_a_rule_that_counts_what_an_earlier_one_decides_is_named() -> None:
    counts = HealthRule.model_validate(
        {"reasons": ["Xid31"], "state": "Unhealthy", "after": {"count": 2, "windowSeconds": 60}}
    )
    every = HealthRule(reasons=("Xid3*",), state="Degraded")
    why = "rules[0] comes before it and applies from the first time on; put this rule first"
    assert [each.text for each in unmatched((every, counts), REGISTERED)] == [f"health.rules[1].after.count 2: {why}"]
    assert unmatched((counts, every), REGISTERED) == ()
    some = HealthRule.model_validate({"reasons": ["Xid31"], "state": "Degraded", "match": {"type": "gpu"}})
    assert unmatched((some, counts), REGISTERED) == ()


def noted(*rules: dict[str, Any]) -> list[str]:
    return [each.text for each in unmatched([HealthRule.model_validate(each) for each in rules], REGISTERED)]


def test_a_rule_behind_one_that_decides_all_of_its_reasons_on_every_device_is_named() -> None:
    every: dict[str, Any] = {"reasons": ["Xid*"], "state": "Degraded"}
    one: dict[str, Any] = {"reasons": ["Xid31", "Xid4?"], "state": "Ignored"}
    why = "rules[0] comes before it and decides all of its reasons; remove this rule, or put it first"
    assert noted(every, one) == [f"health.rules[1].state Ignored: {why}"]
    assert noted(every, one | {"match": {"type": "gpu"}}) == [f"health.rules[1].state Ignored: {why}"]
    assert noted(one, every) == []
    assert noted(every | {"match": {"type": "gpu"}}, one) == []
    assert noted(every | {"after": {"count": 2, "windowSeconds": 60}}, one) == []


@cases(
    ("first", "second", "named"),
    ((3, 60), (5, 60), True),
    ((3, 60), (3, 30), True),
    ((5, 60), (3, 60), False),
    ((3, 30), (5, 60), False),
)
def test_a_rule_that_counts_further_than_one_before_it_is_named_where_that_one_always_applies_first(
    first: tuple[int, int], second: tuple[int, int], named: bool
) -> None:
    one, other = (
        {"reasons": ["Xid31"], "state": "Degraded", "after": {"count": count, "windowSeconds": window}}
        for count, window in (first, second)
    )
    assert [each.partition(":")[0] for each in noted(one, other)] == [
        f"health.rules[1].after.count {second[0]}"
    ] * named
    assert noted(one | {"reasons": ["Xid31", "Xid13"]}, other) == [], "another reason may end the first one's window"


def test_a_rule_that_does_not_switch_on_a_reason_that_is_off_is_named_and_one_that_does_is_not() -> None:
    on: dict[str, Any] = {"reasons": ["PersistenceModeOff"], "state": "Degraded"}
    counts = on | {"after": {"count": 2, "windowSeconds": 60}}
    why = "PersistenceModeOff: no fault unless a rule without after names the reason, not by a pattern"
    assert noted(counts) == [f"health.rules[0].reasons PersistenceModeOff: {why}"]
    assert noted(on | {"reasons": ["PersistenceMode*"]}) == [f"health.rules[0].reasons PersistenceMode*: {why}"]
    assert noted(on) == []
    assert noted(counts, on) == []
    assert noted({"reasons": ["*"], "state": "Degraded"}, on) == [], "the second rule switches the reason on"


def test_nvidias_variables_all_have_an_effect_and_a_rule_may_count_what_a_later_one_ignores() -> None:
    for disabled, enabled in (("13,31", "79"), ("all", "48,79"), ("", "all"), ("all", "")):
        assert unmatched(rules_from_environment(disabled, enabled), REGISTERED) == ()
    counts = {"reasons": ["Xid31"], "state": "Unhealthy", "after": {"count": 3, "windowSeconds": 60}}
    ignores = {"reasons": ["Xid*"], "state": "Ignored"}
    assert unmatched(tuple(HealthRule.model_validate(each) for each in (counts, ignores)), REGISTERED) == ()


@cases(
    ("later", "noted"),
    ({"reasons": ["ThermalSlowdown"], "state": "Ignored"}, True),
    ({"reasons": ["*Slowdown", "SymbolErrors"], "state": "Ignored"}, True),
    ({"reasons": ["ThermalSlowdown"], "state": "Degraded"}, False),
    ({"reasons": ["ThermalSlowdown"], "state": "Ignored", "match": {"type": "gpu"}}, False),
)
def test_a_rule_that_counts_readings_that_a_later_one_ignores_is_named(later: dict[str, object], noted: bool) -> None:
    counts = {"reasons": ["ThermalSlowdown"], "state": "Unhealthy", "after": {"count": 3, "windowSeconds": 60}}
    rules = tuple(HealthRule.model_validate(each) for each in (counts, later))
    said = "health.rules[0].after.count 3: rules[1] ignores everything that this rule counts"
    assert [each.text.startswith(said) for each in unmatched(rules, REGISTERED)] == [True] * noted
