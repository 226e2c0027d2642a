"""One node: its devices, what happened to them, who holds them, and what its agent does."""

from __future__ import annotations

from dashboards.description import CLUSTER, Board, Colour, State, Unit, Variable, lines, stat, table, timeline
from dashboards.promql import DEVICE, HOLDER, each, p50_p99, quantile, rate

TELEMETRY = "the agent's flag --telemetry is off, or the hardware does not give it"
INDEX = "device {{index}}"
DEVICES = each("nodedevices_devices", "state")
HEALTHY = 'state="healthy"'
AGENT = each("nodedevices_build_info", "version")
UNWELL = each("nodedevices_device_unwell", *DEVICE, "state", "reason", "recovery_action")
STATES = (
    State(0, "Healthy", Colour.GREEN),
    State(1, "Degraded", Colour.YELLOW),
    State(2, "Unknown", Colour.ORANGE),
    State(3, "Unhealthy", Colour.RED),
)
# A number for each state, for a bar's colour.
STATE = " or ".join(
    (
        *(
            f"{one.value} * " + each("nodedevices_device_unwell", *DEVICE, where=f'state="{one.text.lower()}"')
            for one in reversed(STATES[1:])
        ),
        "0 * " + each("nodedevices_device_healthy", *DEVICE),
    )
)


def reading(name: str) -> str:
    return each(f"nodedevices_device_{name}", *DEVICE)


def of_resource(name: str) -> str:
    return each(f"nodedevices_resource_{name}", "resource")


