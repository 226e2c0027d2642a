"""Texts with fields in them, `{{id}}`, as configuration files of generic and remote devices have them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from nodedevices_probe.files.check import CheckError, wrong

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
        for field in _FIELD.findall(value):
            if field.strip() not in self.fields:
                known = ", ".join(f"{{{{{name}}}}}" for name in self.fields)
                raise CheckError(f"{place}: {{{{{field.strip()[:40]}}}}} is not a field; known here: {known}")
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
