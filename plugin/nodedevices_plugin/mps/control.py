"""Calls NVIDIA's two programs: `nvidia-cuda-mps-control`, which is both the daemon and its client, and `nvidia-smi`.

An environment variable selects the daemon by its pipe folder (CUDA documentation, Multi-Process Service). Commands go
to the client's standard input. Every call has a time limit, because a driver may hang; a failure is a ControlError,
which has the command and its output.

The sockets are in a folder that the clients' containers can write: any of them may answer, so an answer is bounded and
only compared. A daemon's process is known from the kernel (system).
"""

from __future__ import annotations

import contextlib
import os
import resource as limits
import shutil
import subprocess
import tempfile
from pathlib import Path

from nodedevices_common.errors import OperationError

from nodedevices_plugin.model import cuda_mps
from nodedevices_plugin.mps import system
from nodedevices_plugin.mps.system import Process
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
        system.kill(self._found(resource))
        for folder in (mps.pipe_folder("", resource), mps.log_folder("", resource)):
            try:
                with system.folder(Path(self._root), *folder.strip("/").split("/")) as descriptor:
                    for_containers(descriptor)
                    if folder == mps.pipe_folder("", resource):
                        # What the last daemon left, and links that a client left for this one to write through.
                        system.clear(descriptor)
            except OSError as error:
                raise ControlError(f"{self._root}{folder}: {error.strerror or error}") from error
        _run([CONTROL, "-d"], self._environment(resource), seconds=START_SECONDS)

    def process(self, resource: str) -> Process | None:
        """The daemon, where it runs in this container. None: there is none, or it is of another's making."""
        return next(iter(self._found(resource)), None)

    def alive(self, process: Process) -> bool:
        return system.alive(process)

    def quit(self, resource: str) -> None:
        """One of ours ends in any case: the command may not reach it, or reach a client that listens in its place."""
        found = self._found(resource)
        try:
            self.send(resource, "quit", seconds=QUIT_SECONDS)
        finally:
            system.kill(found, after_seconds=ENDING_SECONDS)

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
        return system.find(CONTROL, cuda_mps.PIPE_DIRECTORY, mps.pipe_folder(self._root, resource))


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
