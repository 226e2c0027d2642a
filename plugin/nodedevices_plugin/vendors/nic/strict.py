"""Reading another device plugin's JSON file strictly: every value that is not right is named, with its place and what
would be right, and all of them at once.

The plugins themselves ignore unknown and misspelled keys, so that a typo selects other devices than was meant; here a
file is taken as a whole or not at all. Hostile input (deep nesting, a million entries, keys that are there twice) is
one problem.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from nodedevices_common.errors import InputError, Problem
from nodedevices_common.text import nearest, show

from nodedevices_plugin.model import PlanError, resource_names
from nodedevices_plugin.vendors.go_json import GoKeys, go_keys, usual_key

MAX_BYTES = 256 << 10
MAX_RESOURCES = 64  # of one file
MAX_ENTRIES = 256  # of one list
MAX_TEXT = 128
RESOURCE_NAME = re.compile(r"[a-zA-Z0-9_-]+")  # ASCII letters; Mellanox' plugin has no "-"
PCI_ID = re.compile(r"[0-9a-fA-F]{4}")
PCI_ADDRESS = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
LINK_TYPES = ("ether", "infiniband")


class Named(Protocol):
    """An entry of such a file. `name` is empty where it is wrong."""

    @property
    def name(self) -> str: ...

    def full_name(self) -> str: ...


R = TypeVar("R", bound=Named)


class Strict:
    """The values of one file. `problems`: what was not right so far; what a method returns then is empty. `any_case`:
    keys may be written in any case, as Go's encoding/json takes them."""

    def __init__(self, *, any_case: bool = False) -> None:
        self.problems: list[Problem] = []
        self._any_case = any_case

    def wrong(self, where: str, text: str) -> None:
        self.problems.append(Problem.at(where, text) if where else Problem(text))

    def document(self, raw: bytes, known: Sequence[str], *, null_is_empty: Sequence[str] = ()) -> Mapping[str, Any]:
        """The whole file. `null_is_empty`: lists that Go writes as null when they are empty. Raises InputError where it
        is no JSON object."""
        if len(raw) > MAX_BYTES:
            raise InputError(f"{len(raw)} bytes; {MAX_BYTES} are the most")
        try:
            text = raw.decode("utf-8-sig")
            value = json.loads(text, object_pairs_hook=self._object)
        except UnicodeDecodeError as error:
            raise InputError(f"not UTF-8 ({error})") from error
        except json.JSONDecodeError as error:
            raise InputError(f"line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from error
        except (RecursionError, ValueError) as error:
            raise InputError(f"not JSON that can be read ({type(error).__name__})") from error
        if not isinstance(value, dict):
            raise InputError(f"{show(value)} is not an object with {', '.join(known)}")
        given = {key: [] if item is None and usual_key(key, null_is_empty) else item for key, item in value.items()}
        return self.mapping(given, "", known)

    def finish(self) -> None:
        """Raises InputError with all problems."""
        if self.problems:
            raise InputError(self.problems)

    def mapping(
        self, value: object, where: str, known: Sequence[str], elsewhere: Mapping[str, str] | None = None
    ) -> Mapping[str, Any]:
        """Of an object those keys that are known and not null. `elsewhere`: keys that belong to another place, and
        which."""
        if not isinstance(value, dict):
            self.wrong(where, f"{show(value)} is not an object")
            return {}
        keys = go_keys(value, known) if self._any_case else _exact_keys(value, known)
        for key in keys.unknown:
            place = usual_key(key, elsewhere or ()) or ""
            hint = f"; it belongs {elsewhere[place]}" if elsewhere and place else nearest(key[:64], known)
            self.wrong(_join(where, key), f"unknown key{hint}")
        for key in keys.repeated:
            self.wrong(_join(where, key), "there twice, written in two ways; leave one out")
        return {key: item for key, item in keys.found.items() if item is not None}

    def entries(self, fields: Mapping[str, Any], key: str, where: str, limit: int = MAX_ENTRIES) -> list[Any]:
        value = fields.get(key, [])
        place = _join(where, key)
        if not isinstance(value, list):
            self.wrong(place, f"{show(value)} is not a list")
            return []
        if len(value) > limit:
            self.wrong(place, f"{len(value)} entries; {limit} are the most")
            return []
        return value

    def resources(
        self,
        fields: Mapping[str, Any],
        key: str,
        limit: int,
        read: Callable[[Strict, object, str], R],
        *,
        may_be_none: bool = False,
    ) -> tuple[R, ...]:
        """The entries of a file, each with a name of its own; at least one, unless `may_be_none`. `read`: one entry, at
        its place."""
        entries = self.entries(fields, key, "", limit)
        if not entries and not self.problems and not may_be_none:
            self.wrong(key, "missing or empty; list at least one resource")
        found = [read(self, entry, f"{key}[{number}]") for number, entry in enumerate(entries)]
        seen: dict[str, int] = {}
        for number, each in enumerate(found):
            first = seen.setdefault(each.full_name(), number)
            if each.name and first != number:
                text = f"{key}[{first}] has the name {each.full_name()}, too; choose another"
                self.wrong(f"{key}[{number}].resourceName", text)
        return tuple(found)

    def texts(
        self,
        fields: Mapping[str, Any],
        key: str,
        where: str,
        *,
        like: re.Pattern[str] | None = None,
        right: str = "",
        choices: Sequence[str] = (),
    ) -> tuple[str, ...]:
        """A list of texts. `like`, `choices`: what each has to be, and `right` says so."""
        found = []
        for number, each in enumerate(self.entries(fields, key, where)):
            place = f"{_join(where, key)}[{number}]"
            if self._is_text(each, place):
                if choices and each not in choices:
                    self.wrong(place, f"{show(each)} is not allowed; give {' or '.join(choices)}")
                elif like is not None and like.fullmatch(each) is None:
                    self.wrong(place, f"{show(each)}: {right}")
                found.append(each)
        return tuple(found)

    def text(self, fields: Mapping[str, Any], key: str, where: str, *, choices: Sequence[str] = ()) -> str:
        """Empty: not there."""
        if key not in fields or not self._is_text(fields[key], _join(where, key)):
            return ""
        value = str(fields[key])
        if choices and value not in choices:
            self.wrong(_join(where, key), f"{show(value)} is not allowed; give {' or '.join(choices)}")
        return value

    def number(self, fields: Mapping[str, Any], key: str, where: str, *, low: int, high: int) -> int | None:
        if key not in fields:
            return None
        value = fields[key]
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            self.wrong(_join(where, key), f"{show(value)} is not allowed; give a number from {low} to {high}")
            return None
        return value

    def truth(self, fields: Mapping[str, Any], key: str, where: str) -> bool:
        value = fields.get(key, False)
        if not isinstance(value, bool):
            self.wrong(_join(where, key), f"{show(value)} is not allowed; give true or false")
            return False
        return value

    def resource(self, fields: Mapping[str, Any], where: str, default_prefix: str) -> tuple[str, str]:
        """`resourcePrefix`, empty where there is none, and `resourceName`."""
        name, prefix = self.text(fields, "resourceName", where), self.text(fields, "resourcePrefix", where)
        place = _join(where, "resourceName")
        if "resourceName" not in fields:
            self.wrong(place, "missing; every resource has a name")
        elif name and RESOURCE_NAME.fullmatch(name) is None:
            self.wrong(place, f"{show(name)}: only letters, digits, _ and - are allowed")
        elif name:
            try:
                resource_names.check(place, f"{prefix or default_prefix}/{name}")
            except PlanError as error:
                self.wrong(place, f"{show(error.value)}: {error.hint}")
        return prefix, name

    def pci_ids(self, fields: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
        """`15b3`, in small letters."""
        right = "give four hexadecimal digits, such as 15b3"
        return tuple(each.lower() for each in self.texts(fields, key, where, like=PCI_ID, right=right))

    def _is_text(self, value: object, place: str) -> bool:
        if not isinstance(value, str) or not value:
            self.wrong(place, f"{show(value)} is not a text" if value != "" else "empty")
            return False
        if len(value) > MAX_TEXT or not value.isprintable():
            self.wrong(place, f"{show(value)}: at most {MAX_TEXT} printable characters are allowed")
            return False
        return True

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                self.wrong("", f"the key {show(key)} is there twice in one object; leave one out")
            found[key] = value
        return found


def _exact_keys(value: Mapping[str, object], known: Sequence[str]) -> GoKeys:
    return GoKeys(
        found={key: item for key, item in value.items() if key in known},
        unknown=tuple(key for key in value if key not in known),
        repeated=(),
    )


def _join(where: str, key: str) -> str:
    shown = key if len(key) <= MAX_TEXT and key.isprintable() else show(key)
    return f"{where}.{shown}" if where else shown
