"""What NVIDIA's container toolkit gives: the CDI specs that it keeps on the node, and `nvidia-ctk`, which makes one.

Both are looked at on a worker thread, since a spec is thousands of lines and `nvidia-ctk` asks the driver. A spec of
the toolkit that was good and cannot be read any more may be half written: it counts as broken when it is the same at
two looks. What it brought with every GPU is remembered, since container runtimes can no longer read it either, and our
own spec then stands in for it (vendors.nvidia.cdi_libraries).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from nodedevices_common.errors import OperationError
from nodedevices_common.periodic import Periodic

from nodedevices_plugin.runtime import safe_yaml
from nodedevices_plugin.runtime.worker import Worker
from nodedevices_plugin.vendors import cdi_schema
from nodedevices_plugin.vendors.nvidia import cdi
from nodedevices_plugin.vendors.nvidia.cdi import CtkRequest

log = structlog.get_logger(__name__)

CHECK_SECONDS = 5.0
FIRST_CHECK_SECONDS = 2.0
MAX_BYTES = 2 << 20  # a spec of 16 GPUs in 7 parts each has less than 1
MAX_VALUES = 30_000  # keys and values; the garbage collector, too, holds the interpreter
MAX_FILES = 64
CTK = "nvidia-ctk"
CTK_PLACES = ("usr/bin", "usr/local/bin", "usr/local/nvidia/toolkit")  # below the driver root, after PATH
CTK_SECONDS = 30.0
CTK_RETRY_SECONDS = 60.0
FIRST_PATIENCE_SECONDS = 5.0  # for nvidia-ctk while nothing is offered yet
LATER_PATIENCE_SECONDS = 0.25  # and afterwards, when a fault may be waiting to be told
SHOWN = 300  # characters of its last words
Signature = tuple[tuple[str, int, int, int], ...]
Document = Mapping[str, Any]


class ToolkitSpecs(Periodic):
    """What the toolkit's specs in these folders had at the last look; `on_change`: when that changes.

    devices: those that runtimes find there now. source: a spec of now, or the last good one. problem: which file is
    broken, or gone, with the reason.
    """

    def __init__(self, folders: Sequence[Path], *, worker: Worker, on_change: Callable[[], None]) -> None:
        super().__init__(self._search_if_wanted, seconds=CHECK_SECONDS, patience_seconds=FIRST_CHECK_SECONDS)
        self._folders = tuple(folders)
        self._worker = worker
        self._on_change = on_change
        self._signature: Signature | None = None  # None: not looked yet
        self._suspect: Signature | None = None  # of a look that found a good file broken
        self._good: frozenset[str] = frozenset()  # paths
        self.wanted = False  # whether anybody hands out CDI names
        self.devices: tuple[cdi.ToolkitDevice, ...] = ()
        self.source: Document | None = None
        self.problem = ""

    async def ready(self) -> None:
        """From now on they are wanted; returns after one look at least, or when that takes too long."""
        self.wanted = True
        if self._signature is None:
            await self.first()

    async def _search_if_wanted(self) -> None:
        if self.wanted:
            await self._search()

    async def _search(self) -> None:
        found = await self._worker.run(partial(_read, self._folders, self._signature))
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """good, broken: by path, a later folder last."""

    signature: Signature
    good: Mapping[str, Document] = field(default_factory=dict)
    broken: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[cdi.ToolkitDevice, ...] = ()


def _read(folders: Sequence[Path], known: Signature | None) -> _Found | None:
    """The toolkit's specs, or None where no file has changed. A later folder outranks an earlier."""
    signature: list[tuple[str, int, int, int]] = []
    files = []
    for folder in folders:
        with contextlib.suppress(OSError):
            for path in sorted(each for each in folder.iterdir() if each.suffix in {".json", ".yaml"})[:MAX_FILES]:
                with contextlib.suppress(OSError):
                    stat = path.stat()
                    signature.append((str(path), stat.st_mtime_ns, stat.st_size, stat.st_ino))
                    files.append(path)
    if tuple(signature) == known:
        return None
    good, broken = {}, {}
    devices: dict[str, cdi.ToolkitDevice] = {}
    for path in files:
        try:
            document = _document(path)
        except ValueError as error:
            broken[str(path)] = str(error)
            continue
        if document is not None:
            good[str(path)] = document
            devices |= {each.name: each for each in cdi.toolkit_devices(document)}
    return _Found(signature=tuple(signature), good=good, broken=broken, devices=tuple(devices.values()))


def _document(path: Path) -> Document | None:
    """A spec of the toolkit; None: this is none. Raises ValueError where it is one and cannot be used."""
    if path.name in cdi.FILE_NAMES:
        return None
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        if cdi.is_toolkit_file(path.name):
            raise ValueError(error.strerror or str(error)) from error
        return None
    if cdi.TOOLKIT_KIND.encode() not in raw and not cdi.is_toolkit_file(path.name):
        return None
    if len(raw) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES >> 20} MiB")
    try:
        document = _parsed(raw, json_text=path.suffix == ".json")
    except (ValueError, RecursionError) as error:
        words = " ".join(str(error).split())[:SHOWN]
        raise ValueError(f"not {path.suffix[1:].upper()}: {words}") from error
    if isinstance(document, dict) and document.get("kind") not in {None, cdi.TOOLKIT_KIND}:
        return None
    if not cdi.toolkit_devices(document):
        raise ValueError(f"no CDI specification of kind {cdi.TOOLKIT_KIND} with devices")
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


