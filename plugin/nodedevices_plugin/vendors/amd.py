"""AMD: GPUs and their compute partitions.

Names, device nodes and the weights of links are those of AMD's device plugin (k8s-device-plugin): containers get the
probe's device nodes, `/dev/kfd` among them, and no variable.

A GPU that is cut into compute partitions (CPX, DPX, ...) is handed out by partition with every strategy: the driver
shows programs nothing else. As with `-resource_naming_strategy`, `single` (and none, where no strategy is configured)
calls them all `amd.com/gpu`, and `mixed` by their kind, `amd.com/cpx_nps4`.

Faults are those of readings (amdgpu_ras.c, and AMD's RAS documentation in the kernel's tree), and those of lines in the
kernel's log (drivers/gpu/drm/amd/amdgpu: amdgpu_job.c, amdgpu_device.c, amdgpu_ras.c). A hung ring is most often the
program's doing. A reset ends the programs on the GPU and repairs it; only one that fails leaves it unusable.
Uncorrectable errors change a state by their counter in sysfs (EccUncorrectable): the line adds in which block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from nodedevices_probe import kmsg
from nodedevices_probe.amd import EXPORTER_UNHEALTHY, PROFILE, VENDOR
from nodedevices_probe.protocol import DeviceFact, Readings

from nodedevices_plugin.model import HealthState, InventoryDevice, PlanError, Unit, resource_names
from nodedevices_plugin.vendors.base import Naming, Vendor, text, unlike_most, whole_or_partitions
from nodedevices_plugin.vendors.faults import PCIE_MEANINGS, Effect, FaultCondition, Meaning, hot, node_missing

DEFAULT_PREFIX = "amd.com"
ALWAYS = "mixed"  # a GPU that is cut has only partitions, under any name
# allocator/device.go of AMD's plugin: the smaller the sum, the better. Greater than any sum is the score's zero.
ZERO = 100
SAME_GPU, OTHER_GPU = 10, 20
XGMI, NO_LINK = 10, 50
PCIE = 40
SAME_NUMA, OTHER_NUMA = 10, 20

MEANINGS: Mapping[str, Meaning] = {
    kmsg.AMDGPU_RESET_FAILED: Meaning(
        reason="GpuResetFailed",
        effect=Effect.UNHEALTHY,
        message="the driver tried to reset the GPU, and failed (amdgpu)",
        action="RebootNode",
    ),
    kmsg.AMDGPU_RESET: Meaning(
        reason="GpuReset",
        effect=Effect.DEGRADED,
        message="the driver has reset the GPU, and ended what ran on it (amdgpu)",
    ),
    kmsg.AMDGPU_RING_TIMEOUT: Meaning(
        reason="RingTimeout",
        effect=Effect.NOTICE,
        message="a job on the GPU did not end in time (amdgpu: ring timeout)",
        action="RestartApp",
        repair="ResetDevice",
        domain="Application",
    ),
    kmsg.AMDGPU_UNCORRECTABLE: Meaning(
        reason="RasUncorrectable",
        effect=Effect.NOTICE,
        message="the driver has logged uncorrectable errors of the GPU (amdgpu)",
        repair="ResetDevice",
    ),
    **PCIE_MEANINGS,
}


class Amd(Vendor):
    name = VENDOR
    types = frozenset({"gpu"})
    meanings = MEANINGS

    def units(self, devices: Sequence[InventoryDevice], *, strategy: str, excluded: Set[str]) -> Sequence[Unit]:
        """A GPU that was cut again while a pod holds an earlier partition is taken as it is now; that partition stays
        with it, and does not make the others refused."""
        found = [unit for device in devices for unit in whole_or_partitions(device, ALWAYS)]
        kinds: dict[str, set[str]] = {}
        for unit in found:
            if unit.device.present and unit.id not in excluded and unit.id not in unit.device.departed_partitions:
                kinds.setdefault(unit.device.fact.id, set()).add(_profile(unit) or "whole")
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

    def read(self, readings: Readings) -> tuple[FaultCondition, ...]:
        errors = readings.ecc_uncorrectable_volatile
        return (
            FaultCondition(
                reason="PageRetirementFailure",
                state=HealthState.UNHEALTHY,
                message="GPU memory pages with errors can no longer be retired",
                evident=readings.remap_failure,
                action="Replace",
            ),
            FaultCondition(
                reason="EccUncorrectable",
                state=HealthState.UNHEALTHY,
                message="uncorrectable errors since the driver was loaded or the GPU reset",
                evident=None if errors is None else errors > 0,
                action="ResetDevice",
                ends_by_itself=True,
            ),
            node_missing(readings),
            FaultCondition(
                reason="ExporterUnhealthy",
                state=HealthState.UNHEALTHY,
                message="AMD's device metrics exporter calls the GPU unhealthy; its metrics say why",
                evident=EXPORTER_UNHEALTHY in readings.conditions,
                action="Inspect",
                ends_by_itself=True,
            ),
            FaultCondition(
                reason="PageRetirementPending",
                state=HealthState.DEGRADED,
                message="GPU memory pages wait to be retired at the next reset",
                evident=readings.remap_pending,
                action="ResetDevice",
                ends_by_itself=True,
            ),
            hot(readings),
        )


def _profile(unit: Unit) -> str:
    """`cpx_nps4`; "" for a GPU that cannot be cut."""
    if unit.partition is not None:
        return resource_names.plain_profile(unit.partition.profile)
    return text(unit.device.fact, PROFILE)
