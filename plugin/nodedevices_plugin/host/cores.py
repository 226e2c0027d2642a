"""Computing power on the node: the files that record what containers have, and the StartGate that waits for facts.

Each container has a folder on the host, mounted read-only into it. A folder is named by the ids, so that its name is
known before the container is. Its file is written before the container starts, and again when more is known; the agent
reads the files at its start. A folder whose ids no List of the kubelet has shown for ten minutes is removed. A file
that cannot be read is ignored.

At an allocation the pod may not have been seen yet: the kubelet and this agent learn of it at the same time, by two
watches. The answer waits a second at most, in a thread of its own; a pod that is still unknown counts as all of a
device. Before a container starts, PodResources shows which container the ids belong to; the kubelet allows 30 seconds
for that, and tries a refused start again. A container that is known to start again, or for which all of a device was
free, is never refused because PodResources does not answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog
from nodedevices_common.errors import OperationError
from nodedevices_common.files import replace
from nodedevices_common.periodic import within
from nodedevices_common.pod_requests import Demand

from nodedevices_plugin.cores.book import Allocated, CoreBook
from nodedevices_plugin.cores.ids import FILE, key
from nodedevices_plugin.cores.ledger import Owner, Recorded
from nodedevices_plugin.model import AllocationError, Holdings
from nodedevices_plugin.runtime.threads import Worker

READ_SECONDS = 2.0  # at the start
WRITE_SECONDS = 5.0  # while a container waits to be started
SWEEP_SECONDS = 60.0
KEPT_SECONDS = 600.0
MAX_BYTES = 4 << 20  # 16384 ids
MAX_FOLDERS = 8192

log = structlog.get_logger(__name__)


class AllocationFilesError(OperationError):
    """A file that cannot be written; the text says which and why."""


class AllocationFiles:
    """`held`: keys of the ids that containers have, None while that is not known."""

    def __init__(
        self,
        folder: Path,
        *,
        worker: Worker,
        held: Callable[[], Collection[str] | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._worker = worker
        self._held = held
        self._clock = clock
        self._written: dict[str, str] = {}
        self._last_held: dict[str, float] = {}
        self._known: tuple[Allocated, ...] = ()
        self._changed = asyncio.Event()

    async def read(self) -> Mapping[frozenset[str], Recorded]:
        """Return the records of earlier runs; none where the disk does not answer in time."""
        try:
            self._written = await self._worker.run(self._read, seconds=READ_SECONDS)
        except (OSError, TimeoutError) as error:
            log.warning("allocations not read", folder=str(self._folder), error=str(error) or "no answer")
        found = (recorded(content) for content in self._written.values())
        return dict(pair for pair in found if pair is not None)

    async def write(self, allocated: Allocated) -> None:
        """Raises AllocationFilesError; what another container had there before is gone then, or it says so."""
        name, content = key(allocated.ids), text(allocated)
        if self._written.get(name) == content:
            there = await within(WRITE_SECONDS, self._worker.run((self._folder / name / FILE).is_file))
            if there is not False:  # None: a disk that hangs keeps no container from starting again
                return
        try:
            await self._worker.run(lambda: _write(self._folder / name, content), seconds=WRITE_SECONDS)
        except TimeoutError as error:
            raise AllocationFilesError(f"write {self._folder / name}: no answer in {WRITE_SECONDS:g} s") from error
        except OSError as error:
            raise AllocationFilesError(f"write {self._folder / name}: {error.strerror or error}") from error
        self._written[name] = content

    def keep(self, every: Iterable[Allocated]) -> None:
        """Take the current records: `run` writes again those that are better known than at the container's start."""
        known = tuple(every)
        if known != self._known:
            self._known = known
            self._changed.set()

    async def run(self) -> None:
        """Until cancelled: write the records of `keep`, and remove those that no container has any more."""
        while True:
            swept = self._clock()
            while (left := swept + SWEEP_SECONDS - self._clock()) > 0:
                self._changed.clear()
                await self.update()
                await within(left, self._changed.wait())
            await self.sweep()

    async def update(self) -> None:
        for allocation in self._known:
            name = key(allocation.ids)
            if name in self._written and self._written[name] != text(allocation):
                try:
                    await self.write(allocation)
                except AllocationFilesError as error:
                    log.warning("allocation not written", error=str(error))

    async def sweep(self) -> None:
        names = await self._worker.run(self._names)
        held, now = self._held(), self._clock()  # after the list: a container may have come while it was made
        if held is None:
            return
        for name in names:
            if name in held:
                self._last_held[name] = now
        over = [name for name in names if now - self._last_held.setdefault(name, now) > KEPT_SECONDS]
        for name in over:  # before they go: what is written from now on is written after that, on the same thread
            self._written.pop(name, None)
            del self._last_held[name]
        if over:
            await self._worker.run(lambda: _remove(self._folder / name for name in over))

    # --- on the worker's thread ---------------------------------------------------------------------------------------
    def _names(self) -> list[str]:
        if not self._folder.is_dir():
            return []
        return sorted(path.name for path in self._folder.iterdir() if path.is_dir())[:MAX_FOLDERS]

    def _read(self) -> dict[str, str]:
        found = {}
        for name in self._names():
            with contextlib.suppress(OSError, UnicodeDecodeError):
                file = self._folder / name / FILE
                if file.stat().st_size <= MAX_BYTES:
                    found[name] = file.read_text(encoding="utf-8")
        return found


