"""The port of a vendor: everything in which one maker's devices differ from another's.

A vendor derives from `Vendor`, whose methods are the defaults, and overrides what differs: which things of its devices
can be handed out (`units`), under which resource names where no rule of `resources.devices` says otherwise
(`usual_name`), what a container needs for those that it is given (`containers`), and which faults there are
(vendors.faults). Only `name` and `types` must be set.

The agent does the rest, the same for all: rules, exclusion, sharing, ids, health, occupancy, preferred allocation, the
kubelet, reports. A device whose vendor is not registered, or that is of a type which its vendor does not know, needs no
vendor: it is offered under the name that a rule gives it, and its container gets the device nodes of the probe's line.

Every result follows from the arguments alone. A device that left, or that does not answer, is among the devices with
its last facts, and stays a unit: its id must stay listed.

What a vendor brings of settings:

Flags: settings of the node that only one maker's devices need. A vendor adds options to the agent's table
(settings.options): flags, their variables, their keys in the configuration file. They are read, checked and refused as
the agent's own are. The vendor translates their values: to sections of the node's configuration, which a policy
replaces, and to a value of its own type, which it gets with every decision (NodeView.local).

Device files: makers' device plugins have files that configure devices (config.json of RDMA's and SR-IOV's,
gpu_config.json), and devices that exist by configuration alone need one. All are in one folder (`--devices-dir`), each
by its own name. The agent reads the folder again every second, and parses a file by what the vendor brings. A file that
is wrong is refused: what was good last stays, across restarts, too, and where nothing ever was, the vendor's devices
have no name and all others go on. One that sets sections concerns all of the node, and is refused with the whole
configuration then. A file that was never there means nothing. Of one that is there no more what was good last stays,
since nobody can say that it is gone on purpose: whoever wants that writes `null` into it first.

Both are part of the configuration: compared, and saved in the state file. A file's content decides ids, so that a
change of it waits as any other does. It is a file of the node and no field of a policy where it can name mounts or
commands: who may write it is as good as root on the node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from typing import Any, Protocol, Self, TypeVar

from msgspec import Struct, field
from nodedevices_api.sections import Injection
from nodedevices_common.options import Option, Values
from nodedevices_probe.protocol import DeviceFact, PciePath

from nodedevices_plugin.model import (
    AllocationError,
    ContainerEdits,
    DeviceNode,
    Grant,
    Inventory,
    InventoryDevice,
    OfferedResource,
    Unit,
)
from nodedevices_plugin.vendors.cdi import CdiEnvironment, CdiNeeds, CdiSource
from nodedevices_plugin.vendors.faults import FaultSource


# --- settings ---------------------------------------------------------------------------------------------------------
def _no_sections(_said: object) -> Mapping[str, Any]:
    return {}


class DeviceFile(Struct, frozen=True, kw_only=True):
    """`name`: in the folder. `parse`: returns the content, or raises InputError with all errors.
    `type`: the type of the content, a frozen dataclass or model of plain values. `sections`: returns the sections of
    the configuration that a content sets, as a policy writes them; a flag, the agent's configuration file and a policy
    replace each."""

    name: str
    type: type[Any]
    parse: Callable[[bytes], object]
    sections: Callable[[Any], Mapping[str, Any]] = _no_sections

    @property
    def sets_sections(self) -> bool:
        return self.sections is not _no_sections


C = TypeVar("C")


def content_of(files: Mapping[str, object], name: str, type_: type[C]) -> C | None:
    """Return what the device file of this name has; None: there is none."""
    found = files.get(name)
    return found if isinstance(found, type_) else None


def value_of(value: object, type_: type[C]) -> C:
    """Return settings of flags (`local` of a NodeView or a Naming), or what a device file has; where there is none, its
    type's defaults."""
    return value if isinstance(value, type_) else type_()


class DeviceFileOutcome(Struct, frozen=True, kw_only=True):
    """One device file as it was read last: its content, None for `null`, or why it cannot be used. `field`: where the
    error is. `file`: what it is called in the folder, where that is this node's own name of it."""

    content: object = None
    error: str = ""
    field: str = ""
    file: str = ""


# Those that are there, by name. FOLDER: it cannot be read, and what is there is not known. Other names are unknown.
DeviceFiles = Mapping[str, DeviceFileOutcome]
FOLDER = "."
NOT_READ: DeviceFiles = {FOLDER: DeviceFileOutcome(error="not read yet")}


class FolderFiles(Struct, frozen=True, kw_only=True):
    """Files that a vendor keeps on the node for other programs, such as CNI plugins that read a device's facts.
    `files`: texts by name: all files that we want in that folder. Other programs' files there stay.

    The agent keeps them up to date (host.node_files): written before an id is offered, replaced as devices change,
    removed when nothing needs them. A folder that cannot be written is reported, and withholds no id.
    """

    folder: str
    files: Mapping[str, str] = field(default_factory=dict)


