"""The port of a vendor: everything in which one maker's devices differ from another's.

A vendor answers three questions: which things of its devices can be handed out (`units`), under which resource names
where no rule of `resources.devices` says otherwise (`usual_name`), and what a container needs for those that it is
given (`containers`). What only some vendors need is an optional interface each: EveryMaker, Elsewhere, OwnShares,
OwnTopology, Described, PairScore, GatheredPartitions, OtherNames, IndexIds, ClaimNames, HostPaths, Requirements,
ChecksNodes, CdiVendor, FileFormat; vendors.flags has OwnFlags, vendors.files OwnFiles, and vendors.faults FaultSource.

The agent does the rest, the same for all: rules, exclusion, sharing, ids, health, occupancy, preferred allocation, the
kubelet, reports. A device whose vendor is not registered, or that is of a type which its vendor does not know, needs no
vendor: it is offered under the name that a rule gives it, and its container gets the device nodes of the probe's line.

Every result follows from the arguments alone. A device that left, or that does not answer, is among the devices with
its last facts, and stays a unit: its id must stay listed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from typing import Literal, Protocol, runtime_checkable

from msgspec import Struct, field
from nodedevices_api.sections import Injection, Resources, Sharing
from nodedevices_probe.protocol import DeviceFact, PciePath

from nodedevices_plugin.model import ContainerEdits, Grant, Inventory, InventoryDevice, Unit
from nodedevices_plugin.model.optional import OptionalInterface
from nodedevices_plugin.vendors.cdi import CdiEnvironment, CdiNeeds, CdiSource


class NodeView(Struct, frozen=True, kw_only=True):
    """The node, without its devices' health, as the input for what containers need.

    injection: the effective section. existing: those of HostPaths.host_paths that exist. local: the settings of this
    vendor's own flags (vendors.flags), a frozen value of the vendor's type; None: it has none. files: the contents of
    device files (vendors.files), by the option's name. cdi: the vendor's CDI environment.
    """

    inventory: Inventory = field(default_factory=Inventory)
    injection: Injection = field(default_factory=Injection)
    existing: Set[str] = frozenset()
    local: object = None
    files: Mapping[str, object] = field(default_factory=dict)
    cdi: CdiEnvironment = field(default_factory=CdiEnvironment)


class Naming(Struct, frozen=True, kw_only=True):
    """The settings that decide the usual names of a vendor's units. `strategy`: `partitions.strategy`. `prefix`: the
    domain to use (--resource-prefix), empty for the vendor's own. `local` and `files`: as for NodeView."""

    strategy: str = "none"
    prefix: str = ""
    local: object = None
    files: Mapping[str, object] = field(default_factory=dict)


class Containers(Protocol):
    """Computes what containers of this node need for devices of one vendor; a new value after each change."""

    def edits(self, grant: Grant) -> ContainerEdits:
        """Return what one container needs. `grant.ids`: the vendor's ids among those that it gets of the resource;
        several shares of one device are one. Raises AllocationError; its text is shown in the pod's status."""
        ...


class Vendor(Protocol):
    """One maker. Frozen, without state: the agent keeps all state."""

    @property
    def name(self) -> str:
        """`vendor` of its devices in a probe's line."""
        ...

    @property
    def types(self) -> Collection[str]:
        """The types of devices that it knows: gpu."""
        ...

    def units(self, devices: Sequence[InventoryDevice], *, strategy: str, excluded: Set[str]) -> Sequence[Unit]:
        """Return the units that can be handed out of these devices of its, by device then partition. `strategy`:
        `partitions.strategy`. `excluded`: ids that are not to be offered; the agent leaves them out afterwards. No two
        units may use the same part of a device. Raises PlanError where the strategy does not go with these devices."""
        ...

    def usual_name(self, unit: Unit, naming: Naming) -> str | None:
        """Return the resource that the unit is offered as; None: only a rule can give it a name."""
        ...

    def containers(self, node: NodeView) -> Containers: ...


# --- optional interfaces ----------------------------------------------------------------------------------------------
@runtime_checkable
class EveryMaker(OptionalInterface, Protocol):
    """A vendor of a kind of device that many makers build (NICs): it has all devices of its types, of any `vendor` in
    the probe's line, except those of a maker that is itself registered and knows the type."""

    @property
    def every_maker(self) -> Literal[True]: ...


