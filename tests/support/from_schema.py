"""Objects that the schema of our CRDs takes, for hypothesis: what an API server could deliver, from any client of it.

Conditions between fields (CEL) are not looked at, so some of these an API server refuses; nothing that reads them may
rely on it, since an API server of yesterday had other conditions. Texts of a pattern are drawn from it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st
from support.contract import BY_MEMORY, FULL_NODE, FULL_POLICY
from support.odd_json import JSON, places
from support.schemacases import RULES, pattern_of

CRDS = Path(__file__).parents[2] / "crds"
MOST_KEYS = 4  # beside the required ones, of each object
MOST_ENTRIES = 3
TIMES = ["2026-11-21T07:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999999Z", "2026-11-21T07:00:00+23:59"]
AMOUNTS = ["80Gi", "0", "1Ki", "1n", "9" * 19, "0.5Gi", "1e3", "-1"]


@cache
def schema(kind: str) -> dict[str, Any]:
    """Of `nodedevices` or `devicepolicies`."""
    found: dict[str, Any] = yaml.safe_load((CRDS / f"{kind}.yaml").read_text())["spec"]["versions"][0]["schema"][
        "openAPIV3Schema"
    ]
    return found


_made: dict[int, st.SearchStrategy[Any]] = {}


def taken_by(node: dict[str, Any]) -> st.SearchStrategy[Any]:
    """What this part of a schema takes."""
    if id(node) not in _made:
        _made[id(node)] = _taken_by(node)
    return _made[id(node)]


def _taken_by(node: dict[str, Any]) -> st.SearchStrategy[Any]:
    if "enum" in node:
        return st.sampled_from(node["enum"])
    if node.get("x-kubernetes-int-or-string"):
        return _integers(node) | st.sampled_from([*AMOUNTS, "100%", ""])
    match node.get("type"):
        case "object":
            return _objects(node)
        case "array":
            return st.lists(
                st.deferred(lambda: taken_by(node["items"])),
                min_size=node.get("minItems", 0),
                max_size=min(node.get("maxItems", MOST_ENTRIES), max(MOST_ENTRIES, node.get("minItems", 0))),
            )
        case "integer":
            return _integers(node)
        case "number":
            return st.floats(node.get("minimum"), node.get("maximum"), allow_nan=False, allow_infinity=False)
        case "boolean":
            return st.booleans()
        case "string":
            return _texts(node)
        case _:
            return JSON  # preserved, whatever it is


@cache
def _of_examples() -> dict[str, list[Any]]:
    """Plain values by their key, as the contract's examples have them: drawn texts seldom name what is there."""
    found: dict[str, list[Any]] = {}
    for example in (FULL_NODE, FULL_POLICY, {"sharing": BY_MEMORY}):
        for path in filter(None, places(example)):
            value: Any = example
            for key in path:
                value = value[key]
            if isinstance(path[-1], str):
                found.setdefault(path[-1], []).append(value)
    return found


def _known(key: str, node: dict[str, Any]) -> st.SearchStrategy[Any]:
    kind = {"string": str, "integer": int}.get(str(node.get("type")))
    fit = [each for each in _of_examples().get(key, []) if kind is not None and type(each) is kind]
    if "enum" in node:
        fit = [each for each in fit if each in node["enum"]]
    return st.sampled_from(fit) if fit else st.nothing()


def _integers(node: dict[str, Any]) -> st.SearchStrategy[int]:
    low, high = node.get("minimum", -(1 << 63)), node.get("maximum", (1 << 63) - 1)
    return st.sampled_from([low, high]) | st.integers(low, high)


def _texts(node: dict[str, Any]) -> st.SearchStrategy[str]:
    least, most = node.get("minLength", 0), node.get("maxLength", 300)
    if node.get("format") == "date-time":
        return st.sampled_from(TIMES)
    pattern = node.get("pattern") or next(
        filter(None, (pattern_of(each["rule"]) for each in node.get(RULES, ()))), None
    )
    if pattern is not None:
        return st.from_regex(pattern, fullmatch=True).filter(lambda text: least <= len(text) <= most)
    return st.sampled_from(["GPU-0", "*", "a" * most, "é" * most]).map(lambda text: text[:most]) | st.text(
        st.characters(exclude_categories=["Cs"]), min_size=least, max_size=min(most, 20)
    )


def _objects(node: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    properties, required = node.get("properties", {}), node.get("required", [])
    if not properties:
        values = node.get("additionalProperties")
        inner = taken_by(values) if isinstance(values, dict) else JSON
        return st.dictionaries(st.sampled_from(["a", "memory", "example.com/x", "nvidia.com/gpu"]), inner, max_size=2)
    others = sorted(properties.keys() - set(required))
    fields: dict[str, st.SearchStrategy[Any]] = {}

    def field(key: str) -> st.SearchStrategy[Any]:
        if key not in fields:
            fields[key] = _known(key, properties[key]) | taken_by(properties[key])
        return fields[key]

    @st.composite
    def drawn(draw: st.DrawFn) -> dict[str, Any]:
        chosen = draw(st.lists(st.sampled_from(others), max_size=MOST_KEYS, unique=True)) if others else []
        return {key: draw(field(key)) for key in (*required, *chosen)}

    return drawn()
