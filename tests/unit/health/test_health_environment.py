"""NVIDIA's two variables for health checks, with their documented meaning."""

from __future__ import annotations

from hypothesis import given, settings, strategies as st
from nodedevices_api.base import to_dict
from nodedevices_api.errors import parse
from nodedevices_api.sections import Health
from nodedevices_plugin.health.events import effect
from nodedevices_plugin.health.rules import HealthRules
from nodedevices_plugin.vendors.faults import Effect
from nodedevices_plugin.vendors.nvidia.faults import meaning
from nodedevices_plugin.vendors.nvidia.flags import rules_from_environment
from nodedevices_plugin.vendors.nvidia.xids import look_up
from support.cases import cases
from support.facts import Story, gpu, xid


def rules(disable: str, enable: str) -> HealthRules:
    return HealthRules(rules=rules_from_environment(disable, enable))


def said(disable: str, enable: str) -> list[tuple[str, str]]:
    """Each reason with its state."""
    return [(reason, rule.state) for rule in rules_from_environment(disable, enable) for reason in rule.reasons]


@cases(
    ("disable", "enable", "expected"),
    ("", "", []),
    ("all", "", [("Xid*", "Ignored")]),
    ("XIDs", "", [("Xid*", "Ignored")]),
    ("48, 79,x", "", [("Xid48", "Ignored"), ("Xid79", "Ignored")]),
    ("all", "48,79", [("Xid48", "Unhealthy"), ("Xid79", "Unhealthy"), ("Xid*", "Ignored")]),
    ("13,48", "48", [("Xid48", "Unhealthy"), ("Xid13", "Ignored")]),
    ("13", "all", [("Xid*", "Unhealthy")]),
    ("all", "all", [("Xid*", "Unhealthy")]),
    (",, 0,1024,-5, 1e2,079", "", [("Xid79", "Ignored")]),
    ("٧٩", "", []),  # Arabic digits
)
def test_what_the_variables_mean(disable: str, enable: str, expected: list[tuple[str, str]]) -> None:
    assert said(disable, enable) == expected


@cases(
    ("disable", "enable", "number", "kind"),
    ("", "", 79, Effect.UNHEALTHY),
    ("all", "", 79, Effect.COUNTED),
    ("48,79", "", 79, Effect.COUNTED),
    ("all", "79", 79, Effect.UNHEALTHY),
    ("all", "79", 48, Effect.COUNTED),
    ("", "13", 13, Effect.UNHEALTHY),
    ("", "all", 13, Effect.UNHEALTHY),
    ("13", "all", 13, Effect.UNHEALTHY),
)
def test_what_an_xid_comes_to(disable: str, enable: str, number: int, kind: Effect) -> None:
    assert effect(meaning(look_up(number)), rules(disable, enable)) is kind


def test_only_the_enabled_xids_make_a_gpu_unhealthy_as_many_as_fit_into_a_section() -> None:
    """NVIDIA's plugin hears nothing when everything is disabled and some are enabled."""
    story = Story(rules("all", "79")).line(gpu(0), gpu(1), xids=[xid(79, 0), xid(48, 1)])
    assert (story.says(0), story.says(1)) == (("Unhealthy", "Xid79"), ("Healthy", ""))
    numbers = list(range(1, 1024))
    found = rules_from_environment(",".join(map(str, numbers[::2])), ",".join(map(str, numbers[1::2])))
    section = parse(Health, to_dict(Health(rules=found)))
    assert {rule.state: sum(len(each.reasons) for each in found if each.state == rule.state) for rule in found} == {
        "Ignored": 512,
        "Unhealthy": 511,
    }
    assert section.rules == found


@settings(deadline=None)
@given(st.text(), st.text())
def test_any_text_has_a_meaning(disable: str, enable: str) -> None:
    found = said(disable, enable)
    reasons = [reason for reason, _ in found]
    assert len(set(reasons)) == len(reasons), "each has one state"
    assert set(reasons) <= {"Xid*", *(f"Xid{number}" for number in range(1, 1024))}


@settings(deadline=None)
@given(st.sets(st.integers(1, 1023)), st.sets(st.integers(1, 1023)))
def test_numbers_are_read(disable: set[int], enable: set[int]) -> None:
    found = said(",".join(map(str, disable)), " , ".join(map(str, enable)))
    assert found == [
        *((f"Xid{number}", "Unhealthy") for number in sorted(enable)),
        *((f"Xid{number}", "Ignored") for number in sorted(disable - enable)),
    ]
