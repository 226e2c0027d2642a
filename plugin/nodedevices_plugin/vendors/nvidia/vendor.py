"""NVIDIA as a vendor: where each of the port's questions is answered, and what a container needs for what it was
granted: a pure function of the ids, the plan and the node.

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

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from uuid import UUID, uuid5

from msgspec import Struct, field
from nodedevices_api.sections import Injection
from nodedevices_common.quantity import MEBIBYTE
from nodedevices_probe.nvidia import VENDOR, fills_instance, mig_enabled
from nodedevices_probe.protocol import DeviceFact

from nodedevices_plugin.model import (
    ContainerEdits,
    DeviceNode,
    Grant,
    InventoryDevice,
    Mount,
    OfferedResource,
    PlanError,
    SchedulableId,
    Unit,
    cuda_mps,
    resource_names,
)
from nodedevices_plugin.model.inventory import plain
from nodedevices_plugin.vendors.base import Naming, NodeView, Vendor, gone, path_score, unlike_most, value_of
from nodedevices_plugin.vendors.cdi import STRATEGIES, CdiNeeds, qualified
from nodedevices_plugin.vendors.nvidia import cdi, gpu_config
from nodedevices_plugin.vendors.nvidia.faults import NvidiaFaults
from nodedevices_plugin.vendors.nvidia.flags import BY_DIRECTORY, CDI_PREFIX, DRIVER_DIRECTORY, FLAGS, NvidiaSettings

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"  # read by NVIDIA's container toolkit
# The toolkit reads device names from mounts under this folder, which an unprivileged image cannot forge.
VOLUME_MOUNTS = "/var/run/nvidia-container-devices"
FEATURE_VARIABLES: Mapping[str, str] = {"gdrcopy": "NVIDIA_GDRCOPY", "gds": "NVIDIA_GDS", "mofed": "NVIDIA_MOFED"}
DRIVER, VULKAN_ICD = "/usr/local/nvidia", "/etc/vulkan/icd.d"  # in containers, as Google's plugin has them
_SUFFIXES = UUID("7e7c9e0a-6a0e-5d0c-9d5e-9a1b5c0b7f43")  # our own namespace for uuid5, chosen once

_MIG = "-mig-"
_GOOGLE_SHARE = re.compile(r"(?P<device>nvidia[0-9]{1,4}(/gi[0-9]{1,3})?)/vgpu[0-9]{1,5}")
LINK_SCORE = 100  # go-gpuallocator, so that choices agree with those of NVIDIA's plugin


class Nvidia(NvidiaFaults, Vendor):
    name = VENDOR
    types = cdi.TYPES
    dra_driver = "gpu.nvidia.com"
    cdi_source = cdi.SOURCE
    flags = FLAGS
    files = (gpu_config.FILE,)

    def host_paths(self, files: Mapping[str, object]) -> tuple[str, ...]:
        return cdi.OPTIONAL_PATHS

    def units(self, devices: Sequence[InventoryDevice], *, strategy: str, excluded: Set[str]) -> Sequence[Unit]:
        """The strategies are those of NVIDIA's plugin: none offers every GPU whole; single offers MIG devices of one
        kind in place of GPUs; mixed offers whole GPUs and MIG devices side by side."""
        gpus = cdi.computing_gpus(devices)
        if strategy == "none":
            return [Unit(device) for device in gpus]
        if strategy == "single" and any(mig_enabled(device.fact) for device in gpus):
            _check_single(gpus, excluded)
            return [unit for device in gpus for unit in device.partitions]
        # A GPU that left MIG mode keeps the MIG devices that pods still hold, so that they are listed as not healthy.
        return [
            unit
            for device in gpus
            for unit in (*(() if mig_enabled(device.fact) else (Unit(device),)), *device.partitions)
        ]

    def usual_name(self, unit: Unit, naming: Naming) -> str | None:
        """None: a compute instance smaller than its GPU instance, for which NVIDIA has no resource name."""
        part, domain = unit.partition, naming.prefix or cdi.DEFAULT_PREFIX
        if part is None or naming.strategy == "single":  # MIG devices take the place of GPUs
            return f"{domain}/gpu"
        return f"{domain}/mig-{resource_names.plain_profile(part.profile)}" if fills_instance(part) else None

    def containers(self, node: NodeView) -> InjectionContext:
        own = value_of(node.local, NvidiaSettings)
        return InjectionContext(
            injection=node.injection,
            host=own.host(node.existing),
            units=cdi.units_by_id(node.inventory),
            cdi_annotation_prefix=own.cdi_annotation_prefix,
            cdi_names=cdi.toolkit_names(node.inventory, node.cdi.toolkit),
            driver_directory=own.driver_path,
        )

    def check(self, node: NodeView) -> None:
        """Raises PlanError where an IMEX channel that is required is not there, or without which GPUs are of no use."""
        own = value_of(node.local, NvidiaSettings)
        for channel in own.imex_channels if own.imex_required else ():
            if (path := cdi.imex_node(channel)) not in node.existing:
                hint = f"{path} does not exist on this node; start nvidia-imex, or set imex.required to false"
                raise PlanError("imex.channelIDs", channel, hint)
        missing = [path for path in cdi.NEEDED if path not in node.existing]
        by_directory = BY_DIRECTORY in node.injection.device_list_strategies
        if by_directory and missing and any(gpu.present for gpu in cdi.computing_gpus(node.inventory.devices)):
            hint = (
                f"{' and '.join(missing)} {'do' if len(missing) > 1 else 'does'} not exist on this node, or this agent "
                "does not see the host's /dev; wait for the driver's installer, or add the component driver-directory"
            )
            raise PlanError("injection.deviceListStrategies", BY_DIRECTORY, hint)

    def missing_nodes(self, node: NodeView) -> Mapping[str, tuple[str, ...]]:
        """What the container toolkit brings, by a variable or its own CDI specification, it sees to itself."""
        context, existing = self.containers(node), node.existing
        passes = context.passes_nodes
        if not cdi.seen(existing) or (not passes and STRATEGIES.isdisjoint(context.strategies)):
            return {}
        given = (unit for unit in cdi.present_units(node.inventory) if passes or unit.id not in context.cdi_names)
        facts = {unit.device.fact.id: unit.device.fact for unit in given}
        return {id_: lacking for id_, fact in facts.items() if (lacking := cdi.missing(fact, existing))}

    def cdi(self, node: NodeView) -> CdiNeeds:
        own = value_of(node.local, NvidiaSettings)
        host, elsewhere = own.host(node.existing), cdi.toolkit_names(node.inventory, node.cdi.toolkit).keys()
        id_strategy = node.injection.device_id_strategy
        specs = cdi.specs(node.inventory, host, id_strategy=id_strategy, elsewhere=elsewhere)
        request = None
        if (gpus := next((spec for spec in specs if spec.kind == cdi.GPU_KIND), None)) is not None:
            request = cdi.CtkRequest(
                names=frozenset(str(device["name"]) for device in gpus.document["devices"]),
                id_strategy=id_strategy,
                host=host,
                driver_root=own.driver_root_here,
                hook_path=own.cdi_hook_path,
                feature_flags=own.cdi_feature_flags,
                disable_hooks=own.cdi_disable_hooks,
            )
        return CdiNeeds(
            specs=specs,
            request=request,
            nodes_will_do=own.cdi_without_libraries,
            elsewhere=frozenset(elsewhere),
            present=bool(cdi.present_units(node.inventory)),
            unnamed=frozenset(device.fact.id for device in node.inventory.devices if mig_enabled(device.fact)),
            unnamed_because="the GPU is in MIG mode, and CDI specifications name its MIG devices alone; set "
            "partitions.strategy, or switch MIG mode off",  # as by nvidia-ctk
        )

    def pair_score(self, one: DeviceFact, other: DeviceFact) -> int:
        """100 for each direct NVLink. Links through a switch connect all devices alike and decide nothing."""
        links = max(
            sum(link.count for link in one.links if link.to == other.id),
            sum(link.count for link in other.links if link.to == one.id),
        )
        return path_score(one, other) + LINK_SCORE * links

    def other_names(self, unit: Unit) -> Collection[str]:
        """Return the names of MIG devices in drivers before R470, and Google's plugin's names of GPUs and MIG
        devices."""
        fact, part = unit.device.fact, unit.partition
        google = () if fact.minor is None else (f"nvidia{fact.minor}",)  # beside /dev
        if part is None:
            return google
        before = f"MIG-{fact.id}/{part.gi}/{part.ci}"
        return (before, *(f"{gpu}/gi{part.gi}" for gpu in google if part.gi is not None))

    def without_share(self, name: str) -> str:
        """Return `nvidia0` for `nvidia0/vgpu2`, and `nvidia0/gi3` for `nvidia0/gi3/vgpu2`: Google's ids of shares."""
        share = _GOOGLE_SHARE.fullmatch(name)
        return name if share is None else share["device"]

    def index_id(self, unit: Unit) -> str:
        return unit.index

    def claim_name(self, unit: Unit, device: str) -> str:
        """Return `gpu-3`, and for a MIG device its profile and where it starts, which no two of a GPU share."""
        part = unit.partition
        return device if part is None else f"{device}{_MIG}{plain(part.profile)}-{part.start}"

    def claimed(self, name: str) -> Sequence[str]:
        """Return our names for `gpu-3` or `gpu-3-mig-1g.10gb-19-0`; a MIG device that is not listed counts as its
        GPU."""
        parent, mig, tail = name.partition(_MIG)
        if not mig:
            return (name,)
        profile, _, start = tail.rpartition("-")
        return (f"{parent}{_MIG}{plain(profile.rpartition('-')[0])}-{start}", parent)


