"""What the configuration files of both plugins say together of the NICs of a node. Pure.

A NIC is in one resource: the SR-IOV plugin's file comes first, because what it names belongs to one container, and must
not be shared by the other file's. A rule of `resources.devices` comes before both (resources.matching).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nodedevices_probe.protocol import DeviceFact

from nodedevices_plugin.vendors.nic.rdma_config import RdmaConfig, RdmaResource
from nodedevices_plugin.vendors.nic.sriov_config import DEFAULT_PREFIX, SriovConfig, SriovResource

RDMA_OPTION, SRIOV_OPTION = "rdma-config-file", "sriov-config-file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Configs:
    """sriov_prefix: the domain of the SR-IOV plugin's resources that do not say theirs."""

    sriov: SriovConfig = field(default_factory=SriovConfig)
    rdma: RdmaConfig = field(default_factory=RdmaConfig)
    sriov_prefix: str = DEFAULT_PREFIX

    @classmethod
    def of(cls, files: Mapping[str, object], *, sriov_prefix: str = DEFAULT_PREFIX) -> Configs:
        """From what device files contain, by option."""
        sriov, rdma = files.get(SRIOV_OPTION), files.get(RDMA_OPTION)
        return cls(
            sriov=sriov if isinstance(sriov, SriovConfig) else SriovConfig(),
            rdma=rdma if isinstance(rdma, RdmaConfig) else RdmaConfig(),
            sriov_prefix=sriov_prefix,
        )

    def name(self, fact: DeviceFact) -> str | None:
        """The resource that has the NIC; None: neither file names it."""
        if (function := self.sriov.of(fact)) is not None:
            return function.full_name(self.sriov_prefix)
        hca = self.rdma.of(fact)
        return None if hca is None else hca.full_name()

    def named(self, resource: str) -> SriovResource | RdmaResource | None:
        """The entry of a resource; None: it is not of these files."""
        return self.sriov.named(resource, self.sriov_prefix) or self.rdma.named(resource)
