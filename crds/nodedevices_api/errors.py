"""Bad input, reported so that it can be corrected: the place, the value, what would be right.

    sharing.resources[0].replicas: 1 is not allowed; give 2 or more
    sharing.strategey: unknown key; did you mean strategy?

`parse` is how every piece of foreign input becomes a model; it accepts wire names only. Both functions are pure. At
most 20 problems are reported, so that a hostile document cannot fill a log or a condition.

A key without a value (YAML's null) is an error of a file: `after:` whose lines below went elsewhere is no rule without
it. The API server takes such a key out of what is created or merged before it checks anything, and refuses it in a
server-side apply.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, get_args

from nodedevices_common.errors import InputError
from nodedevices_common.text import clip
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from nodedevices_api.base import Strict
from nodedevices_api.fields import PATTERN_HINTS

MAX_PROBLEMS = 20
VALUE_LIMIT = 80

M = TypeVar("M", bound=BaseModel)


def parse(model: type[M], data: object, where: str = "", *, strategies: Sequence[str] | None = None) -> M:
    """The model that these plain values (from YAML or JSON) describe; `where` names the place in messages.
    `strategies`: what sharing.strategy may be, where that is not what the API server takes.

    InputError with every problem otherwise.
    """
    try:
        context = None if strategies is None else {"strategies": strategies}
        made = model.model_validate(data, by_alias=True, by_name=False, context=context)
    except ValidationError as error:
        raise InputError(explain(error, model, where), place_at(where, error.errors()[0]["loc"])) from error
    if nulls := [place_at(where, loc) for loc in _nulls(made)]:
        lines = [f"{place}: null is not allowed; give it a value, or leave it out" for place in nulls[:MAX_PROBLEMS]]
        raise InputError(lines, nulls[0])
    return made


def _nulls(value: object, *loc: int | str) -> Iterator[tuple[int | str, ...]]:
    """Yield the places of fields that were given, and without a value."""
    if isinstance(value, BaseModel):
        refused = isinstance(value, Strict) and not value.null_is_absent
        for name, field in type(value).model_fields.items():
            if name in value.model_fields_set:
                inner, at = getattr(value, name), field.alias or name
                if inner is None and refused:
                    yield *loc, at
                yield from _nulls(inner, *loc, at)
    elif isinstance(value, tuple):
        for index, inner in enumerate(value):
            yield from _nulls(inner, *loc, index)


def explain(error: ValidationError, model: type[BaseModel] | None = None, where: str = "") -> list[str]:
    """One line a problem: "place: value, what would be right". `model` (what was validated) helps to name near keys."""
    details = error.errors()
    lines = [_line(detail, model, where) for detail in details[:MAX_PROBLEMS]]
    if len(details) > MAX_PROBLEMS:
        lines.append(f"and {len(details) - MAX_PROBLEMS} more problems")
    return lines


def _line(detail: ErrorDetails, model: type[BaseModel] | None, where: str) -> str:
    place = place_at(where, detail["loc"])
    kind = detail["type"]
    if kind == "extra_forbidden":
        text = _unknown_key(str(detail["loc"][-1]), _model_at(model, detail["loc"][:-1]))
    elif kind == "missing":
        text = "missing; it must be given"
    elif kind in {"value_error", "assertion_error"}:
        text = str(detail.get("ctx", {}).get("error", detail["msg"]))
    elif kind in ADVICE:
        text = f"{_value(detail['input'])} is not allowed; {ADVICE[kind](detail.get('ctx', {}))}"
    else:
        text = f"{_value(detail['input'])}: {detail['msg']}"
    return f"{place}: {text}" if place else text


# By pydantic's kind of an error: what would be right, from its context.
ADVICE: dict[str, Callable[[dict[str, Any]], str]] = {
    "greater_than_equal": lambda context: f"give {context['ge']} or more",
    "less_than_equal": lambda context: f"give {context['le']} or less",
    "literal_error": lambda context: f"choose {context['expected']}".replace("'", ""),
    "string_pattern_mismatch": lambda context: PATTERN_HINTS.get(
        context["pattern"], f"it must match {context['pattern']}"
    ),
    "string_too_long": lambda context: f"give at most {context['max_length']} characters",
    "string_too_short": lambda context: f"give at least {context['min_length']} characters",
    "too_long": lambda context: f"give at most {context['max_length']} entries",
    "too_short": lambda context: f"give at least {context['min_length']} entries",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), lambda _: "give a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), lambda _: "give a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), lambda _: "give true or false"),
    "string_type": lambda _: "give text, in quotes",
    **dict.fromkeys(("tuple_type", "list_type"), lambda _: "give a list"),
    **dict.fromkeys(
        ("dict_type", "model_type", "model_attributes_type", "dataclass_type"), lambda _: "give keys and values"
    ),
}


def place_at(where: str, loc: tuple[int | str, ...]) -> str:
    """Return pydantic's place of a value as a path, such as `devices[3].minor`."""
    place = where
    for part in loc:
        if isinstance(part, int):
            place += f"[{part}]"
        elif part != "[key]":  # pydantic's mark for "the key itself, not its value"
            place += f".{part}" if place else part
    return clip(place, 2 * VALUE_LIMIT)


def _value(value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    return clip(text, VALUE_LIMIT)


def _unknown_key(key: str, model: type[BaseModel] | None) -> str:
    if model is None:
        return "unknown key"
    if issubclass(model, Strict) and key in model.gone:
        return f"unknown key; {model.gone[key]}"
    known = sorted(field.alias or name for name, field in model.model_fields.items())
    near = difflib.get_close_matches(key, known, n=1) or [name for name in known if name.lower() == key.lower()]
    return f"unknown key; did you mean {near[0]}?" if near else f"unknown key; known are {', '.join(known)}"


def _model_at(model: type[BaseModel] | None, loc: tuple[int | str, ...]) -> type[BaseModel] | None:
    for part in loc:
        if model is None or isinstance(part, int):
            continue
        annotation = next((f.annotation for name, f in model.model_fields.items() if part in {f.alias, name}), None)
        model = inner_model(annotation)
    return model


def inner_model(annotation: Any) -> type[BaseModel] | None:
    """Return the model inside `M | None`, `tuple[M, ...]` and the like."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := inner_model(part)) is not None), None)
