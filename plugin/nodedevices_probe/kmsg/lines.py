"""Which lines of the kernel's log are events, as a table, and how they are found among all others.

Only lines of the kernel itself count (facility 0): a program may write to the log, too, and the kernel marks what it
writes. A row's expression must match from the first character of the text on, and takes no more than it names. Bytes
are searched for a few words before any line is looked at, so that a flood of other lines costs next to nothing; of a
flood of lines with one of these words at most MAX_LINES are read at a time. Of the whole log, at the first look, all
are: a machine with many NICs has more lines of their driver by its boot alone.

Sources: the lines of NVIDIA's driver as NVSentinel's and gpud's tests have them; mlx5's in the kernel's health.c,
events.c and cmd.c; amdgpu's in amdgpu_job.c, amdgpu_device.c and amdgpu_ras.c; aer.c for PCIe.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from nodedevices_probe import kmsg as kinds
from nodedevices_probe.protocol import normal_bus_id, text

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

    kind: str
    pci_bus_id: str
    code: int | None
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
        kind=kind,
        # NVIDIA's driver leaves the function out
        pci_bus_id=normal_bus_id(address if "." in address else f"{address}.0"),
        code=int(code) if code else None,
        details=details,
        seconds=at,
    )


def seconds(line: bytes) -> float | None:
    """Return when a line was written, in seconds since the boot; None: it does not say (printk.time is off)."""
    found = _TIME.match(line)
    return None if found is None else float(found[1])
