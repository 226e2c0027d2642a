"""The command `nodedevices-probe serve`: runs probes for an agent that has no hardware in its container.

The agent, started with `--probe-server unix:PATH`, decides which probes run, and connects for each (requests). Paths
are not its to choose: they are this command's options, called as the agent's are, with the same variables.
"""

from __future__ import annotations

import os
import socket
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from nodedevices_common.address import Address, listening, parse_address

from nodedevices_probe.files import CheckError
from nodedevices_probe.kind import DEVICES_DIR, DRIVER_ROOT, ProbeKind
from nodedevices_probe.listening import bound, socket_path
from nodedevices_probe.programs import Program
from nodedevices_probe.wanted import say

NAME = "serve"
HELP = "run the others for an agent in another container"
HEALTH_ADDRESS = ":9738"
# Where an option of the agent has other variables than NODEDEVICES_<its name>, and a default.
VARIABLES = {DRIVER_ROOT: ("DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT")}
DEFAULTS = {DRIVER_ROOT: "/driver-root"}


def options(kinds: Mapping[str, ProbeKind]) -> tuple[str, ...]:
    """Return the agent's options that name paths which probes open."""
    opened = {
        DEVICES_DIR if kind.passed_on[flag] in kind.files else kind.passed_on[flag]
        for kind in kinds.values()
        for flag in kind.opens
    }
    return tuple(sorted(opened | {DRIVER_ROOT}))


def variables(option: str) -> tuple[str, ...]:
    return VARIABLES.get(option, (f"NODEDEVICES_{option.upper().replace('-', '_')}",))


def add_arguments(parser: ArgumentParser, kinds: Mapping[str, ProbeKind]) -> None:
    parser.add_argument(
        "--listen", type=socket_path, required=True, metavar="unix:PATH", help="where the agent connects"
    )
    parser.add_argument(
        "--health-address",
        type=_address,
        default=HEALTH_ADDRESS,
        metavar="HOST:PORT",
        help=f"where /healthz is served for the kubelet; 'off' for nowhere (default: {HEALTH_ADDRESS})",
    )
    for option in options(kinds):
        given = (os.environ.get(variable, "") for variable in variables(option))
        parser.add_argument(
            f"--{option}",
            default=next(filter(None, given), DEFAULTS.get(option, "")),
            metavar="PATH",
            help=f"as the agent's --{option} [${' or $'.join(variables(option))}]",
        )


def run(
    settings: Namespace,
    kinds: Mapping[str, ProbeKind],
    programs: Mapping[str, Program],
    *,
    probe: Callable[[Sequence[str]], int],
) -> int:
    """Serve until a signal. Raises CheckError where it cannot listen. `probe`: what runs a probe in this process."""
    # Loaded by no probe that runs alone.
    from nodedevices_probe.serving.requests import Allowed, perform  # noqa: PLC0415
    from nodedevices_probe.serving.server import BACKLOG, ProbeServer  # noqa: PLC0415

    given = {name.replace("_", "-"): value for name, value in vars(settings).items()}
    paths = {option: str(given[option]) for option in options(kinds) if given[option]}
    path: Path = settings.listen
    server = ProbeServer(
        listening=bound(path, BACKLOG),
        health=_listening(settings.health_address),
        allowed=Allowed(kinds=kinds, programs=programs, paths=paths),
        perform=partial(perform, probe=probe, kinds=kinds, known_programs=programs),
    )
    say(f"serving at unix:{path}")
    try:
        server.run()
    finally:
        path.unlink(missing_ok=True)
    return 0


def _listening(address: Address | None) -> socket.socket | None:
    if address is None:
        return None
    try:
        return listening(address)
    except OSError as error:
        raise CheckError(f"--health-address {address}: {error.strerror or error}") from error


def _address(value: str) -> Address | None:
    try:
        return None if value == "off" else parse_address(value)
    except ValueError as error:
        raise ArgumentTypeError(f"{error}; or off") from None
