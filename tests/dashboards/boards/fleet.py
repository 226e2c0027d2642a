"""All nodes: how many devices there are, how well they are, who has them, what is wrong and since when."""

from __future__ import annotations

from dashboards.description import Board, Colour, Unit, lines, stat, table
from dashboards.promql import DEVICE, HOLDER, SAME_DEVICE, each, fleet, rate

RED = {1.0: Colour.RED}
YELLOW = {1.0: Colour.YELLOW}
WELL = "nothing is wrong"
STATES = {
    "healthy": Colour.GREEN,
    "degraded": Colour.YELLOW,
    "unknown": Colour.ORANGE,
    "unhealthy": Colour.RED,
    "missing": Colour.PURPLE,
    "unschedulable": Colour.GREY,
}
INFO = each("nodedevices_device_info", "uuid", "vendor", "model")
HEALTHY = each("nodedevices_device_healthy", "uuid")
HOLDERS = each("nodedevices_device_holders", "uuid")
HELD = "count by (cluster, node, uuid, namespace) (nodedevices_device_holder)"
SINCE = each("nodedevices_device_health_last_transition_timestamp_seconds", "uuid")
UNWELL = each("nodedevices_device_unwell", *DEVICE, "state", "reason", "recovery_action")
FOR = f"(time() - {SINCE}) * {SAME_DEVICE} group_right () {UNWELL}"
BY_OPERATOR = each("nodedevices_operator_device_unhealthy", *DEVICE, "reason", "recovery_action")
FAULTS = each("nodedevices_device_faults", *DEVICE, "reason")
UNASKED = "no policy has idle.afterSeconds, or no container holds a device"
ALERTS = (
    "max by (alertname, severity, node, index, namespace, pod) "
    '(ALERTS{alertname=~"NodeDevices.+", alertstate="firing"})'
)
POLICY_STATES = ("selected", "applied", "waiting", "failed", "overridden")


def by_model(values: str) -> str:
    """Return the sum of a value of each device, by its model."""
    return f"sum by (vendor, model) ({INFO} * {SAME_DEVICE} group_left () ({values}))"


def by_resource(metric: str) -> str:
    return f"sum by (resource) ({each(metric, 'resource')})"


