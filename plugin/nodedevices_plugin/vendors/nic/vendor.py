"""NICs of all makers as one vendor: physical and virtual functions, RDMA devices.

No NIC is offered by default: it may carry the node's own traffic. The configuration files of the plugins that the agent
replaces (configs) and rules of `resources.devices` decide what is offered, and under which names.

What a container gets, device nodes and PCIDEVICE_* variables, follows from who named the resource:
- the file of Mellanox' plugin: the RDMA character devices, with its permissions (rwm). No variable, as there, but where
  containers get single HCAs and have to know which.
- the file of the SR-IOV plugin: what its selector asks for, with the variables and the JSON of that plugin.
- Onload's file: what it says (onload.edits).
- a rule of `resources.devices`, or no rule: all nodes of the NIC, and the same variables.

And the files by which CNI plugins and Multus learn what a function is: the Device Information Specification 1.1 of the
Network Plumbing Working Group. One for each id of a resource of the SR-IOV plugin's file, as that plugin writes them;
besides, the physical function and the RDMA device, for which the specification has fields. Multus copies them into a
pod's network status.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from msgspec import Struct, field
from nodedevices_probe import nic as attributes
from nodedevices_probe.protocol import DeviceFact

from nodedevices_plugin.model import ContainerEdits, DeviceNode, Grant, InventoryDevice, OfferedResource, Unit
from nodedevices_plugin.vendors.base import (
    FolderFiles,
    Naming,
    NodeView,
    Vendor,
    VendorShares,
    content_of,
    gone,
    text,
    whole_or_partitions,
)
from nodedevices_plugin.vendors.nic import onload
from nodedevices_plugin.vendors.nic.configs import FILES, FLAGS, Configs, NamedEntry
from nodedevices_plugin.vendors.nic.faults import NicFaults
from nodedevices_plugin.vendors.nic.rdma_config import RdmaResource
from nodedevices_plugin.vendors.nic.selecting import is_hca, node_called, rdma_nodes, vfio_node
from nodedevices_plugin.vendors.nic.sriov_config import NET, VHOST, SriovResource, SriovSelector

RDMA_CM = "/dev/infiniband/rdma_cm"
VFIO = "/dev/vfio/vfio"
VHOST_NET, TUN = "/dev/vhost-net", "/dev/net/tun"
READ_WRITE, READ_WRITE_MAKE = "rw", "rwm"


class Nic(NicFaults, Vendor):
    name = "nic"
    every_maker = True
    types = attributes.TYPES
    flags = FLAGS
    files = FILES

    def units(self, devices: Sequence[InventoryDevice], *, strategy: str, excluded: Set[str]) -> Sequence[Unit]:
        """Return the whole NIC, or, with such a `strategy`, the partitions that another program's probe reports."""
        return [unit for device in devices for unit in whole_or_partitions(device, strategy)]

    def usual_name(self, unit: Unit, naming: Naming) -> str | None:
        return _configs(naming).name(unit.device.fact)

    def file_names(self, naming: Naming) -> Mapping[str, tuple[str, str]]:
        entries = _configs(naming).entries()
        return {name: (named.file, named.place) for name, named in entries.items()}

    def shares(self, name: str, units: Sequence[Unit], naming: Naming) -> VendorShares | None:
        """rdmaHcaMax counts the containers of all HCAs together."""
        found = _configs(naming).entries().get(name)
        entry = found.entry if found is not None else None
        if isinstance(entry, onload.OnloadConfig):
            return onload.shares(entry, units)
        if not isinstance(entry, RdmaResource) or entry.shares is None:
            return None
        if not entry.together:
            return VendorShares(counts=(entry.shares,) * len(units))
        return VendorShares.spread(entry.shares, len(units))

    def without_topology(self, naming: Naming) -> Collection[str]:
        entries = ((name, named.entry) for name, named in _configs(naming).entries().items())
        return [name for name, entry in entries if isinstance(entry, SriovResource) and entry.exclude_topology]

    def host_paths(self, files: Mapping[str, object]) -> Collection[str]:
        wanted = content_of(files, attributes.ONLOAD_FILE, onload.OnloadConfig)
        return (RDMA_CM, VFIO, VHOST_NET, TUN, *(onload.host_paths(wanted) if wanted is not None else ()))

    def containers(self, node: NodeView) -> NicContainers:
        facts: dict[str, DeviceFact] = {}
        for device in node.inventory.devices:
            facts[device.fact.id] = fact = device.fact
            facts |= {part.id: replace(fact, id=part.id, device_nodes=part.device_nodes) for part in fact.partitions}
        entries = Configs.for_node(node.local, node.files).entries()
        return NicContainers(facts=facts, existing=node.existing, entries=entries)

    def node_files(self, resources: Sequence[OfferedResource], node: NodeView) -> FolderFiles:
        facts = {device.fact.id: device.fact for device in node.inventory.devices}
        found = _device_files(resources, facts, Configs.for_node(node.local, node.files))
        return FolderFiles(folder=FOLDER, files=found)


