"""NVIDIA's two programs: `nvidia-cuda-mps-control`, which is the daemon and its client, and `nvidia-smi`.

Which daemon is meant is in the environment: its pipe folder (CUDA documentation, Multi-Process Service). Commands go to
the client's standard input. Every call has a time limit, because a driver may hang; a failure is a ControlError whose
text says what was asked and what came back.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from pathlib import Path

from nodedevices_plugin.resources import mps

CONTROL = "nvidia-cuda-mps-control"
SMI = "nvidia-smi"
PERCENTAGE = "get_default_active_thread_percentage"
ASK_SECONDS = 3.0
START_SECONDS = 20.0
SMI_SECONDS = 20.0
QUIT_SECONDS = 10.0
PID_FILE = "nvidia-cuda-mps-control.pid"  # in the pipe folder, by the daemon itself
EXCLUSIVE, DEFAULT = "EXCLUSIVE_PROCESS", "DEFAULT"
SELINUX_LABEL = b"system_u:object_r:container_file_t:s0"
SHOWN = 300  # characters of a program's last words
_FROM = "the nvidia container runtime brings it where NVIDIA_DRIVER_CAPABILITIES has compute and utility"


class ControlError(Exception):
    """A program of NVIDIA's that failed or did not answer."""


class ControlMissingError(ControlError):
    """It is not there at all."""


class Control:
    """The daemons below one MPS root, as this container sees it."""

    def __init__(self, root: str) -> None:
        self._root = root

    def percentage(self, resource: str) -> int:
        """What the daemon gives each client, in percent. NVIDIA's plugin asks the same to see whether it is up."""
        answer = self.ask(resource, PERCENTAGE)
        try:
            return int(float(answer))
        except ValueError:
            raise ControlError(f"{PERCENTAGE}: answered {answer[:SHOWN]!r}, which is no number") from None

    def ask(self, resource: str, command: str, *, seconds: float = ASK_SECONDS) -> str:
        """One command to a running daemon: what it answered."""
        return _run([CONTROL], self._environment(resource), given=command + "\n", seconds=seconds).strip()

    def start(self, resource: str) -> None:
        """A new daemon in the background; one that hangs there is killed first."""
        for folder in (mps.pipe_folder(self._root, resource), mps.log_folder(self._root, resource)):
            try:
                Path(folder).mkdir(parents=True, exist_ok=True, mode=0o755)
                for_containers(folder)
            except OSError as error:
                raise ControlError(f"{folder}: {error.strerror or error}") from error
        self._kill(resource)
        _run([CONTROL, "-d"], self._environment(resource), seconds=START_SECONDS)

    def quit(self, resource: str) -> None:
        self.ask(resource, "quit", seconds=QUIT_SECONDS)

    def set_mode(self, gpu: str, mode: str) -> None:
        """The compute mode of one GPU: EXCLUSIVE lets nobody but the daemon's server on it."""
        _run([SMI, "-i", gpu, "-c", mode], dict(os.environ), seconds=SMI_SECONDS)

    def _environment(self, resource: str) -> dict[str, str]:
        return {
            **os.environ,
            mps.PIPE_VARIABLE: mps.pipe_folder(self._root, resource),
            mps.LOG_VARIABLE: mps.log_folder(self._root, resource),
        }

    def _kill(self, resource: str) -> None:
        """Ends what the pid file names, if that is such a daemon: a number may be somebody else's by now."""
        with contextlib.suppress(OSError, ValueError):
            pid = int(Path(mps.pipe_folder(self._root, resource), PID_FILE).read_text())
            if pid > 1 and CONTROL.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)


def for_containers(folder: str) -> None:
    """Where SELinux is at work, containers may use the folder (NVIDIA's plugin does the same)."""
    if Path("/sys/fs/selinux/enforce").exists():
        with contextlib.suppress(OSError):  # a file system without labels
            os.setxattr(folder, "security.selinux", SELINUX_LABEL)


def _run(argv: list[str], environment: dict[str, str], *, given: str = "", seconds: float) -> str:
    """Standard output. It goes through a file: a daemon keeps the descriptors of the program that started it."""
    what = " ".join([*argv, given.strip()]).strip()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        try:
            done = subprocess.run(  # noqa: S603  a fixed program; arguments are checked where they come from
                argv, env=environment, input=given, text=True, stdout=said, stderr=said, timeout=seconds, check=False
            )
        except FileNotFoundError:
            raise ControlMissingError(f"{argv[0]} not found; {_FROM}") from None
        except subprocess.TimeoutExpired:
            raise ControlError(f"{what}: no answer within {seconds:.0f} s") from None
        except OSError as error:
            raise ControlError(f"{what}: {error.strerror or error}") from error
        said.seek(0)
        answer = said.read(1 << 16)
    if done.returncode != 0:
        words = " ".join(answer.split())[-SHOWN:] or "it said nothing"
        raise ControlError(f"{what}: status {done.returncode}: {words}")
    return answer
