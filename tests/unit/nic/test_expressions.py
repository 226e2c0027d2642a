"""Expressions of somebody else's file: as Python searches them, and never longer than they are long."""

from __future__ import annotations

import contextlib
import re
import warnings

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from nodedevices_plugin.vendors.nic.expressions import MAX_STATES, Expression, ExpressionError, parse
from support.fuzzing import scaled

ATOMS = ["a", "b", "n0", ".", "^", "$", r"\d", r"\w", r"\S", r"\.", "[ab]", "[^a0-9]", r"[\d.-]", "[]a]", "[a-]", "-"]
TIMES = ["", "", "*", "+", "?", "+?", "{2}", "{0,2}", "{1,}", "{,2}", "{"]
parts = st.builds(lambda atom, times: atom + times, st.sampled_from(ATOMS), st.sampled_from(TIMES))


def grouped(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    several = st.lists(inner, min_size=1, max_size=3)
    wrapped = st.builds(lambda some, times: f"({'|'.join(some)}){times}", several, st.sampled_from(TIMES))
    return wrapped | several.map("".join)


EXPRESSIONS = st.recursive(parts, grouped, max_leaves=6)


@settings(max_examples=scaled(1500), deadline=None)
@given(EXPRESSIONS, st.text("ab n01.-X", max_size=9))
def test_it_finds_what_python_finds(written: str, name: str) -> None:
    assume("{,2}" not in written)  # of which Go makes no repetition
    known, found = compiled(written), None
    with contextlib.suppress(ExpressionError):
        found = parse(written)
    if known is not None and found is not None:
        assert found.search(name) is (known.search(name) is not None)


def compiled(written: str) -> re.Pattern[str] | None:
    with warnings.catch_warnings(), contextlib.suppress(re.error):
        warnings.simplefilter("ignore")
        return re.compile(written, re.ASCII)
    return None


@pytest.mark.parametrize(
    ("written", "names", "others"),
    [
        (r"^ens[0-9]+f[01]$", ["ens1f0", "ens12f1"], ["ens1f2", "xens1f0", "ens1f0np0"]),
        ("eth|enp.*np[0-3]$", ["eth0", "enp59s0f0np0"], ["enp59s0f0np9"]),
        ("p1", ["p1", "p10"], ["p2"]),
        (r"0000:(3b|af):00\.[0-7]", ["0000:3b:00.1"], ["0000:3c:00.1"]),
        ("(?:a|b){2,3}$", ["ab", "bbb", "cab"], ["a", "ac"]),
        ("(a*)*b", ["aab"], ["aaa"]),
        ("", ["anything"], []),
    ],
)
def test_names_of_interfaces(written: str, names: list[str], others: list[str]) -> None:
    expression = parse(written)
    assert [each for each in (*names, *others) if expression.search(each)] == names


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("p(", "a ( without )"),
        ("p)", "unmatched ) at 2"),
        ("[a", "it ends too soon"),
        ("*a", "nothing to repeat at 1"),
        ("a**", "a repetition of a repetition"),
        ("a{3,2}", "the smaller one first"),
        ("((a{60}){60}){60}", "too many repetitions"),
        ("(" * 20 + "a" + ")" * 20, "nested more than 16 deep"),
        (r"(a)\1", r"\1 is not understood"),
        ("(?i)a", "only (?: is understood"),
        ("[[:digit:]]", "write 0-9"),
        ("[b-a]", "b-a is no range"),
        ("\\", "it ends too soon"),
    ],
)
def test_what_is_not_understood_is_refused_in_words(written: str, complaint: str) -> None:
    with pytest.raises(ExpressionError, match=re.escape(complaint)):
        parse(written)


class Steps(str):
    """Counts how often a character of it is looked at."""

    looks = 0

    def __getitem__(self, key: object) -> str:
        Steps.looks += 1
        return super().__getitem__(key)  # type: ignore[index]


@pytest.mark.parametrize(
    "written", ["(" + "|".join("." * 14) + ")+X", "(((((a*)*)*)*)*)*X", "(a|aa)+(a|aa)+(a|aa)+X", "(a?){16}a{16}X"]
)
def test_a_search_takes_each_state_once_for_each_character(written: str) -> None:
    expression: Expression = parse(written)
    assert len(expression.states) <= MAX_STATES
    Steps.looks = 0
    assert not expression.search(Steps("a" * 64))
    assert Steps.looks <= 64 * len(expression.states)
