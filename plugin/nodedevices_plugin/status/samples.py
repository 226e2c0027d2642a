"""Samples: the metrics that a scrape reads from the agent's state. A table says of each metric what it is and where its
series come from: the values of the labels, and the metric's own.

A row without series is not shown: what is gone leaves none, and a node that shares no memory has none of that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from nodedevices_common.grouping import grouped
from nodedevices_common.metrics import MetricRow, Sample, SampleRow, counter, gauge, rows
from nodedevices_probe.protocol import DeviceFact, memory_bytes
from prometheus_client import Gauge

from nodedevices_plugin.model import (
    DraCounters,
    HealthState,
    HoldersState,
    InventoryDevice,
    ProbeCounters,
    RegistrationState,
    Uses,
    Verdict,
    facts_by_id,
    memory_held,
    physical_id,
)
from nodedevices_plugin.runtime.supervise import Supervisor
from nodedevices_plugin.status.facts import (
    NodeFacts,
    ResourceCounts,
    loaded_drivers,
    missing_parts,
    resource_counts,
    share_counts,
)

Series = Iterable[tuple[Sequence[str], float]]
Who = tuple[str, str, str, str]  # resource, namespace, pod and container

# Of nodedevices_devices. missing: the driver no longer lists it. unschedulable: well, and taken out of service by hand.
DEVICE_STATES = (*(state.value.lower() for state in HealthState), "missing", "unschedulable")
DEVICE = "index uuid"  # labels of what is said of a device
CONTAINER = "resource namespace pod container"


@dataclass(frozen=True)
class Scraped:
    """A node at one scrape; what several metrics show is computed once."""

    facts: NodeFacts

    @property
    def devices(self) -> tuple[InventoryDevice, ...]:
        return self.facts.inventory.devices

    @property
    def uses(self) -> Uses:
        return self.facts.world.uses or Uses(at=0.0)

    @cached_property
    def judged(self) -> tuple[tuple[InventoryDevice, Verdict], ...]:
        found = ((device, self.facts.verdicts.get(device.fact.id)) for device in self.devices)
        return tuple((device, verdict) for device, verdict in found if verdict is not None)

    @cached_property
    def held(self) -> tuple[tuple[InventoryDevice, list[Who]], ...]:
        """Each device with the containers that have it or a partition of it, by a device plugin or a claim."""
        by_part = grouped(
            (part_id, (holder.resource or "", holder.namespace, holder.pod, holder.container))
            for holder in self.facts.world.holdings.holders
            for part_id in {*map(physical_id, holder.ids), *holder.also}
        )
        return tuple((device, [who for id_ in device.ids for who in by_part.get(id_, ())]) for device in self.devices)

    @cached_property
    def resources(self) -> tuple[ResourceCounts, ...]:
        return tuple(resource_counts(self.facts))

    def registered(self, state: RegistrationState) -> Series:
        """Whether each resource's registration is in this state."""
        return (((found.resource,), found.state is state) for found in self.facts.registrations)


def labels(device: InventoryDevice) -> tuple[str, str]:
    """Return its index and its id."""
    return str(device.fact.index), device.fact.id


def _described(fact: DeviceFact) -> tuple[str, ...]:
    numa = "" if fact.numa_node is None else str(fact.numa_node)
    return fact.type, fact.vendor or "", fact.product_name or "", fact.pci_bus_id or "", numa


def _states(node: Scraped) -> Series:
    tally: Counter[str] = Counter()
    for device, verdict in node.judged:
        well = verdict.state in {HealthState.HEALTHY, HealthState.DEGRADED}
        state = "unschedulable" if well and device.fact.id in node.facts.unschedulable else verdict.state.value.lower()
        tally[state if device.present else "missing"] += 1
    return (((state,), tally[state]) for state in DEVICE_STATES)


def _memory_shares(node: Scraped) -> Series:
    """Nothing where no device is shared by memory."""
    devices, missing = facts_by_id(node.facts.inventory), missing_parts(node.facts.inventory)
    found: Counter[tuple[str, ...]] = Counter()
    for count in share_counts(node.facts):
        memory, unallocatable = count.resource.sharing.memory, count.unallocatable_bytes
        if memory is None or unallocatable is None or count.device_id not in devices:
            continue
        there = count.part not in missing
        where = (str(devices[count.device_id].index), count.device_id, count.resource.name)
        found[*where, "held"] += count.held * memory.unit_bytes
        found[*where, "free"] += count.free * memory.unit_bytes * there
        found[*where, "not_offered"] += count.not_offered * memory.unit_bytes * there
        found[*where, "unallocatable"] += unallocatable * there
    return found.items()


