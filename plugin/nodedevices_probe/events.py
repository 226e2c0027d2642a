"""The probe's memory of edges: an XID happened, and the next lines must say so.

Bounded whatever the hardware does: equal events between two lines are folded into one with a count, the time and
details of the first and the place of the last, and only the newest of each kind per device (and XID, and instance) is
kept, for a minute. So a flood of one XID never pushes the first sign of another out of the line. Written by the thread
that waits for the driver, read by the one that writes lines.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType

from nodedevices_probe.protocol import MAX_EVENTS, MAX_INTEGER, ProbeEvent

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
class _Seen:
    event: ProbeEvent
    monotonic: float


@dataclass(slots=True)
class EventLog:
    """`wake` is set whenever there is news."""

    wake: threading.Event = field(default_factory=threading.Event)
    clock: Callable[[], float] = time.monotonic
    dropped: int = 0  # events that found no room: more than MAX_EVENTS different ones within a minute
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _pending: dict[EventKey, _Pending] = field(default_factory=dict)
    _recent: dict[EventKey, _Seen] = field(default_factory=dict)
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
            for key, seen in list(self._recent.items()):
                if now - seen.monotonic > REPEATED_SECONDS:
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
                self._recent[key] = _Seen(event, now)
            self._pending.clear()
            while len(self._recent) > MAX_EVENTS:
                self._recent.pop(next(iter(self._recent)))
            return tuple(seen.event for seen in self._recent.values())
