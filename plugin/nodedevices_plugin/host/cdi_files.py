"""CDI specifications on the node: those that a vendor's container toolkit keeps are read, and ours are kept up to date.
On worker threads; failures are reported and retried.

The toolkit's specs are thousands of lines. A spec that was good and cannot be read any more may be half written: it
counts as broken when it is the same at two reads. Its last good content is remembered: container runtimes cannot read
the broken file either, and our own spec then takes its place (vendors.cdi).

A name that Allocate returns must be in a file before the container runtime looks for it. Files are replaced at once. A
file whose class has no devices any more, or whose strategy was switched off, is removed when no pod holds a device: the
kubelet answers a container's restart from its memory, and that container still has the old names. The same holds for
files with our names from before this process, which may be another plugin's; until then our files keep their content
(vendors.cdi.merged). While another plugin serves, nothing is written here: its files have the same names.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from pathlib import Path

import structlog
from msgspec import Struct, field
from nodedevices_common import safe_yaml
from nodedevices_common.errors import OperationError
from nodedevices_common.files import Identity, head, identity, unfinished, update
from nodedevices_common.periodic import Periodic, within

from nodedevices_plugin.runtime.threads import Worker
from nodedevices_plugin.vendors import cdi_schema
from nodedevices_plugin.vendors.cdi import CdiSource, CdiSpec, Document, ToolkitDevice, devices_of, merged

log = structlog.get_logger(__name__)

CHECK_SECONDS = 5.0
FIRST_CHECK_SECONDS = 2.0
MAX_BYTES = 2 << 20  # a spec of 16 GPUs in 7 parts each has less than 1
MAX_VALUES = 30_000  # keys and values; the garbage collector, too, holds the interpreter
MAX_FILES = 64
SHOWN = 300  # characters of what is wrong
Signature = Mapping[Path, Identity]  # of each file what tells whether it is another one


class ToolkitSpecs(Periodic):
    """The devices of the toolkit's specs in these folders when last read; `on_change` is called when they change.

    devices: those that runtimes find there now. source: a spec of now, or the last good one. problem: which file is
    broken or gone, with the reason.
    """

    def __init__(
        self, folders: Sequence[Path], source: CdiSource, *, worker: Worker, on_change: Callable[[], None]
    ) -> None:
        super().__init__(self._search, seconds=CHECK_SECONDS, patience_seconds=FIRST_CHECK_SECONDS)
        self._folders = tuple(folders)
        self._kinds = source
        self._worker = worker
        self._on_change = on_change
        self._signature: Signature | None = None  # None: not read yet
        self._suspect: Signature | None = None  # of a read that found a good file broken
        self._good: frozenset[str] = frozenset()  # paths
        self.wanted = False  # whether any configuration uses CDI names
        self.devices: tuple[ToolkitDevice, ...] = ()
        self.source: Document | None = None
        self.problem = ""

    async def ready(self) -> None:
        """Read them from now on; returns after one read at least, or when that takes too long."""
        self.wanted = True
        if self._signature is None:
            await self.first()

    async def _search(self) -> None:
        if not self.wanted:
            return
        found = await self._worker.run(partial(_read, self._folders, self._kinds, self._signature))
        if found is None:
            return
        if found.broken.keys() & self._good and self._suspect != found.signature:
            self._suspect = found.signature
            return
        self._signature, self._suspect = found.signature, None
        problem = "; ".join(f"{path}: {why}" for path, why in found.broken.items())
        if not found.good and not problem and self.source is not None:
            problem = self.problem or f"{', '.join(sorted(self._good))}: it is gone"
        news = (found.devices, problem) != (self.devices, self.problem)
        self._good = frozenset(found.good)
        self.source = next(iter(reversed(list(found.good.values()))), self.source)
        self.devices, self.problem = found.devices, problem
        if news:
            level = log.warning if problem else log.info
            level("the container toolkit's CDI specification", devices=len(found.devices), problem=problem)
            self._on_change()


class _Found(Struct, frozen=True, kw_only=True):
    """good, broken: by path, a later folder last."""

    signature: Signature
    good: Mapping[str, Document] = field(default_factory=dict)
    broken: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[ToolkitDevice, ...] = ()


def _read(folders: Sequence[Path], source: CdiSource, known: Signature | None) -> _Found | None:
    """The toolkit's specs, or None where no file has changed. A later folder outranks an earlier."""
    signature: dict[Path, Identity] = {}
    for folder in folders:
        with contextlib.suppress(OSError):
            for path in sorted(file for file in folder.iterdir() if file.suffix in {".json", ".yaml"})[:MAX_FILES]:
                if (found := identity(path)) is not None:
                    signature[path] = found
    if signature == known:
        return None
    good, broken = {}, {}
    devices: dict[str, ToolkitDevice] = {}
    for path in signature:
        try:
            document = _document(path, source)
        except ValueError as error:
            broken[str(path)] = str(error)
            continue
        if document is not None:
            good[str(path)] = document
            devices |= {device.name: device for device in devices_of(document, source.kind)}
    return _Found(signature=signature, good=good, broken=broken, devices=tuple(devices.values()))


