"""The part that all probes share: poll the hardware, remember what happened, and write a line when there is news.

A line is written when a poll found something new or is the first one since an event, at once when an event came in,
and as a heartbeat at least every 5 s, since silence means a problem. Lines are at least 0.1 s apart, so that a flood of
events costs ten lines a second. An event is written before the hardware is polled again: polling a broken device may
take for ever. If the reader of a child has gone, the probe ends; one that listens on a socket goes on polling, and
keeps events for the next reader.

The memory of edges (`EventLog`: an XID happened, and the next lines must say so) is bounded whatever the hardware does:
equal events between two lines are folded into one with a count, the time and details of the first and the place of the
last, and only the newest of each kind per device (and XID, and instance) is kept, for a minute. So a flood of one XID
never pushes the first sign of another out of the line. Written by the thread that waits for the driver, read by the one
that writes lines.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from nodedevices_api.bounds import MAX_DEVICES
from nodedevices_common import __version__
from nodedevices_common.times import rfc3339

from nodedevices_probe.protocol import (
    MAX_EVENTS,
    MAX_INTEGER,
    MAX_LINE_BYTES,
    PROTOCOL,
    DeviceFact,
    Driver,
    DriverState,
    Machine,
    ProbeEvent,
    Problem,
    Snapshot,
    camel,
)

# --- events -----------------------------------------------------------------------------------------------------------
REPEATED_SECONDS = 60.0  # so that a line which the agent had to drop does not lose an edge


@dataclass(frozen=True, slots=True, kw_only=True)
class EventKey:
    """Events that are equal in all of this are counted instead of listed."""

    kind: str
    device_id: str | None = None
    pci_bus_id: str = ""
    xid: int | None = None
    gi: int | None = None
    ci: int | None = None


@dataclass(slots=True)
class _Pending:
    time: datetime
    details: Mapping[str, str]
    count: int = 0


@dataclass(slots=True)
class EventLog:
    """`wake` is set whenever there is news."""

    wake: threading.Event = field(default_factory=threading.Event)
    clock: Callable[[], float] = time.monotonic
    dropped: int = 0  # events that found no room: more than MAX_EVENTS different ones within a minute
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _pending: dict[EventKey, _Pending] = field(default_factory=dict)
    _recent: dict[EventKey, tuple[ProbeEvent, float]] = field(default_factory=dict)  # with when it was new
    _sequence: int = 0

    def record(
        self,
        key: EventKey,
        *,
        when: datetime | None = None,
        count: int = 1,
        details: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Remember that it happened, so many times."""
        with self._lock:
            known = self._pending.pop(key, None)
            if known is None and len(self._pending) >= MAX_EVENTS:
                self.dropped += count
            else:
                first = known or _Pending(when or datetime.now(UTC), details)
                first.count = min(first.count + count, MAX_INTEGER)
                self._pending[key] = first  # the last: what came again after a repair is not repaired
        self.wake.set()

    def pending(self) -> bool:
        """True when the next line has news."""
        with self._lock:
            return bool(self._pending)

    def newest(self) -> int:
        """The sequence number that the newest event so far has, or will have in the next line; 0: there is none."""
        with self._lock:
            return self._sequence + len(self._pending)

    def for_line(self) -> tuple[ProbeEvent, ...]:
        """Return the events of the line written now: new ones, and what the last minute's lines said; oldest first."""
        now = self.clock()
        with self._lock:
            for key, (_, since) in list(self._recent.items()):
                if now - since > REPEATED_SECONDS:
                    del self._recent[key]
            for key, pending in self._pending.items():
                self._sequence += 1
                self._recent.pop(key, None)
                event = ProbeEvent(
                    sequence=self._sequence,
                    time=pending.time,
                    kind=key.kind,
                    device_id=key.device_id,
                    pci_bus_id=key.pci_bus_id,
                    xid=key.xid,
                    gi=key.gi,
                    ci=key.ci,
                    count=pending.count,
                    details=dict(pending.details),
                )
                self._recent[key] = event, now
            self._pending.clear()
            while len(self._recent) > MAX_EVENTS:
                self._recent.pop(next(iter(self._recent)))
            return tuple(event for event, _ in self._recent.values())


