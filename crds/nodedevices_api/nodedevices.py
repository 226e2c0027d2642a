"""NodeDevices: one object per node, named like the node.

`spec` is written by the operator (config, configName, configHash, policies) and by people (unschedulable); `status` by
the agent, except affectedPods and three conditions, which are the operator's. In status only closed sets are enums: one
value that an older CRD does not know would make the API server refuse the agent's whole report.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from nodedevices_api import API_VERSION, withheld
from nodedevices_api.base import Loose, Root, Rule
from nodedevices_api.bounds import (
    ATTRIBUTE_NAME_PATTERN,
    DEVICE_NAME_PATTERN,
    MAX_ATTRIBUTE_NAME,
    MAX_CAPACITIES,
    MAX_DEVICE_NAME,
    MAX_DEVICES,
    MAX_EXTRA,
    MAX_INDEX,
    MAX_MINOR,
    MAX_NUMA_NODE,
    MAX_PARTITIONS,
    MAX_PROBE_NAME,
    MAX_PROBES,
    PROBE_NAME_PATTERN,
    SEMANTIC_VERSION_PATTERN,
)
from nodedevices_api.conditions import Condition
from nodedevices_api.fields import (
    INTEGER_MAX,
    Atomic,
    ConditionMessage,
    Count,
    DeviceId,
    Flag,
    Generation,
    HealthMessage,
    Line,
    ListType,
    MicroTime,
    ObjectName,
    Place,
    Quantity,
    ResourceName,
    Short,
    Time,
    Whole,
    Word,
    in_schema,
)
from nodedevices_api.meta import ObjectMeta
from nodedevices_api.sections import Sections

HealthState = Literal["Healthy", "Degraded", "Unhealthy", "Unknown"]
FaultDomain = Literal["Application", "Device", "Node"]
ProbeState = Literal["Ready", "Starting", "Silent", "Failed", "NoDriver"]

MAX_DRIVERS = 8
MAX_UNMATCHED = 32  # entries of a configuration
MAX_REFUSALS = 8  # files and sections
MAX_WAITING_FOR = 32  # pods
MAX_WAITING_IDS = 8  # of one pod
MAX_HOLDERS = 64
MAX_HOLDER_IDS = 8
MAX_XIDS = 16  # of one device
MAX_REASONS = 16  # of one device, at one time
MAX_AFFECTED_PODS = 256
MAX_NOTICES = 4  # of one device
MAX_HISTORY = 6  # reasons of one device
MAX_WITHHELD = 16  # reasons of one resource
MAX_WITHHELD_DEVICES = 8
MAX_WITHHELD_PODS = 8
REASONS = "Why: " + "; ".join(f"{reason}: {meaning}" for reason, meaning in withheld.MEANINGS.items()) + "."

Uid = Annotated[str, StringConstraints(max_length=64)]
Hash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]*$", max_length=64)]
DeviceName = Annotated[str, StringConstraints(pattern=DEVICE_NAME_PATTERN, max_length=MAX_DEVICE_NAME)]
ProbeName = Annotated[str, StringConstraints(pattern=PROBE_NAME_PATTERN, max_length=MAX_PROBE_NAME)]
AttributeName = Annotated[str, StringConstraints(pattern=ATTRIBUTE_NAME_PATTERN, max_length=MAX_ATTRIBUTE_NAME)]
SharedResourceName = Annotated[str, StringConstraints(max_length=317)]  # as a holder's
PodPath = Annotated[str, StringConstraints(max_length=317)]  # <namespace>/<name>
Percent = Annotated[Whole, Field(ge=0, le=100)]
Profile = Annotated[str, StringConstraints(max_length=64)]
ReasonText = Annotated[str, StringConstraints(pattern=r"^([A-Za-z][A-Za-z0-9]{0,63})?$", max_length=64)]


# --- spec ------------------------------------------------------------------------------------------------------------
class PolicyReference(Loose):
    """A policy that selects this node."""

    name: ObjectName = Field(description="Name of the DevicePolicy.")
    generation: Generation = Field(description="Its metadata.generation that was resolved.")
    priority: Annotated[Whole, Field(ge=-1000, le=1000)] = Field(description="Its priority; the highest wins.")
    sections: Annotated[tuple[Word, ...], Field(max_length=16), ListType("set")] = Field(
        default=(), description="The sections that it supplies to this node."
    )


class Unschedulable(Loose):
    """A device taken out of service by hand: a cordon for one device."""

    id: DeviceId = Field(description="A GPU's or a MIG device's id.")
    reason: Annotated[str, StringConstraints(min_length=1, max_length=256)] = Field(
        description="Human-readable reason, such as RMA 4711."
    )
    by: Annotated[str, StringConstraints(max_length=253)] | None = Field(
        default=None, description="Who took the device out of service."
    )
    since: Time | None = Field(
        default=None,
        description="Since when. Where it is not given, an agent that makes the object again after a deletion writes "
        "when it first saw the entry.",
    )
    until: Time | None = Field(default=None, description="Back in service from this time on; absent: until removed.")

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

    time: Time = Field(description="When it was written.")
    devices: Count = Field(
        description="Devices that were offered before it, and those excluded or out of service: so many must be "
        "accounted for after it."
    )
    policies: Annotated[tuple[ObjectName, ...], Field(max_length=32), ListType("set")] = Field(
        default=(), description="The DevicePolicies whose change it is, deleted ones included."
    )


class NodeDevicesSpec(Loose):
    """The desired state of this node."""

    config: Annotated[Sections, Atomic()] | None = Field(
        default=None,
        description="The effective configuration: the sections that policies set, each replacing the node's own. "
        "Absent: not resolved yet, the agent keeps its last valid configuration. Empty: resolved, no policy sets "
        "anything. Written by the operator.",
    )
    config_name: Annotated[str, StringConstraints(max_length=253)] | None = Field(
        default=None,
        description="Which of the mounted configuration files applies, from the Node label "
        "nvidia.com/device-plugin.config. Written by the operator.",
    )
    config_hash: Hash | None = Field(
        default=None,
        description="Covers config and configName; the agent echoes it as status.appliedConfigHash. Written by the "
        "operator.",
    )
    policies: Annotated[
        tuple[Annotated[PolicyReference, Atomic()], ...], Field(max_length=32), ListType("map", "name")
    ] = Field(
        default=(), description="The policies that select this node, highest precedence first. Written by the operator."
    )
    change: Annotated[Change, Atomic()] | None = Field(
        default=None,
        description="The last change of the configuration while it is watched (DevicePolicy spec.rollout). Written by "
        "the operator.",
    )
    unschedulable: Annotated[
        tuple[Annotated[Unschedulable, Atomic()], ...], Field(max_length=128), ListType("map", "id")
    ] = Field(
        default=(),
        description="Devices taken out of service by hand. Written by users; the agent writes them back when it makes "
        "the object again after a deletion.",
    )


# --- status ----------------------------------------------------------------------------------------------------------
class Summary(Loose):
    """The node in a few integers and one reason: for columns, selectors and alerts."""

    devices: Count = Field(description="Physical devices, missing ones included.")
    healthy: Count = Field(description="Devices that are Healthy or Degraded.")
    degraded: Count = Field(description="Devices that are Degraded; counted as healthy, too.")
    unhealthy: Count = Field(description="Devices that are Unhealthy.")
    unknown: Count = Field(description="Devices whose state cannot be determined.")
    held: Count = Field(description="Devices that a container holds, wholly or in part.")
    unschedulable: Count = Field(description="Devices taken out of service by hand.")
    offered: Count | None = Field(
        default=None,
        description="Devices of which the kubelet is offered something healthy; absent: not known yet.",
    )
    excluded: Count = Field(
        default=0, description="Devices that resources.exclude keeps from being offered, wholly or in part."
    )
    model: Short = Field(description="The product name; mixed for several, empty for none.")
    models: Count = Field(description="How many different product names.")
    withheld: Short = Field(
        default="",
        description="Why ids of the node's resources are not reported as Healthy, with their number: Unhealthy=2; "
        "Excluded: the devices of which resources.exclude leaves no ids. status.resources[].withheld has more.",
    )
    message: ConditionMessage = Field(
        default="",
        description="The node in a sentence or two, for people: which ids new containers cannot get and why, and what "
        "is wrong with the worst device, since when, and what helps.",
    )
    reason: ReasonText = Field(
        description="Why the agent is not Ready; else the health reason of the worst device; else Expected8Found7, "
        "where devices that are expected are not there; else empty."
    )
    recovery_action: ReasonText = Field(description="Recovery action of the worst device.")
    idle: Count | None = Field(
        default=None,
        description="Devices that a container holds and does not use; absent: no policy has idle.afterSeconds.",
    )
    most_faults: Short = Field(
        default="",
        description="The device that has had the most faults in the last 80 to 90 days, with their number: gpu-3=12; "
        "empty: none had any.",
    )


class Driver(Loose):
    """A kernel driver, and its version."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=64)] = Field(
        description="Name of the driver, such as nvidia, amdgpu or mlx5_core."
    )
    version: Short = Field(default="", description="As the driver prints it: 570.148.08.")
    cuda_version: Short = Field(default="", description="The newest CUDA that it supports: 12.8.")


