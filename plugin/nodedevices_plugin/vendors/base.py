"""The port of a vendor: what differs from one maker's devices to another's.

A vendor answers three questions: which things of its devices can be handed out (`units`), under which resource names
where no rule of `resources.devices` says otherwise (`usual_name`), and what a container needs for those that it is
given (`containers`). What only some vendors need is an optional interface each: EveryMaker, Elsewhere, OwnShares,
OwnTopology, Described, PairScore, GatheredPartitions, OtherNames, IndexIds, ClaimNames, HostPaths, Requirements,
CdiVendor, FileFormat; vendors.flags has OwnFlags, vendors.files OwnFiles, and vendors.faults FaultSource.

The agent does the rest, the same for all: rules, exclusion, sharing, ids, health, occupancy, preferred allocation, the
kubelet, reports. A device whose vendor is not registered, or that is of a type which its vendor does not know, needs no
vendor: it is offered under the name that a rule gives it, and its container gets the device nodes of the probe's line.

Everything here follows from its arguments. A device that left, or that answers nothing, is among the devices with its
last facts, and stays a unit: its id must stay listed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from nodedevices_api.sections import Injection, Resources, Sharing
from nodedevices_probe.protocol import DeviceFact, PciePath

from nodedevices_plugin.model import ContainerEdits, Grant, Inventory, InventoryDevice, Unit
from nodedevices_plugin.vendors.cdi import CdiEnvironment, CdiNeeds, CdiSource


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """What the agent knows of the node, besides its devices' health, when it decides what containers need.

    injection: the effective section. existing: those of HostPaths.host_paths that are there. local: what only this
    vendor's flags say (vendors.flags), a frozen value of the vendor's own type; None: nothing. files: what device files
    contain (vendors.files), by the option's name. cdi: what CDI finds for it.
    """

    inventory: Inventory = field(default_factory=Inventory)
    injection: Injection = field(default_factory=Injection)
    existing: Set[str] = frozenset()
    local: object = None
    files: Mapping[str, object] = field(default_factory=dict)
    cdi: CdiEnvironment = field(default_factory=CdiEnvironment)


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """What decides the usual names of one vendor's units. `strategy`: `partitions.strategy`. `prefix`: the domain to
    use (--resource-prefix), empty for the vendor's own. `local` and `files` as for NodeView."""

    strategy: str = "none"
    prefix: str = ""
    local: object = None
    files: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorValues:
    """What flags and device files say to vendors. `local`: of each vendor with flags of its own its value. `files`: the
    content of each device file, by the option's name. `withheld`: vendors whose devices have no name, because a file of
    theirs was never good: they might be meant to have others."""

    local: Mapping[str, object] = field(default_factory=dict)
    files: Mapping[str, object] = field(default_factory=dict)
    withheld: Set[str] = frozenset()

    def naming(self, vendor: str, *, strategy: str, prefix: str) -> Naming:
        return Naming(strategy=strategy, prefix=prefix, local=self.local.get(vendor), files=self.files)


NOTHING_SAID = VendorValues()


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

    def usual_name(self, unit: Unit, naming: Naming) -> str | None:
        """The resource that it is offered as; None: only a rule can give it a name."""
        ...

    def containers(self, node: NodeView) -> Containers: ...


# --- what only some vendors have to say ------------------------------------------------------------------------------
@runtime_checkable
class EveryMaker(Protocol):
    """A vendor of a kind of device that many makers build (NICs): devices of its types are its, whatever `vendor` the
    probe's line says, but for a maker that is itself registered and knows the type."""

    @property
    def every_maker(self) -> Literal[True]: ...


@runtime_checkable
class Elsewhere(Protocol):
    """A vendor of devices that are no hardware of the node (pools): none of them is broken here, so that a fault says
    only what its probe finds now."""

    @property
    def elsewhere(self) -> Literal[True]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorShares:
    """How often each unit of a resource is offered, in their order. together: whoever gets one share gets all devices
    of the resource."""

    counts: tuple[int, ...]
    together: bool = False


@runtime_checkable
class OwnShares(Protocol):
    """A vendor whose devices are shared by their nature: several containers use one, each for itself, with no mode of
    sharing. What a policy's `sharing.resources` says of the resource comes first."""

    def shares(self, name: str, units: Sequence[Unit], naming: Naming) -> VendorShares | None:
        """Of these units of its, which are all that the resource has of the vendor; None: they are offered whole.

        With `together` the kubelet's ids are shares of single devices, whose health they carry, but a container is
        given every healthy device of the resource: `Containers.edits` gets one id of each, NodeDevices shows the holder
        at all of them, and a change of the resource's devices waits for its pods. Raises PlanError."""
        ...


@runtime_checkable
class OwnTopology(Protocol):
    """A vendor with resources whose ids the kubelet is not told a NUMA node for."""

    def without_topology(self, name: str, naming: Naming) -> bool: ...


@runtime_checkable
class Described(Protocol):
    """A vendor whose devices exist because a device file describes them."""

    def described(self, fact: DeviceFact, files: Mapping[str, object]) -> bool:
        """Whether the file, as it applies (`files` as for NodeView), describes this device. One that it no longer does,
        that no pod holds and that the probe no longer lists, was taken out by whoever wrote the file: it is forgotten,
        and not missing."""
        ...


@runtime_checkable
class OwnNodes(Protocol):
    """A vendor whose devices have device nodes in common, which the probe lists with each of them."""

    def own_nodes(self, fact: DeviceFact) -> Collection[str]:
        """Those that no other device may have."""
        ...


@runtime_checkable
class PairScore(Protocol):
    """How well two of its devices work together, where that is more than PCIe (`path_score`)."""

    def pair_score(self, one: DeviceFact, other: DeviceFact) -> int:
        """The greater, the better; the same in both directions."""
        ...


@runtime_checkable
class GatheredPartitions(Protocol):
    """A vendor of whose partitions a container that asks for several should get those of as few devices as possible.
    Of other vendors they come from as many as possible."""

    def partition_score(self, fact: DeviceFact) -> int:
        """How well two partitions of this device work together, on the scale of `pair_score`."""
        ...


@runtime_checkable
class OtherNames(Protocol):
    """What else people call a unit in `sharing.resources[].devices`, beside its id and its index. In
    `resources.exclude` and `spec.unschedulable`, which have to mean the same device after a reboot, such a name is
    answered with the id."""

    def other_names(self, unit: Unit) -> Collection[str]: ...

    def without_share(self, name: str) -> str:
        """The name of a device, where this is the name of one of its shares; any other name as it is."""
        ...


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

    def host_paths(self, files: Mapping[str, object]) -> Collection[str]:
        """`files`: as for NodeView."""
        ...


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


def unlike_most(kinds: Mapping[str, Set[str]]) -> frozenset[str]:
    """Of devices by id, with the kinds that each has, those that are not of the one kind that most have; of as many the
    first one by name."""
    every = sorted(kind for some in kinds.values() for kind in some)
    most = max(every, key=every.count, default="")  # the first of equals
    return frozenset(id_ for id_, some in kinds.items() if some - {most})


def whole_or_partitions(device: InventoryDevice, strategy: str) -> list[Unit]:
    """The device, or, with a strategy other than none, its partitions. Never both: whoever has the device has its
    partitions. One whose partitions are all gone is whole again, and those that pods still hold stay listed."""
    parts = partitions(device) if strategy != "none" else []
    live = any(unit.id not in device.departed_partitions for unit in parts)
    return parts if live else [Unit(device), *parts]
