"""What a container needs for what it was granted: a pure function of the grant and the node. No look-up, no I/O.

The sharing mode decides what shares of a device need, the vendor what the devices themselves need
(vendors.base.Containers). Devices that no vendor knows need only the device nodes that the probe lists for them; a
partition those of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from msgspec import Struct, field
from msgspec.structs import replace
from nodedevices_api.sections import Injection

from nodedevices_plugin.cores.ids import is_counted
from nodedevices_plugin.model import ContainerEdits, Grant, Inventory
from nodedevices_plugin.sharing.base import Settings, merged, mode_of
from nodedevices_plugin.vendors.base import Containers, DeviceNodes, NodeView
from nodedevices_plugin.vendors.cdi import CdiEnvironment
from nodedevices_plugin.vendors.registry import NOTHING_SAID, UNKNOWN, VENDORS, Vendors, VendorValues


class NodeContainers(Struct, frozen=True, kw_only=True):
    """What containers of this node need. `vendors`: by device, its vendor's name; `by_vendor`: the needs for their
    devices; `modes`: the node's flags that sharing modes read."""

    vendors: Mapping[str, str] = field(default_factory=dict)
    by_vendor: Mapping[str, Containers] = field(default_factory=lambda: {UNKNOWN.name: DeviceNodes()})
    modes: Settings = field(default_factory=dict)
    known: Vendors = VENDORS


def node_containers(
    inventory: Inventory,
    injection: Injection,
    *,
    existing: Set[str] = frozenset(),
    values: VendorValues = NOTHING_SAID,
    cdi: Mapping[str, CdiEnvironment] | None = None,
    modes: Settings | None = None,
) -> NodeContainers:
    """Return it from the devices and the effective `injection` section. `values`: vendors' settings from flags and
    device files. `cdi`: the CDI environment, by vendor."""
    by_vendor = {
        vendor.name: vendor.containers(
            NodeView(
                inventory=inventory,
                injection=injection,
                existing=existing,
                local=values.local.get(vendor.name),
                files=values.files,
                cdi=(cdi or {}).get(vendor.name) or CdiEnvironment(),
            )
        )
        for vendor in (*values.known.every, UNKNOWN)
    }
    vendors = {device.fact.id: values.known.vendor_of(device.fact).name for device in inventory.devices}
    return NodeContainers(vendors=vendors, by_vendor=by_vendor, modes=modes or {}, known=values.known)


def edits(grant: Grant, node: NodeContainers) -> ContainerEdits:
    """Return what one container needs. Raises AllocationError; its text is shown in the pod's status."""
    if is_counted(grant.ids):  # the device comes with the shares of memory that the container has, too
        return ContainerEdits()
    parts = []
    grant = _all_of_it(grant)
    mode = mode_of(grant.resource)
    if mode is not None and (shares := [schedulable for schedulable in grant.ids if schedulable.replica is not None]):
        parts.append(mode.edits(replace(grant, ids=tuple(shares)), node.modes))
    # One that gets nothing of a vendor's resource is given a variable that says so: an image may request everything.
    ids = grant.ids or grant.resource.ids
    of_ids = {schedulable.id: node.vendors.get(schedulable.device_id, UNKNOWN.name) for schedulable in ids}
    for vendor in dict.fromkeys(of_ids.values()):
        own = tuple(schedulable for schedulable in grant.ids if of_ids[schedulable.id] == vendor)
        parts.append(node.by_vendor[vendor].edits(replace(grant, ids=own)))
    return merged(parts)


def _all_of_it(grant: Grant) -> Grant:
    """Return the grant for a share of all devices of the resource: one id of each device that is fit for use, or was
    granted."""
    if not grant.resource.together or not grant.ids:
        return grant
    granted = {(schedulable.device_id, schedulable.partition_id): schedulable for schedulable in grant.ids}
    fit = {
        (schedulable.device_id, schedulable.partition_id): schedulable
        for schedulable in reversed(grant.resource.ids)
        if schedulable.healthy
    }
    return replace(grant, ids=tuple((fit | granted)[key] for key in sorted(fit | granted, key=str)))
