"""NodeDevices: one object per node, named like the node.

`spec` is written by the operator (config, configName, configHash, policies) and by people (unschedulable); `status` by
the agent, except affectedPods, actions and some conditions, which are the operator's. In status only closed sets are
enums: one value that an older CRD does not know would make the API server refuse the agent's whole report.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from nodedevices_api import API_VERSION, withheld
from nodedevices_api.base import Loose, Rule
from nodedevices_api.bounds import (
    ATTRIBUTE_NAME_PATTERN,
    DEVICE_NAME_PATTERN,
    MAX_ATTRIBUTE_NAME,
    MAX_CAPACITIES,
    MAX_DEVICE_NAME,
    MAX_EXTRA,
    MAX_MINOR,
    MAX_NUMA_NODE,
    MAX_PARTITION_INDEX,
    MAX_PROBE_NAME,
    MAX_PROBES,
    PROBE_NAME_PATTERN,
    SEMANTIC_VERSION_PATTERN,
)
from nodedevices_api.fields import (
    INTEGER_MAX,
    Atomic,
    AtomicList,
    ConditionMessage,
    Count,
    DeviceId,
    Flag,
    Generation,
    HealthMessage,
    Line,
    ListType,
    MapById,
    MapByName,
    MicroTime,
    ObjectName,
    Place,
    Quantity,
    ResourceName,
    SetList,
    Short,
    Time,
    Whole,
    Word,
    in_schema,
    listed,
    optional,
)
from nodedevices_api.meta import Condition, ObjectMeta
from nodedevices_api.sections import Sections

HealthState = Literal["Healthy", "Degraded", "Unhealthy", "Unknown"]
FaultDomain = Literal["Application", "Device", "Node"]
ProbeState = Literal["Ready", "Starting", "Silent", "Failed", "NoDriver"]

MAX_LISTED = 2048  # physical devices (256 at most) and partitions; so many fit into an object
MAX_DRIVERS = 8
MAX_UNMATCHED = 32  # entries of a configuration
MAX_REFUSALS = 8  # files and sections
MAX_WAITING_FOR = 32  # pods
MAX_HOLDERS = 256  # of one device; a kubelet runs 110 pods by default
MAX_HOLDER_IDS = 8
MAX_XIDS = 16  # of one device
MAX_REASONS = 16  # of one device, at one time
MAX_AFFECTED_PODS = 256
MAX_NOTICES = 4  # of one device
MAX_HISTORY = 6  # reasons of one device
MAX_WITHHELD = 16  # reasons of one resource
MAX_WITHHELD_DEVICES = 8
MAX_WITHHELD_PODS = 8
REASONS = "Why. " + "; ".join(f"{reason}: {meaning}" for reason, meaning in withheld.MEANINGS.items()) + "."

Uid = Annotated[str, StringConstraints(max_length=64)]
Hash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]*$", max_length=64)]
DeviceName = Annotated[str, StringConstraints(pattern=DEVICE_NAME_PATTERN, max_length=MAX_DEVICE_NAME)]
ProbeName = Annotated[str, StringConstraints(pattern=PROBE_NAME_PATTERN, max_length=MAX_PROBE_NAME)]
AttributeName = Annotated[str, StringConstraints(pattern=ATTRIBUTE_NAME_PATTERN, max_length=MAX_ATTRIBUTE_NAME)]
PodPath = Annotated[str, StringConstraints(max_length=317)]  # <namespace>/<name>
Percent = Annotated[Whole, Field(ge=0, le=100)]
ReasonText = Annotated[str, StringConstraints(pattern=r"^([A-Za-z][A-Za-z0-9]{0,63})?$", max_length=64)]


# --- spec ------------------------------------------------------------------------------------------------------------
class PolicyReference(Loose):
    """A policy that selects this node."""

    name: ObjectName = Field(description="Name of the DevicePolicy.")
    generation: Generation = Field(description="metadata.generation that was resolved.")
    priority: Annotated[Whole, Field(ge=-1000, le=1000)] = Field(
        description="Priority of the policy; the highest wins."
    )
    sections: SetList[Word] = listed(16, "Sections that it supplies to this node.")


class Unschedulable(Loose):
    """A device or partition taken out of service by hand."""

    id: DeviceId = Field(description="Id of a device or partition.")
    reason: Annotated[str, StringConstraints(min_length=1, max_length=256)] = Field(
        description="Why it is out of service, such as RMA 4711."
    )
    by: Annotated[str, StringConstraints(max_length=253)] | None = optional("Who took the device out of service.")
    since: Time | None = optional(
        "When it was taken out of service. If not set, an agent that recreates the deleted object sets "
        "when it first saw the entry."
    )
    until: Time | None = optional("Time of return to service; absent: until the entry is removed.")

    cel_rules = (
        Rule(
            "self.reason.trim() != ''",
            "reason is blank: say why the device is out of service, such as RMA 4711",
            lambda it: it.reason.strip() != "",
            found="self.id",
        ),
    )


class Change(Loose):
    """A change of what the agent acts on that is still watched: there until the node has shown that it lost nothing."""

    time: Time = Field(description="When the change was written.")
    devices: Count = Field(
        description="Devices that were offered, excluded or out of service before the change; as many must be "
        "afterwards."
    )
    policies: SetList[ObjectName] = listed(32, "DevicePolicies that changed, deleted ones included.")


class NodeDevicesSpec(Loose):
    """The desired state of this node."""

    config: Annotated[Sections, Atomic()] | None = optional(
        "Effective configuration: the sections that policies set, each replacing the node's own. Absent: "
        "not resolved yet; the agent keeps its last valid configuration. Empty: no policy sets anything. Written by "
        "the operator."
    )
    config_name: Annotated[str, StringConstraints(max_length=253)] | None = optional(
        "Mounted configuration file that applies, from the Node label nvidia.com/device-plugin.config. "
        "Written by the operator."
    )
    config_hash: Hash | None = optional(
        "Hash of config and configName; status.appliedConfigHash is equal once it is applied. Written by the operator."
    )
    policies: MapByName[PolicyReference] = listed(
        32, "Policies that select this node, highest precedence first. Written by the operator."
    )
    change: Annotated[Change, Atomic()] | None = optional(
        "Last configuration change, while its roll-out watches the node. Written by the operator."
    )
    unschedulable: MapById[Unschedulable] = listed(
        128,
        "Devices taken out of service by hand. Written by users; the agent restores them when it recreates "
        "the deleted object.",
    )


# --- status ----------------------------------------------------------------------------------------------------------
class Summary(Loose):
    """The node in a few integers and one reason: for columns, selectors and alerts."""

    devices: Count = Field(description="Physical devices, missing ones included.")
    healthy: Count = Field(description="Devices that are Healthy or Degraded.")
    degraded: Count = Field(description="Devices that are Degraded; also counted as healthy.")
    unhealthy: Count = Field(description="Devices that are Unhealthy.")
    unknown: Count = Field(description="Devices whose state cannot be determined.")
    held: Count = Field(description="Devices that containers hold, wholly or partly.")
    unschedulable: Count = Field(description="Devices taken out of service by hand.")
    offered: Count | None = optional("Devices with something healthy offered to the kubelet; absent: not known yet.")
    excluded: Count = Field(default=0, description="Devices that resources.exclude withholds, wholly or partly.")
    model: Short = Field(description="Product name; mixed for several, empty for none.")
    models: Count = Field(description="Number of different product names.")
    withheld: Short = Field(
        default="",
        description="Ids not reported as Healthy, by reason, such as Unhealthy=2. Excluded: devices withheld by "
        "resources.exclude. Details: status.resources[].withheld.",
    )
    message: ConditionMessage = Field(
        default="",
        description="For people: ids that new containers cannot get and why; what is wrong with the worst device, "
        "since when, and what helps.",
    )
    reason: ReasonText = Field(
        description="Why the agent is not Ready; else the health reason of the worst device; else Expected8Found7, if "
        "expected devices are missing; else empty."
    )
    recovery_action: ReasonText = Field(description="Recovery action for the worst device.")
    idle: Count | None = optional(
        "Devices that containers hold and do not use; absent: no policy has idle.afterSeconds."
    )


class Driver(Loose):
    """A kernel driver, and its version."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=64)] = Field(
        description="Driver, such as nvidia, amdgpu or mlx5_core."
    )
    version: Short = Field(default="", description="As the driver prints it, such as 570.148.08.")
    cuda_version: Short = Field(default="", description="Newest CUDA version that the driver supports, such as 12.8.")