BOARD = Board(
    name="fleet",
    title="NodeDevices / Fleet",
    about="All devices of all nodes: how many, how well, who holds them, what is wrong.",
    rows={
        "Now": (
            stat("Nodes", "Nodes with a NodeDevices.", f"sum({fleet('nodedevices_operator_node_devices')})"),
            stat(
                "Devices",
                "Devices of all nodes, as their NodeDevices say, also while agents are away.",
                f"sum({fleet('nodedevices_operator_devices', 'state')})",
            ),
            stat(
                "At fault",
                "Devices that are Unhealthy or Unknown.",
                f"sum({fleet('nodedevices_operator_devices_at_fault')})",
                above=RED,
                alerts=("NodeDevicesDeviceUnhealthy", "NodeDevicesFleetUnhealthy"),
            ),
            stat(
                "Held",
                "Devices that a container holds, whole or in part.",
                f"sum({HOLDERS} > bool 0)",
            ),
            stat(
                "Free",
                "Devices that are offered as Healthy and that no container holds.",
                f"sum({HEALTHY} * {SAME_DEVICE} ({HOLDERS} == bool 0))",
            ),
            stat(
                "Stale nodes",
                "Nodes whose agent does not report.",
                f"sum({fleet('nodedevices_operator_stale_nodes')})",
                above=RED,
                alerts=("NodeDevicesAgentStale",),
            ),
        ),
        "Devices": (
            lines(
                "Devices by state",
                "By what agents say: missing devices are no longer listed by their driver, unschedulable ones are out "
                "of service by hand.",
                {"{{state}}": f"sum by (state) ({each('nodedevices_devices', 'state')})"},
                stacked=True,
                colours=STATES,
            ),
            table(
                "Devices by model",
                "Of each model: all devices, those offered as Healthy, those that are held, those that are Healthy and "
                "free.",
                "vendor model",
                {
                    "Devices": f"count by (vendor, model) ({INFO})",
                    "Healthy": by_model(HEALTHY),
                    "Held": by_model(f"{HOLDERS} > bool 0"),
                    "Free": by_model(f"{HEALTHY} * {SAME_DEVICE} ({HOLDERS} == bool 0)"),
                },
            ),
        ),
        "What is wrong": (
            table(
                "Devices that are not Healthy",
                "State, reason, what would help, and for how long. Of an agent that is away the operator knows the "
                "unhealthy ones, and not since when.",
                "cluster node index uuid state reason recovery_action",
                {
                    "For": (
                        f"{FOR} or {SAME_DEVICE} {BY_OPERATOR} * NaN",
                        Unit.SECONDS,
                    )
                },
                width=24,
                alerts=("NodeDevicesDeviceUnhealthy", "NodeDevicesDeviceLost"),
                empty=WELL,
            ),
            table(
                "Pods on unhealthy devices",
                "Containers that hold an Unhealthy device; their pods have the condition nodedevices.io/DeviceHealthy.",
                "cluster node index namespace pod container resource",
                rows=[each("nodedevices_operator_unhealthy_device_holder", *HOLDER)],
                alerts=("NodeDevicesUnhealthyDeviceHeld",),
                empty=WELL,
            ),
            lines(
                "Not Healthy, by reason",
                "Devices that are not Healthy, by reason, over time.",
                {"{{reason}}": f"count by (reason) ({each('nodedevices_device_unwell', 'uuid', 'reason')})"},
                stacked=True,
                empty=WELL,
            ),
            lines(
                "XIDs",
                "Errors that NVIDIA's driver reported, by number, since the agents started. What one means for a "
                "device is in the device's state.",
                {"XID {{xid}}": f"sum by (xid) ({each('nodedevices_xids_total', 'uuid', 'xid')})"},
                empty="the driver reported none",
            ),
            table(
                "Devices with the most faults",
                "Faults of each device in the last 80 to 90 days, also of those that are well now; errors of programs "
                "are not counted.",
                "cluster node index uuid",
                {"Faults": f"topk(20, sum by (cluster, node, index, uuid) ({FAULTS}))"},
                alerts=("NodeDevicesDeviceKeepsFailing",),
                empty="no device has had a fault",
            ),
            table(
                "Alerts",
                "Alerts of NodeDevices that fire now.",
                "alertname severity node index namespace pod",
                rows=[ALERTS],
                empty=WELL,
            ),
        ),
        "Who holds devices": (
            lines(
                "Held devices by namespace",
                "Devices that containers of a namespace hold; a shared device counts in each of them.",
                {"{{namespace}}": f"count by (namespace) ({HELD})"},
                stacked=True,
                empty="no container holds a device",
            ),
            table(
                "Namespaces",
                "Devices of each namespace, and the containers that hold them.",
                "namespace",
                {
                    "Devices": f"count by (namespace) ({HELD})",
                    "Containers": "count by (namespace) "
                    "(count by (cluster, namespace, pod, container) (nodedevices_device_holder))",
                },
                empty="no container holds a device",
            ),
            lines(
                "Held, and not used",
                "Devices that containers of a namespace hold and do not use, on average; a period counts when it is "
                "shown.",
                {"{{namespace}}": rate("nodedevices_device_unused_seconds_total", "namespace")},
                stacked=True,
                alerts=("NodeDevicesDevicesUnused",),
                empty=UNASKED,
            ),
        ),
        "Resources": (
            table(
                "Resources",
                "Ids that the kubelets have of each resource: all, those that are Healthy, those that containers hold.",
                "resource",
                {
                    "Capacity": by_resource("nodedevices_resource_capacity"),
                    "Healthy": by_resource("nodedevices_resource_healthy"),
                    "Allocated": by_resource("nodedevices_resource_allocated"),
                },
            ),
            lines(
                "Withheld ids, by reason",
                "Ids that are not reported to the kubelets as Healthy, and why: docs/troubleshooting.md.",
                {"{{reason}}": f"sum by (reason) ({each('nodedevices_withheld_ids', 'resource', 'reason')})"},
                stacked=True,
                empty="every id is offered",
            ),
        ),
        "Nodes and policies": (
            table(
                "Node problems",
                "Conditions of a NodeDevices that are not as they should be.",
                "cluster node condition reason",
                rows=[each("nodedevices_operator_node_problem", "condition", "reason")],
                alerts=("NodeDevicesAgentStale", "NodeDevicesConfigRejected", "NodeDevicesTooFewDevices"),
                empty=WELL,
            ),
            table(
                "Policies",
                "Nodes of each DevicePolicy, as its status counts them.",
                "cluster policy",
                {
                    state.capitalize(): fleet("nodedevices_operator_policy_nodes", "policy", where=f'state="{state}"')
                    for state in POLICY_STATES
                },
                empty="there is no policy",
            ),
            lines(
                "Roll-outs that are stopped",
                "Policies whose change has cost a node devices, and which come to no other node.",
                {"{{policy}}": fleet("nodedevices_operator_rollout_stopped", "policy")},
                width=8,
                alerts=("NodeDevicesRolloutStopped",),
                empty=WELL,
            ),
            lines(
                "Actions on faults",
                "Taints and evictions since the operator started, by result: granted, refused by a budget, stopped by "
                "the circuit breaker, blocked by a PodDisruptionBudget, done.",
                {"{{kind}} {{result}}": "sum by (kind, result) (nodedevices_operator_actions_total)"},
                width=8,
                alerts=("NodeDevicesActionRefused", "NodeDevicesActionsStopped"),
                empty="no policy acts on faults",
            ),
            lines(
                "Circuit breaker",
                "1 while many nodes failed at once, and no fault is acted on.",
                {"open": f"max({fleet('nodedevices_operator_breaker_open')})"},
                width=8,
                alerts=("NodeDevicesActionsStopped",),
            ),
        ),
    },
)