class VendorFlags(Struct, frozen=True, kw_only=True):
    """`group`: the group of its options in --help, headed by `title`; an option may be in one of the agent's groups,
    too. Names, variables and keys must be unique among those of the agent and all vendors. `variables`: environment
    variables without a flag; `settings` finds their text by their name. What `settings` refuses, the chart refuses, too
    (tests/helmchart).

    settings: returns the vendor's settings for these values, a `settings_type`: a frozen dataclass of plain values,
    each with a default, so that a state file from before a new field can be read. With `decides_ids: ClassVar[bool] =
    True` it decides names or ids, and a change of it waits for pods as any other does. sections: returns the sections
    of the configuration that the values set, as a policy writes them; none without a value. Both raise PlanError for
    values that are not possible.
    """

    group: str
    title: str
    settings: Callable[[Values], object]
    settings_type: type[Any]
    sections: Callable[[Values], Mapping[str, Any]] = _no_sections
    options: tuple[Option, ...] = ()
    variables: tuple[str, ...] = ()


# --- the port ---------------------------------------------------------------------------------------------------------
class NodeView(Struct, frozen=True, kw_only=True):
    """The node, without its devices' health, as the input for what containers need.

    injection: the effective section. existing: those of Vendor.host_paths that exist. local: the settings of this
    vendor's own flags, a frozen value of the vendor's type; None: it has none. files: the contents of device files, by
    name (vendors.base). cdi: the vendor's CDI environment.
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


class VendorShares(Struct, frozen=True, kw_only=True):
    """How many shares each unit of a resource has, in the units' order. together: a container that gets one share gets
    all devices of the resource."""

    counts: tuple[int, ...]
    together: bool = False

    @classmethod
    def spread(cls, shares: int, units: int) -> Self:
        """Return `shares` of all units together: the kubelet's ids are spread evenly over them."""
        least, more = divmod(shares, units)
        return cls(counts=tuple(least + (place < more) for place in range(units)), together=True)


class Containers(Protocol):
    """Computes what containers of this node need for devices of one vendor; a new value after each change."""

    def edits(self, grant: Grant) -> ContainerEdits:
        """Return what one container needs. `grant.ids`: the vendor's ids among those that it gets of the resource;
        several shares of one device are one. Raises AllocationError; its text is shown in the pod's status."""
        ...


