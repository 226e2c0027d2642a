"""Records by what their annotations say: what is absent or odd is the field's default, and nothing is raised."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from hypothesis import given
from nodedevices_common.raw import At, Interned, Present, reader
from support.cases import cases
from support.odd_json import JSON, with_odd_value


@dataclass(frozen=True)
class Part:
    name: str
    kind: Interned = "whole"


@dataclass(frozen=True)
class Thing:
    name: Annotated[Interned, At("metadata", "name")]
    node_name: str
    count: int
    sold: bool
    marked: Present = False
    most: int | None = None
    first: Part = Part("")
    last: Part | None = None
    parts: tuple[Part, ...] = ()
    names: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    labels: Annotated[Mapping[str, str], At("metadata", "labels")] = field(default_factory=dict)


EMPTY = Thing("", "", 0, sold=False)
WHOLE: dict[str, Any] = {
    "metadata": {"name": "a", "labels": {"x": "y"}},
    "nodeName": "n1",
    "count": 3,
    "sold": True,
    "marked": {"by": "b"},
    "most": 7,
    "first": {"name": "f"},
    "last": {"name": "l", "kind": "half"},
    "parts": [{"name": "p"}, {"name": "q", "kind": "half"}],
    "names": ["a", "b"],
    "numbers": [1, 2],
}
read = reader(Thing)


def test_fields_are_read_where_their_names_and_annotations_say() -> None:
    assert read(WHOLE) == Thing(
        name="a",
        node_name="n1",
        count=3,
        sold=True,
        marked=True,
        most=7,
        first=Part("f"),
        last=Part("l", "half"),
        parts=(Part("p"), Part("q", "half")),
        names=("a", "b"),
        numbers=(1, 2),
        labels={"x": "y"},
    )


def test_what_is_absent_is_the_default_and_what_is_given_is_not_read() -> None:
    assert read({}) == EMPTY
    assert read({"sold": 1, "count": True, "most": False, "numbers": [True, 2]}) == Thing(
        "", "", 0, sold=False, numbers=(2,)
    )
    assert reader(Part, given="kind")({"name": "p", "kind": "half"}, kind="third") == Part("p", "third")


@cases("odd", None, 1.5, [], {}, "", [[]], {"a": 1}, ["x", None])
def test_what_has_another_type_is_the_default(odd: Any) -> None:
    wrong = {key: odd for key in WHOLE if key not in ("marked", "parts", "names", "first", "last")}
    assert read(wrong) == EMPTY


def test_a_bad_item_or_label_leaves_the_others_and_equal_texts_are_one() -> None:
    found = read({"parts": [7, {"name": "p"}, None, {"name": []}], "names": ["a", 1, "b"], "numbers": ["1", 2]})
    assert (found.parts, found.names, found.numbers) == ((Part("p"), Part("")), ("a", "b"), (2,))
    assert read({"metadata": {"labels": {"x": 1, "y": "z"}}}).labels == {"y": "z"}
    one, other = (read(json.loads('{"metadata": {"name": "of many"}}')) for _ in range(2))
    assert one.name is other.name


def test_a_type_that_json_has_not_is_a_mistake_of_the_record() -> None:
    @dataclass
    class Wrong:
        place: complex

    with pytest.raises(TypeError, match="no fields of type"):
        reader(Wrong)


@given(JSON | with_odd_value(WHOLE))
def test_whatever_comes_nothing_is_raised(odd: Any) -> None:
    if isinstance(odd, dict):
        read(odd)