class Probe(Loose):
    """A probe that the agent runs, and its state."""

    name: ProbeName = Field(description="nvml, simulated, or the name in --probe NAME=COMMAND.")
    state: ProbeState = Field(
        description="Starting: no report yet. Silent: no report for 15 s. Failed: does not start, or sends no valid "
        "report. NoDriver: its driver is not loaded."
    )
    message: HealthMessage = Field(
        default="", description="Explanation for people, with other problems that the probe reports."
    )
    since: Time = Field(description="When this state began.")
    devices: Count = Field(description="Devices that it reports, missing ones included.")


class Machine(Loose):
    """Facts for node labels that no single device has."""

    type: Line | None = optional("Product name of the machine (DMI).")
    mode: Short | None = optional("Purpose of the GPUs: compute or graphics.")
    clique: Line | None = optional("NVLink fabric: <cluster uuid>.<clique id>.")
    mig_strategy: Short | None = optional("How MIG devices are offered: none, single or mixed.")
    vgpu_version: Short = Field(default="", description="NVIDIA vGPU driver of the host, in a virtual machine.")
    vgpu_branch: Short = Field(default="", description="Branch of that driver.")


class MostSeen(Loose):
    """The most devices of one product that this node has had at one time."""

    probe: ProbeName = Field(description="Probe that listed them.")
    vendor: Short = Field(description="Vendor, such as nvidia.")
    product_name: Short = Field(description="Product, such as NVIDIA H100 80GB HBM3.")
    count: Count = Field(description="Most devices listed at one time.")