class Probe(Loose):
    """A probe that the agent runs, and its state."""

    name: ProbeName = Field(description="nvml, simulated, or the name given with --probe NAME=COMMAND.")
    state: ProbeState = Field(
        description="Ready; Starting (no report yet); Silent (no report for 15 s); Failed (it does not start or writes "
        "no good report); NoDriver (it runs, and its driver is not loaded)."
    )
    message: HealthMessage = Field(
        default="", description="Human-readable explanation, with further problems that the probe reports."
    )
    since: Time = Field(description="When this state began.")
    devices: Count = Field(description="Devices that it reports, missing ones included.")


class Vgpu(Loose):
    """NVIDIA vGPU host driver, in a virtual machine."""

    version: Short = Field(default="", description="The host driver's version.")
    branch: Short = Field(default="", description="The host driver's branch.")


class Machine(Loose):
    """Facts for node labels that no single device has."""

    type: Line | None = Field(default=None, description="The machine's product name (DMI).")
    mode: Short | None = Field(default=None, description="What the GPUs are for: compute or graphics.")
    clique: Line | None = Field(default=None, description="<cluster uuid>.<clique id> of the NVLink fabric.")
    mig_strategy: Short | None = Field(default=None, description="How MIG devices are offered: none, single, mixed.")
    vgpu: Vgpu | None = Field(default=None, description="Set where the GPUs are virtual.")


