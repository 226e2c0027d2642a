"""Texts for people are short, and say what they leave out."""

from __future__ import annotations

from nodedevices_common.text import some
from support.cases import cases


@cases(("names", "text"), ([], ""), (["a"], "a"), (["a", "b"], "a, b"), (["a", "b", "c"], "a, b and 1 more"))
def test_the_first_names_are_said_and_how_many_more_there_are(names: list[str], text: str) -> None:
    assert some(names, 2) == text
    assert some(iter(names), 2) == text