class Agent(Loose):
    """The agent that writes this status."""

    version: Short = Field(description="The agent's version.")
    boot_id: Short = Field(description="The node's boot id.")
    start_time: Time = Field(description="When the agent started.")
    heartbeat_time: Time = Field(description="Last heartbeat; there is one every 5 minutes.")


class Attribute(Loose):
    """An attribute as in a ResourceSlice: exactly one field is set."""

    string: Short | None = optional("Value, if it is text.")
    integer: Annotated[Whole, Field(ge=-INTEGER_MAX, le=INTEGER_MAX)] | None = optional(
        "Value, if it is a whole number."
    )
    boolean: Flag | None = optional("Value, if it is true or false.")
    version: Annotated[str, StringConstraints(pattern=SEMANTIC_VERSION_PATTERN, max_length=64)] | None = optional(
        "Value, if it is a semantic version, such as 9.0.0."
    )


class DeviceAttributes(Loose):
    """What the device is: fields for what all devices have, and `extra` for all else. The names are legal names of a
    ResourceSlice's attributes."""

    uuid: Annotated[str, StringConstraints(max_length=96)] | None = optional(
        "As in the vendor's tools, if it differs from the id."
    )
    vendor: Short | None = optional("Vendor, such as nvidia.")
    product_name: Short | None = optional("Product, such as NVIDIA H100 80GB HBM3.")
    brand: Short | None = optional("Product line, such as Tesla or GeForce.")
    architecture: Short | None = optional("Generation of the chip, such as Hopper.")
    pci_bus_id: Short | None = optional("PCI address, such as 0000:1b:00.0.")
    pcie_root: Short | None = optional("PCIe root complex, such as pci0000:16.")
    numa_node: Annotated[Whole, Field(ge=0, le=MAX_NUMA_NODE)] | None = optional("NUMA node; absent: not reported.")
    minor: Annotated[Whole, Field(ge=0, le=MAX_MINOR)] | None = optional(
        "Minor number of its device node, such as 3 for /dev/nvidia3."
    )
    firmware: Short | None = optional("Firmware version, as the device prints it.")
    extra: Annotated[dict[AttributeName, Attribute], Field(max_length=MAX_EXTRA)] = Field(
        default={}, description="Further attributes, such as cudaComputeCapability, migEnabled, gfxVersion or linkType."
    )