class MostSeen(Loose):
    """The most devices of one product that this node has had at one time."""

    probe: ProbeName = Field(description="The probe that listed them.")
    vendor: Short = Field(description="Who made them, such as nvidia.")
    product_name: Short = Field(description="What they are, such as NVIDIA H100 80GB HBM3.")
    count: Count = Field(description="How many of them were listed at one time.")


class Agent(Loose):
    """The agent that writes this status."""

    version: Short = Field(description="The agent's version.")
    boot_id: Short = Field(description="The node's boot id.")
    start_time: Time = Field(description="When the agent started.")
    heartbeat_time: Time = Field(description="Time of the agent's last heartbeat; every 5 minutes.")


class Attribute(Loose):
    """The value of an attribute, in the form of a ResourceSlice: exactly one of the fields is set."""

    string: Short | None = Field(default=None, description="The value, where it is text.")
    integer: Annotated[Whole, Field(ge=-INTEGER_MAX, le=INTEGER_MAX)] | None = Field(
        default=None, description="The value, where it is a whole number."
    )
    boolean: Flag | None = Field(default=None, description="The value, where it is true or false.")
    version: Annotated[str, StringConstraints(pattern=SEMANTIC_VERSION_PATTERN, max_length=64)] | None = Field(
        default=None, description="The value, where it is a semantic version such as 9.0.0."
    )


class DeviceAttributes(Loose):
    """What the device is: fields for what all devices have, and `extra` for all else. The names are legal names of a
    ResourceSlice's attributes."""

    uuid: Annotated[str, StringConstraints(max_length=96)] | None = Field(
        default=None, description="The UUID shown by the vendor's tools, where it differs from the id."
    )
    vendor: Short | None = Field(default=None, description="Who made it, such as nvidia.")
    product_name: Short | None = Field(default=None, description="Product name, such as NVIDIA H100 80GB HBM3.")
    brand: Short | None = Field(default=None, description="Product line, such as Nvidia, Tesla or GeForce.")
    architecture: Short | None = Field(default=None, description="Generation of the chip, such as Hopper.")
    pci_bus_id: Short | None = Field(default=None, description="PCI address, such as 0000:1b:00.0.")
    pcie_root: Short | None = Field(default=None, description="PCIe root complex, such as pci0000:16.")
    numa_node: Annotated[Whole, Field(ge=0, le=MAX_NUMA_NODE)] | None = Field(
        default=None, description="The NUMA node; absent: not reported by the machine."
    )
    minor: Annotated[Whole, Field(ge=0, le=MAX_MINOR)] | None = Field(
        default=None, description="The minor number of its device node: 3 for /dev/nvidia3."
    )
    firmware: Short | None = Field(default=None, description="The firmware's version, as the device prints it.")
    extra: Annotated[dict[AttributeName, Attribute], Field(max_length=MAX_EXTRA)] = Field(
        default={},
        description="Further attributes by name: cudaComputeCapability, migCapable and migEnabled of NVIDIA's GPUs, "
        "gfxVersion, linkType, shell.",
    )


