"""The simulated probe: devices from a YAML file that may change at any time, or from a named profile.

The file is looked at ten times a second (files.WatchedFile). One that cannot be understood changes nothing: the last
good state stays and the line carries the Problem `FileInvalid`. No file is a node without a driver. An event in the
file happens once, when its id first appears while the probe runs; those that were there at the start are history, as on
hardware. Who uses a device is said where the agent asks for it, as by a driver's probe.
"""

from __future__ import annotations

import os
import platform
import time
from argparse import Namespace
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from nodedevices_probe.files import FILE_MISSING, CheckError, WatchedFile
from nodedevices_probe.loop import NO_DRIVER, Source, SourceFacts
from nodedevices_probe.protocol import DeviceFact
from nodedevices_probe.simulated.file import SimulatedState, from_profile, parse

FILE_POLL_SECONDS = 0.1
MAX_REMEMBERED_EVENTS = 4096


@dataclass(slots=True, kw_only=True)
class ProfileSource(Source):
    """A profile's devices, always well."""

    state: SimulatedState
    name: str = "simulated"

    def poll(self) -> SourceFacts:
        return self.state.facts


@dataclass(slots=True, kw_only=True)
class FileSource(Source):
    """A source that reports what the file says now."""

    file: WatchedFile[SimulatedState]
    name: str = "simulated"
    poll_seconds: float = FILE_POLL_SECONDS
    _remembered: dict[str, None] = field(default_factory=dict)  # ids of events, oldest first
    _had_good: bool = False

    @classmethod
    def for_file(cls, path: Path, *, node: str) -> FileSource:
        return cls(file=WatchedFile(path=path, parse=partial(parse, node=node)))

    def poll(self) -> SourceFacts:
        before = self.file.value
        self.file.refresh()
        state, problem = self.file.value, self.file.problem
        if state is not None and state is not before:
            self._fire(state)
            while state.hang:  # like a call that never comes back; only a new process reads the file again
                time.sleep(3600)
        wrong = () if problem is None else (problem,)
        if state is None or (problem is not None and problem.code == FILE_MISSING):
            return SourceFacts(driver=NO_DRIVER, problems=wrong)
        devices = state.facts.devices if self.use else tuple(map(_without_use, state.facts.devices))
        return replace(state.facts, devices=devices, problems=(*state.facts.problems, *wrong))

    def _fire(self, state: SimulatedState) -> None:
        for name, (key, count) in state.events.items():
            if name not in self._remembered and self._had_good:
                self.events.record(key, count=count)
            self._remembered[name] = None
        self._had_good = True
        while len(self._remembered) > MAX_REMEMBERED_EVENTS:
            self._remembered.pop(next(iter(self._remembered)))


def _without_use(fact: DeviceFact) -> DeviceFact:
    return replace(fact, readings=replace(fact.readings, processes=None, memory_allocated_bytes=None))


def source(options: Namespace) -> ProfileSource | FileSource:
    """From its arguments (kind). Raises CheckError when there is no such profile."""
    node = options.node_name or os.environ.get("NODE_NAME") or platform.node() or "node"
    if options.file:
        return FileSource.for_file(options.file, node=node)
    try:
        return ProfileSource(state=from_profile(options.profile, node=node))
    except CheckError as error:
        raise CheckError(f"argument --{error}") from None
