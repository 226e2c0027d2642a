"""AMD's GPUs: those that the amdgpu driver has, what KFD says of them, and what bears on their health.

A GPU is one device, by its PCI address, as AMD's device plugin has it. Where it is cut into compute partitions (CPX,
DPX, ...) each of these is a partition of it, `<PCI address>-xcp-<n>`: AMD's `amdgpu_xcp_<n>` counts through all GPUs of
a boot, and would be another partition's after a GPU failed.

Sources of the readings: amdgpu_ras.c and amdgpu_pm.c of the Linux kernel, and its hwmon interface (millidegrees,
microwatts, Hz).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

from nodedevices_api.bounds import INT32_MAX, MAX_PARTITIONS

from nodedevices_probe.amd import EXPORTER_UNHEALTHY, KFD_NODE, PROFILE, VENDOR
from nodedevices_probe.amd.exporter import Exporter
from nodedevices_probe.amd.kfd import KfdNode, by_gpu, gpu_nodes, memory_of_processes, partition_numbers
from nodedevices_probe.loop import SourceFacts
from nodedevices_probe.node.roots import Roots
from nodedevices_probe.node.sysfs import Drm, System, drm, hwmon, node_conditions, sensors
from nodedevices_probe.protocol import MAX_INTEGER, MAX_SMALL, DeviceFact, Link, Partition, Readings, within
from nodedevices_probe.source import SysfsSource, attributes

# --- what bears on health, and telemetry ------------------------------------------------------------------------------
MAX_BAD_PAGES_BYTES = 1 << 16
_ERRORS = re.compile(r"^ue: ([0-9]{1,18})$", re.MULTILINE)  # ras/*_err_count: uncorrectable
_BAD_PAGE = re.compile(r": ([RPF])$", re.MULTILINE)  # ras/gpu_vram_bad_pages: retired, pending, cannot be retired


def read(roots: Roots, at: str, device_nodes: Sequence[str]) -> Readings:
    """Read the GPU whose folder is `at`; `device_nodes` are those that its containers need."""
    bad_pages = roots.said(f"{at}/ras/gpu_vram_bad_pages", MAX_BAD_PAGES_BYTES)
    pages = None if bad_pages is None else _BAD_PAGE.findall(bad_pages)
    return replace(
        sensors(roots, at, shown="junction"),
        remap_pending=None if pages is None else "P" in pages,
        remap_failure=None if pages is None else "F" in pages,
        remapped_uncorrectable=None if pages is None else pages.count("R"),
        ecc_uncorrectable_volatile=_uncorrectable(roots, f"{at}/ras"),
        conditions=node_conditions(roots, device_nodes),
    )


def _uncorrectable(roots: Roots, ras: str) -> int | None:
    """Return how many errors all blocks had. None: none says so, or those that do have none and another does not."""
    counts = [_ERRORS.findall(roots.read(f"{ras}/{name}")) for name in roots.names(ras) if name.endswith("_err_count")]
    total = sum(int(number) for count in counts for number in count)
    return min(total, MAX_INTEGER) if total or (counts and all(counts)) else None


def with_use(readings: Readings, roots: Roots, at: str, held: Sequence[int] | None) -> Readings:
    """The same with who uses the GPU. `held`: memory of each process that has some (kfd); None: not known."""
    return replace(
        readings,
        processes=None if held is None else min(len(held), MAX_SMALL),
        memory_allocated_bytes=None if held is None else min(sum(held), MAX_INTEGER),
        utilization_percent=_busy(roots, at),
    )


def _busy(roots: Roots, at: str) -> int | None:
    return within(roots.number(f"{at}/gpu_busy_percent"), 0, 100)


def with_telemetry(readings: Readings, roots: Roots, at: str) -> Readings:
    """The same with what says nothing about health."""
    sensors_at = hwmon(roots, at)
    fan, clock, memory_clock = (
        roots.number(f"{sensors_at}/{file}") if sensors_at else None for file in ("pwm1", "freq1_input", "freq2_input")
    )
    return replace(
        readings,
        fan_percent=within(fan * 100 // 255, 0, 100) if fan is not None else None,
        utilization_percent=_busy(roots, at),
        memory_used_bytes=within(roots.number(f"{at}/mem_info_vram_used"), 0, MAX_INTEGER),
        sm_clock_mhz=within(clock, 0, MAX_SMALL, per=1_000_000),
        memory_clock_mhz=within(memory_clock, 0, MAX_SMALL, per=1_000_000),
    )


# --- GPUs and their partitions ----------------------------------------------------------------------------------------
PCI_VENDOR = "0x1002"
MODULE = "amdgpu"
BOUND = f"sys/module/{MODULE}/drivers/pci:amdgpu"
PLATFORM = "sys/devices/platform"  # where partitions beyond the first have their DRM nodes
NO_KFD = "KFD lists no node for it: the driver cannot use it for computing"
MAX_LINKS = 64
COMPUTE, MEMORY = "current_compute_partition", "current_memory_partition"  # EPERM while the GPU is being reset
WHOLE = "spx"  # the compute partition of a GPU that is one
RENDER_MINORS = (128, MAX_INTEGER)
_XCP = re.compile(r"amdgpu_xcp_[0-9]{1,5}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Topology:
    """Facts about several GPUs."""

    nodes: Mapping[str, list[KfdNode]]  # of each GPU, by PCI address
    owners: Mapping[int, str]  # KFD's number -> PCI address
    unhealthy: Set[str]  # PCI addresses of GPUs that AMD's exporter calls so
    partition_nodes: Mapping[int | None, Drm]  # of partitions beyond the first of each GPU, by their render node
    in_use: Mapping[str, Sequence[int]] | None  # memory of each process, by PCI address; None: not read, or not said

    def links(self, bus_id: str) -> tuple[Link, ...]:
        linked = {self.owners[to] for node in self.nodes.get(bus_id, ()) for to in node.xgmi if to in self.owners}
        return tuple(Link(kind="XGMI", to=to, count=1) for to in sorted(linked - {bus_id})[:MAX_LINKS])


@dataclass(slots=True, kw_only=True)
class AmdSource(SysfsSource):
    name: str = "amd"
    telemetry: bool = False
    exporter: Exporter = field(default_factory=Exporter)  # AMD's, whose socket is looked for below the same root

    def poll(self) -> SourceFacts:
        return self.gpus((MODULE,), PCI_VENDOR, (BOUND,), self._devices)

    def _devices(self) -> list[DeviceFact]:
        bus_ids = self.system.bus_ids(BOUND)
        nodes = by_gpu(gpu_nodes(self.roots), bus_ids)
        topology = _Topology(
            nodes=nodes,
            owners={node.number: bus_id for bus_id, some in nodes.items() for node in some},
            partition_nodes={
                node.render: node
                for name in self.roots.names(PLATFORM)
                if _XCP.fullmatch(name) and (node := drm(self.roots, f"{PLATFORM}/{name}")).render is not None
            },
            unhealthy=self.exporter.unhealthy(self.roots),
            in_use=memory_of_processes(self.roots, nodes) if self.use else None,
        )
        return [self._device(id_, topology) for id_ in bus_ids]

    def _device(self, bus_id: str, topology: _Topology) -> DeviceFact:
        at, nodes = f"{BOUND}/{bus_id}", topology.nodes.get(bus_id, [])
        nodes_of, profile = drm(self.roots, at), self._profile(at)
        partitions = _partitions(bus_id, nodes, profile, {**topology.partition_nodes, nodes_of.render: nodes_of})
        memory = sum(node.memory_bytes for node in nodes) or self.roots.number(f"{at}/mem_info_vram_total") or 0
        error = self.roots.unsaid(at, COMPUTE, MEMORY) or (None if nodes else NO_KFD)
        own = _with_kfd(nodes_of)
        needed = dict.fromkeys((*own, *(node for part in partitions for node in part.device_nodes)))
        unique = self.roots.number(f"{at}/unique_id", 16)
        return DeviceFact(
            id=bus_id,
            index=0,
            type="gpu",
            vendor=VENDOR,
            uuid=f"{unique:016x}" if unique and unique > 0 else "",
            product_name=self.roots.word(f"{at}/product_name"),
            brand="AMD",
            architecture=next((node.gfx for node in nodes if node.gfx), ""),
            firmware=self.roots.word(f"{at}/vbios_version"),
            pci_bus_id=bus_id,
            extra=attributes(
                {
                    "deviceID": self.roots.word(f"{at}/device").removeprefix("0x"),
                    PROFILE: profile,
                    "partitionable": self.roots.exists(f"{at}/available_compute_partition"),
                    "memoryPartitionable": self.roots.exists(f"{at}/available_memory_partition"),
                }
            ),
            capacity=_capacity(memory, nodes),
            partitions=partitions,
            links=topology.links(bus_id),
            device_nodes=own,
            readings=self._readings(bus_id, at, tuple(needed), topology) if error is None else Readings(error=error),
        )

    def _readings(self, bus_id: str, at: str, needed: tuple[str, ...], topology: _Topology) -> Readings:
        found = read(self.roots, at, needed)
        if self.telemetry:
            found = with_telemetry(found, self.roots, at)
        if self.use:
            held = None if topology.in_use is None else topology.in_use.get(bus_id, ())
            found = with_use(found, self.roots, at, held)
        unhealthy = (EXPORTER_UNHEALTHY,) if bus_id in topology.unhealthy else ()
        return replace(found, conditions=(*found.conditions, *unhealthy))

    def _profile(self, at: str) -> str:
        """`cpx_nps4`, as AMD's resources are called; "" where the GPU cannot be partitioned."""
        compute = self.roots.word(f"{at}/{COMPUTE}").lower()
        memory = self.roots.word(f"{at}/{MEMORY}").lower()
        both = f"{compute}_{memory}" if compute and memory else compute
        return both if re.fullmatch(r"[a-z0-9]{1,16}(_[a-z0-9]{1,16})?", both) else ""