Capacity = Annotated[dict[AttributeName, Quantity], Field(max_length=MAX_CAPACITIES), Atomic()]


class Link(Loose):
    """A direct connection to another device, or to a switch; or another device on the same PCIe root."""

    kind: Word = Field(
        description="Kind of the link, such as NVLink or XGMI. PCIe: between a GPU and a NIC on one PCIe root, the "
        "nearest first."
    )
    to: DeviceId = Field(description="A device id, or switch.")
    count: Count = Field(description="How many links of this kind there are.")


class DeviceHealth(Loose):
    """Health of a device."""

    state: HealthState = Field(
        description="Healthy; Degraded (reported, still offered); Unhealthy (not offered); Unknown (not known)."
    )
    reason: ReasonText = Field(default="", description="Machine-readable reason: Xid79, Missing, RowRemapFailure.")
    reasons: Annotated[tuple[Word, ...], Field(max_length=MAX_REASONS), ListType("atomic")] = Field(
        default=(),
        description="Where there are several: all that hold it in this state, reason first; faults.rules go by each.",
    )
    message: HealthMessage = Field(default="", description="What happened, for people.")
    since: Time = Field(description="When this state and reason began.")
    xid: Count | None = Field(default=None, description="The XID, where one is the reason.")
    xids: Annotated[tuple[Count, ...], Field(max_length=MAX_XIDS), ListType("atomic")] = Field(
        default=(), description="The XIDs of all its faults since the machine booted, in their order."
    )
    recovery_action: Word | None = Field(
        default=None, description="Recommended recovery action: RebootNode, ResetDevice."
    )
    fault_domain: FaultDomain | None = Field(
        default=None, description="Where the fault lies: Application, Device or Node."
    )


class Notice(Loose):
    """What happened on a device and changed no state: an error of the program that used it, or one that was contained.
    The device stays in service."""

    code: Word = Field(description="What it was, as a health reason: Xid31.")
    message: Line = Field(description="What it means and what to do, for people.")
    partition: DeviceId | None = Field(default=None, description="The partition that it was about, where it is known.")
    since: Time = Field(description="When it came first.")
    time: Time = Field(description="When it came last; repeats are added once a minute.")
    count: Count = Field(description="How often it has come since then; forgotten a day after the last.")


class Occurred(Loose):
    """How often a reason came on a device in the last 80 to 90 days."""

    reason: Word = Field(description="The health reason: Xid79, LinkDown.")
    count: Count = Field(description="How often it came: an event as often as it happened, a reading when it began.")
    first: Time = Field(description="When it came first.")
    last: Time = Field(description="When it came last; repeats are added once a minute.")
    fault: Flag = Field(
        default=False, description="True when it has been a fault of the device, not only an error of a program."
    )