@runtime_checkable
class Elsewhere(OptionalInterface, Protocol):
    """A vendor of devices that are not hardware of the node (pools): they cannot break here, so a fault lasts only as
    long as its probe reports it."""

    @property
    def elsewhere(self) -> Literal[True]: ...


class VendorShares(Struct, frozen=True, kw_only=True):
    """How many shares each unit of a resource has, in the units' order. together: a container that gets one share gets
    all devices of the resource."""

    counts: tuple[int, ...]
    together: bool = False


@runtime_checkable
class OwnShares(OptionalInterface, Protocol):
    """A vendor whose devices are shared by their nature: several containers use one device, without a sharing mode. A
    policy's `sharing.resources` for the resource comes first."""

    def shares(self, name: str, units: Sequence[Unit], naming: Naming) -> VendorShares | None:
        """Return the shares of these units, which are all that the resource has of the vendor; None: offered whole.

        With `together` the kubelet's ids are shares of single devices and have their health, but a container is given
        every healthy device of the resource: `Containers.edits` gets one id of each, NodeDevices shows the holder at
        all of them, and a change of the resource's devices waits for its pods. Raises PlanError."""
        ...


@runtime_checkable
class OwnTopology(OptionalInterface, Protocol):
    """A vendor with resources whose ids are sent to the kubelet without a NUMA node."""

    def without_topology(self, name: str, naming: Naming) -> bool: ...


@runtime_checkable
class Described(OptionalInterface, Protocol):
    """A vendor whose devices exist because a device file describes them."""

    def described(self, fact: DeviceFact, files: Mapping[str, object]) -> bool:
        """True when the file in effect (`files` as for NodeView) describes this device. A device that it no longer
        describes, that no pod holds and that the probe no longer lists, was removed from the file on purpose: it is
        forgotten, not missing."""
        ...


@runtime_checkable
class OwnNodes(OptionalInterface, Protocol):
    """A vendor whose devices have device nodes in common, which the probe lists with each of them."""

    def own_nodes(self, fact: DeviceFact) -> Collection[str]:
        """Return the device nodes that no other device may have."""
        ...


@runtime_checkable
class PairScore(OptionalInterface, Protocol):
    """A vendor that knows better than PCIe (`path_score`) how well two of its devices work together."""

    def pair_score(self, one: DeviceFact, other: DeviceFact) -> int:
        """Return a score: the greater, the better; the same in both directions."""
        ...


@runtime_checkable
class GatheredPartitions(OptionalInterface, Protocol):
    """A vendor whose partitions go to a container from as few devices as possible. Other vendors' partitions come from
    as many as possible."""

    def partition_score(self, fact: DeviceFact) -> int:
        """Return how well two partitions of this device work together, on the scale of `pair_score`."""
        ...


@runtime_checkable
class OtherNames(OptionalInterface, Protocol):
    """A vendor whose units have further names in `sharing.resources[].devices`, beside id and index.
    `resources.exclude` and `spec.unschedulable` must mean the same device after a reboot, so they do not accept such a
    name; the message there gives the id."""

    def other_names(self, unit: Unit) -> Collection[str]: ...

    def without_share(self, name: str) -> str:
        """Return the device's name for the name of one of its shares; any other name unchanged."""
        ...


@runtime_checkable
class IndexIds(OptionalInterface, Protocol):
    """A vendor whose plugins may give containers indices instead of ids (injection.deviceIDStrategy index)."""

    def index_id(self, unit: Unit) -> str:
        """Return the unit's index; unique on a node."""
        ...


@runtime_checkable
class ClaimNames(OptionalInterface, Protocol):
    """A vendor with a DRA driver, which names devices in claims (`<driver>/<pool>/<device>`)."""

    @property
    def dra_driver(self) -> str:
        """gpu.nvidia.com"""
        ...

    def claim_name(self, unit: Unit, device: str) -> str:
        """Return the unit's name as `claimed` writes it, unique on a node. `device`: its device's name in NodeDevices,
        `gpu-3`."""
        ...

    def claimed(self, name: str) -> Sequence[str]:
        """Return our possible names for a claim's device, the likeliest first; for a partition that is not listed its
        device, which must not count as free."""
        ...


