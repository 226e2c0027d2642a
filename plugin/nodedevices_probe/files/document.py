"""Files that people write for a probe, and may edit while it runs: YAML (and so JSON) of bounded length, to plain
values; with the rules that files of devices have in common: names of resources, and variables.

A watched file's metadata is compared at every `refresh`, and the file is read when two in a row saw the same change, so
that one half written by an editor is not taken for the truth; the first time it is read at once. A mounted ConfigMap is
replaced whole. Content that cannot be read or understood, and a file that is gone, change no value: the last good
content stays.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from nodedevices_common import safe_yaml
from nodedevices_common.errors import InputError

from nodedevices_probe.files.check import CheckError, Template, Text, wrong
from nodedevices_probe.protocol import MAX_MESSAGE, Problem, text

MAX_FILE_BYTES = 1 << 20  # what an object of Kubernetes can have
MAX_VALUES = 1 << 17


def load(content: str, *, aliases: bool = True) -> Any:
    """The value; None for a document without one. Raises CheckError, also for an alias where `aliases` is false: a few
    lines of them stand for a value without end."""
    try:
        return safe_yaml.load(content, max_values=MAX_VALUES, max_aliases=None if aliases else 0)
    except safe_yaml.YamlError as error:
        raise CheckError(str(error)) from None


def decode(raw: bytes) -> str:
    """The text of a file. Raises CheckError where it is longer than MAX_FILE_BYTES."""
    if len(raw) > MAX_FILE_BYTES:
        raise CheckError(f"more than {MAX_FILE_BYTES} bytes are too many")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckError(f"byte {error.start}: not UTF-8 text") from None


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
        for name, template in value.items():
            Text("[A-Za-z_][A-Za-z0-9_.-]*", "a variable's name").check(place, name)
            Template(self.fields, _TEXT, "a text").check(f"{place}.{name}", template)


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
        self.problem = Problem(code=code, message=text(f"{self.path}: {why}", MAX_MESSAGE))


def _content(path: Path) -> bytes:
    """One byte more than is allowed, so that who parses it sees that there is more. A FIFO would block for ever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise InputError("is not a regular file")
        return file.read(MAX_FILE_BYTES + 1)
