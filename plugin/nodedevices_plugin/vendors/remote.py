"""Remote pools as a vendor: names, counts and variables are those of the configuration file, as for the probe.

A container gets variables and nothing else. What they say follows from the file and the number of ids alone, so that
which program of which pod uses what stays the pool's matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field
from nodedevices_probe import remote as attributes
from nodedevices_probe.files import rendered
from nodedevices_probe.protocol import DeviceFact, Readings
from nodedevices_probe.remote.config import RemoteConfig, RemotePool, parse

from nodedevices_plugin.model import AllocationError, ContainerEdits, Grant, HealthState, Unit
from nodedevices_plugin.vendors.base import Naming, NodeView, Vendor, VendorShares, text
from nodedevices_plugin.vendors.faults import FaultCondition
from nodedevices_plugin.vendors.settings import DeviceFile, content_of

DEFAULT_DOMAIN = "remote.nodedevices.io"


class Remote(Vendor):
    name = attributes.VENDOR
    elsewhere = True
    types = frozenset({attributes.TYPE})
    files = (DeviceFile(name=attributes.FILE, type=RemoteConfig, parse=parse),)

    def usual_name(self, unit: Unit, naming: Naming) -> str | None:
        config = _config(naming.files)
        pool = _pool(config, unit.device.fact)
        if pool is None or "/" in pool.name:
            return None if pool is None else pool.name
        return f"{config.domain or naming.prefix or DEFAULT_DOMAIN}/{pool.name}"

    def shares(self, name: str, units: Sequence[Unit], naming: Naming) -> VendorShares | None:
        config = _config(naming.files)
        pools = [_pool(config, unit.device.fact) for unit in units]
        return VendorShares(counts=tuple(1 if pool is None else pool.count for pool in pools))

    def described(self, fact: DeviceFact, files: Mapping[str, object]) -> bool:
        return attributes.FILE not in files or _pool(_config(files), fact) is not None

    def containers(self, node: NodeView) -> RemoteContainers:
        config = _config(node.files)
        return RemoteContainers(pools={device.fact.id: _pool(config, device.fact) for device in node.inventory.devices})

    def read(self, readings: Readings) -> tuple[FaultCondition, ...]:
        known = attributes.UNCHECKED not in readings.conditions
        return (
            FaultCondition(
                reason="ControllerUnreachable",
                state=HealthState.UNHEALTHY,
                message="the controller of the pool cannot be reached; status.problems has what was tried",
                evident=attributes.UNREACHABLE in readings.conditions if known else None,
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


def _config(files: Mapping[str, object]) -> RemoteConfig:
    return content_of(files, attributes.FILE, RemoteConfig) or RemoteConfig()


def _pool(config: RemoteConfig, fact: DeviceFact) -> RemotePool | None:
    name = text(fact, attributes.POOL)
    return next((pool for pool in config.pools if pool.name == name), None)
