"""The agent's side of MPS: writes the wanted control daemons into a file, and queries each daemon.

The file is for nodedevices-mps (package mps), which has the privileges to run them. Any client may query a daemon, and
only its answer is trusted: a daemon that another program runs (NVIDIA's mps-control-daemon) is as good. On a worker
thread of its own, since the client may hang with the driver.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

import structlog
from nodedevices_common.files import update
from nodedevices_common.periodic import Periodic

from nodedevices_plugin.mps import records
from nodedevices_plugin.mps.control import Control, ControlError, ControlMissingError, read
from nodedevices_plugin.runtime.threads import Worker
from nodedevices_plugin.sharing.daemons import BEING_STARTED, READY, DaemonProcess, DaemonState, DaemonStatus, MpsFacts
from nodedevices_plugin.sharing.mps import DaemonKey, MpsDaemon

log = structlog.get_logger(__name__)

POLL_SECONDS = 5.0  # a daemon that answers
RETRY_SECONDS = 1.0  # one that does not
PATIENCE_SECONDS = 10.0  # what a start may take before the problem is reported
MISSED = 2  # questions in a row without an answer, before one that did answer is silent


class MpsDaemons(Periodic):
    """Gets the wanted MPS daemons to run, and queries them. folder: the MPS root as mounted in this container.

    Nothing here blocks the event loop. `facts` is replaced, never changed; `on_change` is called on the loop when it is
    another. facts.before: what the file said at the start. No daemon that serves running pods is restarted, unless the
    wanted ones changed.
    """

    def __init__(self, folder: Path, *, worker: Worker, on_change: Callable[[], None]) -> None:
        super().__init__(self._reconcile, seconds=lambda: self._pause)
        self._file = folder / records.WANTED_FILE
        self._running = folder / records.RUNNING_FILE
        self._control = Control(str(folder))
        self._worker = worker
        self._on_change = on_change
        self._wanted: tuple[MpsDaemon, ...] | None = None
        self._since: dict[DaemonKey, float] = {}  # time.monotonic()
        self._missed: dict[DaemonKey, int] = {}
        self._pause: float | None = None  # None: until something is wanted
        self._problem = ""
        self._alive: dict[str, bool | None] = {}  # by resource
        self.facts = MpsFacts(
            before=_read(self._file, records.File[MpsDaemon]),
            taken=_taken(_read(self._running, records.File[records.Running])),
        )

    def want(self, daemons: tuple[MpsDaemon, ...] | None) -> None:
        """Run these from now on, and no others. None: not known yet, and running ones stay."""
        if daemons is not None and daemons != self._wanted:
            self._wanted = daemons
            self.soon()

    async def _reconcile(self) -> None:
        """Write which daemons are wanted, and query each once."""
        self._pause = RETRY_SECONDS  # should it fail
        daemons = self._wanted or ()
        text = records.text(daemons)
        unwritten = await self._worker.run(lambda: _write(self._file, text, create=bool(daemons)))
        if unwritten and unwritten != self._problem:
            log.warning("failed to request MPS control daemons", error=unwritten)
        self._problem = unwritten
        now = time.monotonic()
        self._since = {daemon.key: self._since.get(daemon.key, now) for daemon in daemons}
        self._alive = {daemon.resource: self._alive.get(daemon.resource) for daemon in daemons}
        found: dict[DaemonKey, DaemonStatus] = {daemon.key: await self._query(daemon, unwritten) for daemon in daemons}
        # Read after they answered: it is not an older one.
        running = await self._worker.run(lambda: _read(self._running, records.File[records.Running]))
        which = {daemon.resource: daemon for daemon in running}
        processes = {resource: _process(alive, which.get(resource)) for resource, alive in self._alive.items()}
        facts = MpsFacts(statuses=found, processes=processes, before=self.facts.before, taken=_taken(running))
        if facts != self.facts:
            self.facts = facts
            self._on_change()
        again = any(status != READY for status in found.values()) or any(self._missed.values())
        kept = {id_ for daemon in daemons for id_ in daemon.device_ids}
        again = again or not facts.taken <= kept  # one is being ended
        self._pause = (RETRY_SECONDS if again else POLL_SECONDS) if daemons or again or self._problem else None

    async def _query(self, daemon: MpsDaemon, unwritten: str) -> DaemonStatus:
        """Query a daemon; its answer as text that stays the same while nothing changes."""
        key = daemon.key
        why, report_now, silent = unwritten, bool(unwritten), False
        try:
            percentage = await self._worker.run(lambda: self._control.percentage(daemon.resource))
            self._alive[daemon.resource] = True
            if percentage == daemon.percentage:
                self._missed[key] = 0
                return READY
            why = why or f"limits its clients to {percentage} %, not {daemon.percentage} %"
        except ControlError as error:
            why = why or f"does not answer: {error}"
            missing = isinstance(error, ControlMissingError)  # then the daemon's state is not known
            report_now, silent = report_now or missing, not missing
        self._missed = {other: count for other, count in self._missed.items() if other in self._since}
        self._missed[key] = self._missed.get(key, 0) + 1
        if self.facts.statuses.get(key) == READY and self._missed[key] < MISSED:
            return READY
        starting = time.monotonic() - self._since[key] < PATIENCE_SECONDS
        if silent and self._missed[key] >= MISSED and not starting:
            self._alive[daemon.resource] = False
        return BEING_STARTED if starting and not report_now else DaemonStatus(state=DaemonState.SILENT, message=why)


def _read(file: Path, kind: type[records.File[records.Daemon]]) -> tuple[records.Daemon, ...]:
    """Return what the file has of daemons; nothing where there is none: then a daemon's process is not known."""
    try:
        return records.read(read(file, records.MAX_BYTES + 1), kind)
    except (OSError, records.RecordError):
        return ()


def _taken(running: Iterable[records.Running]) -> frozenset[str]:
    return frozenset(gpu.id for run in running for gpu in run.gpus)


def _process(alive: bool | None, known: records.Running | None) -> DaemonProcess:
    if known is None or not known.instance:
        return DaemonProcess(answers=alive)
    return DaemonProcess(answers=alive, instance=known.instance, started=known.started)


def _write(file: Path, text: str, *, create: bool) -> str:
    """Replace the file where it says something else. "" or why not; without `create` a missing one is left so."""
    try:
        if create or file.exists():
            update(file, text)
    except OSError as error:
        why = error.strerror or error
        return f"cannot be requested: {file}: {why}; mount the MPS root there (manifests/components/mps)"
    return ""
