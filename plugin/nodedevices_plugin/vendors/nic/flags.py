"""Flags and files of the NIC vendor, and what they say of a node.

The files are those of the plugins that the agent replaces; without them no NIC is offered but those that a rule
of `resources.devices` names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from nodedevices_common.options import Values, option

from nodedevices_plugin.model import PlanError, resource_names
from nodedevices_plugin.vendors.files import DeviceFile
from nodedevices_plugin.vendors.flags import VendorFlags
from nodedevices_plugin.vendors.nic import device_info, onload, rdma_config, sriov_config
from nodedevices_plugin.vendors.nic.configs import RDMA_OPTION, SRIOV_OPTION, Configs

GROUP = "NIC"
PREFIX_OPTION, INFO_OPTION = "sriov-resource-prefix", "device-info-dir"


@dataclass(frozen=True, slots=True, kw_only=True)
class NicSettings:
    """sriov_prefix: the domain of resources of the SR-IOV plugin's file that do not say theirs. device_info: the folder
    of device-info files; empty: none are kept."""

    decides_ids: ClassVar[bool] = True

    sriov_prefix: str = sriov_config.DEFAULT_PREFIX
    device_info: str = device_info.FOLDER


def settings(values: Values) -> NicSettings:
    """Raises PlanError for a prefix that no resource can have."""
    prefix = values.text(PREFIX_OPTION) or sriov_config.DEFAULT_PREFIX
    try:
        resource_names.check(f"--{PREFIX_OPTION}", f"{prefix}/nic")
    except PlanError as error:
        raise PlanError(f"--{PREFIX_OPTION}", prefix, "give a domain, such as intel.com") from error
    folder = values.text(INFO_OPTION)
    if folder and not folder.startswith("/"):
        raise PlanError(f"--{INFO_OPTION}", folder, "give an absolute path, or nothing for no files")
    return NicSettings(sriov_prefix=prefix, device_info=folder)


def configs(local: object, files: Mapping[str, object]) -> Configs:
    """Return the files' configurations, with the names that the flags give. Each argument as in NodeView."""
    prefix = local.sriov_prefix if isinstance(local, NicSettings) else sriov_config.DEFAULT_PREFIX
    return Configs.from_files(files, sriov_prefix=prefix)


FLAGS = VendorFlags(
    group=GROUP,
    title="NICs of all makers: SR-IOV, RDMA, Onload",
    settings=settings,
    settings_type=NicSettings,
    options=(
        option(
            PREFIX_OPTION,
            "default domain of resources in `--sriov-config-file`, as that plugin's `-resource-prefix`",
            group=GROUP,
            default=sriov_config.DEFAULT_PREFIX,
            metavar="DOMAIN",
        ),
        option(
            INFO_OPTION,
            "directory of [files](devices/sriov.md#device-info-files) about functions of `--sriov-config-file` for "
            "CNI plugins; empty: no files are written",
            group=GROUP,
            default=device_info.FOLDER,
            metavar="DIR",
        ),
    ),
    absolute=(INFO_OPTION,),
)
FILES = (
    DeviceFile(
        option=option(
            RDMA_OPTION,
            "[config.json](devices/rdma.md) of Mellanox' k8s-rdma-shared-dev-plugin; reloaded on change",
            group=GROUP,
            metavar="FILE",
        ),
        type=rdma_config.RdmaConfig,
        parse=rdma_config.parse,
    ),
    DeviceFile(
        option=option(
            SRIOV_OPTION,
            "[config.json](devices/sriov.md) of the SR-IOV network device plugin; reloaded on change",
            group=GROUP,
            metavar="FILE",
        ),
        type=sriov_config.SriovConfig,
        parse=sriov_config.parse,
    ),
    DeviceFile(
        option=option(
            onload.OPTION,
            "spec.devicePlugin of an Onload object (JSON), to offer [Onload](devices/onload.md) on Solarflare cards; "
            "reloaded on change",
            group=GROUP,
            metavar="FILE",
        ),
        type=onload.OnloadConfig,
        parse=onload.parse,
    ),
)