class Holder(Loose):
    """A container that has the device, as the kubelet shows it."""

    namespace: Annotated[str, StringConstraints(max_length=63)] = Field(description="The pod's namespace.")
    pod: Annotated[str, StringConstraints(max_length=253)] = Field(description="Name of the pod.")
    pod_uid: Uid | None = Field(default=None, description="The pod's uid, where it is known.")
    container: Annotated[str, StringConstraints(max_length=63)] = Field(description="Name of the container in the pod.")
    resource: Annotated[str, StringConstraints(max_length=317)] | None = Field(
        default=None, description="The extended resource by which it was allocated."
    )
    claim: Annotated[str, StringConstraints(max_length=253)] | None = Field(
        default=None, description="The ResourceClaim by which it was allocated (DRA)."
    )
    shares: Count | None = Field(
        default=None, description="How many shares of the device it has; absent: the whole device."
    )
    memory: Quantity | None = Field(
        default=None, description="How much of the device's memory its shares are, where memory is shared."
    )
    cores: Percent | None = Field(
        default=None,
        description="How much of the device's computing power it has, in percent of the device; only where the "
        "resource's `cores` is on.",
    )
    ids: Annotated[
        tuple[Line, ...],
        Field(max_length=MAX_HOLDER_IDS),
        ListType("atomic"),
    ] = Field(
        default=(),
        description="The allocated ids: only for shares of the device, and only the first of them; one where memory is "
        "shared.",
    )
    since: MicroTime = Field(description="When it was allocated, or first observed; with microseconds.")
    health: DeviceHealth | None = Field(
        default=None,
        description="Only where it differs from the device's: what happened to this container alone, such as "
        "MpsDaemonRestarted.",
    )
    idle: Word | None = Field(
        default=None,
        description="How it does not use the device, where a policy has idle.afterSeconds. NeverUsed: no process was "
        "there since it has the device. Idle: nothing was computed for so long. MemoryOnly: the same, memory of the "
        "device is in use, and no process can be seen. Unknown: partitions, shares or the driver hide it. Absent: it "
        "uses the device, or has not been observed for so long.",
    )
    idle_since: Time | None = Field(
        default=None, description="Since when, where idle says that it does not use it; written once for each period."
    )


Excluded = Annotated[
    Line | None,
    Field(
        default=None,
        description="The entry of resources.exclude because of which it is not offered; absent: none.",
    ),
]


OutOfService = Annotated[
    Line | None,
    Field(
        default=None, description="Why it was taken out of service by hand (spec.unschedulable); absent: it was not."
    ),
]


class Shares(Loose):
    """The shares of a device or partition that several containers share. The memory of a device that is shared by
    memory is `total` times `unit`, and `unallocatable`."""

    resource: SharedResourceName | None = Field(
        default=None,
        description="The extended resource of the shares; absent: they are of several, such as two RDMA pools.",
    )
    total: Count = Field(description="How many shares the device has.")
    held: Count = Field(
        description="How many of them are held by containers. Memory that is held in shares of an earlier unit counts "
        "as the shares of today's unit that it takes."
    )
    free: Count | None = Field(
        default=None,
        description="How many of them a new container can get now: offered, healthy and not held. What is neither "
        "held nor free is not offered. Absent: it is not known yet what is held.",
    )
    unit: Quantity | None = Field(default=None, description="Memory of each share, where memory is shared.")
    unallocatable: Quantity | None = Field(
        default=None,
        description="Memory of the device that is in no share: the reserve, and what is left of it by whole units. "
        "Only where memory is shared.",
    )
    packing: Word | None = Field(
        default=None,
        description="Which device the next shares come from, binpack or spread; only where memory is shared.",
    )
    cores_held: Percent | None = Field(
        default=None,
        description="How much of the device's computing power containers hold, in percent; only where the resource's "
        "`cores` is on.",
    )


class Partition(Loose):
    """A part of a device: a MIG device, a partition of AMD's, a virtual function. It has its device's attributes."""

    id: DeviceId = Field(description="Its id, which is also the device plugin's: MIG-<uuid>.")
    name: DeviceName = Field(description="Its name in a ResourceSlice: gpu-0-mig-1g10gb-19-0.")
    profile: Profile = Field(description="Size in the driver's words, such as 1g.10gb.")
    gi: Count | None = Field(default=None, description="Id of its GPU instance (NVIDIA).")
    ci: Count | None = Field(default=None, description="Id of its compute instance (NVIDIA).")
    start: Count | None = Field(default=None, description="The first memory slice that it has.")
    size: Count | None = Field(default=None, description="How many memory slices it has.")
    capacity: Capacity = Field(default={}, description="Capacities by name: memory, multiprocessors.")
    health: DeviceHealth | None = Field(default=None, description="Only where it differs from its device's.")
    excluded: Excluded = None
    unschedulable: OutOfService = None
    shares: Annotated[Shares, Atomic()] | None = Field(
        default=None, description="Only where the partition itself is shared, as of a device."
    )
    holders: Annotated[tuple[Holder, ...], Field(max_length=MAX_HOLDERS), ListType("atomic")] = Field(
        default=(), description="Containers that have it."
    )


