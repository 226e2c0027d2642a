"""tests/health_validation.yaml: what it says of ours is what the code does, and a file that is none is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from nodedevices_api import conditions as names
from nodedevices_common.generated import with_tables
from nodedevices_plugin.health import reasons
from nodedevices_plugin.vendors.faults import Effect
from support import catalogue
from support.catalogue import (
    CHECKS,
    DIFFERENT,
    DOMAINS,
    EKS,
    NOT_OURS,
    SAME,
    CatalogueError,
    Check,
    our_meaning,
    parse,
    says_the_same,
)
from support.facts import REGISTERED

ROOT = Path(__file__).resolve().parents[2]
TEXT = catalogue.SOURCE.read_text(encoding="utf-8")
each_xid = pytest.mark.parametrize("check", [each for each in CHECKS if each.xid is not None], ids=lambda each: each.id)


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


def test_same_where_it_differs_and_different_where_it_is_the_same_do_not_hold() -> None:
    assert not holds(replace(of(48), ours=SAME))
    assert not holds(replace(of(46), ours=DIFFERENT))


@pytest.mark.parametrize(
    "wrong", [{"state": Effect.DEGRADED}, {"action": "Replace"}, {"severity": "INFO"}, {"ladder": ("restart_os",)}]
)
def test_a_row_with_another_state_or_action_than_the_codes_or_theirs_does_not_hold(wrong: dict[str, Any]) -> None:
    assert not holds(replace(of(46), **wrong))


def test_what_is_compared_with_a_reason_names_one_that_a_device_can_have() -> None:
    known = reasons.known(REGISTERED)
    named = [each for each in CHECKS if each.reason is not None]
    assert {each.reason for each in named} <= set(known)
    assert {each.ours for each in named} == {DIFFERENT}
    assert all(each.reason is None and each.xid is None for each in CHECKS if each.ours == NOT_OURS)


def test_the_page_of_faults_names_for_what_other_monitors_catch_reasons_and_conditions_that_there_are() -> None:
    page = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    section = page.partition("## What other monitors catch")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([A-Z][A-Za-z0-9]+)`", section))
    conditions = {value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)}
    assert len(named) > 25
    assert named - set(reasons.known(REGISTERED)) <= conditions


def test_their_catalogue_has_62_checks_and_the_page_says_how_many_could_be_read() -> None:
    assert sum(each.checks for each in DOMAINS) == 62
    page = (ROOT / "docs" / "catalogue.md").read_text(encoding="utf-8")
    assert f"{len(CHECKS)} of the 62" in page
    assert re.search(r"read on \d{4}-\d\d-\d\d", page)


def test_each_difference_from_ekss_list_has_its_reason_and_nothing_else_has_one() -> None:
    assert len([each for each in EKS if each.fatal]) == 21
    assert [each.xid for each in EKS if each.differs] == [each.xid for each in EKS if each.why] == [48, 63, 74, 142]


def test_the_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "catalogue.md").read_text(encoding="utf-8")
    assert with_tables(page) == page, "run `make gen`"


# --- a file that is no catalogue -------------------------------------------------------------------------------------
def changed(index: int, **fields: object) -> str:
    """The file with other fields in one check; None takes a field away."""
    read = yaml.safe_load(TEXT)
    merged = {**read["checks"][index], **fields}
    read["checks"][index] = {key: value for key, value in merged.items() if value is not None}
    return yaml.safe_dump(read)


FIRST_XID = next(number for number, each in enumerate(CHECKS) if each.xid == 46)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"serverity": "CRITICAL"}, "key: 'serverity' is not allowed"),
        ({"severity": "FATAL"}, "severity: 'FATAL' is not allowed; give CRITICAL, WARNING, INFO"),
        ({"domain": "Disk"}, "domain: 'Disk' is not allowed"),
        ({"state": "Broken"}, "state: 'Broken' is not allowed; give Notice, Counted, Degraded, Undecided, Unhealthy"),
        ({"action": "Pray"}, "action: 'Pray' is not allowed"),
        ({"ladder": ["reset_gpu", "kick"]}, "ladder: 'kick' is not allowed"),
        ({"ladder": "reset_gpu"}, "ladder: 'reset_gpu' is not allowed; give a list"),
        ({"drain": "maybe"}, "drain: 'maybe' is not allowed; give true or false"),
        ({"limits": 46}, "limits: 46 is not allowed; give text"),
        ({"xid": 61}, "xid: 61 is not allowed; give a number of NVIDIA's catalogue"),
        ({"xid": "46"}, "xid: '46' is not allowed"),
        ({"ours": "similar"}, "ours: 'similar' is not allowed; give same, different, not ours"),
        ({"ours": "different"}, "why: None is not allowed; give a reason"),
        ({"why": "no need"}, "why: 'no need' is not allowed; give a reason for what is not the same"),
        ({"state": None}, "state: is missing"),
        ({"id": None}, "id: is missing"),
        ({"xid": None}, "ours: 'same' is not allowed; only of an XID it can be shown"),
    ],
)
def test_a_check_that_is_none_is_refused_with_its_field_and_value(fields: dict[str, object], message: str) -> None:
    with pytest.raises(CatalogueError, match=rf"^checks\[{FIRST_XID}\](\.|: ){re.escape(message)}"):
        parse(changed(FIRST_XID, **fields))


@pytest.mark.parametrize(("field", "value"), [("xid", 46), ("id", "gpu_xid_46")])
def test_an_xid_and_an_id_that_are_there_twice_are_refused(field: str, value: object) -> None:
    with pytest.raises(CatalogueError, match=rf"^checks\[{FIRST_XID + 1}\]\.{field}: {value!r} .* twice$"):
        parse(changed(FIRST_XID + 1, **{field: value}))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("eks", "fatal"), [46, 46], "eks.fatal: 46 is not allowed; it is there twice"),
        (("eks", "fatal"), [61], "eks.fatal: 61 is not allowed"),
        (("eks", "why"), {1: "text"}, "eks.why: 1 is not allowed"),
        (("eks", "fatal"), 46, "eks.fatal: 46 is not allowed; give a list"),
        (("eks", "why"), [48], "eks.why: [48] is not allowed; give a mapping"),
        (("eks", "why"), {48: 1}, "eks.why.48: 1 is not allowed; give text"),
        (("eks", "warn"), [], "eks: key: 'warn' is not allowed"),
        (("domains", "CPU"), 1, "domains.CPU: 1 is not allowed; 2 of its checks are listed"),
        (("domains", "CPU"), "2", "domains.CPU: '2' is not allowed"),
        (("domains",), ["CPU"], "domains: ['CPU'] is not allowed; give a mapping"),
        (("checks",), 5, "checks: 5 is not allowed; give a list"),
        (("checks",), ["text"], "checks[0]: 'text' is not allowed; give a mapping"),
        (("extra",), 1, "the file: key: 'extra' is not allowed"),
    ],
)
def test_a_file_that_is_no_catalogue_is_refused(path: tuple[str, ...], value: object, message: str) -> None:
    read = yaml.safe_load(TEXT)
    at = read
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    with pytest.raises(CatalogueError, match=f"^{re.escape(message)}"):
        parse(yaml.safe_dump(read))


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "the file: None is not allowed"), ("[", "not YAML"), ("{}", "the file.domains: is missing")],
)
def test_what_is_no_mapping_is_refused(text: str, message: str) -> None:
    with pytest.raises(CatalogueError, match=message):
        parse(text)
