"""Facts about the machine that are in no probe's line: read here, or asked of the probe server.

With `--probe-server` this container has no hardware: device nodes, the driver's root and vendors' programs are in the
probe's. The server's answers are hostile input, as probes' lines are: their size is bounded, and an answer that does
not fit the question is an error, which is counted and shown; whoever asked keeps the last good one. All of it may
block, the server's answers for so many seconds at most: it is called on worker threads.

`FoundHardware` finds the built-in probes whose hardware this node has, every few seconds while `auto` is configured.
Hardware and drivers may come later: a hot-plugged card, a module that an operator's DaemonSet loads. A kind that was
found stays found while the agent runs: its probe has to report a card that has gone as missing.

`HostPathReader` finds the optional device nodes and files that exist, every few seconds. They come and go with kernel
modules and services (nvidia-uvm at the first use, an IMEX channel with its daemon), so one check at the start is not
enough.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import structlog
from nodedevices_common.errors import OperationError
from nodedevices_common.periodic import Periodic
from nodedevices_probe import programs
from nodedevices_probe.node.roots import MAX_OF_A_KIND, existing
from nodedevices_probe.programs import MAX_PRINTED_BYTES, RUN_SECONDS, Printed, Program, ProgramError
from nodedevices_probe.protocol import text
from nodedevices_probe.registry import KINDS
from nodedevices_probe.serving import requests
from nodedevices_probe.serving.requests import FindHardware, FindPaths, Request, RunProgram

from nodedevices_plugin.runtime.threads import Worker
from nodedevices_plugin.vendors.registry import VENDORS, Vendors

log = structlog.get_logger(__name__)

T = TypeVar("T")

ANSWER_SECONDS = 5.0
MAX_ANSWER_BYTES = 1 << 20
MAX_PROGRAM_BYTES = 6 * MAX_PRINTED_BYTES + 4096  # JSON writes some characters in six
MAX_WHY = 300  # characters
HARDWARE_SECONDS = 10.0  # between two searches for hardware
PATHS_SECONDS = 5.0  # between two searches for optional paths
RETRY_SECONDS = 1.0  # after a failure: the probe server may only just be starting
FIRST_SECONDS = 1.0  # a file system that hangs must not keep the node's devices away


class MachineError(OperationError):
    """There is no good answer; the text says why."""


class Machine:
    """As this container has it. Raises MachineError; `run` ProgramError alone."""

    def existing(self, driver_root: Path, patterns: Sequence[str]) -> frozenset[str]:
        """Return the optional paths that exist."""
        return existing(driver_root, patterns)

    def hardware(self) -> Mapping[str, str]:
        """Return the kinds of probes whose hardware is there now, each with the reason."""
        return requests.present(KINDS)

    def run(self, program: Program, arguments: Sequence[str], *, driver_root: str) -> Printed:
        """Return what a vendor's program prints (nodedevices_probe.programs.run)."""
        return programs.run(program, arguments, driver_root=driver_root)


class ServedMachine(Machine):
    """As the probe server at `path` has it. `failed` is called for each answer that is none, with its kind."""

    def __init__(
        self, path: str, *, failed: Callable[[str], None] = lambda _: None, answer_seconds: float = ANSWER_SECONDS
    ) -> None:
        self._path = path
        self._failed = failed
        self._seconds = answer_seconds

    def existing(self, driver_root: Path, patterns: Sequence[str]) -> frozenset[str]:
        request = FindPaths(root=str(driver_root), patterns=tuple(patterns))
        return self._asked("paths", request, lambda answer: _paths(answer, patterns))

    def hardware(self) -> Mapping[str, str]:
        return self._asked("hardware", FindHardware(), _kinds)

    def run(self, program: Program, arguments: Sequence[str], *, driver_root: str) -> Printed:
        request = RunProgram(name=program.name, root=driver_root, arguments=tuple(arguments))
        try:
            return self._asked(
                "program",
                request,
                lambda answer: _printed(answer, driver_root),
                more_seconds=RUN_SECONDS,
                limit=MAX_PROGRAM_BYTES,
            )
        except MachineError as error:
            raise ProgramError(f"{program.name}: {error}") from error

    def _asked(
        self,
        kind: str,
        request: Request,
        read: Callable[[Any], T],
        *,
        more_seconds: float = 0.0,
        limit: int = MAX_ANSWER_BYTES,
    ) -> T:
        seconds = self._seconds + more_seconds
        try:
            try:
                answer = _answer(_lines(self._path, request, seconds, limit))
            except OSError as error:
                late = f"no answer for {seconds:g} s" if isinstance(error, TimeoutError) else ""
                why = error.strerror or late or str(error)
                raise MachineError(f"the probe server at {self._path}: {why}") from error
            return read(answer)
        except (MachineError, ValueError) as error:
            self._failed(kind)
            if isinstance(error, MachineError):
                raise
            raise MachineError(f"the probe server at {self._path}: its answer {error}") from error


def _lines(path: str, request: Request, seconds: float, limit: int) -> Iterable[bytes]:
    """Whole lines of the connection, until it is closed. Raises OSError, ValueError for one that is too long."""
    until = time.monotonic() + seconds
    rest = b""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(seconds)
        connection.connect(path)
        connection.sendall(requests.encode(request))
        while True:
            if (left := until - time.monotonic()) <= 0:
                raise TimeoutError
            connection.settimeout(left)
            chunk = connection.recv(1 << 16)
            if not chunk:
                return
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > limit:
                raise ValueError(f"has more than {limit} bytes")
            yield from lines


