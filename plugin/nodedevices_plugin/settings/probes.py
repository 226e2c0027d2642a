"""The configured probes: a built-in one by its name (`--probe nvml`), `--probe NAME=COMMAND`, `--probe
NAME=unix:/PATH`, as often as wanted.

`auto` means the built-in ones whose hardware the node has (nodedevices_probe.kind), which change as hardware
and drivers come; it may be combined with others.

Independent parts of an installation (components of a kustomization) each add their probes, and none replaces another's
(`together`): any variable NODEDEVICES_ADD_PROBE_<part>, and a file that describes devices, which adds the probe that
reads it.

The order counts: a device that two probes report belongs to the first one. A command is split as a shell does it, and
gets `--fd N`, the descriptor to which it writes its lines; a comma would end it, so a program that needs one in its
arguments is wrapped in a script. `unix:` names the socket of a probe that the agent does not run itself.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct
from nodedevices_api.bounds import MAX_PROBE_NAME, MAX_PROBES, PROBE_NAME_PATTERN
from nodedevices_common import address
from nodedevices_common.options import Value
from nodedevices_common.text import show
from nodedevices_probe.files import CheckError
from nodedevices_probe.kind import DEVICES_DIR
from nodedevices_probe.registry import KINDS

FLAG, KEY, POLICY = "--probe", "flags.probe", "discovery.probes"
ADD_VARIABLES = "NODEDEVICES_ADD_PROBE_"  # and any name: one for each part that adds probes
ADD = f"environment variables {ADD_VARIABLES}*"
SIMULATED = "simulated"
DEFAULT = ("nvml",)
AUTO = "auto"
AUTOMATIC = tuple(kind.name for kind in KINDS.values() if kind.automatic)  # what it may stand for
_RIGHT = f"give {AUTO}, {', '.join(KINDS)}, NAME=COMMAND or NAME=unix:/PATH"


class ProbeSpec(Struct, frozen=True):
    """A probe by its name. `command`: the program; `socket`: the path where it listens; neither: the built-in one, or
    `auto`."""

    name: str
    command: tuple[str, ...] = ()
    socket: str = ""

    @property
    def built_in(self) -> bool:
        return not self.command and not self.socket and self.name != AUTO


def name_of(text: str) -> str:
    """Return the name of a configured probe."""
    return text.partition("=")[0]


def lists_devices(name: str) -> bool:
    """Return whether a probe of this name may have devices of its own."""
    kind = KINDS.get(name)
    return kind is None or kind.lists_devices


def read(values: Sequence[str], place: str = FLAG) -> tuple[tuple[ProbeSpec, ...], list[str]]:
    """The probes in their order, and what is wrong with the values. `place`: where they stand."""
    specs: list[ProbeSpec] = []
    problems = [] if values else [f"{place}: empty; {_RIGHT}"]
    for value in values:
        name, equals, text = value.partition("=")
        if not equals and name not in (AUTO, *KINDS):
            problems.append(f"{place}: {show(value)} is not allowed; {_RIGHT}")
        elif re.fullmatch(PROBE_NAME_PATTERN, name) is None or len(name) > MAX_PROBE_NAME:
            right = f"give at most {MAX_PROBE_NAME} small letters, digits and hyphens"
            problems.append(f"{place}: the name {show(name)} is not allowed; {right}")
        elif any(spec.name == name for spec in specs):
            problems.append(f"{place}: {name} is given twice; give each probe its own name")
        elif equals and name == AUTO:
            problems.append(f"{place}: {AUTO} cannot be the name of your own probe; choose another")
        else:
            spec, problem = _spec(name, text) if equals else (ProbeSpec(name), "")
            specs.append(spec)
            problems += [f"{place} {name}: {problem}"] if problem else []
    names = {spec.name for spec in specs}
    count = len(names - {AUTO} | set(AUTOMATIC) if AUTO in names else names)
    if count > MAX_PROBES:
        problems.append(f"{place}: {count} are too many; give at most {MAX_PROBES}")
    return tuple(specs), problems


def expanded(texts: Sequence[str], found: Collection[str]) -> tuple[str, ...]:
    """The probes with those that were found in the place of `auto`, but for what is listed beside it by that name."""
    if AUTO not in texts:
        return tuple(texts)
    listed = {name_of(text) for text in texts}
    auto = [name for name in AUTOMATIC if name in found and name not in listed]
    at = texts.index(AUTO)
    return (*texts[:at], *auto, *texts[at + 1 :])


def chosen(
    names: Sequence[str], defined: Sequence[str], options: Mapping[str, Value], place: str = POLICY
) -> tuple[tuple[str, ...], list[str]]:
    """The probes that a policy names, as they are configured, and what is wrong with the names. `defined`: what the
    node's own flags and file say of probes, the strongest first. A policy brings no program of its own."""
    own = {name_of(text): text for text in reversed(defined) if "=" in text}
    known = {*own, AUTO, *KINDS}
    here = f", or what the node's flags and file define: {', '.join(sorted(own))}" if own else ""
    right = f"give {AUTO}, {', '.join(KINDS)}{here}"
    problems = [f"{place}: this node has no probe {show(name)}; {right}" for name in names if name not in known]
    texts = tuple(own.get(name, name) for name in names if name in known)
    specs, wrong = read(texts, place) if texts else ((), [])
    return texts, problems + wrong + missing(specs, options, place)


