"""The CDI specs that a vendor's container toolkit keeps on the node.

They are read on a worker thread, since a spec is thousands of lines. A spec that was good and cannot be read any more
may be half written: it counts as broken when it is the same at two reads. Its last good content is remembered:
container runtimes cannot read the broken file either, and our own spec then takes its place (vendors.cdi).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import structlog
from msgspec import Struct, field
from nodedevices_common import safe_yaml
from nodedevices_common.periodic import Periodic

from nodedevices_plugin.runtime.threads import Worker
from nodedevices_plugin.vendors.cdi import CdiSource, Document, ToolkitDevice, devices_of

log = structlog.get_logger(__name__)

CHECK_SECONDS = 5.0
FIRST_CHECK_SECONDS = 2.0
MAX_BYTES = 2 << 20  # a spec of 16 GPUs in 7 parts each has less than 1
MAX_VALUES = 30_000  # keys and values; the garbage collector, too, holds the interpreter
MAX_FILES = 64
SHOWN = 300  # characters of what is wrong
Signature = tuple[tuple[str, int, int, int], ...]


class ToolkitSpecs(Periodic):
    """The devices of the toolkit's specs in these folders when last read; `on_change` is called when they change.

    devices: those that runtimes find there now. source: a spec of now, or the last good one. problem: which file is
    broken or gone, with the reason.
    """

    def __init__(
        self, folders: Sequence[Path], source: CdiSource, *, worker: Worker, on_change: Callable[[], None]
    ) -> None:
        super().__init__(self._search_if_wanted, seconds=CHECK_SECONDS, patience_seconds=FIRST_CHECK_SECONDS)
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

    async def _search_if_wanted(self) -> None:
        if self.wanted:
            await self._search()

    async def _search(self) -> None:
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
    signature: list[tuple[str, int, int, int]] = []
    files = []
    for folder in folders:
        with contextlib.suppress(OSError):
            for path in sorted(file for file in folder.iterdir() if file.suffix in {".json", ".yaml"})[:MAX_FILES]:
                with contextlib.suppress(OSError):
                    stat = path.stat()
                    signature.append((str(path), stat.st_mtime_ns, stat.st_size, stat.st_ino))
                    files.append(path)
    if tuple(signature) == known:
        return None
    good, broken = {}, {}
    devices: dict[str, ToolkitDevice] = {}
    for path in files:
        try:
            document = _document(path, source)
        except ValueError as error:
            broken[str(path)] = str(error)
            continue
        if document is not None:
            good[str(path)] = document
            devices |= {device.name: device for device in devices_of(document, source.kind)}
    return _Found(signature=tuple(signature), good=good, broken=broken, devices=tuple(devices.values()))


def _document(path: Path, source: CdiSource) -> Document | None:
    """A spec of the toolkit; None: this is none. Raises ValueError where it is one and cannot be used."""
    if path.name in source.files:
        return None
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
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


def read_bounded(path: Path) -> object:
    """A specification in JSON. Raises OSError, ValueError."""
    with path.open("rb") as file:
        raw = file.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES >> 20} MiB")
    return _parsed(raw, json_text=True)


def _parsed(raw: bytes, *, json_text: bool) -> object:
    """Raises ValueError. The parser holds the interpreter: what it is given is bounded, because the agent's loop runs
    beside it."""
    if not json_text:
        return safe_yaml.load(raw, max_values=MAX_VALUES)
    if sum(map(raw.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise ValueError("there are too many values in it")
    return json.loads(raw)
