"""Reads the configuration file, or a folder of them, and device files once a second, and compares their content.

A ConfigMap's update swaps a symlink some levels up, which neither the file's inode nor a watch on it shows; its content
does. Files are read and parsed on a worker thread. A missing, unreadable or wrong file is an outcome like any
other: the configuration in effect stays, and the next good content takes effect by itself.
"""

from __future__ import annotations

import contextlib
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import structlog
from nodedevices_common.errors import InputError
from nodedevices_common.periodic import Periodic

from nodedevices_plugin.runtime.supervise import describe
from nodedevices_plugin.runtime.threads import Worker
from nodedevices_plugin.settings import file
from nodedevices_plugin.settings.file import ConfigError, FileOutcome
from nodedevices_plugin.settings.named import NamedFiles
from nodedevices_plugin.vendors.files import DeviceFile, DeviceFileOutcome
from nodedevices_plugin.vendors.registry import VENDORS, Vendors

log = structlog.get_logger(__name__)

POLL_SECONDS = 1.0
FIRST_READ_SECONDS = 1.0  # a file system that hangs must not keep the node's devices away
MAX_FILES = 256
MAX_FOLDER_BYTES = 1 << 20  # a ConfigMap has no more, all its files together


T = TypeVar("T")
_Known = dict[str, tuple[bytes | str, FileOutcome]]  # by name: digest, or why it cannot be read


