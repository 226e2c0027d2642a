"""The CDI specifications that we write, kept as the devices are. On a worker thread; a trouble is told and tried again.

A name that Allocate hands out must be in a file before the container runtime looks for it. Files are replaced at once.
What nvidia-ctk makes of the GPUs takes the place of our minimal specification; while it is at work the file stays as it
was, and where it fails the minimal one is written and the reason told. A file whose class has no devices any more, or
whose strategy was switched off, goes when no pod holds a device: the kubelet answers a container's restart from its
memory, and that container still has the old names. So do files of our names from before this process: nothing is kept
here while another plugin serves, whose files have the same names.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from nodedevices_plugin.cditoolkit import CtkError, CtkRequest, generate
from nodedevices_plugin.lookout import Lookout
from nodedevices_plugin.resources import cdi, cdi_schema
from nodedevices_plugin.resources.cdi import CdiSpec
from nodedevices_plugin.resources.injection import InjectionContext
from nodedevices_plugin.settings.node import NodeSettings
from nodedevices_plugin.worker import Worker

log = structlog.get_logger(__name__)

RETRY_SECONDS = 10.0
PATIENCE_SECONDS = 1.0
FIRST_PATIENCE_SECONDS = 5.0  # for nvidia-ctk while nothing is offered yet
LATER_PATIENCE_SECONDS = 0.25  # and afterwards, when a fault may be waiting to be told
CTK_RETRY_SECONDS = 60.0
MODE = 0o644  # the container runtime reads it, whoever that runs as
GPU_KIND = f"{cdi.VENDOR}/gpu"


class CdiFolder(Lookout[str]):
    """Whether files can be written there, looked at again and again: it may be mounted read-only, or not at all.

    trouble: why not; empty: nothing is known to be in the way. `on_change` is called on the loop when it is another.
    """

    def __init__(self, folder: Path, *, worker: Worker, on_change: Callable[[], None]) -> None:
        super().__init__("", worker=worker, on_change=on_change, first_look_seconds=PATIENCE_SECONDS)
        self._folder = folder

    @property
    def trouble(self) -> str:
        return self.found

    def _look(self) -> Callable[[], str]:
        return partial(unwritable, self._folder)


class CdiError(Exception):
    """A file that cannot be written; the text says which and why."""


class CdiFiles:
    """Keeps the files as they should be. `keep` may be called at every step; it does something when something changed.

    trouble: why a file is not as it should be; empty: all are. on_change: called on the loop when a further step would
    do more.
    """

    def __init__(
        self,
        folder: Path,
        *,
        worker: Worker,
        on_change: Callable[[], None] = lambda: None,
        make: Callable[[CtkRequest], dict[str, Any] | None] = generate,
    ) -> None:
        self._folder = folder
        self._worker = worker
        self._toolkit = Worker("nvidia-ctk")
        self._on_change = on_change
        self._make = make
        self._written: tuple[CdiSpec, ...] | None = None
        self._failed_at: float | None = None  # time.monotonic()
        self._ours: frozenset[str] = frozenset()  # names of files that this process wrote, or found at its start
        self._request: CtkRequest | None = None
        self._made: asyncio.Future[dict[str, Any] | None] | None = None
        self._made_at = 0.0  # time.monotonic()
        self._unwritten = self._unmade = ""

    @property
    def trouble(self) -> str:
        return "; ".join(each for each in (self._unwritten, self._unmade) if each)

    async def keep(self, specs: tuple[CdiSpec, ...], request: CtkRequest | None = None, *, free: bool = False) -> None:
        """Returns when they are written, or after a moment: a folder that hangs must not hold the kubelet back.

        request: how nvidia-ctk is to make the one of the GPUs; None: it is not asked. free: no pod holds a device, so
        that files which are no longer wanted may go.
        """
        specs = await self._with_toolkit(specs, request)
        spare = self._ours - {each.file_name for each in specs} if free else frozenset()
        soon = self._failed_at is not None and time.monotonic() - self._failed_at < RETRY_SECONDS
        if (specs == self._written and not spare) or soon:
            return
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                left = await self._worker.run(lambda: self._carry_out(specs, spare))
        except (CdiError, TimeoutError) as error:
            self._failed_at = time.monotonic()
            why = str(error) or f"{self._folder}: took more than {PATIENCE_SECONDS:.0f} s"
            if why != self._unwritten:
                log.warning(
                    "CDI specifications not written: containers that get devices by CDI cannot start", error=why
                )
            self._unwritten = why
            return
        self._written, self._failed_at, self._unwritten = specs, None, ""
        self._ours = (self._ours | left | {each.file_name for each in specs}) - spare
        if specs or spare:
            log.info(
                "CDI specifications written",
                folder=str(self._folder),
                kinds=[each.kind for each in specs],
                removed=sorted(spare),
            )

    def _carry_out(self, specs: Sequence[CdiSpec], spare: frozenset[str]) -> frozenset[str]:
        """Write and remove. Returns which files of our names are there, whoever wrote them, half written ones too."""
        write(self._folder, specs)
        for name in spare:
            try:
                (self._folder / name).unlink(missing_ok=True)
            except OSError as error:
                if error.errno != errno.EROFS:  # whoever mounted it so wants nothing changed there
                    raise CdiError(f"{self._folder / name}: {error.strerror or error}") from error
        return _found(self._folder)

    # --- nvidia-ctk ---------------------------------------------------------------------------------------------------
    async def _with_toolkit(self, specs: tuple[CdiSpec, ...], request: CtkRequest | None) -> tuple[CdiSpec, ...]:
        """With the GPUs' spec as nvidia-ctk makes it; with the one from before while it is at work."""
        minimal = next((each for each in specs if each.kind == GPU_KIND), None)
        if request is None or minimal is None:
            self._unmade = ""
            return specs
        failed = bool(self._unmade) and time.monotonic() - self._made_at >= CTK_RETRY_SECONDS
        if request != self._request or failed:
            self._request, self._made_at = request, time.monotonic()
            self._made = self._toolkit.submit(lambda: self._make(request))
            self._made.add_done_callback(lambda _: self._on_change())
            patience = FIRST_PATIENCE_SECONDS if self._written is None else LATER_PATIENCE_SECONDS
            await asyncio.wait((self._made,), timeout=patience)
        if self._made is None or not self._made.done():
            before = next((each for each in self._written or () if each.kind == GPU_KIND), minimal)
            return _replaced(specs, before)
        return _replaced(specs, self._result(self._made, minimal))

    def _result(self, made: asyncio.Future[dict[str, Any] | None], minimal: CdiSpec) -> CdiSpec:
        try:
            document = made.result()
        except CtkError as error:
            if str(error) != self._unmade:
                log.warning("nvidia-ctk made no CDI specification; a minimal one is used", error=str(error))
            self._unmade = str(error)
            return minimal
        self._unmade = ""
        return minimal if document is None else replace(minimal, document=document)


