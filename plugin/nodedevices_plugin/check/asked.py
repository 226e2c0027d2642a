"""The command line of nodedevices-check.

What says which probes run, and what they need, are the agent's own flags, by their names and with the agent's
variables: what is given to both is judged alike. The others are the fields of `Asked`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from nodedevices_api.sections import MAX_EXPECTED
from nodedevices_common import __version__
from nodedevices_common.errors import InputError
from nodedevices_common.options import Given, Option, Parser, defaults, options_of, setting, settings_of
from nodedevices_common.text import show
from nodedevices_probe import simulated

from nodedevices_plugin.check.output import FORMS, TABLE
from nodedevices_plugin.settings import flags
from nodedevices_plugin.settings.flags import Local
from nodedevices_plugin.settings.options import by_name
from nodedevices_plugin.settings.probes import AUTO

OF_AGENT = (  # beside the probes themselves, and the files of devices
    "probe-server",
    "simulated",
    "driver-root-ctr-path",
    "config-file",
    "devices-dir",
    "node-name",
)
MOST_SECONDS = 600
_FORM = re.compile(rf"(?:^| )(?:-o|--?output)[= ]({'|'.join(FORMS)})(?= |$)")
_EXPECTED = re.compile(r"([a-z][a-z0-9-]{0,62})=([1-9][0-9]{0,3})", re.ASCII)


def _seconds(text: str) -> float:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= MOST_SECONDS):
        raise ValueError(f"{show(text)} is not a whole number of seconds from 1 to {MOST_SECONDS}")
    return float(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be checked, and how it is shown."""

    device: tuple[str, ...] = setting(
        "check only this device: id, name (`gpu-3`) or GPU index; repeat the flag for more devices",
        default=(),
        variables=(),
        metavar="DEVICE",
    )
    expect: tuple[str, ...] = setting(
        "required number of devices of a type, such as `gpu=8`; repeat the flag for more types; replaces a policy's "
        "[`expect`](reference/devicepolicy.md)",
        default=(),
        variables=(),
        metavar="TYPE=COUNT",
    )
    policy: str = setting(
        "file of a DevicePolicy, or of its sections as in `spec.config` of a NodeDevices; default: the state file's "
        "rules, else the built-in rules",
        variables=(),
        metavar="FILE",
    )
    state_file: str = setting(
        "state file of the agent (read only): adds faults seen and devices gone, and selects the probes if no flag "
        "does",
        variables=(),
        metavar="FILE",
    )
    timeout_seconds: float = setting(
        f"maximum time for all probes, 1 to {MOST_SECONDS}",
        default="30",
        variables=(),
        metavar="SECONDS",
        read=_seconds,
    )
    output: str = setting(
        "table for people, json for programs, nagios for monitoring plugins",
        default=TABLE,
        variables=(),
        aliases=("o",),
        choices=FORMS,
    )

    local: Local  # by the agent's flags
    expected: Mapping[str, int] = field(default_factory=dict)  # `expect` by type


OPTIONS: tuple[Option, ...] = options_of(Asked)  # docs/flags.md


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> Asked:
    """Raises InputError; `--help` and `--version` print and raise SystemExit(0)."""
    shared = (replace(by_name()["probe"], default=(AUTO,)), *(by_name()[name] for name in OF_AGENT))
    parser = Parser(
        prog="nodedevices-check",
        usage="nodedevices-check [--flag value ...]",
        description="Checks the health of this machine's devices once, by the rules of nodedevices-agent.",
        epilog="Exit status: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN, also for a wrong command line.",
    )
    parser.add_argument("--version", action="version", version=f"nodedevices-check {__version__}")
    parser.add_options(OPTIONS, title="the check")
    parser.add_options(shared, title="the probes, as the agent's")
    parsed, given = parser.read(arguments, rest="every argument is a flag (see --help)")
    times = {option.name: len(getattr(parsed, option.name) or ()) for option in OPTIONS if option.kind != "list"}
    problems = [f"--{name}: given {count} times; give it once" for name, count in times.items() if count > 1]
    of_agent = [_as_argument(option, given[option.name]) for option in shared if option.name in given]
    local = replace(flags.parse([*of_agent, "--standalone"], environment), standalone=False)  # needs no Node's name
    own = settings_of(Asked, {**defaults(OPTIONS), **given})
    problems += [f"--{name}: empty; leave it out, or say which" for name in ("device", "expect") if _empty(given, name)]
    expected: dict[str, int] = {}
    for text in own["expect"]:
        found = _EXPECTED.fullmatch(text)
        if found is None or int(found[2]) > MAX_EXPECTED or found[1] in expected:
            right = f"give each type once, in small letters, as gpu=8, with 1 to {MAX_EXPECTED}"
            problems.append(f"--expect: {show(text)} is not allowed; {right}")
        else:
            expected[found[1]] = int(found[2])
    if expected and "device" in given:
        problems.append("--expect: cannot be combined with --device, which checks only some devices")
    if problems:
        raise InputError(problems)
    return Asked(**own, local=local, expected=expected)


def form_of(arguments: Sequence[str]) -> str:
    """Return the form that a command line asks for which is wrong elsewhere; the table where it asks for none."""
    found = _FORM.findall(" ".join(arguments))
    return found[-1] if found else TABLE


def _as_argument(option: Option, given: Given) -> str:
    """A file that a person names may be relative to the folder where the person is; an agent has no such folder."""
    value = ",".join(given.value) if isinstance(given.value, tuple) else str(given.value)
    named = option.name in {"config-file", "devices-dir"} or (
        option.name == simulated.OPTION and simulated.is_file(value)
    )
    return f"--{option.name}={Path(value).absolute() if named and value else value}"


def _empty(given: Mapping[str, Given], name: str) -> bool:
    """True for a list that was given without anything in it: a variable of a script that is not set."""
    return name in given and not given[name].value
