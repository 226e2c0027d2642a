"""For every bound of our CRDs an object at it and one beyond it, made from the schema itself and one full example.

A bound is a keyword of the schema (maximum, maxLength, enum, required, ...) or a pattern, which in a spec is a rule of
the API server's (crdgen.crds). Conditions between fields cannot be made from the schema; they are written down
(celcases).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from support.contract import BY_MEMORY, FULL_NODE, FULL_POLICY

Json = dict[str, Any]


def _with(example: Json, path: Sequence[str], value: Json) -> Json:
    changed = copy.deepcopy(example)
    place = changed
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return changed


Path = tuple[str | int, ...]

BOUNDS = (
    *("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "maxProperties", "minProperties"),
    *("pattern", "enum", "format", "required", "x-kubernetes-list-type"),
)
RULES = "x-kubernetes-validations"
PATTERN_RULE = "rule of a pattern"
# What cannot stand beside the rest of an example is in a second one, which is taken where the first does not do.
EXAMPLES = {
    "DevicePolicy": (FULL_POLICY, _with(FULL_POLICY, ("spec", "sharing"), BY_MEMORY)),
    "NodeDevices": (FULL_NODE, _with(FULL_NODE, ("spec", "config", "sharing"), BY_MEMORY)),
}
# Formats that bound nothing: a number has a minimum and a maximum of its own (a test sees to it).
_WIDTHS = {"int32", "int64"}
_TIME = "2026-11-21T07:00:00Z"
# The longest text that some patterns and conditions allow, where that is less than maxLength.
_AMOUNT = f"{'1' * 19}.{'1' * 9}Ki"
_LONGEST_OF_FIELD = {"maxUnavailable": "100%", "maxNodes": "100%"}
_MATCHES = re.compile(r"^(?:type\(self\) == int \|\| string\(self\)|self)\.matches\(r'(.*)'\)$")


class Missing(Exception):  # noqa: N818 - reads as what happened
    """A bound of which no object can be made: the schema has something new."""


@dataclass(frozen=True)
class Case:
    """One bound: a document at it, one beyond, and what the API server says of that, with the field's name in it."""

    kind: str
    place: str  # spec.sharing.resources[].replicas
    bound: str  # maximum
    accepted: Json
    refused: Json
    says: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.kind}.{self.place} {self.bound}"

    @property
    def of_status(self) -> bool:
        return self.place.startswith("status")