# --- lines ------------------------------------------------------------------------------------------------------------
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


@dataclass(slots=True, kw_only=True)
class Source:
    """A kind of hardware. `events` are filled in from wherever they come. `use`: read who uses the devices, too, where
    the source can: Readings.processes, utilization, allocated memory."""

    name: str
    poll_seconds: float = 5.0
    events: EventLog = field(default_factory=EventLog)
    use: bool = False

    def poll(self) -> SourceFacts:
        """Return what is there now. May block; does not raise for anything that the hardware or the driver does."""
        raise NotImplementedError


@dataclass(slots=True, kw_only=True)
class LineLoop:
    """Writes a source's lines with `write`, which may raise BrokenPipeError when the reader has gone."""

    source: Source
    write: Callable[[bytes], None]
    repeat_seconds: float = HEARTBEAT_SECONDS  # an unchanged line again after so long; never longer than the heartbeat
    boot_id: str = ""
    is_read: Callable[[], bool] = lambda: True  # False: no reader would get a line now, and none is written
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

    def want(self, use: bool) -> None:
        """From now on, read who uses the devices, or no longer. May be called by any thread."""
        if use != self.source.use:
            self.source.use = use
            self.source.events.wake.set()

    def repeat_line(self) -> None:
        """Write a line now, for a reader that has just begun. May be called by any thread."""
        self._written_at = -math.inf
        self.source.events.wake.set()

    def run(self) -> None:
        """Poll and write lines for ever."""
        events = self.source.events
        facts = SourceFacts(driver=NO_DRIVER, silent=True)  # nothing is said before the first poll
        every, repeat = self.source.poll_seconds, min(self.repeat_seconds, HEARTBEAT_SECONDS)
        polled_at = poll_at = time.monotonic()
        while True:
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


def encode(snapshot: Snapshot) -> bytes:
    """The line, newline included: compact JSON, camelCase keys, absent for None, times in UTC with microseconds."""
    return json.dumps(_plain(snapshot), separators=(",", ":"), ensure_ascii=False).encode("utf-8") + b"\n"


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        pairs = ((camel(member.name), getattr(value, member.name)) for member in dataclasses.fields(value))
        return {key: _plain(item) for key, item in pairs if item is not None}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, datetime):
        return rfc3339(value, microseconds=True)
    return value


def write_all(descriptor: int, line: bytes) -> None:
    """Write a whole line to a file descriptor."""
    rest = memoryview(line)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


# --- requests of the agent --------------------------------------------------------------------------------------------
# Lines of JSON the other way, on a child's standard input or on the same socket, with `protocol` and `use`: read who
# uses the devices as well (idle.afterSeconds of a policy); absent: no. Keys that this probe does not know are ignored,
# and so is a line that it does not understand: a probe may also read none of it.
MAX_WANTED_BYTES = 4096


def encode_wanted(*, use: bool) -> bytes:
    """Return the line, newline included."""
    return json.dumps({"protocol": PROTOCOL, "use": use}).encode() + b"\n"


def decode_wanted(line: bytes) -> bool:
    """Return `use`. ValueError: the line is not understood."""
    said = json.loads(line)
    if not isinstance(said, dict) or said.get("protocol") != PROTOCOL:
        raise ValueError(f'give {{"protocol": "{PROTOCOL}", "use": true}}')
    match said.get("use", False):
        case bool(use):
            return use
        case odd:
            raise ValueError(f"use: {odd!r} is not allowed; give true or false")


def follow(read: Callable[[], bytes], want: Callable[[bool], None]) -> None:
    """Until there is nothing more to read (`read`: some bytes, none at the end)."""
    rest = b""
    while chunk := read():
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > MAX_WANTED_BYTES:
            lines, rest = [*lines, rest[:MAX_WANTED_BYTES]], b""
        for line in lines:
            try:
                want(decode_wanted(line))
            except (ValueError, RecursionError) as error:
                say(f"a line of the agent is not understood: {error}")


def say(message: str) -> None:
    """Write to the log, for people."""
    print(f"nodedevices-probe: {message}", file=sys.stderr, flush=True)  # noqa: T201
