"""What the agent learns of the machine apart from probes' lines: read here, or asked of the probe server.

With `--probe-server` this container has no hardware: device nodes, the driver's root and vendors' programs are in the
probe's. The server's answers are hostile input, as probes' lines are: their size is bounded, and an answer that does
not fit the question is an error, which is counted and shown; whoever asked keeps the last good one.

All of it may block, the server's answers for so many seconds at most: it is called on worker threads.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol, TypeVar

from nodedevices_common.errors import OperationError
from nodedevices_probe import programs
from nodedevices_probe.node.roots import MAX_OF_A_KIND, existing
from nodedevices_probe.programs import MAX_PRINTED_BYTES, RUN_SECONDS, Printed, Program, ProgramError
from nodedevices_probe.protocol import text
from nodedevices_probe.registry import KINDS
from nodedevices_probe.serving import requests
from nodedevices_probe.serving.requests import FindHardware, FindPaths, Request, RunProgram

T = TypeVar("T")

ANSWER_SECONDS = 5.0
MAX_ANSWER_BYTES = 1 << 20
MAX_PROGRAM_BYTES = 6 * MAX_PRINTED_BYTES + 4096  # JSON writes some characters in six
MAX_WHY = 300  # characters


class MachineError(OperationError):
    """There is no good answer; the text says why."""


class Machine(Protocol):
    """Raises MachineError; `run` ProgramError alone."""

    def existing(self, driver_root: Path, patterns: Sequence[str]) -> frozenset[str]:
        """The optional paths that exist (nodedevices_probe.node.roots)."""
        ...

    def hardware(self) -> Mapping[str, str]:
        """The kinds of probes whose hardware is there now, each with the reason."""
        ...

    def run(self, program: Program, arguments: Sequence[str], *, driver_root: str) -> Printed:
        """What a vendor's program prints (nodedevices_probe.programs.run)."""
        ...


class LocalMachine:
    """As this container has it."""

    def existing(self, driver_root: Path, patterns: Sequence[str]) -> frozenset[str]:
        return existing(driver_root, patterns)

    def hardware(self) -> Mapping[str, str]:
        return requests.present(KINDS)

    def run(self, program: Program, arguments: Sequence[str], *, driver_root: str) -> Printed:
        return programs.run(program, arguments, driver_root=driver_root)


class ServedMachine:
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
                seconds=RUN_SECONDS + self._seconds,
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
        seconds: float | None = None,
        limit: int = MAX_ANSWER_BYTES,
    ) -> T:
        try:
            try:
                answer = _answer(_lines(self._path, request, self._seconds if seconds is None else seconds, limit))
            except OSError as error:
                why = error.strerror or (f"no answer for {self._seconds:g} s" if _is_late(error) else str(error))
                raise MachineError(f"the probe server at {self._path}: {why}") from error
            return read(answer)
        except (MachineError, ValueError) as error:
            self._failed(kind)
            if isinstance(error, MachineError):
                raise
            raise MachineError(f"the probe server at {self._path}: its answer {error}") from error


def _is_late(error: OSError) -> bool:
    return isinstance(error, TimeoutError)


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
    asked = {(folder, name) for folder, _, name in (pattern.rpartition("/") for pattern in patterns)}
    by_folder: dict[str, list[str]] = {}
    for folder, name in asked:
        by_folder.setdefault(folder, []).append(name)
    most = MAX_OF_A_KIND * len(asked)
    if not isinstance(answer, list) or len(answer) > most:
        raise ValueError(f"is not a list of at most {most} paths")
    for path in answer:
        folder, _, name = path.rpartition("/") if isinstance(path, str) else ("", "", "")
        if not any(fnmatchcase(name, pattern) for pattern in by_folder.get(folder, ())):
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