Capacity = Annotated[dict[AttributeName, Quantity], Field(max_length=MAX_CAPACITIES), Atomic()]


class Link(Loose):
    """A connection to another device or to a switch, or another device on the same PCIe root."""

    kind: Word = Field(description="Such as NVLink or XGMI; PCIe: a GPU and a NIC on one PCIe root, nearest first.")
    to: DeviceId = Field(description="A device id, or switch.")
    count: Count = Field(description="Number of these links.")


class HolderHealth(Loose):
    """What happened to one holder alone."""

    state: HealthState = Field(description="Degraded or Unhealthy.")
    reason: ReasonText = Field(
        default="", description="Machine-readable, such as Xid79, Missing or MpsDaemonRestarted."
    )
    message: HealthMessage = Field(default="", description="What happened, for people.")
    since: Time = Field(description="When this state and reason began.")
    recovery_action: Word | None = optional(
        "Recommended recovery action, such as RestartApp, ResetDevice or RebootNode."
    )
    fault_domain: FaultDomain | None = optional("Where the fault lies.")


class DeviceHealth(HolderHealth):
    """Health of a device."""

    state: HealthState = Field(
        description="Healthy, Degraded: offered. Unhealthy: not offered. Unknown: cannot be determined."
    )
    reasons: AtomicList[Word] = listed(MAX_REASONS, "All reasons, if several; faults.rules match each.")
    xids: AtomicList[Count] = listed(MAX_XIDS, "XIDs of all its faults since boot.")


class Notice(Loose):
    """An event that changed no state, such as an error of a program; the device stays in service."""

    code: Word = Field(description="Written as a health reason, such as Xid31.")
    message: Line = Field(description="Meaning and remedy, for people.")
    since: Time = Field(description="When it first occurred.")
    time: Time = Field(description="When it last occurred; updated at most once a minute.")
    count: Count = Field(description="Occurrences since then; the notice is removed a day after the last.")


class Occurred(Loose):
    """How often a reason came on a device in the last 80 to 90 days."""

    reason: Word = Field(description="Health reason, such as Xid79 or LinkDown.")
    count: Count = Field(description="Occurrences: an event counts each time, a reading when it begins.")
    first: Time = Field(description="When it first occurred.")
    last: Time = Field(description="When it last occurred; updated at most once a minute.")
    fault: Flag = Field(default=False, description="True for a fault of the device, not only an error of a program.")


class Holder(Loose):
    """A container that holds the device, as the kubelet reports it."""

    namespace: Annotated[str, StringConstraints(max_length=63)] = Field(description="The pod's namespace.")
    pod: Annotated[str, StringConstraints(max_length=253)] = Field(description="Name of the pod.")
    container: Annotated[str, StringConstraints(max_length=63)] = Field(description="Name of the container.")
    resource: Annotated[str, StringConstraints(max_length=317)] | None = optional(
        "Extended resource of the allocation."
    )
    claim: Annotated[str, StringConstraints(max_length=253)] | None = optional("ResourceClaim of the allocation (DRA).")
    shares: Count | None = optional("Number of shares; absent: the whole device.")
    memory: Quantity | None = optional("Memory of its shares.")
    cores: Percent | None = optional("Computing power, in percent of the device.")
    ids: AtomicList[Line] = listed(MAX_HOLDER_IDS, "The first allocated ids, for shares only.")
    since: MicroTime = Field(description="When it was allocated, or first observed.")
    health: HolderHealth | None = optional("Only if it differs from the device's, such as MpsDaemonRestarted.")
    idle: Word | None = optional(
        "How the device is not used (idle.afterSeconds). NeverUsed: no process since allocation. Idle: "
        "nothing computed. MemoryOnly: nothing computed, memory in use, no process visible. Unknown: cannot be "
        "determined. Absent: used, or not observed long enough."
    )
    idle_since: Time | None = optional("Start of the period without use.")


