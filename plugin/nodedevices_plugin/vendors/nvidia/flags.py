"""NVIDIA's flags and variables, as its device plugin has them (v0.20.0), and what they say of a node. Pure.

Names, variables, defaults and `flags.*` keys are the plugin's, so that a DaemonSet written for it says the same things
here. What a section of a policy can say, too, becomes that section; the rest is `NvidiaSettings`.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

from nodedevices_api.base import to_dict
from nodedevices_api.sections import Health
from nodedevices_common.options import Kind, Option, Value, Values, like_its_flags

from nodedevices_plugin.vendors.flags import VendorFlags
from nodedevices_plugin.vendors.nvidia import driver_directory, imex
from nodedevices_plugin.vendors.nvidia.cdi import FEATURES, Host
from nodedevices_plugin.vendors.nvidia.driver_directory import DriverDirectory
from nodedevices_plugin.vendors.nvidia.health_variables import (
    DISABLE_VARIABLE,
    ENABLE_VARIABLE,
    GOOGLE_VARIABLE,
    rules_from_environment,
)

GROUP = "NVIDIA"
CDI_PREFIX = "cdi.k8s.io/"


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaSettings:
    """What every container of the node gets, and where things are on it; for this a policy has no field."""

    driver_root: str = "/"
    dev_root: str = ""
    features: tuple[str, ...] = ()  # of cdi.FEATURES
    imex_channels: tuple[int, ...] = ()
    imex_required: bool = False
    cdi_annotation_prefix: str = CDI_PREFIX
    cdi_hook_path: str = ""
    cdi_feature_flags: tuple[str, ...] = ()
    cdi_disable_hooks: tuple[str, ...] = ()
    cdi_without_libraries: bool = False  # device nodes alone will do
    ctk_program: str = ""  # empty: it is searched for
    driver_root_here: str = ""  # where the driver root is mounted in this container
    driver_directory: DriverDirectory = field(default_factory=DriverDirectory)

    def host(self, existing: Set[str]) -> Host:
        """The node as containers get it; `existing`: which device nodes and files are there."""
        return Host(
            driver_root=self.driver_root,
            dev_root=self.dev_root,
            existing=existing,
            features=self.features,
            imex_channels=imex.present(self.imex_channels, existing, required=False),
        )

    def check(self, existing: Set[str]) -> None:
        """Raises PlanError where something that is required is not there."""
        imex.present(self.imex_channels, existing, required=self.imex_required)


def settings(values: Values) -> NvidiaSettings:
    """Raises PlanError."""
    driver_directory.check_alone(values.items("device-list-strategy"))
    return NvidiaSettings(
        driver_root=values.text("driver-root") or "/",
        dev_root=values.text("dev-root"),
        features=tuple(each for each in FEATURES if values.truth(f"{each}-enabled")),
        imex_channels=imex.channel_ids(values.items("imex-channel-ids")),
        imex_required=values.truth("imex-required"),
        cdi_annotation_prefix=values.text("cdi-annotation-prefix"),
        cdi_hook_path=values.text("nvidia-cdi-hook-path"),
        cdi_feature_flags=values.items("cdi-feature-flags"),
        cdi_disable_hooks=values.items("cdi-disable-hooks"),
        cdi_without_libraries=values.truth("cdi-without-libraries"),
        ctk_program=values.text("nvidia-ctk-program"),
        driver_root_here=values.text("driver-root-ctr-path"),
        driver_directory=DriverDirectory(
            path=_folder("driver-directory", values),
            container_path=_folder("driver-directory-ctr-path", values),
            vulkan_icd=_folder("vulkan-icd-directory", values, may_be_empty=True),
            vulkan_icd_container_path=_folder("vulkan-icd-ctr-path", values),
        ),
    )


def _folder(option: str, values: Values, *, may_be_empty: bool = False) -> str:
    return driver_directory.folder(option, values.text(option), may_be_empty=may_be_empty)


def of(local: object) -> NvidiaSettings:
    """What a NodeView has of them; where it has none, the defaults."""
    return local if isinstance(local, NvidiaSettings) else NvidiaSettings()


def sections(values: Values) -> dict[str, Any]:
    """The sections that they set."""
    found: dict[str, Any] = {}
    if values.said("mig-strategy"):
        found["partitions"] = {"strategy": values.text("mig-strategy")}
    if values.said("device-list-strategy", "device-id-strategy", "pass-device-specs"):
        found["injection"] = {
            "deviceListStrategies": list(values.items("device-list-strategy")),
            "deviceIDStrategy": values.text("device-id-strategy"),
            "passDeviceSpecs": values.truth("pass-device-specs"),
        }
    disable = str(values.given.get(DISABLE_VARIABLE, ""))
    enable = ",".join(str(values.given.get(name, "")) for name in (ENABLE_VARIABLE, GOOGLE_VARIABLE))
    if rules := rules_from_environment(disable, enable).rules():
        found["health"] = to_dict(Health(rules=rules))
    return found


def _nvidia(
    name: str,
    key: str | None,
    text: str,
    *,
    default: Value,
    kind: Kind = "text",
    works: tuple[str, ...] | None = None,
    choices: tuple[str, ...] = (),
    aliases: tuple[str, ...] = (),
    variables: tuple[str, ...] = (),
) -> Option:
    return like_its_flags(
        name,
        text,
        group=GROUP,
        key=None if key is None else key if key.startswith("imex.") else f"flags.{key}",
        default=default,
        kind=kind,
        works=works,
        choices=choices,
        aliases=aliases,
        variables=variables,
    )


_DIRECTORY = DriverDirectory()
OPTIONS: tuple[Option, ...] = (
    _nvidia(
        "mig-strategy",
        "migStrategy",
        "how MIG devices are offered",
        default="none",
        choices=("none", "single", "mixed"),
    ),
    _nvidia(
        "device-list-strategy",
        "plugin.deviceListStrategy",
        "how a container gets its devices; one or several",
        default=("envvar",),
        kind="list",
        choices=("envvar", "volume-mounts", "cdi-annotations", "cdi-cri", driver_directory.STRATEGY),
    ),
    _nvidia(
        "device-id-strategy",
        "plugin.deviceIDStrategy",
        "what a container's devices are called",
        default="uuid",
        choices=("uuid", "index"),
    ),
    _nvidia(
        "pass-device-specs",
        "plugin.passDeviceSpecs",
        "give device nodes to the container runtime",
        default=False,
        kind="bool",
    ),
    _nvidia(
        "fail-on-init-error",
        "failOnInitError",
        "has no effect: without a driver this agent keeps retrying and reports it",
        default=True,
        kind="bool",
    ),
    _nvidia(
        "device-discovery-strategy",
        "deviceDiscoveryStrategy",
        "how devices are found",
        default="auto",
        choices=("auto", "nvml", "tegra"),
        works=("auto", "nvml"),
    ),
    _nvidia(
        "driver-root",
        "nvidiaDriverRoot",
        "where the driver is installed on the host",
        default="/",
        aliases=("nvidia-driver-root",),
        variables=("NVIDIA_DRIVER_ROOT",),
    ),
    _nvidia(
        "dev-root",
        "nvidiaDevRoot",
        "where the host's /dev is; default: the driver root",
        default="",
        aliases=("nvidia-dev-root",),
        variables=("NVIDIA_DEV_ROOT",),
    ),
    _nvidia("gdrcopy-enabled", "gdrcopyEnabled", "give GDRCopy to containers", default=False, kind="bool"),
    _nvidia("gds-enabled", "gdsEnabled", "give GPUDirect Storage to containers", default=False, kind="bool"),
    _nvidia("mofed-enabled", "mofedEnabled", "give MOFED devices to containers", default=False, kind="bool"),
    _nvidia("cdi-annotation-prefix", "plugin.cdiAnnotationPrefix", "prefix of CDI annotations", default="cdi.k8s.io/"),
    _nvidia(
        "nvidia-cdi-hook-path",
        "plugin.nvidiaCTKPath",
        "path on the host of the hook in CDI specifications that nvidia-ctk generates",
        default="/usr/bin/nvidia-ctk",
        aliases=("nvidia-ctk-path",),
    ),
    _nvidia("cdi-feature-flags", None, "features of the CDI library in nvidia-ctk", default=(), kind="list"),
    _nvidia("cdi-disable-hooks", None, "CDI hooks to leave out, or all", default=(), kind="list"),
    _nvidia(
        "imex-channel-ids",
        "imex.channelIDs",
        "IMEX channels for every container; 0 is the only one",
        default=(),
        kind="list",
        choices=("0",),
    ),
    _nvidia(
        "imex-required",
        "imex.required",
        "offer nothing while an IMEX channel is missing",
        default=False,
        kind="bool",
    ),
    Option(
        name="cdi-without-libraries",
        kind="bool",
        default=False,
        variables=("NODEDEVICES_CDI_WITHOUT_LIBRARIES",),
        group="kubelet",
        help="without a CDI specification that has the driver's libraries, offer one with device nodes alone; "
        "false: refuse a CDI strategy then",
    ),
    Option(
        name="nvidia-ctk-program",
        variables=("NODEDEVICES_NVIDIA_CTK_PROGRAM",),
        group="kubelet",
        metavar="FILE",
        help="path of nvidia-ctk in this container; default: on PATH, else below --driver-root-ctr-path",
    ),
    # Named after Google's device plugin, whose names are the aliases; for --device-list-strategy driver-directory.
    Option(
        name="driver-directory",
        default=_DIRECTORY.path,
        variables=("NODEDEVICES_DRIVER_DIRECTORY",),
        aliases=("host-path",),
        group="kubelet",
        metavar="DIR",
        help="with --device-list-strategy driver-directory: where the driver is on the host",
    ),
    Option(
        name="driver-directory-ctr-path",
        default=_DIRECTORY.container_path,
        variables=("NODEDEVICES_DRIVER_DIRECTORY_CTR_PATH",),
        aliases=("container-path",),
        group="kubelet",
        metavar="DIR",
        help="where containers get it",
    ),
    Option(
        name="vulkan-icd-directory",
        default=_DIRECTORY.vulkan_icd,
        variables=("NODEDEVICES_VULKAN_ICD_DIRECTORY",),
        aliases=("host-vulkan-icd-path",),
        group="kubelet",
        metavar="DIR",
        help="where its Vulkan ICD is on the host; empty: containers get none",
    ),
    Option(
        name="vulkan-icd-ctr-path",
        default=_DIRECTORY.vulkan_icd_container_path,
        variables=("NODEDEVICES_VULKAN_ICD_CTR_PATH",),
        aliases=("container-vulkan-icd-path",),
        group="kubelet",
        metavar="DIR",
        help="where containers get that",
    ),
)
FLAGS = VendorFlags(
    group=GROUP,
    title="as NVIDIA's device plugin has them, with DP_DISABLE_HEALTHCHECKS, DP_ENABLE_HEALTHCHECKS and XID_CONFIG",
    options=OPTIONS,
    variables=(DISABLE_VARIABLE, ENABLE_VARIABLE, GOOGLE_VARIABLE),
)
