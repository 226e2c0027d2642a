"""The metrics of operator and extender. Names and labels are part of what users build alerts on; label values are
closed sets, or names of objects and devices, of which no more than so many are shown.
"""

from __future__ import annotations

from nodedevices_common import __version__
from nodedevices_common.metrics import Exposition, counter, gauge, histogram, rows
from prometheus_client import ProcessCollector


class OperatorMetrics(Exposition):
    build_info = gauge("nodedevices_operator_build_info", "Version of the operator.", "version")
    reconciles = counter(
        "nodedevices_operator_reconciles_total",
        "Total reconciliations of nodes, pods' marks (`marks`, first when faults change), policies and the fleet's "
        "actions.",
        "kind result",
    )
    duration = histogram(
        "nodedevices_operator_reconcile_seconds",
        "Duration of reconciliations.",
        "kind",
        buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0),
    )
    concerns = counter(
        "nodedevices_operator_concern_reconciles_total",
        "Total reconciliations of a concern (one thing that the operator keeps on a node): `done`, `forbidden`, or "
        "`failed`. One failure does not stop the others.",
        "concern result",
    )
    writes = counter("nodedevices_operator_writes_total", "Total writes to the API server.", "concern")
    refused = counter(
        "nodedevices_operator_refused_writes_total",
        "Total writes that the API server refused.",
        "concern code",
    )
    requests = counter(
        "nodedevices_operator_api_requests_total",
        "Total requests to the API server; code `0`: no answer.",
        "verb resource code",
    )
    request_seconds = histogram(
        "nodedevices_operator_api_request_seconds",
        "Duration of requests to the API server. `watch` is the time until the watch of rejected pods begins; other "
        "watches are not counted.",
        "verb",
        buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0),  # a call ends after 35 s
    )
    suppressed_events = counter(
        "nodedevices_operator_suppressed_events_total",
        "Total Events not written because the node's budget was used up or the queue was full.",
    )
    actions = counter(
        "nodedevices_operator_actions_total",
        "Total actions on [faults](faults.md) (`Taint`, `Evict`): `granted`, `refused` by a budget, `stopped` by the "
        "circuit breaker, `blocked` by a PodDisruptionBudget, or `done`.",
        "kind result",
    )
    breaker_open = gauge(
        "nodedevices_operator_breaker_open",
        "Whether all actions on faults are stopped, by the circuit breaker or because their record cannot be written.",
    )
    queue_depth = gauge("nodedevices_operator_queue_depth", "Number of keys queued or being reconciled.", "kind")
    queue_age = gauge(
        "nodedevices_operator_queue_age_seconds",
        "Time that the oldest queued key has waited; 0: none waits.",
        "kind",
    )
    marked = histogram(
        "nodedevices_operator_fault_to_pod_seconds",
        "Time from observing a device's fault to writing the condition of its pod.",
        buckets=(0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0),  # seconds; the target is 5
    )
    devices = gauge(
        "nodedevices_operator_devices",
        "Number of devices by state, even if agents are away: `healthy`, `degraded`, `unhealthy`, `unknown`.",
        "state",
    )
    faults = gauge("nodedevices_operator_devices_at_fault", "Number of Unhealthy and Unknown devices.")
    unhealthy = gauge(
        "nodedevices_operator_device_unhealthy",
        "1 for each Unhealthy device, even if its agent is away; at most 1,000 per fleet.",
        "node index uuid reason recovery_action",
    )
    unhealthy_holder = gauge(
        "nodedevices_operator_unhealthy_device_holder",
        "1 for each container that holds an Unhealthy device or part of it, or is affected alone "
        "(`MpsDaemonRestarted`), even if the agent is away; at most 1,000 per fleet.",
        "node index uuid resource namespace pod container",
    )
    nodes = gauge("nodedevices_operator_node_devices", "Number of NodeDevices in the cache.")
    stale = gauge("nodedevices_operator_stale_nodes", "Number of NodeDevices whose condition `Stale` is True.")
    problems = gauge(
        "nodedevices_operator_node_problem",
        "1 for each condition of a NodeDevices that shows a problem: True for `Stale`, `ProblemReported` and "
        "`MaintenanceScheduled`, not True for others; of `ActionsSynced` for each action that is not in sync. `reason` "
        "has no numbers (`TooFew`).",
        "node condition reason",
    )
    policies = gauge(
        "nodedevices_operator_policies", "Number of DevicePolicies, by whether they are accepted.", "accepted"
    )
    policy_nodes = gauge(
        "nodedevices_operator_policy_nodes",
        "Number of nodes by DevicePolicy: `selected`, `applied`, `overridden`, `failed`, `waiting`.",
        "policy state",
    )
    rollout_stopped = gauge(
        "nodedevices_operator_rollout_stopped",
        "Whether the DevicePolicy's roll-out, even after deletion, is stopped because a node is worse off.",
        "policy",
    )
    relists = counter(
        "nodedevices_operator_relists_total",
        "Total relists (LISTs of all objects of a kind).",
        "kind result",
    )
    missed = counter(
        "nodedevices_operator_missed_changes_total",
        "Total changes that the watch missed and a relist found.",
        "kind",
    )
    watch_restarts = counter("nodedevices_operator_watch_restarts_total", "Total restarts of watches.")
    ready = gauge(
        "nodedevices_operator_ready",
        "Whether `/readyz` answers ok: every kind is listed and watched, and the leader is known. Alert when no "
        "leader is ready for some minutes: nothing is marked meanwhile.",
    )
    leader = gauge(
        "nodedevices_operator_leader",
        "Whether this replica leads and writes. Other replicas show no metrics of the fleet.",
    )
    last_event = gauge("nodedevices_operator_last_event_age_seconds", "Time since the last watch event.")
    last_relist = gauge("nodedevices_operator_last_relist_age_seconds", "Time since the last complete relist.")

    def __init__(self) -> None:
        super().__init__()
        ProcessCollector(registry=self.registry)
        self.build_info.labels(__version__).set(1)

    def requested(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """Count a request to the API server that has ended."""
        self.requests.labels(verb, resource, str(code)).inc()
        self.request_seconds.labels(verb).observe(seconds)

    def reconciled(self, kind: str, result: str, seconds: float) -> None:
        """Count a reconciliation that has ended."""
        self.reconciles.labels(kind, result).inc()
        self.duration.labels(kind).observe(seconds)


class ExtenderMetrics(Exposition):
    build_info = gauge("nodedevices_extender_build_info", "Version of the extender.", "version")
    requests = counter(
        "nodedevices_extender_requests_total",
        "Total requests (`filter`, `prioritize`, `inspect`). If `filter` does not grow while pods with shares of "
        "memory are scheduled, the scheduler does not call.",
        "verb code",
    )
    seconds = histogram(
        "nodedevices_extender_request_seconds",
        "Time from a complete request to its answer; `filter` includes the wait for pods that are being bound.",
        "verb",
        buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0),  # seconds; the target is 0.1
    )
    nodes = counter(
        "nodedevices_extender_filtered_nodes_total",
        "Total filtered nodes: `passed`, `unknown` (passed without current data), `failed`, or `unresolvable` (no "
        "pod's end would make room).",
        "result",
    )
    api_requests = counter(
        "nodedevices_extender_api_requests_total",
        "Total requests to the API server, including starts of watches; code `0`: no answer.",
        "verb resource code",
    )
    ready = gauge(
        "nodedevices_extender_ready",
        "Whether `/readyz` answers ok: everything is listed and watched. If not, every node passes.",
    )
    age = gauge(
        "nodedevices_extender_cache_age_seconds",
        "Time since the API server last sent anything of this kind; a watch does every minute. After 180 s every node "
        "passes.",
        "kind",
    )
    objects = gauge(
        "nodedevices_extender_cache_objects",
        "Number of cached NodeDevices, and of bound pods that request a resource shared by memory.",
        "kind",
    )
    lists = gauge(
        "nodedevices_extender_cache_lists",
        "Number of LISTs: at the start, when a watch cannot continue, and of pods for each new resource shared by "
        "memory.",
        "kind",
    )

    def __init__(self) -> None:
        super().__init__()
        self.build_info.labels(__version__).set(1)

    def requested(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """A request to the API server has ended, or a watch has begun."""
        self.api_requests.labels(verb, resource, str(code)).inc()


# For docs/metrics.md.
ROWS, EXTENDER_ROWS = (rows(vars(metrics).values()) for metrics in (OperatorMetrics, ExtenderMetrics))
