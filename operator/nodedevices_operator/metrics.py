"""The operator's metrics. Names and labels are part of what users build alerts on; label values are closed
sets, or names of objects and devices, of which no more than so many are shown."""

from __future__ import annotations

from nodedevices_common import __version__
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.exposition import generate_latest

# One more series for each counter and histogram, which Prometheus does not need.
disable_created_metrics()  # type: ignore[no-untyped-call]

PREFIX = "nodedevices_operator"
_MARK_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)  # seconds; the target is 5
_REQUEST_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0)  # a call ends after 35 s
_RECONCILE_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0)


class Metrics:
    """One registry for each operator, so that several can be in one process (tests)."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own = self.registry
        info = Gauge(f"{PREFIX}_build_info", "Version of the operator.", ["version"], registry=own)
        info.labels(__version__).set(1)
        self.reconciles = Counter(
            f"{PREFIX}_reconciles", "Total reconciliations, by kind and result.", ["kind", "result"], registry=own
        )
        self.duration = Histogram(
            f"{PREFIX}_reconcile_seconds",
            "Duration of a reconciliation, by kind.",
            ["kind"],
            buckets=_RECONCILE_BUCKETS,
            registry=own,
        )
        self.concerns = Counter(
            f"{PREFIX}_concern_reconciles",
            "Total reconciliations of one concern of a node, by result.",
            ["concern", "result"],
            registry=own,
        )
        self.writes = Counter(
            f"{PREFIX}_writes", "Total writes to the API server, by concern.", ["concern"], registry=own
        )
        self.refused = Counter(
            f"{PREFIX}_refused_writes",
            "Total writes that the API server refused, by concern and HTTP status.",
            ["concern", "code"],
            registry=own,
        )
        self.requests = Counter(
            f"{PREFIX}_api_requests",
            "Total requests to the API server, by verb, resource and HTTP status; 0: no answer.",
            ["verb", "resource", "code"],
            registry=own,
        )
        self.request_seconds = Histogram(
            f"{PREFIX}_api_request_seconds",
            "Duration of a request to the API server, by verb.",
            ["verb"],
            buckets=_REQUEST_BUCKETS,
            registry=own,
        )
        self._series: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self.suppressed_events = Counter(
            f"{PREFIX}_suppressed_events",
            "Total Events not written because their node had used up its budget.",
            registry=own,
        )
        self.actions = Counter(
            f"{PREFIX}_actions",
            "Total actions on faults (Taint, Evict), by kind and result: granted, refused (by a budget), stopped (by "
            "the breaker), blocked (by a PodDisruptionBudget), done.",
            ["kind", "result"],
            registry=own,
        )
        self.deleted_rejected_pods = Counter(
            f"{PREFIX}_deleted_rejected_pods",
            "Total pods in UnexpectedAdmissionError that were deleted (--delete-rejected-pods).",
            registry=own,
        )
        self.breaker_open = Gauge(
            f"{PREFIX}_breaker_open", "1 while the circuit breaker stops all actions on faults.", registry=own
        )
        self.queue_depth = Gauge(
            f"{PREFIX}_queue_depth", "Keys that are queued or being reconciled, by kind.", ["kind"], registry=own
        )
        self.queue_age = Gauge(
            f"{PREFIX}_queue_age_seconds",
            "Time that the oldest queued key has waited for a worker, by kind; 0: none waits.",
            ["kind"],
            registry=own,
        )
        self.marked = Histogram(
            f"{PREFIX}_fault_to_pod_seconds",
            "Time from observing a device's fault to writing the condition of the pod that holds it.",
            buckets=_MARK_BUCKETS,
            registry=own,
        )
        self.devices = Gauge(
            f"{PREFIX}_devices",
            "Devices by state, as their NodeDevices say, also while their agents are away: healthy, degraded, "
            "unhealthy, unknown.",
            ["state"],
            registry=own,
        )
        self.faults = Gauge(f"{PREFIX}_devices_at_fault", "Devices that are Unhealthy or Unknown.", registry=own)
        self.unhealthy = Gauge(
            f"{PREFIX}_device_unhealthy",
            "1 for each device that is Unhealthy by its NodeDevices, also while its agent is away; 1,000 of a fleet at "
            "most.",
            ["node", "index", "uuid", "reason", "recovery_action"],
            registry=own,
        )
        self.unhealthy_holder = Gauge(
            f"{PREFIX}_unhealthy_device_holder",
            "1 for each container that holds an Unhealthy device or a part of it, by its NodeDevices, also while its "
            "agent is away; 1,000 of a fleet at most.",
            ["node", "index", "uuid", "resource", "namespace", "pod", "container"],
            registry=own,
        )
        self.nodes = Gauge(f"{PREFIX}_node_devices", "NodeDevices in the cache.", registry=own)
        self.stale = Gauge(f"{PREFIX}_stale_nodes", "NodeDevices whose condition Stale is True.", registry=own)
        self.problems = Gauge(
            f"{PREFIX}_node_problem",
            "1 for each condition of a NodeDevices that is not as it should be, with its reason.",
            ["node", "condition", "reason"],
            registry=own,
        )
        self.policies = Gauge(
            f"{PREFIX}_policies",
            "DevicePolicies in the cache, by whether they were accepted.",
            ["accepted"],
            registry=own,
        )
        self.policy_nodes = Gauge(
            f"{PREFIX}_policy_nodes",
            "Nodes by DevicePolicy, as its status counts them: selected, applied, overridden, failed, waiting.",
            ["policy", "state"],
            registry=own,
        )
        self.rollout_stopped = Gauge(
            f"{PREFIX}_rollout_stopped",
            "1 for each DevicePolicy, also a deleted one, whose roll-out is stopped because a node is worse off.",
            ["policy"],
            registry=own,
        )
        self.relists = Counter(
            f"{PREFIX}_relists",
            "Total relists (LISTs of everything of a kind), by kind and result.",
            ["kind", "result"],
            registry=own,
        )
        self.missed = Counter(
            f"{PREFIX}_missed_changes",
            "Total changes that a relist found and the watch had missed, by kind.",
            ["kind"],
            registry=own,
        )
        self.watch_restarts = Counter(f"{PREFIX}_watch_restarts", "Total restarts of the watches.", registry=own)
        self.ready = Gauge(
            f"{PREFIX}_ready", "1 while /readyz answers ok: every kind is listed and watched.", registry=own
        )
        self.last_event = Gauge(f"{PREFIX}_last_event_age_seconds", "Time since the last watch event.", registry=own)
        self.last_relist = Gauge(
            f"{PREFIX}_last_relist_age_seconds", "Time since the last complete relist.", registry=own
        )

    def requested(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """A request to the API server has ended."""
        series = self._series.get((verb, resource, code))
        if series is None:  # looking them up costs more than counting
            series = self.requests.labels(verb, resource, str(code)), self.request_seconds.labels(verb)
            self._series[verb, resource, code] = series
        series[0].inc()
        series[1].observe(seconds)

    def render(self) -> bytes:
        """The text exposition format."""
        return generate_latest(self.registry)
