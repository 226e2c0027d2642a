"""Expressions of somebody else's file: what Go and Python understand alike, and what takes long is refused."""

from __future__ import annotations

import re

import pytest
from nodedevices_plugin.vendors.nic.expressions import ExpressionError, parse


@pytest.mark.parametrize(
    ("written", "names", "others"),
    [
        (r"^ens[0-9]+f[01]$", ["ens1f0", "ens12f1"], ["ens1f2", "xens1f0", "ens1f0np0"]),
        ("eth|enp.*np[0-3]$", ["eth0", "enp59s0f0np0"], ["enp59s0f0np9"]),
        ("p1", ["p1", "p10"], ["p2"]),
        (r"0000:(3b|af):00\.[0-7]", ["0000:3b:00.1"], ["0000:3c:00.1"]),
        ("^(?:a|b)[ab]{1,2}(np[0-9]+)?$", ["ab", "bbb", "abnp12"], ["a", "acnp1", "abnp"]),
        (r"^\w+?\S[]a-][^.\d]$", ["a-]x"], ["a-b1", "xyz."]),
        ("a{", ["a{"], ["aa"]),
        ("", ["anything"], []),
    ],
)
def test_names_of_interfaces(written: str, names: list[str], others: list[str]) -> None:
    expression = parse(written)
    assert [name for name in (*names, *others) if expression.search(name)] == names


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("p(", "missing ), unterminated subpattern at position 1"),
        ("p)", "unbalanced parenthesis at position 1"),
        ("[a", "unterminated character set at position 0"),
        ("*a", "nothing to repeat at position 0"),
        ("a**", "a repetition of a repetition at 3"),
        ("a*+", "a repetition of a repetition at 3"),
        ("a{2}{3}", "a repetition of a repetition at 5"),
        ("a{,2}", "{, at 2: Go repeats nothing by it; write {0,"),
        ("a{3,2}", "min repeat greater than max repeat at position 2"),
        ("((a{60}){60}){60}", "{60} at 9 repeats a group; only ? may follow one"),
        ("(" + "|".join("." * 14) + ")+X", "+ at 30 repeats a group"),
        ("(a*)*b", "* at 5 repeats a group"),
        (".*.*.*.*.*.*.*X", "7 repetitions and alternatives in groups, more than 6; list the names"),
        ("(|||)(|||)(|||)X", "9 repetitions and alternatives in groups, more than 6"),
        ("a?" * 16 + "X", "16 repetitions and alternatives in groups, more than 6"),
        (r"(a)\1", r"\1 is not understood"),
        (r"[\b]", r"\b is not understood"),
        ("(?i)a", "only (?: is understood"),
        ("[[:digit:]]", "write 0-9"),
        ("[b-a]", "bad character range b-a at position 1"),
        ("\\", "bad escape (end of pattern) at position 0"),
    ],
)
def test_what_is_not_understood_or_takes_long_is_refused_in_words(written: str, complaint: str) -> None:
    with pytest.raises(ExpressionError, match=re.escape(complaint)):
        parse(written)
