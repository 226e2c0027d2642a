"""Reconciles the control daemons with the file of wanted ones. Level-based: killed anywhere, the next run goes on.

Each change is written to a second file before it is made (records), so that nothing is forgotten after a crash: a GPU
left in compute mode EXCLUSIVE_PROCESS would refuse every container but one. A daemon that runs already is taken over;
one that stays silent is started again, ever more rarely. Limits of GPUs that come or go, and limits that another
program changed, are sent to the running daemon, because its end would end its clients. A GPU that fails does not keep
the others from being shared.

The second file also identifies each daemon's process. A daemon whose process has ended is dead, even if something
answers: its clients can write where its sockets are.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from datetime import datetime
from pathlib import Path

import structlog
from msgspec import Struct, field
from nodedevices_common.backoff import Backoff
from nodedevices_common.files import replace

from nodedevices_plugin.mps import records
from nodedevices_plugin.mps.control import DEFAULT, EXCLUSIVE, Control, ControlError, Process, read
from nodedevices_plugin.sharing import mps

log = structlog.get_logger(__name__)

CHECK_SECONDS = 5.0  # between two questions to a daemon that answers
MISSED = 2  # queries in a row without an answer: it is dead
BACKOFF = Backoff(initial_seconds=1.0, max_seconds=60.0, jitter=0.0)


class _Run(Struct):
    """One daemon. `done`: the daemon as it was last told to be; None: it is not known whether it runs."""

    gpus: dict[str, mps.Gpu] = field(
        default_factory=dict
    )  # those in compute mode EXCLUSIVE_PROCESS, or soon to be (waits)
    done: mps.MpsDaemon | None = None
    process: Process | None = None  # None: not searched for yet, or of another's making
    instance: str = ""  # of the process that it is, or was before the runner started; "": of another's making
    started: datetime | None = None
    checked: float = 0.0
    missed: int = 0
    failures: int = 0
    not_before: float = 0.0
    logged: set[str] = field(default_factory=set)  # problems that were logged since all was well


class Runner:
    """`root`: the MPS root as this container sees it. Times are those of time.monotonic()."""

    def __init__(self, root: Path, daemons: Control) -> None:
        self._wanted_file = root / records.WANTED_FILE
        self._done_file = root / records.RUNNING_FILE
        self._daemons = daemons
        self._wanted: tuple[mps.MpsDaemon, ...] | None = None  # None: nothing was wanted yet
        self._last_problem = ""
        self._written = ""
        self._runs = {
            daemon.resource: _Run(
                gpus={gpu.id: gpu for gpu in daemon.gpus}, instance=daemon.instance, started=daemon.started
            )
            for daemon in self._remembered()
        }

    def step(self, now: float) -> None:
        """One pass over the file and every daemon."""
        self._read()
        if self._wanted is None:
            return
        self._end_all_but({daemon.resource for daemon in self._wanted})
        for daemon in self._wanted:
            run = self._runs.setdefault(daemon.resource, _Run())
            if now < run.not_before:
                continue
            try:
                self._keep(daemon, run, now)
            except ControlError as error:
                run.failures += 1
                delay = BACKOFF.after(run.failures)
                run.not_before, run.done = now + delay, None
                self._warn_once(run, "MPS control daemon not running", daemon.resource, error, again_in_seconds=delay)

    def stop(self) -> None:
        """End every daemon of ours, and set the GPUs back to the default compute mode."""
        self._end_all_but(frozenset())

    # --- one daemon ---------------------------------------------------------------------------------------------------
    def _keep(self, daemon: mps.MpsDaemon, run: _Run, now: float) -> None:
        if run.done is not None and run.process is not None and not self._daemons.alive(run.process):
            log.warning("MPS control daemon ended, restarting", resource=daemon.resource)
            run.done = None
        if run.done is not None and now - run.checked >= (CHECK_SECONDS if not run.missed else 0):
            run.checked = now
            self._check(run.done, run)
        if run.done == daemon:
            return
        if daemon.waits:
            if not run.gpus:
                self._daemons.find()  # a daemon that cannot be started withholds nothing
            run.gpus |= {gpu.id: gpu for gpu in daemon.gpus}
            self._remember()
            return
        before = run.done
        self._take_gpus(daemon, run)
        if before is None or before.percentage != daemon.percentage:
            self._start(daemon, run)
            run.checked, before = now, None
        changed = [gpu for gpu in daemon.gpus if before is None or gpu not in before.gpus]
        if before is not None and {gpu.id for gpu in changed} & {gpu.id for gpu in before.gpus}:
            self._apply_limits(daemon, run)  # other limits: a server of clients that ended goes on for the next ones
        else:
            self._limit(mps.memory_commands(changed), daemon.resource, run)
        run.done, run.failures, run.missed, run.logged = daemon, 0, 0, set()
        log.info("MPS control daemon ready", resource=daemon.resource, gpus=len(daemon.gpus), percent=daemon.percentage)

    def _check(self, done: mps.MpsDaemon, run: _Run) -> None:
        try:
            percentage = self._daemons.percentage(done.resource)
        except ControlError as error:
            run.missed += 1
            if run.missed >= MISSED:
                log.warning("MPS control daemon unresponsive, restarting", resource=done.resource, error=str(error))
                run.done, run.missed = None, 0
            return
        run.missed = 0
        if percentage == done.percentage:
            run.logged.clear()
            return
        why = f"it limits its clients to {percentage} %, not {done.percentage} %"
        self._warn_once(run, "limits changed by another client; set again", done.resource, why)
        self._apply_limits(done, run)

    def _apply_limits(self, done: mps.MpsDaemon, run: _Run) -> None:
        """All limits, to the daemon and its servers: for the clients that come; those that are there go on."""
        try:
            servers = mps.servers(self._daemons.send(done.resource, mps.SERVERS))
        except ControlError as error:
            servers = ()
            self._warn_once(run, "MPS servers not listed", done.resource, error)
        commands = [command for server in servers for command in mps.server_commands(server, done)]
        self._limit((*mps.memory_commands(done.gpus), *commands), done.resource, run)
        self._limit((mps.thread_command(done.percentage),), done.resource, run)  # what is read back comes last

    def _limit(self, commands: Iterable[str], resource: str, run: _Run) -> None:
        for command in commands:
            try:
                self._daemons.send(resource, command)
            except ControlError as error:  # of one GPU
                self._warn_once(run, "limit not set", resource, error)

    def _start(self, daemon: mps.MpsDaemon, run: _Run) -> None:
        """Start a daemon, or take over one that runs with the right limits. One whose process has ended does not run,
        even if something answers."""
        process = self._daemons.process(daemon.resource)
        try:
            died = bool(run.instance) and process is None
            runs_with = None if died else self._daemons.percentage(daemon.resource)
        except ControlError:
            runs_with = None
        taken_over = runs_with == daemon.percentage
        if not taken_over:
            if runs_with is not None:
                self._daemons.quit(daemon.resource)
            self._daemons.start(daemon.resource)
            process = self._daemons.process(daemon.resource)
        self._set_process(process, run)  # before it answers as the agent wants it: then the file says which one it is
        if not taken_over:
            self._daemons.send(daemon.resource, mps.thread_command(daemon.percentage))

    def _set_process(self, process: Process | None, run: _Run) -> None:
        """Record the daemon's process in the file. A daemon that is taken over keeps its recorded start."""
        run.process = process
        instance = process.instance if process is not None else ""
        if instance != run.instance:
            run.instance, run.started = instance, process.started if process is not None else None
        self._remember()

    def _take_gpus(self, daemon: mps.MpsDaemon, run: _Run) -> None:
        gone = [gpu for gpu in run.gpus if gpu not in {given.id for given in daemon.gpus}]
        run.gpus = {gpu.id: gpu for gpu in daemon.gpus} | {gpu: run.gpus[gpu] for gpu in gone}
        self._remember()
        failed = []
        for gpu in daemon.gpus:
            try:
                self._daemons.set_mode(gpu.id, EXCLUSIVE)
            except ControlError as error:
                failed.append(error)
                self._warn_once(run, "compute mode not set", daemon.resource, error, gpu=gpu.id)
        if failed and len(failed) == len(daemon.gpus):
            raise failed[0]
        self._release(gone, run)

    def _end_all_but(self, wanted: Set[str]) -> None:
        for resource in sorted(self._runs.keys() - wanted):
            run = self._runs.pop(resource)
            try:
                self._daemons.quit(resource)
                log.info("MPS control daemon ended", resource=resource)
            except ControlError as error:
                log.info("MPS control daemon was not running", resource=resource, error=str(error))
            self._release(run.gpus, run)
        self._remember()

    def _release(self, gpus: Iterable[str], run: _Run) -> None:
        for gpu in list(gpus):
            try:
                self._daemons.set_mode(gpu, DEFAULT)
            except ControlError as error:  # it may have left
                log.warning("failed to restore the compute mode", gpu=gpu, error=str(error))
            run.gpus.pop(gpu, None)

    # --- files --------------------------------------------------------------------------------------------------------
    def _read(self) -> None:
        try:
            found = records.read(read(self._wanted_file, records.MAX_BYTES + 1), records.File[mps.MpsDaemon])
        except FileNotFoundError:
            return
        except (OSError, records.RecordError) as error:
            self._log_problem(f"{self._wanted_file}: {error}")
            return
        self._last_problem = ""
        if found != self._wanted:
            log.info("MPS control daemons requested", resources=[daemon.resource for daemon in found])
        self._wanted = found

    def _remembered(self) -> tuple[records.Running, ...]:
        try:
            return records.read(read(self._done_file, records.MAX_BYTES + 1), records.File[records.Running])
        except FileNotFoundError:
            return ()
        except (OSError, records.RecordError) as error:
            log.warning("failed to read the previously running daemons", file=str(self._done_file), error=str(error))
            return ()

    def _remember(self) -> None:
        text = records.text(
            records.Running(resource=name, gpus=tuple(run.gpus.values()), instance=run.instance, started=run.started)
            for name, run in sorted(self._runs.items())
        )
        if text == self._written:
            return
        try:
            replace(self._done_file, text)
            self._written = text
        except OSError as error:  # a crash would leave GPUs to this daemon alone; without one nothing is lost
            self._log_problem(f"{self._done_file}: {error.strerror or error}")

    def _warn_once(self, run: _Run, message: str, resource: str, error: ControlError | str, **more: object) -> None:
        text = f"{message}: {error}"
        if text not in run.logged:
            run.logged.add(text)
            log.warning(message, resource=resource, error=str(error), **more)

    def _log_problem(self, text: str) -> None:
        if text != self._last_problem:
            self._last_problem = text
            log.warning("file error; running daemons continue", error=text)