def command(request: CtkRequest, program: str, driver_root: str) -> list[str]:
    """Options of nvidia-ctk 1.14 and later; the last two are 1.18's. `driver_root` "": this container's own."""
    roots = [f"--driver-root={driver_root}", f"--dev-root={_dev_root(driver_root)}"] if driver_root else []
    return [
        *(program, "cdi", "generate", "--format=json", f"--vendor={cdi.VENDOR}", "--class=gpu"),
        f"--device-name-strategy={request.id_strategy}",
        *roots,
        *([f"--nvidia-ctk-path={request.hook_path}"] if request.hook_path else []),
        *(f"--feature-flag={each}" for each in request.feature_flags),
        *(f"--disable-hook={each}" for each in request.disable_hooks),
    ]


def _dev_root(driver_root: str) -> str:
    return driver_root if Path(driver_root, "dev").is_dir() else "/"


class CtkError(OperationError):
    """nvidia-ctk made no spec that can be used; the text says why."""


def find(request: CtkRequest) -> str:
    """nvidia-ctk: the one that was named, else on PATH, else below the driver root. Raises CtkError."""
    if request.program:
        if shutil.which(request.program) is None:
            raise CtkError(f"{request.program} (--nvidia-ctk-program): there is no such program")
        return request.program
    below = [str(Path(request.driver_root, each)) for each in CTK_PLACES] if request.driver_root else []
    found = shutil.which(CTK) or shutil.which(CTK, path=":".join(below) or "/nowhere")
    if found is None:
        places = f" nor below {request.driver_root}" if below else ""
        raise CtkError(f"{CTK} is not in the agent's image{places}")
    return found


def generate(request: CtkRequest) -> dict[str, Any]:
    """The spec that nvidia-ctk makes. Raises CtkError. Blocks."""
    driver_root = request.driver_root if request.driver_root and Path(request.driver_root).is_dir() else ""
    program = find(request)
    try:
        done = subprocess.run(  # noqa: S603
            command(request, program, driver_root),
            capture_output=True,
            timeout=CTK_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CtkError(f"{CTK}: {error}") from error
    if done.returncode != 0:
        words = " ".join(done.stderr.decode(errors="replace").split())[-SHOWN:]
        raise CtkError(f"{CTK}: status {done.returncode}: {words or 'no output'}")
    try:
        document = json.loads(done.stdout)
    except ValueError as error:
        raise CtkError(f"{CTK}: its output is not JSON: {error}") from error
    wrong = cdi_schema.problems(document)
    if wrong:
        raise CtkError(f"{CTK}: its output is not valid: {'; '.join(wrong[:3])}")
    if document["kind"] != f"{cdi.VENDOR}/gpu":
        raise CtkError(f"{CTK}: its output is of kind {document['kind']}")
    missing = sorted(request.names - {each["name"] for each in document["devices"]})
    if missing:
        raise CtkError(f"{CTK}: its output has no {', '.join(missing[:3])}")
    return cdi.rerooted(document, request.host, mounted=driver_root)


class CtkSpec:
    """The GPUs' spec by nvidia-ctk, on a thread of its own. `on_change`: called on the loop when it has answered.

    made: the latest good one, and names: of the devices in it, while it is what was asked for last. problem: why there
    is none for that; then it is tried again after a minute.
    """

    def __init__(
        self, *, on_change: Callable[[], None] = lambda: None, make: Callable[[CtkRequest], dict[str, Any]] = generate
    ) -> None:
        self._toolkit = Worker("nvidia-ctk")
        self._on_change = on_change
        self._make = make
        self._request: CtkRequest | None = None
        self._running: asyncio.Future[dict[str, Any]] | None = None
        self._started_at = 0.0  # time.monotonic()
        self.made: Document | None = None
        self.names: frozenset[str] = frozenset()
        self.problem = ""

    def current(self, request: CtkRequest | None) -> Document | None:
        """What it made of this request."""
        return self.made if request is not None and request == self._request and self.names else None

    async def want(self, request: CtkRequest, *, patience_seconds: float) -> None:
        """Asks, where it was not asked that before or has failed since; returns with the answer, or after a moment."""
        failed = self._running is None and time.monotonic() - self._started_at >= CTK_RETRY_SECONDS
        if request != self._request or (failed and not self.names):
            self._request, self._started_at = request, time.monotonic()
            self.names, self.problem = frozenset(), ""
            running = self._running = self._toolkit.submit(lambda: self._make(request))
            running.add_done_callback(partial(self._answered, request))
            await asyncio.wait((running,), timeout=patience_seconds)
            await asyncio.sleep(0)  # its callback

    def _answered(self, request: CtkRequest, answer: asyncio.Future[dict[str, Any]]) -> None:
        if request != self._request or answer.cancelled():
            return
        self._running = None
        error = answer.exception()
        if error is None:
            self.made, self.problem = answer.result(), ""
            self.names = frozenset(str(each["name"]) for each in self.made["devices"])
            log.info("nvidia-ctk generated the CDI specification", devices=len(self.names))
        elif isinstance(error, CtkError):
            self.problem = str(error)
            log.info("nvidia-ctk failed to generate a CDI specification", why=self.problem)
        else:
            self.problem = f"{CTK}: {error}"
            log.error("nvidia-ctk failed to generate a CDI specification", exc_info=error)
        self._on_change()