def _answer(lines: Iterable[bytes]) -> object:
    for line in lines:
        if not line:
            continue
        if (said := requests.word(line)) is not None:
            if said.refused:
                raise MachineError(f"the probe server refused: {text(said.refused, MAX_WHY)}")
            raise ValueError(f"is missing: its process ended with status {said.exited}")
        try:
            match json.loads(line):
                case {"answer": answer}:
                    return answer
        except (ValueError, RecursionError):
            pass
        raise ValueError("is not one line of JSON with an answer")
    raise ValueError("is missing: it closed the connection")


# --- answers, each checked against its question -----------------------------------------------------------------------
def _paths(answer: object, patterns: Sequence[str]) -> frozenset[str]:
    most = MAX_OF_A_KIND * len(set(patterns))
    if not isinstance(answer, list) or len(answer) > most:
        raise ValueError(f"is not a list of at most {most} paths")
    for path in answer:
        if not isinstance(path, str) or not any(map(PurePosixPath(path).match, patterns)):
            raise ValueError("has a path that was not asked for")
    return frozenset(answer)


def _kinds(answer: object) -> Mapping[str, str]:
    if not isinstance(answer, dict) or not answer.keys() <= KINDS.keys():
        raise ValueError("names hardware that was not asked for")
    return {name: text(str(why), MAX_WHY) for name, why in answer.items()}


def _printed(answer: object, driver_root: str) -> Printed:
    match answer:
        case {"error": str(why)}:
            raise ProgramError(text(why, MAX_WHY))
        case {"text": str(printed), "driverRoot": str(root)} if root in {"", driver_root}:
            return Printed(text=printed, driver_root=root)
    raise ValueError("is not what a program printed")


class FoundHardware(Periodic):
    """`found`: the names of the kinds; None before the first check. `on_change` is called on the loop when it grows, or
    when `problem` is something else: why it may be old; empty: it is not.

    `check`: the kinds that are there now, and why, by name. It is called on the worker's thread, and raises
    MachineError.
    """

    def __init__(
        self, *, worker: Worker, on_change: Callable[[], None], check: Callable[[], Mapping[str, str]] | None = None
    ) -> None:
        super().__init__(
            self._check,
            seconds=lambda: (RETRY_SECONDS if self._problem else HARDWARE_SECONDS) if self._wanted else None,
            patience_seconds=FIRST_SECONDS,
        )
        self._worker = worker
        self._on_change = on_change
        self._present = check or Machine().hardware
        self._wanted = False
        self._problem = ""
        self.found: frozenset[str] | None = None

    def want(self, wanted: bool) -> None:
        """Check from now on, or no longer."""
        if wanted and not self._wanted:
            self.soon()
        self._wanted = wanted

    @property
    def problem(self) -> str:
        return self._problem if self._wanted else ""

    async def _check(self) -> None:
        try:
            present = await self._worker.run(self._present)
        except MachineError as error:
            was, self._problem = self._problem, str(error)
            if self.problem and self.problem != was:
                log.warning("hardware not searched, what was found last counts", error=self.problem)
                self._on_change()
            return
        cured, self._problem = bool(self._problem), ""
        before = self.found or frozenset()
        new = {name: why for name, why in present.items() if name not in before}
        for name, why in new.items():
            log.info("hardware found", probe=name, why=why)
        if new or cured or self.found is None:
            self.found = before | new.keys()
            self._on_change()


class HostPathReader(Periodic):
    """`existing` is what was found last, nothing at first. `problem`: why that may be old; empty: it is not.
    `on_change` is called on the loop when one of them is something else.

    driver_root: where the driver's root is mounted in this container, as configured now. files: the device files'
    contents, which may say what containers get.
    """

    def __init__(
        self,
        driver_root: Callable[[], Path],
        files: Callable[[], Mapping[str, object]],
        *,
        worker: Worker,
        on_change: Callable[[], None],
        vendors: Vendors = VENDORS,
        machine: Machine | None = None,
    ) -> None:
        super().__init__(
            self._check,
            seconds=lambda: RETRY_SECONDS if self.problem else PATHS_SECONDS,
            patience_seconds=FIRST_SECONDS,
        )
        self._machine = machine or Machine()
        self._driver_root = driver_root
        self._files = files
        self._vendors = vendors
        self._worker = worker
        self._on_change = on_change
        self.existing: frozenset[str] = frozenset()
        self.problem = ""
        self._unread = True

    async def line_came(self) -> None:
        """Read once more, if nothing could be read yet: a probe's first line shows that its server is there now, and
        the first containers are to get what exists."""
        if self._unread:
            self._unread = False
            await self.first()

    async def _check(self) -> None:
        before = self.existing, self.problem
        patterns = wanted_paths(self._files(), self._vendors)
        try:
            self.existing = await self._worker.run(partial(self._machine.existing, self._driver_root(), patterns))
            self.problem, self._unread = "", False
        except MachineError as error:
            self.problem = str(error)
            if self.problem != before[1]:
                log.warning("optional device nodes not read, those read last count", error=self.problem)
        if (self.existing, self.problem) != before:
            self._on_change()


def wanted_paths(files: Mapping[str, object], vendors: Vendors = VENDORS) -> tuple[str, ...]:
    """The optional paths of all vendors, as globs."""
    return tuple(dict.fromkeys(path for vendor in vendors.every for path in vendor.host_paths(files)))
