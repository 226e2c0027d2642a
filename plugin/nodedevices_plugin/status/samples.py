"""What a scrape reads of the agent's state: each sample is a row, the values of its labels, and its own value.

A row without samples is not shown: what is gone leaves no series, and a node that shares no memory has none of that.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from nodedevices_common.metrics import MetricRow, Sample, counter, gauge, rows
from nodedevices_probe.protocol import memory_bytes
from prometheus_client import Gauge

from nodedevices_plugin.model import (
    DraCounters,
    HealthState,
    HoldersState,
    InventoryDevice,
    ProbeCounters,
    RegistrationState,
    facts_by_id,
)
from nodedevices_plugin.model.ids import memory_held, physical_id
from nodedevices_plugin.runtime.supervise import Supervisor
from nodedevices_plugin.status.facts import (
    NodeFacts,
    loaded_drivers,
    missing_parts,
    resource_counts,
    share_counts,
)

# Of nodedevices_devices. missing: the driver no longer lists it. unschedulable: well, and taken out of service by hand.
DEVICE_STATES = (*(state.value.lower() for state in HealthState), "missing", "unschedulable")
DEVICE = "index uuid"  # labels of what is said of a device
CONTAINER = "resource namespace pod container"

PROBE_LINES = counter("nodedevices_probe_lines_total", "Total valid lines from the probe.", "probe")
PROBE_BAD_LINES = counter("nodedevices_probe_bad_lines_total", "Total invalid lines from the probe.", "probe")
PROBE_STARTS = counter(
    "nodedevices_probe_starts_total", "Total starts of the probe's process, or connections to its socket.", "probe"
)
PROBE_KILLS = counter(
    "nodedevices_probe_kills_total",
    "Total probe processes killed, or connections closed, because the probe was silent.",
    "probe",
)
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
PROBE_LAST_LINE = gauge(
    "nodedevices_probe_last_line_timestamp_seconds",
    "Unix time of the probe's last valid line; 0: none yet.",
    "probe",
)
DRIVER = gauge("nodedevices_driver_info", "1 for each loaded driver.", "name version cuda_version")
DEVICES = gauge(
    "nodedevices_devices",
    "Number of devices: `healthy`, `degraded`, `unhealthy`, `unknown`, `missing` (the driver no longer lists it), or "
    "`unschedulable` (healthy or degraded, but taken out of service by hand).",
    "state",
)
DEVICE_INFO = gauge(
    "nodedevices_device_info",
    "1 for each device, with its properties.",
    f"{DEVICE} type vendor model pci_bus_id numa_node",
)
DEVICE_HEALTHY = gauge("nodedevices_device_healthy", "Whether the kubelet gets the device as Healthy.", DEVICE)
DEVICE_SINCE = gauge(
    "nodedevices_device_health_last_transition_timestamp_seconds",
    "Unix time of the last change of the device's state or reason.",
    DEVICE,
)
DEVICE_UNWELL = gauge(
    "nodedevices_device_unwell",
    "1 for each device that is not Healthy, with state and reason.",
    f"{DEVICE} state reason recovery_action",
)
DEVICE_FAULTS = gauge(
    "nodedevices_device_faults",
    "Number of faults in the last 80 to 90 days, without applications' own errors.",
    f"{DEVICE} reason",
)
HOLDERS = gauge("nodedevices_device_holders", "Number of containers that hold the device.", DEVICE)
HOLDER = gauge(
    "nodedevices_device_holder",
    "1 for each container that holds the device or part of it.",
    f"{DEVICE} {CONTAINER}",
)
IDLE_SECONDS = gauge(
    "nodedevices_device_idle_seconds",
    "Time for which the container has not used the device (`NeverUsed`, `Idle`, `MemoryOnly`), if a policy has "
    "`idle.afterSeconds`.",
    f"{DEVICE} {CONTAINER} idle",
)
HELD_SECONDS = counter(
    "nodedevices_device_held_seconds_total",
    "Total device-seconds that containers held devices that compute, if a policy has `idle.afterSeconds`.",
    "namespace",
)
UNUSED_SECONDS = counter(
    "nodedevices_device_unused_seconds_total",
    "Total of those device-seconds without use; an idle period counts once it is shown.",
    "namespace",
)
HOLDER_MEMORY = gauge(
    "nodedevices_device_holder_memory_bytes",
    "Memory of a device [shared by memory](sharing.md#by-memory) that the container holds.",
    f"{DEVICE} {CONTAINER}",
)
MEMORY_SHARES = gauge(
    "nodedevices_device_memory_shares_bytes",
    "Memory of a device shared by memory: `held`, `free`, `not_offered` (unhealthy, or waiting for holders of another "
    "configuration), `unallocatable` (reserve, remainder). The sum is the device's memory; only `held` counts once "
    "the driver no longer lists it.",
    f"{DEVICE} resource state",
)
RESOURCE_CAPACITY = gauge("nodedevices_resource_capacity", "Number of ids, healthy or not.", "resource")
RESOURCE_HEALTHY = gauge("nodedevices_resource_healthy", "Number of ids that the kubelet gets as Healthy.", "resource")
WITHHELD_IDS = gauge(
    "nodedevices_withheld_ids",
    "Number of ids that the kubelet does not get as Healthy, by [reason](troubleshooting.md#why-ids-are-withheld).",
    "resource reason",
)
RESOURCE_ALLOCATED = gauge("nodedevices_resource_allocated", "Number of ids that containers hold.", "resource")
RESOURCE_REGISTERED = gauge(
    "nodedevices_resource_registered", "Whether the resource is registered with the kubelet.", "resource"
)
RESOURCE_SERVED_BY_ANOTHER = gauge(
    "nodedevices_resource_served_by_another",
    "Whether the agent waits for another device plugin that serves the resource.",
    "resource",
)
HOLDERS_KNOWN = gauge("nodedevices_holders_known", "Whether the list of holders is up to date.")
DOUBLE_ALLOCATIONS = gauge(
    "nodedevices_double_allocations",
    "Number of devices, partitions and shares that the kubelet gave to more than one pod; see the condition "
    "AllocatedOnce.",
)
PREPARED_CLAIMS = gauge(
    "nodedevices_prepared_claims",
    "Number of prepared ResourceClaims.",
    "driver",
)
SLICE_WRITES = counter(
    "nodedevices_resource_slice_writes_total",
    "Total writes of ResourceSlices; a pod that starts or ends causes none.",
    "driver",
)
CDI_PROBLEM = gauge(
    "nodedevices_cdi_problem",
    "Whether a CDI specification is missing or broken. `source`: of the driver's libraries ([named](injection.md#cdi) "
    "in `ConfigApplied`); `file`: the agent's own, which cannot be written.",
    "what",
)
CONFIG = gauge("nodedevices_config", "1 for the reason of the condition `ConfigApplied`.", "reason")
CONFIG_GENERATION = gauge(
    "nodedevices_config_observed_generation", "Generation of this node's NodeDevices that the agent last read."
)


def of_the_agent(probes: Mapping[str, ProbeCounters], parts: Supervisor) -> Iterator[Sample]:
    for probe, counters in probes.items():
        yield PROBE_LINES, [probe], counters.lines
        yield PROBE_BAD_LINES, [probe], counters.bad_lines
        yield PROBE_STARTS, [probe], counters.starts
        yield PROBE_KILLS, [probe], counters.kills
    for part, count in sorted(parts.failures().items()):
        yield INTERNAL_ERRORS, [part], count
    for worker, seconds in sorted(parts.busy().items()):
        yield WORKER_CALL, [worker], seconds


def of_claims(dra: DraCounters) -> Iterator[Sample]:
    yield PREPARED_CLAIMS, [dra.driver], dra.prepared
    yield SLICE_WRITES, [dra.driver], dra.slice_writes


def of_the_node(facts: NodeFacts) -> Iterator[Sample]:
    yield from _devices(facts)
    yield from _holders(facts)
    yield from _memory_shares(facts)
    yield from _resources(facts)
    yield from _configuration(facts)
    for probe in facts.probes:
        line = probe.inventory.line_time
        yield PROBE_LAST_LINE, [probe.name], line.timestamp() if line is not None else 0
    for driver in loaded_drivers(facts):
        yield DRIVER, [driver.name, driver.version or "", driver.cuda_version or ""], 1


def labels(device: InventoryDevice) -> tuple[str, str]:
    """Return its index and its id."""
    return str(device.fact.index), device.fact.id


def _devices(facts: NodeFacts) -> Iterator[Sample]:
    tally: Counter[str] = Counter()
    for device in facts.inventory.devices:
        fact, where = device.fact, labels(device)
        numa = "" if fact.numa_node is None else str(fact.numa_node)
        what = fact.type, fact.vendor or "", fact.product_name or "", fact.pci_bus_id or "", numa
        yield DEVICE_INFO, (*where, *what), 1
        for occurrences in facts.world.state.history.get(fact.id, ()):
            if occurrences.is_fault:
                yield DEVICE_FAULTS, (*where, occurrences.reason), occurrences.shown.count
        verdict = facts.verdicts.get(fact.id)
        if verdict is None:
            continue
        state = verdict.state.value.lower()
        cordoned = fact.id in facts.unschedulable
        in_service = not (cordoned and verdict.state in {HealthState.HEALTHY, HealthState.DEGRADED})
        tally["missing" if not device.present else state if in_service else "unschedulable"] += 1
        yield DEVICE_HEALTHY, where, verdict.offered and not cordoned
        yield DEVICE_SINCE, where, verdict.since.timestamp()
        if verdict.state is not HealthState.HEALTHY:
            yield DEVICE_UNWELL, (*where, state, verdict.reason, verdict.recovery_action), 1
    for state in DEVICE_STATES:
        yield DEVICES, [state], tally[state]


def _holders(facts: NodeFacts) -> Iterator[Sample]:
    held, uses = _held(facts), facts.world.uses
    for device in facts.inventory.devices:
        where = labels(device)
        yield HOLDERS, where, sum(len(held[id_]) for id_ in device.ids)
        for holder in sorted({holder for id_ in device.ids for holder in held[id_]}):
            yield HOLDER, (*where, *holder), 1
            if uses is not None and (use := uses.devices.get(device.fact.id)) and use.since is not None:
                yield IDLE_SECONDS, (*where, *holder, use.word), max(0.0, (facts.now - use.since).total_seconds())
    for namespace, seconds in uses.namespaces.items() if uses is not None else ():
        yield HELD_SECONDS, [namespace], seconds.held
        yield UNUSED_SECONDS, [namespace], seconds.unused


def _held(facts: NodeFacts) -> defaultdict[str, list[tuple[str, str, str, str]]]:
    """Device or partition id -> resource, namespace, pod and container of each that has it, by a device plugin or a
    claim."""
    held: defaultdict[str, list[tuple[str, str, str, str]]] = defaultdict(list)
    for holder in facts.world.holdings.holders:
        for part_id in {*map(physical_id, holder.ids), *holder.also}:
            held[part_id].append((holder.resource or "", holder.namespace, holder.pod, holder.container))
    return held


def _memory_shares(facts: NodeFacts) -> Iterator[Sample]:
    """Nothing where no device is shared by memory."""
    devices, missing = facts_by_id(facts.inventory), missing_parts(facts.inventory)
    of_device: defaultdict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for count in share_counts(facts):
        memory, unallocatable = count.resource.sharing.memory, count.unallocatable_bytes
        if memory is None or unallocatable is None or count.device_id not in devices:
            continue
        amounts = {"held": count.held * memory.unit_bytes, "free": 0, "not_offered": 0, "unallocatable": 0}
        if count.part not in missing:
            amounts["free"] = count.free * memory.unit_bytes
            amounts["not_offered"] = count.not_offered * memory.unit_bytes
            amounts["unallocatable"] = unallocatable
        device = devices[count.device_id]
        of_device[str(device.index), device.id, count.resource.name].update(amounts)
    for where, amounts in of_device.items():
        for state, amount in amounts.items():
            yield MEMORY_SHARES, (*where, state), amount
    held: Counter[tuple[str, ...]] = Counter()
    for holder in facts.world.holdings.holders:
        who = (holder.resource or "", holder.namespace, holder.pod, holder.container)
        for part, size in memory_held(holder.ids).items():
            if (fact := devices.get(part)) is not None:
                held[str(fact.index), fact.id, *who] += size
    for container, amount in sorted(held.items()):
        yield HOLDER_MEMORY, container, amount


def _resources(facts: NodeFacts) -> Iterator[Sample]:
    for counts in resource_counts(facts):
        name = counts.resource.name
        yield RESOURCE_CAPACITY, [name], counts.capacity
        yield RESOURCE_HEALTHY, [name], counts.healthy
        yield RESOURCE_ALLOCATED, [name], counts.allocated
        for why in counts.withheld:
            yield WITHHELD_IDS, [name, why.reason], len(why.ids)
    for registration in facts.registrations:
        yield RESOURCE_REGISTERED, [registration.resource], registration.state is RegistrationState.REGISTERED
        yield (
            RESOURCE_SERVED_BY_ANOTHER,
            [registration.resource],
            registration.state is RegistrationState.SERVED_BY_ANOTHER,
        )
    yield HOLDERS_KNOWN, [], facts.world.holdings.state is HoldersState.SYNCED
    yield DOUBLE_ALLOCATIONS, [], len(facts.world.allocations.found or ())


def _configuration(facts: NodeFacts) -> Iterator[Sample]:
    yield CDI_PROBLEM, ["source"], bool(facts.config.cdi_problem)
    yield CDI_PROBLEM, ["file"], bool(facts.problems.get("CDI"))
    yield CONFIG, [facts.config.reason], 1
    if facts.config.generation is not None:
        yield CONFIG_GENERATION, [], facts.config.generation


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
