"""The source of the kernel's log: no devices, and an event for each new line that the table knows.

The log is read by syslog(2). Why not /dev/kmsg: a container may open a device only where its cgroup allows that one,
and Kubernetes allows none but to a privileged container. syslog(2) needs no device: SYSLOG_ACTION_READ_ALL copies the
newest lines and consumes none, so that other readers lose nothing, with the capability SYSLOG alone (with none where
kernel.dmesg_restrict is 0). Many lines come with one call, which is also what makes a flood cheap. A line is
`<6>[  830.456422] text`, its priority and the seconds since the boot before it. Where a record has several lines, the
kernel writes the priority before each, so that no text can begin a line of its own.

Only lines of the kernel itself count (facility 0): a program may write to the log, too, and the kernel marks what it
writes. A row's expression must match from the first character of the text on, and takes no more than it names. Bytes
are searched for a few words before any line is looked at, so that a flood of other lines costs next to nothing; of a
flood of lines with one of these words at most MAX_LINES are read at a time. Of the whole log, at the first look, all
are: a machine with many NICs has more lines of their driver by its boot alone. Sources: the lines of NVIDIA's driver as
NVSentinel's and gpud's tests have them; mlx5's in the kernel's health.c, events.c and cmd.c; amdgpu's in amdgpu_job.c,
amdgpu_device.c and amdgpu_ras.c; aer.c for PCIe.

An event names no device but a PCI address: the agent gives it to the device there, whichever probe lists it.

What was logged before this process began is read once: all of it where the machine was booted a short time ago, since
nothing may have reported it yet, else the last minute, in which this process may have been started anew. So a fault of
last week does not come back with each new process; the agent leaves out what an earlier process has said in this boot
(health.events).
"""

from __future__ import annotations

import ctypes
import os
import re
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path

from nodedevices_probe import kmsg as kinds
from nodedevices_probe.loop import NONE_NEEDED, EventKey, SourceFacts
from nodedevices_probe.node.sysfs import System
from nodedevices_probe.protocol import Problem, normal_bus_id, problem, text
from nodedevices_probe.source import Found, SysfsSource

# --- lines that are events --------------------------------------------------------------------------------------------
MAX_LINES = 1000  # with one word, of one look at the log
MAX_LINE_BYTES = 1024  # printk's LOG_LINE_MAX is less
_STAMP = rb"(?:\[ *\d+\.\d+\] ?)?(?:\[ *[TC]\d+\] ?)?"  # CONFIG_PRINTK_CALLER adds the last
_TIME = re.compile(rb"<\d{1,3}>\[ *(\d{1,10}\.\d{1,9})\]")
_PREFIX = re.compile(rb"<(\d{1,3})>" + _STAMP)
_PCI = rb"(?P<address>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"


