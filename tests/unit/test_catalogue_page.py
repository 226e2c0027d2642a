"""tests/health_validation.yaml: what it says of ours is what the code does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from nodedevices_api import conditions as names
from nodedevices_plugin.health import reasons
from nodedevices_plugin.vendors.faults import Effect
from support.cases import cases
from support.catalogue import (
    CHECKS,
    DIFFERENT,
    DOMAINS,
    EKS,
    EKS_DIFFERENT,
    NOT_OURS,
    SAME,
    Check,
    our_meaning,
    says_the_same,
)
from support.facts import REGISTERED

ROOT = Path(__file__).resolve().parents[2]
each_xid = pytest.mark.parametrize("check", [each for each in CHECKS if each.xid is not None], ids=lambda each: each.id)


def page() -> str:
    return (ROOT / "docs" / "catalogue.md").read_text(encoding="utf-8")


def of(xid: int) -> Check:
    return next(each for each in CHECKS if each.xid == xid)


def holds(check: Check) -> bool:
    """True when the row says what our code does with its XID, and `ours` is right about it."""
    assert check.xid is not None
    meaning = our_meaning(check.xid)
    right = (check.state, check.action) == (meaning.effect, meaning.action)
    return right and check.ours == (SAME if says_the_same(check) else DIFFERENT)


@each_xid
def test_the_row_of_an_xid_is_what_the_code_does(check: Check) -> None:
    assert holds(check)


def test_no_row_says_other_than_what_holds_and_reasons_are_some_that_a_device_can_have() -> None:
    assert not holds(of(48).model_copy(update={"ours": SAME}))
    assert not holds(of(46).model_copy(update={"ours": DIFFERENT}))
    known = reasons.known(REGISTERED)
    named = [each for each in CHECKS if each.reason is not None]
    assert {each.reason for each in named} <= set(known)
    assert {each.ours for each in named} == {DIFFERENT}
    assert all(each.reason is None and each.xid is None for each in CHECKS if each.ours == NOT_OURS)


@cases("wrong", {"state": Effect.DEGRADED}, {"action": "Replace"}, {"severity": "INFO"}, {"ladder": ("restart_os",)})
def test_a_row_with_another_state_or_action_than_the_codes_or_theirs_does_not_hold(wrong: dict[str, Any]) -> None:
    assert not holds(of(46).model_copy(update=wrong))


def test_the_page_of_faults_names_for_what_other_monitors_catch_reasons_and_conditions_that_there_are() -> None:
    page = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    section = page.partition("## What other monitors catch")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([A-Z][A-Za-z0-9]+)`", section))
    conditions = {value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)}
    assert len(named) > 25
    assert named - set(reasons.known(REGISTERED)) <= conditions


def test_a_check_is_there_once_with_a_reason_where_it_is_not_the_same_and_62_are_counted() -> None:
    for values in ([each.id for each in CHECKS], [each.xid for each in CHECKS if each.xid is not None]):
        assert len(values) == len(set(values))
    assert [each.id for each in CHECKS if bool(each.why) is (each.ours == SAME)] == []
    assert [each.id for each in CHECKS if each.ours == SAME and each.xid is None] == []
    assert sum(len(each.readable) for each in DOMAINS) == len(CHECKS)
    assert sum(each.checks for each in DOMAINS) == 62
    assert f"{len(CHECKS)} of the 62" in page()
    assert re.search(r"read on \d{4}-\d\d-\d\d", page())


def test_each_difference_from_ekss_list_has_its_reason_and_nothing_else_has_one() -> None:
    assert len([each for each in EKS if each.fatal]) == 21
    assert [each.xid for each in EKS_DIFFERENT] == [each.xid for each in EKS if each.why] == [48, 63, 74, 142]
    assert all(each.fatal for each in EKS)  # "and no other XID is"
    assert f"{len(EKS) - len(EKS_DIFFERENT)} of the 21 are Unhealthy" in " ".join(page().split())


def test_the_table_of_frequent_xids_says_what_the_code_does() -> None:
    [table] = re.findall(r"^\| XID \| meaning \| state \|.*\n.*\n((?:\|.*\n)+)", page(), re.MULTILINE)
    found = {}
    for line in table.splitlines():
        numbers, _, state, action, _ = (cell.strip() for cell in line.strip("|").split(" | "))
        xids = [int(number) for number in numbers.split(", ")]
        states = re.sub(r"\[(\w+)\]\(.*?\)|, alone \w+", r"\1", state).split(", ")
        actions = action.split(", ")
        for at, xid in enumerate(xids):
            found[xid] = (states[at % len(states)], actions[at % len(actions)])
    assert len(found) >= 10
    assert found == {xid: (our_meaning(xid).effect, our_meaning(xid).action) for xid in found}
