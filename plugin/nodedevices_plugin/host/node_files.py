"""The files that vendors keep on the node for other programs (Vendor.node_files). On a worker thread.

A hidden list beside the files names those that are ours. It is written before a file and shortened after its removal:
so the next agent removes files of an agent that was killed, and never other programs' files. A folder that is not
there gets none. It is compared
every few seconds, since the plugin that this agent replaces removes files of the same names when it ends. A failure is
reported and retried, and delays nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import structlog
from nodedevices_common.errors import OperationError
from nodedevices_common.files import head, replace, unfinished, update

from nodedevices_plugin.runtime.threads import Worker
from nodedevices_plugin.vendors.base import FolderFiles

log = structlog.get_logger(__name__)

LIST = ".nodedevices-files.json"
COMPARE_SECONDS = 10.0  # also how soon what failed is tried again
PATIENCE_SECONDS = 0.25  # nothing waits for these files
MAX_BYTES = 256 << 10
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:-]{0,254}")


class NodeFilesError(OperationError):
    """A file that cannot be kept; the text says which and why."""


class NodeFiles:
    """`keep` may be called at every step; it does something when something changed, and now and then.

    problem: why a file is not as it should be; empty: all are.
    """

    def __init__(self, *, worker: Worker, compare_seconds: float = COMPARE_SECONDS) -> None:
        self._worker = worker
        self._compare_seconds = compare_seconds
        self._kept: tuple[FolderFiles, ...] = ()
        self._next = 0.0  # time.monotonic() of the next comparison
        self.problem = ""

    async def keep(self, wanted: Sequence[FolderFiles]) -> None:
        """Returns when they are there, or after a moment: a folder that hangs must not hold the kubelet back."""
        now = time.monotonic()
        changed = tuple(wanted) != self._kept
        if now < self._next and (not changed or self.problem):
            return
        self._kept, self._next = tuple(wanted), now + self._compare_seconds
        try:
            done = await self._worker.run(lambda: [keep_folder(files) for files in wanted], seconds=PATIENCE_SECONDS)
        except (NodeFilesError, TimeoutError) as error:
            folders = ", ".join(files.folder for files in wanted)
            why = str(error) or f"{folders}: took more than {PATIENCE_SECONDS} s"
            if why != self.problem:
                log.warning("files for other programs on the node not written", error=why)
            self.problem = why
            return
        self.problem = ""
        for files, (written, removed) in zip(wanted, done, strict=True):
            if written or removed:
                log.info("files on the node written", folder=files.folder, written=len(written), removed=len(removed))


def keep_folder(wanted: FolderFiles) -> tuple[Sequence[str], Sequence[str]]:
    """Write and remove files. Returns the written and the removed ones. Raises NodeFilesError."""
    folder = Path(wanted.folder)
    if not os.path.lexists(folder):
        return [], []  # not mounted: nobody wants them
    files = {name: text for name, text in wanted.files.items() if NAME.fullmatch(name)}
    try:
        listed = _listed(folder)
        if not files and not listed:
            return [], []
        spare = sorted(listed - files.keys())
        if not files.keys() <= listed:
            _list(folder, listed | files.keys())
        written = [name for name, text in files.items() if update(folder / name, text)]
        for name in spare:
            (folder / name).unlink(missing_ok=True)
            unfinished(folder / name).unlink(missing_ok=True)
        if spare:
            _list(folder, files)
    except OSError as error:
        raise NodeFilesError(f"{error.filename or folder}: {error.strerror or error}") from error
    return written, spare


def _listed(folder: Path) -> frozenset[str]:
    """Return the names in our list there; none where it cannot be read."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        raw = head(folder / LIST, MAX_BYTES + 1)
        names = json.loads(raw) if len(raw) <= MAX_BYTES else []
        if isinstance(names, list):
            return frozenset(name for name in names if isinstance(name, str) and NAME.fullmatch(name))
    return frozenset()


def _list(folder: Path, names: Iterable[str]) -> None:
    every = sorted(names)
    if every:
        replace(folder / LIST, json.dumps(every) + "\n")
    else:
        (folder / LIST).unlink(missing_ok=True)
