"""The command line and the environment. What is wrong here ends the program with status 2 and says what would be right.

How they are written and read is nodedevices_common.options': NODEDEVICES_HTTP_ADDRESS for --http-address.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from nodedevices_common import logs
from nodedevices_common.errors import InputError
from nodedevices_common.http import Address, parse_address
from nodedevices_common.options import Given, Kind, Option, Parser, Value, from_environment

from nodedevices_operator.cache.relist import RELIST_SECONDS
from nodedevices_operator.concerns.tools import SETTLED_SECONDS
from nodedevices_operator.reconcile.fleet import NAMESPACE

PREFIX = "NODEDEVICES_"
HTTP_ADDRESS = ":9736"
HEALTH_ADDRESS = ":9738"
MAX_SECONDS = 86400.0
OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def option(
    name: str,
    text: str,
    default: Value = "",
    *,
    kind: Kind = "text",
    metavar: str = "",
    choices: tuple[str, ...] = (),
    also: str = "",
) -> Option:
    """A flag, and its variable. `also`: another name of that."""
    variable = PREFIX + name.replace("-", "_").upper()
    return Option(
        name=name,
        help=text,
        kind=kind,
        default=default,
        variables=(variable, also) if also else (variable,),
        choices=choices,
        metavar=metavar,
    )


COMMON = (  # of all commands
    option("kubeconfig", "kubeconfig file; default: the pod's service account", metavar="FILE", also="KUBECONFIG"),
    option("http-address", "address of /metrics, /healthz and /readyz", HTTP_ADDRESS, metavar="HOST:PORT"),
    option(
        "health-address",
        "address of /healthz and /readyz, for the kubelet's probes only",
        HEALTH_ADDRESS,
        metavar="HOST:PORT",
    ),
    option("log-level", "minimum level of log messages", "info", choices=logs.LEVELS),
    option("log-format", "auto: JSON unless on a terminal", "auto", choices=logs.FORMATS),
)
OPTIONS = (
    *COMMON,
    option(
        "namespace",
        f"of ConfigMap nodedevices-actions, the record of actions on faults; else the pod's own, else {NAMESPACE}",
        metavar="NAME",
    ),
    option("relist-seconds", "interval between full LISTs, ± 10 %", f"{RELIST_SECONDS:.0f}", metavar="SECONDS"),
    option(
        "retired-seconds",
        "time until the zero of a retired resource is removed from the Node; a real kubelet needs the default",
        f"{SETTLED_SECONDS:.0f}",
        metavar="SECONDS",
    ),
    option(
        "delete-rejected-pods",
        "delete Failed pods (UnexpectedAdmissionError) with a controller whose node had no device with enough free "
        "shares by memory; needs the component delete-rejected-pods",
        default=False,
        kind="bool",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    command: str  # run | cleanup
    kubeconfig: str | None
    http_address: Address
    health_address: Address
    log_level: logs.Level
    log_format: logs.Format
    namespace: str
    relist_seconds: float
    retired_seconds: float
    delete_rejected_pods: bool
    dry_run: bool


def read(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Flags over environment over defaults. InputError; `--help` prints and raises SystemExit(0)."""
    variables = from_environment(OPTIONS, environment, prefix=PREFIX)
    parsed, flags = _parser().read(arguments, rest="unknown argument; see nodedevices-operator --help")
    if parsed.command not in ("run", "cleanup"):
        raise InputError(f"{parsed.command!r}: unknown command; give run or cleanup, or extender before all flags")
    if parsed.dry_run and parsed.command != "cleanup":
        raise InputError("--dry-run: only valid with cleanup; to try policies out, use spec.mode: DryRun")
    given = {option.name: Given(option.default, f"--{option.name}") for option in OPTIONS} | variables | flags
    return Settings(
        command=parsed.command,
        kubeconfig=kubeconfig(given["kubeconfig"]),
        http_address=address(given["http-address"]),
        health_address=address(given["health-address"]),
        log_level=cast("logs.Level", given["log-level"].value),
        log_format=cast("logs.Format", given["log-format"].value),
        namespace=_namespace(given["namespace"]),
        relist_seconds=_seconds(given["relist-seconds"]),
        retired_seconds=_seconds(given["retired-seconds"]),
        delete_rejected_pods=bool(given["delete-rejected-pods"].value),
        dry_run=parsed.dry_run,
    )


def _parser() -> Parser:
    parser = Parser(
        prog="nodedevices-operator",
        description="Applies DevicePolicies to nodes, and reports faulty devices on Nodes and pods.",
        epilog=f"Every flag but --dry-run can be given as a variable: {PREFIX}HTTP_ADDRESS for --http-address.",
    )
    parser.add_argument(
        "command",
        nargs="?",
        default="run",
        metavar="run|cleanup|extender",
        help="run (default); cleanup: remove all that NodeDevices wrote to Nodes, pods, NodeDevices and "
        "DevicePolicies; extender: a scheduler extender for shares of memory, with flags of its own: extender --help",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="cleanup only: log what would be removed, and change nothing"
    )
    parser.add_options(OPTIONS, title="settings")
    return parser


def kubeconfig(given: Given) -> str | None:
    """None: there is none."""
    path = str(given.value) or None
    if path is not None and not Path(path).is_file():
        raise InputError(f"{given.place}: {path!r} is not a file; give the path of one kubeconfig")
    return path


def address(given: Given) -> Address:
    try:
        return parse_address(str(given.value))
    except ValueError as error:
        raise InputError(f"{given.place}: {error}") from error


def _namespace(given: Given) -> str:
    name = str(given.value)
    if not name:
        try:
            name = OWN_NAMESPACE.read_text(encoding="utf-8").strip()
        except OSError:
            name = ""
        return name or NAMESPACE
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name):
        right = "give lower-case letters, digits and '-', at most 63, a letter or digit first and last"
        raise InputError(f"{given.place}: {name!r} is not the name of a namespace; {right}")
    return name


def _seconds(given: Given) -> float:
    try:
        seconds = float(str(given.value))
    except ValueError:
        seconds = 0.0
    if not 1.0 <= seconds <= MAX_SECONDS:
        raise InputError(f"{given.place}: {given.value!r} is not allowed; give seconds, 1 to {MAX_SECONDS:.0f}")
    return seconds
