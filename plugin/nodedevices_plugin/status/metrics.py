"""What the agent shows over HTTP: at /metrics, /healthz and /readyz. Metrics are named nodedevices_..., and each says
itself what it is.

Counters and histograms are here, and updated as things happen. Everything that is a state (devices, holders,
registrations) is read from the latest report's facts at each scrape (`samples`), so that a device that is
gone leaves no stale series. Labels are bounded: a device's index and id, a resource's or a probe's name, a closed set
of values. Pods are named by device_holder and device_holder_memory_bytes alone, which have a series for each container
that holds a device, and only while it does. Durations of calls have no resource as label: a histogram has ten series.

/healthz fails only where a restart may help: a background part that has kept failing for ten minutes, or a call of the
kubelet that is not answered. The event loop says so, which also makes the lists for the kubelet: a loop that hangs says
nothing. /readyz names each problem that keeps the node from being served as it should be, one a line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from nodedevices_common import __version__
from nodedevices_common.http import Response
from nodedevices_common.metrics import Exposition, counter, families, gauge, histogram, rows
from nodedevices_probe.protocol import DeviceFact, ProbeEvent, Snapshot
from prometheus_client import Counter, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from nodedevices_plugin.model import (
    DraCounters,
    HoldersState,
    KubeletCall,
    Method,
    ProbeCounters,
    Registration,
    RegistrationState,
    Result,
)
from nodedevices_plugin.pipeline.world import World
from nodedevices_plugin.runtime.supervise import Supervisor
from nodedevices_plugin.status import samples
from nodedevices_plugin.status.facts import NodeFacts, problems

UNANSWERED_SECONDS = 60.0  # an answer takes a second at most
MAX_SERIES = 4096  # of a metric that counts what drivers report
CLAIM_CALLS = frozenset({Method.PREPARE, Method.UNPREPARE})
LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0)
# Answers to the kubelet take less than a millisecond; inside Register it dials the agent, for up to 10 s.
CALL_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.025, 0.1, 1.0, 10.0)
READ_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0)  # after 15 s without a line a probe is silent


class AgentMetrics(Exposition, Collector):
    """The registry of one agent. `facts`, `probes` (counters by a probe's name) and `dra` (None: nothing is served by
    it) are read at each scrape."""

    _build_info = gauge("nodedevices_build_info", "Version of the agent.", "version")
    fault_to_kubelet = histogram(
        "nodedevices_fault_to_kubelet_seconds",
        "Time from receiving a fault from the probe to sending it to the kubelet.",
        buckets=LATENCY_BUCKETS,
    )
    step = histogram(
        "nodedevices_step_seconds",
        "Duration of one reconciliation: inventory, health and plan.",
        buckets=LATENCY_BUCKETS,
    )
    _registrations = counter(
        "nodedevices_registrations_total",
        "Total Register requests to the kubelet: `granted`, `refused`, or `failed` (no answer). A restart of the "
        "kubelet adds one.",
        "resource result",
    )
    _allocations = counter(
        "nodedevices_allocations_total",
        "Total Allocate requests from the kubelet: `granted`, `refused` (see the pod's message), or `failed` (a bug).",
        "resource result",
    )
    _preferred = counter(
        "nodedevices_preferred_allocations_total",
        "Total GetPreferredAllocation requests from the kubelet: `granted`, `refused` as an Allocate would be, or "
        "`failed` (a bug; the first ids were returned).",
        "resource result",
    )
    _prepares = counter(
        "nodedevices_claim_prepares_total",
        "Total ResourceClaims that the kubelet had prepared: `granted`, `refused` with a reason that the pod's Events "
        "show, or `failed`.",
        "driver result",
    )
    _unprepares = counter(
        "nodedevices_claim_unprepares_total",
        "Total ResourceClaims that the kubelet had unprepared: `granted` or `failed`.",
        "driver result",
    )
    _call_seconds = histogram(
        "nodedevices_kubelet_call_seconds",
        "Duration of calls between kubelet and agent: `Allocate`, `GetPreferredAllocation`, `Register` (in which the "
        "kubelet dials the agent), `NodePrepareResources`, `NodeUnprepareResources` (one claim of a call).",
        "method",
        buckets=CALL_BUCKETS,
    )
    _read_seconds = histogram(
        "nodedevices_probe_read_seconds",
        "Time to read all devices of the probe once; for one that hangs see "
        "`nodedevices_probe_last_line_timestamp_seconds`.",
        "probe",
        buckets=READ_BUCKETS,
    )
    server_failures = counter(
        "nodedevices_probe_server_failures_total",
        "Total failed requests to the probe server: `paths` (optional device nodes), `hardware` (for `auto`), "
        "`program` (for a CDI specification). The last good answer stays in use.",
        "request",
    )
    _writes = counter("nodedevices_publish_writes_total", "Total writes of the NodeDevices status.", "cause")
    _write_seconds = histogram(
        "nodedevices_publish_seconds", "Duration of writes of the NodeDevices status.", buckets=LATENCY_BUCKETS
    )
    _write_errors = counter(
        "nodedevices_publish_errors_total",
        "Total failed requests to the API server, by HTTP status; 0: no answer, 200: an invalid answer.",
        "status",
    )
    _reachable = gauge(
        "nodedevices_api_server_reachable",
        "Whether the API server answered the last request, even with an error.",
    )
    _publishing = gauge(
        "nodedevices_publish_works",
        "Whether this node's NodeDevices can be watched and written; if not, `/readyz` says why.",
    )
    config_errors = counter("nodedevices_config_errors_total", "Total refused configurations.", "source")
    state_errors = counter("nodedevices_state_file_errors_total", "Total failed reads and writes of the state file.")
    state_writes = counter("nodedevices_state_file_writes_total", "Total writes of the state file.")
    _xids = counter(
        "nodedevices_xids_total",
        "Total XIDs. A MIG device's count for its GPU; `uuid` is empty if the driver named no device.",
        "index uuid xid",
    )
    _kernel_log = counter(
        "nodedevices_kernel_log_events_total",
        "Total events in the kernel log (probe kmsg), by PCI address, kind and number.",
        "address kind code",
    )

    def __init__(
        self,
        *,
        facts: Callable[[], NodeFacts | None],
        probes: Callable[[], Mapping[str, ProbeCounters]],
        dra: Callable[[], DraCounters | None] = lambda: None,
        parts: Supervisor | None = None,
        telemetry: bool = False,
    ) -> None:
        super().__init__()
        self._facts = facts
        self._probes = probes
        self._dra = dra
        self._parts = parts or Supervisor()
        self._telemetry = telemetry
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        self._build_info.labels(version=__version__).set(1)
        self._calls = {
            Method.REGISTER: self._registrations,
            Method.ALLOCATE: self._allocations,
            Method.PREFERRED: self._preferred,
            Method.PREPARE: self._prepares,
            Method.UNPREPARE: self._unprepares,
        }
        self._series: dict[Counter, set[tuple[str, ...]]] = {}

    def collect(self) -> Iterator[Metric]:
        yield from families(samples.of_the_agent(self._probes(), self._parts))
        if (dra := self._dra()) is not None:
            yield from families(samples.of_claims(dra))
        if (facts := self._facts()) is not None:
            yield from families(samples.of_the_node(facts))
            if self._telemetry:
                yield from families(samples.of_readings(facts.inventory.devices))

    def render(self) -> bytes:
        facts, dra = self._facts(), self._dra()
        resources = [resource.name for resource in facts.offered.resources] if facts is not None else []
        drivers = [dra.driver] if dra is not None else []
        for method, calls in self._calls.items():
            for name in drivers if method in CLAIM_CALLS else resources:
                for result in Result:  # shown from 0 on: increase() does not see a series that begins at 1
                    calls.labels(name, result)
        return super().render()

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
        self._reachable.set(status != 0)
        self._publishing.set(0)

    def publishing(self, *, works: bool) -> None:
        """The API server has answered; `works`: as it should."""
        self._reachable.set(1)
        self._publishing.set(works)

    def xid(self, number: int, count: int, device: DeviceFact | None) -> None:
        # NVIDIA's numbers end below 200; anything else is one series. Devices come and go; their series stay.
        xid = str(number) if 0 < number < 1024 else "other"
        where = (str(device.index), device.id) if device is not None else ("", "")
        self._count(self._xids, (*where, xid), ("", "", "other"), count)

    def kernel_log_event(self, event: ProbeEvent) -> None:
        series = (event.pci_bus_id, event.kind, "" if event.xid is None else str(event.xid))
        self._count(self._kernel_log, series, ("", "other", ""), event.count)

    def _count(self, counted: Counter, series: tuple[str, ...], other: tuple[str, ...], count: int) -> None:
        """Count in this series; in `other` where that would be one more than a metric may have."""
        known = self._series.setdefault(counted, set())
        if series not in known and len(known) >= MAX_SERIES:
            series = other
        known.add(series)
        counted.labels(*series).inc(count)


def healthz(parts: Supervisor, answering_seconds: float) -> Response:
    """Answer 200 while no part keeps failing; any answer shows that the event loop runs. `answering_seconds`: for how
    long a call of the kubelet has waited for its answer."""
    unhealthy = list(parts.unhealthy())
    if answering_seconds > UNANSWERED_SECONDS:
        unhealthy.append(f"a call of the kubelet has not been answered for {answering_seconds:.0f} s")
    return Response(503, f"{'; '.join(unhealthy)}\n".encode()) if unhealthy else Response(200, b"ok\n")


def readyz(
    parts: Supervisor,
    world: World,
    registrations: Sequence[Registration],
    *,
    probe_error: str | None = None,
    publisher_problem: str = "",
) -> Response:
    """`probe_error`: why the probe's process ended. `publisher_problem`: why the status is not up to date; "" where it
    is, or where none is published."""
    wrong = [*parts.problems(), *_not_serving(world, registrations, probe_error), *filter(None, [publisher_problem])]
    if wrong:
        return Response(503, "".join(f"{problem}\n" for problem in wrong).encode())
    reported = problems(world.known.inventory)
    return Response(200, f"ok; the probe reports {'; '.join(reported)}\n".encode() if reported else b"ok\n")


def _not_serving(world: World, registrations: Sequence[Registration], probe_error: str | None) -> list[str]:
    """Return why the kubelet does not have all that this node offers."""
    if world.plan is None and world.known.inventory.line_monotonic is None:
        return [": ".join(filter(None, ("the probe has not reported yet", probe_error)))]
    if world.plan is None:
        return [world.config.message]
    if world.observed is not None and world.holdings.state is HoldersState.UNAVAILABLE:
        return [world.holdings.message]
    known = {registration.resource for registration in registrations}
    return [
        *(f"{name}: {why}" for name, why in world.lost.items()),
        *(
            f"{resource.name}: not registered yet"
            for resource in (world.plan.resources if world.observed is None else ())
            if resource.ids and resource.name not in known
        ),
        *(
            f"{registration.resource}: {registration.state.value} {registration.message}".rstrip()
            for registration in registrations
            if registration.state is not RegistrationState.REGISTERED
        ),
    ]


ROWS = rows((*vars(AgentMetrics).values(), *samples.ROWS))  # for docs/metrics.md