class _Followed(Periodic, ABC):
    """Reads one path: at the start, every second, and on request."""

    def __init__(self, path: Path, *, worker: Worker) -> None:
        super().__init__(self._check, seconds=POLL_SECONDS, patience_seconds=FIRST_READ_SECONDS)
        self._path = path
        self._worker = worker
        self._problem: str | None = None

    async def first(self) -> bool:
        in_time = await super().first()
        if not in_time:
            self._failed(f"reading it took more than {FIRST_READ_SECONDS:.0f} s")
        return in_time

    def _failed(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self._report(problem)

    @abstractmethod
    async def _check(self) -> None: ...

    @abstractmethod
    def _report(self, problem: str) -> None: ...


class _FollowedFile(_Followed, Generic[T]):
    """One file, the first of `paths` that is there. `parse` and `failed` make an outcome of its bytes, or of why they
    cannot be read; `on_change` is called on the loop with every new one."""

    def __init__(
        self,
        *paths: Path,
        worker: Worker,
        parse: Callable[[bytes], T],
        failed: Callable[[str], T],
        on_change: Callable[[T], None],
    ) -> None:
        super().__init__(paths[-1], worker=worker)
        self._paths = paths
        self._parse = parse
        self._outcome_of = failed
        self._on_change = on_change
        self._digest: bytes | None = None

    async def _check(self) -> None:
        try:
            raw = await self._worker.run(lambda: _read_first(self._paths))
        except OSError as error:
            self._digest = None
            self._failed(error.strerror or str(error))
            return
        digest = hashlib.sha256(raw).digest()
        if digest == self._digest:
            return
        outcome = await self._worker.run(lambda: self._parse(raw))
        self._digest, self._problem = digest, None
        self._on_change(outcome)

    def _report(self, problem: str) -> None:
        self._on_change(self._outcome_of(problem))


class ConfigFile(_FollowedFile[FileOutcome]):
    """Follows the configuration file."""

    def __init__(
        self,
        path: Path,
        *,
        worker: Worker,
        on_change: Callable[[FileOutcome], None],
        vendors: Vendors = VENDORS,
    ) -> None:
        super().__init__(
            path,
            worker=worker,
            parse=partial(_parsed, vendors),
            failed=lambda problem: FileOutcome(error=problem),
            on_change=on_change,
        )


class DeviceFileReader(_FollowedFile[DeviceFileOutcome]):
    """Follows one device file. Where a file beside it is called as the node, that one is read in its place: a ConfigMap
    may have a key for each node, as the SR-IOV operator's has. `on_change` is given the option's name, too."""

    def __init__(
        self,
        device_file: DeviceFile,
        path: Path,
        *,
        node: str,
        worker: Worker,
        on_change: Callable[[str, DeviceFileOutcome], None],
    ) -> None:
        super().__init__(
            path.with_name(node),
            path,
            worker=worker,
            parse=partial(_content, device_file),
            failed=lambda problem: DeviceFileOutcome(error=problem),
            on_change=partial(on_change, device_file.option.name),
        )
        self.name = device_file.option.name


class ConfigFolder(_Followed):
    """Follows the files of one folder, each by its name. `on_change` is called on the loop when any of them changed.

    Left out are folders and what begins with two dots, which a ConfigMap's mount has for its own use.
    """

    def __init__(
        self,
        path: Path,
        *,
        worker: Worker,
        on_change: Callable[[NamedFiles], None],
        vendors: Vendors = VENDORS,
    ) -> None:
        super().__init__(path, worker=worker)
        self._vendors = vendors
        self._on_change = on_change
        self._known: _Known | None = None

    async def _check(self) -> None:
        try:
            found = await self._worker.run(lambda: _read_folder(self._path))
        except OSError as error:
            self._known = None
            self._failed(error.strerror or str(error))
            return
        before = self._known or {}
        now = await self._worker.run(lambda: _all_parsed(self._vendors, found, before))
        same = self._known is not None and {name: it[0] for name, it in before.items()} == {
            name: it[0] for name, it in now.items()
        }
        self._known, self._problem = now, None
        if not same:
            self._on_change(NamedFiles(folder=str(self._path), files={name: it[1] for name, it in now.items()}))

    def _report(self, problem: str) -> None:
        self._on_change(NamedFiles(folder=str(self._path), error=problem))


def _all_parsed(vendors: Vendors, found: Mapping[str, bytes | str], before: _Known) -> _Known:
    now: _Known = {}
    for name, content in found.items():
        mark = content if isinstance(content, str) else hashlib.sha256(content).digest()
        if name in before and before[name][0] == mark:
            now[name] = before[name]
        else:
            now[name] = mark, FileOutcome(error=content) if isinstance(content, str) else _parsed(vendors, content)
    return now


def _parsed(vendors: Vendors, raw: bytes) -> FileOutcome:
    try:
        return FileOutcome(config=file.parse(raw, vendors))
    except ConfigError as error:
        return FileOutcome(error=str(error), field=error.field)
    except Exception as error:
        return FileOutcome(error=_not_understood(error))


def _not_understood(error: Exception) -> str:
    """Treat an error that our readers do not expect as a wrong file: it ends neither a start nor the configuration in
    effect."""
    log.error("failed to read a file", exc_info=error)
    return f"it cannot be read: {describe(error)}"


def _content(device_file: DeviceFile, raw: bytes) -> DeviceFileOutcome:
    if len(raw) > file.MAX_BYTES:
        return DeviceFileOutcome(error=f"{len(raw)} bytes; {file.MAX_BYTES} are the most")
    try:
        return DeviceFileOutcome(content=device_file.parse(raw))
    except ConfigError as error:
        return DeviceFileOutcome(error=str(error), field=error.field)
    except InputError as error:
        return DeviceFileOutcome(error=str(ConfigError(error.problems, error.place)), field=error.place)
    except Exception as error:
        return DeviceFileOutcome(error=_not_understood(error))


def _read_first(paths: Sequence[Path]) -> bytes:
    for path in paths[:-1]:
        with contextlib.suppress(FileNotFoundError):
            return _read(path)
    return _read(paths[-1])


def _read(path: Path) -> bytes:
    with path.open("rb") as opened:
        return opened.read(file.MAX_BYTES + 1)


def _read_folder(path: Path) -> Mapping[str, bytes | str]:
    """Content by name, or why it cannot be read. OSError when the folder cannot be."""
    names = sorted(child.name for child in path.iterdir() if not child.name.startswith("..") and not child.is_dir())
    if len(names) > MAX_FILES:
        raise OSError(f"there are {len(names)} files; {MAX_FILES} are the most")
    found: dict[str, bytes | str] = {}
    size = 0
    for name in names:
        try:
            found[name] = content = _read(path / name)
        except OSError as error:
            found[name] = error.strerror or str(error)
        else:
            size += len(content)
            if size > MAX_FOLDER_BYTES:
                raise OSError(f"its files have more than {MAX_FOLDER_BYTES >> 20} MiB together")
    return found