@dataclass(frozen=True, slots=True)
class Row:
    """`word`: is in each such line. Groups of `pattern`: `address`, `code`; others are details by their names.
    `lines`: so many the pattern may need, with the one that has the word."""

    word: bytes
    kind: str
    pattern: re.Pattern[bytes]
    lines: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One line that is an event. `seconds`: since the boot; None: the line does not say."""

    key: EventKey
    details: dict[str, str]
    seconds: float | None


def _row(word: bytes, kind: str, pattern: bytes, lines: int = 1) -> Row:
    return Row(word, kind, re.compile(pattern.replace(b"%PCI", _PCI)), lines)


_XID, _MLX5, _AMDGPU, _PCIE = b"Xid (PCI:", b"mlx5_core ", b"amdgpu ", b"PCIe Bus Error: severity=Uncorrect"
_SXID_LINE = rb"nvidia-nvswitch\d+: SXid \(PCI:%PCI\): (?P<code>\d{1,9}), "
_LINK = rb"(?:Link (?P<link>\d{1,3}) )?(?P<text>.+)"
_MLX5_LINE = rb"mlx5_core %PCI(?: [^ :]+)?: (?:\w+:\d+:(?:\(pid \d+\):)? )?"
_PCIE_LINE = rb"[\w-]{1,32} %PCI: (?:AER: )?PCIe Bus Error: severity=Uncorrect(?:ed|able) "
_AMDGPU_LINE = rb"amdgpu %PCI: (?:amdgpu: )?"
ROWS = (
    _row(_XID, kinds.SXID_FATAL, _SXID_LINE + rb"Fatal, " + _LINK),
    _row(_XID, kinds.SXID, _SXID_LINE + rb"Non-fatal, " + _LINK),
    _row(
        _XID,
        kinds.XID_DETAIL,
        rb"NVRM: Xid \(PCI:%PCI\): (?P<code>13), .*\(GPC (?P<gpc>\d{1,3}), TPC (?P<tpc>\d{1,3}), SM (?P<sm>\d{1,3})\)",
    ),
    _row(
        _XID,
        kinds.XID_DETAIL,
        rb"NVRM: Xid \(PCI:%PCI\): (?P<code>74), .*NVLink: fatal error detected on link (?P<link>\d{1,3}) ?"
        rb"\((?P<registers>0x[0-9a-fA-F]{1,8}(?:, ?0x[0-9a-fA-F]{1,8}){6})\)",
    ),
    # One sentence of the driver, whose line ends vary between its versions.
    _row(
        b"NVRM: The NVIDIA GPU ",
        kinds.NVIDIA_OFF_BUS,
        rb"NVRM: The NVIDIA GPU %PCI\b[^\n]*(?:\n<[0-7]>" + _STAMP + rb"NVRM: (?!The )[^\n]*){0,2}"
        rb"(?P<text>fallen off the bus and is not responding)",
        lines=3,
    ),
    _row(
        b"RmInitAdapter failed",
        kinds.NVIDIA_INIT_FAILED,
        rb"NVRM: GPU %PCI: (?P<text>RmInitAdapter failed!? ?\([0-9a-fx:]{1,32}\))",
    ),
    _row(
        b"nvidia failed with error",
        kinds.NVIDIA_PROBE_FAILED,
        rb"nvidia %PCI: probe with driver nvidia failed with (?P<text>error -\d{1,9})",
    ),
    _row(
        b"nvidia: probe of ",  # of earlier kernels
        kinds.NVIDIA_PROBE_FAILED,
        rb"nvidia: probe of %PCI failed with (?P<text>error -\d{1,9})",
    ),
    _row(_MLX5, kinds.MLX5_STALLED, _MLX5_LINE + rb"device's health compromised - reached miss count"),
    _row(_MLX5, kinds.MLX5_FATAL, _MLX5_LINE + rb"(?P<text>Fatal error \d{1,9} detected)"),
    _row(_MLX5, kinds.MLX5_FATAL, _MLX5_LINE + rb"(?P<text>synd 0x[0-9a-f]{1,8}: unrecoverable hardware error)"),
    # Older kernels misspell it.
    _row(_MLX5, kinds.MLX5_RECOVERED, _MLX5_LINE + rb"health re(?:covery succeeded|vovery succeded)"),
    _row(
        _MLX5,
        kinds.MLX5_COMMAND_TIMEOUT,
        _MLX5_LINE + rb"(?P<text>\w{1,48}\(0x[0-9a-f]{1,8}\)) timeout\. Will cause a leak of a command resource",
    ),
    _row(
        _MLX5,
        kinds.MLX5_MODULE_HOT,
        _MLX5_LINE + rb"Port module event\[error\]: module (?P<module>\d{1,3}), Cable error, High Temperature",
    ),
    _row(_MLX5, kinds.MLX5_SLOT_POWER, _MLX5_LINE + rb"Detected insufficient power on the PCIe slot"),
    _row(_AMDGPU, kinds.AMDGPU_RING_TIMEOUT, _AMDGPU_LINE + rb"ring (?P<ring>[\w.]{1,32}) timeout"),
    _row(_AMDGPU, kinds.AMDGPU_RESET, _AMDGPU_LINE + rb"GPU reset begin"),
    _row(_AMDGPU, kinds.AMDGPU_RESET_FAILED, _AMDGPU_LINE + rb"(?P<text>GPU Recovery Failed: -?\d{1,9})"),
    _row(_AMDGPU, kinds.AMDGPU_RESET_FAILED, _AMDGPU_LINE + rb"(?P<text>GPU reset end with ret = -\d{1,9})"),
    # With a number that is not 0: the driver also says that there are none.
    _row(
        _AMDGPU,
        kinds.AMDGPU_UNCORRECTABLE,
        _AMDGPU_LINE + rb"(?:\{\d+\} ?)?(?:socket: \d+,? (?:die: \d+,? )?)?(?P<errors>[1-9]\d{0,14}) (?:new )?"
        rb"uncorrectable hardware errors detected in (?P<block>\w{1,32}) block",
    ),
    _row(_PCIE, kinds.PCIE_NON_FATAL, _PCIE_LINE + rb"\(Non-Fatal\), type=(?P<layer>[\w ]{1,32})"),
    _row(_PCIE, kinds.PCIE_FATAL, _PCIE_LINE + rb"\(Fatal\), type=(?P<layer>[\w ]{1,32})"),
)
_BY_WORD = {word: tuple(row for row in ROWS if row.word == word) for word in dict.fromkeys(row.word for row in ROWS)}


def read(lines: bytes, *, most: int | None = MAX_LINES) -> tuple[list[Said], bool]:
    """Return the events among these lines, those with one word after those with another; and whether more lines had one
    of the words than are read at a time. `most`: so many lines with one word; None: all."""
    events, unread = list[Said | None](), False
    for word, rows in _BY_WORD.items():
        found = _with(word, lines, max(row.lines for row in rows))
        events += [_event(line, rows) for line in islice(found, most)]
        unread = next(found, None) is not None or unread
    return [event for event in events if event is not None], unread


def _with(word: bytes, lines: bytes, count: int) -> Iterator[bytes]:
    """Return each line that has the word, and those after it up to `count` together."""
    at = lines.find(word)
    while at >= 0:
        ends = [at]
        for _ in range(count):
            end = lines.find(b"\n", ends[-1] + 1)
            ends.append(len(lines) if end < 0 else end)
        yield lines[lines.rfind(b"\n", 0, at) + 1 : ends[-1]]
        at = lines.find(word, ends[1])


def _event(line: bytes, rows: tuple[Row, ...]) -> Said | None:
    prefix = _PREFIX.match(line)
    if prefix is None or int(prefix[1]) >> 3:  # the facility; 0: the kernel
        return None
    said = line[prefix.end() : prefix.end() + MAX_LINE_BYTES]
    for row in rows:
        if found := row.pattern.match(said):
            groups = {name: value.decode("utf-8", "replace") for name, value in found.groupdict().items() if value}
            return _said(row.kind, groups, at=seconds(line))
    return None


def _said(kind: str, groups: dict[str, str], *, at: float | None) -> Said:
    address, code, registers = groups.pop("address"), groups.pop("code", ""), groups.pop("registers", "")
    details = {name: cleaned for name, value in groups.items() if (cleaned := text(value))}
    for place, register in enumerate(filter(None, registers.split(",")), start=1):
        if int(register, 16):
            details[f"register{place}"] = register.strip().lower()
    return Said(
        key=EventKey(
            kind=kind,
            # NVIDIA's driver leaves the function out
            pci_bus_id=normal_bus_id(address if "." in address else f"{address}.0"),
            xid=int(code) if code else None,
        ),
        details=details,
        seconds=at,
    )


def seconds(line: bytes) -> float | None:
    """Return when a line was written, in seconds since the boot; None: it does not say (printk.time is off)."""
    found = _TIME.match(line)
    return None if found is None else float(found[1])


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


def file_tail(path: Path, size: int) -> bytes:
    """Read a file in the place of the kernel's log."""
    with path.open("rb") as file:
        start = file.seek(max(0, file.seek(0, os.SEEK_END) - size))
        chunk = file.read(size)
    first = chunk.find(b"\n") + 1 if start else 0
    return chunk[first : chunk.rfind(b"\n") + 1]  # the last line may be half written


