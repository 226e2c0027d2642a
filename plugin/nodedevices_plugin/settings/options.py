"""The table of settings: name on the command line, variables, key in the configuration file, what is allowed.

What is fixed while the agent runs are the fields of `local.Local`; what a configuration can say as well is here, and
what only one vendor's devices need its vendor brings (vendors.flags). NVIDIA's device plugin's names are kept where it
has one (its v0.20.0 flags, variables and `flags.*` keys), so that a DaemonSet written for it says the same things here.
`works` are the values that this version implements; others of `choices` are refused by name as not implemented yet, so
that nobody believes that they apply.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from nodedevices_common.options import Option, Value, Values, option, options_of, with_flag_variables
from nodedevices_probe.registry import KINDS

from nodedevices_plugin.model import PlanError
from nodedevices_plugin.settings import memory_flags, probes
from nodedevices_plugin.settings.local import Local
from nodedevices_plugin.vendors.flags import VendorFlags
from nodedevices_plugin.vendors.registry import device_files, own_flags

KNOWN = ", ".join(f"`{name}`" for name in KINDS)
_PATHS = frozenset({"FILE", "DIR", "DIRS", "SOCKET"})  # metavars


OWN: tuple[Option, ...] = (
    option(
        "probe",
        f"`{probes.AUTO}` for [those whose hardware the node has](extending.md#by-hardware), {KNOWN}, `NAME=COMMAND` "
        "for [a program of your own](extending.md#a-probe), or `NAME=unix:/PATH` for "
        "[one that listens there](extending.md#in-a-container-of-its-own); repeat it to run several",
        group="probe",
        key=probes.KEY,
        default=probes.DEFAULT,
        metavar="PROBE",
    ),
    option(
        "simulated-file",
        "file of the [simulated probe's](simulated-devices.md) devices; edits take effect at once",
        group="probe",
        metavar="FILE",
    ),
    option(
        "simulated-profile",
        "devices of the simulated probe by name, such as 'h100 x 8'",
        group="probe",
        metavar="PROFILE",
    ),
    option(
        "rdma-required",
        "character devices without which an RDMA device is [unhealthy](devices/rdma.md#health), of rdma_cm, umad, "
        "uverbs, issm and ucm, or none; default: rdma_cm,umad,uverbs",
        group="probe",
        metavar="NODES",
    ),
    *options_of(Local),
    # --- which NVIDIA's plugin has, and every vendor's devices can need ----------------------------------------------
    with_flag_variables(
        "shared-devices-allocation-policy",
        "replicas come from the least shared device, or are packed",
        group="NVIDIA",
        key="flags.plugin.sharedDevicesAllocationPolicy",
        default="distributed",
        choices=("distributed", "packed"),
    ),
    with_flag_variables(
        "driver-root-ctr-path",
        "where the driver root is mounted in this container; the driver's library and /dev are searched there first",
        group="NVIDIA",
        key="flags.plugin.containerDriverRoot",
        default="/driver-root",
        aliases=("container-driver-root",),
    ),
    with_flag_variables(
        "mps-root", "the host's directory for MPS, needed where MPS is used", group="NVIDIA", key="flags.mpsRoot"
    ),
    *memory_flags.OPTIONS,
)


def vendors_flags() -> tuple[VendorFlags, ...]:
    return tuple(vendor.flags for vendor in own_flags().values())


def paths() -> tuple[Option, ...]:
    """Those that name files, folders and sockets in this container or on the host, where nothing is relative to
    anything. Not the kubeconfig, which people give as kubectl takes it."""
    own = (each for each in OWN if each.metavar in _PATHS or each.name in {"mps-root", "driver-root-ctr-path"})
    return (*(each for each in own if each.name not in {"kubeconfig", "container-mount-dir"}), *file_options())


def file_options() -> tuple[Option, ...]:
    """Those that name device files (vendors.files)."""
    return tuple(each.option for each in device_files())


def options() -> tuple[Option, ...]:
    """All that there are, with those of the registered vendors."""
    return _all(vendors_flags(), file_options())


def by_name() -> Mapping[str, Option]:
    return _by_name(options())


def by_key() -> Mapping[str, Option]:
    return _by_key(options())


def variables() -> tuple[str, ...]:
    """What vendors read from the environment alone."""
    return tuple(name for each in vendors_flags() for name in each.variables)


def values(given: Mapping[str, Value]) -> Values:
    return Values(given, by_name())


def refused_by_vendors(given: Mapping[str, Value]) -> list[str]:
    """What vendors find wrong with what is given of their options and variables, beyond each one alone."""
    problems = []
    for vendor in own_flags().values():
        try:
            vendor.settings(values(given))
            vendor.sections(values(given))
        except PlanError as error:
            problems.append(str(error))
    return problems


@cache
def _all(of_vendors: tuple[VendorFlags, ...], files: tuple[Option, ...]) -> tuple[Option, ...]:
    return (*OWN, *(option for each in of_vendors for option in each.options), *files)


@cache
def _by_name(of: tuple[Option, ...]) -> Mapping[str, Option]:
    return {option.name: option for option in of}


@cache
def _by_key(of: tuple[Option, ...]) -> Mapping[str, Option]:
    return {option.key: option for option in of if option.key}


OPTIONS = options()  # as the agent comes, for pages and tests that list them
OF_VENDORS = tuple(each for each in OPTIONS if each not in OWN)
