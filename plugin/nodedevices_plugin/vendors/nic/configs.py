"""The configuration files of the plugins that the agent replaces, as one view of a node's NICs; and their flag.

A NIC is in one resource: the SR-IOV plugin's file comes first, because what it names belongs to one container, and must
not be shared by another file's. A rule of `resources.devices` comes before all (offering.resources). Without these
files no NIC is offered but those that such a rule names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from msgspec import Struct
from nodedevices_common.options import Values, option
from nodedevices_probe.nic import ONLOAD_FILE, RDMA_FILE, SRIOV_FILE
from nodedevices_probe.protocol import DeviceFact

from nodedevices_plugin.model import PlanError, resource_names
from nodedevices_plugin.vendors.base import DeviceFile, VendorFlags, content_of, value_of
from nodedevices_plugin.vendors.nic import onload, rdma_config, sriov_config
from nodedevices_plugin.vendors.nic.onload import OnloadConfig

# Without a file; validators are made for nodes that have one.
NO_SRIOV, NO_RDMA = sriov_config.SriovConfig.model_construct(), rdma_config.RdmaConfig.model_construct()


class NamedEntry(NamedTuple):
    """What a file says of a resource, and where: the file, and the place in it."""

    entry: sriov_config.SriovResource | rdma_config.RdmaResource | OnloadConfig
    file: str
    place: str


class Configs(Struct, frozen=True, kw_only=True):
    """sriov_prefix: the domain of the SR-IOV plugin's resources that do not say theirs. onload: None without a file."""

    sriov: sriov_config.SriovConfig = NO_SRIOV
    rdma: rdma_config.RdmaConfig = NO_RDMA
    onload: OnloadConfig | None = None
    sriov_prefix: str = sriov_config.DEFAULT_PREFIX

    @classmethod
    def for_node(cls, local: object, files: Mapping[str, object]) -> Configs:
        """Return the device files' configurations, with the names that the flags give. Arguments as in NodeView."""
        return cls(
            sriov=content_of(files, SRIOV_FILE, sriov_config.SriovConfig) or NO_SRIOV,
            rdma=content_of(files, RDMA_FILE, rdma_config.RdmaConfig) or NO_RDMA,
            onload=content_of(files, ONLOAD_FILE, OnloadConfig),
            sriov_prefix=value_of(local, NicSettings).sriov_prefix,
        )

    def name(self, fact: DeviceFact) -> str | None:
        """The resource that has the NIC; None: no file names it."""
        if (function := self.sriov.resource_for(fact)) is not None:
            return function.full_name(self.sriov_prefix)
        if (hca := self.rdma.resource_for(fact)) is not None:
            return hca.full_name()
        return onload.name(self.onload, fact) if self.onload is not None else None

    def entries(self) -> Mapping[str, NamedEntry]:
        """Every resource that the files name; of two files that name it the first counts."""
        return {
            **({self.onload.resource: NamedEntry(self.onload, ONLOAD_FILE, "resourceName")} if self.onload else {}),
            **{
                resource.full_name(): NamedEntry(resource, RDMA_FILE, f"{self.rdma.key}[{number}]")
                for number, resource in enumerate(self.rdma.resources)
            },
            **{
                resource.full_name(self.sriov_prefix): NamedEntry(resource, SRIOV_FILE, f"{self.sriov.key}[{number}]")
                for number, resource in enumerate(self.sriov.resources)
            },
        }


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
    DeviceFile(name=ONLOAD_FILE, type=OnloadConfig, parse=onload.parse),
)
