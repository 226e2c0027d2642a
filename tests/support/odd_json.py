"""JSON that nobody should have written, and objects that have some of it at any place; for hypothesis."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | st.just("9" * 5000),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def with_odd_value(thing: Any) -> st.SearchStrategy[Any]:
    """`thing` with another value at any one place."""
    paths = [each for each in places(thing) if each]
    return st.builds(with_value, st.just(thing), st.sampled_from(paths), JSON)


def places(thing: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    for key, inner in thing.items() if isinstance(thing, dict) else enumerate(thing) if isinstance(thing, list) else ():
        yield from places(inner, (*path, key))


def with_value(thing: Any, path: tuple[Any, ...], value: Any) -> Any:
    made = copy.deepcopy(thing)
    inner = made
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return made
