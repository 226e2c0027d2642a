"""Reads the configuration file, or a folder of them, and the device files once a second, and compares their content.

A ConfigMap's update swaps a symlink some levels up, which neither the file's inode nor a watch on it shows; its content
does. Files are read and parsed on a worker thread. A missing, unreadable or wrong file is an outcome like any
other: the configuration in effect stays, and the next good content takes effect by itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import structlog
from msgspec.structs import replace
from nodedevices_common.errors import InputError
from nodedevices_common.files import head
from nodedevices_common.periodic import Periodic

from nodedevices_plugin.runtime.supervise import describe
from nodedevices_plugin.runtime.threads import Worker
from nodedevices_plugin.settings import file
from nodedevices_plugin.vendors.base import FOLDER, DeviceFile, DeviceFileOutcome, DeviceFiles
from nodedevices_plugin.vendors.registry import VENDORS, Vendors

log = structlog.get_logger(__name__)

POLL_SECONDS = 1.0
FIRST_READ_SECONDS = 1.0  # a file system that hangs must not keep the node's devices away
MAX_FILES = 256
MAX_FOLDER_BYTES = 1 << 20  # a ConfigMap has no more, all its files together

UNKNOWN = "unknown file"
NOTHING = b"null"  # a device file that says that there is none, on purpose

T = TypeVar("T")


class _FollowedFiles(Periodic, Generic[T]):
    """Reads files, each by its name: at the start, every second, and on request. A file is parsed when its content has
    changed."""

    def __init__(
        self,
        *,
        worker: Worker,
        read: Callable[[], Mapping[str, bytes | str]],
        outcome: Callable[[str, bytes | str], T],
        changed: Callable[[Mapping[str, T]], None],
        report: Callable[[str], None],
    ) -> None:
        """`read`: contents by name, or why one cannot be read; raises OSError where the folder cannot be. It and
        `outcome`, which parses a content, are called on the worker's thread; `changed`, with all outcomes, and
        `report`, with what keeps the files from being read, on the loop."""
        super().__init__(self._check, seconds=POLL_SECONDS, patience_seconds=FIRST_READ_SECONDS)
        self._worker = worker
        self._read = read
        self._outcome = outcome
        self._changed = changed
        self._report = report
        self._problem: str | None = None
        self._known: dict[str, tuple[bytes | str, T]] | None = None  # digest, or why it cannot be read

    async def first(self) -> bool:
        in_time = await super().first()
        if not in_time:
            self._failed(f"reading it took more than {FIRST_READ_SECONDS:.0f} s")
        return in_time

    def _failed(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self._report(problem)

    async def _check(self) -> None:
        try:
            found = await self._worker.run(self._read)
        except OSError as error:
            self._known = None
            self._failed(error.strerror or str(error))
            return
        before = self._known
        now = await self._worker.run(lambda: self._all_parsed(found, before or {}))
        self._known, self._problem = now, None
        if now != before:
            self._changed({name: it[1] for name, it in now.items()})

    def _all_parsed(
        self, found: Mapping[str, bytes | str], before: Mapping[str, tuple[bytes | str, T]]
    ) -> dict[str, tuple[bytes | str, T]]:
        now: dict[str, tuple[bytes | str, T]] = {}
        for name, content in found.items():
            mark = content if isinstance(content, str) else hashlib.sha256(content).digest()
            same = name in before and before[name][0] == mark
            now[name] = before[name] if same else (mark, self._outcome(name, content))
        return now


class ConfigFile(_FollowedFiles[file.FileOutcome]):
    """Follows the configuration file. `on_change` is called on the loop with every new outcome."""

    def __init__(
        self, path: Path, *, worker: Worker, on_change: Callable[[file.FileOutcome], None], vendors: Vendors = VENDORS
    ) -> None:
        super().__init__(
            worker=worker,
            read=lambda: {path.name: head(path, file.MAX_BYTES + 1)},
            outcome=lambda _, content: _outcome_of(vendors, content),
            changed=lambda files: on_change(files[path.name]),
            report=lambda problem: on_change(file.FileOutcome(error=problem)),
        )


class ConfigFolder(_FollowedFiles[file.FileOutcome]):
    """Follows a folder of configuration files. `on_change` is called on the loop when any of them changed.

    Left out are folders and what begins with two dots, which a ConfigMap's mount has for its own use.
    """

    def __init__(
        self, path: Path, *, worker: Worker, on_change: Callable[[file.NamedFiles], None], vendors: Vendors = VENDORS
    ) -> None:
        super().__init__(
            worker=worker,
            read=lambda: _read_folder(path),
            outcome=lambda _, content: _outcome_of(vendors, content),
            changed=lambda files: on_change(file.NamedFiles(folder=str(path), files=files)),
            report=lambda problem: on_change(file.NamedFiles(folder=str(path), error=problem)),
        )


class DeviceFolder(_FollowedFiles[DeviceFileOutcome]):
    """Follows the folder of device files. A file with this node's name before its own, `NODE.sriov.json`, is read in
    the place of `sriov.json`; those of other nodes are not read: the folder may be one ConfigMap for all. `on_change`
    is called on the loop with what is there."""

    def __init__(
        self,
        path: Path,
        *,
        node: str,
        worker: Worker,
        on_change: Callable[[DeviceFiles], None],
        vendors: Vendors = VENDORS,
    ) -> None:
        super().__init__(
            worker=worker,
            read=self._read_files,
            outcome=self._content,
            changed=lambda files: on_change(self._by_own_name(files)),
            report=lambda problem: on_change({FOLDER: DeviceFileOutcome(error=problem)}),
        )
        self._path = path
        self._node = node
        self._files = {name: file for name, (_, file) in vendors.files_by_name().items()}

    def _read_files(self) -> Mapping[str, bytes | str]:
        there = {child.name for child in self._path.iterdir() if not child.name.startswith(".")}
        own = {f"{self._node}.{name}" for name in self._files}
        found: dict[str, bytes | str] = {}
        for name in sorted(there):
            if name in own or (name in self._files and f"{self._node}.{name}" not in there):
                try:
                    found[name] = head(self._path / name, file.MAX_BYTES + 1)
                except FileNotFoundError:
                    pass  # removed just now
                except OSError as error:
                    found[name] = error.strerror or str(error)
            elif not self._name(name) and not (self._path / name).is_dir():
                found[name] = UNKNOWN
        return found

    def _name(self, file: str) -> str:
        """Return the name without a node's; empty: it is none of ours."""
        return next((name for name in self._files if file == name or file.endswith(f".{name}")), "")

    def _content(self, name: str, content: bytes | str) -> DeviceFileOutcome:
        made, error, place = _parsed(lambda raw: _device_content(self._files[self._name(name)], raw), content)
        return DeviceFileOutcome(content=made, error=error, field=place)

    def _by_own_name(self, files: Mapping[str, DeviceFileOutcome]) -> DeviceFiles:
        own = {file: self._name(file) or file for file in files}
        return {name: replace(files[file], file="" if file == name else file) for file, name in own.items()}