@runtime_checkable
class HostPaths(OptionalInterface, Protocol):
    """A vendor whose containers get device nodes and files of the host only where these exist."""

    def host_paths(self, files: Mapping[str, object]) -> Collection[str]:
        """Return them as globs. `files`: as for NodeView."""
        ...


@runtime_checkable
class Requirements(OptionalInterface, Protocol):
    """A vendor whose flags can require something of the host."""

    def check(self, node: NodeView) -> None:
        """Raise PlanError where a requirement is not met: then a configuration is refused, and the offer stays."""
        ...


@runtime_checkable
class ChecksNodes(OptionalInterface, Protocol):
    """A vendor whose probe cannot know which device nodes containers are to get: that depends on the configuration."""

    def missing_nodes(self, node: NodeView) -> Mapping[str, tuple[str, ...]]:
        """Return by device the nodes that its containers are to get and that are not there."""
        ...


@runtime_checkable
class CdiVendor(OptionalInterface, Protocol):
    """A vendor whose containers may get devices by CDI name (vendors.cdi)."""

    @property
    def cdi_source(self) -> CdiSource: ...

    def cdi(self, node: NodeView) -> CdiNeeds:
        """Return which of our specifications the current devices need, beside the container toolkit's own
        (`node.cdi`)."""
        ...


@runtime_checkable
class FileFormat(OptionalInterface, Protocol):
    """A vendor whose own plugin has a configuration file that this agent reads as well (settings.file). The vendor
    translates its `resources` and `sharing`.

    The input is a value as a YAML reader gives it; the result a section, or None: there is none, or it is wrong. All
    errors are added to `problems`, not only the first.
    """

    def file_resources(self, value: object, problems: list[str]) -> Resources | None: ...

    def file_sharing(self, value: object, problems: list[str]) -> Sharing | None: ...

    def rule_places(self, resources: Resources) -> Sequence[str]:
        """Return the path of each rule of such a section in the file, below `resources`."""
        ...


# --- helpers for several vendors --------------------------------------------------------------------------------------
PATH_SCORES: Mapping[PciePath, int] = {
    PciePath.SYSTEM: 10,
    PciePath.NODE: 20,
    PciePath.HOSTBRIDGE: 30,
    PciePath.MULTIPLE: 40,
    PciePath.SINGLE: 50,
    PciePath.INTERNAL: 60,
}


def path_score(one: DeviceFact, other: DeviceFact) -> int:
    """Return how close two devices are on PCIe: from 10 on different CPUs to 60 on one board. Where the probe does not
    report it, NUMA nodes decide; where these are not known either, it is 0, and the order of devices decides."""
    paths = [each.path for each in one.pcie if each.to == other.id]
    paths += [each.path for each in other.pcie if each.to == one.id]
    if paths:
        return PATH_SCORES[paths[0]]
    if one.numa_node is None or other.numa_node is None:
        return 0
    return PATH_SCORES[PciePath.NODE if one.numa_node == other.numa_node else PciePath.SYSTEM]


def partitions(device: InventoryDevice) -> list[Unit]:
    """Return the partitions of a device, by index."""
    return [Unit(device, part) for part in sorted(device.fact.partitions, key=lambda part: (part.index, part.id))]


def unlike_most(kinds: Mapping[str, Set[str]]) -> frozenset[str]:
    """Return the devices that are not of the most frequent kind. `kinds`: by device id, the kinds that it has. Of
    equally frequent kinds the first by name counts."""
    every = sorted(kind for some in kinds.values() for kind in some)
    most = max(every, key=every.count, default="")  # the first of equals
    return frozenset(id_ for id_, some in kinds.items() if some - {most})


def whole_or_partitions(device: InventoryDevice, strategy: str) -> list[Unit]:
    """Return the device, or, with a strategy other than none, its partitions. Never both: a container with the device
    has its partitions. When all partitions are gone, the device is whole again, and those that pods still hold stay
    listed."""
    parts = partitions(device) if strategy != "none" else []
    live = any(unit.id not in device.departed_partitions for unit in parts)
    return parts if live else [Unit(device), *parts]