def _document(path: Path, source: CdiSource) -> Document | None:
    """A spec of the toolkit; None: this is none. Raises ValueError where it is one and cannot be used."""
    if path.name in source.files:
        return None
    try:
        raw = head(path, MAX_BYTES + 1)
    except OSError as error:
        if path.name in source.toolkit_files:
            raise ValueError(error.strerror or str(error)) from error
        return None
    if source.kind.encode() not in raw and path.name not in source.toolkit_files:
        return None
    if len(raw) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES >> 20} MiB")
    try:
        document = _parsed(raw, json_text=path.suffix == ".json")
    except (ValueError, RecursionError) as error:
        why = " ".join(str(error).split())[:SHOWN]
        raise ValueError(f"not {path.suffix[1:].upper()}: {why}") from error
    if isinstance(document, dict) and document.get("kind") not in {None, source.kind}:
        return None
    if not devices_of(document, source.kind):
        raise ValueError(f"no CDI specification of kind {source.kind} with devices")
    return dict(document) if isinstance(document, dict) else None


def _parsed(raw: bytes, *, json_text: bool) -> object:
    """Raises ValueError. The parser holds the interpreter: what it is given is bounded, because the agent's loop runs
    beside it."""
    if not json_text:
        return safe_yaml.load(raw, max_values=MAX_VALUES)
    if sum(map(raw.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise ValueError("there are too many values in it")
    return json.loads(raw)


RETRY_SECONDS = 10.0
PATIENCE_SECONDS = 1.0


class CdiError(OperationError):
    """A file that cannot be written; the text says which and why."""


class CdiFiles:
    """Keeps the files as they should be. `keep` may be called at every step; it does something when something changed.

    source: which files are one vendor's. problem: why a file is not as it should be; empty: all are. before: the
    specification with libraries from before this process. It stays a source of libraries when its own devices are of
    no use any more: it may be the last good one, while the toolkit's file is broken.
    """

    def __init__(self, folder: Path, source: CdiSource, *, worker: Worker) -> None:
        self._folder = folder
        self._source = source
        self._worker = worker
        self._written: tuple[CdiSpec, ...] | None = None
        self._failed_at: float | None = None  # time.monotonic()
        self._ours: frozenset[str] = frozenset()  # names of files that this process wrote, or found at its start
        self._before: Mapping[str, Document] = {}  # what those had that it found, until no pod has a device
        self.before: Document | None = None
        self.problem = ""

    async def first(self) -> None:
        """Read the files that exist, unless it takes too long."""
        found = self._worker.run(lambda: _documents(self._folder, self._source.files))
        self._before = await within(PATIENCE_SECONDS, found) or {}
        self.before = self._before.get(self._source.libraries_file)

    async def keep(self, specs: tuple[CdiSpec, ...], *, free: bool = False) -> None:
        """Write the files. Returns when that is done, or after a moment: a folder that hangs must not delay the
        kubelet.

        free: no pod holds a device, so that files that are no longer wanted may be removed.
        """
        if free:
            self._before = {}
        specs = tuple(
            merged(spec, self._before[spec.file_name]) if spec.file_name in self._before else spec for spec in specs
        )
        spare = self._ours - {spec.file_name for spec in specs} if free else frozenset()
        soon = self._failed_at is not None and time.monotonic() - self._failed_at < RETRY_SECONDS
        if (specs == self._written and not spare) or soon:
            return
        try:
            left = await self._worker.run(lambda: self._carry_out(specs, spare), seconds=PATIENCE_SECONDS)
        except (CdiError, TimeoutError) as error:
            self._failed_at = time.monotonic()
            why = str(error) or f"{self._folder}: took more than {PATIENCE_SECONDS:.0f} s"
            if why != self.problem:
                log.warning(
                    "CDI specifications not written: containers that get devices by CDI cannot start", error=why
                )
            self.problem = why
            return
        self._written, self._failed_at, self.problem = specs, None, ""
        self._ours = (self._ours | left | {spec.file_name for spec in specs}) - spare
        if specs or spare:
            log.info(
                "CDI specifications written",
                folder=str(self._folder),
                kinds=[spec.kind for spec in specs],
                removed=sorted(spare),
            )

    def _carry_out(self, specs: Sequence[CdiSpec], spare: frozenset[str]) -> frozenset[str]:
        """Write and remove. Returns the files with our names that exist then, by any writer, half written ones too."""
        write(self._folder, specs)
        for name in spare:
            try:
                (self._folder / name).unlink(missing_ok=True)
            except OSError as error:
                if error.errno != errno.EROFS:  # mounted read-only on purpose: nothing is to change there
                    raise CdiError(f"{self._folder / name}: {error.strerror or error}") from error
        return _found(self._folder, self._source.files)


def _found(folder: Path, files: Set[str]) -> frozenset[str]:
    names = {name for file in files for name in (file, unfinished(Path(file)).name)}
    try:
        return frozenset(names & {path.name for path in folder.iterdir()})
    except OSError:
        return frozenset()


def _documents(folder: Path, files: Set[str]) -> Mapping[str, Document]:
    """The specifications in files of our names, by file, as far as they are valid."""
    found = {}
    for name in files & _found(folder, files):
        with contextlib.suppress(OSError, ValueError):
            raw = head(folder / name, MAX_BYTES + 1)
            document = _parsed(raw, json_text=True) if len(raw) <= MAX_BYTES else None
            if isinstance(document, dict) and not cdi_schema.problems(document):
                found[name] = document
    return found


def unwritable(folder: Path) -> str:
    """Return why no file can be written there, with its path; empty where there is no obstacle. Nothing is tried:
    container runtimes read their specs again when something happens in this folder."""
    try:
        place = next(path for path in (folder, *folder.parents) if path.exists() or path.is_symlink())
        if not place.is_dir():
            why = errno.ENOTDIR
        elif os.access(place, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
            return ""
        else:
            why = errno.EROFS if os.statvfs(place).f_flag & os.ST_RDONLY else errno.EACCES
    except OSError as error:
        return f"{folder}: {error.strerror or error}"
    return f"{folder}: {os.strerror(why)}"


def write(folder: Path, specs: Sequence[CdiSpec]) -> None:
    """Write those whose file is missing or different. Raises CdiError."""
    for spec in specs:
        path = folder / spec.file_name
        wrong = cdi_schema.problems(spec.document)
        if wrong:
            raise CdiError(f"{path}: not written, since it is not valid: {'; '.join(wrong[:3])}")
        text = json.dumps(spec.document, indent=2, sort_keys=True) + "\n"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            update(path, text)
        except OSError as error:
            raise CdiError(f"{path}: {error.strerror or error}") from error