def _holder_memory(node: Scraped) -> Series:
    devices = facts_by_id(node.facts.inventory)
    held: Counter[tuple[str, ...]] = Counter()
    for holder in node.facts.world.holdings.holders:
        who = (holder.resource or "", holder.namespace, holder.pod, holder.container)
        for part, size in memory_held(holder.ids).items():
            if (fact := devices.get(part)) is not None:
                held[str(fact.index), fact.id, *who] += size
    return sorted(held.items())


PROBES: dict[SampleRow, Callable[[ProbeCounters], int]] = {
    counter("nodedevices_probe_lines_total", "Total valid lines from the probe.", "probe"): lambda counters: (
        counters.lines
    ),
    counter("nodedevices_probe_bad_lines_total", "Total invalid lines from the probe.", "probe"): lambda counters: (
        counters.bad_lines
    ),
    counter(
        "nodedevices_probe_starts_total", "Total starts of the probe's process, or connections to its socket.", "probe"
    ): lambda counters: counters.starts,
    counter(
        "nodedevices_probe_kills_total",
        "Total probe processes killed, or connections closed, because the probe was silent.",
        "probe",
    ): lambda counters: counters.kills,
}
INTERNAL_ERRORS = counter(
    "nodedevices_internal_errors_total",
    "Total failures of background tasks caused by bugs; each task was restarted.",
    "part",
)
WORKER_CALL = gauge(
    "nodedevices_worker_call_seconds",
    "Duration of a background thread's current call; it grows while a disk or mount hangs.",
    "worker",
)
PREPARED_CLAIMS = gauge("nodedevices_prepared_claims", "Number of prepared ResourceClaims.", "driver")
SLICE_WRITES = counter(
    "nodedevices_resource_slice_writes_total",
    "Total writes of ResourceSlices; a pod that starts or ends causes none.",
    "driver",
)
NODE: dict[SampleRow, Callable[[Scraped], Series]] = {
    gauge(
        "nodedevices_probe_last_line_timestamp_seconds",
        "Unix time of the probe's last valid line; 0: none yet.",
        "probe",
    ): lambda node: (
        ((probe.name,), line.timestamp() if (line := probe.inventory.line_time) is not None else 0)
        for probe in node.facts.probes
    ),
    gauge("nodedevices_driver_info", "1 for each loaded driver.", "name version cuda_version"): lambda node: (
        ((driver.name, driver.version or "", driver.cuda_version or ""), 1) for driver in loaded_drivers(node.facts)
    ),
    gauge(
        "nodedevices_devices",
        "Number of devices: `healthy`, `degraded`, `unhealthy`, `unknown`, `missing` (the driver no longer lists it), "
        "or `unschedulable` (healthy or degraded, but taken out of service by hand).",
        "state",
    ): _states,
    gauge(
        "nodedevices_device_info",
        "1 for each device, with its properties.",
        f"{DEVICE} type vendor model pci_bus_id numa_node",
    ): lambda node: (((*labels(device), *_described(device.fact)), 1) for device in node.devices),
    gauge("nodedevices_device_healthy", "Whether the kubelet gets the device as Healthy.", DEVICE): lambda node: (
        (labels(device), verdict.offered and device.fact.id not in node.facts.unschedulable)
        for device, verdict in node.judged
    ),
    gauge(
        "nodedevices_device_health_last_transition_timestamp_seconds",
        "Unix time of the last change of the device's state or reason.",
        DEVICE,
    ): lambda node: ((labels(device), verdict.since.timestamp()) for device, verdict in node.judged),
    gauge(
        "nodedevices_device_unwell",
        "1 for each device that is not Healthy, with state and reason.",
        f"{DEVICE} state reason recovery_action",
    ): lambda node: (
        ((*labels(device), verdict.state.value.lower(), verdict.reason, verdict.recovery_action), 1)
        for device, verdict in node.judged
        if verdict.state is not HealthState.HEALTHY
    ),
    gauge(
        "nodedevices_device_faults",
        "Number of faults in the last 80 to 90 days, without applications' own errors.",
        f"{DEVICE} reason",
    ): lambda node: (
        ((*labels(device), occurrences.reason), occurrences.shown.count)
        for device in node.devices
        for occurrences in node.facts.world.state.history.get(device.fact.id, ())
        if occurrences.is_fault
    ),
    gauge("nodedevices_device_holders", "Number of containers that hold the device.", DEVICE): lambda node: (
        (labels(device), len(holders)) for device, holders in node.held
    ),
    gauge(
        "nodedevices_device_holder",
        "1 for each container that holds the device or part of it.",
        f"{DEVICE} {CONTAINER}",
    ): lambda node: (
        ((*labels(device), *holder), 1) for device, holders in node.held for holder in sorted(set(holders))
    ),
    gauge(
        "nodedevices_device_idle_seconds",
        "Time for which the container has not used the device (`NeverUsed`, `Idle`, `MemoryOnly`), if a policy has "
        "`idle.afterSeconds`.",
        f"{DEVICE} {CONTAINER} idle",
    ): lambda node: (
        ((*labels(device), *holder, use.word), max(0.0, (node.facts.now - use.since).total_seconds()))
        for device, holders in node.held
        if (use := node.uses.devices.get(device.fact.id)) is not None and use.since is not None
        for holder in sorted(set(holders))
    ),
    counter(
        "nodedevices_device_held_seconds_total",
        "Total device-seconds that containers held devices that compute, if a policy has `idle.afterSeconds`.",
        "namespace",
    ): lambda node: (((namespace,), seconds.held) for namespace, seconds in node.uses.namespaces.items()),
    counter(
        "nodedevices_device_unused_seconds_total",
        "Total of those device-seconds without use; an idle period counts once it is shown.",
        "namespace",
    ): lambda node: (((namespace,), seconds.unused) for namespace, seconds in node.uses.namespaces.items()),
    gauge(
        "nodedevices_device_holder_memory_bytes",
        "Memory of a device [shared by memory](sharing.md#by-memory) that the container holds.",
        f"{DEVICE} {CONTAINER}",
    ): _holder_memory,
    gauge(
        "nodedevices_device_memory_shares_bytes",
        "Memory of a device shared by memory: `held`, `free`, `not_offered` (unhealthy, or waiting for holders of "
        "another configuration), `unallocatable` (reserve, remainder). The sum is the device's memory; only `held` "
        "counts once the driver no longer lists it.",
        f"{DEVICE} resource state",
    ): _memory_shares,
    gauge("nodedevices_resource_capacity", "Number of ids, healthy or not.", "resource"): lambda node: (
        ((counts.resource.name,), counts.capacity) for counts in node.resources
    ),
    gauge("nodedevices_resource_healthy", "Number of ids that the kubelet gets as Healthy.", "resource"): lambda node: (
        ((counts.resource.name,), counts.healthy) for counts in node.resources
    ),
    gauge(
        "nodedevices_withheld_ids",
        "Number of ids that the kubelet does not get as Healthy, by [reason](troubleshooting.md#why-ids-are-withheld).",
        "resource reason",
    ): lambda node: (
        ((counts.resource.name, why.reason), len(why.ids)) for counts in node.resources for why in counts.withheld
    ),
    gauge("nodedevices_resource_allocated", "Number of ids that containers hold.", "resource"): lambda node: (
        ((counts.resource.name,), counts.allocated) for counts in node.resources
    ),
    gauge(
        "nodedevices_resource_registered", "Whether the resource is registered with the kubelet.", "resource"
    ): lambda node: node.registered(RegistrationState.REGISTERED),
    gauge(
        "nodedevices_resource_served_by_another",
        "Whether the agent waits for another device plugin that serves the resource.",
        "resource",
    ): lambda node: node.registered(RegistrationState.SERVED_BY_ANOTHER),
    gauge("nodedevices_holders_known", "Whether the list of holders is up to date."): lambda node: (
        ((), node.facts.world.holdings.state is HoldersState.SYNCED),
    ),
    gauge(
        "nodedevices_double_allocations",
        "Number of devices, partitions and shares that the kubelet gave to more than one pod; see the condition "
        "AllocatedOnce.",
    ): lambda node: (((), len(node.facts.world.allocations.found or ())),),
    gauge(
        "nodedevices_cdi_problem",
        "Whether a CDI specification is missing or broken. `source`: of the driver's libraries "
        "([named](injection.md#cdi) in `ConfigApplied`); `file`: the agent's own, which cannot be written.",
        "what",
    ): lambda node: (
        (("source",), bool(node.facts.config.cdi_problem)),
        (("file",), bool(node.facts.problems.get("CDI"))),
    ),
    gauge("nodedevices_config", "1 for the reason of the condition `ConfigApplied`.", "reason"): lambda node: (
        ((node.facts.config.reason,), 1),
    ),
    gauge(
        "nodedevices_config_observed_generation", "Generation of this node's NodeDevices that the agent last read."
    ): lambda node: [((), generation) for generation in (node.facts.config.generation,) if generation is not None],
}
ROWS = rows((*PROBES, *NODE, INTERNAL_ERRORS, WORKER_CALL, PREPARED_CLAIMS, SLICE_WRITES))  # for docs/metrics.md


