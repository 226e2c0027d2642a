"""The command nodedevices-check: reads its command line, checks once, prints, and returns the exit status.

A wrong command line is UNKNOWN as well (3, where other commands have 2, which means CRITICAL here), with what would be
right on the standard error. Everything that fails is in the output, in the form that was asked for; a wrong command
line only where that is json or nagios, which programs read. The log has errors alone.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import structlog
from nodedevices_api.sections import MAX_EXPECTED
from nodedevices_common import __version__, logs
from nodedevices_common.errors import InputError
from nodedevices_common.options import Given, Option, Parser, defaults, options_of, setting, settings_of
from nodedevices_common.text import printable, show
from nodedevices_probe import simulated

from nodedevices_plugin.check.reading import read, read_sources
from nodedevices_plugin.check.result import FORMS, TABLE, Result, Status, conclude, not_checked, shown
from nodedevices_plugin.settings import flags
from nodedevices_plugin.settings.options import by_name
from nodedevices_plugin.settings.probes import AUTO

log = structlog.get_logger(__name__)


def main(arguments: Sequence[str]) -> int:
    try:
        asked = parse(arguments, os.environ)
    except InputError as error:
        for problem in error.problems:
            print(f"nodedevices-check: {printable(problem)}", file=sys.stderr)  # noqa: T201  for the command's user
        form = form_of(arguments)
        if form != TABLE:
            node = os.environ.get("NODE_NAME") or socket.gethostname().lower()
            _write(not_checked(error.problems, node=node, time=datetime.now(UTC)), form)
        return Status.UNKNOWN
    logs.configure("error", "auto")
    try:
        result = asyncio.run(_ended_by_signals(asked))
    except InputError as error:
        result = not_checked(error.problems, node=asked.local.node_name, time=datetime.now(UTC))
    except Exception:  # a bug of ours, which Python would end with 1: that is WARNING here
        log.exception("check failed")
        problems = ["failed; the log has the error"]
        result = not_checked(problems, node=asked.local.node_name, time=datetime.now(UTC))
    _write(result, asked.output)
    return result.status


def _write(result: Result, form: str) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a script's locale may have few characters
    sys.stdout.write(shown(result, form))


async def _ended_by_signals(asked: Asked) -> Result:
    """Check; a SIGTERM or SIGINT ends the probes' processes, and InputError says so."""
    running = asyncio.create_task(_check(asked))
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, running.cancel)
    try:
        return await running
    except asyncio.CancelledError:
        raise InputError("ended by a signal") from None


async def _check(asked: Asked) -> Result:
    """Raises InputError where nothing can be checked."""
    until = time.monotonic() + asked.timeout_seconds
    try:
        async with asyncio.timeout(asked.timeout_seconds):
            sources = await read_sources(asked.local, policy=asked.policy, state_file=asked.state_file)
    except TimeoutError:
        why = f"reading files took more than {asked.timeout_seconds:.0f} s; the disk of one may hang"
        raise InputError(why) from None
    reading = await read(asked.local, sources, asked.expected, until=until)
    problems = [text for text in (sources.state_problem, sources.hardware_problem if reading.auto else "") if text]
    return conclude(reading, chosen=asked.device, problems=problems, node=asked.local.node_name, time=datetime.now(UTC))


# --- the command line: Asked, and the agent's own flags, so that what is given to both is judged alike ----------------
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

    local: flags.Local  # by the agent's flags
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
    empty = (
        name for name in ("device", "expect") if name in given and not given[name].value
    )  # a script's empty variable
    problems += [f"--{name}: empty; leave it out, or say which" for name in empty]
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
