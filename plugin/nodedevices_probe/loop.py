"""The part that all probes share: poll the hardware, and write a line when something changed.

A line is written when a poll found something new or is the first one since an event, at once when an event came in,
and as a heartbeat at least every 5 s, since silence means a problem. Lines are at least 0.1 s apart, so that a flood of
events costs ten lines a second. An event is written before the hardware is polled again: polling a broken device may
take for ever. If the reader of a child has gone, the probe ends; one that listens on a socket goes on polling, and
keeps events for the next reader.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Protocol, runtime_checkable

from nodedevices_api.bounds import MAX_DEVICES
from nodedevices_common import __version__

from nodedevices_probe.events import EventLog
from nodedevices_probe.protocol import (
    MAX_LINE_BYTES,
    DeviceFact,
    Driver,
    DriverState,
    Machine,
    Problem,
    Snapshot,
    encode,
)
from nodedevices_probe.wanted import Wanted

HEARTBEAT_SECONDS = 5.0
LINE_SPACING_SECONDS = 0.1
POLL_SPACING_SECONDS = 1.0  # an event brings the next poll forward, but a flood of them not to more than this
NO_DRIVER = Driver(state=DriverState.NOT_LOADED)
NONE_NEEDED = Driver(state=DriverState.LOADED)  # of a probe whose node has no device of its kind
EXIT_WANTS_FRESH_PROCESS = 75  # sysexits.h EX_TEMPFAIL


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """What one query of the hardware found."""

    driver: Driver
    machine: Machine = field(default_factory=Machine)
    accelerators_on_bus: int = 0
    problems: tuple[Problem, ...] = ()
    devices: tuple[DeviceFact, ...] = ()
    silent: bool = False  # a simulated probe may stop writing
    needs_fresh_process: bool = False  # say this, wait for the next poll, and exit
    poll_again: bool = False  # something is in doubt: the next poll comes after POLL_SPACING_SECONDS
    # Of Snapshot, set by the loop:
    read_after: int | None = field(default=None, compare=False)
    read_milliseconds: int | None = field(default=None, compare=False)


class Source(Protocol):
    """A kind of hardware. `poll` may block; `events` are filled in from wherever they come."""

    name: str
    poll_seconds: float
    events: EventLog

    def poll(self) -> SourceFacts:
        """Return what is there now. Does not raise for anything that the hardware or the driver does."""
        ...


@runtime_checkable
class ReadsUse(Protocol):
    """A source that can also read who uses its devices: Readings.processes, utilization, allocated memory."""

    use: bool  # read it


@dataclass(slots=True, kw_only=True)
class LineLoop:
    """Writes a source's lines with `write`, which may raise BrokenPipeError when the reader has gone."""

    source: Source
    write: Callable[[bytes], None]
    repeat_seconds: float = HEARTBEAT_SECONDS  # an unchanged line again after so long; never longer than the heartbeat
    boot_id: str = ""
    is_read: Callable[[], bool] = lambda: True  # False: no reader would get a line now, and none is written
    _wanted: Wanted = field(default_factory=Wanted)  # by the reader
    _instance: str = field(default_factory=lambda: os.urandom(8).hex())
    _sequence: int = 0
    _written: SourceFacts | None = None
    _written_at: float = 0.0

    def once(self) -> SourceFacts:
        """One poll (two where the first one is in doubt), one line; what was seen."""
        facts = self._poll()
        if facts.poll_again:
            time.sleep(POLL_SPACING_SECONDS)
            facts = self._poll()
        self._write_line(facts)
        return facts

    def _poll(self) -> SourceFacts:
        newest = self.source.events.newest()
        began = time.monotonic()
        facts = self.source.poll()
        return replace(facts, read_after=newest, read_milliseconds=round((time.monotonic() - began) * 1000))

    def want(self, wanted: Wanted) -> None:
        """From now on, poll so often and read that. May be called by any thread."""
        if wanted == self._wanted:
            return
        self._wanted = wanted
        if isinstance(self.source, ReadsUse):
            self.source.use = wanted.use
        self.source.events.wake.set()

    def repeat_line(self) -> None:
        """Write a line now, for a reader that has just begun. May be called by any thread."""
        self._written_at = -math.inf
        self.source.events.wake.set()

    def run(self) -> None:
        """Poll and write lines for ever."""
        events = self.source.events
        facts = SourceFacts(driver=NO_DRIVER, silent=True)  # nothing is said before the first poll
        polled_at = poll_at = time.monotonic()
        while True:
            interval = self._wanted.interval_seconds
            every = self.source.poll_seconds if interval is None else interval
            repeat = min(self.repeat_seconds if interval is None else interval, HEARTBEAT_SECONDS)
            wait_until = poll_at if self._is_quiet(facts) else min(poll_at, self._written_at + repeat)
            if events.wake.wait(max(0.0, wait_until - time.monotonic())):
                events.wake.clear()
                poll_at = min(poll_at, polled_at + POLL_SPACING_SECONDS)
            written_before = self._sequence
            if not self._is_quiet(facts) and (events.pending() or time.monotonic() >= self._written_at + repeat):
                self._write_line(facts)
            if time.monotonic() >= poll_at:
                if facts.needs_fresh_process:
                    raise SystemExit(EXIT_WANTS_FRESH_PROCESS)
                facts = self._poll()
                polled_at = time.monotonic()
                poll_at = polled_at + (min(every, POLL_SPACING_SECONDS) if facts.poll_again else every)
                if not self._is_quiet(facts) and (self._is_news(facts) or events.pending()):
                    self._write_line(facts)
            if self._sequence != written_before:
                time.sleep(LINE_SPACING_SECONDS)

    def _is_news(self, facts: SourceFacts) -> bool:
        """Also when it was read after an event and the last line was not: whether an action is still required is only
        known then, and equal facts say it too (the action may be reported before the event)."""
        return self._written is None or facts != self._written or facts.read_after != self._written.read_after

    def _is_quiet(self, facts: SourceFacts) -> bool:
        return facts.silent or not self.is_read()

    def _write_line(self, facts: SourceFacts) -> None:
        self._sequence += 1
        devices, problems = facts.devices, facts.problems
        if len(devices) > MAX_DEVICES:
            cut = f"{len(devices)} devices were found; only the first {MAX_DEVICES} are reported"
            devices, problems = devices[:MAX_DEVICES], (*problems, Problem(code="TooManyDevices", message=cut))
        if self.source.events.dropped:
            message = f"{self.source.events.dropped} events were dropped: too many different ones at once"
            problems = (*problems, Problem(code="EventsDropped", message=message))
        snapshot = Snapshot(
            probe=self.source.name,
            probe_version=__version__,
            instance=self._instance,
            sequence=self._sequence,
            time=datetime.now(UTC),
            boot_id=self.boot_id,
            driver=facts.driver,
            machine=facts.machine,
            accelerators_on_bus=facts.accelerators_on_bus,
            problems=problems,
            devices=devices,
            events=self.source.events.for_line(),
            read_after=facts.read_after,
            read_milliseconds=None if facts is self._written else facts.read_milliseconds,
        )
        line = encode(snapshot)
        if len(line) > MAX_LINE_BYTES:  # PCIe paths grow with the square of the number of devices
            dropped = Problem(code="LineTooLong", message=f"{len(line)} bytes; PCIe paths between devices are left out")
            slim = tuple(replace(device, pcie=()) for device in devices)
            line = encode(replace(snapshot, devices=slim, problems=(*problems, dropped)))
        self.write(line)
        self._written = facts
        self._written_at = time.monotonic()


def write_all(descriptor: int) -> Callable[[bytes], None]:
    """Return a writer of whole lines to a file descriptor."""

    def write(line: bytes) -> None:
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(descriptor, rest) :]

    return write
