"""Requests of an agent to a probe server: their form and how they are done. Each has a connection, one JSON line first.

    {"protocol": "nodedevices.io/probe-server/v1alpha1", "probe": ["nvml", "--driver-root-ctr-path=/driver-root"]}
    {"protocol": ..., "paths": {"root": "/driver-root", "patterns": ["/dev/nvidia-caps-imex-channels/channel*"]}}
    {"protocol": ..., "hardware": true}
    {"protocol": ..., "program": {"name": "nvidia-ctk", "root": "", "arguments": ["--class=gpu"]}}

The server says `{"server": {"refused": "why"}}`, and at the end of each process `{"server": {"exited": 0}}`; between
them are a probe's lines, or one `{"answer": ...}`. Each side takes the other's words for hostile: lengths are bounded,
and nothing is read that is not exactly of this form.

A request names kinds and programs that the server knows (registry), with flags that these have for the agent. It
never brings a path of its own: a library is loaded from the driver's root, so a path would be a way to run code. Paths
are the server's (`Allowed.paths`), by the same options and variables as the agent's, and a request with another is
refused.

The server starts a process for each request (`perform`), because all of this may hang in the kernel: a mount that does
not answer, a driver. Its answer is one line on the connection; a probe's lines go there as they come.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodedevices_common.errors import InputError

from nodedevices_probe import programs
from nodedevices_probe.kind import DEVICES_DIR, DRIVER_ROOT, Hardware, ProbeKind
from nodedevices_probe.loop import write_all
from nodedevices_probe.node.roots import Roots, existing
from nodedevices_probe.programs import Program

PROTOCOL = "nodedevices.io/probe-server/v1alpha1"
MAX_REQUEST_BYTES = 1 << 16
MAX_WORD_BYTES = 4096  # of the server about a request
MAX_WORDS = 512  # arguments, patterns
MAX_TEXT = 4096  # characters of one of them
INTERVAL = "interval-seconds"  # a flag of every kind
_WORD = b'{"server":'


class RequestError(InputError):
    """It is refused; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartProbe:
    """`arguments`: those of `nodedevices-probe`. The connection becomes its lines, and its input."""

    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FindPaths:
    """Which of these optional paths exist (roots.existing)."""

    root: str
    patterns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FindHardware:
    """The kinds of probes whose hardware is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgram:
    """A vendor's program (programs.run)."""

    name: str
    root: str
    arguments: tuple[str, ...]


Request = StartProbe | FindPaths | FindHardware | RunProgram


def encode(request: Request) -> bytes:
    """Return the line, newline included."""
    said: Any
    match request:
        case StartProbe():
            said = {"probe": request.arguments}
        case FindPaths():
            said = {"paths": {"root": request.root, "patterns": request.patterns}}
        case FindHardware():
            said = {"hardware": True}
        case RunProgram():
            said = {"program": {"name": request.name, "root": request.root, "arguments": request.arguments}}
    return json.dumps({"protocol": PROTOCOL, **said}).encode() + b"\n"


