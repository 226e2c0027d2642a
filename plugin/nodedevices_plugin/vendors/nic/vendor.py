"""NICs of all makers as one vendor: physical and virtual functions, RDMA devices.

No NIC is offered by default: it may carry the node's own traffic. The configuration files of the plugins that the agent
replaces (configs) and rules of `resources.devices` decide what is offered, and under which names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set

from nodedevices_probe import nic as attributes
from nodedevices_probe.protocol import Readings

from nodedevices_plugin.model import InventoryDevice, OfferedResource, Unit
from nodedevices_plugin.vendors.base import Naming, NodeView, Vendor, VendorShares, whole_or_partitions
from nodedevices_plugin.vendors.faults import FaultCondition
from nodedevices_plugin.vendors.nic import containers, faults, onload
from nodedevices_plugin.vendors.nic.configs import FILES, FLAGS, Configs
from nodedevices_plugin.vendors.nic.containers import NicContainers
from nodedevices_plugin.vendors.nic.onload import OnloadConfig
from nodedevices_plugin.vendors.nic.rdma_config import RdmaResource
from nodedevices_plugin.vendors.nic.sriov_config import SriovResource
from nodedevices_plugin.vendors.settings import FolderFiles, content_of


class Nic(Vendor):
    name = "nic"
    every_maker = True
    types = attributes.TYPES
    meanings = faults.MEANINGS
    counter_limits = faults.LIMITS
    flags = FLAGS
    files = FILES

    def units(self, devices: Sequence[InventoryDevice], *, strategy: str, excluded: Set[str]) -> Sequence[Unit]:
        """Return the whole NIC, or, with such a `strategy`, the partitions that another program's probe reports."""
        return [unit for device in devices for unit in whole_or_partitions(device, strategy)]

    def usual_name(self, unit: Unit, naming: Naming) -> str | None:
        return _configs(naming).name(unit.device.fact)

    def file_names(self, naming: Naming) -> Mapping[str, tuple[str, str]]:
        return _configs(naming).names()

    def shares(self, name: str, units: Sequence[Unit], naming: Naming) -> VendorShares | None:
        """rdmaHcaMax counts the containers of all HCAs together."""
        entry = _configs(naming).named(name)
        if isinstance(entry, OnloadConfig):
            return onload.shares(entry, units)
        if not isinstance(entry, RdmaResource) or entry.shares is None:
            return None
        if not entry.together:
            return VendorShares(counts=(entry.shares,) * len(units))
        return VendorShares.spread(entry.shares, len(units))

    def without_topology(self, naming: Naming) -> Collection[str]:
        configs = _configs(naming)
        entries = ((name, configs.named(name)) for name in configs.names())
        return [name for name, entry in entries if isinstance(entry, SriovResource) and entry.exclude_topology]

    def host_paths(self, files: Mapping[str, object]) -> Collection[str]:
        wanted = content_of(files, attributes.ONLOAD_FILE, OnloadConfig)
        return (*containers.HOST_PATHS, *(onload.host_paths(wanted) if wanted is not None else ()))

    def containers(self, node: NodeView) -> NicContainers:
        configs = Configs.for_node(node.local, node.files)
        return NicContainers.for_devices(node.inventory.devices, node.existing, configs)

    def node_files(self, resources: Sequence[OfferedResource], node: NodeView) -> FolderFiles:
        facts = {device.fact.id: device.fact for device in node.inventory.devices}
        found = containers.files(resources, facts, Configs.for_node(node.local, node.files))
        return FolderFiles(folder=containers.FOLDER, files=found)

    def read(self, readings: Readings) -> tuple[FaultCondition, ...]:
        return faults.read(readings)


def _configs(naming: Naming) -> Configs:
    return Configs.for_node(naming.local, naming.files)