BOARD = Board(
    name="node",
    title="NodeDevices / Node",
    about="The devices of one node, their health and holders over time, and the agent's work.",
    variables=(
        CLUSTER,
        Variable("node", "Node", "label_values(nodedevices_build_info, node)"),
    ),
    rows={
        "Now": (
            stat("Known", "Devices that the agent knows.", f"sum({DEVICES})"),
            stat(
                "Not Healthy",
                "Devices in any other state.",
                f"sum({DEVICES}) - sum({each('nodedevices_devices', where=HEALTHY)})",
                above={1.0: Colour.RED},
                alerts=("NodeDevicesDeviceUnhealthy",),
            ),
            stat("Held", "Devices that a container holds.", f"sum({reading('holders')} > bool 0)"),
            stat(
                "Probe",
                "Time since the last line of the probe that has been silent for longest.",
                f"max(time() - {each('nodedevices_probe_last_line_timestamp_seconds', 'probe')})",
                unit=Unit.SECONDS,
                above={15.0: Colour.YELLOW, 60.0: Colour.RED},
                alerts=("NodeDevicesHealthProbeStalled",),
            ),
            stat(
                "Not registered",
                "Resources that the kubelet does not have of the agent.",
                f"sum({of_resource('registered')} == bool 0)",
                above={1.0: Colour.RED},
                alerts=("NodeDevicesPluginNotRegistered",),
            ),
            stat(
                "Held twice",
                "Devices, partitions and shares that the kubelet has given to more than one pod.",
                f"sum({each('nodedevices_double_allocations')})",
                above={1.0: Colour.RED},
                alerts=("NodeDevicesDoubleAllocation",),
            ),
        ),
        "Devices": (
            table(
                "Devices",
                "What they are, how many containers hold each, and what is wrong.",
                "index uuid vendor model pci_bus_id numa_node state reason recovery_action",
                {
                    "Holders": reading("holders"),
                    "In this state": (
                        f"1000 * {reading('health_last_transition_timestamp_seconds')}",
                        Unit.AGO,
                    ),
                },
                rows=[each("nodedevices_device_info", *DEVICE, "vendor", "model", "pci_bus_id", "numa_node"), UNWELL],
                width=24,
                height=10,
            ),
            timeline("Health", "The state of each device over time.", INDEX, STATE, STATES),
            timeline(
                "Holders",
                "Whether a container holds the device.",
                INDEX,
                f"{reading('holders')} > bool 0",
                (State(0, "free", Colour.GREY), State(1, "held", Colour.BLUE)),
            ),
            lines(
                "XIDs",
                "Errors that NVIDIA's driver reported, by device and number, since the agent started.",
                {"device {{index}} XID {{xid}}": each("nodedevices_xids_total", *DEVICE, "xid")},
                empty="the driver reported none",
            ),
            table(
                "Problems",
                "Conditions of the node's NodeDevices that are not as they should be.",
                "condition reason",
                rows=[each("nodedevices_operator_node_problem", "condition", "reason")],
                empty="nothing is wrong",
            ),
        ),
        "Resources and holders": (
            table(
                "Resources",
                "Ids of each resource that the kubelet has: all, Healthy, held; whether it is registered.",
                "resource",
                {
                    "Capacity": of_resource("capacity"),
                    "Healthy": of_resource("healthy"),
                    "Allocated": of_resource("allocated"),
                    "Registered": of_resource("registered"),
                    "Another plugin's": of_resource("served_by_another"),
                },
            ),
            lines(
                "Healthy and allocated",
                "Ids that are offered and ids that are held, by resource.",
                {"{{resource}} healthy": of_resource("healthy"), "{{resource}} allocated": of_resource("allocated")},
            ),
            table(
                "Containers that hold devices",
                "Which container has which device.",
                "namespace pod container resource index uuid",
                rows=[each("nodedevices_device_holder", *HOLDER)],
                empty="no container holds a device",
            ),
            lines(
                "Withheld ids, by reason",
                "Ids that are not reported to the kubelet as Healthy, and why.",
                {"{{resource}} {{reason}}": each("nodedevices_withheld_ids", "resource", "reason")},
                stacked=True,
                empty="every id is offered",
            ),
            lines(
                "Shared memory",
                "Memory of devices that are shared by memory: held, free, not offered, unallocatable.",
                {
                    "{{state}}": "sum by (state) "
                    f"({each('nodedevices_device_memory_shares_bytes', *DEVICE, 'resource', 'state')})"
                },
                unit=Unit.BYTES,
                stacked=True,
                empty="no device is shared by memory",
            ),
            lines(
                "Shared memory by container",
                "Memory that containers hold of devices that are shared by memory.",
                {"{{namespace}}/{{pod}} {{container}}": each("nodedevices_device_holder_memory_bytes", *HOLDER)},
                unit=Unit.BYTES,
                stacked=True,
                empty="no device is shared by memory",
            ),
        ),
        "Telemetry": (
            lines(
                "Utilization",
                "Share of the time in which the device computed.",
                {INDEX: reading("utilization_ratio")},
                unit=Unit.SHARE,
                empty=TELEMETRY,
            ),
            lines(
                "Memory in use",
                "Memory of the device that processes use.",
                {INDEX: reading("memory_used_bytes")},
                unit=Unit.BYTES,
                empty=TELEMETRY,
            ),
            lines(
                "Temperature",
                "Temperature of the device.",
                {INDEX: reading("temperature_celsius")},
                unit=Unit.CELSIUS,
                empty=TELEMETRY,
            ),
            lines(
                "Power", "Power drawn by the device.", {INDEX: reading("power_watts")}, unit=Unit.WATTS, empty=TELEMETRY
            ),
            lines(
                "Clock",
                "Clock of the multiprocessors.",
                {INDEX: reading("sm_clock_hertz")},
                unit=Unit.HERTZ,
                empty=TELEMETRY,
            ),
            table(
                "Errors and signs of wear",
                "Uncorrected ECC errors, remapped rows, links that are down, PCIe replays, clocks lowered by heat.",
                "index",
                {
                    "ECC": reading("ecc_uncorrectable_volatile"),
                    "ECC, lifetime": reading("ecc_uncorrectable_aggregate"),
                    "Remapped": reading("remapped_rows_uncorrectable"),
                    "Remap pending": reading("remap_pending"),
                    "NVLinks down": reading("nvlinks_inactive"),
                    "PCIe replays": reading("pcie_replays"),
                    "Hot": reading("thermal_slowdown"),
                },
                empty=TELEMETRY,
            ),
        ),
        "Agent": (
            lines(
                "Time to read the devices",
                "Time that a probe needed to read all its devices once.",
                p50_p99("nodedevices_probe_read_seconds", "probe"),
                unit=Unit.SECONDS,
                width=8,
            ),
            lines(
                "Calls of the kubelet",
                "Duration of calls between the kubelet and the agent, by method.",
                {"{{method}} p99": quantile(0.99, "nodedevices_kubelet_call_seconds", "method")},
                unit=Unit.SECONDS,
                width=8,
                alerts=("NodeDevicesAllocateErrors",),
                empty="the kubelet called for nothing in this time",
            ),
            lines(
                "Writes of the status",
                "Writes of the NodeDevices status, by cause.",
                {"{{cause}}": rate("nodedevices_publish_writes_total", "cause")},
                unit=Unit.PER_SECOND,
                width=8,
            ),
            table(
                "Versions",
                "The agent, and the drivers that are loaded.",
                "name version cuda_version",
                rows=[
                    f'label_replace({AGENT}, "name", "NodeDevices agent", "", "")',
                    each("nodedevices_driver_info", "name", "version", "cuda_version"),
                ],
            ),
            table(
                "Configuration",
                "The reason that the condition ConfigApplied has.",
                "reason",
                rows=[each("nodedevices_config", "reason")],
                alerts=("NodeDevicesConfigRejected",),
            ),
        ),
    },
)
