"""AMD as a vendor. Names, device nodes and the weights of links are those of AMD's device plugin (k8s-device-plugin):
containers get the probe's device nodes, `/dev/kfd` among them, and no variable.

A GPU that is cut into compute partitions (CPX, DPX, ...) is handed out by partition with every strategy: the driver
shows programs nothing else. As with `-resource_naming_strategy`, `single` (and none, where no strategy is configured)
calls them all `amd.com/gpu`, and `mixed` by their kind, `amd.com/cpx_nps4`.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from nodedevices_probe.amd import PROFILE, VENDOR
from nodedevices_probe.protocol import DeviceFact, Readings

from nodedevices_plugin.model import InventoryDevice, PlanError, Unit, resource_names
from nodedevices_plugin.vendors.amd import faults, kernel_log
from nodedevices_plugin.vendors.base import Naming, Vendor, unlike_most, whole_or_partitions
from nodedevices_plugin.vendors.faults import FaultCondition, Meaning

DEFAULT_PREFIX = "amd.com"
ALWAYS = "mixed"  # a GPU that is cut has only partitions, under any name
# allocator/device.go of AMD's plugin: the smaller the sum, the better. Greater than any sum is the score's zero.
ZERO = 100
SAME_GPU, OTHER_GPU = 10, 20
XGMI, NO_LINK = 10, 50
PCIE = 40
SAME_NUMA, OTHER_NUMA = 10, 20


class Amd(Vendor):
    name = VENDOR
    types = frozenset({"gpu"})
    reasons: Sequence[str] = (*faults.REASONS, *kernel_log.REASONS)

    def units(self, devices: Sequence[InventoryDevice], *, strategy: str, excluded: Set[str]) -> Sequence[Unit]:
        """A GPU that was cut again while a pod holds an earlier partition is taken as it is now; that partition stays
        with it, and does not make the others refused."""
        found = [unit for device in devices for unit in whole_or_partitions(device, ALWAYS)]
        kinds: dict[str, set[str]] = {}
        for unit in found:
            if unit.device.present and unit.id not in excluded and unit.id not in unit.device.departed_partitions:
                kinds.setdefault(unit.device.fact.id, set()).add(_kind(unit))
        several = sorted({kind for some in kinds.values() for kind in some})
        if strategy != "mixed" and len(several) > 1:
            raise PlanError(
                "partitions.strategy",
                strategy,
                f"this node has AMD GPUs in several partitions ({', '.join(several)}); use mixed",
                devices=unlike_most(kinds),
            )
        return found

    def usual_name(self, unit: Unit, naming: Naming) -> str | None:
        kind = _profile(unit) if naming.strategy == "mixed" else ""
        return f"{naming.prefix or DEFAULT_PREFIX}/{kind or 'gpu'}"

    def pair_score(self, one: DeviceFact, other: DeviceFact) -> int:
        linked = any(link.to == other.id for link in one.links) or any(link.to == one.id for link in other.links)
        on_one_root = one.pcie_root != "" and one.pcie_root == other.pcie_root
        link = XGMI if linked else PCIE if on_one_root else NO_LINK
        alike = one.numa_node is not None and one.numa_node == other.numa_node
        return ZERO - OTHER_GPU - link - (SAME_NUMA if alike else OTHER_NUMA)

    def partition_score(self, fact: DeviceFact) -> int:
        return ZERO - SAME_GPU - XGMI - SAME_NUMA

    def event(self, kind: str, code: int | None) -> Meaning | None:
        return kernel_log.MEANINGS.get(kind) or super().event(kind, code)

    def read(self, readings: Readings) -> tuple[FaultCondition, ...]:
        return faults.read(readings)


def _profile(unit: Unit) -> str:
    """`cpx_nps4`; "" for a GPU that cannot be cut."""
    if unit.partition is not None:
        return resource_names.plain_profile(unit.partition.profile)
    attribute = unit.device.fact.extra.get(PROFILE)
    return (attribute.string or "") if attribute is not None else ""


def _kind(unit: Unit) -> str:
    return _profile(unit) or "whole"
