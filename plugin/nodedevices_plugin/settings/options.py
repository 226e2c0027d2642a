"""The table of settings: name on the command line, variables, key in the configuration file, allowed values; and which
flags need others, or do not go together.

Settings that are fixed while the agent runs are the fields of `local.Local`. Settings that a configuration can have as
well are here; those for one vendor's devices alone come from the vendor (vendors.settings). Names of NVIDIA's device
plugin are kept (its v0.20.0 flags, variables and `flags.*` keys), so that a DaemonSet written for it means the same
here.

What the agent refuses as a combination is data, because the chart refuses the same before anything is installed: its
table is made of this one (tests/helmchart). A term is a flag that is given, `simulated`, or one of its values,
`device-list-strategy=envvar`; `probe=simulated` is a probe by its name, wherever it is given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from nodedevices_common import guard
from nodedevices_common.options import Option, Value, Values, option, options_of, with_flag_variables
from nodedevices_probe.kind import DEVICES_DIR
from nodedevices_probe.nic import FLAG as RDMA_REQUIRED_OPTION
from nodedevices_probe.nic import RDMA_NODES, RDMA_REQUIRED
from nodedevices_probe.registry import KINDS

from nodedevices_plugin.model import PlanError
from nodedevices_plugin.settings import probes
from nodedevices_plugin.settings.local import Local
from nodedevices_plugin.vendors.registry import VENDORS, Vendors
from nodedevices_plugin.vendors.settings import FlagRule, VendorFlags

KNOWN = ", ".join(f"`{name}`" for name in KINDS)
_PATHS = frozenset({"FILE", "DIR", "DIRS", "SOCKET"})  # metavars


OWN: tuple[Option, ...] = (
    option(
        "probe",
        f"`{probes.AUTO}` (the built-in probes [whose hardware the node has](extending.md#by-hardware)), {KNOWN}, "
        "`NAME=COMMAND` ([your own program](extending.md#a-probe)), or `NAME=unix:/PATH` ([a "
        "socket](extending.md#in-a-container-of-its-own)); one or more",
        group="probe",
        key=probes.KEY,
        default=probes.DEFAULT,
        metavar="PROBES",
        formerly=("add-probe",),
    ),
    option(
        "simulated",
        "[simulated devices](simulated-devices.md): a file (`/...`, or ending in .yaml or .json; reloaded on change), "
        "or models and numbers, such as 'h100 x 8'",
        group="probe",
        metavar="FILE|PROFILE",
        formerly=("simulated-file", "simulated-profile"),
    ),
    option(
        RDMA_REQUIRED_OPTION,
        f"character devices of a healthy RDMA device: some of {', '.join(RDMA_NODES)}, or none; default: "
        f"{','.join(RDMA_REQUIRED)}",
        group="probe",
        flag=False,
    ),
    *options_of(Local),
    # --- options of NVIDIA's plugin that every vendor's devices can need ---------------------------------------------
    with_flag_variables(
        "shared-devices-allocation-policy",
        "next share from the device with the fewest taken (distributed) or the most (packed)",
        group="NVIDIA",
        key="flags.plugin.sharedDevicesAllocationPolicy",
        default="distributed",
        choices=("distributed", "packed"),
    ),
    with_flag_variables(
        "driver-root-ctr-path",
        "path of the driver root in this container, searched first for library and /dev",
        group="NVIDIA",
        key="flags.plugin.containerDriverRoot",
        default="/driver-root",
        aliases=("container-driver-root",),
    ),
    with_flag_variables("mps-root", "host directory, required for MPS", group="NVIDIA", key="flags.mpsRoot"),
)


def vendors_flags(vendors: Vendors = VENDORS) -> tuple[VendorFlags, ...]:
    return tuple(vendors.own_flags().values())


def paths(vendors: Vendors = VENDORS) -> tuple[Option, ...]:
    """Return the options for files, folders and sockets in this container or on the host, where relative paths make no
    sense. Not the kubeconfig, which people give as kubectl takes it."""
    own = (option for option in OWN if option.metavar in _PATHS or option.name in {"mps-root", "driver-root-ctr-path"})
    return (*(option for option in own if option.name not in {"kubeconfig", "container-mount-dir"}),)


@cache
def options(vendors: Vendors = VENDORS) -> tuple[Option, ...]:
    """Return all options, with those of the vendors."""
    return (*OWN, *(option for flags in vendors_flags(vendors) for option in flags.options))


@cache
def by_name(vendors: Vendors = VENDORS) -> Mapping[str, Option]:
    return {option.name: option for option in options(vendors)}


@cache
def by_key(vendors: Vendors = VENDORS) -> Mapping[str, Option]:
    return {option.key: option for option in options(vendors) if option.key}


def variables(vendors: Vendors = VENDORS) -> tuple[str, ...]:
    """Return the environment variables that vendors read and that have no flag."""
    return tuple(name for flag in vendors_flags(vendors) for name in flag.variables)


def values(given: Mapping[str, Value], vendors: Vendors = VENDORS) -> Values:
    return Values(given, by_name(vendors))


def refused_by_vendors(given: Mapping[str, Value], vendors: Vendors = VENDORS) -> list[str]:
    """Return the vendors' errors about their options and variables, beyond those of each value alone."""
    problems = []
    for flags in vendors_flags(vendors):
        try:
            flags.settings(values(given, vendors))
            flags.sections(values(given, vendors))
        except PlanError as error:
            problems.append(str(error))
    return problems


OPTIONS = options()  # as the agent comes, for pages and tests that list them
OF_VENDORS = tuple(option for option in OPTIONS if option not in OWN)


ONLY_WITH: Mapping[str, str] = {"default-config": "config-dir", "fallback-strategies": "config-dir", **guard.ONLY_WITH}
NOT_WITH: Mapping[str, str] = {"config-file": "config-dir"}
DOMAIN_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+$"


def rules(vendors: Vendors = VENDORS) -> tuple[FlagRule, ...]:
    """Return what holds wherever probes are configured."""
    return (
        *(FlagRule(when=name, needs=(other,)) for name, other in ONLY_WITH.items()),
        *(FlagRule(when=name, excludes=(other,)) for name, other in NOT_WITH.items()),
        *(rule for flag in vendors_flags(vendors) for rule in flag.rules),
    )


def probe_rules() -> Iterator[FlagRule]:
    """Yield what holds where flags say which probes run, or nothing does: not a configuration file."""
    for kind in KINDS.values():
        probe = f"probe={kind.name}"
        for name in kind.requires:
            option = DEVICES_DIR if name in kind.files else name
            yield FlagRule(when=probe, needs=(option,))
            if kind.alone:
                yield FlagRule(when=option, needs=(probe,))