def _check_single(gpus: Sequence[InventoryDevice], excluded: Set[str]) -> None:
    """Check the GPUs that answer. One that is lost since the start does not even report whether it is in MIG mode."""
    present = ((device, device.fact.readings) for device in gpus if device.present)
    answering = [
        device
        for device, readings in present
        if mig_enabled(device.fact) is not None or not (readings.lost or readings.error is not None)
    ]
    plain = [device.fact for device in answering if not mig_enabled(device.fact)]
    if plain:
        cut = [device.fact for device in answering if mig_enabled(device.fact)]
        raise PlanError(
            "partitions.strategy",
            "single",
            f"GPU {plain[0].index} is not in MIG mode and others are; make them alike or use mixed",
            devices=[fact.id for fact in min(plain, cut, key=len)],  # what fewer are is what changed
        )
    profiles: dict[str, set[str]] = {}
    for device in answering:
        live = [part for part in device.fact.partitions if part.id not in device.departed_partitions]
        if not live:
            hint = f"GPU {device.fact.index} is in MIG mode and has no MIG devices; create them or use mixed"
            raise PlanError("partitions.strategy", "single", hint, devices=[device.fact.id])
        profiles[device.fact.id] = {part.profile for part in live if part.id not in excluded}
    found = {profile for some in profiles.values() for profile in some}
    if len(found) > 1:
        raise PlanError(
            "partitions.strategy",
            "single",
            f"this node has several MIG profiles ({', '.join(sorted(found))}); use mixed",
            devices=unlike_most(profiles),
        )


