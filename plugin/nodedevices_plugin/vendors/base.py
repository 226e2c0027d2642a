"""The port of a vendor: what differs from one maker's devices to another's. Pure.

A vendor answers three questions: which things of its devices can be handed out (`units`), under which resource names
where no rule of `resources.devices` says otherwise (`usual_name`), and what a container needs for those that it is
given (`containers`). What only some vendors need is an optional interface each: PairScore,
OtherNames, IndexIds, ClaimNames, HostPaths, Requirements, CdiVendor, FileFormat; vendors.flags has OwnFlags, and
vendors.faults FaultSource.

The agent does the rest, the same for all: rules, exclusion, sharing, ids, health, occupancy, preferred allocation, the
kubelet, reports. A device whose vendor is not registered, or that is of a type which its vendor does not know, needs no
vendor: it is offered under the name that a rule gives it, and its container gets the device nodes of the probe's line.

Everything here follows from its arguments. A device that left, or that answers nothing, is among the devices with its
last facts, and stays a unit: its id must stay listed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from nodedevices_api.sections import Injection, Resources, Sharing
from nodedevices_probe.protocol import DeviceFact, PciePath

from nodedevices_plugin.model import ContainerEdits, Grant, Inventory, InventoryDevice, Unit
from nodedevices_plugin.vendors.cdi import CdiEnvironment, CdiNeeds, CdiSource


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """What the agent knows of the node, besides its devices' health, when it decides what containers need.

    injection: the effective section. existing: those of HostPaths.host_paths that are there. local: what only this
    vendor's flags say (vendors.flags), a frozen value of the vendor's own type; None: nothing. cdi: what CDI finds for
    it.
    """

    inventory: Inventory = field(default_factory=Inventory)
    injection: Injection = field(default_factory=Injection)
    existing: Set[str] = frozenset()
    local: object = None
    cdi: CdiEnvironment = field(default_factory=CdiEnvironment)


class Containers(Protocol):
    """What containers of this node need for devices of one vendor; a new value with each change."""

    def edits(self, grant: Grant) -> ContainerEdits:
        """For one container: `grant.ids` are the vendor's ids among those that it gets of the resource. Several shares
        of one device are one device. Raises AllocationError, whose text the pod's owner reads in its status."""
        ...


class Vendor(Protocol):
    """One maker. Frozen, without state: what is remembered is the agent's matter."""

    @property
    def name(self) -> str:
        """`vendor` of its devices in a probe's line."""
        ...

    @property
    def types(self) -> Collection[str]:
        """Of its devices, the types that it knows: gpu."""
        ...

    def units(self, devices: Sequence[InventoryDevice], *, strategy: str, excluded: Set[str]) -> Sequence[Unit]:
        """What can be handed out of these, its devices, by device then partition. `strategy`: `partitions.strategy`;
        `excluded`: ids that are not to be offered, which the agent leaves out afterwards. No two units of one answer
        may use the same part of a device. Raises PlanError where the strategy makes no sense with these devices."""
        ...

    def usual_name(self, unit: Unit, *, strategy: str, prefix: str) -> str | None:
        """The resource that it is offered as; None: only a rule can give it a name. `prefix`: the domain to use
        (--resource-prefix), empty for the vendor's own."""
        ...

    def containers(self, node: NodeView) -> Containers: ...


# --- what only some vendors have to say ------------------------------------------------------------------------------
@runtime_checkable
class PairScore(Protocol):
    """How well two of its devices work together, where that is more than PCIe (`path_score`)."""

    def pair_score(self, one: DeviceFact, other: DeviceFact) -> int:
        """The greater, the better; the same in both directions."""
        ...


@runtime_checkable
class OtherNames(Protocol):
    """What else people call a unit in `sharing.resources[].devices`, beside its id and its index."""

    def other_names(self, unit: Unit) -> Collection[str]: ...


@runtime_checkable
class IndexIds(Protocol):
    """A vendor whose plugins may give containers indices in the place of ids (injection.deviceIDStrategy index)."""

    def index_id(self, unit: Unit) -> str:
        """One unit's alone on a node."""
        ...


@runtime_checkable
class ClaimNames(Protocol):
    """A vendor that has a DRA driver, and how that calls devices in claims (`<driver>/<pool>/<device>`)."""

    @property
    def dra_driver(self) -> str:
        """gpu.nvidia.com"""
        ...

    def claim_name(self, unit: Unit, device: str) -> str:
        """One unit's alone on a node, as `claimed` writes it. `device`: its device's name in NodeDevices, `gpu-3`."""
        ...

    def claimed(self, name: str) -> Sequence[str]:
        """What the device of a claim is called here, the likeliest first; for a partition that is not listed its
        device, lest that be taken for free."""
        ...


@runtime_checkable
class HostPaths(Protocol):
    """What its containers get only if it is there: device nodes and files of the host, as globs."""

    @property
    def host_paths(self) -> Collection[str]: ...


@runtime_checkable
class Requirements(Protocol):
    """A vendor whose flags can require something of the host."""

    def check(self, node: NodeView) -> None:
        """Raises PlanError where it is not there: then a configuration is not taken, and what is offered stays."""
        ...


@runtime_checkable
class CdiVendor(Protocol):
    """A vendor whose containers may get devices by CDI name (vendors.cdi)."""

    @property
    def cdi_source(self) -> CdiSource: ...

    def cdi(self, node: NodeView) -> CdiNeeds:
        """What is needed of ours, beside the container toolkit's own specification (`node.cdi`), for devices of now."""
        ...


@runtime_checkable
class FileFormat(Protocol):
    """A vendor whose own plugin has a configuration file, which this agent reads in that plugin's place
    (settings.file): what its `resources` and `sharing` mean.

    Values as a YAML reader gives them go in; sections come out, or sentences in `problems`: all that is found, not the
    first. None: there is none, or it is wrong.
    """

    def file_resources(self, value: object, problems: list[str]) -> Resources | None: ...

    def file_sharing(self, value: object, problems: list[str]) -> Sharing | None: ...

    def rule_places(self, resources: Resources) -> Sequence[str]:
        """The path of each rule of such a section in the file, below `resources`."""
        ...


# --- what vendors share ----------------------------------------------------------------------------------------------
PATH_SCORES: Mapping[PciePath, int] = {
    PciePath.SYSTEM: 10,
    PciePath.NODE: 20,
    PciePath.HOSTBRIDGE: 30,
    PciePath.MULTIPLE: 40,
    PciePath.SINGLE: 50,
    PciePath.INTERNAL: 60,
}


def path_score(one: DeviceFact, other: DeviceFact) -> int:
    """How close two devices are on PCIe: 10 on different CPUs up to 60 on one board. Where the probe does not say, NUMA
    stands in; where that is not known either, 0, and the order of devices decides."""
    paths = [each.path for each in one.pcie if each.to == other.id]
    paths += [each.path for each in other.pcie if each.to == one.id]
    if paths:
        return PATH_SCORES[paths[0]]
    if one.numa_node is None or other.numa_node is None:
        return 0
    return PATH_SCORES[PciePath.NODE if one.numa_node == other.numa_node else PciePath.SYSTEM]


def partitions(device: InventoryDevice) -> list[Unit]:
    """The partitions of a device, by index."""
    return [Unit(device, part) for part in sorted(device.fact.partitions, key=lambda part: (part.index, part.id))]
