"""A file of values that people edit while it is read: the value of its last good content, and what is wrong now.

Its metadata is compared at every `refresh`, and the file is read when two in a row saw the same change, so that one
half written by an editor is not taken for the truth; the first time it is read at once. A mounted ConfigMap is replaced
whole. Content that cannot be read or understood, and a file that is gone, change no value.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from nodedevices_common.errors import InputError

from nodedevices_probe.files.document import MAX_FILE_BYTES
from nodedevices_probe.protocol import MAX_MESSAGE, Problem, text

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
