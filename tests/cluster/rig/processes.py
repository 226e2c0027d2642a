"""Our processes on this machine: started with a mark in their environment, found by it, ended by it.

No file remembers a pid: the kernel does. A process is ours when the environment it was started with names the cluster's
folder, so neither a pid that was used anew nor a process started a moment before everything was killed can mislead
`down`. Containers do not carry the mark; they end with their node's pid namespace.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cluster.rig.problem import RigError

FOLDER = "NODEDEVICES_RIG_FOLDER"
ROLE = "NODEDEVICES_RIG_ROLE"
END_SECONDS = 20
EXEC_SECONDS = 5  # on a busy machine, in which a process becomes another program


@dataclass(frozen=True)
class Process:
    pid: int
    role: str


def start(
    folder: Path,
    role: str,
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    mortal: bool = False,
) -> subprocess.Popen[bytes] | None:
    """Starts a daemon whose output goes to FOLDER/log/ROLE.

    It belongs to nobody and outlives this process, unless it is `mortal`: then it is our child, returned, and the
    kernel kills it when we end, however we end.
    """
    logs = folder / "log"
    logs.mkdir(parents=True, exist_ok=True)
    marked = {**os.environ, **(environment or {}), FOLDER: str(folder), ROLE: role}
    prefix = ["setpriv", "--pdeathsig", "KILL"] if mortal else ["setsid", "--fork"]
    with (logs / role).open("ab") as log:
        process = subprocess.Popen(
            [*prefix, *command],
            cwd="/",
            env=marked,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=mortal,
        )
    if mortal:
        return process
    process.wait()
    return None


def find(folder: Path, role: str | None = None) -> list[Process]:
    """Every living process of this folder's cluster, or those of one role."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        mark = _mark(int(entry.name))
        if mark is not None and mark[0] == str(folder) and role in (None, mark[1]):
            found.append(Process(int(entry.name), mark[1]))
    return found


def _mark(pid: int) -> tuple[str, str] | None:
    """(folder, role) of a process that bears our mark. A zombie has no environment any more: it is over."""
    deadline = time.monotonic() + EXEC_SECONDS
    try:
        while not (raw := Path(f"/proc/{pid}/environ").read_bytes()) and _in_exec(pid) and time.monotonic() < deadline:
            time.sleep(0.001)
    except OSError:
        return None
    if FOLDER.encode() not in raw:
        return None
    known = dict(one.partition("=")[::2] for one in raw.decode(errors="replace").split("\0"))
    return known.get(FOLDER, ""), known.get(ROLE, "")


def _in_exec(pid: int) -> bool:
    """Whether the process may be in the middle of an exec: its environment is empty until the kernel has laid it out.
    Raises FileNotFoundError for a zombie and for the kernel's own threads, which run no program."""
    Path(f"/proc/{pid}/exe").readlink()
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    start, end = (int(fields[number - 3]) for number in (50, 51))  # proc_pid_stat(5): env_start, env_end
    return start != end or start == 0


def end(folder: Path, role: str | None = None, *, how: signal.Signals = signal.SIGKILL) -> list[Process]:
    """Ends them and waits until they are gone; what was ended. RigError when one does not end."""
    ended: list[Process] = []
    deadline = time.monotonic() + END_SECONDS
    while True:  # again, for what a dying one has just started
        living = find(folder, role)
        if not living:
            return ended
        if time.monotonic() >= deadline:
            raise RigError(f"processes that do not end: {', '.join(f'{one.pid} ({one.role})' for one in living)}")
        ended += [one for one in living if one not in ended]
        _signal_and_wait(folder, living, how, deadline)


def _signal_and_wait(folder: Path, living: Iterable[Process], how: signal.Signals, deadline: float) -> None:
    handles = []
    try:
        for one in living:
            with suppress(ProcessLookupError):
                handle = os.pidfd_open(one.pid)
                handles.append(handle)
                mark = _mark(one.pid)  # read again: from here on the handle cannot mean another process
                if mark is not None and mark[0] == str(folder):
                    signal.pidfd_send_signal(handle, how)
        poll = select.poll()
        for handle in handles:
            poll.register(handle, select.POLLIN)
        waiting = len(handles)
        while waiting and time.monotonic() < deadline:
            for handle, _ in poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                poll.unregister(handle)
                waiting -= 1
    finally:
        for handle in handles:
            os.close(handle)