@dataclass(slots=True)
class Follower:
    """Returns what is new at each look; at the first one all that the log still has."""

    tail: Tail
    seen: bytes | None = None  # the newest lines that were seen; None: there was no look yet
    _size: int = field(default=len(SIZES) - 1)  # the first look reads all

    def news(self) -> tuple[bytes, bool]:
        """Return whole lines, oldest first, and whether there may have been others before them, which nobody can read
        now. Raises OSError."""
        before, chunk, at = self.seen, b"", -1
        for number in range(self._size, len(SIZES)):
            self._size, chunk = number, self.tail(SIZES[number])
            at = _after(chunk, before) if before else -1
            if at >= 0:
                break
        if chunk or before is None:
            self.seen = _last_lines(chunk, REMEMBERED_LINES)
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
UNREADABLE = "give the container the capability SYSLOG (component kmsg), or, under SELinux, a type that may read it"
LOST = Problem(
    code="KernelLogLinesLost",
    message="within the last minutes the kernel wrote more to its log than was read: faults may be missed; find what"
    " floods the log (dmesg), or boot with a larger log_buf_len",
)


@dataclass(slots=True, kw_only=True)
class KernelLogSource(SysfsSource):
    name: str = "kmsg"
    poll_seconds: float = 1.0
    follower: Follower = field(default_factory=lambda: Follower(kernel_tail))
    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], datetime] = lambda: datetime.now(UTC)
    _lost_at: float | None = field(default=None, init=False)

    def poll(self) -> SourceFacts:
        """Without a driver's name: the kernel is no driver of devices that this probe lists."""
        return replace(self.facts((), self._look), driver=NONE_NEEDED)

    def _look(self) -> Found:
        try:
            self._read()
        except OSError as error:
            why = f"the kernel log cannot be read: {error.strerror or error}"
            return (), (problem("KernelLogUnreadable", f"{why}; {UNREADABLE}"),)
        shown = self._lost_at is not None and self.monotonic() - self._lost_at < LOST_SHOWN_SECONDS
        return (), (LOST,) if shown else ()

    def _read(self) -> None:
        first = self.follower.seen is None
        news, lost = self.follower.news()
        events, unread = read(news, most=None if first else MAX_LINES)
        since_boot, now = self.monotonic(), self.wall()
        for said in events:
            # Of a line that is new the log's own clock says less than ours: it is not corrected, and drifts.
            age = _age(said, since_boot) if first else 0.0
            if age is not None:
                self.events.record(said.key, when=now - timedelta(seconds=age), details=said.details)
        if lost or unread:
            self._lost_at = since_boot


def _age(said: Said, since_boot: float) -> float | None:
    """Return how old a line of before is; None: too old to be reported now."""
    if said.seconds is None:
        return None
    age = max(0.0, since_boot - said.seconds)
    return age if since_boot < BOOTED_SECONDS or age < HISTORY_SECONDS else None


def source(options: Namespace) -> KernelLogSource:
    path: Path | None = options.kmsg_path
    return KernelLogSource(
        system=System(options.root),
        poll_seconds=options.interval_seconds,
        follower=Follower(kernel_tail if path is None else partial(file_tail, path)),
    )
