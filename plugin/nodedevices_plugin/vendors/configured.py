"""Devices that exist by a configuration file alone: names, counts and what containers get are those of the file.

Generic devices of the node: the probe reads the same file, live, and says of each device which group of which entry it
is, by a hash of what it searched for. A device of a group that this agent's file does not have, because one of the two
has read a newer one, has no name until both have.

Remote pools: a container gets variables and nothing else. What they say follows from the file and the number of ids
alone, so that which program of which pod uses what stays the pool's matter.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set

from msgspec import Struct, field
from nodedevices_probe import generic as attributes, remote
from nodedevices_probe.files import rendered, rendered_path
from nodedevices_probe.generic.config import ConfigEntry, DeviceGroup, GenericConfig, PathPart, find, parse
from nodedevices_probe.generic.glob import is_pattern, match_text
from nodedevices_probe.protocol import DeviceFact, Readings
from nodedevices_probe.remote.config import RemoteConfig, RemotePool, parse as parse_pools

from nodedevices_plugin.model import (
    AllocationError,
    ContainerEdits,
    DeviceNode,
    Grant,
    HealthState,
    InventoryDevice,
    Mount,
    Unit,
)
from nodedevices_plugin.vendors.base import DeviceFile, Naming, NodeView, Vendor, VendorShares, gone, text, value_of
from nodedevices_plugin.vendors.faults import FaultCondition, node_missing

GENERIC_DOMAIN = "generic.nodedevices.io"


class Generic(Vendor):
    name = attributes.VENDOR
    types = frozenset({attributes.TYPE})
    files = (DeviceFile(name=attributes.FILE, type=GenericConfig, parse=parse),)

    def units(self, devices: Sequence[InventoryDevice], *, strategy: str, excluded: Set[str]) -> Sequence[Unit]:
        """Not a device with a node that was a missing one's alone: a pod may have that one. So it is where matches are
        paired by their order, and the first one left."""
        gone = {node for device in devices if not device.present for node in self._lasting_nodes(device.fact)}
        return [
            Unit(device)
            for device in devices
            if not device.present or gone.isdisjoint(self._lasting_nodes(device.fact))
        ]

    def usual_name(self, unit: Unit, naming: Naming) -> str | None:
        config = value_of(naming.files.get(attributes.FILE), GenericConfig)
        found = _found(config, unit.device.fact)
        if found is None:
            return None
        name = found[0].name
        return name if "/" in name else f"{config.domain or naming.prefix or GENERIC_DOMAIN}/{name}"

    def shares(self, name: str, units: Sequence[Unit], naming: Naming) -> VendorShares | None:
        config = value_of(naming.files.get(attributes.FILE), GenericConfig)
        found = [_found(config, unit.device.fact) for unit in units]
        counts = tuple(match[1].count if match is not None else 1 for match in found)
        return VendorShares(counts=counts) if max(counts, default=1) > 1 else None

    def described(self, fact: DeviceFact, files: Mapping[str, object]) -> bool:
        return (
            attributes.FILE not in files
            or _found(value_of(files.get(attributes.FILE), GenericConfig), fact) is not None
        )

    def own_nodes(self, fact: DeviceFact) -> Collection[str]:
        own = fact.extra.get(attributes.EXCLUSIVE)
        return fact.device_nodes[: own.integer] if own is not None and own.integer is not None else ()

    def _lasting_nodes(self, fact: DeviceFact) -> Collection[str]:
        """Return the nodes that it has alone; not a USB device's: the kernel gives its numbers out again."""
        return () if attributes.PORT in fact.extra else self.own_nodes(fact)

    def containers(self, node: NodeView) -> GenericContainers:
        facts = {device.fact.id: device.fact for device in node.inventory.devices}
        return GenericContainers(facts=facts, config=value_of(node.files.get(attributes.FILE), GenericConfig))

    def read(self, readings: Readings) -> tuple[FaultCondition, ...]:
        return (node_missing(readings),)


