"""The table of settings: name on the command line, variables, key in the configuration file, what is allowed.

The agent's own are here; what only one vendor's devices need its vendor brings (vendors.flags). NVIDIA's device
plugin's names are kept where it has one (its v0.20.0 flags, variables and `flags.*` keys), so that a DaemonSet written
for it says the same things here. `works` are the values that this version implements; others of
`choices` are refused by name as not implemented yet, so that nobody believes that they apply.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from nodedevices_common.options import Option, Value, Values, like_its_flags
from nodedevices_probe.registry import KINDS

from nodedevices_plugin.model import PlanError
from nodedevices_plugin.settings import memory_flags, probes
from nodedevices_plugin.vendors.flags import VendorFlags
from nodedevices_plugin.vendors.registry import device_files, own_flags

KUBELET = "/var/lib/kubelet"
HTTP_ADDRESS = ":9735"  # not 9400, where NVIDIA's dcgm-exporter listens
HEALTH_ADDRESS = ":9737"
_PATHS = frozenset({"FILE", "DIR", "DIRS", "SOCKET"})  # metavars


OWN: tuple[Option, ...] = (
    Option(
        name="node-name",
        variables=("NODE_NAME",),
        group="node",
        metavar="NAME",
        help="name of this Node, which its NodeDevices object has too; in a pod from spec.nodeName",
    ),
    Option(
        name="pod-name",
        variables=("POD_NAME",),
        group="node",
        metavar="NAME",
        help="this agent's own pod, from metadata.name: the kubelet's list of pods is complete where it has it",
    ),
    Option(
        name="pod-namespace",
        variables=("POD_NAMESPACE",),
        group="node",
        metavar="NAMESPACE",
        help="its namespace, from metadata.namespace",
    ),
    Option(
        name="operator-wait-seconds",
        default="15",
        variables=("NODEDEVICES_OPERATOR_WAIT_SECONDS",),
        group="node",
        metavar="SECONDS",
        help="how long the first registration of a node without a state file waits for the operator's configuration, "
        "0 to 600",
    ),
    Option(
        name="standalone",
        kind="bool",
        default=False,
        variables=("NODEDEVICES_STANDALONE",),
        group="node",
        help="never connect to an API server: serve the kubelet and metrics only",
    ),
    Option(
        name="kubeconfig",
        variables=("NODEDEVICES_KUBECONFIG", "KUBECONFIG"),
        group="node",
        metavar="FILE",
        help="kubeconfig file; default: the pod's service account",
    ),
    Option(
        name="config-file",
        variables=("CONFIG_FILE",),
        group="node",
        metavar="FILE",
        help="configuration in NVIDIA's v1 format; edits take effect while the agent runs",
    ),
    Option(
        name="config-dir",
        variables=("CONFIG_FILE_SRCDIR",),
        aliases=("config-file-srcdir",),
        group="node",
        metavar="DIR",
        help="instead of one file: a folder of them, such as a mounted ConfigMap; the Node's label "
        "nvidia.com/device-plugin.config names the one that applies, and may change at any time",
    ),
    Option(
        name="default-config",
        variables=("DEFAULT_CONFIG",),
        group="node",
        metavar="NAME",
        help="with --config-dir: the file that applies where the Node has no such label",
    ),
    Option(
        name="fallback-strategies",
        kind="list",
        default=("named", "single"),
        choices=("named", "single", "empty"),
        variables=("FALLBACK_STRATEGIES",),
        group="node",
        help="with --config-dir, without label and default, the first of these that exists: a file called default, "
        "the only file, no file",
    ),
    Option(
        name="resource-prefix",
        variables=("NODEDEVICES_RESOURCE_PREFIX",),
        group="node",
        metavar="DOMAIN",
        help="the part of usual resource names before the slash; default: each vendor's own, nvidia.com for NVIDIA",
    ),
    Option(
        name="serving-mode",
        default="Serve",
        choices=("Serve", "Observe"),
        variables=("NODEDEVICES_SERVING_MODE",),
        group="node",
        help="Serve: register with the kubelet; Observe: the vendor's own plugin does, and this agent only observes",
    ),
    Option(
        name="probe",
        kind="list",
        default=probes.DEFAULT,
        variables=("NODEDEVICES_PROBE",),
        key=probes.KEY,
        group="probe",
        metavar="PROBE",
        help=f"{probes.AUTO} for those whose hardware is there, {', '.join(KINDS)}, NAME=COMMAND for a program of your "
        "own, or NAME=unix:/PATH for one that listens there; repeat it to run several",
    ),
    Option(
        name="add-probe",
        kind="list",
        variable_prefix=probes.ADD_VARIABLES,
        group="probe",
        metavar="PROBE",
        help=f"a probe beside those of --probe or, without it, beside {', '.join(probes.DEFAULT)}; all variables and "
        f"flags add, none replaces another's; {probes.AUTO} takes the place of {', '.join(probes.DEFAULT)}",
    ),
    Option(
        name="simulated-file",
        variables=("NODEDEVICES_SIMULATED_FILE",),
        group="probe",
        metavar="FILE",
        help="file of the simulated probe's devices; edits take effect at once",
    ),
    Option(
        name="simulated-profile",
        variables=("NODEDEVICES_SIMULATED_PROFILE",),
        group="probe",
        metavar="PROFILE",
        help="devices of the simulated probe by name, such as 'h100 x 8'",
    ),
    Option(
        name="telemetry",
        kind="bool",
        default=False,
        variables=("NODEDEVICES_TELEMETRY",),
        group="probe",
        help="metrics of temperature, power, fan, utilization, memory used, clocks and error counts, for clusters "
        "without NVIDIA's DCGM exporter",
    ),
    Option(
        name="rdma-required",
        variables=("NODEDEVICES_RDMA_REQUIRED",),
        group="probe",
        metavar="NODES",
        help="character devices without which an RDMA device is unhealthy, of rdma_cm, umad, uverbs, issm and ucm, or "
        "none; default: rdma_cm,umad,uverbs",
    ),
    Option(
        name="device-plugin-dir",
        default=f"{KUBELET}/device-plugins",
        variables=("NODEDEVICES_DEVICE_PLUGIN_DIR",),
        group="kubelet",
        metavar="DIR",
        help="the kubelet's directory for device plugins' sockets",
    ),
    Option(
        name="kubelet-socket",
        variables=("KUBELET_SOCKET",),
        group="kubelet",
        metavar="SOCKET",
        help="where to register; default: kubelet.sock in the device-plugin directory",
    ),
    Option(
        name="pod-resources-socket",
        default=f"{KUBELET}/pod-resources/kubelet.sock",
        variables=("NODEDEVICES_POD_RESOURCES_SOCKET",),
        group="kubelet",
        metavar="SOCKET",
        help="socket of the kubelet's PodResources API",
    ),
    Option(
        name="state-file",
        variables=("NODEDEVICES_STATE_FILE",),
        group="kubelet",
        metavar="FILE",
        help="state file, which must survive a restart; default: nodedevices-state.json in the device-plugin directory",
    ),
    Option(
        name="allocations-dir",
        variables=("NODEDEVICES_ALLOCATIONS_DIR",),
        group="kubelet",
        metavar="DIR",
        help="where containers' allocation.json are written if computing power is shared, on the host and, under the "
        "same path, in this container; default: nodedevices-allocations in the device-plugin directory",
    ),
    Option(
        name="cdi-dir",
        default="/var/run/cdi",
        variables=("NODEDEVICES_CDI_DIR",),
        group="kubelet",
        metavar="DIR",
        help="where CDI specifications are written for the container runtime",
    ),
    Option(
        name="cdi-spec-dirs",
        kind="list",
        default=("/etc/cdi", "/var/run/cdi"),
        variables=("NODEDEVICES_CDI_SPEC_DIRS",),
        group="kubelet",
        metavar="DIRS",
        help="folders with the container toolkit's own CDI specification; the last takes precedence",
    ),
    Option(
        name="mps-dir",
        default="/mps",
        variables=("NODEDEVICES_MPS_DIR",),
        group="kubelet",
        metavar="DIR",
        help="where --mps-root is mounted in this container",
    ),
    Option(
        name="container-mount-dir",
        kind="list",
        variables=("NODEDEVICES_CONTAINER_MOUNT_DIR", "CONTAINER_MOUNT_DIR"),
        group="kubelet",
        metavar="DIR",
        help="a directory of the host that policies may mount, read-only, into containers with shares of memory "
        "(sharing.resources[].container.mounts), with all below it; repeat it for several; default: none",
    ),
    Option(
        name="http-address",
        default=HTTP_ADDRESS,
        variables=("NODEDEVICES_HTTP_ADDRESS",),
        group="service",
        metavar="HOST:PORT",
        help="where /metrics, /healthz and /readyz are served; 'off' for nowhere",
    ),
    Option(
        name="health-address",
        default=HEALTH_ADDRESS,
        variables=("NODEDEVICES_HEALTH_ADDRESS",),
        group="service",
        metavar="HOST:PORT",
        help="where /healthz and /readyz are served for the kubelet's probes alone; 'off' for nowhere",
    ),
    Option(
        name="log-level",
        default="info",
        choices=("debug", "info", "warning", "error"),
        variables=("NODEDEVICES_LOG_LEVEL",),
        group="service",
        help="minimum level of log messages",
    ),
    Option(
        name="log-format",
        default="auto",
        choices=("auto", "json", "text"),
        variables=("NODEDEVICES_LOG_FORMAT",),
        group="service",
        help="json for machines, text for people; auto: text on a terminal",
    ),
    # --- which NVIDIA's plugin has, and every vendor's devices can need ----------------------------------------------
    like_its_flags(
        "shared-devices-allocation-policy",
        "replicas come from the least shared device, or are packed",
        group="NVIDIA",
        key="flags.plugin.sharedDevicesAllocationPolicy",
        default="distributed",
        choices=("distributed", "packed"),
    ),
    like_its_flags(
        "driver-root-ctr-path",
        "where the driver root is mounted in this container; the driver's library and /dev are searched there first",
        group="NVIDIA",
        key="flags.plugin.containerDriverRoot",
        default="/driver-root",
        aliases=("container-driver-root",),
    ),
    like_its_flags(
        "mps-root",
        "the host's directory for MPS, needed where MPS is used",
        group="NVIDIA",
        key="flags.mpsRoot",
        default="",
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
