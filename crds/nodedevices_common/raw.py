"""Raw JSON objects that anybody may have written: their parts, and frozen records of them. Nothing raises: what is
absent, or has another type than is expected, reads as absent, or as the field's default, and a bad item of a list
leaves the others.

A record is a dataclass. Its annotations say what is read:

    str, int, bool            without a default "", 0, False; an empty text reads as absent
    Interned                  a str that many objects have
    Present                   a bool: whether the key is there
    tuple[X, ...]             of str, int or records
    Mapping[Interned, str]    texts by name
    a record, T | None

and the key is the field's name in camelCase, or where `Annotated[T, At("status", "nodeUID")]` says. `reader` looks at
them once, for its class and those within it, so that an object costs little more than its records do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from sys import intern
from types import UnionType
from typing import Annotated, Any, Final, TypeVar, cast, get_args, get_origin, get_type_hints

Raw = Mapping[str, Any]


def mapping(value: object) -> Raw:
    """Return the value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def mappings(value: object) -> list[Raw]:
    """Return the objects of a list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def text(value: object) -> str:
    """Return the value if it is a text, else an empty one."""
    return value if isinstance(value, str) else ""


def number(value: object) -> int | None:
    """Return the value if it is a whole number."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


# --- records ---------------------------------------------------------------------------------------------------------
R = TypeVar("R")
Convert = Callable[[Any], Any]


class At:
    """Place of a field in the object: keys, from outside to inside."""

    def __init__(self, *path: str) -> None:
        self.path = path


_INTERNED: Final = object()
_PRESENT: Final = object()
Interned = Annotated[str, _INTERNED]
Present = Annotated[bool, _PRESENT]


def reader(record: type[R], *, given: str = "") -> Callable[..., R]:
    """A function that reads such a record of a raw object. Fields of these names, with spaces between them, are not
    read: it takes them by keyword."""
    hints, left_out = get_type_hints(record, include_extras=True), given.split()
    named = {it.name: _field(it, hints[it.name]) for it in fields(cast(Any, record)) if it.name not in left_out}
    plan = tuple((name, key, convert) for name, (key, convert) in named.items())

    def read(raw: Raw) -> R:
        get = raw.get
        return record(*[convert(get(key)) for _, key, convert in plan])

    def read_others(raw: Raw, **values: Any) -> R:
        return record(**values, **{name: convert(raw.get(key)) for name, key, convert in plan})

    return read_others if left_out else read


def _field(it: Field[Any], hint: Any) -> tuple[str, Convert]:
    """The outermost key of a field, and what becomes of the value there."""
    first, *rest = it.name.split("_")
    kind, marks = _unwrapped(hint)
    named = ("".join((first, *map(str.capitalize, rest))),)
    key, *inner = next((mark.path for mark in marks if isinstance(mark, At)), named)
    made = it.default if it.default_factory is MISSING else it.default_factory()
    convert = _convert(kind, marks, None if made is MISSING else made)
    for inside in reversed(inner):
        convert = _inside(inside, convert)
    return key, convert


def _unwrapped(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type without what is annotated, and None as another kind of it; and its annotations."""
    if get_origin(hint) is Annotated:
        inner, *marks = get_args(hint)
        kind, more = _unwrapped(inner)
        return kind, (*marks, *more)
    if get_origin(hint) is UnionType or type(None) in get_args(hint):
        [inner] = [argument for argument in get_args(hint) if argument is not type(None)]
        kind, more = _unwrapped(inner)
        return kind, (*more, type(None))
    return hint, ()


def _convert(kind: Any, marks: tuple[Any, ...], default: Any) -> Convert:
    optional = type(None) in marks
    if is_dataclass(kind):
        read = reader(cast(type[Any], kind))
        absent = read({}) if default is None and not optional else default
        return lambda value: read(value) if isinstance(value, dict) and value else absent
    if get_origin(kind) is tuple:
        return _items(get_args(kind)[0], () if default is None else default)
    if get_origin(kind) is Mapping:
        return _texts_by_name
    if _PRESENT in marks:
        return lambda value: value is not None
    if default is None and not optional:
        default = kind()
    if _INTERNED in marks:
        return lambda value: intern(value) if type(value) is str and value else default
    if kind is str:
        return lambda value: value if type(value) is str and value else default
    if kind not in (int, bool):
        raise TypeError(f"a record has no fields of type {kind}")
    return lambda value: value if type(value) is kind else default


def _items(hint: Any, default: Any) -> Convert:
    kind, _ = _unwrapped(hint)
    if is_dataclass(kind):
        read = reader(cast(type[Any], kind))
        return lambda value: tuple([read(raw) for raw in mappings(value)]) if type(value) is list else default
    return lambda value: tuple([each for each in value if type(each) is kind]) if type(value) is list else default


def _texts_by_name(value: Any) -> dict[str, str]:
    """Return a map of texts, keys and values interned."""
    if not isinstance(value, dict):
        return {}
    return {intern(key): intern(text) for key, text in value.items() if type(text) is str}


def _inside(key: str, convert: Convert) -> Convert:
    return lambda value: convert(mapping(value).get(key))
