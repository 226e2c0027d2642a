"""The command line and the environment. What is wrong here ends the program with status 2 and says what would be right.

Variables are read where no flag is given: NODEDEVICES_HTTP_ADDRESS for --http-address. A variable that begins with
NODEDEVICES_ and is no setting is an error, except those that Kubernetes makes for Services of such a name.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn, cast

from nodedevices_common import logs
from nodedevices_common.errors import InputError
from nodedevices_common.http import Address

from nodedevices_operator.cache.relist import RELIST_SECONDS
from nodedevices_operator.concerns.tools import SETTLED_SECONDS
from nodedevices_operator.http import parse_address

PREFIX = "NODEDEVICES_"
HTTP_ADDRESS = ":9736"
HEALTH_ADDRESS = ":9738"
MAX_SECONDS = 86400.0
_SERVICE_LINK = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)$|^NODEDEVICES_PORT")
_DEFAULTS = {
    "kubeconfig": "",
    "http-address": HTTP_ADDRESS,
    "health-address": HEALTH_ADDRESS,
    "log-level": "info",
    "log-format": "auto",
    "relist-seconds": f"{RELIST_SECONDS:.0f}",
    "retired-seconds": f"{SETTLED_SECONDS:.0f}",
}


class SettingsError(InputError):
    """A setting that cannot be used; the text names the place, the value and what would be right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    command: str  # run | cleanup
    kubeconfig: str | None
    http_address: Address
    health_address: Address
    log_level: logs.Level
    log_format: logs.Format
    relist_seconds: float
    retired_seconds: float
    dry_run: bool


def read(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Flags over environment over defaults. SettingsError; `--help` prints and raises SystemExit(0)."""
    _check_flags(arguments)
    given = _parser().parse_args(arguments)
    places, texts = {}, {}
    for name, default in _DEFAULTS.items():
        flag, variable = getattr(given, name.replace("-", "_")), PREFIX + name.replace("-", "_").upper()
        places[name] = f"--{name}" if flag is not None else variable
        texts[name] = flag if flag is not None else environment.get(variable) or default
    _check_variables(environment)
    if given.dry_run and given.command != "cleanup":
        raise SettingsError("--dry-run: only cleanup has it; to try policies out, use spec.mode: DryRun")
    addresses = {}
    for name in ("http-address", "health-address"):
        try:
            addresses[name] = parse_address(texts[name])
        except ValueError as error:
            raise SettingsError(f"{places[name]}: {error}") from error
    kubeconfig = texts["kubeconfig"] or environment.get("KUBECONFIG") or None
    if kubeconfig is not None and not Path(kubeconfig).is_file():
        place = places["kubeconfig"] if texts["kubeconfig"] else "KUBECONFIG"
        raise SettingsError(f"{place}: {kubeconfig!r} is no file; give the path of one kubeconfig")
    return Settings(
        command=given.command,
        kubeconfig=kubeconfig,
        http_address=addresses["http-address"],
        health_address=addresses["health-address"],
        log_level=cast("logs.Level", _one_of(places["log-level"], texts["log-level"], logs.LEVELS)),
        log_format=cast("logs.Format", _one_of(places["log-format"], texts["log-format"], logs.FORMATS)),
        relist_seconds=_seconds(places["relist-seconds"], texts["relist-seconds"]),
        retired_seconds=_seconds(places["retired-seconds"], texts["retired-seconds"]),
        dry_run=given.dry_run,
    )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{message}; see nodedevices-operator --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="nodedevices-operator",
        allow_abbrev=False,
        description="Puts DevicePolicies in force, and tells Nodes and pods of faulty devices.",
        epilog=f"Every flag but --dry-run can be given as a variable: {PREFIX}HTTP_ADDRESS for --http-address.",
    )
    parser.add_argument(
        "command",
        nargs="?",
        default="run",
        choices=("run", "cleanup"),
        help="run (default); cleanup: remove every key of ours from Nodes, pods, NodeDevices and DevicePolicies",
    )
    parser.add_argument("--kubeconfig", help="default: $KUBECONFIG, else the pod's service account")
    parser.add_argument("--http-address", help=f"of /metrics, /healthz and /readyz; default {HTTP_ADDRESS}")
    parser.add_argument(
        "--health-address", help=f"of /healthz and /readyz for the kubelet's probes alone; default {HEALTH_ADDRESS}"
    )
    parser.add_argument("--log-level", help=f"{', '.join(logs.LEVELS)}; default info")
    parser.add_argument("--log-format", help=f"{', '.join(logs.FORMATS)}; default auto (JSON unless on a terminal)")
    parser.add_argument("--relist-seconds", help=f"between authoritative LISTs, ± 10 %%; default {RELIST_SECONDS:.0f}")
    parser.add_argument(
        "--retired-seconds",
        help="a resource name that an agent has retired for so long loses its zero on the Node; "
        f"default {SETTLED_SECONDS:.0f}, which a kubelet needs",
    )
    parser.add_argument("--dry-run", action="store_true", help="cleanup only: say what would be removed")
    return parser


def _check_flags(arguments: Sequence[str]) -> None:
    """Before they are parsed: argparse would take an unknown flag's value for the command, and complain of that."""
    known = [f"--{name}" for name in (*_DEFAULTS, "dry-run", "help")]
    for argument in arguments:
        flag = argument.partition("=")[0]
        if flag.startswith("--") and flag not in known:
            near = get_close_matches(flag, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise SettingsError(f"{flag}: no such flag; {hint}")


def _check_variables(environment: Mapping[str, str]) -> None:
    known = {PREFIX + name.replace("-", "_").upper() for name in _DEFAULTS}
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in known and _SERVICE_LINK.search(name) is None:
            near = get_close_matches(name, known, n=1) or sorted(known)
            raise SettingsError(f"{name}: no such setting; did you mean {' or '.join(near)}?")


def _one_of(place: str, value: str, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise SettingsError(f"{place}: {value!r} is not allowed; choose {', '.join(allowed)}")
    return value


def _seconds(place: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1.0 <= seconds <= MAX_SECONDS:
        raise SettingsError(f"{place}: {text!r} is not allowed; give seconds, 1 to {MAX_SECONDS:.0f}")
    return seconds
