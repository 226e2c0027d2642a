"""What NVIDIA's container toolkit gives: the CDI spec that it keeps on the node, and `nvidia-ctk`, which makes one.

Both are looked at on a worker thread, since a spec is thousands of lines and `nvidia-ctk` asks the driver. A file that
cannot be read is as good as none: the toolkit may be writing it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from nodedevices_plugin import safe_yaml
from nodedevices_plugin.resources import cdi, cdi_schema
from nodedevices_plugin.worker import Worker

log = structlog.get_logger(__name__)

LOOK_SECONDS = 5.0
FIRST_LOOK_SECONDS = 2.0
MAX_BYTES = 2 << 20  # a spec of 16 GPUs in 7 parts each has less than 1
MAX_VALUES = 30_000  # keys and values; the garbage collector, too, holds the interpreter
MAX_FILES = 64
CTK = "nvidia-ctk"
CTK_SECONDS = 30.0
SHOWN = 300  # characters of its last words
_Signature = tuple[tuple[str, int, int, int], ...]


class ToolkitSpecs:
    """`devices` is what the toolkit's specs in these folders had at the last look; `on_change`: when that changes."""

    def __init__(self, folders: Sequence[Path], *, worker: Worker, on_change: Callable[[], None]) -> None:
        self._folders = tuple(folders)
        self._worker = worker
        self._on_change = on_change
        self._signature: _Signature | None = None  # None: not looked yet
        self.wanted = False  # whether anybody hands out CDI names
        self.devices: tuple[cdi.ToolkitDevice, ...] = ()

    async def ready(self) -> None:
        """From now on they are wanted; returns after one look at least, or when that takes too long."""
        self.wanted = True
        if self._signature is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FIRST_LOOK_SECONDS):
                    await self._look()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self.wanted:
                await self._look()

    async def _look(self) -> None:
        signature, devices = await self._worker.run(lambda: _read(self._folders, self._signature))
        if devices is None:
            return
        self._signature = signature
        if devices != self.devices:
            self.devices = devices
            log.info("the container toolkit's CDI specification", devices=len(devices))
            self._on_change()


def _read(folders: Sequence[Path], known: _Signature | None) -> tuple[_Signature, tuple[cdi.ToolkitDevice, ...] | None]:
    """The devices of all the toolkit's specs, or None where no file has changed. A later folder outranks an earlier."""
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
        return tuple(signature), None
    found: dict[str, cdi.ToolkitDevice] = {}
    for path in files:
        found |= {each.name: each for each in cdi.toolkit_devices(_document(path))}
    return tuple(signature), tuple(found.values())


def _document(path: Path) -> object:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES or cdi.TOOLKIT_KIND.encode() not in raw:
            return None
        if path.suffix != ".json":
            return safe_yaml.load(raw, max_values=MAX_VALUES)
        # The parser holds the interpreter: what it is given is bounded, because the agent's loop runs beside it.
        return json.loads(raw) if sum(map(raw.count, (b",", b"[", b"{"))) <= MAX_VALUES else None
    except (OSError, ValueError, RecursionError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class CtkRequest:
    """What a spec is made of. Equal requests have equal answers.

    names: the devices that it must have. driver_root: where the driver root is mounted in this container, if it is.
    """

    names: frozenset[str]
    id_strategy: str = "uuid"
    host: cdi.Host
    driver_root: str = ""
    hook_path: str = ""
    feature_flags: tuple[str, ...] = ()
    disable_hooks: tuple[str, ...] = ()

    def command(self, program: str, driver_root: str) -> list[str]:
        """Options of nvidia-ctk 1.14 and later; the last two are 1.18's. `driver_root` "": this container's own."""
        roots = [f"--driver-root={driver_root}", f"--dev-root={_dev_root(driver_root)}"] if driver_root else []
        return [
            *(program, "cdi", "generate", "--format=json", f"--vendor={cdi.VENDOR}", "--class=gpu"),
            f"--device-name-strategy={self.id_strategy}",
            *roots,
            *([f"--nvidia-ctk-path={self.hook_path}"] if self.hook_path else []),
            *(f"--feature-flag={each}" for each in self.feature_flags),
            *(f"--disable-hook={each}" for each in self.disable_hooks),
        ]


def _dev_root(driver_root: str) -> str:
    return driver_root if Path(driver_root, "dev").is_dir() else "/"


class CtkError(Exception):
    """nvidia-ctk made no spec that can be used; the text says why."""


def generate(request: CtkRequest) -> dict[str, Any] | None:
    """The spec that nvidia-ctk makes; None where there is no nvidia-ctk. Raises CtkError. Blocks."""
    program = shutil.which(CTK)
    if program is None:
        return None
    driver_root = request.driver_root if request.driver_root and Path(request.driver_root).is_dir() else ""
    try:
        done = subprocess.run(  # noqa: S603
            request.command(program, driver_root),
            capture_output=True,
            timeout=CTK_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CtkError(f"{CTK}: {error}") from error
    if done.returncode != 0:
        words = " ".join(done.stderr.decode(errors="replace").split())[-SHOWN:]
        raise CtkError(f"{CTK}: status {done.returncode}: {words or 'it said nothing'}")
    try:
        document = json.loads(done.stdout)
    except ValueError as error:
        raise CtkError(f"{CTK}: what it made is not JSON: {error}") from error
    wrong = cdi_schema.problems(document)
    if wrong:
        raise CtkError(f"{CTK}: what it made is not valid: {'; '.join(wrong[:3])}")
    if document["kind"] != f"{cdi.VENDOR}/gpu":
        raise CtkError(f"{CTK}: what it made is of kind {document['kind']}")
    missing = sorted(request.names - {each["name"] for each in document["devices"]})
    if missing:
        raise CtkError(f"{CTK}: what it made has no {', '.join(missing[:3])}")
    return cdi.rerooted(document, request.host, mounted=driver_root)
