"""The table of settings: name on the command line, variables, key in the configuration file, allowed values; and which
flags need others, or do not go together.

Settings that are fixed while the agent runs (paths, sockets, logging) are the fields of `Local`, each of them a flag.
Settings that a configuration can have as well are in `OWN`; those for one vendor's devices alone come from the vendor
(vendors.base). Names of NVIDIA's device plugin are kept (its v0.20.0 flags, variables and `flags.*` keys), so that
a DaemonSet written for it means the same here. An option's help is Markdown, with links relative to docs/, as
docs/flags.md has it; `--help` has it without the marks.

What the agent refuses as a combination is data, because the chart refuses the same before anything is installed: its
table is made of this one (tests/helmchart).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from nodedevices_common import address, guard, logs
from nodedevices_common.options import Option, Value, Values, option, options_of, setting, with_flag_variables
from nodedevices_probe.nic import FLAG as RDMA_REQUIRED_OPTION, RDMA_NODES, RDMA_REQUIRED
from nodedevices_probe.registry import KINDS

from nodedevices_plugin.model import DRA_DRIVER, PlanError
from nodedevices_plugin.settings import probes
from nodedevices_plugin.sharing.registry import MODES, SharingModes
from nodedevices_plugin.vendors.registry import VENDORS, Vendors

HTTP_ADDRESS = ":9735"  # not 9400, where NVIDIA's dcgm-exporter listens
HEALTH_ADDRESS = ":9737"
OPERATOR_WAIT_SECONDS = 15.0


def _address(text: str) -> address.Address | None:
    try:
        return None if text == "off" else address.parse_address(text)
    except ValueError as error:
        raise ValueError(f"{error}; or off") from error


def _server(text: str) -> str:
    return address.unix_path(text) if text else ""


def _or_none(text: str) -> str | None:
    return text or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """The values of flags and variables; `given` has those that a configuration can have as well."""

    node_name: str = setting(
        "name of this Node, from `spec.nodeName`", group="node", variables=("NODE_NAME",), metavar="NAME"
    )
    pod_name: str = setting(
        "name of this pod, from `metadata.name`; the kubelet's list of pods is complete once this pod is in it "
        "(default: any pod)",
        group="node",
        variables=("POD_NAME",),
        flag=False,
    )
    pod_namespace: str = setting(
        "namespace of this pod, from `metadata.namespace`", group="node", variables=("POD_NAMESPACE",), flag=False
    )
    standalone: bool = setting(
        "serve only the kubelet and metrics; never connect to an API server", group="node", default=False
    )
    kubeconfig: str | None = setting(
        "path of the kubeconfig; default: the service account",
        group="node",
        variables=("NODEDEVICES_KUBECONFIG", "KUBECONFIG"),
        metavar="FILE",
        read=_or_none,
    )
    config_file: str | None = setting(
        "configuration in NVIDIA's v1 format; reloaded on change",
        group="node",
        variables=("CONFIG_FILE",),
        metavar="FILE",
        read=_or_none,
    )
    config_dir: str | None = setting(
        "directory of such files; the Node's label `nvidia.com/device-plugin.config` selects one at any time",
        group="node",
        variables=("CONFIG_FILE_SRCDIR",),
        aliases=("config-file-srcdir",),
        metavar="DIR",
        read=_or_none,
    )
    devices_dir: str | None = setting(
        "directory of [files that describe devices](devices/index.md#files-of-devices), each by its own name; reloaded "
        "on change",
        group="node",
        metavar="DIR",
        read=_or_none,
        formerly=(
            *("gpu-config", "gpu-config-file", "generic-config-file", "fpga-names-file", "rdma-config-file"),
            *("sriov-config-file", "onload-config-file", "remote-config-file"),
        ),
    )
    default_config: str = setting(
        "file in `--config-dir` for Nodes without that label",
        group="node",
        variables=("DEFAULT_CONFIG",),
        metavar="NAME",
    )
    fallback_strategies: tuple[str, ...] = setting(
        "without label and default: the file called default, the only file, or no file (empty); the first that exists",
        group="node",
        default=("named", "single"),
        choices=("named", "single", "empty"),
        variables=("FALLBACK_STRATEGIES",),
    )
    resource_prefix: str = setting(
        "domain of default resource names; default: the vendor's, such as `nvidia.com`", group="node", metavar="DOMAIN"
    )
    serving_mode: str = setting(
        "Serve: register with the kubelet; Observe: only observe, beside the vendor's plugin",
        group="node",
        default="Serve",
        choices=("Serve", "Observe"),
    )
    added_probes: tuple[str, ...] = setting(
        f"additional probes beside `--probe` or {', '.join(probes.DEFAULT)} (which {probes.AUTO} replaces); all add up",
        group="probe",
        default=(),
        variables=(),
        variable_prefix=probes.ADD_VARIABLES,
        flag=False,
    )
    probe_server: str = setting(
        "socket of a [probe server](security.md#two-containers), which runs the built-in probes in another container "
        "and answers other questions about the hardware; default: none (probes run in this container)",
        group="probe",
        metavar="unix:PATH",
        read=_server,
    )
    telemetry: bool = setting(
        "export [temperature, power](metrics.md#telemetry) and other readings, for clusters without NVIDIA's DCGM "
        "exporter",
        group="probe",
        default=False,
    )
    kubelet_dir: str = setting(
        "root directory of the kubelet, with `device-plugins` and `pod-resources/kubelet.sock`",
        group="kubelet",
        default="/var/lib/kubelet",
        metavar="DIR",
    )
    kubelet_socket: str = setting(
        "socket to register at; default: the kubelet's `device-plugins/kubelet.sock`",
        group="kubelet",
        variables=("KUBELET_SOCKET",),
        metavar="SOCKET",
    )
    cdi_spec_dirs: tuple[str, ...] = setting(
        "directories of CDI specifications; of the container toolkit's the last wins, and the agent's own are written "
        "to the last directory",
        group="kubelet",
        default=("/etc/cdi", "/var/run/cdi"),
        metavar="DIRS",
        formerly=("cdi-dir",),
    )
    container_mount_dirs: tuple[str, ...] = setting(
        "host directory that policies may [mount](sharing-memory.md#variables-and-files-by-policy) read-only into "
        "containers with shares of memory (`sharing.resources[].container.mounts`), and everything below it. Repeat "
        "the flag for more directories",
        name="container-mount-dir",
        group="kubelet",
        default=(),
        variables=("NODEDEVICES_CONTAINER_MOUNT_DIR", "CONTAINER_MOUNT_DIR"),
        metavar="DIR",
    )
    http_address: address.Address | None = setting(
        "address of /metrics, /healthz and /readyz, or 'off'",
        group="service",
        default=HTTP_ADDRESS,
        metavar="HOST:PORT",
        read=_address,
    )
    health_address: address.Address | None = setting(
        "address of /healthz and /readyz for the kubelet's probes only, or 'off'",
        group="service",
        default=HEALTH_ADDRESS,
        flag=False,
        read=_address,
    )
    metrics_tls_dir: str | None = setting(
        guard.TLS_HELP, group="service", metavar="DIR", formerly=guard.FORMERLY, read=_or_none
    )
    metrics_token_file: str | None = setting(guard.TOKEN_HELP, group="service", metavar="FILE", read=_or_none)
    log_level: logs.Level = setting(
        "minimum level of log messages", group="service", default="info", choices=logs.LEVELS
    )
    log_format: logs.Format = setting(
        "auto: text on a terminal, else JSON", group="service", default="auto", choices=logs.FORMATS, flag=False
    )

    # Not flags themselves: what other flags and variables say.
    probe_options: Mapping[str, Value]  # what built-in probes get of the agent's options, by name
    given: Mapping[str, Value]  # name -> value, for options that a file could also set, and all that vendors bring
    vendors: Vendors = VENDORS  # which are known; by no flag, and neither are the modes
    modes: SharingModes = MODES  # which sharing.strategy can name
    sources: tuple[str, ...] = ()  # which of flags and environment say something of what a configuration can say
    operator_wait_seconds: float = OPERATOR_WAIT_SECONDS  # for a configuration, before a first registration
    mps_dir: str = "/mps"  # --mps-root in this container

    @property
    def cdi_dir(self) -> str:
        """Where the agent's own CDI specifications are: the folder that wins."""
        return self.cdi_spec_dirs[-1]

    @property
    def guard(self) -> guard.Guard | None:
        return guard.Guard.from_folder(self.metrics_tls_dir, self.metrics_token_file)

    @property
    def device_plugin_dir(self) -> str:
        return f"{self.kubelet_dir}/device-plugins"

    @property
    def pod_resources_socket(self) -> str:
        return f"{self.kubelet_dir}/pod-resources/kubelet.sock"

    @property
    def state_file(self) -> str:
        """Beside the kubelet's own checkpoint, which has to survive the same."""
        return f"{self.device_plugin_dir}/nodedevices-state.json"

    @property
    def allocations_dir(self) -> str:
        """Where containers' `allocation.json` are, if computing power is shared: on the host, and here by the same
        path."""
        return f"{self.device_plugin_dir}/nodedevices-allocations"

    @property
    def claims_dir(self) -> str:
        """The records of prepared claims, beside the DRA driver's socket."""
        return f"{self.kubelet_dir}/plugins/{DRA_DRIVER}/claims"

    @property
    def own_pod(self) -> tuple[str, str] | None:
        """Its namespace and name; None: a plain process."""
        return (self.pod_namespace, self.pod_name) if self.pod_name else None


