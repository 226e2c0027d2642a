"""NVIDIA as a vendor: where each of the port's questions is answered."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set

from nodedevices_probe.nvidia import VENDOR, fills_instance
from nodedevices_probe.protocol import DeviceFact, ProbeEvent, Readings

from nodedevices_plugin.model import HealthState, InventoryDevice, Unit
from nodedevices_plugin.vendors.base import Naming, NodeView, Vendor, path_score
from nodedevices_plugin.vendors.cdi import CdiNeeds
from nodedevices_plugin.vendors.faults import FaultCondition, Meaning, node_missing
from nodedevices_plugin.vendors.files import FileFormat
from nodedevices_plugin.vendors.nvidia import (
    cdi,
    conditions,
    ctk,
    driver_directory,
    faults,
    gpu_config,
    kernel_log,
    names,
    nodes,
    units,
    v1_file,
)
from nodedevices_plugin.vendors.nvidia import flags as own_flags
from nodedevices_plugin.vendors.nvidia.injection import InjectionContext

LINK_SCORE = 100  # go-gpuallocator, so that choices agree with those of NVIDIA's plugin


class Nvidia(Vendor):
    name = VENDOR
    types = units.TYPES
    reasons: Sequence[str] = faults.REASONS
    dra_driver = names.DRA_DRIVER
    cdi_source = cdi.SOURCE
    flags = own_flags.FLAGS
    files = (gpu_config.FILE,)
    file_format = FileFormat(resources=v1_file.resources, sharing=v1_file.sharing, rule_places=v1_file.rule_places)

    def host_paths(self, files: Mapping[str, object]) -> tuple[str, ...]:
        return nodes.OPTIONAL_PATHS

    def units(self, devices: Sequence[InventoryDevice], *, strategy: str, excluded: Set[str]) -> Sequence[Unit]:
        return units.units(devices, strategy, excluded)

    def usual_name(self, unit: Unit, naming: Naming) -> str | None:
        """None: a compute instance smaller than its GPU instance, for which NVIDIA has no resource name."""
        part, domain = unit.partition, naming.prefix or names.DEFAULT_PREFIX
        if part is None or naming.strategy == "single":  # MIG devices take the place of GPUs
            return names.gpu(domain)
        return names.mig(domain, part.profile) if fills_instance(part) else None

    def containers(self, node: NodeView) -> InjectionContext:
        return InjectionContext.from_node(node)

    def check(self, node: NodeView) -> None:
        """Raises PlanError where an IMEX channel that is required is not there, or without which GPUs are of no use."""
        own_flags.settings_of(node.local).check(node.existing)
        gpus = units.computing_gpus(node.inventory.devices)
        if driver_directory.STRATEGY in node.injection.device_list_strategies and any(gpu.present for gpu in gpus):
            driver_directory.check(node.existing)

    def missing_nodes(self, node: NodeView) -> Mapping[str, tuple[str, ...]]:
        return self.containers(node).missing_nodes(node.inventory)

    def cdi(self, node: NodeView) -> CdiNeeds:
        own = own_flags.settings_of(node.local)
        host, elsewhere = own.host(node.existing), cdi.toolkit_names(node.inventory, node.cdi.toolkit).keys()
        id_strategy = node.injection.device_id_strategy
        specs = cdi.specs(node.inventory, host, id_strategy=id_strategy, elsewhere=elsewhere)
        gpus = next((spec for spec in specs if spec.kind == cdi.GPU_KIND), None)
        return CdiNeeds(
            specs=specs,
            request=ctk.request(gpus, own, host, id_strategy=id_strategy) if gpus is not None else None,
            nodes_will_do=own.cdi_without_libraries,
            elsewhere=frozenset(elsewhere),
            present=bool(cdi.present_units(node.inventory)),
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
        part = unit.partition
        before = () if part is None else (f"MIG-{unit.device.fact.id}/{part.gi}/{part.ci}",)
        return (*before, *names.google(unit))

    def without_share(self, name: str) -> str:
        return names.without_google_share(name)

    def index_id(self, unit: Unit) -> str:
        return unit.index

    def claim_name(self, unit: Unit, device: str) -> str:
        return names.claim(unit, device)

    def claimed(self, name: str) -> Sequence[str]:
        return names.claimed(name)

    def event(self, kind: str, code: int | None) -> Meaning | None:
        return faults.event(kind, code)

    def kind_of(self, event: ProbeEvent) -> str:
        return kernel_log.kind_of(event)

    def decide(self, code: int, together: Sequence[int], driver_action: str | None) -> HealthState | None:
        return faults.decide(code, together, driver_action)

    def read(self, readings: Readings) -> tuple[FaultCondition, ...]:
        return (node_missing(readings), *conditions.read(readings))