class Device(Loose):
    """A physical device: what it is, its health, and who holds it."""

    id: DeviceId = Field(
        description="Of a GPU the physical UUID, which is also the device plugin's id: GPU-<uuid>; else a serial "
        "number or the PCI address."
    )
    name: DeviceName = Field(description="Its name in a ResourceSlice: gpu-<minor>, nic-<n>, fpga-<n>.")
    type: Word = Field(description="gpu, nic, fpga, vf, dpu, generic.")
    index: Annotated[Whole, Field(ge=0, le=MAX_INDEX)] = Field(
        description="Number in the driver's order, as nvidia-smi shows it."
    )
    probe: ProbeName | None = Field(default=None, description="Which probe reports it.")
    attributes: Annotated[DeviceAttributes, Atomic()] | None = Field(
        default=None, description="What the device is: vendor, model, place in the machine."
    )
    capacity: Capacity = Field(
        default={}, description="Capacities by name: memory: 80Gi, multiprocessors: 132, vfs: 16. Engines are counts."
    )
    links: Annotated[tuple[Link, ...], Field(max_length=16), ListType("atomic")] = Field(
        default=(), description="Direct connections; only what changes placement."
    )
    health: Annotated[DeviceHealth, Atomic()] = Field(
        description="Whether it may be used; if not, why, since when, and what would help."
    )
    notices: Annotated[tuple[Notice, ...], Field(max_length=MAX_NOTICES), ListType("atomic")] = Field(
        default=(),
        description="Events that changed no state, newest first, such as an error of the program that used the device.",
    )
    history: Annotated[tuple[Occurred, ...], Field(max_length=MAX_HISTORY), ListType("atomic")] = Field(
        default=(),
        description="How often reasons came on this device lately, the newest first; what came while it was repaired "
        "in between stays here.",
    )
    excluded: Excluded = None
    unschedulable: OutOfService = None
    drained_since: Time | None = Field(
        default=None,
        description="Since when it can be taken out of the machine: it is out of service by hand, no container has it, "
        "and no process is seen on it. That it is gone then is no fault. Absent: it is in service, or still in use.",
    )
    partitions: Annotated[tuple[Partition, ...], Field(max_length=MAX_PARTITIONS), ListType("atomic")] = Field(
        default=(), description="Parts of the device, such as MIG devices."
    )
    partitions_truncated: Count | None = Field(
        default=None,
        description="How many partitions are left out, healthy ones first, because etcd takes no larger object.",
    )
    shares: Annotated[Shares, Atomic()] | None = Field(
        default=None,
        description="Only where the device as a whole is shared: how many shares there are, how many are held, and how "
        "many are free. Where its partitions are shared, each of them has its own.",
    )
    holders: Annotated[tuple[Holder, ...], Field(max_length=MAX_HOLDERS), ListType("atomic")] = Field(
        default=(), description="Containers that have it, sorted."
    )
    holders_truncated: Count | None = Field(
        default=None,
        description="How many holders are left out, of the device and of its partitions; their pods are not marked.",
    )


class ResourceMemory(Loose):
    """The memory of all devices of a resource whose shares are amounts of memory. What is neither held nor free nor
    unallocatable is not offered: its device is not healthy, or waits for holders of an earlier configuration."""

    total: Quantity = Field(
        description="Memory of the devices; of one that its driver no longer lists, what containers hold of it."
    )
    held: Quantity = Field(description="Memory that containers hold.")
    free: Quantity | None = Field(
        default=None,
        description="Memory that new containers can get now, of all devices together; one container's is of one "
        "device.",
    )
    unallocatable: Quantity = Field(description="Memory that is in no share: the reserve, and remainders.")


class Withheld(Loose):
    """Ids of a resource that no new container can get, and why."""

    reason: Word = Field(description=REASONS)
    count: Count = Field(description="Number of these ids.")
    devices: Annotated[tuple[Line, ...], Field(max_length=MAX_WITHHELD_DEVICES), ListType("atomic")] = Field(
        default=(), description="The first of their devices and partitions, by name or id."
    )
    message: HealthMessage = Field(default="", description="Why, for people.")
    waits_for: Annotated[tuple[PodPath, ...], Field(max_length=MAX_WITHHELD_PODS), ListType("atomic")] = Field(
        default=(), description="The first of the pods whose end would end it, namespace/name; absent: none is known."
    )


