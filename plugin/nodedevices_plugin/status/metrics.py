"""What the agent counts and shows at /metrics. All names begin with nodedevices_; each says itself what it is.

Counters and histograms are updated as things happen. Everything that is a state (devices, holders, registrations) is
read from the latest report's facts at each scrape, so that a device that is gone leaves no stale series. Labels are
bounded: a device's index and id, a resource's or a probe's name, a closed set of values. Pods are named by
device_holder and device_holder_memory_bytes alone, which have a series for each container that holds a device, and only
while it does. Durations of calls have no resource as label: a histogram has ten series.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

from nodedevices_common import __version__
from nodedevices_probe.protocol import DeviceFact, Readings, Snapshot, memory_bytes
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nodedevices_plugin.model import HealthState, HoldersState, InventoryDevice, RegistrationState, served_by_others
from nodedevices_plugin.model.kubelet_calls import KubeletCall, Method, Result
from nodedevices_plugin.model.probe_counters import ProbeCounters
from nodedevices_plugin.resources.ids import memory_held, physical_id
from nodedevices_plugin.runtime.supervise import Supervisor
from nodedevices_plugin.status.counts import allocated, loaded_drivers, missing_parts, reported_healthy, share_counts
from nodedevices_plugin.status.facts import Facts, offered
from nodedevices_plugin.status.withheld import withheld

MAX_XID_SERIES = 4096
# One more series for each counter and histogram, which Prometheus does not need.
disable_created_metrics()  # type: ignore[no-untyped-call]

LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0)
# Answers to the kubelet take less than a millisecond; inside Register it dials the agent, for up to 10 s.
CALL_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.025, 0.1, 1.0, 10.0)
READ_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0)  # after 15 s without a line a probe is silent

# Of nodedevices_devices. missing: the driver no longer lists it. unschedulable: well, and taken out of service by hand.
DEVICE_STATES = (*(state.value.lower() for state in HealthState), "missing", "unschedulable")

_DEVICE = ["index", "uuid"]  # labels of what is said of a device

# Reading -> (metric, help, factor). Only readings that the hardware gives are shown, and only where telemetry is on.
_TELEMETRY: dict[str, tuple[str, str, float]] = {
    "temperature_celsius": ("nodedevices_device_temperature_celsius", "Temperature of the device.", 1.0),
    "power_milliwatts": ("nodedevices_device_power_watts", "Power drawn by the device.", 0.001),
    "fan_percent": ("nodedevices_device_fan_speed_ratio", "Speed of the fan, as a share of its highest.", 0.01),
    "utilization_percent": (
        "nodedevices_device_utilization_ratio",
        "Share of the time in which the device computed.",
        0.01,
    ),
    "memory_used_bytes": ("nodedevices_device_memory_used_bytes", "Memory of the device in use.", 1.0),
    "sm_clock_mhz": ("nodedevices_device_sm_clock_hertz", "Clock of the multiprocessors.", 1e6),
    "memory_clock_mhz": ("nodedevices_device_memory_clock_hertz", "Clock of the memory.", 1e6),
    "ecc_uncorrectable_volatile": (
        "nodedevices_device_ecc_uncorrectable_volatile",
        "Uncorrected ECC errors since the last reset.",
        1.0,
    ),
    "ecc_uncorrectable_aggregate": (
        "nodedevices_device_ecc_uncorrectable_aggregate",
        "Uncorrected ECC errors over the device's lifetime.",
        1.0,
    ),
    "remapped_correctable": (
        "nodedevices_device_remapped_rows_correctable",
        "Rows remapped for correctable errors.",
        1.0,
    ),
    "remapped_uncorrectable": (
        "nodedevices_device_remapped_rows_uncorrectable",
        "Rows remapped for uncorrectable errors.",
        1.0,
    ),
    "remap_pending": ("nodedevices_device_remap_pending", "A row remap is pending until a reset.", 1.0),
    "remap_failure": ("nodedevices_device_remap_failure", "A row could not be remapped.", 1.0),
    "nvlinks_inactive": ("nodedevices_device_nvlinks_inactive", "NVLinks that are down.", 1.0),
    "pcie_replays": ("nodedevices_device_pcie_replays", "PCIe replays.", 1.0),
    "thermal_slowdown": ("nodedevices_device_thermal_slowdown", "Clocks are lowered because of the temperature.", 1.0),
}


class Metrics:
    """The registry of one agent. `facts` and `probes` (counters by a probe's name) are read at each scrape."""

    def __init__(
        self,
        *,
        facts: Callable[[], Facts | None],
        probes: Callable[[], Mapping[str, ProbeCounters]],
        parts: Supervisor | None = None,
        telemetry: bool = False,
    ) -> None:
        self._facts = facts
        self.registry = CollectorRegistry()
        self.registry.register(_State(facts, probes, parts or Supervisor(), telemetry=telemetry))
        ProcessCollector(registry=self.registry)
        info = Gauge("nodedevices_build_info", "Version of the agent.", ["version"], registry=self.registry)
        info.labels(version=__version__).set(1)
        self._fault_to_kubelet = Histogram(
            "nodedevices_fault_to_kubelet_seconds",
            "Time from receiving the probe's line that shows a fault to sending it to the kubelet.",
            buckets=LATENCY_BUCKETS,
            registry=self.registry,
        )
        self._step = Histogram(
            "nodedevices_step_seconds",
            "Duration of one reconciliation: inventory, health and plan.",
            buckets=LATENCY_BUCKETS,
            registry=self.registry,
        )
        self._calls = {
            method: Counter(name, text, ["resource", "result"], registry=self.registry)
            for method, name, text in (
                (
                    Method.REGISTER,
                    "nodedevices_registrations_total",
                    "Total Register requests to the kubelet, by resource and result; failed: it did not answer.",
                ),
                (
                    Method.ALLOCATE,
                    "nodedevices_allocations_total",
                    "Total Allocate requests of the kubelet, by resource and result; failed: by a bug.",
                ),
                (
                    Method.PREFERRED,
                    "nodedevices_preferred_allocations_total",
                    "Total GetPreferredAllocation requests of the kubelet, by resource and result; failed: by a bug.",
                ),
            )
        }
        self._call_seconds = Histogram(
            "nodedevices_kubelet_call_seconds",
            "Duration of a call between the kubelet and the agent, by method of the device plugin API.",
            ["method"],
            buckets=CALL_BUCKETS,
            registry=self.registry,
        )
        self._read_seconds = Histogram(
            "nodedevices_probe_read_seconds",
            "Time that the probe needed to read all its devices once.",
            ["probe"],
            buckets=READ_BUCKETS,
            registry=self.registry,
        )
        self._writes = Counter(
            "nodedevices_publish_writes_total",
            "Total writes of the NodeDevices status, by cause.",
            ["cause"],
            registry=self.registry,
        )
        self._write_seconds = Histogram(
            "nodedevices_publish_seconds",
            "Duration of a write of the NodeDevices status.",
            buckets=LATENCY_BUCKETS,
            registry=self.registry,
        )
        self._write_errors = Counter(
            "nodedevices_publish_errors_total",
            "Total failed requests to the API server, by HTTP status; 0: no answer, 200: an invalid answer.",
            ["status"],
            registry=self.registry,
        )
        self._reachable = Gauge(
            "nodedevices_api_server_reachable",
            "1 if the API server answered the last request, even with an error; else 0.",
            registry=self.registry,
        )
        self._publishing = Gauge(
            "nodedevices_publish_works",
            "1 if this node's NodeDevices is watched and written; 0 if it cannot be, and /readyz says why.",
            registry=self.registry,
        )
        self._config_errors = Counter(
            "nodedevices_config_errors_total",
            "Total configurations refused, by source.",
            ["source"],
            registry=self.registry,
        )
        self._state_errors = Counter(
            "nodedevices_state_file_errors_total",
            "Total failed reads and writes of the state file.",
            registry=self.registry,
        )
        self._state_writes = Counter(
            "nodedevices_state_file_writes_total", "Total writes of the state file.", registry=self.registry
        )

        self._xids = Counter(
            "nodedevices_xids_total",
            "Total XIDs, by device and number; without a device: the driver did not name it.",
            ["index", "uuid", "xid"],
            registry=self.registry,
        )
        self._xid_series: set[tuple[str, str, str]] = set()

    def expose(self) -> bytes:
        facts = self._facts()
        for resource in offered(facts).resources if facts is not None else ():
            for counter in self._calls.values():
                for result in Result:  # shown from 0 on: increase() does not see a series that begins at 1
                    counter.labels(resource.name, result)
        return generate_latest(self.registry)

    def kubelet_updated(self, seconds: float) -> None:
        self._fault_to_kubelet.observe(seconds)

    def stepped(self, seconds: float) -> None:
        self._step.observe(seconds)

    def kubelet_called(self, call: KubeletCall) -> None:
        self._calls[call.method].labels(call.resource, call.result).inc()
        self._call_seconds.labels(call.method).observe(call.seconds)

    def probe_read(self, probe: str, line: Snapshot) -> None:
        if line.read_milliseconds is not None:
            self._read_seconds.labels(probe).observe(line.read_milliseconds / 1000)

    def published(self, cause: str, seconds: float) -> None:
        self._writes.labels(cause=cause).inc()
        self._write_seconds.observe(seconds)

    def publish_failed(self, status: int) -> None:
        self._write_errors.labels(status=str(status)).inc()

    def api_reachable(self, *, reachable: bool) -> None:
        self._reachable.set(1 if reachable else 0)

    def publishing(self, *, works: bool) -> None:
        self._publishing.set(1 if works else 0)

    def config_refused(self, source: str) -> None:
        self._config_errors.labels(source=source).inc()

    def xid(self, number: int, count: int, device: DeviceFact | None) -> None:
        # NVIDIA's numbers end below 200; anything else is one series. Devices come and go; their series stay.
        xid = str(number) if 0 < number < 1024 else "other"
        series = (str(device.index), device.id, xid) if device is not None else ("", "", xid)
        if series not in self._xid_series and len(self._xid_series) >= MAX_XID_SERIES:
            series = ("", "", "other")
        self._xid_series.add(series)
        self._xids.labels(*series).inc(count)

    def state_failed(self) -> None:
        self._state_errors.inc()

    def state_written(self) -> None:
        self._state_writes.inc()


class _State(Collector):
    def __init__(
        self,
        facts: Callable[[], Facts | None],
        probes: Callable[[], Mapping[str, ProbeCounters]],
        parts: Supervisor,
        *,
        telemetry: bool,
    ) -> None:
        self._facts = facts
        self._probes = probes
        self._parts = parts
        self._telemetry = telemetry

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        yield from _probe_counters(self._probes())
        yield from _background(self._parts)
        facts = self._facts()
        if facts is not None:
            yield from _devices(facts)
            if self._telemetry:
                yield from _telemetry(facts.inventory.devices)
            yield from _resources(facts)
            yield from _configuration(facts)
            yield from _probes_of(facts)


def _probe_counters(probes: Mapping[str, ProbeCounters]) -> Iterator[Metric]:
    for name, text in (
        ("lines", "Total valid lines read from the probe."),
        ("bad_lines", "Total invalid lines of the probe."),
        ("starts", "Total starts of the probe's process, or connections to its socket."),
        ("kills", "Total ends of the probe's process or connection because it was silent."),
    ):
        family = CounterMetricFamily(f"nodedevices_probe_{name}", text, labels=["probe"])
        for probe, counters in probes.items():
            family.add_metric([probe], getattr(counters, name))
        yield family


def _background(parts: Supervisor) -> Iterator[Metric]:
    failures = CounterMetricFamily(
        "nodedevices_internal_errors_total",
        "Total failures of the agent's background tasks caused by a bug, by part; each was restarted.",
        labels=["part"],
    )
    for name, count in sorted(parts.failures().items()):
        failures.add_metric([name], count)
    busy = GaugeMetricFamily(
        "nodedevices_worker_call_seconds",
        "Duration so far of the current call on a background thread; it grows while a disk or a mount hangs.",
        labels=["worker"],
    )
    for name, seconds in sorted(parts.busy().items()):
        busy.add_metric([name], seconds)
    yield from (failures, busy)


def _probes_of(facts: Facts) -> Iterator[Metric]:
    last = GaugeMetricFamily(
        "nodedevices_probe_last_line_timestamp_seconds",
        "Unix time of the probe's last valid line; 0: there was none yet.",
        labels=["probe"],
    )
    for probe in facts.probes:
        line = probe.inventory.line_time
        last.add_metric([probe.name], line.timestamp() if line is not None else 0.0)
    loaded = GaugeMetricFamily(
        "nodedevices_driver_info", "1 for each driver that is loaded.", labels=["name", "version", "cuda_version"]
    )
    for driver in loaded_drivers(facts):
        loaded.add_metric([driver.name, driver.version or "", driver.cuda_version or ""], 1.0)
    yield from (last, loaded)


def _devices(facts: Facts) -> Iterator[Metric]:
    label = _DEVICE
    by_state = GaugeMetricFamily(
        "nodedevices_devices", "Devices, by state; each device is in one of them.", labels=["state"]
    )
    info = GaugeMetricFamily(
        "nodedevices_device_info",
        "1 for each device: what it is.",
        labels=[*label, "type", "vendor", "model", "pci_bus_id", "numa_node"],
    )
    healthy = GaugeMetricFamily(
        "nodedevices_device_healthy", "1 if the device is offered to the kubelet as Healthy, else 0.", labels=label
    )
    since = GaugeMetricFamily(
        "nodedevices_device_health_last_transition_timestamp_seconds",
        "Unix time since when the device has been in its state, for its reason.",
        labels=label,
    )
    unwell = GaugeMetricFamily(
        "nodedevices_device_unwell",
        "1 for a device that is not Healthy: its state, and why.",
        labels=[*label, "state", "reason", "recovery_action"],
    )
    tally: Tally[str] = Tally()
    for device in facts.inventory.devices:
        fact = device.fact
        where = [str(fact.index), fact.id]
        numa = "" if fact.numa_node is None else str(fact.numa_node)
        info.add_metric([*where, fact.type, fact.vendor or "", fact.product_name or "", fact.pci_bus_id or "", numa], 1)
        verdict = facts.verdicts.get(fact.id)
        if verdict is None:
            continue
        state = verdict.state.value.lower()
        cordoned = fact.id in facts.unschedulable
        in_service = not (cordoned and verdict.state in {HealthState.HEALTHY, HealthState.DEGRADED})
        tally["missing" if not device.present else state if in_service else "unschedulable"] += 1
        healthy.add_metric(where, 1.0 if verdict.offered and not cordoned else 0.0)
        since.add_metric(where, verdict.since.timestamp())
        if verdict.state is not HealthState.HEALTHY:
            unwell.add_metric([*where, state, verdict.reason, verdict.recovery_action], 1.0)
    for state in DEVICE_STATES:
        by_state.add_metric([state], tally[state])
    yield from (by_state, info, healthy, since, unwell)
    yield from _holders(facts, label)


def _holders(facts: Facts, label: list[str]) -> Iterator[Metric]:
    count = GaugeMetricFamily("nodedevices_device_holders", "Containers that hold the device.", labels=label)
    each_one = GaugeMetricFamily(
        "nodedevices_device_holder",
        "1 for each container that holds the device or a part of it.",
        labels=[*label, "resource", "namespace", "pod", "container"],
    )
    held = _held(facts)
    for device in facts.inventory.devices:
        where = [str(device.fact.index), device.fact.id]
        ids = (device.fact.id, *(part.id for part in device.fact.partitions))
        count.add_metric(where, sum(len(held[each]) for each in ids))
        for holder in sorted({holder for each in ids for holder in held[each]}):
            each_one.add_metric([*where, *holder], 1.0)
    yield from (count, each_one)
    yield from _memory_shares(facts, label)


def _memory_shares(facts: Facts, label: list[str]) -> Iterator[Metric]:
    """Nothing where no device is shared by memory."""
    shares = GaugeMetricFamily(
        "nodedevices_device_memory_shares_bytes",
        "Memory of a device that is shared by memory, by state; the states add up to the device's memory, or, where "
        "its driver no longer lists it, to what is held.",
        labels=[*label, "resource", "state"],
    )
    has = GaugeMetricFamily(
        "nodedevices_device_holder_memory_bytes",
        "Memory of the device that the container holds, where it is shared by memory.",
        labels=[*label, "resource", "namespace", "pod", "container"],
    )
    index = {device.fact.id: str(device.fact.index) for device in facts.inventory.devices}
    of_device: defaultdict[tuple[str, str], Tally[str]] = defaultdict(Tally)
    missing = missing_parts(facts.inventory)
    for each in share_counts(facts):
        memory, unallocatable = each.resource.memory, each.unallocatable_bytes
        if memory is None or unallocatable is None or each.device_id not in index:
            continue
        states = {"held": each.held, "free": each.free, "not_offered": each.not_offered}
        amounts = {state: number * memory.unit_bytes for state, number in states.items()}
        amounts["unallocatable"] = unallocatable
        if each.part in missing:
            amounts = dict.fromkeys(amounts, 0) | {"held": amounts["held"]}
        of_device[each.device_id, each.resource.name].update(amounts)
    for (device, resource), amounts in of_device.items():
        for state, amount in amounts.items():
            shares.add_metric([index[device], device, resource, state], amount)
    parts = {part.id: device.fact.id for device in facts.inventory.devices for part in device.fact.partitions}
    held: Tally[tuple[str, ...]] = Tally()
    for holder in facts.holdings.holders:
        who = (holder.resource or "", holder.namespace, holder.pod, holder.container)
        for part, size in memory_held(holder.ids).items():
            device = parts.get(part, part)
            if device in index:
                held[index[device], device, *who] += size
    for labels, amount in sorted(held.items()):
        has.add_metric(list(labels), amount)
    yield from (each for each in (shares, has) if each.samples)


def _held(facts: Facts) -> defaultdict[str, list[tuple[str, str, str, str]]]:
    """Device or partition id -> resource, namespace, pod and container of each that has it, by a device plugin or a
    claim."""
    held: defaultdict[str, list[tuple[str, str, str, str]]] = defaultdict(list)
    for holder in facts.holdings.holders:
        for each in {*map(physical_id, holder.ids), *holder.also}:
            held[each].append((holder.resource or "", holder.namespace, holder.pod, holder.container))
    return held


def _telemetry(devices: tuple[InventoryDevice, ...]) -> Iterator[Metric]:
    for reading, (name, text, factor) in _TELEMETRY.items():
        family = GaugeMetricFamily(name, text, labels=_DEVICE)
        for device in devices:
            value = _reading(device.fact.readings, reading) if device.present else None
            if value is not None:
                family.add_metric([str(device.fact.index), device.fact.id], value * factor)
        if family.samples:
            yield family
    memory = GaugeMetricFamily("nodedevices_device_memory_bytes", "Memory of the device.", labels=_DEVICE)
    for device in devices:
        if total := memory_bytes(device.fact.capacity):
            memory.add_metric([str(device.fact.index), device.fact.id], total)
    yield memory


def _reading(readings: Readings, name: str) -> float | None:
    value = getattr(readings, name)
    return None if value is None else float(value)


def _resources(facts: Facts) -> Iterator[Metric]:
    capacity = GaugeMetricFamily(
        "nodedevices_resource_capacity", "Ids of the resource, healthy or not.", labels=["resource"]
    )
    healthy = GaugeMetricFamily(
        "nodedevices_resource_healthy", "Ids that are reported to the kubelet as Healthy.", labels=["resource"]
    )
    registered = GaugeMetricFamily(
        "nodedevices_resource_registered",
        "1 if the resource is registered with the kubelet, else 0.",
        labels=["resource"],
    )
    held = GaugeMetricFamily(
        "nodedevices_resource_allocated", "Ids of the resource that containers hold.", labels=["resource"]
    )
    without = GaugeMetricFamily(
        "nodedevices_withheld_ids",
        "Ids of the resource that are not reported to the kubelet as Healthy, by the reason.",
        labels=["resource", "reason"],
    )
    others = served_by_others(facts.registrations)
    for resource in offered(facts).resources:
        capacity.add_metric([resource.name], len(resource.ids))
        healthy.add_metric([resource.name], reported_healthy(facts, resource))
        for why in withheld(resource, mine=resource.name not in others):
            without.add_metric([resource.name, why.reason], why.count)
    for name, count in allocated(facts).items():
        held.add_metric([name], count)
    another = GaugeMetricFamily(
        "nodedevices_resource_served_by_another",
        "1 if another device plugin serves the resource and the agent waits for it to end, else 0.",
        labels=["resource"],
    )
    for each in facts.registrations:
        registered.add_metric([each.resource], 1.0 if each.state is RegistrationState.REGISTERED else 0.0)
        another.add_metric([each.resource], 1.0 if each.state is RegistrationState.SERVED_BY_ANOTHER else 0.0)
    yield from (capacity, healthy, without, held, registered, another)
    yield GaugeMetricFamily(
        "nodedevices_holders_known",
        "1 if the list of holders is up to date, else 0.",
        value=1.0 if facts.holdings.state is HoldersState.SYNCED else 0.0,
    )


def _configuration(facts: Facts) -> Iterator[Metric]:
    cdi = GaugeMetricFamily(
        "nodedevices_cdi_problem",
        "1 if a CDI specification is missing or broken (source: the driver's; file: the agent's own), else 0.",
        labels=["what"],
    )
    cdi.add_metric(["source"], 1.0 if facts.config.cdi_problem else 0.0)
    cdi.add_metric(["file"], 1.0 if facts.cdi_problem else 0.0)
    yield cdi
    config = GaugeMetricFamily(
        "nodedevices_config", "1 for the reason that the condition ConfigApplied has.", labels=["reason"]
    )
    config.add_metric([facts.config.reason], 1.0)
    yield config
    if facts.config.generation is not None:
        yield GaugeMetricFamily(
            "nodedevices_config_observed_generation",
            "Generation of this node's NodeDevices that the agent has read last.",
            value=facts.config.generation,
        )