def nodes(schema: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every node of a schema with its place; items are `[]`, the values of a map `.*`."""
    yield place, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{place}.{name}" if place else name)
    if "items" in schema:
        yield from nodes(schema["items"], f"{place}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from nodes(schema["additionalProperties"], f"{place}.*")


def pattern_of(rule: str) -> str | None:
    """The pattern that a rule stands for (crdgen.crds writes it so); None: it is a condition of another kind."""
    found = _MATCHES.match(rule)
    return found[1] if found else None


def bounds(crd: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Every bound of spec and status, as (place, bound): what has to have a case."""
    found = []
    for place, node in nodes(_schema(crd)):
        if place.partition(".")[0] not in {"spec", "status"}:
            continue
        for bound in BOUNDS:
            if bound == "required":
                found += [(place, f"required {each}") for each in node.get(bound, ())]
            elif bound == "x-kubernetes-list-type":
                found += [(place, f"list of {node[bound]}")] if node.get(bound) in {"map", "set"} else []
            elif bound in node and not (bound == "format" and node[bound] in _WIDTHS):
                found.append((place, bound))
        found += [(place, PATTERN_RULE) for rule in node.get(RULES, ()) if pattern_of(rule["rule"])]
    return found


def cases(crd: Mapping[str, Any], allowed: Callable[[Json], bool]) -> list[Case]:
    """A case for each of `bounds`. `allowed`: whether a document breaks no condition between fields; of several places
    of the example where a bound applies the first is taken at which it holds."""
    schema = _schema(crd)
    by_place = dict(nodes(schema))
    found = []
    for place, bound in bounds(crd):
        at, beyond, says = _values(bound, by_place[place], place.rpartition(".")[2])
        kind = crd["spec"]["names"]["kind"]
        for example, path in (each for one in EXAMPLES[kind] for each in _grafted(one, place, schema)):
            accepted = _replaced(example, path, at(_value(example, path)))
            if not allowed(accepted):
                continue
            refused = _replaced(example, path, beyond(_value(example, path)))
            field = _field((*path, bound.split()[1]) if bound.startswith("required") else path)
            if bound == PATTERN_RULE and place.endswith(".*"):  # of a map's value rules say so, and schemas as above
                field = f"{_field(path[:-1])}[{path[-1]}]"
            said = tuple(each.replace("FIELD", field) for each in says)
            found.append(Case(kind, place, bound, accepted, refused, said))
            break
        else:
            raise Missing(f"{kind}.{place}: the example has no document that is allowed at its {bound}")
    return found


def _schema(crd: Mapping[str, Any]) -> Mapping[str, Any]:
    schema: Mapping[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


Change = Callable[[Any], Any]


def _values(bound: str, node: Mapping[str, Any], field: str) -> tuple[Change, Change, tuple[str, ...]]:
    """The value at a bound, the value beyond it, each of what the example has, and what the API server says then."""
    limit: Any = node.get(bound)
    if bound in {"minimum", "maximum"}:
        word, step = ("greater", -1) if bound == "minimum" else ("less", 1)
        return (
            lambda _: limit,
            lambda _: limit + step,
            ("FIELD: Invalid value", f"should be {word} than or equal to {limit}"),
        )
    if bound == "maxLength":
        most = longest(node) if field not in _LONGEST_OF_FIELD else _LONGEST_OF_FIELD[field]
        return lambda _: most, lambda _: "x" * (limit + 1), (f"FIELD: Too long: may not be more than {limit} ",)
    if bound == "minLength":
        short = lambda _: shortest(node)  # noqa: E731
        return short, lambda _: "x" * (limit - 1), ("FIELD: Invalid value", f"should be at least {limit} chars long")
    if bound in {"minItems", "maxItems"}:
        return _items(bound, node)
    if bound == "maxProperties":
        return (
            lambda was: {f"k{n}": next(iter(was.values())) for n in range(limit)},
            lambda was: {f"k{n}": next(iter(was.values())) for n in range(limit + 1)},
            (f"FIELD: Too many: {limit + 1}: must have at most {limit} items",),
        )
    if bound in {"pattern", PATTERN_RULE}:
        pattern = _pattern(node)
        wrong = next(each for each in ("#", "a b", "-", "x#x", "//#") if not re.search(pattern, each))
        wrong += "#" * max(0, node.get("minLength", 0) - len(wrong))
        (rule,) = [each for each in node.get(RULES, ()) if pattern_of(each["rule"])] or [None]
        said = f"should match '{pattern}'" if rule is None else rule["message"]
        return lambda _: longest(node), lambda _: wrong, ("FIELD: Invalid value", f'"{wrong}"', said)
    if bound == "enum":
        return (
            lambda was: was,
            lambda _: "nope",
            ('FIELD: Unsupported value: "nope": supported values: ', node[bound][0]),
        )
    if bound == "format" and node[bound] == "date-time":
        return (
            lambda _: _TIME,
            lambda _: "yesterday",
            ('FIELD: Invalid value: "yesterday"', "must be of type date-time"),
        )
    if bound.startswith("required "):
        key = bound.split()[1]
        return (
            lambda was: was,
            lambda was: {name: value for name, value in was.items() if name != key},
            ("FIELD: Required value",),
        )
    if bound.startswith("list of "):
        return lambda was: was, lambda was: [*was, was[0]], ("FIELD[", "]: Duplicate value")
    raise Missing(f"{bound}: no values are known for it")


def _items(bound: str, node: Mapping[str, Any]) -> tuple[Change, Change, tuple[str, ...]]:
    limit = node[bound]
    if bound == "minItems":
        return lambda was: was[:limit], lambda was: was[: limit - 1], (f"should have at least {limit} items", "FIELD: ")
    says = (f"FIELD: Too many: {limit + 1}: must have at most {limit} items",)
    if (words := node["items"].get("enum")) is not None:  # there may be fewer words than places for them
        return lambda _: words[:limit], lambda _: (words * (limit + 1))[: limit + 1], says
    return lambda was: _many(was[0], limit, node), lambda was: _many(was[0], limit + 1, node), says


def _many(first: Any, count: int, node: Mapping[str, Any]) -> list[Any]:
    """So many different items of a list, after the example's first."""
    items = node["items"]
    if isinstance(first, dict):
        keys = [*node.get("x-kubernetes-list-map-keys", ())]
        return [
            {**first, **{key: _another(first[key], n, items["properties"][key]) for key in keys}} for n in range(count)
        ]
    return [_another(first, n, items) for n in range(count)]


def _another(value: Any, number: int, node: Mapping[str, Any]) -> Any:
    return number if isinstance(value, int) else f"{value[: node.get('maxLength', 64) - 6]}x{number}"


def _pattern(node: Mapping[str, Any]) -> str:
    found = node.get("pattern") or next(
        (each for rule in node.get(RULES, ()) if (each := pattern_of(rule["rule"]))), ".*"
    )
    return str(found)


def longest(node: Mapping[str, Any]) -> str:
    """The longest text that a node allows."""
    pattern = _pattern(node)
    if node.get("format") == "date-time":
        return _TIME
    most = node["maxLength"]
    return _matching(
        pattern,
        (
            "x" * most,
            "1" * most,
            f"x/{'x' * (most - 2)}",
            f"{'x' * (most - 2)}/x",
            f"1.0.0-{'x' * (most - 6)}",
            f"/{'x' * (most - 1)}",
            _AMOUNT,
        ),
    )


def shortest(node: Mapping[str, Any]) -> str:
    least = node["minLength"]
    return _matching(_pattern(node), ("x" * least, "1" * least, "x/x"[:least], "/x"[:least]))


def _matching(pattern: str, candidates: Sequence[str]) -> str:
    for each in candidates:
        if re.search(pattern, each):
            return each
    raise Missing(f"{pattern}: none of {[each[:20] for each in candidates]} matches; add one")


# --- every field ------------------------------------------------------------------------------------------------------
def pruned(document: Any, schema: Mapping[str, Any]) -> Any:
    """What the API server keeps of a document, or of a part of it."""
    if isinstance(document, dict) and "properties" in schema:
        known = schema["properties"]
        return {key: pruned(value, known[key]) for key, value in document.items() if key in known}
    if isinstance(document, dict) and isinstance(schema.get("additionalProperties"), dict):
        return {key: pruned(value, schema["additionalProperties"]) for key, value in document.items()}
    if isinstance(document, list) and "items" in schema:
        return [pruned(each, schema["items"]) for each in document]
    return document


def complete(crd: Mapping[str, Any], allowed: Callable[[Json], bool]) -> list[Json]:
    """Documents that together have every field of spec and status, as few as `allowed` lets be (as in `cases`)."""
    schema = _schema(crd)
    documents = [_kept(example, schema) for example in EXAMPLES[crd["spec"]["names"]["kind"]]]
    wanted = {place for place, _ in nodes(schema) if place.partition(".")[0] in {"spec", "status"}}
    for place in sorted(wanted):
        if any(place in _places(each, schema) for each in documents):
            continue
        for number, document in [*enumerate(documents), (len(documents), documents[0])]:
            found = (made for made, _ in _grafted(document, place, schema) if allowed(made))
            if (made := next(found, None)) is not None:
                documents[number : number + 1] = [made]
                break
        else:
            raise Missing(f"{place}: no document with it is allowed")
    return documents


def _kept(document: Json, schema: Mapping[str, Any]) -> Json:
    return {
        key: pruned(value, schema["properties"][key]) if key in {"spec", "status"} else value
        for key, value in document.items()
    }


def _places(document: Any, schema: Mapping[str, Any], place: str = "") -> Iterator[str]:
    """The places of the schema at which a document has something."""
    yield place
    if isinstance(document, dict) and "properties" in schema:
        for key, value in document.items():
            yield from _places(value, schema["properties"].get(key, {}), f"{place}.{key}" if place else key)
    elif isinstance(document, dict) and "additionalProperties" in schema:
        for value in document.values():
            yield from _places(value, schema["additionalProperties"], f"{place}.*")
    elif isinstance(document, list):
        for each in document:
            yield from _places(each, schema["items"], f"{place}[]")


# --- where in the example ---------------------------------------------------------------------------------------------
def _grafted(example: Json, place: str, schema: Mapping[str, Any]) -> Iterator[tuple[Json, Path]]:
    """The example, and where in it this place of the schema is; what it does not have is put into it."""
    steps = re.findall(r"\[\]|\*|[^.\[\]]+", place)

    def follow(value: Any, node: Mapping[str, Any], rest: list[str], path: Path) -> Iterator[tuple[Path, Any]]:
        """Paths, with what has to stand at the first one that is not there."""
        if not rest:
            yield path, None
            return
        step, *others = rest
        if step == "[]":
            for number, each in enumerate(value):
                yield from follow(each, node["items"], others, (*path, number))
            if not value:
                yield (*path, 0), _sample(node["items"], others)
        elif step == "*":
            for key, each in value.items():
                yield from follow(each, node["additionalProperties"], others, (*path, key))
            if not value:
                yield (*path, "k"), _sample(node["additionalProperties"], others)
        elif step in value:
            yield from follow(value[step], node["properties"][step], others, (*path, step))
        else:
            yield (*path, step), _sample(node["properties"][step], others)

    found = sorted(follow(example, schema, steps, ()), key=lambda each: each[1] is not None)
    for path, sample in found:
        if sample is None:
            yield example, path
        else:
            made = _replaced(example, path, sample)
            whole = next((deep for deep, more in follow(made, schema, steps, ()) if more is None), None)
            if whole is not None:
                yield made, whole


def _sample(node: Mapping[str, Any], rest: Sequence[str] = ()) -> Any:
    """A small value that a node allows, with what `rest` leads to in it."""
    step, others = (rest[0], rest[1:]) if rest else ("", ())
    kind = node.get("type", "string")
    if kind == "object":
        wanted = dict.fromkeys([*node.get("required", ()), *([step] if step in node.get("properties", {}) else ())])
        made = {name: _sample(node["properties"][name], others if name == step else ()) for name in wanted}
        return {"k": _sample(node["additionalProperties"], others)} if step == "*" else made
    if kind == "array":
        return [_sample(node["items"], others)]
    if kind in {"integer", "boolean"}:
        return node["minimum"] if kind == "integer" else False
    if "enum" in node:
        return node["enum"][0]
    return longest(node)


def _value(document: Any, path: Path) -> Any:
    for step in path:
        document = document[step]
    return document


def _replaced(document: Json, path: Path, value: Any) -> Json:
    """Another document; what is beside the path is shared with this one."""
    result = copy.copy(document)
    place: Any = result
    for step in path[:-1]:
        place[step] = copy.copy(place[step])
        place = place[step]
    if isinstance(path[-1], int) and path[-1] == len(place):
        place.append(value)
    else:
        place[path[-1]] = value
    return result


def _field(path: Path) -> str:
    """As the API server names it."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text
