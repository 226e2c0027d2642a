"""Rules that files of devices which exist by configuration have in common: names of resources, and variables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nodedevices_probe.files.check import CheckError, Text, wrong
from nodedevices_probe.files.templates import Template

MAX_VARIABLES = 64
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NOT_KUBERNETES = r"(?!requests\.)(?![^/]*kubernetes\.io(/|$))"  # no kubelet takes such a name
_DOMAIN = rf"{_NOT_KUBERNETES}{_LABEL}(\.{_LABEL})*"
NAME = Text(
    rf"({_DOMAIN}/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?",
    "a resource's name, such as fuse, or under a domain of your own, such as example.com/fuse",
    63,
)
DOMAIN = Text(_DOMAIN, "a domain of your own, such as example.com", 63)
_TEXT = r"[^\x00-\x1f\x7f]*"


@dataclass(frozen=True, slots=True)
class Env:
    """The rule of variables; `fields`: of their templates."""

    fields: tuple[str, ...]

    def check(self, place: str, value: Any) -> None:
        if not isinstance(value, dict):
            raise wrong(place, value, "a mapping of variables to texts")
        if len(value) > MAX_VARIABLES:
            raise CheckError(f"{place}: {len(value)} variables are too many; give at most {MAX_VARIABLES}")
        for name, text in value.items():
            Text("[A-Za-z_][A-Za-z0-9_.-]*", "a variable's name").check(place, name)
            Template(self.fields, _TEXT, "a text").check(f"{place}.{name}", text)