def _partitions(
    bus_id: str, nodes: Sequence[KfdNode], profile: str, nodes_of: Mapping[int | None, Drm]
) -> tuple[Partition, ...]:
    """By number; none where the GPU is whole. A partition has the DRM nodes of its render node, else that one alone."""
    # KFD has room for 64 nodes, so of a GPU that is cut it may list one.
    if len(nodes) < 2 and (not profile or profile.startswith(WHOLE)):
        return ()
    numbered = sorted(zip(partition_numbers(bus_id, nodes), nodes, strict=True), key=lambda pair: pair[0])
    return tuple(
        Partition(
            id=f"{bus_id}-xcp-{index}",
            profile=profile or "xcp",
            index=index,
            capacity=_capacity(node.memory_bytes, [node]),
            device_nodes=_with_kfd(
                nodes_of.get(node.render_minor) or Drm(render=within(node.render_minor, *RENDER_MINORS))
            ),
        )
        for index, node in numbered[:MAX_PARTITIONS]
    )


def _with_kfd(own: Drm) -> tuple[str, ...]:
    """Return what a container needs: `/dev/kfd`, which all GPUs share, and the DRM nodes of its own."""
    return (KFD_NODE, *own.nodes)


def _capacity(memory_bytes: int, nodes: Sequence[KfdNode]) -> dict[str, str]:
    """Return the capacity in the words of AMD's DRA driver."""
    amounts = (
        ("memory", "Mi", memory_bytes >> 20),
        ("computeUnits", "", sum(node.compute_units for node in nodes)),
        ("simds", "", sum(node.simds for node in nodes)),
    )
    return {name: f"{amount}{unit}" for name, unit, amount in amounts if 0 < amount <= INT32_MAX}


def source(options: argparse.Namespace) -> AmdSource:
    return AmdSource(
        system=System(options.root, Path(options.driver_root_ctr_path)),
        telemetry=options.telemetry,
        poll_seconds=options.interval_seconds,
    )