class GenericContainers(Struct, frozen=True, kw_only=True):
    """`facts`: of all devices, by id."""

    facts: Mapping[str, DeviceFact] = field(default_factory=dict)
    config: GenericConfig = field(default_factory=GenericConfig)

    def edits(self, grant: Grant) -> ContainerEdits:
        """Return what one container needs. The values that several devices have for one variable are joined by commas.
        Raises AllocationError for devices that have left the node, and for two files at one path of the container."""
        envs: dict[str, dict[str, None]] = {}
        devices: list[DeviceNode] = []
        mounts: list[Mount] = []
        names: list[str] = []
        for device_id in dict.fromkeys(schedulable.device_id for schedulable in grant.ids):
            fact = self.facts.get(device_id)
            if fact is None:
                raise gone(grant.resource.name, device_id)
            found = _found(self.config, fact)
            group = found[1] if found is not None else DeviceGroup()
            values = {
                "id": fact.id,
                "index": str(fact.index),
                "match": text(fact, attributes.MATCH),
                "serial": text(fact, attributes.SERIAL),
                "count": str(len(grant.ids)),
            }
            own_devices, own_mounts = _nodes(fact, group, values), _mounts(fact, group, values)
            paths = [node.container_path for node in own_devices] + [mount.container_path for mount in own_mounts]
            values["path"] = next(iter(paths), "")
            devices += own_devices
            mounts += own_mounts
            if found is not None:
                entry = found[0]
                mounts += [
                    Mount(
                        host_path=rendered_path(mount.host_path, values),
                        container_path=rendered_path(mount.container_path, values),
                        read_only=mount.read_only,
                    )
                    for mount in entry.mounts
                ]
                names += [rendered_path(device, values) for device in entry.cdi_devices]
                for name, template in entry.env.items():
                    envs.setdefault(name, {})[rendered(template, values)] = None
        _check(grant, devices, mounts)
        return ContainerEdits(
            envs={name: ",".join(texts) for name, texts in envs.items()},
            mounts=tuple(dict.fromkeys(mounts)),
            devices=tuple(dict.fromkeys(devices)),
            cdi_devices=tuple(dict.fromkeys(names)),
        )


def _found(config: GenericConfig, fact: DeviceFact) -> tuple[ConfigEntry, DeviceGroup] | None:
    return find(config, text(fact, attributes.ENTRY), text(fact, attributes.SHAPE))


def _nodes(fact: DeviceFact, group: DeviceGroup, values: Mapping[str, str]) -> list[DeviceNode]:
    """Return the device nodes as the parts that they come from define them; a node of no known part unchanged."""
    parts: Sequence[str] = text(fact, attributes.PARTS).split(",")
    result = []
    for at, node in enumerate(fact.device_nodes):
        number = int(parts[at]) if at < len(parts) and parts[at].isdecimal() else -1
        path, permissions = node, "rw"
        if 0 <= number < len(group.paths):
            part = group.paths[number]
            own = {**values, "match": match_text(node, part.path)}
            path, permissions = _in_container(part, node, own), part.permissions
        elif 0 <= number < len(group.usb):
            permissions = group.usb[number].permissions
        result.append(DeviceNode(container_path=path, host_path=node, permissions=permissions))
    return result


def _in_container(part: PathPart, path: str, values: Mapping[str, str]) -> str:
    """Return the path in the container of one of a part's paths on the host. A node that a folder stands for is in the
    folder's place."""
    below = path.removeprefix(part.path) if path.startswith(f"{part.path}/") and not is_pattern(part.path) else ""
    top = path.removesuffix(below)
    there = rendered_path(part.container_path, values) or top
    return f"{there}{top.rpartition('/')[2]}{below}" if there.endswith("/") else f"{there}{below}"


def _mounts(fact: DeviceFact, group: DeviceGroup, values: Mapping[str, str]) -> list[Mount]:
    """The parts that are mounted: at their paths in the file, or at those that the probe found for wildcards."""
    there = text(fact, attributes.MOUNTS).split(",")
    found = [(part, number) for number, part in enumerate(group.paths) if part.mount and str(number) in there]
    paths = [(part, text(fact, attributes.mount_of(number)) or part.path) for part, number in found]
    return [
        Mount(
            host_path=path,
            container_path=_in_container(part, path, {**values, "match": match_text(path, part.path)}),
            read_only=part.read_only,
        )
        for part, path in paths
        if not is_pattern(path)
    ]