class Shares(Loose):
    """The shares of a device or partition that several containers share. The resource has the memory of each."""

    resource: Annotated[str, StringConstraints(max_length=317)] | None = optional(
        "Resource of the shares; absent: several, such as RDMA pools."
    )
    total: Count = Field(description="Number of shares.")
    held: Count = Field(
        description="Shares that containers hold; memory held in an earlier unit is converted to the current unit."
    )
    free: Count | None = optional(
        "Shares that new containers can get now. Shares neither held nor free are not offered. Absent: not known yet."
    )
    cores_held: Percent | None = optional("Held computing power, in percent of the device.")


class Device(Loose):
    """A physical device, or a partition of one (`parent`): what it is, its health, and its holders."""

    id: DeviceId = Field(
        description="GPU-<uuid> or MIG-<uuid>, also the device plugin's id; else a serial number or PCI address."
    )
    name: DeviceName = Field(description="In a ResourceSlice, such as gpu-<minor>, nic-<n> or gpu-0-mig-1g10gb-19-0.")
    type: Word = Field(description="gpu, nic, fpga, vf, dpu or generic; a partition's is its parent's.")
    index: Annotated[Whole, Field(ge=0, le=MAX_PARTITION_INDEX)] = Field(
        description="Number in the driver's order, as in nvidia-smi; a partition's among those of its parent."
    )
    parent: DeviceName | None = optional(
        "Name of the device of which this is a partition, as in a ResourceSlice; absent: a physical device."
    )
    profile: Annotated[str, StringConstraints(max_length=64)] | None = optional(
        "Size of a partition as the driver names it, such as 1g.10gb."
    )
    attributes: Annotated[DeviceAttributes, Atomic()] | None = optional(
        "What the device is, such as vendor and model. A partition has its parent's, and here only what is its own."
    )
    capacity: Capacity = Field(
        default={}, description="Capacities by name, such as memory: 80Gi or multiprocessors: 132."
    )
    links: AtomicList[Link] = listed(16, "Direct connections that affect placement.")
    health: Annotated[DeviceHealth, Atomic()] = Field(
        description="Whether it can be used; if not, why, since when, and what helps. A partition without faults of "
        "its own has its parent's."
    )
    notices: AtomicList[Notice] = listed(
        MAX_NOTICES, "Events that changed no state, newest first, such as errors of programs."
    )
    history: AtomicList[Occurred] = listed(
        MAX_HISTORY, "How often each reason occurred in the last 80 to 90 days, newest first; repairs do not reset it."
    )
    excluded: Line | None = optional("Entry of resources.exclude that withholds it.")
    unschedulable: Line | None = optional("Why it is out of service (spec.unschedulable).")
    drained_since: Time | None = optional(
        "Since when it can be removed without a fault: it is out of service by hand, no container holds "
        "it, and no process is seen on it. Absent: in service or in use."
    )
    shares: Annotated[Shares, Atomic()] | None = optional("Only if the device itself is shared.")
    holders: AtomicList[Holder] = listed(MAX_HOLDERS, "Containers that hold the device.")
    holders_truncated: Count | None = optional(
        "Holders left out, with those of partitions left out; their pods are not marked."
    )


