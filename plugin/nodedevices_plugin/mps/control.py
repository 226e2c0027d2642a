"""Calls NVIDIA's two programs: `nvidia-cuda-mps-control`, which is both the daemon and its client, and `nvidia-smi`.

An environment variable selects the daemon by its pipe folder (CUDA documentation, Multi-Process Service). Commands go
to the client's standard input. Every call has a time limit, because a driver may hang; a failure is a ControlError,
which has the command and its output.

The agent writes into the MPS root, and client containers into the pipe folders below it:
- Answers: the sockets are in a folder that the clients' containers can write, so any of them may answer. An answer is
  bounded and only compared.
- Files: no link is followed, nothing that could block (a FIFO) is waited for, and no file is read beyond a bound.
  Everything raises OSError. Files are written by nodedevices_common.files, which keeps to the same.
- Processes: which one serves a pipe folder, and whether it still runs, is read from /proc, not from the daemon's own
  pid file. A daemon of ours runs in this container: it has our mount namespace, which no other container's process can
  have, and its environment names the pipe folder. A process is identified by its pid and its start time, so that
  another process with the same pid is never taken for it; signals go through a pidfd, which never refers to another
  process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource as limits
import secrets
import select
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec import Struct
from nodedevices_common.errors import OperationError

from nodedevices_plugin.model import cuda_mps
from nodedevices_plugin.sharing import mps

CONTROL = "nvidia-cuda-mps-control"
SMI = "nvidia-smi"
PERCENTAGE = "get_default_active_thread_percentage"
ANSWER_SECONDS = 3.0
START_SECONDS = 20.0
SMI_SECONDS = 20.0
QUIT_SECONDS = 10.0
ENDING_SECONDS = 5.0  # from the answer to `quit` to the daemon's end
ANSWER_BYTES = 1 << 16
EXCLUSIVE, DEFAULT = "EXCLUSIVE_PROCESS", "DEFAULT"
SELINUX_LABEL = b"system_u:object_r:container_file_t:s0"
SHOWN = 300  # characters of the end of a program's output
_FROM = (
    "the nvidia container runtime brings it where NVIDIA_DRIVER_CAPABILITIES has compute and utility, "
    "the component driver-directory where there is no such runtime"
)


class ControlError(OperationError):
    """A program of NVIDIA's that failed or did not answer."""


class ControlMissingError(ControlError):
    """It is not there at all."""


class Control:
    """The daemons below one MPS root, as this container sees it. Every call raises ControlError."""

    def __init__(self, root: str) -> None:
        self._root = root

    def find(self) -> None:
        """Look for the programs. ControlMissingError where one is not there: no daemon can be started."""
        for program in (CONTROL, SMI):
            if shutil.which(program) is None:
                raise ControlMissingError(f"{program} not found; {_FROM}")

    def percentage(self, resource: str) -> int:
        """Return the percentage that the daemon gives each client. NVIDIA's plugin sends the same command to see
        whether a daemon is up."""
        answer = self.send(resource, PERCENTAGE)
        try:
            return int(float(answer))
        except (ValueError, OverflowError):
            raise ControlError(f"{PERCENTAGE}: answered {answer[:SHOWN]!r}, which is not a number") from None

    def send(self, resource: str, command: str, *, seconds: float = ANSWER_SECONDS) -> str:
        """One command to a running daemon: what it answered."""
        given = command + "\n"
        return _run([CONTROL], self._environment(resource), given=given, bounded=True, seconds=seconds).strip()

    def start(self, resource: str) -> None:
        """A new daemon in the background. One of ours that is still there, because it hangs, is killed first."""
        kill(self._found(resource))
        for folder in (mps.pipe_folder("", resource), mps.log_folder("", resource)):
            try:
                with open_folder(Path(self._root), *folder.strip("/").split("/")) as descriptor:
                    for_containers(descriptor)
                    if folder == mps.pipe_folder("", resource):
                        # What the last daemon left, and links that a client left for this one to write through.
                        clear(descriptor)
            except OSError as error:
                raise ControlError(f"{self._root}{folder}: {error.strerror or error}") from error
        _run([CONTROL, "-d"], self._environment(resource), seconds=START_SECONDS)

    def process(self, resource: str) -> Process | None:
        """The daemon, where it runs in this container. None: there is none, or it is of another's making."""
        return next(iter(self._found(resource)), None)

    def alive(self, process: Process) -> bool:
        return still_runs(process)

    def quit(self, resource: str) -> None:
        """One of ours ends in any case: the command may not reach it, or reach a client that listens in its place."""
        found = self._found(resource)
        try:
            self.send(resource, "quit", seconds=QUIT_SECONDS)
        finally:
            kill(found, after_seconds=ENDING_SECONDS)

    def set_mode(self, gpu: str, mode: str) -> None:
        """Set the compute mode of one GPU: EXCLUSIVE admits the daemon's server alone."""
        _run([SMI, "-i", gpu, "-c", mode], dict(os.environ), seconds=SMI_SECONDS)

    def _environment(self, resource: str) -> dict[str, str]:
        return {
            **os.environ,
            cuda_mps.PIPE_DIRECTORY: mps.pipe_folder(self._root, resource),
            cuda_mps.LOG_DIRECTORY: mps.log_folder(self._root, resource),
        }

    def _found(self, resource: str) -> tuple[Process, ...]:
        return find_processes(CONTROL, cuda_mps.PIPE_DIRECTORY, mps.pipe_folder(self._root, resource))