def _configs(naming: Naming) -> Configs:
    return Configs.for_node(naming.local, naming.files)


# --- what containers get ----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What one of the plugin's information providers contributes for a device: its name and keys in the JSON, and
    nodes."""

    name: str
    keys: Mapping[str, str]
    nodes: tuple[DeviceNode, ...] = ()


class NicContainers(Struct, frozen=True, kw_only=True):
    """What containers of one node need for NICs. existing: those of the vendor's host_paths that exist. entries: of
    the files, by resource. facts: by id; for a partition those of its NIC with its own device nodes."""

    facts: Mapping[str, DeviceFact] = field(default_factory=dict)
    existing: Set[str] = frozenset()
    entries: Mapping[str, NamedEntry] = field(default_factory=dict)

    def edits(self, grant: Grant) -> ContainerEdits:
        """Raises AllocationError for what has left the node."""
        name, granted = grant.resource.name, dict.fromkeys(schedulable.part_id for schedulable in grant.ids)
        for id_ in granted:
            if id_ not in self.facts:
                raise gone(name, id_)
        facts = [self.facts[id_] for id_ in granted]
        entry = self.entries[name].entry if name in self.entries else None
        if not facts:
            return ContainerEdits()
        if isinstance(entry, onload.OnloadConfig):
            return onload.edits(entry, self.existing)
        if isinstance(entry, RdmaResource):
            return self._rdma(entry, name, facts)
        return self._functions(entry, name, facts)

    def _rdma(self, entry: RdmaResource, resource: str, facts: list[DeviceFact]) -> ContainerEdits:
        paths = [path for fact in facts for path in rdma_nodes(fact)]
        parts = {} if entry.together else {fact.id: [_generic(fact), self._rdma_part(fact)] for fact in facts}
        return ContainerEdits(
            devices=_nodes([*paths, *self._existing(RDMA_CM)], READ_WRITE_MAKE),
            envs=variables(resource, parts) if parts else {},
        )

    def _functions(self, entry: SriovResource | None, resource: str, facts: list[DeviceFact]) -> ContainerEdits:
        parts = {fact.id: self._parts(entry, fact) for fact in facts}
        by_path = {node.host_path: node for some in parts.values() for part in some for node in part.nodes}
        if entry is None:
            others = _nodes((path for fact in facts for path in fact.device_nodes if path not in by_path), READ_WRITE)
            by_path |= {node.host_path: node for node in others}
        return ContainerEdits(devices=tuple(by_path.values()), envs=variables(resource, parts))

    def _parts(self, entry: SriovResource | None, fact: DeviceFact) -> list[_Part]:
        """Return the parts in the plugin's order; without an entry of a file all that the NIC has."""
        selector = (entry.selector(fact) or SriovSelector()) if entry is not None else None
        rdma = selector.is_rdma if selector is not None else is_hca(fact)
        vdpa = selector.vdpa_type if selector is not None else text(fact, attributes.VDPA_TYPE)
        parts = [_generic(fact), *self._by_driver(fact)]
        if entry is not None and (said := entry.additional_info(fact.pci_bus_id or fact.id)):
            parts.append(_Part(name="extra", keys=said))
        if vdpa:
            parts.append(_vdpa(fact, vdpa))
        elif rdma:
            parts.append(self._rdma_part(fact))
        if selector is not None and selector.need_vhost_net and VHOST_NET in self.existing:
            nodes = _nodes(self._existing(VHOST_NET, TUN), READ_WRITE)
            parts.append(_Part(name="vhost", keys={"net-mount": VHOST_NET, "tun-mount": TUN}, nodes=nodes))
        return parts

    def _by_driver(self, fact: DeviceFact) -> list[_Part]:
        if (group := vfio_node(fact)) is not None:
            host, inside = group
            node = DeviceNode(container_path=inside, host_path=host, permissions=READ_WRITE)
            common = _nodes(self._existing(VFIO), READ_WRITE)
            return [_Part(name="vfio", keys={"mount": VFIO, "dev-mount": inside}, nodes=(*common, node))]
        if path := node_called(fact, "/dev/uio"):
            return [_Part(name="uio", keys={"mount": path}, nodes=_nodes([path], READ_WRITE))]
        return []

    def _rdma_part(self, fact: DeviceFact) -> _Part:
        paths = (*rdma_nodes(fact), *self._existing(RDMA_CM))
        names = ("uverbs", "umad", "issm", "rdma_cm")
        keys = {name: path for name in names for path in paths if f"/{name}" in path}
        keys["rdma_dev"] = text(fact, attributes.RDMA_DEVICE)
        return _Part(name="rdma", keys=keys, nodes=_nodes(paths, READ_WRITE))

    def _existing(self, *paths: str) -> tuple[str, ...]:
        return tuple(path for path in paths if path in self.existing)