def _parsed(parse: Callable[[bytes], T], content: bytes | str) -> tuple[T | None, str, str]:
    """Return what it makes of a content; else why it cannot be used (`content` itself, where it could not be read), and
    where in it that is. An error that our readers do not expect is one of the file, too: it ends neither a start nor
    the configuration in effect."""
    if isinstance(content, str):
        return None, content, ""
    try:
        return parse(content), "", ""
    except InputError as error:
        return None, str(file.ConfigError(error.problems)), error.place
    except Exception as error:
        log.exception("failed to read a file")
        return None, f"it cannot be read: {describe(error)}", ""


def _outcome_of(vendors: Vendors, content: bytes | str) -> file.FileOutcome:
    """`content`: of a configuration file, or why it cannot be read."""
    config, error, place = _parsed(partial(file.parse, vendors=vendors), content)
    return file.FileOutcome(config=config, error=error or None, field=place)


def _device_content(device_file: DeviceFile, raw: bytes) -> object:
    if len(raw) > file.MAX_BYTES:
        raise InputError(f"{len(raw)} bytes; {file.MAX_BYTES} are the most")
    return None if raw.strip() == NOTHING else device_file.parse(raw)


def _read_folder(path: Path) -> Mapping[str, bytes | str]:
    """Content by name, or why it cannot be read. OSError when the folder cannot be."""
    names = sorted(child.name for child in path.iterdir() if not child.name.startswith("..") and not child.is_dir())
    if len(names) > MAX_FILES:
        raise OSError(f"there are {len(names)} files; {MAX_FILES} are the most")
    found: dict[str, bytes | str] = {}
    size = 0
    for name in names:
        try:
            found[name] = content = head(path / name, file.MAX_BYTES + 1)
        except OSError as error:
            found[name] = error.strerror or str(error)
        else:
            size += len(content)
            if size > MAX_FOLDER_BYTES:
                raise OSError(f"its files have more than {MAX_FOLDER_BYTES >> 20} MiB together")
    return found