class Resource(Loose):
    """An extended resource of this node."""

    name: ResourceName = Field(description="Name of the extended resource, such as nvidia.com/gpu.")
    capacity: Count = Field(description="Number of ids: devices, partitions or shares, offered or withheld.")
    healthy: Count = Field(description="Number of ids that are reported to the kubelet as Healthy.")
    allocated: Count = Field(description="Number of ids that containers hold.")
    sharing: Word = Field(description="none, timeSlicing, mps or memory.")
    replicas: Count | None = Field(default=None, description="Shares of each device.")
    free: Count | None = Field(
        default=None,
        description="Number of ids that a new container can get now: offered, healthy and not held. The scheduler sees "
        "fewer while pods hold ids that are withheld: it subtracts what they request from what can be allocated.",
    )
    unit: Quantity | None = Field(default=None, description="Memory of each share, where memory is shared.")
    packing: Word | None = Field(
        default=None,
        description="Which device the next shares come from, binpack or spread; only where memory is shared.",
    )
    enforcement: Word | None = Field(
        default=None,
        description="What keeps containers to their memory: mps. Absent: nothing does.",
    )
    memory: Annotated[ResourceMemory, Atomic()] | None = Field(
        default=None, description="In amounts of memory; only where memory is shared."
    )
    managed_by: Word = Field(description="Who owns the resource on the Node: plugin, operator or dra.")
    withheld: Annotated[tuple[Withheld, ...], Field(max_length=MAX_WITHHELD), ListType("atomic")] = Field(
        default=(),
        description="Why ids are not reported as Healthy, a reason each: healthy and these counts add up to capacity.",
    )


class Refusal(Loose):
    """Why a configuration is not applied. The last good one stays."""

    section: Short = Field(
        default="",
        description="The section with the error; absent: no section of a policy, such as a missing file.",
    )
    field: Place = Field(default="", description="The field, where it is known: sharing.resources[0].replicas.")
    message: ConditionMessage = Field(description="What is wrong and what would be right, for people.")


class Unmatched(Loose):
    """An entry of the applied configuration that has no effect on this node."""

    section: Short = Field(description="Section of the configuration that has it, such as sharing.")
    entry: Place = Field(description="Its path in the section, and its value: resources[0].name example.com/x.")
    message: HealthMessage = Field(description="What exists instead, for people.")


class WaitingFor(Loose):
    """A pod that must end before a change of the configuration is applied."""

    namespace: Annotated[str, StringConstraints(max_length=63)] = Field(description="The pod's namespace.")
    pod: Annotated[str, StringConstraints(max_length=253)] = Field(description="Name of the pod.")
    resource: Annotated[str, StringConstraints(max_length=317)] = Field(
        default="", description="The extended resource by which it holds them; absent: a ResourceClaim."
    )
    ids: Annotated[
        tuple[Line, ...],
        Field(max_length=MAX_WAITING_IDS),
        ListType("atomic"),
    ] = Field(default=(), description="The first of the ids that it holds.")


class ConfigurationStatus(Loose):
    """The state of the node's configuration; the condition ConfigApplied says the same for people."""

    sources: Annotated[tuple[Word, ...], Field(max_length=8), ListType("atomic")] = Field(
        default=(),
        description="Where the configuration comes from, highest precedence first: policy, flags, environment, file.",
    )
    refused: Refusal | None = Field(default=None, description="Why the requested configuration is not applied.")
    refusals: Annotated[tuple[Refusal, ...], Field(max_length=MAX_REFUSALS), ListType("atomic")] = Field(
        default=(),
        description="All files and sections that are wrong by themselves. Without refused, they are files of which the "
        "last good content is applied, with everything else.",
    )
    unmatched: Annotated[tuple[Unmatched, ...], Field(max_length=MAX_UNMATCHED), ListType("atomic")] = Field(
        default=(), description="Entries without effect on this node."
    )
    waiting_for: Annotated[tuple[WaitingFor, ...], Field(max_length=MAX_WAITING_FOR), ListType("atomic")] = Field(
        default=(), description="Pods that must end before a change is applied."
    )
    waiting_for_daemons: Count | None = Field(
        default=None, description="Number of resources whose MPS daemon is not ready yet."
    )
    serving: Word | None = Field(
        default=None,
        description="Observe: another plugin serves the kubelet, whatever says so. Absent: this agent does.",
    )


class RetiredResource(Loose):
    """A resource that the agent no longer offers: its zero may be removed from the Node."""

    name: ResourceName = Field(description="The name no longer offered.")
    since: Time = Field(description="When the agent stopped offering it.")


