"""Files that people write for a probe, and may edit while it runs: YAML (and so JSON) of bounded length, to plain
values; and a small checker for these: types, ranges, known keys; the first error names its place.

A rule is a function, and `keyed`, `list_of` and others make one of several. They exist because a probe stays too small
for pydantic. Nothing is converted: what passes has the type that the rule says. Texts may have fields in them,
`{{id}}`, as files of generic and remote devices have (`written`).

A watched file's metadata is compared at every `refresh`, and the file is read when two in a row saw the same change, so
that one half written by an editor is not taken for the truth; the first time it is read at once. A mounted ConfigMap is
replaced whole. Content that cannot be read or understood, and a file that is gone, change no value: the last good
content stays.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Collection, Mapping, Sequence, Sized
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from nodedevices_common import safe_yaml
from nodedevices_common.errors import InputError

from nodedevices_probe.protocol import Problem, problem


# --- rules ------------------------------------------------------------------------------------------------------------
class CheckError(InputError):
    """Raised with what is wrong, for people: place, value, and what would be right."""


Rule = Callable[[str, Any], None]  # of a place and its value; raises CheckError when the value does not follow it


def fits(test: Callable[[Any], object], right: str) -> Rule:
    """What the test accepts; `right` describes it."""

    def check(place: str, value: Any) -> None:
        if not test(value):
            raise wrong(place, value, right)

    return check


ANYTHING = fits(lambda _: True, "anything")  # what is checked elsewhere, or means nothing
FLAG = fits(lambda value: isinstance(value, bool), "true or false")


def integer(low: int, high: int) -> Rule:
    return fits(lambda value: type(value) is int and low <= value <= high, f"an integer from {low} to {high}")


def one_of(*values: str) -> Rule:
    return fits(lambda value: isinstance(value, str) and value in values, "one of " + ", ".join(values))


_FIELD = re.compile(r"\{\{([^{}]*)\}\}")


def written(regex: str, right: str, longest: int = 64, fields: Collection[str] = ()) -> Rule:
    """Text that matches `regex`; `right` describes it. `fields`: of a template, which without them matches."""

    def check(place: str, value: Any) -> None:
        if not isinstance(value, str):
            raise wrong(place, value, f"{right}, in quotes")
        for name in map(str.strip, _FIELD.findall(value) if fields else ()):
            if name not in fields:
                known = ", ".join(f"{{{{{field}}}}}" for field in fields)
                raise CheckError(f"{place}: {{{{{name[:40]}}}}} is not a field; known here: {known}")
        plain = _FIELD.sub("0", value) if fields else value
        if len(value) > longest or not re.fullmatch(regex, plain):
            raise wrong(place, value, f"{right}, at most {longest} characters")

    return check


def or_null(rule: Rule) -> Rule:
    def check(place: str, value: Any) -> None:
        if value is not None:
            rule(place, value)

    return check


def list_of(rule: Rule, most: int) -> Rule:
    def check(place: str, value: Any) -> None:
        if not isinstance(value, list):
            raise wrong(place, value, "a list")
        _check_length(place, value, most)
        for number, item in enumerate(value):
            rule(f"{place}[{number}]", item)

    return check


def map_of(name_rule: Rule, rule: Rule, most: int, what: str) -> Rule:
    """Names of the user's own, each with a value."""

    def check(place: str, value: Any) -> None:
        if not isinstance(value, dict):
            raise wrong(place, value, what)
        _check_length(place, value, most)
        for name, each in value.items():
            name_rule(f"{place}: a name", name)
            rule(f"{place}.{name}", each)

    return check


def keyed(keys: Mapping[str, Rule], required: tuple[str, ...] = (), what: str = "a mapping") -> Rule:
    """A mapping with these keys and no others."""

    def check(place: str, value: Any) -> None:
        if not isinstance(value, dict):
            raise wrong(place, value, what)
        for key, each in value.items():
            where = f"{place}.{key}" if place else str(key)
            if key not in keys:
                close = get_close_matches(str(key), keys, n=1)
                right = f"did you mean {close[0]}?" if close else "known here: " + ", ".join(sorted(keys))
                raise CheckError(f"{where}: no such key; {right}")
            keys[key](where, each)
        for key in required:
            if key not in value:
                raise CheckError(f"{place}.{key}: is missing" if place else f"{key}: is missing")

    return check


def _check_length(place: str, value: Sized, most: int) -> None:
    if len(value) > most:
        raise CheckError(f"{place}: {len(value)} entries are too many; give at most {most}")