class Withheld(Loose):
    """Ids that no new container can get, and why."""

    reason: Word = Field(description=REASONS)
    count: Count = Field(description="Number of ids.")
    devices: AtomicList[Line] = listed(
        MAX_WITHHELD_DEVICES, "The first affected devices and partitions, by name or id."
    )
    message: HealthMessage = Field(default="", description="Why, for people.")
    waits_for: AtomicList[PodPath] = listed(
        MAX_WITHHELD_PODS, "The first pods that must end, as namespace/name; absent: none known."
    )


class Resource(Loose):
    """An extended resource of this node."""

    name: ResourceName = Field(description="Extended resource, such as nvidia.com/gpu.")
    capacity: Count = Field(description="Ids (devices, partitions or shares), offered or withheld.")
    healthy: Count = Field(description="Ids reported to the kubelet as Healthy.")
    allocated: Count = Field(description="Ids that containers hold.")
    sharing: Word = Field(description="none, timeSlicing, mps or memory.")
    replicas: Count | None = optional("Shares of each device.")
    free: Count | None = optional(
        "Ids that a new container can get now. The scheduler sees fewer while pods hold withheld ids, "
        "because it subtracts their requests too."
    )
    unit: Quantity | None = optional("Memory of each share; free times unit is the free memory, over all devices.")
    packing: Word | None = optional("Device of the next shares: binpack (fullest) or spread (emptiest).")
    enforcement: Word | None = optional("What limits containers to their memory: mps; absent: nothing.")
    managed_by: Word = Field(description="Owner of the resource on the Node: plugin, operator or dra.")
    withheld: AtomicList[Withheld] = listed(
        MAX_WITHHELD, "Ids not reported as Healthy, by reason; healthy and these counts add up to capacity."
    )


class Refusal(Loose):
    """Why a configuration is not applied; the last good one stays."""

    section: Short = Field(default="", description="Section with the error; absent: elsewhere, such as a missing file.")
    field: Place = Field(default="", description="Path of the field, if known, such as sharing.resources[0].replicas.")
    message: ConditionMessage = Field(description="What is wrong and what would be right.")


class Unmatched(Loose):
    """An entry of the applied configuration that has no effect on this node."""

    section: Short = Field(description="Section of the entry, such as sharing.")
    entry: Place = Field(description="Path in the section, and value, such as resources[0].name example.com/x.")
    message: HealthMessage = Field(description="What exists instead, for people.")


class ConfigurationStatus(Loose):
    """The state of the node's configuration; the condition ConfigApplied says the same for people."""

    sources: AtomicList[Word] = listed(8, "Sources, highest precedence first: policy, flags, environment, file.")
    refusals: AtomicList[Refusal] = listed(
        MAX_REFUSALS,
        "All files and sections with errors; first the reason why the requested configuration is not applied.",
    )
    files_alone: Flag = Field(
        default=False,
        description="True: refusals are only files whose last good content is applied, and all else is applied, too.",
    )
    unmatched: AtomicList[Unmatched] = listed(MAX_UNMATCHED, "Entries without effect on this node.")
    waiting_for_pods: AtomicList[PodPath] = listed(
        MAX_WAITING_FOR, "Pods that must end before a change is applied, as namespace/name."
    )
    serving: Word | None = optional("Observe: another plugin serves the kubelet. Absent: this agent does.")


class RetiredResource(Loose):
    """A resource that the agent no longer offers; its zero on the Node can be removed."""

    name: ResourceName = Field(description="Resource that is no longer offered.")
    since: Time = Field(description="When the agent stopped offering it.")


class AffectedPod(Loose):
    """A pod that has the condition nodedevices.io/DeviceHealthy because of a fault."""

    namespace: Annotated[str, StringConstraints(max_length=63)] = Field(description="The pod's namespace.")
    name: Annotated[str, StringConstraints(max_length=253)] = Field(description="Name of the pod.")
    uid: Annotated[str, StringConstraints(min_length=1, max_length=64)] = Field(description="The pod's uid.")
    device: DeviceId = Field(
        description="Faulty device; unknown: the pod was marked under an earlier NodeDevices of the node."
    )
    reason: ReasonText = Field(description="Health reason that the pod shows.")
    since: Time = Field(description="When the fault began.")


