"""The files of prepared claims: a record each, which survives the agent, and the CDI specification.

A record is on the disk before the kubelet is told that the claim is prepared, and is removed after the CDI file. CDI
files are in a folder that a reboot empties, so they are written again whenever the kubelet prepares a claim again. A
damaged record costs one claim, and not the node: it stays while it still names a device, and is set aside where it
names none. A newer version's record stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import structlog
from nodedevices_common.errors import OperationError
from nodedevices_common.files import head, unfinished, update

from nodedevices_plugin.claims import cdi_file
from nodedevices_plugin.claims.records import Record, RecordError, decode, encode, file_name, salvaged
from nodedevices_plugin.host import cdi_files
from nodedevices_plugin.vendors.cdi import CdiSpec, Document

MAX_BYTES = 1 << 20  # 32 results of a claim take 8 KiB
RECORD_MODE = 0o600
ASIDE = ".unreadable"

log = structlog.get_logger(__name__)


class ClaimFilesError(OperationError):
    """A file that cannot be written, read or removed; the text says which and why."""


class ClaimFiles:
    """Methods block, and may be called in any thread, for one claim by one thread at a time. `folder`: of the records.
    `cdi_folder`: where container runtimes read specifications."""

    def __init__(self, folder: Path, cdi_folder: Path, *, driver: str) -> None:
        self._folder = folder
        self._cdi_folder = cdi_folder
        self._driver = driver
        self.problem = ""  # which records could not be read at the start, and why

    def read(self) -> Mapping[str, Record]:
        """Return the records by UID. Raises ClaimFilesError where they cannot be read: then nothing is known."""
        found: dict[str, Record] = {}
        problems = []
        try:
            paths = sorted(self._folder.glob("*.json")) if self._folder.is_dir() else []
        except OSError as error:
            raise ClaimFilesError(f"{self._folder}: {error.strerror or error}") from error
        for path in paths:
            try:
                content = head(path, MAX_BYTES + 1)  # as much of it as shows that it is larger than a record can be
            except OSError as error:  # of the disk, and not of this record
                raise ClaimFilesError(f"{path}: {error.strerror or error}") from error
            try:
                if len(content) > MAX_BYTES:
                    raise RecordError(f"more than {MAX_BYTES} bytes")
                found[path.stem] = decode(content, uid=path.stem)
            except RecordError as error:
                if record := salvaged(content, uid=path.stem, why=str(error)):
                    found[path.stem] = record
                    log.warning("record of a prepared claim damaged", path=str(path), error=record.problem)
                else:
                    problems.append(f"{path}: {error}; set aside as {path.name}{ASIDE}")
                    try:
                        path.replace(path.with_name(path.name + ASIDE))
                    except OSError as problem:
                        log.warning("record not set aside", path=str(path), error=problem.strerror)
        if problems:
            self.problem = "; ".join(problems)
            log.error("records of prepared claims unusable", error=self.problem)
        return found

    def write(self, record: Record, document: Document | None) -> None:
        """Write the record, then the CDI file (None: the claim needs none). Raises ClaimFilesError, CdiError."""
        path = self._folder / file_name(record.uid)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            update(path, encode(record), mode=RECORD_MODE, durable=True)
        except OSError as error:
            raise ClaimFilesError(f"{path}: {error.strerror or error}") from error
        if document is not None:
            name = cdi_file.file_name(record.uid, self._driver)
            cdi_files.write(self._cdi_folder, [CdiSpec(kind=document["kind"], file_name=name, document=document)])

    def remove(self, uid: str) -> None:
        """Remove both files, the record last, and what a kill left of their writing. Raises ClaimFilesError; what
        is not there is no error."""
        for path in (self._cdi_folder / cdi_file.file_name(uid, self._driver), self._folder / file_name(uid)):
            try:
                for file in (unfinished(path), path):
                    file.unlink(missing_ok=True)
            except OSError as error:
                raise ClaimFilesError(f"{path}: {error.strerror or error}") from error