def of_the_agent(probes: Mapping[str, ProbeCounters], parts: Supervisor) -> Iterator[Sample]:
    for row, count in PROBES.items():
        yield from ((row, [probe], count(counters)) for probe, counters in probes.items())
    yield from ((INTERNAL_ERRORS, [part], failures) for part, failures in sorted(parts.failures().items()))
    yield from ((WORKER_CALL, [worker], seconds) for worker, seconds in sorted(parts.busy().items()))


def of_claims(dra: DraCounters) -> Iterator[Sample]:
    yield PREPARED_CLAIMS, [dra.driver], dra.prepared
    yield SLICE_WRITES, [dra.driver], dra.slice_writes


def of_the_node(facts: NodeFacts) -> Iterator[Sample]:
    node = Scraped(facts)
    for row, read in NODE.items():
        yield from ((row, series, value) for series, value in read(node))


# --- readings of devices, where telemetry is on: only those that the hardware gives ----------------------------------
def _gauge(name: str, text: str) -> MetricRow[Gauge]:
    return gauge(f"nodedevices_device_{name}", text, DEVICE)


# The reading's name, what it is multiplied by, and the metric.
_READINGS = (
    ("temperature_celsius", 1, _gauge("temperature_celsius", "Temperature of the device.")),
    (
        "temperature_margin_celsius",
        1,
        _gauge("temperature_margin_celsius", "Temperature left to the maximum at which the device may work."),
    ),
    ("power_milliwatts", 0.001, _gauge("power_watts", "Power drawn by the device.")),
    ("power_limit_milliwatts", 0.001, _gauge("power_limit_watts", "Maximum power of the device.")),
    ("fan_percent", 0.01, _gauge("fan_speed_ratio", "Fan speed as a share of its maximum, 0 to 1.")),
    (
        "utilization_percent",
        0.01,
        _gauge("utilization_ratio", "Share of time in which the device computed, 0 to 1."),
    ),
    ("memory_used_bytes", 1, _gauge("memory_used_bytes", "Used memory of the device.")),
    ("sm_clock_mhz", 1e6, _gauge("sm_clock_hertz", "Clock of the multiprocessors.")),
    ("memory_clock_mhz", 1e6, _gauge("memory_clock_hertz", "Clock of the memory.")),
    (
        "ecc_uncorrectable_volatile",
        1,
        _gauge("ecc_uncorrectable_volatile", "Total uncorrected ECC errors since the last reset."),
    ),
    (
        "ecc_uncorrectable_aggregate",
        1,
        _gauge("ecc_uncorrectable_aggregate", "Total uncorrected ECC errors of the device."),
    ),
    (
        "remapped_correctable",
        1,
        _gauge("remapped_rows_correctable", "Number of rows remapped for correctable errors."),
    ),
    (
        "remapped_uncorrectable",
        1,
        _gauge("remapped_rows_uncorrectable", "Number of rows remapped for uncorrectable errors."),
    ),
    ("remap_pending", 1, _gauge("remap_pending", "Whether a row remap waits for a reset.")),
    ("remap_failure", 1, _gauge("remap_failure", "Whether a row could not be remapped.")),
    ("nvlinks_inactive", 1, _gauge("nvlinks_inactive", "Number of NVLinks that are down.")),
    ("pcie_replays", 1, _gauge("pcie_replays", "Total PCIe replays.")),
    ("thermal_slowdown", 1, _gauge("thermal_slowdown", "Whether clocks are lowered because of the temperature.")),
    ("hw_slowdown", 1, _gauge("hw_slowdown", "Whether the hardware lowers the clocks, for any reason.")),
    ("power_brake", 1, _gauge("power_brake", "Whether clocks are lowered because the power supply asks for it.")),
)
_MEMORY = _gauge("memory_bytes", "Memory of the device.")
_ERRORS = gauge(
    "nodedevices_device_errors",
    "Total errors by the driver's counters, such as a NIC's `symbolError`; may restart at 0.",
    f"{DEVICE} counter",
)
TELEMETRY_ROWS = rows((_MEMORY, _ERRORS, *(row for _, _, row in _READINGS)))  # for docs/metrics.md


def of_readings(devices: tuple[InventoryDevice, ...]) -> Iterator[Sample]:
    for device in devices:
        for reading, factor, row in _READINGS if device.present else ():
            value = getattr(device.fact.readings, reading)
            if value is not None:
                yield row, labels(device), float(value) * factor
        for name, counted in device.fact.readings.counters.items() if device.present else ():
            yield _ERRORS, (*labels(device), name), counted
        if total := memory_bytes(device.fact.capacity):
            yield _MEMORY, labels(device), total
