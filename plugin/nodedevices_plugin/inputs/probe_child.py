"""Starts the processes of probes, each with a pipe for its lines, its standard input, and a session of its own.

A spare process is started before the agent's modules are loaded, and before it is known which probes run: the first
built-in probe takes it (nodedevices_probe.spare). So two interpreters start side by side, and the first line is there
when the agent is ready for it. For that reason this module imports next to nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence

STDERR = 2  # the agent's own
REAP_SECONDS = 0.2  # it has opened nothing yet that the kernel could hold it in


class Spare:
    """One process, to be taken once."""

    def __init__(self) -> None:
        """OSError: no process can be started."""
        child, self._read_end, self._write_end = spawn([sys.executable, "-m", "nodedevices_probe.spare"])
        self._child: subprocess.Popen[bytes] | None = child

    @property
    def pid(self) -> int | None:
        """None: it was taken, or has ended."""
        return self._child.pid if self._child else None

    def take(self, arguments: Sequence[str]) -> tuple[subprocess.Popen[bytes], int] | None:
        """It becomes `nodedevices-probe` with these arguments. None: it was taken before, or has ended, or these are
        arguments that no command line can hold."""
        child = self._child
        line = json.dumps([*arguments, "--fd", str(self._write_end)]).encode() + b"\n"
        if child is not None and child.stdin is not None and not any("\0" in argument for argument in arguments):
            with contextlib.suppress(OSError):
                if child.poll() is None and child.stdin.write(line) == len(line):
                    self._child = None
                    return child, self._read_end
        self.end()
        return None

    def end(self) -> None:
        """End the spare process, unless a probe has taken it."""
        child, self._child = self._child, None
        if child is None:
            return
        os.close(self._read_end)
        child.kill()
        if child.stdin is not None:
            child.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(REAP_SECONDS)


def spare() -> Spare | None:
    """Start a spare process; None where that failed: the probe that needs a process reports why."""
    try:
        return Spare()
    except OSError:
        return None


def spawn(command: Sequence[str]) -> tuple[subprocess.Popen[bytes], int, int]:
    """Start `command` with `--fd N` appended. Return the child, where its lines are read, and that number."""
    read_end, write_end = os.pipe()
    try:
        child = subprocess.Popen(  # noqa: S603  the command is ours or the test's
            [*command, "--fd", str(write_end)],
            stdin=subprocess.PIPE,
            bufsize=0,
            stdout=STDERR,
            pass_fds=(write_end,),
            start_new_session=True,
        )
    except BaseException:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
    if child.stdin is not None:
        os.set_blocking(child.stdin.fileno(), False)
    return child, read_end, write_end
