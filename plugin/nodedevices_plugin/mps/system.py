"""What a program with privileges does beside others that write below the MPS root: opening files and folders there, and
finding the control daemons' processes.

Files: the agent writes into the root, and client containers into the pipe folders below it. So no link is followed,
nothing that could block (a FIFO) is waited for, and no file is read beyond a bound. Everything raises OSError. Files
are written by nodedevices_common.files, which keeps to the same.

Processes: which one serves a pipe folder, and whether it still runs, is read from /proc. Nothing in the pipe folder is
trusted, even the daemon's own pid file. A daemon of ours runs in this container: it has our mount namespace, which no
other container's process can have, and its environment names the pipe folder. A process is identified by its pid and
its start time, so that another process with the same pid is never taken for it; signals go through a pidfd, which never
refers to another process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import select
import signal
import stat
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec import Struct

ASIDE = ".aside-"  # a folder that was in the way, and is not empty


def read(path: Path, limit: int) -> bytes:
    """At most `limit` bytes of a regular file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return file.read(limit)


@contextlib.contextmanager
def folder(root: Path, *names: str) -> Iterator[int]:
    """A descriptor of the folder `root/names[0]/...`, made where it is missing."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    root.mkdir(parents=True, exist_ok=True, mode=0o755)
    descriptor = os.open(root, flags)
    try:
        for name in names:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=descriptor)
            outer, descriptor = descriptor, os.open(name, flags | os.O_NOFOLLOW, dir_fd=descriptor)
            os.close(outer)
        yield descriptor
    finally:
        os.close(descriptor)


def clear(descriptor: int) -> None:
    """Leaves nothing in a folder under its name. Another folder in it is removed where it is empty, and else put aside:
    what is in it may be any number of folders deep."""
    for name in os.listdir(descriptor):
        with contextlib.suppress(FileNotFoundError):
            try:
                os.unlink(name, dir_fd=descriptor)
            except (IsADirectoryError, PermissionError):  # the latter: another system's answer for a folder
                _put_aside(descriptor, name)


def _put_aside(descriptor: int, name: str) -> None:
    try:
        os.rmdir(name, dir_fd=descriptor)
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
            raise
        if not name.startswith(ASIDE):
            os.rename(name, ASIDE + secrets.token_hex(8), src_dir_fd=descriptor, dst_dir_fd=descriptor)


# --- processes --------------------------------------------------------------------------------------------------------
PROC = Path("/proc")
ENDED_SECONDS = 2.0  # how long a killed process is waited for
_READ_BYTES = 1 << 18  # of a process's environment and arguments
_START_TIME = 19  # field 22 of /proc/PID/stat, counted from the one after the name (proc_pid_stat(5))
_DEAD = frozenset({b"Z", b"X"})


class Process(Struct, frozen=True, kw_only=True):
    """`start_ticks`: clock ticks after the boot, as in /proc/PID/stat."""

    pid: int
    start_ticks: int

    @property
    def instance(self) -> str:
        """No other process has had it, on this machine or since another boot."""
        boot_id = (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot_id}-{self.pid}-{self.start_ticks}"

    @property
    def started(self) -> datetime:
        """The start time, by the current wall clock."""
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - self.start_ticks / os.sysconf("SC_CLK_TCK")
        return datetime.now(UTC) - timedelta(seconds=age)


def find(program: str, variable: str, value: str) -> tuple[Process, ...]:
    """The processes of this container that run `program` with `variable=value` in their environment, oldest first."""
    own, user = _namespace("self"), os.geteuid()
    wanted = f"{variable}={value}".encode()
    found = []
    for pid in (int(path.name) for path in PROC.iterdir() if path.name.isdecimal()):
        with contextlib.suppress(OSError):
            process = _process(pid)
            if process is None or pid == os.getpid() or _namespace(str(pid)) != own:
                continue
            if (PROC / str(pid)).stat().st_uid != user:
                continue
            names = {os.path.basename(word) for word in _words(pid, "cmdline")[:2]}  # noqa: PTH119  bytes
            if program.encode() in names and wanted in _words(pid, "environ"):
                found.append(process)
    return tuple(sorted(found, key=lambda process: (process.start_ticks, process.pid)))


def alive(process: Process) -> bool:
    with contextlib.suppress(OSError):
        return _process(process.pid) == process
    return False


def kill(found: Sequence[Process], *, after_seconds: float = 0.0) -> None:
    """Ends exactly these, those that do not end by themselves within that time, and returns when they have ended."""
    deadline = time.monotonic() + after_seconds
    for process in found:
        with contextlib.suppress(OSError):  # it has ended
            descriptor = os.pidfd_open(process.pid)
            try:
                # Read after the descriptor was opened: what it means is this process from now on.
                if alive(process) and not _ended(descriptor, max(0.0, deadline - time.monotonic())):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                    _ended(descriptor, ENDED_SECONDS)
            finally:
                os.close(descriptor)


def _ended(descriptor: int, seconds: float) -> bool:
    return bool(select.select([descriptor], [], [], seconds)[0])


def _process(pid: int) -> Process | None:
    fields = (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    if len(fields) <= _START_TIME or fields[0] in _DEAD:
        return None
    return Process(pid=pid, start_ticks=int(fields[_START_TIME]))


def _namespace(pid: str) -> tuple[int, int]:
    found = (PROC / pid / "ns" / "mnt").stat()
    return found.st_dev, found.st_ino


def _words(pid: int, what: str) -> list[bytes]:
    with (PROC / str(pid) / what).open("rb") as file:
        return file.read(_READ_BYTES).split(b"\0")