KNOWN = ", ".join(f"`{name}`" for name in KINDS)


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


def paths(vendors: Vendors = VENDORS) -> tuple[Option, ...]:
    """Return the options for files, folders and sockets in this container or on the host, where relative paths make no
    sense. Not the kubeconfig, which people give as kubectl takes it."""
    metavars, names = {"FILE", "DIR", "DIRS", "SOCKET"}, {"mps-root", "driver-root-ctr-path"}
    own = (option for option in OWN if option.metavar in metavars or option.name in names)
    return (*(option for option in own if option.name not in {"kubeconfig", "container-mount-dir"}),)


@cache
def options(vendors: Vendors = VENDORS) -> tuple[Option, ...]:
    """Return all options, with those of the vendors."""
    return (*OWN, *(option for flags in vendors.own_flags().values() for option in flags.options))


@cache
def by_name(vendors: Vendors = VENDORS) -> Mapping[str, Option]:
    return {option.name: option for option in options(vendors)}


@cache
def by_key(vendors: Vendors = VENDORS) -> Mapping[str, Option]:
    return {option.key: option for option in options(vendors) if option.key}


def variables(vendors: Vendors = VENDORS) -> tuple[str, ...]:
    """Return the environment variables that vendors read and that have no flag."""
    return tuple(name for flag in vendors.own_flags().values() for name in flag.variables)


def refused_by_vendors(given: Mapping[str, Value], vendors: Vendors = VENDORS) -> list[str]:
    """Return the vendors' errors about their options and variables, beyond those of each value alone."""
    problems, values = [], Values(given, by_name(vendors))
    for flags in vendors.own_flags().values():
        try:
            flags.settings(values)
            flags.sections(values)
        except PlanError as error:
            problems.append(str(error))
    return problems


OPTIONS = options()  # as the agent comes, for pages and tests that list them
OF_VENDORS = tuple(option for option in OPTIONS if option not in OWN)  # docs/flags.md lists them


ONLY_WITH: Mapping[str, str] = {"default-config": "config-dir", "fallback-strategies": "config-dir", **guard.ONLY_WITH}
NOT_WITH: Mapping[str, str] = {"config-file": "config-dir"}
DOMAIN_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+$"
