"""What a container needs for what it was granted: a pure function of the ids, the plan and the node.

Ids keep the kubelet's order; several shares of one device count once, as do its device nodes. Every strategy adds its
part to the answer; where all of them are CDI, the variables and nodes that only the older ones need stay away.
NVIDIA's plugin v0.20.0 answers the same, but for the annotation's random suffix: ours follows from what is handed out.
One strategy is Google's (driver_directory): it goes with no other, and answers as that plugin does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID, uuid5

from msgspec import Struct, field
from nodedevices_api.sections import Injection

from nodedevices_plugin.model import ContainerEdits, DeviceNode, Grant, Inventory, Mount, OfferedResource, SchedulableId
from nodedevices_plugin.vendors.base import NodeView, gone
from nodedevices_plugin.vendors.cdi import STRATEGIES, qualified
from nodedevices_plugin.vendors.nvidia import cdi, driver_directory, flags, nodes
from nodedevices_plugin.vendors.nvidia.cdi import Host
from nodedevices_plugin.vendors.nvidia.driver_directory import DriverDirectory
from nodedevices_plugin.vendors.nvidia.flags import CDI_PREFIX
from nodedevices_plugin.vendors.nvidia.nodes import Handle

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"  # read by NVIDIA's container toolkit
# The toolkit reads device names from mounts under this folder, which an unprivileged image cannot forge.
VOLUME_MOUNTS = "/var/run/nvidia-container-devices"
FEATURE_VARIABLES: Mapping[str, str] = {"gdrcopy": "NVIDIA_GDRCOPY", "gds": "NVIDIA_GDS", "mofed": "NVIDIA_MOFED"}
_PLUGIN = "nvidia-device-plugin"
_SUFFIXES = UUID("7e7c9e0a-6a0e-5d0c-9d5e-9a1b5c0b7f43")  # our own namespace for uuid5, chosen once


class InjectionContext(Struct, frozen=True, kw_only=True):
    """The way in which containers get their devices.

    cdi_names: devices and MIG devices that the container toolkit's own spec has, with their names there; all others are
    in ours. handles: of the current devices (nodes.handles); needed for indices and for device nodes. driver_directory:
    for the strategy of that name.
    """

    injection: Injection = field(default_factory=Injection)
    host: Host = field(default_factory=Host)
    handles: Mapping[str, Handle] = field(default_factory=dict)
    cdi_annotation_prefix: str = CDI_PREFIX
    cdi_names: Mapping[str, str] = field(default_factory=dict)
    driver_directory: DriverDirectory = field(default_factory=DriverDirectory)

    @classmethod
    def from_node(cls, node: NodeView) -> InjectionContext:
        own = flags.settings_of(node.local)
        return cls(
            injection=node.injection,
            host=own.host(node.existing),
            handles=nodes.handles(node.inventory),
            cdi_annotation_prefix=own.cdi_annotation_prefix,
            cdi_names=cdi.toolkit_names(node.inventory, node.cdi.toolkit) if node.cdi.toolkit else {},
            driver_directory=own.driver_directory,
        )

    @property
    def strategies(self) -> frozenset[str]:
        return frozenset(self.injection.device_list_strategies)

    @property
    def passes_nodes(self) -> bool:
        """True when containers get device nodes from the kubelet."""
        strategies = self.strategies
        only_cdi = bool(strategies) and strategies <= STRATEGIES
        return driver_directory.STRATEGY in strategies or (self.injection.pass_device_specs and not only_cdi)

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
            mounts = tuple(_marker(name) for name in (*names, *(f"imex/{channel}" for channel in channels)))
        if driver_directory.STRATEGY in strategies and granted:
            mounts += self.driver_directory.mounts()
            memory = {id_: handle.memory_bytes for id_, handle in self.handles.items()}
            envs |= driver_directory.mps_limits(resource, granted, memory)
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
            return self._handle(schedulable, resource).index
        return schedulable.part_id

    def _handle(self, schedulable: SchedulableId, resource: OfferedResource) -> Handle:
        handle = self.handles.get(schedulable.part_id)
        if handle is None:
            raise gone(resource.name, schedulable.id)
        return handle

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
            *(path for schedulable in granted for path in self._handle(schedulable, resource).nodes),
            *(nodes.imex_node(channel) for channel in self.host.imex_channels),
        ]
        return tuple(DeviceNode(container_path=path, host_path=self.host.path(path)) for path in dict.fromkeys(paths))


def _marker(name: str) -> Mount:
    return Mount(container_path=f"{VOLUME_MOUNTS}/{name}", host_path="/dev/null", read_only=False)
