"""Which probes the agent has: `--probe nvml`, `--probe simulated`, `--probe NAME=COMMAND`, `--probe NAME=unix:/PATH`,
as often as wanted. Pure.

The order counts: a device that two probes report is the first one's. A command is split as a shell does it,
and gets `--fd N`, the descriptor to which it writes its lines; a comma in it would end it, so that a program that needs
one is wrapped in a script. At a path the agent connects to a probe that somebody else runs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from nodedevices_api.bounds import MAX_PROBE_NAME, MAX_PROBES, PROBE_NAME_PATTERN
from nodedevices_common import unix_socket
from nodedevices_common.text import show

BUILT_IN = ("nvml", "simulated")
_RIGHT = "give nvml, simulated, NAME=COMMAND or NAME=unix:/PATH"


@dataclass(frozen=True, slots=True)
class ProbeSpec:
    """A probe by its name. `command`: the program; `socket`: the path where it listens; neither: the built-in one."""

    name: str
    command: tuple[str, ...] = ()
    socket: str = ""


def read(values: Sequence[str]) -> tuple[tuple[ProbeSpec, ...], list[str]]:
    """The probes in their order, and what is wrong with the values."""
    specs: list[ProbeSpec] = []
    problems = [] if values else [f"--probe: empty; {_RIGHT}"]
    for value in values:
        name, equals, text = value.partition("=")
        if not equals and name not in BUILT_IN:
            problems.append(f"--probe: {show(value)} is not allowed; {_RIGHT}")
            continue
        if re.fullmatch(PROBE_NAME_PATTERN, name) is None or len(name) > MAX_PROBE_NAME:
            right = f"give at most {MAX_PROBE_NAME} small letters, digits and hyphens"
            problems.append(f"--probe: the name {show(name)} is not allowed; {right}")
            continue
        if any(each.name == name for each in specs):
            problems.append(f"--probe: {name} is there twice; give each probe its own name")
            continue
        spec, problem = _spec(name, text) if equals else (ProbeSpec(name), "")
        if problem:
            problems.append(f"--probe {name}: {problem}")
        specs.append(spec)
    if len(specs) > MAX_PROBES:
        problems.append(f"--probe: {len(specs)} are too many; give at most {MAX_PROBES}")
    return tuple(specs), problems


def _spec(name: str, text: str) -> tuple[ProbeSpec, str]:
    """One's own probe, and what is wrong with it."""
    if text.startswith(unix_socket.SCHEME):
        try:
            return ProbeSpec(name, socket=unix_socket.path_of(text)), ""
        except ValueError as error:
            return ProbeSpec(name), str(error)
    try:
        command = tuple(shlex.split(text))
    except ValueError as error:
        return ProbeSpec(name), f"{show(text)} is not a command ({error})"
    return ProbeSpec(name, command), "" if command else "no command after =; give a program with its arguments"