# --- what containers get ----------------------------------------------------------------------------------------------
class InjectionContext(Struct, frozen=True, kw_only=True):
    """The way in which containers get their devices.

    cdi_names: devices and MIG devices that the container toolkit's own spec has, with their names there; all others are
    in ours. units: the current devices and MIG devices, by id (cdi.units_by_id); needed for indices and device nodes.
    driver_directory: the driver's path on the node, for the strategy of that name.
    """

    injection: Injection = field(default_factory=Injection)
    host: cdi.Host = field(default_factory=cdi.Host)
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
                envs[cdi.IMEX_VARIABLE] = ",".join(str(channel) for channel in channels)
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
        return f"{self.cdi_annotation_prefix}nvidia-device-plugin_{uuid5(_SUFFIXES, given)}"

    def _specs(self, granted: Sequence[SchedulableId], resource: OfferedResource) -> tuple[DeviceNode, ...]:
        """Nodes for the kubelet to pass: the control nodes that exist, the devices' own, and those of IMEX channels."""
        paths = [
            *cdi.control_nodes(self.host.existing),
            *(path for schedulable in granted for path in cdi.nodes_of(self._unit(schedulable, resource))),
            *(cdi.imex_node(channel) for channel in self.host.imex_channels),
        ]
        return tuple(DeviceNode(container_path=path, host_path=self.host.path(path)) for path in dict.fromkeys(paths))


def mps_limits(
    resource: OfferedResource, granted: Sequence[SchedulableId], memory: Mapping[str, int]
) -> Mapping[str, str]:
    """Variables with the limits of an MPS client: its shares' part of the threads, and of the memory of each GPU, by
    the number that the GPU has in the container. `memory`: in bytes, by device id, in the order of those numbers."""
    shares = Counter(schedulable.device_id for schedulable in granted if schedulable.replica is not None)
    replicas = resource.sharing.replicas
    if resource.sharing.name != "mps" or not replicas or not shares:
        return {}
    gpus = [id_ for id_ in memory if id_ in shares]
    limits = [(place, memory[id_] * shares[id_] // replicas // MEBIBYTE) for place, id_ in enumerate(gpus)]
    threads = {cuda_mps.THREAD_PERCENTAGE: str(min(shares.values()) * 100 // replicas)}
    by_number = ",".join(f"{place}={limit}M" for place, limit in limits if limit)
    return threads | ({cuda_mps.MEMORY_LIMIT: by_number} if by_number else {})
