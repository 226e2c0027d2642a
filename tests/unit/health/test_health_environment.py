"""NVIDIA's two variables for health checks, with their documented meaning."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from nodedevices_api.base import to_dict
from nodedevices_api.errors import parse
from nodedevices_api.sections import Health
from nodedevices_plugin.health.events import effect
from nodedevices_plugin.health.rules import HealthRules
from nodedevices_plugin.vendors.faults import Effect
from nodedevices_plugin.vendors.nvidia.faults import meaning
from nodedevices_plugin.vendors.nvidia.flags import EnvironmentXids, rules_from_environment
from nodedevices_plugin.vendors.nvidia.xids import look_up
from support.cases import cases
from support.facts import Story, gpu, xid


def rules(disable: str, enable: str) -> HealthRules:
    return HealthRules(rules=rules_from_environment(disable, enable).rules())


@cases(
    ("disable", "enable", "expected"),
    ("", "", EnvironmentXids()),
    ("all", "", EnvironmentXids(ignore_all=True)),
    ("XIDs", "", EnvironmentXids(ignore_all=True)),
    ("48, 79,x", "", EnvironmentXids(ignore=frozenset({48, 79}), unread=("x",))),
    ("all", "48,79", EnvironmentXids(ignore_all=True, fatal=frozenset({48, 79}))),
    ("13,48", "48", EnvironmentXids(ignore=frozenset({13}), fatal=frozenset({48}))),
    ("13", "all", EnvironmentXids(fatal_all=True)),
    ("all", "all", EnvironmentXids(fatal_all=True)),
    (",, 0,1024,-5, 1e2,079", "", EnvironmentXids(ignore=frozenset({79}), unread=("0", "1024", "-5", "1e2"))),
    ("٧٩", "", EnvironmentXids(unread=("٧٩",))),  # Arabic digits
)
def test_what_the_variables_mean(disable: str, enable: str, expected: EnvironmentXids) -> None:
    assert rules_from_environment(disable, enable) == expected


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
    found = rules_from_environment(",".join(map(str, numbers[::2])), ",".join(map(str, numbers[1::2]))).rules()
    section = parse(Health, to_dict(Health(rules=found)))
    assert {rule.state: sum(len(each.reasons) for each in found if each.state == rule.state) for rule in found} == {
        "Ignored": 512,
        "Unhealthy": 511,
    }
    assert section.rules == found


@settings(deadline=None)
@given(st.text(), st.text())
def test_any_text_has_a_meaning(disable: str, enable: str) -> None:
    found = rules_from_environment(disable, enable)
    assert not found.ignore & found.fatal
    assert not (found.ignore_all and found.fatal_all)
    assert all(1 <= each <= 1023 for each in found.ignore | found.fatal)
    assert len(found.unread) <= 16
    assert all(len(each) <= 32 for each in found.unread)


@settings(deadline=None)
@given(st.lists(st.integers(1, 1023)), st.lists(st.integers(1, 1023)))
def test_numbers_are_read(disable: list[int], enable: list[int]) -> None:
    found = rules_from_environment(",".join(map(str, disable)), " , ".join(map(str, enable)))
    assert found == EnvironmentXids(ignore=frozenset(disable) - frozenset(enable), fatal=frozenset(enable))
