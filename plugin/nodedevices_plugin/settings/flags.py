"""The command line and the environment. An error in them ends the program with status 2 and a message.

Their format is defined by nodedevices_common.options; the table of all flags is settings.options.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Mapping, Sequence

from nodedevices_api.fields import HOST_PATH_PATTERN, NOT_EXTENDED, reserved_by_kubernetes
from nodedevices_common import __version__
from nodedevices_common.errors import InputError
from nodedevices_common.options import PREFIX, Given, Parser, Value, from_environment, settings_of, values_of
from nodedevices_common.text import show
from nodedevices_probe import simulated
from nodedevices_probe.kind import DEVICES_DIR

from nodedevices_plugin.settings import probes
from nodedevices_plugin.settings.file import ConfigError
from nodedevices_plugin.settings.options import (
    DOMAIN_PATTERN,
    NOT_WITH,
    ONLY_WITH,
    Local,
    by_name,
    options,
    paths,
    refused_by_vendors,
    variables,
)
from nodedevices_plugin.vendors.registry import VENDORS, Vendors

__all__ = ["Local", "parse"]
CONFIGURING = frozenset({"serving-mode", "resource-prefix", DEVICES_DIR})  # beside the options that a file has
_NODE_NAME = re.compile(r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")


def parse(arguments: Sequence[str], environment: Mapping[str, str], vendors: Vendors = VENDORS) -> Local:
    """Return the local settings. Raises ConfigError; `--help` and `--version` print and raise SystemExit(0)."""
    try:
        by_variables = from_environment(options(vendors), environment, prefix=PREFIX)
        _, by_flags = _parser(vendors).read(arguments, rest="every argument is a flag (see --help)")
    except InputError as error:
        raise ConfigError(error.problems) from error
    alone = {name: environment[name] for name in variables(vendors) if environment.get(name, "").strip(" ,")}
    in_environment, flags = values_of(by_variables), values_of(by_flags)
    given = in_environment | flags
    values = {option.name: given.get(option.name, option.default) for option in options(vendors)}
    places = {name: setting.place for name, setting in (by_variables | by_flags).items()}
    problems = _conflicts(values, given, vendors, places)
    problems += refused_by_vendors(given | alone, vendors)
    directory = str(values["kubelet-dir"]).rstrip("/")
    elsewhere = {
        "node-name": socket.gethostname().lower(),
        "kubelet-socket": f"{directory}/device-plugins/kubelet.sock",
    }
    in_effect = values | {name: values[name] or default for name, default in elsewhere.items()}
    in_effect["kubelet-dir"] = directory
    try:
        fixed = settings_of(
            Local, {name: Given(value, places.get(name, f"--{name}")) for name, value in in_effect.items()}
        )
    except InputError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)
    # The options that are part of the configuration, and not of Local alone.
    configurable = {option.name for option in options(vendors) if option.key is not None}
    configurable |= {DEVICES_DIR, *(option.name for flag in vendors.own_flags().values() for option in flag.options)}
    sources = {"flags": _configures(flags, vendors), "environment": bool(alone) or _configures(in_environment, vendors)}
    return Local(
        **fixed,
        probe_options=probes.passed_on(values),
        vendors=vendors,
        given={name: value for name, value in given.items() if name in configurable} | alone,
        sources=tuple(name for name, says in sources.items() if says),
    )


def _conflicts(
    values: Mapping[str, Value],
    given: Mapping[str, Value],
    vendors: Vendors,
    places: Mapping[str, str],
) -> list[str]:
    """Return the errors beyond those of each value alone. `places`: where each value is given."""
    name, prefix = str(values["node-name"]), str(values["resource-prefix"])
    domain = re.match(DOMAIN_PATTERN, prefix) is not None
    checks = (
        (
            not name and not values["standalone"],
            "--node-name: missing; set NODE_NAME from spec.nodeName (downward API), or give --standalone",
        ),
        (name and not _NODE_NAME.match(name), f"--node-name: {show(name)} is not the name of a Node"),
        (prefix and not domain, f"--resource-prefix: {show(prefix)} is not a domain such as nvidia.com"),
        (
            domain and reserved_by_kubernetes(f"{prefix}/"),
            f"--resource-prefix: {show(prefix)} is not allowed: {NOT_EXTENDED}",
        ),
        (not values["kubelet-dir"], "--kubelet-dir: empty; give an absolute path, such as /var/lib/kubelet"),
        (not values["cdi-spec-dirs"], "--cdi-spec-dirs: empty; give absolute paths, such as /etc/cdi,/var/run/cdi"),
        (
            "kubelet-socket" in given and not given["kubelet-socket"],
            "--kubelet-socket: empty; to register nothing, give --serving-mode=Observe",
        ),
        *(
            (
                values[f"pod-{one}"] and not values[f"pod-{other}"],
                (
                    f"environment variable POD_{other.upper()}: missing, with POD_{one.upper()} "
                    f"{show(values[f'pod-{one}'])}; give both, from the downward API, or neither"
                ),
            )
            for one, other in (("name", "namespace"), ("namespace", "name"))
        ),
        *(
            (
                values[one] and values[other],
                f"--{other}: cannot be combined with --{one}; give the folder or the one file",
            )
            for one, other in NOT_WITH.items()
        ),
        *(
            (one in given and not values[other], f"--{one}: only valid with --{other}")
            for one, other in ONLY_WITH.items()
        ),
    )
    problems = [text for is_wrong, text in checks if is_wrong]
    problems += _probe_problems(values, given, places.get("probe", probes.FLAG))
    simulated_file = simulated.is_file(str(values[simulated.OPTION]))
    problems += [
        f"{places.get(option.name, f'--{option.name}')}: {show(path)} is a relative path; "
        f"give an absolute one, such as /etc/nodedevices/{path}"
        for option in (*paths(vendors), *([by_name(vendors)[simulated.OPTION]] if simulated_file else []))
        for path in (_list(values[option.name]) or (str(values[option.name] or ""),))
        if path and not path.startswith("/")
    ]
    problems += [
        f"--container-mount-dir: {show(path)} is not an absolute path without . and .., such as /opt/limiter"
        for path in _list(values["container-mount-dir"])
        if not re.fullmatch(HOST_PATH_PATTERN, path)
    ]
    return problems


def _probe_problems(values: Mapping[str, Value], given: Mapping[str, Value], place: str) -> list[str]:
    """Return the errors of the probes that are to run. `place`: where `--probe` is given."""
    wrong = probes.read(_list(values["probe"]), place)[1]
    added = _list(values["added-probes"])
    for probe in dict.fromkeys(added):
        wrong += probes.read([probe], probes.ADD)[1]
    if wrong:
        return wrong
    texts, wrong = probes.together(_list(values["probe"]) if "probe" in given else None, added)
    if not wrong and "probe" not in given and (values["config-file"] or values["config-dir"]):
        return []  # the file says which run, and what they need is checked with it
    specs = probes.read(texts)[0]
    return wrong or [*probes.missing(specs, probes.passed_on(values), place), *probes.unused(specs, values)]


def _configures(names: Iterable[str], vendors: Vendors) -> bool:
    """True when one of these options says something of what a configuration can say."""
    return any(by_name(vendors)[name].key is not None or name in CONFIGURING for name in names)


def _list(value: Value) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else ()


def _parser(vendors: Vendors) -> Parser:
    parser = Parser(
        prog="nodedevices-agent",
        usage="nodedevices-agent [--flag value ...]",
        description="Discovers this node's devices, checks their health, offers them to the kubelet and reports them.",
        epilog="Highest precedence first: spec.config of the NodeDevices, flags, environment, configuration file.",
    )
    parser.add_argument("--version", action="version", version=f"nodedevices-agent {__version__}")
    titles = {
        "node": "the node",
        "probe": "the hardware",
        "kubelet": "the kubelet",
        "service": "logs and metrics",
        **{flag.group: flag.title for flag in vendors.own_flags().values()},
    }
    for group, title in titles.items():
        parser.add_options([option for option in options(vendors) if option.group == group], title=title)
    return parser