class NodeAction(Loose):
    """One of the things that the operator does on the node because a policy asks for it."""

    name: Word = Field(description="capacity, evictions, taint, labels or idlePods.")
    reason: Word = Field(description="InSync, or why it is not done, in CamelCase.")
    message: ConditionMessage = Field(description="Human-readable message; may be empty.")
    observed_generation: Generation | None = optional("metadata.generation that reason and message are about.")


class NodeDevicesStatus(Loose):
    """What is on this node, who holds it, and whether it is well."""

    observed_generation: Generation | None = optional("metadata.generation that the agent has applied.")
    applied_config_hash: Hash | None = optional("spec.configHash that the agent has applied.")
    node_uid: Uid | None = optional("uid of the Node; a recreated Node has another.")
    summary: Annotated[Summary, Atomic()] | None = optional("Summary of the node's devices.")
    drivers: MapByName[Driver] = listed(MAX_DRIVERS, "Loaded drivers of the devices.")
    machine: Annotated[Machine, Atomic()] | None = optional("Facts about the machine, for node labels.")
    probes: MapByName[Probe] = listed(MAX_PROBES, "Probes that the agent runs.")
    agent: Annotated[Agent, Atomic()] | None = optional("The agent that writes this status.")
    configuration: Annotated[ConfigurationStatus, Atomic()] | None = optional("State of the agent's configuration.")
    devices: MapById[Device] = listed(
        MAX_LISTED, "Physical devices, by type and index, each followed by its partitions."
    )
    partitions_truncated: Count | None = optional(
        "Partitions left out of devices, healthy ones first, because the object would be too large."
    )
    resources: MapByName[Resource] = listed(32, "Extended resources of this node.")
    retired_resources: MapByName[RetiredResource] = listed(64, "Resources that are no longer offered.")
    most_seen: AtomicList[MostSeen] = listed(
        16,
        "Most devices of each product listed at one time. If no policy has expect and fewer are listed, "
        "the condition ExpectedDevices is False.",
    )
    affected_pods: Annotated[
        tuple[Annotated[AffectedPod, Atomic()], ...], Field(max_length=MAX_AFFECTED_PODS), ListType("map", "uid")
    ] = Field(
        default=(),
        description="Pods with the condition nodedevices.io/DeviceHealthy because of a fault. Written by the operator.",
    )
    actions: MapByName[NodeAction] = listed(
        8,
        "What policies ask the operator to do on this node, and whether it is done. The condition "
        "ActionsSynced sums it up. Written by the operator.",
    )
    conditions: Annotated[tuple[Annotated[Condition, Atomic()], ...], Field(max_length=16), ListType("map", "type")] = (
        Field(
            default=(),
            description="By the agent: Ready, DevicesHealthy, ConfigApplied, HoldersKnown, AllocatedOnce, "
            "ExpectedDevices, SlicesPublished. By the operator: PolicyResolved, ActionsSynced, Stale, ProblemReported, "
            "MaintenanceScheduled. Some exist only where they apply.",
        )
    )


class NodeDevices(Loose):
    """The devices of a node: their health, who holds them, and how they are offered."""

    api_version: Literal["nodedevices.io/v1alpha1"] = Field(default=API_VERSION)
    kind: Literal["NodeDevices"] = "NodeDevices"
    metadata: ObjectMeta
    spec: NodeDevicesSpec = Field(
        default=NodeDevicesSpec(),
        # When the last field of a spec is taken out by server-side apply, null is left; the default makes it {} again.
        json_schema_extra=in_schema({}),
        description="Desired state of the node.",
    )
    status: NodeDevicesStatus = Field(default=NodeDevicesStatus(), description="Observed state of the node.")