def ctk_request(node: NodeSettings, context: InjectionContext, specs: Sequence[CdiSpec]) -> CtkRequest | None:
    """How nvidia-ctk is to make the GPUs' spec of these; None where they have none."""
    ours = next((each for each in specs if each.kind == GPU_KIND), None)
    if ours is None:
        return None
    return CtkRequest(
        names=frozenset(str(each["name"]) for each in ours.document["devices"]),
        id_strategy=context.device_id_strategy,
        host=context.host,
        driver_root=node.driver_root_here,
        hook_path=node.cdi_hook_path,
        feature_flags=node.cdi_feature_flags,
        disable_hooks=node.cdi_disable_hooks,
    )


def _found(folder: Path) -> frozenset[str]:
    names = {name for each in cdi.FILE_NAMES for name in (each, _half_written(each))}
    try:
        return frozenset(names & {each.name for each in folder.iterdir()})
    except OSError:
        return frozenset()


def _replaced(specs: tuple[CdiSpec, ...], gpus: CdiSpec) -> tuple[CdiSpec, ...]:
    return tuple(gpus if each.kind == gpus.kind else each for each in specs)


def unwritable(folder: Path) -> str:
    """Why no file can be written there, with its path; empty where nothing is in the way. Nothing is tried:
    container runtimes read their specs again when something happens in this folder."""
    try:
        place = next(each for each in (folder, *folder.parents) if each.exists() or each.is_symlink())
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
    """Write those that are not there in the same words. Raises CdiError."""
    for spec in specs:
        path = folder / spec.file_name
        wrong = cdi_schema.problems(spec.document)
        if wrong:
            raise CdiError(f"{path}: not written, since it is not valid: {'; '.join(wrong[:3])}")
        text = json.dumps(spec.document, indent=2, sort_keys=True) + "\n"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not _same(path, text):
                _replace(path, text)
        except OSError as error:
            raise CdiError(f"{path}: {error.strerror or error}") from error


def _same(path: Path, text: str) -> bool:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="utf-8") == text
    return False


def _replace(path: Path, text: str) -> None:
    new = path.with_name(_half_written(path.name))
    with new.open("w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), MODE)
        file.write(text)
    new.replace(path)


def _half_written(name: str) -> str:
    return f".{name}.new"  # runtimes read *.json and *.yaml
