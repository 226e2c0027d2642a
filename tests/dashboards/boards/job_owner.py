"""The owner of a job: which devices the pods of a namespace have, and how well these are."""

from __future__ import annotations

from dashboards.boards.node import STATE, STATES, TELEMETRY
from dashboards.description import CLUSTER, Board, Colour, Unit, Variable, lines, stat, table, timeline
from dashboards.promql import DEVICE, HOLDER, SAME_DEVICE, each

HELD = each("nodedevices_device_holder", *HOLDER)
WHICH = "{{pod}} {{node}}/{{index}}"
NONE = "no container holds a device"
UNWELL = each("nodedevices_device_unwell", "uuid", "state", "reason", "recovery_action")
INFO = each("nodedevices_device_info", "uuid", "model")


def held(values: str) -> str:
    """Return a value of each device, for every container that holds it."""
    return f"{HELD} * {SAME_DEVICE} group_left () ({values})"


def reading(name: str) -> str:
    return held(each(f"nodedevices_device_{name}", "uuid"))


BOARD = Board(
    name="job-owner",
    title="NodeDevices / Job owner",
    about="The devices that the pods of a namespace hold: which, how well, how busy, and what is free.",
    variables=(
        CLUSTER,
        Variable("namespace", "Namespace", "label_values(nodedevices_device_holder, namespace)"),
        Variable("pod", "Pod", "label_values(nodedevices_device_holder, pod)", several=True),
    ),
    rows={
        "Now": (
            stat(
                "Devices",
                "Devices that these pods hold.",
                f"count(count by (cluster, node, uuid) ({HELD})) or vector(0)",
            ),
            stat("Pods", "Pods that hold a device.", f"count(count by (cluster, pod) ({HELD})) or vector(0)"),
            stat("Nodes", "Nodes that these devices are on.", f"count(count by (cluster, node) ({HELD})) or vector(0)"),
            stat(
                "Not offered",
                "Held devices that are not offered: something is wrong with them, or they are out of service.",
                f"sum(max by (cluster, node, uuid) ({held(each('nodedevices_device_healthy', 'uuid'))}) == bool 0)"
                " or vector(0)",
                above={1.0: Colour.RED},
                alerts=("NodeDevicesUnhealthyDeviceHeld",),
            ),
            stat(
                "Pods on unhealthy devices",
                "Pods that carry the condition nodedevices.io/DeviceHealthy with the status False.",
                f"count(count by (cluster, pod) ({each('nodedevices_operator_unhealthy_device_holder', *HOLDER)}))"
                " or vector(0)",
                above={1.0: Colour.RED},
                alerts=("NodeDevicesUnhealthyDeviceHeld",),
            ),
            stat(
                "Held twice",
                "Devices that the kubelet of one of these nodes has given to more than one pod.",
                f"sum({each('nodedevices_double_allocations')} and on (cluster, node) {HELD}) or vector(0)",
                above={1.0: Colour.RED},
                alerts=("NodeDevicesDoubleAllocation",),
            ),
        ),
        "Devices": (
            table(
                "Devices of the pods",
                "Which container has which device, and what is wrong with it.",
                "pod container node resource index uuid model state reason recovery_action",
                rows=[
                    f"{HELD} * {SAME_DEVICE} group_left (model) {INFO}",
                    f"{HELD} * {SAME_DEVICE} group_left (state, reason, recovery_action) {UNWELL}",
                ],
                width=24,
                alerts=("NodeDevicesUnhealthyDeviceHeld",),
                empty=NONE,
            ),
            timeline(
                "Health",
                "The state of each device that these pods hold now, over time.",
                "{{node}}/{{index}}",
                f"({STATE}) and {SAME_DEVICE} {HELD}",
                STATES,
            ),
            lines(
                "XIDs",
                "Errors that NVIDIA's driver reported on these devices, since the agents started: 13, 31, 43 and 45 "
                "are errors of programs.",
                {
                    "{{node}}/{{index}} XID {{xid}}": f"{each('nodedevices_xids_total', *DEVICE, 'xid')} and "
                    f"{SAME_DEVICE} {HELD}"
                },
                empty="the driver reported none",
            ),
            lines(
                "Held, and not used",
                "For how long these pods have not used a device that they hold, by the word for it.",
                {f"{WHICH} {{{{idle}}}}": each("nodedevices_device_idle_seconds", *HOLDER, "idle")},
                unit=Unit.SECONDS,
                alerts=("NodeDevicesDevicesUnused",),
                empty="all are used, or no policy has idle.afterSeconds",
            ),
            table(
                "Room for another pod",
                "Ids that the scheduler has left on each node: those that are Healthy, less those that are held.",
                "resource node",
                {
                    "Free": f"{each('nodedevices_resource_healthy', 'resource')} - "
                    f"{each('nodedevices_resource_allocated', 'resource')} > 0"
                },
                empty="nothing is free",
            ),
        ),
        "How busy they are": (
            lines(
                "Utilization",
                "Share of the time in which the device computed; a shared device's is that of all its holders.",
                {WHICH: reading("utilization_ratio")},
                unit=Unit.SHARE,
                empty=TELEMETRY,
            ),
            lines(
                "Memory in use",
                "Memory of the device that processes use, of all its holders.",
                {WHICH: reading("memory_used_bytes")},
                unit=Unit.BYTES,
                empty=TELEMETRY,
            ),
            lines(
                "Temperature",
                "Temperature of the device: hot devices lower their clocks.",
                {WHICH: reading("temperature_celsius")},
                unit=Unit.CELSIUS,
                empty=TELEMETRY,
            ),
            lines(
                "Power", "Power drawn by the device.", {WHICH: reading("power_watts")}, unit=Unit.WATTS, empty=TELEMETRY
            ),
            lines(
                "Shares of memory",
                "Memory that a container holds of a device that is shared by memory.",
                {WHICH: each("nodedevices_device_holder_memory_bytes", *HOLDER)},
                unit=Unit.BYTES,
                width=24,
                empty="no device is shared by memory",
            ),
        ),
    },
)
