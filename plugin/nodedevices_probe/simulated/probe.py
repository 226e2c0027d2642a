"""The simulated probe: devices from a YAML file that may change at any time, or from a named profile.

The file's metadata is polled ten times a second, and the file read when two polls in a row see the same change, so that
a file half written by an editor is not taken for the truth. A file that cannot be understood changes nothing: the last
good state stays and the line carries the Problem `FileInvalid`. No file is a node without a driver. An event in the
file happens once, when its id first appears while the probe runs; those that were there at the start are history, as on
hardware.
"""

from __future__ import annotations

import time
from argparse import Namespace
from dataclasses import dataclass, field, replace
from pathlib import Path

from nodedevices_probe.check import CheckError
from nodedevices_probe.events import EventLog
from nodedevices_probe.loop import NO_DRIVER, Facts
from nodedevices_probe.protocol import MAX_MESSAGE, Problem, text
from nodedevices_probe.simulated.file import MAX_FILE_BYTES, SimulatedState, from_profile, parse

FILE_POLL_SECONDS = 0.1
MAX_REMEMBERED_EVENTS = 4096

FileMark = tuple[int, int, int, int]  # device, inode, size, mtime: changes when the file is edited or replaced


@dataclass(slots=True, kw_only=True)
class ProfileSource:
    """A profile's devices, always well."""

    state: SimulatedState
    name: str = "simulated"
    poll_seconds: float = 5.0
    events: EventLog = field(default_factory=EventLog)

    @classmethod
    def of(cls, profile: str, *, node: str) -> ProfileSource:
        """Raises CheckError when there is no such profile."""
        return cls(state=from_profile(profile, node=node))

    def poll(self) -> Facts:
        return self.state.facts


@dataclass(slots=True, kw_only=True)
class FileSource:
    """What the file says now."""

    path: Path
    node: str
    name: str = "simulated"
    poll_seconds: float = FILE_POLL_SECONDS
    events: EventLog = field(default_factory=EventLog)
    _facts: Facts | None = None
    _mark: FileMark | None = None  # of what is in effect, or was refused
    _changing: FileMark | None = None
    _last_good: Facts | None = None
    _remembered: dict[str, None] = field(default_factory=dict)  # ids of events, oldest first
    _had_good: bool = False

    def poll(self) -> Facts:
        mark = self._marked()
        if mark is None:
            self._mark = self._changing = None
            self._facts = Facts(driver=NO_DRIVER, problems=(_problem("FileMissing", f"{self.path}: no such file"),))
        elif self._facts is None or (mark != self._mark and mark == self._changing):
            self._mark, self._changing = mark, None
            self._facts = self._read()
        elif mark != self._mark:
            self._changing = mark
        return self._facts or Facts(driver=NO_DRIVER)

    def _marked(self) -> FileMark | None:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        except OSError:
            return (0, 0, 0, 0)  # it is there and its metadata cannot be read: reading the file says why
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def _read(self) -> Facts:
        try:
            state = parse(self._text(), node=self.node)
        except (CheckError, OSError) as error:
            why = f"{error.strerror}" if isinstance(error, OSError) else str(error)
            before = self._last_good or Facts(driver=NO_DRIVER)
            return replace(before, problems=(*before.problems, _problem("FileInvalid", f"{self.path}: {why}")))
        self._fire(state)
        self._last_good = state.facts
        while state.hang:  # like a call that never comes back; only a new process reads the file again
            time.sleep(3600)
        return state.facts

    def _text(self) -> str:
        with self.path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
        if len(raw) > MAX_FILE_BYTES:
            raise CheckError(f"more than {MAX_FILE_BYTES} bytes are too many")
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise CheckError(f"byte {error.start}: not UTF-8 text") from None

    def _fire(self, state: SimulatedState) -> None:
        for name, event in state.events.items():
            if name not in self._remembered and self._had_good:
                self.events.record(event.key, count=event.count)
            self._remembered[name] = None
        self._had_good = True
        while len(self._remembered) > MAX_REMEMBERED_EVENTS:
            self._remembered.pop(next(iter(self._remembered)))


def _problem(code: str, message: str) -> Problem:
    return Problem(code=code, message=text(message, MAX_MESSAGE))


def source(options: Namespace) -> ProfileSource | FileSource:
    """From its arguments (kind). Raises CheckError when there is no such profile."""
    if options.file:
        return FileSource(path=options.file, node=options.node_name)
    try:
        return ProfileSource.of(options.profile, node=options.node_name)
    except CheckError as error:
        raise CheckError(f"argument --{error}") from None
