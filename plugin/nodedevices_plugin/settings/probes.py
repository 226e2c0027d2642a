"""Which probes the agent runs: `--probe nvml`, `--probe simulated`, `--probe NAME=COMMAND`, as often as wanted. Pure.

The order counts: a device that two probes report is the first one's. A command is split into words as a shell does it,
and gets `--fd N`, the descriptor to which it writes its lines; a comma in it would end it, so that a program that needs
one is wrapped in a script.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from nodedevices_api.bounds import MAX_PROBE_NAME, MAX_PROBES, PROBE_NAME_PATTERN
from nodedevices_common.text import show

BUILT_IN = ("nvml", "simulated")


@dataclass(frozen=True, slots=True)
class ProbeSpec:
    """A probe by its name. `command`: the program; empty: the built-in one of that name."""

    name: str
    command: tuple[str, ...] = ()


def read(values: Sequence[str]) -> tuple[tuple[ProbeSpec, ...], list[str]]:
    """The probes in their order, and what is wrong with the values."""
    specs: list[ProbeSpec] = []
    problems = [] if values else ["--probe: empty; give nvml, simulated or NAME=COMMAND"]
    for value in values:
        name, equals, text = value.partition("=")
        if not equals and name not in BUILT_IN:
            problems.append(f"--probe: {show(value)} is not allowed; give nvml, simulated or NAME=COMMAND")
            continue
        if re.fullmatch(PROBE_NAME_PATTERN, name) is None or len(name) > MAX_PROBE_NAME:
            right = f"give at most {MAX_PROBE_NAME} small letters, digits and hyphens"
            problems.append(f"--probe: the name {show(name)} is not allowed; {right}")
            continue
        if any(each.name == name for each in specs):
            problems.append(f"--probe: {name} is there twice; give each probe its own name")
            continue
        command, problem = _command(text) if equals else ((), "")
        if problem:
            problems.append(f"--probe {name}: {problem}")
        specs.append(ProbeSpec(name, command))
    if len(specs) > MAX_PROBES:
        problems.append(f"--probe: {len(specs)} are too many; give at most {MAX_PROBES}")
    return tuple(specs), problems


def _command(text: str) -> tuple[tuple[str, ...], str]:
    if text.startswith("unix:"):
        return (), f"{show(text)}: a socket is not implemented yet; give a command"
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        return (), f"{show(text)} is not a command ({error})"
    return words, "" if words else "no command after =; give a program with its arguments"
