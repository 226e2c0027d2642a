"""tests/scenarios.yaml: each scenario is there once, each test that it names exists, and what no test shows says so."""

from __future__ import annotations

import re
from functools import cache

from support.cases import cases
from support.scenarios import MISSING, ONLY_IN_ALL, REAL, RIGS, ROOT, SCENARIOS, UPSTREAM, Scenario

EVERY = (*SCENARIOS, *UPSTREAM)
each_scenario = cases("scenario", *EVERY, ids=lambda each: each.id)
# A class of tests, a test with its indentation, a state machine's TestCase.
TESTS = re.compile(r"^(?:class (Test\w+)|(    )?(?:async )?def (test_\w+)|(Test\w+) = )", re.MULTILINE)


@cache
def names_in(path: str) -> frozenset[str]:
    """The names by which pytest knows a file's tests, without parameters."""
    found, inside = set(), ""
    for kind, indent, test, machine in TESTS.findall((ROOT / path).read_text(encoding="utf-8")):
        inside = f"{kind}::" if kind else inside if indent else ""
        found.add(kind or machine or f"{inside}{test}")
    return frozenset(found)


def numbered(letter: str, count: int) -> list[str]:
    return [f"{letter}{number}" for number in range(1, count + 1)]


def test_every_scenario_and_every_check_of_upstream_is_there_exactly_once() -> None:
    assert [each.id for each in SCENARIOS] == numbered("S", 46)
    counts = {"C": 12, "F": 7, "H": 2, "M": 3, "A": 1, "P": 8}
    assert [each.id for each in UPSTREAM] == [
        id_ for letter, count in counts.items() for id_ in numbered(letter, count)
    ]


@each_scenario
def test_each_named_test_exists_and_is_named_once(scenario: Scenario) -> None:
    assert len(set(scenario.tests)) == len(scenario.tests)
    for each in scenario.tests:
        assert each.path.startswith(tuple(RIGS)), f"{each.path}: not one of {', '.join(RIGS)}"
        assert (ROOT / each.path).is_file(), each.path
        assert each.name in names_in(each.path), f"{each.path} has no {each.name}"


@each_scenario
def test_without_a_test_it_is_missing_and_without_a_real_rig_it_says_why(scenario: Scenario) -> None:
    assert scenario.tests or scenario.lacks, f"{scenario.id} has neither a test nor an entry of `missing`"
    real = any(each.rig in REAL for each in scenario.tests)
    assert bool(scenario.stand_in) == bool(scenario.tests and not real), (
        "stand_in: where no test is on a real rig, there alone"
    )


@each_scenario
def test_a_scenario_that_make_test_does_not_show_says_why_and_how_long_it_takes(scenario: Scenario) -> None:
    left_out = bool(scenario.tests) and all(each.long for each in scenario.tests)
    assert left_out == bool(scenario.only_all) == bool(scenario.seconds), "seconds, only_all: where every test is long"


def test_make_test_shows_all_but_ten_scenarios_and_what_is_missing_is_named_once() -> None:
    assert len(ONLY_IN_ALL) <= 10
    named = [id_ for each in MISSING for id_ in each.ids]
    assert len(set(named)) == len(named)
    assert set(named) <= {each.id for each in EVERY}
    assert all(each.lacks and each.needs for each in MISSING)


def test_a_test_that_is_named_after_a_scenario_is_listed_with_it() -> None:
    listed = {(each.name, scenario.id) for scenario in EVERY for each in scenario.tests}
    ids = {f"test_{each.id[0].lower()}{int(each.id[1:]):02d}_": each.id for each in EVERY}
    for path in (ROOT / "tests").glob("**/test_*.py"):
        for name in names_in(str(path.relative_to(ROOT))):
            if (id_ := ids.get(name[:9])) is not None:
                assert (name, id_) in listed, f"{path.name}: {name}"