class AffectedPod(Loose):
    """A pod that has the condition nodedevices.io/DeviceHealthy because of a fault."""

    namespace: Annotated[str, StringConstraints(max_length=63)] = Field(description="The pod's namespace.")
    name: Annotated[str, StringConstraints(max_length=253)] = Field(description="Name of the pod.")
    uid: Annotated[str, StringConstraints(min_length=1, max_length=64)] = Field(description="The pod's uid.")
    device: DeviceId = Field(
        description="The faulty device; unknown: the pod was marked under an earlier NodeDevices of the node."
    )
    reason: ReasonText = Field(description="The health reason that the pod shows.")
    since: Time = Field(description="When the fault began.")


class NodeDevicesStatus(Loose):
    """What is on this node, who holds it, and whether it is well."""

    observed_generation: Generation | None = Field(
        default=None, description="metadata.generation that the agent has applied."
    )
    applied_config_hash: Hash | None = Field(default=None, description="spec.configHash that the agent has applied.")
    node_uid: Uid | None = Field(default=None, description="The Node's uid: a recreated node is another node.")
    summary: Annotated[Summary, Atomic()] | None = Field(default=None, description="Summary of the node's devices.")
    drivers: Annotated[
        tuple[Annotated[Driver, Atomic()], ...], Field(max_length=MAX_DRIVERS), ListType("map", "name")
    ] = Field(default=(), description="The devices' drivers that are loaded.")
    machine: Annotated[Machine, Atomic()] | None = Field(
        default=None, description="Facts about the machine, for node labels."
    )
    probes: Annotated[tuple[Annotated[Probe, Atomic()], ...], Field(max_length=MAX_PROBES), ListType("map", "name")] = (
        Field(default=(), description="The probes that the agent runs.")
    )
    agent: Annotated[Agent, Atomic()] | None = Field(default=None, description="The agent that writes this status.")
    configuration: Annotated[ConfigurationStatus, Atomic()] | None = Field(
        default=None, description="State of the agent's configuration."
    )
    devices: Annotated[
        tuple[Annotated[Device, Atomic()], ...], Field(max_length=MAX_DEVICES), ListType("map", "id")
    ] = Field(default=(), description="Physical devices, by type and index.")
    resources: Annotated[tuple[Annotated[Resource, Atomic()], ...], Field(max_length=32), ListType("map", "name")] = (
        Field(default=(), description="Extended resources of this node.")
    )
    retired_resources: Annotated[
        tuple[Annotated[RetiredResource, Atomic()], ...], Field(max_length=64), ListType("map", "name")
    ] = Field(default=(), description="Resources no longer offered.")
    most_seen: Annotated[tuple[MostSeen, ...], Field(max_length=16), ListType("atomic")] = Field(
        default=(),
        description="The most devices of each product that this node has had at one time. Where the node's policies "
        "expect nothing (expect) and fewer are listed, the condition ExpectedDevices says so.",
    )
    affected_pods: Annotated[
        tuple[Annotated[AffectedPod, Atomic()], ...], Field(max_length=MAX_AFFECTED_PODS), ListType("map", "uid")
    ] = Field(
        default=(),
        description="Pods with the condition nodedevices.io/DeviceHealthy because of a fault. Written by the operator.",
    )
    conditions: Annotated[tuple[Annotated[Condition, Atomic()], ...], Field(max_length=16), ListType("map", "type")] = (
        Field(
            default=(),
            description="Ready, DevicesHealthy, ConfigApplied, HoldersKnown, AllocatedOnce and, where devices are "
            "expected, ExpectedDevices by the agent; PolicyResolved, CapacitySynced, Stale and, where a policy enables "
            "them, LabelsSynced, TaintSynced, EvictionsSynced and IdlePodsMarked by the operator, with ProblemReported "
            "and MaintenanceScheduled while others report so on the Node.",
        )
    )


class NodeDevices(Root):
    """What devices a node has, who holds them, their health, and how they are offered."""

    api_version: Literal["nodedevices.io/v1alpha1"] = Field(default=API_VERSION)
    kind: Literal["NodeDevices"] = "NodeDevices"
    metadata: ObjectMeta
    spec: NodeDevicesSpec = Field(
        default=NodeDevicesSpec(),
        # When the last field of a spec is taken out by server-side apply, null is left; the default makes it {} again.
        json_schema_extra=in_schema({}),
        description="The desired state of this node.",
    )
    status: NodeDevicesStatus = Field(default=NodeDevicesStatus(), description="The observed state of this node.")