def _check(grant: Grant, devices: Collection[DeviceNode], mounts: Collection[Mount]) -> None:
    """Raises AllocationError where one path of the container would be two files of the host."""
    there: dict[str, str] = {}
    pairs = [(device.container_path, device.host_path) for device in devices]
    pairs += [(mount.container_path, mount.host_path) for mount in mounts]
    for path, on_host in pairs:
        if there.setdefault(path, on_host) != on_host:
            raise AllocationError(
                f"{grant.resource.name}: {there[path]} and {on_host} would both be {path} in the container. "
                "Request one, or give its containerPath a field, such as {{match}}, in the configuration file."
            )


# --- remote pools -----------------------------------------------------------------------------------------------------
REMOTE_DOMAIN = "remote.nodedevices.io"


class Remote(Vendor):
    name = remote.VENDOR
    elsewhere = True
    types = frozenset({remote.TYPE})
    files = (DeviceFile(name=remote.FILE, type=RemoteConfig, parse=parse_pools),)

    def usual_name(self, unit: Unit, naming: Naming) -> str | None:
        config = value_of(naming.files.get(remote.FILE), RemoteConfig)
        pool = _pool(config, unit.device.fact)
        if pool is None or "/" in pool.name:
            return None if pool is None else pool.name
        return f"{config.domain or naming.prefix or REMOTE_DOMAIN}/{pool.name}"

    def shares(self, name: str, units: Sequence[Unit], naming: Naming) -> VendorShares | None:
        config = value_of(naming.files.get(remote.FILE), RemoteConfig)
        pools = [_pool(config, unit.device.fact) for unit in units]
        return VendorShares(counts=tuple(1 if pool is None else pool.count for pool in pools))

    def described(self, fact: DeviceFact, files: Mapping[str, object]) -> bool:
        return remote.FILE not in files or _pool(value_of(files.get(remote.FILE), RemoteConfig), fact) is not None

    def containers(self, node: NodeView) -> RemoteContainers:
        config = value_of(node.files.get(remote.FILE), RemoteConfig)
        return RemoteContainers(pools={device.fact.id: _pool(config, device.fact) for device in node.inventory.devices})

    def read(self, readings: Readings) -> tuple[FaultCondition, ...]:
        known = remote.UNCHECKED not in readings.conditions
        return (
            FaultCondition(
                reason="ControllerUnreachable",
                state=HealthState.UNHEALTHY,
                message="the controller of the pool cannot be reached; status.problems has what was tried",
                evident=remote.UNREACHABLE in readings.conditions if known else None,
                action="Inspect",
                ends_by_itself=True,
            ),
        )


class RemoteContainers(Struct, frozen=True, kw_only=True):
    """`pools`: by the device's id; None: the file has it no more."""

    pools: Mapping[str, RemotePool | None] = field(default_factory=dict)

    def edits(self, grant: Grant) -> ContainerEdits:
        """Raises AllocationError for a pool that the file has no more."""
        envs: dict[str, str] = {}
        for device_id in dict.fromkeys(schedulable.device_id for schedulable in grant.ids):
            pool = self.pools.get(device_id)
            if pool is None:
                raise AllocationError(
                    f"{grant.resource.name}: {device_id} is no longer in this node's configuration. "
                    "Delete the pod, so that it is scheduled again."
                )
            own = [schedulable for schedulable in grant.ids if schedulable.device_id == device_id]
            values = {"count": str(len(own)), "controller": pool.controller, "id": device_id}
            envs |= {name: rendered(template, values) for name, template in pool.env.items()}
        return ContainerEdits(envs=envs)


def _pool(config: RemoteConfig, fact: DeviceFact) -> RemotePool | None:
    name = text(fact, remote.POOL)
    return next((pool for pool in config.pools if pool.name == name), None)