def variables(resource: str, parts: Mapping[str, Iterable[_Part]]) -> Mapping[str, str]:
    """`PCIDEVICE_<PREFIX>_<NAME>` with the addresses in the order of the request, and `..._INFO` with what is known of
    each, as the plugin writes it: keys sorted, without spaces."""
    prefix, _, name = resource.partition("/")
    key = f"PCIDEVICE_{prefix}_{name}".replace(".", "_").upper()
    known = {device: {part.name: dict(part.keys) for part in some} for device, some in parts.items()}
    return {key: ",".join(parts), f"{key}_INFO": json.dumps(known, sort_keys=True, separators=(",", ":"))}


def _generic(fact: DeviceFact) -> _Part:
    return _Part(name="generic", keys={"deviceID": fact.id})


def _vdpa(fact: DeviceFact, kind: str) -> _Part:
    path = node_called(fact, "/dev/vhost-vdpa-") if kind == VHOST else ""
    return _Part(name="vdpa", keys={"mount": path} if path else {}, nodes=_nodes([path] if path else [], READ_WRITE))


def _nodes(paths: Iterable[str], permissions: str) -> tuple[DeviceNode, ...]:
    return tuple(
        DeviceNode(container_path=path, host_path=path, permissions=permissions) for path in dict.fromkeys(paths)
    )


FOLDER = "/var/run/k8s.cni.cncf.io/devinfo/dp"
VERSION = "1.1.0"


def _device_files(
    resources: Sequence[OfferedResource], facts: Mapping[str, DeviceFact], configs: Configs
) -> Mapping[str, str]:
    """Texts by name. What a pod holds under a name that the file no longer has keeps one, too."""
    found, entries = dict[str, str](), configs.entries()
    for resource in resources if configs.sriov.resources else ():
        entry = entries[resource.name].entry if resource.name in entries else None
        ids = resource.retained if entry is None else ()
        if isinstance(entry, SriovResource) and entry.device_type == NET:
            ids = (*resource.ids, *resource.retained)
        for schedulable in ids:
            fact = facts.get(schedulable.device_id)
            if fact is not None and fact.pci_bus_id:
                name = f"{resource.name}-{schedulable.id}-device.json".replace("/", "-")
                information = _information(configs.sriov.resource_for(fact), fact)
                found[name] = json.dumps(information, separators=(",", ":")) + "\n"
    return found


def _information(entry: SriovResource | None, fact: DeviceFact) -> dict[str, Any]:
    selector = (entry.selector(fact) if entry is not None else None) or SriovSelector()
    kind, said = "pci", {"pci-address": fact.pci_bus_id, "pf-pci-address": text(fact, attributes.PHYSICAL_FUNCTION)}
    if selector.vdpa_type:
        kind = "vdpa"
        said["parent-device"], said["path"] = text(fact, attributes.VDPA_DEVICE), text(fact, attributes.VDPA_PATH)
        said["driver"] = selector.vdpa_type
    else:
        said["vhost-net"] = VHOST_NET if selector.need_vhost_net else ""
        said["rdma-device"] = text(fact, attributes.RDMA_DEVICE) if selector.is_rdma else ""
    return {"type": kind, "version": VERSION, kind: {key: value for key, value in said.items() if value}}