class Vendor(FaultSource):
    """One maker. Without state: the agent keeps all state."""

    name: str = ""  # `vendor` of its devices in a probe's line
    types: Collection[str] = ()  # the types of devices that it knows: gpu
    every_maker: bool = False  # it has all devices of its types, but those of a registered maker that knows the type
    elsewhere: bool = False  # its devices are no hardware of the node (pools): a fault lasts while the probe reports it
    flags: VendorFlags | None = None  # its own flags
    files: tuple[DeviceFile, ...] = ()  # their names are unique among all vendors'
    cdi_source: CdiSource | None = None  # its containers may get devices by CDI name (vendors.cdi)
    dra_driver: str = ""  # which names its devices in claims (`<driver>/<pool>/<device>`): gpu.nvidia.com

    # --- what is offered, under which names ---------------------------------------------------------------------------
    def units(self, devices: Sequence[InventoryDevice], *, strategy: str, excluded: Set[str]) -> Sequence[Unit]:
        """Return the units that can be handed out of these devices of its, by device then partition. `strategy`:
        `partitions.strategy`. `excluded`: ids that are not to be offered; the agent leaves them out afterwards. No two
        units may use the same part of a device. Raises PlanError where the strategy does not go with these devices."""
        return [Unit(device) for device in devices]

    def usual_name(self, unit: Unit, naming: Naming) -> str | None:
        """Return the resource that the unit is offered as; None: only a rule can give it a name."""
        return None

    def shares(self, name: str, units: Sequence[Unit], naming: Naming) -> VendorShares | None:
        """Return the shares of these units, which are all that the resource has of the vendor, where several containers
        use one device by its nature, without a sharing mode; None: they are offered whole. A policy's
        `sharing.resources` for the resource comes first.

        With `together` the kubelet's ids are shares of single devices and have their health, but a container is given
        every healthy device of the resource: `Containers.edits` gets one id of each, NodeDevices shows the holder at
        all of them, and a change of the resource's devices waits for its pods. Raises PlanError."""
        return None

    def without_topology(self, naming: Naming) -> Collection[str]:
        """Return the resources whose ids are sent to the kubelet without a NUMA node."""
        return ()

    def file_names(self, naming: Naming) -> Mapping[str, tuple[str, str]]:
        """Return for each resource that a device file names the name of the file, and the entry's place there:
        `configList[1]`. An entry that no device of the node has is reported."""
        return {}

    def other_names(self, unit: Unit) -> Collection[str]:
        """Return the unit's names in `sharing.resources[].devices` beside id and index. `resources.exclude` and
        `spec.unschedulable` must mean the same device after a reboot, so they do not accept such a name; the message
        there gives the id."""
        return ()

    def without_share(self, name: str) -> str:
        """Return the device's name for the name of one of its shares; any other name unchanged."""
        return name

    def index_id(self, unit: Unit) -> str | None:
        """Return the unit's index, unique on a node, where the vendor's plugins may give containers indices instead of
        ids (injection.deviceIDStrategy index); None: they do not."""
        return None

    def claim_name(self, unit: Unit, device: str) -> str:
        """Return the unit's name as `claimed` writes it, unique on a node. `device`: its device's name in NodeDevices,
        `gpu-3`."""
        return device

    def claimed(self, name: str) -> Sequence[str]:
        """Return our possible names for a claim's device, the likeliest first; for a partition that is not listed its
        device, which must not count as free."""
        return (name,)

    # --- which devices go together ------------------------------------------------------------------------------------
    def pair_score(self, one: DeviceFact, other: DeviceFact) -> int:
        """Return how well two of its devices work together: the greater, the better; the same in both directions."""
        return path_score(one, other)

    def partition_score(self, fact: DeviceFact) -> int | None:
        """Return how well two partitions of this device work together, on the scale of `pair_score`, where a container
        gets partitions from as few devices as possible; None: from as many as possible."""
        return None

    # --- the devices of a node ----------------------------------------------------------------------------------------
    def described(self, fact: DeviceFact, files: Mapping[str, object]) -> bool:
        """True when the file in effect (`files` as for NodeView) describes this device, or none has to. A device that
        it no longer describes, that no pod holds and that the probe no longer lists, was removed from the file on
        purpose: it is forgotten, not missing."""
        return True

    def own_nodes(self, fact: DeviceFact) -> Collection[str]:
        """Return the device nodes that no other device may have."""
        return fact.device_nodes

    def missing_nodes(self, node: NodeView) -> Mapping[str, tuple[str, ...]]:
        """Return by device the nodes that its containers are to get and that are not there, where the probe cannot know
        them, since they depend on the configuration."""
        return {}

    def check(self, node: NodeView) -> None:
        """Raise PlanError where the host lacks what flags require: then a configuration is refused, and the offer
        stays."""

    # --- what containers get ------------------------------------------------------------------------------------------
    def containers(self, node: NodeView) -> Containers:
        """Return what containers need; by default the device nodes of the probe's line."""
        return DeviceNodes.for_devices(node.inventory.devices)

    def host_paths(self, files: Mapping[str, object]) -> Collection[str]:
        """Return as globs the device nodes and files of the host that containers get only where these exist. `files`:
        as for NodeView."""
        return ()

    def cdi(self, node: NodeView) -> CdiNeeds:
        """Return which of our specifications the current devices need, beside the container toolkit's own
        (`node.cdi`)."""
        return CdiNeeds()

    def node_files(self, resources: Sequence[OfferedResource], node: NodeView) -> FolderFiles | None:
        """Return the files for other programs (host.node_files), for the resources that are offered now, with their
        retained ids. None: it keeps no files, and removes none."""
        return None


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
    paths = [neighbour.path for neighbour in one.pcie if neighbour.to == other.id]
    paths += [neighbour.path for neighbour in other.pcie if neighbour.to == one.id]
    if paths:
        return PATH_SCORES[paths[0]]
    if one.numa_node is None or other.numa_node is None:
        return 0
    return PATH_SCORES[PciePath.NODE if one.numa_node == other.numa_node else PciePath.SYSTEM]


def text(fact: DeviceFact, name: str) -> str:
    """Return an attribute of the device; empty where it has none."""
    attribute = fact.extra.get(name)
    return (attribute.string or "") if attribute is not None else ""


def gone(resource: str, id_: str) -> AllocationError:
    """Return the refusal of a device that has left the node. It is only granted where unhealthy ids are not refused."""
    return AllocationError(
        f"{resource}: {id_} is no longer on this node. Delete the pod, so that it is scheduled again."
    )


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
    parts = device.partitions if strategy != "none" else []
    live = any(unit.id not in device.departed_partitions for unit in parts)
    return parts if live else [Unit(device), *parts]


# Nodes that any number of devices need beside their own.
SHARED_NODES = frozenset({"/dev/kfd", "/dev/infiniband/rdma_cm", "/dev/vfio/vfio"})


class DeviceNodes(Struct, frozen=True, kw_only=True):
    """`nodes`: device nodes by id of the device or partition; a partition's own alone."""

    nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def for_devices(cls, devices: Iterable[InventoryDevice]) -> DeviceNodes:
        nodes: dict[str, tuple[str, ...]] = {}
        for device in devices:
            nodes[device.fact.id] = device.fact.device_nodes
            nodes |= {part.id: part.device_nodes for part in device.fact.partitions}
        return cls(nodes=nodes)

    def edits(self, grant: Grant) -> ContainerEdits:
        """Raises AllocationError for what has left the node."""
        paths: list[str] = []
        for schedulable in grant.ids:
            own = self.nodes.get(schedulable.part_id)
            if own is None:
                raise gone(grant.resource.name, schedulable.id)
            paths += own
        return ContainerEdits(
            devices=tuple(DeviceNode(container_path=path, host_path=path) for path in dict.fromkeys(paths))
        )
