"""The source of the kernel's log: no devices, and an event for each line that the table knows (lines).

An event names no device but a PCI address: the agent gives it to the device there, whichever probe lists it.

What was logged before this process began is read once: all of it where the machine was booted a short time ago, since
nothing may have reported it yet, else the last minute, in which this process may have been started anew. So a fault of
last week does not come back with each new process; the agent leaves out what an earlier process has said in this boot
(health.events).
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from nodedevices_probe.kmsg import lines
from nodedevices_probe.kmsg.log import Follower, Tail, file_tail, kernel_tail
from nodedevices_probe.loop import NONE_NEEDED, EventKey, SourceFacts
from nodedevices_probe.node.sysfs import System
from nodedevices_probe.protocol import MAX_MESSAGE, Problem, text
from nodedevices_probe.source import Found, SysfsSource

BOOTED_SECONDS = 600.0  # a kubelet starts the agent's pod within these
HISTORY_SECONDS = 60.0  # how long the agent takes an event for news (health.events.OLDEST_NEWS)
LOST_SHOWN_SECONDS = 300.0
LOST = Problem(
    code="KernelLogLinesLost",
    message="within the last minutes the kernel wrote more to its log than was read: faults may be missed; find what"
    " floods the log (dmesg), or boot with a larger log_buf_len",
)


@dataclass(slots=True, kw_only=True)
class KernelLogSource(SysfsSource):
    name: str = "kmsg"
    poll_seconds: float = 1.0
    tail: Tail = kernel_tail
    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], datetime] = lambda: datetime.now(UTC)
    _follower: Follower | None = field(default=None, init=False)
    _lost_at: float | None = field(default=None, init=False)

    def poll(self) -> SourceFacts:
        """Without a driver's name: the kernel is no driver of devices that this probe lists."""
        return replace(self.facts((), self._look), driver=NONE_NEEDED)

    def _look(self) -> Found:
        try:
            self._read()
        except OSError as error:
            return Found(problems=(_unreadable(error),))
        shown = self._lost_at is not None and self.monotonic() - self._lost_at < LOST_SHOWN_SECONDS
        return Found(problems=(LOST,) if shown else ())

    def _read(self) -> None:
        first = self._follower is None
        follower = self._follower or Follower(self.tail)
        news = follower.news()
        self._follower = follower
        found = lines.read(news.lines, most=None if first else lines.MAX_LINES)
        since_boot, now = self.monotonic(), self.wall()
        for said in found.said:
            # Of a line that is new the log's own clock says less than ours: it is not corrected, and drifts.
            age = _age(said, since_boot) if first else 0.0
            if age is not None:
                key = EventKey(kind=said.kind, pci_bus_id=said.pci_bus_id, xid=said.code)
                self.events.record(key, when=now - timedelta(seconds=age), details=said.details)
        if news.lost or found.unread:
            self._lost_at = since_boot


def _age(said: lines.Said, since_boot: float) -> float | None:
    """Return how old a line of before is; None: too old to be reported now."""
    if said.seconds is None:
        return None
    age = max(0.0, since_boot - said.seconds)
    return age if since_boot < BOOTED_SECONDS or age < HISTORY_SECONDS else None


def _unreadable(error: OSError) -> Problem:
    message = (
        f"the kernel log cannot be read: {error.strerror or error}; give the container the capability SYSLOG"
        " (component kmsg), or, under SELinux, a type that may read it"
    )
    return Problem(code="KernelLogUnreadable", message=text(message, MAX_MESSAGE))


def source(options: Namespace) -> KernelLogSource:
    path: Path | None = options.kmsg_path
    return KernelLogSource(
        system=System(options.root),
        poll_seconds=options.interval_seconds,
        tail=kernel_tail if path is None else file_tail(path),
    )
