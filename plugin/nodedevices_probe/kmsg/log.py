"""The kernel's log, by syslog(2), and the lines that are new in it since the last look.

Why not /dev/kmsg: a container may open a device only where its cgroup allows that one, and Kubernetes allows none but
to a privileged container. syslog(2) needs no device: SYSLOG_ACTION_READ_ALL copies the newest lines and consumes none,
so that other readers lose nothing, with the capability SYSLOG alone (with none where kernel.dmesg_restrict is 0). Many
lines come with one call, which is also what makes a flood cheap.

A line is `<6>[  830.456422] text`, its priority and the seconds since the boot before it. Where a record has several
lines, the kernel writes the priority before each, so that no text can begin a line of its own.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

READ_ALL = 3  # syslog(2) SYSLOG_ACTION_READ_ALL
# How much is read at a time: the next greater where the last line that was seen is not in it. The last is more than the
# log of a large machine (CONFIG_LOG_BUF_SHIFT is 17 to 21), and bounds the memory.
SIZES = (1 << 16, 1 << 19, 1 << 22)
REMEMBERED_LINES = 4  # where the last look ended; several, for a log without times, in which one line is like another
SMALL = 8  # a size is far too great where the news are less than this part of it

_TIME = re.compile(rb"<\d{1,3}>\[ *(\d{1,10}\.\d{1,9})\]")

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


@dataclass(frozen=True, slots=True)
class News:
    """`lines`: whole lines, oldest first. `lost`: there may have been others before them, which nobody can read now."""

    lines: bytes
    lost: bool = False


@dataclass(slots=True)
class Follower:
    """Returns what is new at each look; at the first one all that the log still has."""

    tail: Tail
    _last: bytes | None = None  # the newest lines that were seen; None: there was no look yet
    _size: int = field(default=len(SIZES) - 1)  # the first look reads all

    def news(self) -> News:
        """Raises OSError."""
        before, chunk, at = self._last, b"", -1
        for number in range(self._size, len(SIZES)):
            self._size, chunk = number, self.tail(SIZES[number])
            at = _after(chunk, before) if before else -1
            if at >= 0:
                break
        if chunk or before is None:
            self._last = _last_lines(chunk, REMEMBERED_LINES)
        news = self._news(chunk, before, at)
        if self._size and len(news.lines) < SIZES[self._size] // SMALL:
            self._size -= 1
        return news

    def _news(self, chunk: bytes, before: bytes | None, at: int) -> News:
        if at >= 0:
            return News(chunk[at:])
        if not before or not chunk:
            return News(chunk)
        newer = _later_than(chunk, seconds(_last_lines(before, 1)))
        return News(newer, lost=bool(newer))


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


def seconds(line: bytes) -> float | None:
    """Return when a line was written, in seconds since the boot; None: it does not say (printk.time is off)."""
    found = _TIME.match(line)
    return None if found is None else float(found[1])
