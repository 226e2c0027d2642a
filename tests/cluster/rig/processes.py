"""Our processes on this machine: started with a mark in their environment, found by it, ended by it.

No file remembers a pid: the kernel does. A process is ours when the environment it was started with names the cluster's
folder, so neither a pid that was used anew nor a process started a moment before everything was killed can mislead
`down`. Containers do not carry the mark; they end with their node's pid namespace. What a run of the tests starts has
the run's name in its environment as well, whether it belongs to a cluster or not (runs.py).
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cluster.rig.problem import RigError

FOLDER = "NODEDEVICES_RIG_FOLDER"
ROLE = "NODEDEVICES_RIG_ROLE"
RUN = "RIG_RUN"  # not NODEDEVICES_...: tests start agents and operators without such variables
END_SECONDS = 20
EXEC_SECONDS = 5  # on a busy machine, in which a process becomes another program


@dataclass(frozen=True)
class Process:
    pid: int
    role: str
    folder: str  # of its cluster; empty: it belongs to none
    run: str  # empty: a person's


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
    return [process for process in marked() if _belongs(process, folder, role)]


def _belongs(process: Process, folder: Path, role: str | None) -> bool:
    return process.folder == str(folder) and role in (None, process.role)


def marked() -> Iterator[Process]:
    """Every living process that bears a mark, but for this one."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid() and (process := _read(int(entry.name))):
            yield process


def _read(pid: int) -> Process | None:
    """The process, if it bears a mark. A zombie has no environment any more: it is over."""
    deadline = time.monotonic() + EXEC_SECONDS
    try:
        while not (raw := Path(f"/proc/{pid}/environ").read_bytes()) and _in_exec(pid) and time.monotonic() < deadline:
            time.sleep(0.001)
    except OSError:
        return None
    if FOLDER.encode() not in raw and RUN.encode() not in raw:
        return None
    known = dict(variable.partition("=")[::2] for variable in raw.decode(errors="replace").split("\0"))
    if FOLDER not in known and RUN not in known:
        return None
    return Process(pid, known.get(ROLE, ""), known.get(FOLDER, ""), known.get(RUN, ""))


def _in_exec(pid: int) -> bool:
    """Whether the process may be in the middle of an exec: its environment is empty until the kernel has laid it out.
    Raises FileNotFoundError for a zombie and for the kernel's own threads, which run no program."""
    Path(f"/proc/{pid}/exe").readlink()
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    start, end = (int(fields[number - 3]) for number in (50, 51))  # proc_pid_stat(5): env_start, env_end
    return start != end or start == 0


def end(folder: Path, role: str | None = None, *, how: signal.Signals = signal.SIGKILL) -> list[Process]:
    """Ends them and waits until they are gone; what was ended. RigError when one does not end."""
    return _end(lambda process: _belongs(process, folder, role), how)


def end_of(runs: Collection[str]) -> list[Process]:
    """Kills what these runs have started, and waits until it is gone; the rest is as for `end`."""
    return _end(lambda process: process.run in runs, signal.SIGKILL)


def _end(chosen: Callable[[Process], bool], how: signal.Signals) -> list[Process]:
    ended: list[Process] = []
    deadline = time.monotonic() + END_SECONDS
    while True:  # again, for what a dying one has just started
        living = [process for process in marked() if chosen(process)]
        if not living:
            return ended
        if time.monotonic() >= deadline:
            raise RigError(f"processes that do not end: {', '.join(f'{one.pid} ({one.role})' for one in living)}")
        ended += [one for one in living if one not in ended]
        _signal_and_wait(chosen, living, how, deadline)


def _signal_and_wait(
    chosen: Callable[[Process], bool], living: Iterable[Process], how: signal.Signals, deadline: float
) -> None:
    handles = []
    try:
        for one in living:
            with suppress(ProcessLookupError):
                handle = os.pidfd_open(one.pid)
                handles.append(handle)
                again = _read(one.pid)  # from here on the handle cannot mean another process
                if again is not None and chosen(again):
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
