"""Flags and files of the NIC vendor, and what they say of a node.

The files are those of the plugins that the agent replaces; without them no NIC is offered but those that a rule
of `resources.devices` names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from nodedevices_common.options import Values, option
from nodedevices_probe.nic import ONLOAD_FILE, RDMA_FILE, SRIOV_FILE

from nodedevices_plugin.model import PlanError, resource_names
from nodedevices_plugin.vendors.files import DeviceFile
from nodedevices_plugin.vendors.flags import VendorFlags
from nodedevices_plugin.vendors.nic import onload, rdma_config, sriov_config
from nodedevices_plugin.vendors.nic.configs import Configs

GROUP = "NIC"
PREFIX_OPTION = "sriov-resource-prefix"


@dataclass(frozen=True, slots=True, kw_only=True)
class NicSettings:
    """sriov_prefix: the domain of resources of the SR-IOV plugin's file that do not say theirs."""

    decides_ids: ClassVar[bool] = True

    sriov_prefix: str = sriov_config.DEFAULT_PREFIX


def settings(values: Values) -> NicSettings:
    """Raises PlanError for a prefix that no resource can have."""
    prefix = values.text(PREFIX_OPTION) or sriov_config.DEFAULT_PREFIX
    try:
        resource_names.check(f"--{PREFIX_OPTION}", f"{prefix}/nic")
    except PlanError as error:
        raise PlanError(f"--{PREFIX_OPTION}", prefix, "give a domain, such as intel.com") from error
    return NicSettings(sriov_prefix=prefix)


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
            "default domain of resources in [sriov.json](devices/sriov.md), as that plugin's `-resource-prefix`",
            group=GROUP,
            default=sriov_config.DEFAULT_PREFIX,
            metavar="DOMAIN",
        ),
    ),
)
FILES = (
    DeviceFile(name=RDMA_FILE, type=rdma_config.RdmaConfig, parse=rdma_config.parse),
    DeviceFile(name=SRIOV_FILE, type=sriov_config.SriovConfig, parse=sriov_config.parse),
    DeviceFile(name=ONLOAD_FILE, type=onload.OnloadConfig, parse=onload.parse),
)
