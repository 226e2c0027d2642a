"""NVIDIA as a vendor: where each of the port's questions is answered."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence, Set

from nodedevices_probe import kmsg
from nodedevices_probe.nvidia import VENDOR, fills_instance, mig_enabled
from nodedevices_probe.protocol import DeviceFact, ProbeEvent, Readings

from nodedevices_plugin.model import HealthState, InventoryDevice, PlanError, Unit, resource_names
from nodedevices_plugin.model.inventory import plain
from nodedevices_plugin.vendors.base import Naming, NodeView, Vendor, path_score, unlike_most
from nodedevices_plugin.vendors.cdi import CdiNeeds
from nodedevices_plugin.vendors.faults import CODED, FaultCondition, Meaning, node_missing
from nodedevices_plugin.vendors.nvidia import cdi, faults, gpu_config, kernel_log, nodes
from nodedevices_plugin.vendors.nvidia import flags as own_flags
from nodedevices_plugin.vendors.nvidia.cdi import CtkRequest
from nodedevices_plugin.vendors.nvidia.injection import InjectionContext
from nodedevices_plugin.vendors.nvidia.nodes import DEFAULT_PREFIX, computing_gpus
from nodedevices_plugin.vendors.nvidia.xids import look_up

_MIG = "-mig-"
_GOOGLE_SHARE = re.compile(r"(?P<device>nvidia[0-9]{1,4}(/gi[0-9]{1,3})?)/vgpu[0-9]{1,5}")
LINK_SCORE = 100  # go-gpuallocator, so that choices agree with those of NVIDIA's plugin


class Nvidia(Vendor):
    name = VENDOR
    types = nodes.TYPES
    reasons = faults.NUMBERED
    meanings = faults.MEANINGS
    dra_driver = "gpu.nvidia.com"
    cdi_source = cdi.SOURCE
    flags = own_flags.FLAGS
    files = (gpu_config.FILE,)

    def host_paths(self, files: Mapping[str, object]) -> tuple[str, ...]:
        return nodes.OPTIONAL_PATHS

    def units(self, devices: Sequence[InventoryDevice], *, strategy: str, excluded: Set[str]) -> Sequence[Unit]:
        """The strategies are those of NVIDIA's plugin: none offers every GPU whole; single offers MIG devices of one
        kind in place of GPUs; mixed offers whole GPUs and MIG devices side by side."""
        gpus = computing_gpus(devices)
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
        part, domain = unit.partition, naming.prefix or DEFAULT_PREFIX
        if part is None or naming.strategy == "single":  # MIG devices take the place of GPUs
            return f"{domain}/gpu"
        return f"{domain}/mig-{resource_names.plain_profile(part.profile)}" if fills_instance(part) else None

    def containers(self, node: NodeView) -> InjectionContext:
        own = own_flags.settings_of(node.local)
        return InjectionContext(
            injection=node.injection,
            host=own.host(node.existing),
            units=nodes.units_by_id(node.inventory),
            cdi_annotation_prefix=own.cdi_annotation_prefix,
            cdi_names=cdi.toolkit_names(node.inventory, node.cdi.toolkit),
            driver_directory=own.driver_directory,
        )

    def check(self, node: NodeView) -> None:
        """Raises PlanError where an IMEX channel that is required is not there, or without which GPUs are of no use."""
        own = own_flags.settings_of(node.local)
        for channel in own.imex_channels if own.imex_required else ():
            if (path := nodes.imex_node(channel)) not in node.existing:
                hint = f"{path} does not exist on this node; start nvidia-imex, or set imex.required to false"
                raise PlanError("imex.channelIDs", channel, hint)
        missing = [path for path in nodes.NEEDED if path not in node.existing]
        by_directory = own_flags.BY_DIRECTORY in node.injection.device_list_strategies
        if by_directory and missing and any(gpu.present for gpu in computing_gpus(node.inventory.devices)):
            hint = (
                f"{' and '.join(missing)} {'do' if len(missing) > 1 else 'does'} not exist on this node, or this agent "
                "does not see the host's /dev; wait for the driver's installer, or add the component driver-directory"
            )
            raise PlanError("injection.deviceListStrategies", own_flags.BY_DIRECTORY, hint)

    def missing_nodes(self, node: NodeView) -> Mapping[str, tuple[str, ...]]:
        return self.containers(node).missing_nodes(node.inventory)

    def cdi(self, node: NodeView) -> CdiNeeds:
        own = own_flags.settings_of(node.local)
        host, elsewhere = own.host(node.existing), cdi.toolkit_names(node.inventory, node.cdi.toolkit).keys()
        id_strategy = node.injection.device_id_strategy
        specs = cdi.specs(node.inventory, host, id_strategy=id_strategy, elsewhere=elsewhere)
        request = None
        if (gpus := next((spec for spec in specs if spec.kind == cdi.GPU_KIND), None)) is not None:
            request = CtkRequest(
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
            unnamed_because=cdi.UNNAMED,
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

    def event(self, kind: str, code: int | None) -> Meaning | None:
        if code is not None and kind == CODED:
            return faults.meaning(look_up(code))
        if code is not None and kind in {kmsg.SXID, kmsg.SXID_FATAL}:
            return kernel_log.switch(code, fatal=kind == kmsg.SXID_FATAL)
        return self.meanings.get(kind)

    def kind_of(self, event: ProbeEvent) -> str:
        return kernel_log.kind_of(event)

    def decide(self, code: int, together: Sequence[int], driver_action: str | None) -> HealthState | None:
        return faults.decide(code, together, driver_action)

    def read(self, readings: Readings) -> tuple[FaultCondition, ...]:
        return (node_missing(readings), *faults.read(readings))


def _check_single(gpus: Sequence[InventoryDevice], excluded: Set[str]) -> None:
    """Check the GPUs that answer. One that is lost since the start does not even report whether it is in MIG mode."""
    answering = [device for device in gpus if device.present and not _silent_about_mig(device.fact)]
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


def _silent_about_mig(fact: DeviceFact) -> bool:
    return mig_enabled(fact) is None and (fact.readings.lost or fact.readings.error is not None)