def together(
    listed: Sequence[str] | None, added: Sequence[str], files: Collection[str] = ()
) -> tuple[tuple[str, ...], list[str]]:
    """The probes that run, and what is wrong with them as a whole. `listed`: what flags, variables or file list; None:
    none of them does. A probe that is added by its name alone is the one that another part defines by that name.
    `files`: names of the device files that are there."""
    usual = () if AUTO in added else DEFAULT
    by_name = {name_of(text): text for text in (listed if listed is not None else usual)}
    problems = []
    for text in added:
        name = name_of(text)
        before = by_name.get(name, name)
        if before in (name, text):
            by_name[name] = text
        elif text != name:
            problems.append(f"{ADD}: {name} is {show(before)} and {show(text)}; give each probe its own name")
    # Files bring probes, too; `auto` stands for them already. The simulated probe stands for the node's hardware:
    # beside it run those alone that have no other devices than a file's.
    found = configured(files) if AUTO not in by_name else frozenset()
    brought = [name for name in AUTOMATIC if name in found and name not in by_name]
    texts = (*by_name.values(), *(name for name in brought if SIMULATED not in by_name or KINDS[name].requires))
    return texts, problems or read(texts, ADD)[1]


def configured(files: Collection[str]) -> frozenset[str]:
    """Return the probes that `auto` includes on any hardware: those whose devices one of these files describes."""
    return frozenset(kind.name for kind in KINDS.values() if not set(kind.files).isdisjoint(files))


def missing(specs: Sequence[ProbeSpec], options: Mapping[str, Value], place: str = FLAG) -> list[str]:
    """Return the errors about agent's options that these probes need and do not have. `options`: as `passed_on` has
    them."""
    problems = []
    names = [spec.name for spec in specs if spec.built_in]
    auto = [name for name in AUTOMATIC if name not in names] if any(spec.name == AUTO for spec in specs) else []
    for kind in (KINDS[name] for name in (*names, *auto)):
        folder = f"--{DEVICES_DIR}, a folder with "
        lacking = [
            f"{folder if name in kind.files else '--'}{name}, {what}"
            for name, what in kind.requires.items()
            if not options[name]
        ]
        if lacking and kind.name in names:
            problems.append(f"{place} {kind.name}: needs {' and '.join(lacking)}")
        else:
            try:
                kind.check(options)
            except CheckError as error:
                problems.append(str(error))
    return problems


def unused(specs: Sequence[ProbeSpec], options: Mapping[str, Value]) -> list[str]:
    """Options that only go with a probe which is not among these."""
    run = {spec.name for spec in specs if spec.built_in}
    return [
        f"--{option}: only valid with --probe {kind.name}"
        for kind in KINDS.values()
        if kind.alone and kind.name not in run
        for option in kind.requires
        if options[option]
    ]


def passed_on(values: Mapping[str, Value]) -> dict[str, Value]:
    """Return what a built-in probe takes: the agent's options, and paths of the device files without which it cannot
    run, there or not."""
    folder = str(values[DEVICES_DIR] or "")
    options = {option for kind in KINDS.values() for option in kind.passed_on.values() if option not in kind.files}
    paths = {
        name: path_of(folder, name) if folder and name in kind.requires else ""
        for kind in KINDS.values()
        for name in kind.files
    }
    return {**{option: values[option] for option in sorted(options)}, **paths}


def path_of(folder: str, name: str) -> str:
    """Return the path of a device file."""
    return f"{folder.rstrip('/')}/{name}"


def _spec(name: str, text: str) -> tuple[ProbeSpec, str]:
    """Return a probe of a person's own, and what is wrong with it."""
    if text.startswith(address.UNIX_SCHEME):
        try:
            return ProbeSpec(name, socket=address.unix_path(text)), ""
        except ValueError as error:
            return ProbeSpec(name), str(error)
    try:
        command = tuple(shlex.split(text))
    except ValueError as error:
        return ProbeSpec(name), f"{show(text)} is not a command ({error})"
    return ProbeSpec(name, command), "" if command else "no command after =; give a program with its arguments"
