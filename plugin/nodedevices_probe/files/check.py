"""A small checker for values that people write: types, ranges, known keys; the first error names its place.

Rules are data, combined by `Object` and `ListOf`. It exists because a probe stays too small for pydantic. Nothing is
converted: what passes has the type that the rule says. Texts may have fields in them, `{{id}}`, as configuration files
of generic and remote devices have (`Template`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Protocol

from nodedevices_common.errors import InputError


class CheckError(InputError):
    """Raised with what is wrong, for people: place, value, and what would be right."""


class Rule(Protocol):
    def check(self, place: str, value: Any) -> None:
        """Raises CheckError when the value does not follow the rule."""
        ...


@dataclass(frozen=True, slots=True)
class Anything:
    """For what is checked elsewhere, or means nothing."""

    def check(self, place: str, value: Any) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Integer:
    low: int
    high: int

    def check(self, place: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not self.low <= value <= self.high:
            raise wrong(place, value, f"an integer from {self.low} to {self.high}")


@dataclass(frozen=True, slots=True)
class Flag:
    def check(self, place: str, value: Any) -> None:
        if not isinstance(value, bool):
            raise wrong(place, value, "true or false")


@dataclass(frozen=True, slots=True)
class Text:
    """Text that matches `regex`; `right` describes it."""

    regex: str
    right: str
    longest: int = 64

    def check(self, place: str, value: Any) -> None:
        if not isinstance(value, str):
            raise wrong(place, value, f"{self.right}, in quotes")
        if len(value) > self.longest or not re.fullmatch(self.regex, value):
            raise wrong(place, value, f"{self.right}, at most {self.longest} characters")


@dataclass(frozen=True, slots=True)
class OneOf:
    values: tuple[str, ...]

    def check(self, place: str, value: Any) -> None:
        if not isinstance(value, str) or value not in self.values:
            raise wrong(place, value, "one of " + ", ".join(self.values))


@dataclass(frozen=True, slots=True)
class OrNull:
    rule: Rule

    def check(self, place: str, value: Any) -> None:
        if value is not None:
            self.rule.check(place, value)


@dataclass(frozen=True, slots=True)
class ListOf:
    rule: Rule
    most: int

    def check(self, place: str, value: Any) -> None:
        if not isinstance(value, list):
            raise wrong(place, value, "a list")
        if len(value) > self.most:
            raise CheckError(f"{place}: {len(value)} entries are too many; give at most {self.most}")
        for number, each in enumerate(value):
            self.rule.check(f"{place}[{number}]", each)


@dataclass(frozen=True, slots=True)
class Object:
    keys: Mapping[str, Rule]
    required: tuple[str, ...] = ()
    what: str = field(default="a mapping")

    def check(self, place: str, value: Any) -> None:
        if not isinstance(value, dict):
            raise wrong(place, value, self.what)
        for key, each in value.items():
            where = f"{place}.{key}" if place else str(key)
            if key not in self.keys:
                close = get_close_matches(str(key), self.keys, n=1)
                right = f"did you mean {close[0]}?" if close else "known here: " + ", ".join(sorted(self.keys))
                raise CheckError(f"{where}: no such key; {right}")
            self.keys[key].check(where, each)
        for key in self.required:
            if key not in value:
                raise CheckError(f"{place}.{key}: is missing" if place else f"{key}: is missing")


def wrong(place: str, value: Any, right: str) -> CheckError:
    """The error for a value that is not what it should be."""
    return CheckError(f"{place}: {shown(value)} is not allowed; give {right}" if place else f"give {right}")


def shown(value: Any) -> str:
    """Return the value as an error may carry it."""
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    return ascii(value)[:60]


_FIELD = re.compile(r"\{\{([^{}]*)\}\}")


@dataclass(frozen=True, slots=True)
class Template:
    """The rule of such a text: without its fields it matches `regex`, which `right` describes, and it has no field but
    these."""

    fields: Collection[str]
    regex: str
    right: str
    longest: int = 1024

    def check(self, place: str, value: Any) -> None:
        if not isinstance(value, str):
            raise wrong(place, value, f"{self.right}, in quotes")
        for name in map(str.strip, _FIELD.findall(value)):
            if name not in self.fields:
                known = ", ".join(f"{{{{{each}}}}}" for each in self.fields)
                raise CheckError(f"{place}: {{{{{name[:40]}}}}} is not a field; known here: {known}")
        if len(value) > self.longest or not re.fullmatch(self.regex, _FIELD.sub("0", value)):
            raise wrong(place, value, f"{self.right}, at most {self.longest} characters")


def rendered_path(template: str, values: Mapping[str, str]) -> str:
    """The same for a path or a name: a value is part of one name, whatever it is. A USB device says of itself what its
    serial number is, and must not lead a mount to another folder."""
    return rendered(template, {name: _part(value) for name, value in values.items()})


def _part(value: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9._:-]", "_", value)
    return plain if plain.strip(".") else plain.replace(".", "_")


def rendered(template: str, values: Mapping[str, str]) -> str:
    """The text with its fields filled in; a field without a value is empty."""
    return _FIELD.sub(lambda match: values.get(match[1].strip(), ""), template)
