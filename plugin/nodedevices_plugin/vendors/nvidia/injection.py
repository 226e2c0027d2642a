"""What a container needs for what it was granted: a pure function of the ids, the plan and the node.

Ids keep the kubelet's order; several shares of one device count once, as do its device nodes. Every strategy adds its
part to the answer; where all of them are CDI, the variables and nodes that only the older ones need stay away.
NVIDIA's plugin v0.20.0 answers the same, but for the annotation's random suffix: ours follows from what is handed out.
One strategy is Google's (`driver-directory`): containers get the driver itself, its directory on the node, mounted
read-only beside device nodes. So Google's plugin (container-engine-accelerators) hands GPUs out on nodes without
NVIDIA's container runtime: no variable names the devices, their nodes are all that a container sees of them, and
programs find the driver's libraries where it is mounted. A client of MPS is told its limits by variables, too; Google's
plugin computes them from GPU 0's memory, here they are those of the GPU that was granted. It goes with no other
strategy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from uuid import UUID, uuid5

from msgspec import Struct, field
from nodedevices_api.sections import Injection
from nodedevices_common.quantity import MEBIBYTE

from nodedevices_plugin.model import (
    ContainerEdits,
    DeviceNode,
    Grant,
    Inventory,
    Mount,
    OfferedResource,
    SchedulableId,
    Unit,
    cuda_mps,
)
from nodedevices_plugin.vendors.base import gone
from nodedevices_plugin.vendors.cdi import STRATEGIES, qualified
from nodedevices_plugin.vendors.nvidia import cdi, nodes
from nodedevices_plugin.vendors.nvidia.cdi import Host
from nodedevices_plugin.vendors.nvidia.flags import BY_DIRECTORY, CDI_PREFIX, DRIVER_DIRECTORY

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"  # read by NVIDIA's container toolkit
# The toolkit reads device names from mounts under this folder, which an unprivileged image cannot forge.
VOLUME_MOUNTS = "/var/run/nvidia-container-devices"
FEATURE_VARIABLES: Mapping[str, str] = {"gdrcopy": "NVIDIA_GDRCOPY", "gds": "NVIDIA_GDS", "mofed": "NVIDIA_MOFED"}
MPS = "mps"  # the sharing mode
DRIVER, VULKAN_ICD = "/usr/local/nvidia", "/etc/vulkan/icd.d"  # in containers, as Google's plugin has them
_PLUGIN = "nvidia-device-plugin"
_SUFFIXES = UUID("7e7c9e0a-6a0e-5d0c-9d5e-9a1b5c0b7f43")  # our own namespace for uuid5, chosen once


class InjectionContext(Struct, frozen=True, kw_only=True):
    """The way in which containers get their devices.

    cdi_names: devices and MIG devices that the container toolkit's own spec has, with their names there; all others are
    in ours. units: the current devices and MIG devices, by id (nodes.units_by_id); needed for indices and device nodes.
    driver_directory: the driver's path on the node, for the strategy of that name.
    """

    injection: Injection = field(default_factory=Injection)
    host: Host = field(default_factory=Host)
    units: Mapping[str, Unit] = field(default_factory=dict)
    cdi_annotation_prefix: str = CDI_PREFIX
    cdi_names: Mapping[str, str] = field(default_factory=dict)
    driver_directory: str = DRIVER_DIRECTORY

    @property
    def strategies(self) -> frozenset[str]:
        return frozenset(self.injection.device_list_strategies)

    @property
    def passes_nodes(self) -> bool:
        """True when containers get device nodes from the kubelet."""
        strategies = self.strategies
        only_cdi = bool(strategies) and strategies <= STRATEGIES
        return BY_DIRECTORY in strategies or (self.injection.pass_device_specs and not only_cdi)

    def missing_nodes(self, inventory: Inventory) -> Mapping[str, tuple[str, ...]]:
        """Return by device the nodes that its containers are to get from here and that are not there. What the
        container toolkit brings, by a variable or its own CDI specification, it sees to itself."""
        passes, existing = self.passes_nodes, self.host.existing
        if not nodes.seen(existing) or (not passes and STRATEGIES.isdisjoint(self.strategies)):
            return {}
        given = (unit for unit in cdi.present_units(inventory) if passes or unit.id not in self.cdi_names)
        facts = {unit.device.fact.id: unit.device.fact for unit in given}
        return {id_: lacking for id_, fact in facts.items() if (lacking := nodes.missing(fact, existing))}

    def edits(self, grant: Grant) -> ContainerEdits:
        """Return what one container needs. Raises AllocationError; its text is shown in the pod's status."""
        resource, granted, strategies = grant.resource, grant.ids, self.strategies
        names = tuple(dict.fromkeys(self._name(schedulable, resource) for schedulable in granted))
        envs = {FEATURE_VARIABLES[feature]: "enabled" for feature in self.host.features}
        mounts: tuple[Mount, ...] = ()
        channels = self.host.imex_channels
        if "envvar" in strategies:
            envs[VISIBLE_DEVICES] = ",".join(names)
            if channels:
                envs[nodes.IMEX_VARIABLE] = ",".join(str(channel) for channel in channels)
        if "volume-mounts" in strategies:
            envs[VISIBLE_DEVICES] = VOLUME_MOUNTS
            mounts = tuple(
                Mount(container_path=f"{VOLUME_MOUNTS}/{name}", host_path="/dev/null", read_only=False)
                for name in (*names, *(f"imex/{channel}" for channel in channels))
            )
        if BY_DIRECTORY in strategies and granted:
            pairs = ((self.driver_directory, DRIVER), (f"{self.driver_directory}/vulkan/icd.d", VULKAN_ICD))
            mounts += tuple(Mount(container_path=inside, host_path=host) for host, inside in pairs)
            memory = {id_: unit.memory_bytes for id_, unit in self.units.items()}
            envs |= mps_limits(resource, granted, memory)
        by_cdi = self._qualified(granted, resource) if strategies & STRATEGIES else ()
        annotate = by_cdi and "cdi-annotations" in strategies
        return ContainerEdits(
            envs=envs,
            mounts=mounts,
            devices=self._specs(granted, resource) if self.passes_nodes and granted else (),
            annotations={self._annotation(resource, granted): ",".join(by_cdi)} if annotate else {},
            cdi_devices=by_cdi if "cdi-cri" in strategies else (),
        )

    def _name(self, schedulable: SchedulableId, resource: OfferedResource) -> str:
        """Return the runtime's name of the device."""
        if self.injection.device_id_strategy == "index":
            return self._unit(schedulable, resource).index
        return schedulable.part_id

    def _unit(self, schedulable: SchedulableId, resource: OfferedResource) -> Unit:
        unit = self.units.get(schedulable.part_id)
        if unit is None:
            raise gone(resource.name, schedulable.id)
        return unit

    def _qualified(self, granted: Sequence[SchedulableId], resource: OfferedResource) -> tuple[str, ...]:
        """CDI names: the devices, then what goes with them. Channels and features have specs of ours only."""
        extra = [*(("imex-channel", str(channel)) for channel in self.host.imex_channels)]
        extra += ((feature, cdi.ALL) for feature in self.host.features_present())
        devices = dict.fromkeys(self._cdi_name(schedulable, resource) for schedulable in granted)
        return (*devices, *(qualified(cdi.VENDOR, device_class, name) for device_class, name in extra))

    def _cdi_name(self, schedulable: SchedulableId, resource: OfferedResource) -> str:
        theirs = self.cdi_names.get(schedulable.part_id)
        if theirs is not None:
            return f"{cdi.TOOLKIT_KIND}={theirs}"
        return qualified(cdi.VENDOR, "gpu", self._name(schedulable, resource))

    def _annotation(self, resource: OfferedResource, granted: Sequence[SchedulableId]) -> str:
        """The key: no two answers to one container may share it. It must not change when the kubelet calls again."""
        given = "\n".join((resource.name, *(schedulable.id for schedulable in granted)))
        return f"{self.cdi_annotation_prefix}{_PLUGIN}_{uuid5(_SUFFIXES, given)}"

    def _specs(self, granted: Sequence[SchedulableId], resource: OfferedResource) -> tuple[DeviceNode, ...]:
        """Nodes for the kubelet to pass: the control nodes that exist, the devices' own, and those of IMEX channels."""
        paths = [
            *nodes.control_nodes(self.host.existing),
            *(path for schedulable in granted for path in nodes.nodes_of(self._unit(schedulable, resource))),
            *(nodes.imex_node(channel) for channel in self.host.imex_channels),
        ]
        return tuple(DeviceNode(container_path=path, host_path=self.host.path(path)) for path in dict.fromkeys(paths))


def mps_limits(
    resource: OfferedResource, granted: Sequence[SchedulableId], memory: Mapping[str, int]
) -> Mapping[str, str]:
    """Variables with the limits of an MPS client: its shares' part of the threads, and of the memory of each GPU, by
    the number that the GPU has in the container. `memory`: in bytes, by device id, in the order of those numbers."""
    shares = Counter(schedulable.device_id for schedulable in granted if schedulable.replica is not None)
    replicas = resource.sharing.replicas
    if resource.sharing.name != MPS or not replicas or not shares:
        return {}
    gpus = [id_ for id_ in memory if id_ in shares]
    limits = [(place, memory[id_] * shares[id_] // replicas // MEBIBYTE) for place, id_ in enumerate(gpus)]
    threads = {cuda_mps.THREAD_PERCENTAGE: str(min(shares.values()) * 100 // replicas)}
    by_number = ",".join(f"{place}={limit}M" for place, limit in limits if limit)
    return threads | ({cuda_mps.MEMORY_LIMIT: by_number} if by_number else {})
