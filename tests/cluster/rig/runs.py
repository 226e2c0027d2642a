"""Runs of the tests and the demo: a run ends what it has started, and removes what a killed one has left.

A run is a process, named by its pid and by when the kernel started it: a pid that is used again is another run. Each
process that a run starts has the name in its environment, each cluster in a file of its folder. A run whose process is
gone was killed. Left alone are living runs, clusters that a person has brought up (they have no such name), and runs
with another folder for clusters (NODEDEVICES_STATE), with which the name begins.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path

from cluster.rig import binaries, layout, processes, rig
from cluster.rig.problem import RigError

REMOVE_SECONDS = 60  # another run may be removing the same


def name(pid: int) -> str:
    return f"{layout.state_root().absolute()}:{pid}:{_started(pid)}"


def current() -> str:
    """The living run that this process is a part of, if there is one."""
    run = os.environ.get(processes.RUN, "")
    return run if run and alive(run) else ""


def begin() -> None:
    """This process is a run, and what it starts from now on belongs to it."""
    os.environ[processes.RUN] = name(os.getpid())


def alive(run: str) -> bool:
    _, pid, started = run.rsplit(":", 2)
    return _started(int(pid)) == started


def _started(pid: int) -> str | None:
    """When it was started, in the kernel's ticks; None: it is over."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "XZ" else fields[22 - 3]  # proc_pid_stat(5): starttime


def end() -> str:
    """Ends and removes what this process has started as a run; one line that says what, or nothing."""
    return _remove({name(os.getpid())})


def remove_left(say: Callable[[str], object]) -> None:
    """Removes what killed runs have left, and says so, or why it cannot, in one line."""
    if not _left():
        return
    try:
        with layout.lock("removing what killed runs have left", seconds=REMOVE_SECONDS):
            removed = _remove(_left())
    except RigError as error:
        say(f"what a killed run has left cannot be removed: {error}")
        return
    if removed:
        say(f"removed what a killed run had left: {removed}")


def _left() -> set[str]:
    known = {process.run for process in processes.marked()} | {layout.owner(folder) for folder in layout.folders()}
    return {run for run in known if run.startswith(f"{layout.state_root().absolute()}:") and not alive(run)}


def _remove(runs: Collection[str]) -> str:
    """Kills their processes and takes their clusters down; a Ctrl-C that comes meanwhile comes afterwards."""
    with binaries.later(signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        ended = Counter(process.folder for process in processes.end_of(runs))
        removed = []
        for folder in layout.folders():
            if layout.owner(folder) in runs:
                what = [_processes(ended.pop(str(folder), 0)), *_down(folder, runs)]
                removed.append(f"cluster {folder.name} ({'; '.join(what)})")
        if ended:
            removed.append(_processes(ended.total()))
        return ", ".join(removed)


def _down(folder: Path, runs: Collection[str]) -> list[str]:
    try:
        return rig.down(folder, owners=runs)
    except RigError as error:
        return [str(error)]


def _processes(count: int) -> str:
    return f"{count} process{'' if count == 1 else 'es'}"
