"""NodeDevices itself: do agents and operator do their work, and how fast."""

from __future__ import annotations

from dashboards.description import Board, Colour, Unit, lines, stat, table
from dashboards.promql import SAME_TARGET, each, fleet, p50_p99, quantile, rate

NO_ERRORS = "nothing failed"
QUIET = "nothing happened in this time"
RED = {1.0: Colour.RED}
REFUSED = 'accepted="false"'


def of_process(metric: str, build: str) -> str:
    return f"max by (cluster, node, instance) ({metric} and {SAME_TARGET} {build})"


AGENTS, OPERATORS = "nodedevices_build_info", "nodedevices_operator_build_info"
BOARD = Board(
    name="itself",
    title="NodeDevices / Itself",
    about="The agents and the operator: registration, reports, queues, requests to the API server, errors.",
    rows={
        "Agents": (
            stat("Agents", "Agents that are scraped.", f"count({each(AGENTS)})"),
            stat(
                "Not registered",
                "Resources that a kubelet does not have of its agent.",
                f"sum({each('nodedevices_resource_registered', 'resource')} == bool 0)",
                above=RED,
                alerts=("NodeDevicesPluginNotRegistered",),
            ),
            stat(
                "Without the API server",
                "Agents whose last request to the API server had no answer. Their nodes go on serving.",
                f"sum({each('nodedevices_api_server_reachable')} == bool 0)",
                above=RED,
            ),
            stat(
                "Do not report",
                "Agents whose NodeDevices cannot be watched or written: /readyz says why.",
                f"sum({each('nodedevices_publish_works')} == bool 0)",
                above=RED,
            ),
            stat(
                "Without holders",
                "Agents whose list of holders is not up to date.",
                f"sum({each('nodedevices_holders_known')} == bool 0)",
                above=RED,
            ),
            stat(
                "Silent probes",
                "Probes that wrote nothing for a minute.",
                f"sum(time() - {each('nodedevices_probe_last_line_timestamp_seconds', 'probe')} > bool 60)",
                above=RED,
                alerts=("NodeDevicesHealthProbeStalled",),
            ),
            lines(
                "Allocate, by result",
                "Requests of the kubelets: granted, refused (the pod's message says why), failed by a bug.",
                {"{{result}}": rate("nodedevices_allocations_total", "result")},
                unit=Unit.PER_SECOND,
                width=8,
                alerts=("NodeDevicesAllocateErrors",),
            ),
            lines(
                "Duration of the kubelets' calls",
                "Allocate and GetPreferredAllocation are answered by the agent, Register by the kubelet.",
                p50_p99("nodedevices_kubelet_call_seconds", "method"),
                unit=Unit.SECONDS,
                width=8,
                empty=QUIET,
            ),
            lines(
                "Registrations, by result",
                "Register requests to kubelets. A kubelet that restarts is one more.",
                {"{{result}}": rate("nodedevices_registrations_total", "result")},
                unit=Unit.PER_SECOND,
                width=8,
                alerts=("NodeDevicesPluginNotRegistered",),
            ),
            lines(
                "From a fault to the kubelet",
                "Time from the probe's line that shows a fault to the message to the kubelet.",
                p50_p99("nodedevices_fault_to_kubelet_seconds"),
                unit=Unit.SECONDS,
                width=8,
                empty=QUIET,
            ),
            lines(
                "Age of the probes' lines",
                "Time since the last line of each probe; the ten longest.",
                {
                    "{{node}} {{probe}}": "topk(10, time() - "
                    f"{each('nodedevices_probe_last_line_timestamp_seconds', 'probe')})"
                },
                unit=Unit.SECONDS,
                width=8,
                alerts=("NodeDevicesHealthProbeStalled",),
            ),
            lines(
                "Time to read the devices",
                "Time that a probe needed to read all its devices once.",
                p50_p99("nodedevices_probe_read_seconds", "probe"),
                unit=Unit.SECONDS,
                width=8,
            ),
            lines(
                "A step",
                "Duration of inventory, health and plan.",
                p50_p99("nodedevices_step_seconds"),
                unit=Unit.SECONDS,
                width=8,
            ),
            lines(
                "Writes of the status",
                "By cause; an idle node writes its heartbeat alone.",
                {"{{cause}}": rate("nodedevices_publish_writes_total", "cause")},
                unit=Unit.PER_SECOND,
                width=8,
            ),
            lines(
                "Duration of such a write",
                "Time that the API server needed for it.",
                p50_p99("nodedevices_publish_seconds"),
                unit=Unit.SECONDS,
                width=8,
                empty=QUIET,
            ),
            lines(
                "Errors of agents",
                "Requests to the API server, lines and ends of probes, requests to the probe server, the state file, "
                "refused configurations, bugs.",
                {
                    "API server {{status}}": rate("nodedevices_publish_errors_total", "status"),
                    "bad line of {{probe}}": rate("nodedevices_probe_bad_lines_total", "probe"),
                    "silent {{probe}} ended": rate("nodedevices_probe_kills_total", "probe"),
                    "probe server {{request}}": rate("nodedevices_probe_server_failures_total", "request"),
                    "state file": "sum(rate(nodedevices_state_file_errors_total[$__rate_interval]))",
                    "configuration of {{source}}": rate("nodedevices_config_errors_total", "source"),
                    "bug in {{part}}": rate("nodedevices_internal_errors_total", "part"),
                },
                unit=Unit.PER_SECOND,
                alerts=("NodeDevicesConfigRejected",),
                empty=NO_ERRORS,
            ),
            lines(
                "Background threads",
                "Duration so far of their current call: it grows while a disk or a mount hangs.",
                {"{{worker}}": "max by (worker) (nodedevices_worker_call_seconds)"},
                unit=Unit.SECONDS,
            ),
            table(
                "Configurations",
                "Agents by the reason of their condition ConfigApplied.",
                "reason",
                {"Agents": f"count by (reason) ({each('nodedevices_config', 'reason')})"},
                width=8,
                alerts=("NodeDevicesConfigRejected",),
            ),
            table(
                "Versions",
                "Agents by version.",
                "version",
                {"Agents": f"count by (version) ({each(AGENTS, 'version')})"},
                width=8,
            ),
            lines(
                "Memory of agents",
                "Resident memory of the agents' processes, without their probes: the ten largest.",
                {"{{node}}": f"topk(10, {of_process('process_resident_memory_bytes', AGENTS)})"},
                unit=Unit.BYTES,
                width=8,
            ),
        ),
        "Operator": (
            stat(
                "Ready",
                "Replicas whose /readyz answers ok.",
                "sum(nodedevices_operator_ready)",
                alerts=("NodeDevicesOperatorDown",),
            ),
            stat(
                "Leaders",
                "Replicas that lead: one of each cluster.",
                "sum(nodedevices_operator_leader)",
                alerts=("NodeDevicesOperatorDown",),
            ),
            stat(
                "Last event",
                "Time since the last event of a watch.",
                f"max({fleet('nodedevices_operator_last_event_age_seconds')})",
                unit=Unit.SECONDS,
            ),
            stat(
                "Last relist",
                "Time since everything was last listed.",
                f"max({fleet('nodedevices_operator_last_relist_age_seconds')})",
                unit=Unit.SECONDS,
            ),
            stat(
                "Waiting",
                "Keys that are queued or being reconciled.",
                f"sum({fleet('nodedevices_operator_queue_depth', 'kind')})",
            ),
            stat(
                "Policies refused",
                "DevicePolicies that were not accepted.",
                f"sum({fleet('nodedevices_operator_policies', where=REFUSED)}) or vector(0)",
                above=RED,
            ),
            lines(
                "From a fault to the pod",
                "Time from observing a device's fault to writing the condition of the pod that holds it.",
                p50_p99("nodedevices_operator_fault_to_pod_seconds"),
                unit=Unit.SECONDS,
                width=8,
                empty=QUIET,
            ),
            lines(
                "Reconciliations",
                "By kind and result.",
                {"{{kind}} {{result}}": rate("nodedevices_operator_reconciles_total", "kind", "result")},
                unit=Unit.PER_SECOND,
                width=8,
            ),
            lines(
                "Duration of a reconciliation",
                "By kind.",
                {"{{kind}} p99": quantile(0.99, "nodedevices_operator_reconcile_seconds", "kind")},
                unit=Unit.SECONDS,
                width=8,
            ),
            lines(
                "Queues",
                "Time that the oldest queued key has waited for a worker, by kind.",
                {"{{kind}}": fleet("nodedevices_operator_queue_age_seconds", "kind")},
                unit=Unit.SECONDS,
                width=8,
            ),
            lines(
                "Writes, by concern",
                "What the operator wrote to the API server. Nothing is written while nothing changes.",
                {"{{concern}}": rate("nodedevices_operator_writes_total", "concern")},
                unit=Unit.PER_SECOND,
                width=8,
            ),
            lines(
                "Requests to the API server",
                "By verb and HTTP status; 0 is no answer.",
                {"{{verb}} {{code}}": rate("nodedevices_operator_api_requests_total", "verb", "code")},
                unit=Unit.PER_SECOND,
                width=8,
            ),
            lines(
                "Duration of requests",
                "Time until the API server answered, by verb.",
                {"{{verb}} p99": quantile(0.99, "nodedevices_operator_api_request_seconds", "verb")},
                unit=Unit.SECONDS,
                width=8,
            ),
            lines(
                "Errors of the operator",
                "Writes that the API server refused, concerns that failed, changes that the watches missed, watches "
                "that began anew, Events beyond a node's budget.",
                {
                    "refused {{concern}} {{code}}": rate(
                        "nodedevices_operator_refused_writes_total", "concern", "code"
                    ),
                    "{{concern}} {{result}}": rate(
                        'nodedevices_operator_concern_reconciles_total{result!="done"}', "concern", "result"
                    ),
                    "missed {{kind}}": rate("nodedevices_operator_missed_changes_total", "kind"),
                    "watches": "sum(rate(nodedevices_operator_watch_restarts_total[$__rate_interval]))",
                    "Events": "sum(rate(nodedevices_operator_suppressed_events_total[$__rate_interval]))",
                },
                unit=Unit.PER_SECOND,
                width=8,
                empty=NO_ERRORS,
            ),
            lines(
                "Relists",
                "Lists of everything of a kind, by result.",
                {"{{kind}} {{result}}": rate("nodedevices_operator_relists_total", "kind", "result")},
                unit=Unit.PER_SECOND,
                width=8,
            ),
            table(
                "Replicas",
                "Operators by version.",
                "version",
                {"Replicas": f"count by (version) ({OPERATORS})"},
                width=8,
            ),
            lines(
                "Memory of the operator",
                "Resident memory of the operators' processes.",
                {"{{instance}}": of_process("process_resident_memory_bytes", OPERATORS)},
                unit=Unit.BYTES,
                width=8,
            ),
            lines(
                "CPU of the operator",
                "Cores that the operators' processes use.",
                {
                    "{{instance}}": "sum by (instance) (rate(process_cpu_seconds_total[$__rate_interval]) and "
                    f"{SAME_TARGET} {OPERATORS})"
                },
                width=8,
            ),
        ),
    },
)
