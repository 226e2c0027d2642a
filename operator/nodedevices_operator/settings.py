"""The command line and the environment. What is wrong here ends the program with status 2 and says what would be right.

How they are written and read is nodedevices_common.options'.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nodedevices_common import guard, logs
from nodedevices_common.address import Address, parse_address
from nodedevices_common.errors import InputError
from nodedevices_common.options import (
    PREFIX,
    Given,
    Option,
    Parser,
    defaults,
    from_environment,
    options_of,
    setting,
    settings_of,
)

from nodedevices_operator.cache.relist import RELIST_SECONDS
from nodedevices_operator.concerns.fleet_gate import NAMESPACE
from nodedevices_operator.concerns.port import SETTLED_SECONDS

HTTP_ADDRESS = ":9736"
HEALTH_ADDRESS = ":9738"
OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def _kubeconfig(path: str) -> str | None:
    """Return the path of the kubeconfig; None: there is none."""
    if path and not Path(path).is_file():
        raise ValueError(f"{path!r} is not a file; give the path of one kubeconfig")
    return path or None


def _namespace(name: str) -> str:
    if not name:
        with suppress(OSError):
            name = OWN_NAMESPACE.read_text(encoding="utf-8").strip()
        return name or NAMESPACE
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name):
        right = "give lower-case letters, digits and '-', at most 63, a letter or digit first and last"
        raise ValueError(f"{name!r} is not the name of a namespace; {right}")
    return name


def given_by(options: Sequence[Option], flags: Mapping[str, Given], environment: Mapping[str, str]) -> dict[str, Given]:
    """Flags over environment over defaults. InputError, also for flags that only go with another one that is not
    given."""
    given = {**defaults(options), **from_environment(options, environment, prefix=PREFIX), **flags}
    alone = [name for name, other in guard.ONLY_WITH.items() if given[name].value and not given[other].value]
    if alone:
        raise InputError([f"{given[name].place}: only valid with --{guard.ONLY_WITH[name]}" for name in alone])
    return given


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """Settings of all commands. Each field is a flag and its variable, too: NODEDEVICES_HTTP_ADDRESS,
    --http-address."""

    kubeconfig: str | None = setting(
        "path of the kubeconfig; default: the service account",
        variables=("NODEDEVICES_KUBECONFIG", "KUBECONFIG"),
        metavar="FILE",
        read=_kubeconfig,
    )
    http_address: Address = setting(
        "address of /metrics, /healthz and /readyz", default=HTTP_ADDRESS, metavar="HOST:PORT", read=parse_address
    )
    health_address: Address = setting(
        "address of /healthz and /readyz for the kubelet's probes only",
        default=HEALTH_ADDRESS,
        flag=False,
        read=parse_address,
    )
    metrics_tls_dir: str = setting(guard.TLS_HELP, metavar="DIR", formerly=guard.FORMERLY)
    metrics_token_file: str = setting(guard.TOKEN_HELP, metavar="FILE")
    log_level: logs.Level = setting("minimum level of log messages", default="info", choices=logs.LEVELS)
    log_format: logs.Format = setting(
        "auto: text on a terminal, else JSON", default="auto", choices=logs.FORMATS, flag=False
    )

    @property
    def guard(self) -> guard.Guard | None:
        return guard.Guard.from_folder(self.metrics_tls_dir, self.metrics_token_file)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings(Common):
    namespace: str = setting(
        "namespace of the Lease and of ConfigMap nodedevices-actions (record of actions on faults); default: the "
        f"pod's, else {NAMESPACE}",
        metavar="NAME",
        read=_namespace,
    )
    cluster_properties: bool = setting(
        "keep a ClusterProperty (about.k8s.io) per product, at most 20; needs the [component "
        "cluster-properties](operations.md#several-clusters)",
        default=False,
    )
    leader_elect: bool = setting(
        "only the holder of Lease nodedevices-operator writes; false: this is the only replica",
        default=True,
    )
    command: str  # run | cleanup
    dry_run: bool
    agents_gone: bool
    relist_seconds: float = RELIST_SECONDS  # between full LISTs, by no flag
    retired_seconds: float = SETTLED_SECONDS  # before a retired zero is removed from the Node; a kubelet needs these


COMMON = options_of(Common)
OPTIONS = options_of(OperatorSettings)
OWN = OPTIONS[len(COMMON) :]  # for docs/flags.md


def read(arguments: Sequence[str], environment: Mapping[str, str]) -> OperatorSettings:
    """Flags over environment over defaults. InputError; `--help` prints and raises SystemExit(0)."""
    parser = Parser(
        prog="nodedevices-operator",
        description="Applies DevicePolicies to nodes, and reports faulty devices on Nodes and pods.",
        epilog=f"Every setting can be given as a variable: {PREFIX}HTTP_ADDRESS for --http-address.",
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
    parser.add_argument(
        "--agents-gone",
        action="store_true",
        help="cleanup only: the agents are removed as well; NodeDevices that say Ready then say AgentStopped",
    )
    parser.add_options(OPTIONS, title="settings")
    parsed, flags = parser.read(arguments, rest="unknown argument; see nodedevices-operator --help")
    if parsed.command not in ("run", "cleanup"):
        raise InputError(f"{parsed.command!r}: unknown command; give run or cleanup, or extender before all flags")
    if parsed.dry_run and parsed.command != "cleanup":
        raise InputError("--dry-run: only valid with cleanup; to try policies out, use spec.mode: DryRun")
    if parsed.agents_gone and parsed.command != "cleanup":
        raise InputError("--agents-gone: only valid with cleanup")
    given = given_by(OPTIONS, flags, environment)
    return OperatorSettings(
        **settings_of(OperatorSettings, given),
        command=parsed.command,
        dry_run=parsed.dry_run,
        agents_gone=parsed.agents_gone,
    )