def wrong(place: str, value: Any, right: str) -> CheckError:
    """The error for a value that is not what it should be."""
    return CheckError(f"{place}: {shown(value)} is not allowed; give {right}" if place else f"give {right}")


def shown(value: Any) -> str:
    """Return the value as an error may carry it."""
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    return ascii(value)[:60]


# --- templates --------------------------------------------------------------------------------------------------------
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


# --- files ------------------------------------------------------------------------------------------------------------
MAX_FILE_BYTES = 1 << 20  # what an object of Kubernetes can have
MAX_VALUES = 1 << 17


def load(raw: bytes, *, aliases: bool = True) -> Any:
    """The value in a file; None for a document without one. Raises CheckError, also for an alias where `aliases` is
    false: a few lines of them stand for a value without end."""
    if len(raw) > MAX_FILE_BYTES:
        raise CheckError(f"more than {MAX_FILE_BYTES} bytes are too many")
    try:
        return safe_yaml.load(raw.decode("utf-8"), max_values=MAX_VALUES, max_aliases=None if aliases else 0)
    except UnicodeDecodeError as error:
        raise CheckError(f"byte {error.start}: not UTF-8 text") from None
    except safe_yaml.YamlError as error:
        raise CheckError(str(error)) from None


class _Named(Protocol):
    @property
    def name(self) -> str: ...


Entry = TypeVar("Entry", bound=_Named)


def entries(place: str, given: Sequence[Any], read: Callable[[str, Any], Entry], again: str) -> tuple[Entry, ...]:
    """Read the entries of a list, each with a name of its own. Raises InputError with what is wrong with each of them.
    `again`: what to do about a name that is given twice."""
    problems = list[str]()
    found = dict[str, Entry]()
    for number, value in enumerate(given):
        where = f"{place}[{number}]"
        try:
            entry = read(where, value)
            if entry.name in found:
                raise CheckError(f"{where}.name: {entry.name} is given twice; {again}")
            found[entry.name] = entry
        except CheckError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return tuple(found.values())


_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NOT_KUBERNETES = r"(?!requests\.)(?![^/]*kubernetes\.io(/|$))"  # no kubelet takes such a name
_DOMAIN = rf"{_NOT_KUBERNETES}{_LABEL}(\.{_LABEL})*"
NAME = written(
    rf"({_DOMAIN}/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?",
    "a resource's name, such as fuse, or under a domain of your own, such as example.com/fuse",
    63,
)
DOMAIN = written(_DOMAIN, "a domain of your own, such as example.com", 63)


def variables(fields: tuple[str, ...]) -> Rule:
    """The rule of variables; `fields`: of their templates."""
    return map_of(
        written("[A-Za-z_][A-Za-z0-9_.-]*", "a variable's name"),
        written(r"[^\x00-\x1f\x7f]*", "a text", 1024, fields),
        64,
        "a mapping of variables to texts",
    )


T = TypeVar("T")
FILE_MISSING = "FileMissing"
FILE_INVALID = "FileInvalid"
_Mark = tuple[int, int, int, int]  # device, inode, size, mtime: changes when the file is edited or replaced


@dataclass(slots=True, kw_only=True)
class WatchedFile(Generic[T]):
    """`parse` raises InputError. `value`: None until there was a good one; `problem`: None while the file is good."""

    path: Path
    parse: Callable[[bytes], T]
    value: T | None = None
    problem: Problem | None = None
    _mark: _Mark | None = None  # of what was read last
    _changing: _Mark | None = None

    def refresh(self) -> None:
        try:
            found = self.path.stat()
        except OSError as error:
            self._mark = self._changing = None
            self._refuse(FILE_MISSING, error.strerror or "cannot be found")
            return
        mark = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
        if self._mark is None or (mark != self._mark and mark == self._changing):
            self._mark, self._changing = mark, None
            self._read()
        elif mark != self._mark:
            self._changing = mark

    def _read(self) -> None:
        try:
            self.value, self.problem = self.parse(_content(self.path)), None
        except OSError as error:
            self._refuse(FILE_INVALID, error.strerror or "cannot be read")
        except InputError as error:
            self._refuse(FILE_INVALID, str(error))

    def _refuse(self, code: str, why: str) -> None:
        self.problem = problem(code, f"{self.path}: {why}")


def _content(path: Path) -> bytes:
    """One byte more than is allowed, so that who parses it sees that there is more. A FIFO would block for ever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise InputError("is not a regular file")
        return file.read(MAX_FILE_BYTES + 1)
