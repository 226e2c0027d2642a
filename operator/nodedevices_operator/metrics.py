"""The operator's metrics. Names and labels are part of what users build alerts on; label values are closed
sets, or names of objects and devices, of which no more than so many are shown."""

from __future__ import annotations

from nodedevices_common import __version__
from nodedevices_common.metrics import Exposition, counter, gauge, histogram, rows
from prometheus_client import Counter, Histogram, ProcessCollector

_MARK_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)  # seconds; the target is 5
_REQUEST_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0)  # a call ends after 35 s
_RECONCILE_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0)


class OperatorMetrics(Exposition):
    build_info = gauge("nodedevices_operator_build_info", "Version of the operator.", "version")
    reconciles = counter(
        "nodedevices_operator_reconciles_total",
        "Total reconciliations of a node, of its pods' marks (`marks`, before all else when faults change), a policy, "
        "or the fleet's actions, by kind and result.",
        "kind result",
    )
    duration = histogram(
        "nodedevices_operator_reconcile_seconds",
        "Duration of a reconciliation, by kind.",
        "kind",
        buckets=_RECONCILE_BUCKETS,
    )
    concerns = counter(
        "nodedevices_operator_concern_reconciles_total",
        "Total reconciliations of one concern of a node (one thing that the operator keeps on it), by result: `done`, "
        "`forbidden`, `failed`. One that fails holds no other back.",
        "concern result",
    )
    writes = counter("nodedevices_operator_writes_total", "Total writes to the API server, by concern.", "concern")
    refused = counter(
        "nodedevices_operator_refused_writes_total",
        "Total writes that the API server refused, by concern and HTTP status.",
        "concern code",
    )
    requests = counter(
        "nodedevices_operator_api_requests_total",
        "Total requests to the API server, by verb, resource and HTTP status; `0`: no answer.",
        "verb resource code",
    )
    request_seconds = histogram(
        "nodedevices_operator_api_request_seconds",
        "Duration of a request to the API server, by verb: `get`, `list`, `create`, `apply`, `patch`, `delete`; "
        "`watch`, until it begins, is that of rejected pods: the others are not among them.",
        "verb",
        buckets=_REQUEST_BUCKETS,
    )
    suppressed_events = counter(
        "nodedevices_operator_suppressed_events_total",
        "Total Events not written because their node had used up its budget, or too many waited to be sent.",
    )
    actions = counter(
        "nodedevices_operator_actions_total",
        "Total actions on [faults](faults.md) (`Taint`, `Evict`), by kind and result: `granted`, `refused` by a "
        "budget, `stopped` by the circuit breaker, `blocked` by a PodDisruptionBudget, `done`.",
        "kind result",
    )
    deleted_rejected_pods = counter(
        "nodedevices_operator_deleted_rejected_pods_total",
        "Total pods in `UnexpectedAdmissionError` that were deleted "
        "([`--delete-rejected-pods`](operations.md#pods-that-a-node-rejected)).",
    )
    breaker_open = gauge(
        "nodedevices_operator_breaker_open",
        "1 while all actions on faults are stopped: by the circuit breaker, or because their record cannot be written.",
    )
    queue_depth = gauge(
        "nodedevices_operator_queue_depth", "Keys that are queued or being reconciled, by kind.", "kind"
    )
    queue_age = gauge(
        "nodedevices_operator_queue_age_seconds",
        "Time that the oldest queued key has waited for a worker, by kind; 0: none waits.",
        "kind",
    )
    marked = histogram(
        "nodedevices_operator_fault_to_pod_seconds",
        "Time from observing a device's fault to writing the condition of the pod that holds it.",
        buckets=_MARK_BUCKETS,
    )
    devices = gauge(
        "nodedevices_operator_devices",
        "Devices by state, as their NodeDevices say, also while their agents are away: `healthy`, `degraded`, "
        "`unhealthy`, `unknown`.",
        "state",
    )
    faults = gauge("nodedevices_operator_devices_at_fault", "Devices that are Unhealthy or Unknown.")
    unhealthy = gauge(
        "nodedevices_operator_device_unhealthy",
        "1 for each device that is Unhealthy by its NodeDevices, also while its agent is away; 1,000 of a fleet at "
        "most.",
        "node index uuid reason recovery_action",
    )
    unhealthy_holder = gauge(
        "nodedevices_operator_unhealthy_device_holder",
        "1 for each container that holds an Unhealthy device or a part of it, or to which alone something happened "
        "that its pod is marked for (`MpsDaemonRestarted`), by its NodeDevices, also while its agent is away; 1,000 "
        "of a fleet at most.",
        "node index uuid resource namespace pod container",
    )
    nodes = gauge("nodedevices_operator_node_devices", "NodeDevices in the cache.")
    stale = gauge("nodedevices_operator_stale_nodes", "NodeDevices whose condition `Stale` is True.")
    problems = gauge(
        "nodedevices_operator_node_problem",
        "1 for each condition of a NodeDevices that is not as it should be, with its reason: `Stale`, "
        "`ProblemReported` and `MaintenanceScheduled` that are True, any other that is not. The numbers of "
        "`ExpectedDevices` are left out: `TooFew`. A node without problems has no series.",
        "node condition reason",
    )
    policies = gauge(
        "nodedevices_operator_policies", "DevicePolicies in the cache, by whether they were accepted.", "accepted"
    )
    policy_nodes = gauge(
        "nodedevices_operator_policy_nodes",
        "Nodes by DevicePolicy, as its status counts them: `selected`, `applied`, `overridden`, `failed`, `waiting`.",
        "policy state",
    )
    rollout_stopped = gauge(
        "nodedevices_operator_rollout_stopped",
        "1 for each DevicePolicy, also a deleted one, whose roll-out is stopped because a node is worse off.",
        "policy",
    )
    relists = counter(
        "nodedevices_operator_relists_total",
        "Total relists (LISTs of everything of a kind), by kind and result.",
        "kind result",
    )
    missed = counter(
        "nodedevices_operator_missed_changes_total",
        "Total changes that a relist found and the watch had missed, by kind.",
        "kind",
    )
    watch_restarts = counter("nodedevices_operator_watch_restarts_total", "Total restarts of the watches.")
    ready = gauge(
        "nodedevices_operator_ready",
        "1 while `/readyz` answers ok: every kind is listed and watched, and it is known which replica leads. Alert "
        "when no leader is ready for some minutes: nothing is marked meanwhile.",
    )
    leader = gauge(
        "nodedevices_operator_leader",
        "1 while this replica leads, which is while it writes; the others stand by, and show no metrics of the fleet.",
    )
    last_event = gauge("nodedevices_operator_last_event_age_seconds", "Time since the last watch event.")
    last_relist = gauge("nodedevices_operator_last_relist_age_seconds", "Time since the last complete relist.")

    def __init__(self) -> None:
        super().__init__()
        ProcessCollector(registry=self.registry)
        self.build_info.labels(__version__).set(1)
        self._series: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self._reconciles: dict[tuple[str, str], tuple[Counter, Histogram]] = {}

    def requested(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """Count a request to the API server that has ended."""
        series = self._series.get((verb, resource, code))
        if series is None:  # looking them up costs more than counting
            series = self.requests.labels(verb, resource, str(code)), self.request_seconds.labels(verb)
            self._series[verb, resource, code] = series
        series[0].inc()
        series[1].observe(seconds)

    def reconciled(self, kind: str, result: str, seconds: float) -> None:
        """Count a reconciliation that has ended."""
        series = self._reconciles.get((kind, result))
        if series is None:
            series = self._reconciles[kind, result] = self.reconciles.labels(kind, result), self.duration.labels(kind)
        series[0].inc()
        series[1].observe(seconds)


ROWS = rows(vars(OperatorMetrics).values())  # for docs/metrics.md
