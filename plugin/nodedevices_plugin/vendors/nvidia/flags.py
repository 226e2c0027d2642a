"""NVIDIA's flags and variables, as its device plugin has them (v0.20.0), and what they say of a node.

Names, variables, defaults and `flags.*` keys are the plugin's, so that a DaemonSet written for it says the same things
here. What a section of a policy can say, too, becomes that section (the variables for health checks, and Google's:
health rules); the rest is `NvidiaSettings`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from nodedevices_api.base import to_dict
from nodedevices_api.sections import MAX_REASONS, Health, HealthRule
from nodedevices_common.options import Option, Values, option, with_flag_variables
from nodedevices_common.text import show

from nodedevices_plugin.model import PlanError
from nodedevices_plugin.vendors.base import VendorFlags
from nodedevices_plugin.vendors.nvidia.cdi import FEATURES, Host, imex_node
from nodedevices_plugin.vendors.nvidia.xids import MAX_XID

DISABLE_VARIABLE = "DP_DISABLE_HEALTHCHECKS"
ENABLE_VARIABLE = "DP_ENABLE_HEALTHCHECKS"
GOOGLE_VARIABLE = "XID_CONFIG"  # of Google's plugin, HealthCriticalXid of its ConfigMap: XIDs that are fatal, too


def rules_from_environment(disable: str, enable: str) -> tuple[HealthRule, ...]:
    """The documented meaning of DP_DISABLE_HEALTHCHECKS and DP_ENABLE_HEALTHCHECKS (XIDs by comma, `all` or `xids`), as
    a node's own `health.rules`, which a policy's section replaces. A number outranks `all`.

    What is enabled outranks what is disabled: `all` disabled and 48,79 enabled means only these two (NVIDIA's plugin
    then hears nothing), and `all` enabled makes every XID fatal. A part that is neither is dropped, for one typing
    error must not switch the checks off.
    """
    ignored, ignore_all = _xids(disable)
    fatal, fatal_all = _xids(enable)
    if fatal_all:
        ignored, ignore_all = frozenset(), False
    return (
        *_rules(fatal, "Unhealthy"),
        *_rules(ignored - fatal, "Ignored"),
        *([HealthRule(reasons=("Xid*",), state="Unhealthy")] if fatal_all else []),
        *([HealthRule(reasons=("Xid*",), state="Ignored")] if ignore_all else []),
    )


def _rules(xids: frozenset[int], state: Literal["Unhealthy", "Ignored"]) -> Iterator[HealthRule]:
    reasons = [f"Xid{number}" for number in sorted(xids)]
    starts = range(0, len(reasons), MAX_REASONS)
    return (HealthRule(reasons=tuple(reasons[first : first + MAX_REASONS]), state=state) for first in starts)


def _xids(text: str) -> tuple[frozenset[int], bool]:
    parts = [part.strip().lower() for part in text.split(",")]
    numbers = {int(part) for part in parts if re.fullmatch(r"0*[0-9]{1,4}", part, re.ASCII)}
    return frozenset(number for number in numbers if 1 <= number <= MAX_XID), not {"all", "xids"}.isdisjoint(parts)


GROUP = "NVIDIA"
CDI_PREFIX = "cdi.k8s.io/"


BY_DIRECTORY = "driver-directory"  # a strategy of Google's plugin (injection)
STRATEGIES = ("envvar", "volume-mounts", "cdi-annotations", "cdi-cri", BY_DIRECTORY)
DRIVER_DIRECTORY = "/home/kubernetes/bin/nvidia"


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaSettings:
    """What every container of the node gets, and paths on it: settings for which a policy has no field."""

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
    driver_root_here: str = ""  # where the driver root is mounted in this container
    driver_path: str = DRIVER_DIRECTORY  # the driver's on the node; state files have it by this name

    def host(self, existing: Set[str]) -> Host:
        """The node as containers get it; `existing`: which device nodes and files are there."""
        return Host(
            driver_root=self.driver_root,
            dev_root=self.dev_root,
            existing=existing,
            features=self.features,
            imex_channels=tuple(channel for channel in self.imex_channels if imex_node(channel) in existing),
        )


def settings(values: Values) -> NvidiaSettings:
    """Raises PlanError."""
    _check_alone(values.items("device-list-strategy"))
    return NvidiaSettings(
        driver_root=_absolute("driver-root", values, "/run/nvidia/driver") or "/",
        dev_root=_absolute("dev-root", values, "/run/nvidia/driver"),
        features=tuple(feature for feature in FEATURES if values.truth(f"{feature}-enabled")),
        imex_channels=tuple(sorted({int(channel) for channel in values.items("imex-channel-ids")})),
        imex_required=values.truth("imex-required"),
        cdi_annotation_prefix=values.text("cdi-annotation-prefix"),
        cdi_hook_path=_absolute("nvidia-cdi-hook-path", values, "/usr/bin/nvidia-cdi-hook"),
        cdi_feature_flags=values.items("cdi-feature-flags"),
        cdi_disable_hooks=values.items("cdi-disable-hooks"),
        cdi_without_libraries=values.truth("cdi-without-libraries"),
        driver_root_here=values.text("driver-root-ctr-path"),
        driver_path=_directory(values.text("driver-directory")),
    )


def _absolute(option: str, values: Values, example: str) -> str:
    """A path of the host, which a container runtime is told. Raises PlanError."""
    text = values.text(option)
    if text and not text.startswith("/"):
        raise PlanError(f"--{option}", show(text), f"give an absolute path, such as {example}")
    return text


def _directory(text: str) -> str:
    """The directory that --driver-directory names. Raises PlanError."""
    plain = posixpath.normpath(text) if text else ""
    if not plain.startswith("/") or plain.strip("/") == "" or any(ord(char) < ord(" ") for char in plain):
        raise PlanError("--driver-directory", show(text), "give the absolute path of a directory other than /")
    return "/" + plain.lstrip("/")


def _check_alone(strategies: Sequence[str]) -> None:
    """Raises PlanError where the driver's directory is beside another strategy; of a policy's the API server says
    so."""
    if BY_DIRECTORY in strategies and set(strategies) != {BY_DIRECTORY}:
        hint = f"each of the others would bring the driver once more; give {BY_DIRECTORY} alone, or leave it out"
        raise PlanError("deviceListStrategy", ", ".join(strategies), hint)


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
    if rules := rules_from_environment(disable, enable):
        found["health"] = to_dict(Health(rules=rules))
    return found


_nvidia = partial(with_flag_variables, group=GROUP)
OPTIONS: tuple[Option, ...] = (
    _nvidia(
        "mig-strategy",
        "how MIG devices are offered",
        key="flags.migStrategy",
        default="none",
        choices=("none", "single", "mixed"),
    ),
    _nvidia(
        "device-list-strategy",
        "how containers get devices; one or more",
        key="flags.plugin.deviceListStrategy",
        default=("envvar",),
        choices=STRATEGIES,
    ),
    _nvidia(
        "device-id-strategy",
        "how devices are named in containers",
        key="flags.plugin.deviceIDStrategy",
        default="uuid",
        choices=("uuid", "index"),
    ),
    _nvidia(
        "pass-device-specs",
        "pass device nodes to the container runtime",
        key="flags.plugin.passDeviceSpecs",
        default=False,
    ),
    _nvidia(
        "fail-on-init-error",
        "no effect: without a driver the agent retries and reports it",
        key="flags.failOnInitError",
        default=True,
    ),
    _nvidia(
        "device-discovery-strategy",
        "how devices are found",
        key="flags.deviceDiscoveryStrategy",
        default="auto",
        choices=("auto", "nvml"),  # not tegra: no probe reads these boards
    ),
    _nvidia(
        "driver-root",
        "driver root on the host",
        key="flags.nvidiaDriverRoot",
        default="/",
        variables=("NVIDIA_DRIVER_ROOT",),
        aliases=("nvidia-driver-root",),
    ),
    _nvidia(
        "dev-root",
        "root of /dev on the host; default: the driver root",
        key="flags.nvidiaDevRoot",
        variables=("NVIDIA_DEV_ROOT",),
        aliases=("nvidia-dev-root",),
    ),
    _nvidia("gdrcopy-enabled", "give GDRCopy to containers", key="flags.gdrcopyEnabled", default=False),
    _nvidia("gds-enabled", "give GPUDirect Storage to containers", key="flags.gdsEnabled", default=False),
    _nvidia("mofed-enabled", "give MOFED devices to containers", key="flags.mofedEnabled", default=False),
    _nvidia(
        "cdi-annotation-prefix",
        "prefix of CDI annotations",
        key="flags.plugin.cdiAnnotationPrefix",
        default="cdi.k8s.io/",
    ),
    _nvidia(
        "nvidia-cdi-hook-path",
        "host path of the hook in nvidia-ctk's CDI specifications",
        key="flags.plugin.nvidiaCTKPath",
        default="/usr/bin/nvidia-ctk",
        aliases=("nvidia-ctk-path",),
    ),
    _nvidia("cdi-feature-flags", "features of nvidia-ctk's CDI library", default=()),
    _nvidia("cdi-disable-hooks", "CDI hooks to omit, or all", default=()),
    _nvidia(
        "imex-channel-ids",
        "IMEX channels for every container; only 0 is allowed",
        key="imex.channelIDs",
        default=(),
        choices=("0",),
    ),
    _nvidia("imex-required", "offer no devices while an IMEX channel is missing", key="imex.required", default=False),
    option(
        "cdi-without-libraries",
        "without a CDI specification of the driver's libraries, offer device nodes only; false: refuse CDI strategies",
        group="kubelet",
        default=False,
        flag=False,
    ),
    # Google's device plugin has it under the alias's name; for --device-list-strategy driver-directory.
    option(
        "driver-directory",
        "host path of the driver on [nodes prepared Google's way](devices/google.md), for `--device-list-strategy "
        "driver-directory`",
        group="kubelet",
        default=DRIVER_DIRECTORY,
        aliases=("host-path",),
        metavar="DIR",
    ),
)
FLAGS = VendorFlags(
    group=GROUP,
    title="with the same meaning as in NVIDIA's device plugin, like the variables DP_DISABLE_HEALTHCHECKS, "
    "DP_ENABLE_HEALTHCHECKS and XID_CONFIG",
    settings=settings,
    settings_type=NvidiaSettings,
    sections=sections,
    options=OPTIONS,
    variables=(DISABLE_VARIABLE, ENABLE_VARIABLE, GOOGLE_VARIABLE),
)