def _remove(folders: Iterable[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _write(folder: Path, content: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)  # a container's user may be any
    try:
        replace(folder / FILE, content)
    except OSError:
        (folder / FILE).unlink(missing_ok=True)  # rather none than another container's
        raise


def text(allocated: Allocated) -> str:
    """The file's content. `cores` is null while it is not known; `booked` is the agent's own."""
    owner, demand = allocated.owner, allocated.demand
    content = {
        "version": 1,
        "resource": allocated.resource,
        "device": allocated.device,
        "units": len(allocated.ids),
        "memoryMiB": allocated.memory_mib,
        "memoryTotalMiB": allocated.memory_total_mib,
        "cores": allocated.cores,
        "namespace": owner.namespace if owner else None,
        "pod": owner.pod if owner else None,
        "podUid": owner.uid if owner else None,
        "container": owner.container if owner else None,
        "booked": {"percent": demand.percent, "units": demand.units} if owner and demand else None,
        "ids": sorted(allocated.ids),
    }
    return json.dumps(content, indent=1) + "\n"


def recorded(content: str) -> tuple[frozenset[str], Recorded] | None:
    """Return the container that a file records for its ids."""
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
        found: dict[str, Any] = json.loads(content)
        booked = found["booked"]
        demand = Demand(percent=_whole(booked["percent"]), units=_whole(booked["units"]))
        owner = Owner(*(_text(found[name]) for name in ("podUid", "namespace", "pod", "container")))
        return frozenset(map(_text, found["ids"])), Recorded(owner=owner, demand=demand)
    return None


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(value)
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


SEEN_SECONDS = 1.0  # for a pod to be seen, before it is allocated
KNOWN_SECONDS = 10.0  # for a pod to be known, before it starts
LIST_AGAIN_SECONDS = 0.5


class CoreGate:
    """The StartGate of this agent. `holdings`: lists the holders now; `write`: records what a container has."""

    def __init__(
        self,
        book: CoreBook,
        *,
        holdings: Callable[[], Awaitable[Holdings]],
        write: Callable[[Allocated], Awaitable[None]],
        seen_seconds: float = SEEN_SECONDS,
        known_seconds: float = KNOWN_SECONDS,
    ) -> None:
        self._book = book
        self._holdings = holdings
        self._write = write
        self._seen_seconds = seen_seconds
        self._known_seconds = known_seconds
        self._changed = asyncio.Event()  # for the loop
        self._seen = threading.Condition()  # for threads

    def pods_changed(self) -> None:
        """Check again: the book knows other pods than before."""
        self._changed.set()
        self._changed = asyncio.Event()
        with self._seen:
            self._seen.notify_all()

    def ready(self, resource: str, size: int, ids: Sequence[str] = ()) -> None:
        with self._seen:
            self._seen.wait_for(lambda: self._book.knows(resource, size, ids), timeout=self._seen_seconds)

    async def before_start(self, resource: str, ids: Sequence[str]) -> None:
        deadline = time.monotonic() + self._known_seconds
        start = self._book.start(resource, ids)
        while start.wait and (left := deadline - time.monotonic()) > 0:
            holdings = await within(left, self._holdings())  # others may wait for a List before this one
            if holdings is not None:
                self._book.observe(holdings)
            start = self._book.start(resource, ids)
            if start.wait:
                await within(LIST_AGAIN_SECONDS, self._changed.wait())
                start = self._book.start(resource, ids)
        if start.refusal:
            raise AllocationError(start.refusal)
        if start.allocated is not None:
            try:
                await self._write(start.allocated)
            except OperationError as error:
                raise AllocationError(f"{resource}: {error}; the kubelet tries again") from error
