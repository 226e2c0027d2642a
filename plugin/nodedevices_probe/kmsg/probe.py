"""The source of the kernel's log: no devices, and an event for each new line that the table knows (lines).

The log is read by syslog(2). Why not /dev/kmsg: a container may open a device only where its cgroup allows that one,
and Kubernetes allows none but to a privileged container. syslog(2) needs no device: SYSLOG_ACTION_READ_ALL copies the
newest lines and consumes none, so that other readers lose nothing, with the capability SYSLOG alone (with none where
kernel.dmesg_restrict is 0). Many lines come with one call, which is also what makes a flood cheap. A line is
`<6>[  830.456422] text`, its priority and the seconds since the boot before it. Where a record has several lines, the
kernel writes the priority before each, so that no text can begin a line of its own.

An event names no device but a PCI address: the agent gives it to the device there, whichever probe lists it.

What was logged before this process began is read once: all of it where the machine was booted a short time ago, since
nothing may have reported it yet, else the last minute, in which this process may have been started anew. So a fault of
last week does not come back with each new process; the agent leaves out what an earlier process has said in this boot
(health.events).
"""

from __future__ import annotations

import ctypes
import os
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from nodedevices_probe.kmsg import lines
from nodedevices_probe.kmsg.lines import seconds
from nodedevices_probe.loop import NONE_NEEDED, EventKey, SourceFacts
from nodedevices_probe.node.sysfs import System
from nodedevices_probe.protocol import Problem, problem
from nodedevices_probe.source import Found, SysfsSource

# --- the log ----------------------------------------------------------------------------------------------------------
READ_ALL = 3  # syslog(2) SYSLOG_ACTION_READ_ALL
# How much is read at a time: the next greater where the last line that was seen is not in it. The last is more than the
# log of a large machine (CONFIG_LOG_BUF_SHIFT is 17 to 21), and bounds the memory.
SIZES = (1 << 16, 1 << 19, 1 << 22)
REMEMBERED_LINES = 4  # where the last look ended; several, for a log without times, in which one line is like another
SMALL = 8  # a size is far too great where the news are less than this part of it

Tail = Callable[[int], bytes]  # the newest lines, whole, in at most so many bytes; raises OSError


def kernel_tail(size: int) -> bytes:
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(size)
    length = libc.klogctl(READ_ALL, buffer, size)
    if length < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return ctypes.string_at(buffer, length)


def file_tail(path: Path) -> Tail:
    """Return a reader of a file in the place of the kernel's log."""

    def tail(size: int) -> bytes:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            start = file.seek(max(0, end - size))
            chunk = file.read(size)
        first = chunk.find(b"\n") + 1 if start else 0
        return chunk[first : chunk.rfind(b"\n") + 1]  # the last line may be half written

    return tail


@dataclass(slots=True)
class Follower:
    """Returns what is new at each look; at the first one all that the log still has."""

    tail: Tail
    _last: bytes | None = None  # the newest lines that were seen; None: there was no look yet
    _size: int = field(default=len(SIZES) - 1)  # the first look reads all

    def news(self) -> tuple[bytes, bool]:
        """Return whole lines, oldest first, and whether there may have been others before them, which nobody can read
        now. Raises OSError."""
        before, chunk, at = self._last, b"", -1
        for number in range(self._size, len(SIZES)):
            self._size, chunk = number, self.tail(SIZES[number])
            at = _after(chunk, before) if before else -1
            if at >= 0:
                break
        if chunk or before is None:
            self._last = _last_lines(chunk, REMEMBERED_LINES)
        lines, lost = chunk[max(at, 0) :], False
        if at < 0 and before and chunk:
            lines = _later_than(chunk, seconds(_last_lines(before, 1)))
            lost = bool(lines)
        if self._size and len(lines) < SIZES[self._size] // SMALL:
            self._size -= 1
        return lines, lost


def _last_lines(chunk: bytes, count: int) -> bytes:
    at = len(chunk) - 1
    for _ in range(count):
        at = chunk.rfind(b"\n", 0, max(at, 0))
    return chunk[at + 1 :]


def _after(chunk: bytes, lines: bytes) -> int:
    """Return where these lines end in the chunk; -1: they are not there."""
    at = chunk.rfind(b"\n" + lines)
    if at >= 0:
        return at + 1 + len(lines)
    return len(lines) if chunk.startswith(lines) else -1


def _later_than(chunk: bytes, time: float | None) -> bytes:
    """Return the lines from the first one on that is later: a log that was cleared (`dmesg --clear`) or replaced shows
    no line twice."""
    start = 0
    while time is not None and start < len(chunk):
        at = seconds(chunk[start : start + 64])
        if at is None or at > time:
            break
        start = chunk.find(b"\n", start) + 1 or len(chunk)
    return chunk[start:]


# --- the source -------------------------------------------------------------------------------------------------------
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
            return (), (_unreadable(error),)
        shown = self._lost_at is not None and self.monotonic() - self._lost_at < LOST_SHOWN_SECONDS
        return (), (LOST,) if shown else ()

    def _read(self) -> None:
        first = self._follower is None
        follower = self._follower or Follower(self.tail)
        news, lost = follower.news()
        self._follower = follower
        events, unread = lines.read(news, most=None if first else lines.MAX_LINES)
        since_boot, now = self.monotonic(), self.wall()
        for said in events:
            # Of a line that is new the log's own clock says less than ours: it is not corrected, and drifts.
            age = _age(said, since_boot) if first else 0.0
            if age is not None:
                key = EventKey(kind=said.kind, pci_bus_id=said.pci_bus_id, xid=said.code)
                self.events.record(key, when=now - timedelta(seconds=age), details=said.details)
        if lost or unread:
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
    return problem("KernelLogUnreadable", message)


def source(options: Namespace) -> KernelLogSource:
    path: Path | None = options.kmsg_path
    return KernelLogSource(
        system=System(options.root),
        poll_seconds=options.interval_seconds,
        tail=kernel_tail if path is None else file_tail(path),
    )
