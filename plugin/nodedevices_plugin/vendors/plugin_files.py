"""JSON files of other device plugins, each read by a model that has a field for each key.

Those plugins ignore unknown and misspelled keys, so that a typo selects other devices than was meant; here a file is
taken as a whole or not at all. All that is wrong is said at once, with its place, by the contract's reader of errors
(nodedevices_api.errors). Hostile input (deep nesting, a million entries, keys that are there twice) is few problems.

A key may be written in any case, as Go's encoding/json takes it, which writes a field without a name for JSON as it is
called in Go (`IsRdma`); null is absent. What a file says is compared and saved (settings), as the model's fields are: a
key that decides nothing is `Unused`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, TypeVar

from nodedevices_api.base import Strict
from nodedevices_api.errors import MAX_PROBLEMS, inner_model, parse
from nodedevices_common.errors import InputError, InputProblem
from nodedevices_common.text import nearest, show
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

MAX_BYTES = 256 << 10
MAX_ENTRIES = 256  # of one list
MAX_TEXT = 128
MAX_DEPTH = 16


class PluginFile(Strict):
    """An object in such a file. `any_case`: its keys may be written in any case. `elsewhere`: keys that belong to
    another place, and which. `null_is_empty`: a list that Go writes as null when it is empty."""

    model_config = ConfigDict(defer_build=True)  # few nodes have such a file, and every agent loads this

    null_is_absent = True
    any_case: ClassVar[bool] = True
    elsewhere: ClassVar[Mapping[str, str]] = {}
    null_is_empty: ClassVar[str] = ""


M = TypeVar("M", bound=PluginFile)


# --- values ----------------------------------------------------------------------------------------------------------
def _text(value: object) -> object:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{show(value)} is not a text" if value != "" else "empty")
    if len(value) > MAX_TEXT or not value.isprintable():
        raise ValueError(f"{show(value)}: at most {MAX_TEXT} printable characters are allowed")
    return value


Text = Annotated[str, BeforeValidator(_text)]
Entries = Field(default=(), max_length=MAX_ENTRIES)
Unused = Annotated[None, BeforeValidator(lambda _: None)]
ignored = AfterValidator(lambda _: None)  # what was checked, and decides nothing


def number(low: int, high: int) -> BeforeValidator:
    def check(value: object) -> object:
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"{show(value)} is not allowed; give a number from {low} to {high}")
        return value

    return BeforeValidator(check)


def matching(expression: str, right: str) -> AfterValidator:
    """A text that matches the whole expression; `right` says what would."""
    pattern = re.compile(expression)

    def check(value: str) -> str:
        if pattern.fullmatch(value) is None:
            raise ValueError(f"{show(value)}: {right}")
        return value

    return AfterValidator(check)


def refuse(wrong: Mapping[tuple[str | int, ...], str]) -> None:
    """Raise, in a validator, with the errors, each by its place below the value that is validated."""
    if wrong:
        raise ValidationError.from_exception_data(
            "",
            [
                InitErrorDetails(
                    type=PydanticCustomError("value_error", "{error}", {"error": text}), loc=at, input=None
                )
                for at, text in wrong.items()
            ],
        )


# --- a file ----------------------------------------------------------------------------------------------------------
def read(raw: bytes, model: type[M], *, max_bytes: int = MAX_BYTES) -> M:
    """Return the content of the file. Raises InputError with all errors."""
    problems: list[InputProblem] = []
    content = load(raw, problems, max_bytes=max_bytes)
    if not isinstance(content, dict):
        raise InputError(f"{show(content)} is not an object with {', '.join(_fields(model))}")
    usual = _usual(content, model, "", problems)
    try:
        found = parse(model, usual)
    except InputError as error:
        first, *others = error.problems
        raise InputError([*problems, InputProblem(first, error.place), *others]) from error
    if problems:
        raise InputError(problems)
    return found


def load(raw: bytes, problems: list[InputProblem], *, max_bytes: int = MAX_BYTES) -> Any:
    """The value of a JSON text. Raises InputError where there is none."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                _add(problems, "", f"the key {show(key)} is given twice in one object; leave one out")
            found[key] = value
        return found

    if len(raw) > max_bytes:
        raise InputError(f"{len(raw)} bytes; {max_bytes} are the most")
    try:
        value = json.loads(raw.decode("utf-8-sig"), object_pairs_hook=once)
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 ({error})") from error
    except json.JSONDecodeError as error:
        raise InputError(f"line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from error
    except (RecursionError, ValueError) as error:
        raise InputError(f"not JSON that can be read ({type(error).__name__})") from error
    if _deeper(value, MAX_DEPTH):
        raise InputError(f"nested more than {MAX_DEPTH} deep")
    return value


def _deeper(value: object, depth: int) -> bool:
    inner: Iterable[object] = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(depth == 0 or _deeper(each, depth - 1) for each in inner)


def _usual(value: Any, model: type[PluginFile] | None, where: str, problems: list[InputProblem]) -> Any:
    """The value with keys as they are usually written, and without those that are null."""
    if model is None:
        return value
    if isinstance(value, list):
        return [_usual(each, model, f"{where}[{at}]", problems) for at, each in enumerate(value[: MAX_ENTRIES + 1])]
    if not isinstance(value, dict):
        return value
    fields, seen, found = _fields(model), set[str](), dict[str, Any]()
    for key, item in value.items():
        usual = _usual_key(key, fields) if model.any_case else key
        place = ".".join(name for name in (where, usual if usual in fields else _shown(key)) if name)
        if usual not in fields:
            _add(problems, place, f"unknown key{_hint(key, model)}")
        elif usual in seen:
            _add(problems, place, "there twice, written in two ways; leave one out")
        elif item is not None:
            found[usual] = _usual(item, fields[usual], place, problems)
        elif usual == model.null_is_empty:
            found[usual] = []
        seen.add(usual)
    return found


def _fields(model: type[PluginFile]) -> Mapping[str, type[PluginFile] | None]:
    """Each key, and the model of the objects that it has."""
    found = {field.alias or name: inner_model(field.annotation) for name, field in model.model_fields.items()}
    return {key: inner if inner is not None and issubclass(inner, PluginFile) else None for key, inner in found.items()}


def _usual_key(key: str, known: Iterable[str]) -> str:
    """Return the usual spelling of a known key."""
    if key in known or not key.isascii():
        return key
    return next((name for name in known if name.lower() == key.lower()), key)


def _hint(key: str, model: type[PluginFile]) -> str:
    place = model.elsewhere.get(_usual_key(key, model.elsewhere))
    return f"; it belongs {place}" if place else nearest(key[:64], _fields(model))


def _shown(key: str) -> str:
    return key if len(key) <= MAX_TEXT and key.isprintable() else show(key)


def _add(problems: list[InputProblem], place: str, text: str) -> None:
    if len(problems) < MAX_PROBLEMS:
        problems.append(InputProblem.at(place, text) if place else InputProblem(text))