def decode(line: bytes) -> Request:
    """Raises RequestError for all that is not exactly one request."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        raise RequestError("not JSON") from None
    if not isinstance(said, dict) or said.pop("protocol", None) != PROTOCOL:
        raise RequestError(f"not of the protocol {PROTOCOL}: agent and probe server are of different versions")
    match said:
        case {"probe": arguments, **rest} if not rest:
            return StartProbe(arguments=_texts("probe", arguments))
        case {"paths": {"root": root, "patterns": patterns, **others}, **rest} if not rest and not others:
            return FindPaths(root=_text("root", root), patterns=_texts("patterns", patterns))
        case {"hardware": True, **rest} if not rest:
            return FindHardware()
        case {
            "program": {"name": name, "root": root, "arguments": arguments, **others},
            **rest,
        } if not rest and not others:
            return RunProgram(
                name=_text("name", name),
                root=_text("root", root),
                arguments=_texts("arguments", arguments),
            )
    raise RequestError("unknown; give one of probe, paths, hardware and program, with all of its parts")


def _text(place: str, value: object) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT or "\0" in value:
        raise RequestError(f"{place}: give text of at most {MAX_TEXT} characters")
    return value


def _texts(place: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > MAX_WORDS:
        raise RequestError(f"{place}: give a list of at most {MAX_WORDS} texts")
    return tuple(_text(place, text) for text in value)


# --- which requests are allowed ---------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """`paths`: this server's, by the agent's option; an option without a path is not there."""

    kinds: Mapping[str, ProbeKind]
    programs: Mapping[str, Program]
    paths: Mapping[str, str]

    def check(self, request: Request) -> None:
        """Raises RequestError."""
        match request:
            case StartProbe(arguments=(name, *flags)) if name in self.kinds:
                self._check_flags(self.kinds[name], flags)
            case StartProbe():
                raise RequestError(f"probe: give one of {', '.join(self.kinds)}")
            case FindPaths():
                self._check_path(DRIVER_ROOT, request.root)
                for pattern in request.patterns:
                    if not pattern.startswith("/") or ".." in pattern.split("/") or "**" in pattern:
                        raise RequestError("patterns: give absolute paths without .. and **")
            case RunProgram():
                self._check_program(request)
            case FindHardware():
                pass

    def _check_flags(self, kind: ProbeKind, flags: Sequence[str]) -> None:
        for argument in flags:
            flag, _, value = argument.removeprefix("--").partition("=")
            known = [*kind.passed_on, *sorted(kind.choices), INTERVAL]
            if flag not in known or not argument.startswith("--"):
                right = ", ".join(f"--{flag}" for flag in known)
                raise RequestError(f"{kind.name}: {argument[:60]!r} is not allowed; give some of {right}")
            if flag in kind.opens and kind.passed_on[flag] in kind.files:
                self._check_device_file(kind.passed_on[flag], value)
            elif flag in kind.opens:
                self._check_path(kind.passed_on[flag], value)

    def _check_program(self, request: RunProgram) -> None:
        program = self.programs.get(request.name)
        if program is None:
            raise RequestError(f"program: {request.name[:60]!r} is unknown; give one of {', '.join(self.programs)}")
        if request.root:
            self._check_path(DRIVER_ROOT, request.root)
        for argument in request.arguments:
            flag, equals, _ = argument.removeprefix("--").partition("=")
            if not equals or not argument.startswith("--") or flag not in program.flags:
                known = ", ".join(f"--{flag}=" for flag in sorted(program.flags))
                raise RequestError(f"{program.name}: {argument[:60]!r} is not allowed; give some of {known}")

    def _check_device_file(self, name: str, path: str) -> None:
        """In the server's own folder, with that name, or with a Node's before it."""
        folder, _, file = path.rpartition("/")
        self._check_path(DEVICES_DIR, folder)
        if file != name and not file.endswith(f".{name}"):
            raise RequestError(f"{file[:60]!r} is not allowed; give {name}")

    def _check_path(self, option: str, path: str) -> None:
        own = self.paths.get(option)
        if own is None or posixpath.normpath(path) != posixpath.normpath(own):
            here = f"has {own}" if own else "has none"
            raise RequestError(
                f"--{option}: {path[:200]!r} is not the probe server's, which {here}; give both the same"
            )


# --- what the server says of a request --------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """`refused`: why no process was started. `exited`: how the process ended; negative: by this signal."""

    refused: str = ""
    exited: int | None = None

    def line(self) -> bytes:
        """Newline included. It follows what a process wrote last, which may be half a line."""
        said = {"refused": self.refused[:1024]} if self.exited is None else {"exited": self.exited}
        return b"\n" + _WORD + json.dumps(said).encode() + b"}\n"


def word(line: bytes) -> Word | None:
    """Return what the server says in this line; None: it is not the server's, or not understood."""
    if not line.startswith(_WORD) or len(line) > MAX_WORD_BYTES:
        return None
    try:
        said = json.loads(line)["server"]
    except (ValueError, RecursionError):
        return None
    match said:
        case {"refused": str(why)}:
            return Word(refused=why)
        case {"exited": int(status)} if -64 <= status <= 255:
            return Word(exited=status)
    return None


# --- what a process does that the server has started for a request ----------------------------------------------------
def present(kinds: Mapping[str, ProbeKind], root: Path = Path("/")) -> dict[str, str]:
    """Return the kinds whose hardware is there now, each with the reason."""
    machine = Hardware(Roots(root))
    return {name: why for name, kind in kinds.items() if (why := kind.present(machine))}


def perform(
    request: Request,
    descriptor: int,
    *,
    probe: Callable[[Sequence[str]], int],
    kinds: Mapping[str, ProbeKind],
    known_programs: Mapping[str, programs.Program],
) -> int:
    """Do what was requested and allowed, in this process. Returns its exit status. `probe`: the command."""
    answer: Any
    match request:
        case StartProbe():
            return probe([*request.arguments, f"--fd={descriptor}"])
        case FindPaths():
            answer = sorted(existing(Path(request.root), request.patterns))
        case FindHardware():
            answer = present(kinds)
        case RunProgram():
            try:
                done = programs.run(known_programs[request.name], request.arguments, driver_root=request.root)
                answer = {"text": done.text, "driverRoot": done.driver_root}
            except programs.ProgramError as error:
                answer = {"error": str(error)}
    write_all(descriptor, json.dumps({"answer": answer}).encode() + b"\n")
    return 0
