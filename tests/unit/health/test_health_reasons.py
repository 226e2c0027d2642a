"""Health rules that decide nothing are named: a typo in a rule would otherwise be silence."""

from __future__ import annotations

from typing import Literal

import pytest
from nodedevices_api.sections import HealthRule
from nodedevices_plugin.health.reasons import unmatched
from support.facts import REGISTERED

State = Literal["Ignored", "Degraded", "Unhealthy"]


def notes(*reasons: str, state: State = "Ignored") -> list[str]:
    return [each.text for each in unmatched((HealthRule(reasons=reasons, state=state),), REGISTERED)]


@pytest.mark.parametrize(
    "reason", ["Xid109", "Xid14*", "Xid1023", "Xid[0-9]", "Ecc*", "RowRemapPending", "Poison", "*"]
)
def test_a_rule_about_a_reason_that_there_is_decides_something(reason: str) -> None:
    assert notes(reason) == []


def test_a_rule_about_no_reason_is_named_with_what_there_is() -> None:
    [note] = notes("Xid109", "RowRemapPendign")
    assert note.startswith("health.rules[0].reasons RowRemapPendign: no such reason; known reasons: RowRemapPending, ")
    [note] = notes("Xdi79")
    assert "Xid<number>" in note


def test_a_reason_in_the_wrong_case_is_named_with_the_right_one() -> None:
    assert notes("xid79") == [
        "health.rules[0].reasons xid79: no such reason; upper and lower case count: Xid79 is the same but for the case"
    ]


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


def test_a_rule_that_would_call_an_unusable_device_usable_is_named_but_not_one_for_its_hold_down() -> None:
    [note] = notes("Missing")
    assert note.startswith("health.rules[0].reasons Missing: Missing is Unhealthy whatever a rule says")
    assert notes("Missing", "FallenOffBus", state="Unhealthy") == []