def for_containers(folder: str | int) -> None:
    """Let containers use the folder where SELinux is enabled (NVIDIA's plugin does the same)."""
    if Path("/sys/fs/selinux/enforce").exists():
        with contextlib.suppress(OSError):  # a file system without labels
            os.setxattr(folder, "security.selinux", SELINUX_LABEL)


def _run(
    argv: list[str], environment: dict[str, str], *, given: str = "", bounded: bool = False, seconds: float
) -> str:
    """Standard output. It goes through a file: a daemon keeps the descriptors of the program that started it.

    `bounded`: the program may write no more than an answer can have; not for one that leaves a daemon, and its logs.
    """
    what = " ".join([*argv, given.strip()]).strip()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        try:
            with subprocess.Popen(  # noqa: S603  a fixed program; arguments are checked where they come from
                argv, env=environment, text=True, stdin=subprocess.PIPE, stdout=said, stderr=said
            ) as program:
                if bounded:
                    with contextlib.suppress(ProcessLookupError):
                        limits.prlimit(program.pid, limits.RLIMIT_FSIZE, (ANSWER_BYTES, ANSWER_BYTES))
                try:
                    program.communicate(given, timeout=seconds)
                except subprocess.TimeoutExpired:
                    program.kill()
                    raise
        except FileNotFoundError:
            raise ControlMissingError(f"{argv[0]} not found; {_FROM}") from None
        except subprocess.TimeoutExpired:
            raise ControlError(f"{what}: no answer within {seconds:.0f} s") from None
        except OSError as error:
            raise ControlError(f"{what}: {error.strerror or error}") from error
        said.seek(0)
        answer = said.read(ANSWER_BYTES)
    if program.returncode != 0:
        output = " ".join(answer.split())[-SHOWN:] or "no output"
        raise ControlError(f"{what}: status {program.returncode}: {output}")
    return answer


# --- files and folders ------------------------------------------------------------------------------------------------
ASIDE = ".aside-"  # a folder that was in the way, and is not empty


def read(path: Path, limit: int) -> bytes:
    """At most `limit` bytes of a regular file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return file.read(limit)


@contextlib.contextmanager
def open_folder(root: Path, *names: str) -> Iterator[int]:
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


def find_processes(program: str, variable: str, value: str) -> tuple[Process, ...]:
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


def still_runs(process: Process) -> bool:
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
                if still_runs(process) and not _ended(descriptor, max(0.0, deadline - time.monotonic())):
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
