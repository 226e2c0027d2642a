"""The sections of a configuration: what a DevicePolicy sets and what `NodeDevices.spec.config` carries.

Every section is optional and replaces a weaker one whole; sections never mix. The Python defaults of the fields are the
built-in defaults, for a field that a section leaves out as for a section that no policy sets
(`defaults.with_defaults`). The generated schema has none of them: what a policy does not set stays absent in the
cluster.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, Literal

from nodedevices_common.text import clip
from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, WithJsonSchema
from pydantic_core import PydanticCustomError, PydanticKnownError

from nodedevices_api.base import Rule, Strict, wire_name
from nodedevices_api.bounds import INT32_MAX, MAX_PROBES
from nodedevices_api.container import ContainerTemplate
from nodedevices_api.fields import (
    INTEGER_MAX,
    Atomic,
    AtomicList,
    Count,
    DeviceId,
    ExtendedName,
    Flag,
    Glob,
    LabelKey,
    LabelValue,
    ListType,
    MapByName,
    ProbeName,
    QuantityInput,
    ReasonGlob,
    RecoveryAction,
    SetList,
    Whole,
    Word,
    listed,
    optional,
)

DAY_SECONDS = 86400
MAX_REASONS = 64  # of one health rule
MAX_AFTER = 32  # occurrences that a health rule can count: the agent keeps the times of so many
MAX_EXPECTED = 4096  # devices that one entry of expect counts: more than any node reports

# Names of other makers' resources of GPU memory: what a share is where its rule does not say it, and which resource of
# computing power goes with it. The agent has what containers get beside it, by the same names (sharing.memory).
ALIYUN = "aliyun.com/gpu-mem"
TENCENT = "tencent.com/vcuda-memory"
MEMORY_UNITS: Mapping[str, str] = {ALIYUN: "1Gi", TENCENT: "256Mi"}  # their plugins' own
CORE_RESOURCES: Mapping[str, str] = {TENCENT: "tencent.com/vcuda-core"}

STRATEGIES = ("none", "timeSlicing", "mps", "memory")  # what the API server takes


def _known_strategy(value: str, info: ValidationInfo) -> str:
    """An agent with a further sharing mode says so (errors.parse)."""
    if value not in (info.context or {}).get("strategies", STRATEGIES):
        *others, last = (repr(strategy) for strategy in STRATEGIES)
        raise PydanticKnownError("literal_error", {"expected": f"{', '.join(others)} or {last}"})
    return value


Packing = Literal["binpack", "spread"]
Strategy = Annotated[str, AfterValidator(_known_strategy), WithJsonSchema({"type": "string", "enum": list(STRATEGIES)})]
TaintEffect = Annotated[
    Literal["None", "NoSchedule", "NoExecute"],
    Field(
        description="Taint nodedevices.io/device-fault on the Node while a device is at fault; its value is the "
        "reason. None: no taint. NoSchedule: keeps new pods off the Node. NoExecute: also ends every pod on the Node "
        "that does not tolerate it, and ignores PodDisruptionBudgets."
    ),
]
EvictMode = Literal["Never", "AfterGrace", "Immediate"]
Signal = Literal[
    "eccUncorrectableAggregate",
    "eccUncorrectableVolatile",
    "nvlinksInactive",
    "pcieReplays",
    "powerMilliwatts",
    "remappedCorrectable",
    "remappedUncorrectable",
    "temperatureCelsius",
]


class Serving(Strict):
    """Whether NodeDevices itself serves the kubelet on the node, and by which of the kubelet's APIs."""

    mode: Literal["Serve", "Observe"] = Field(
        default="Serve",
        description="Serve: NodeDevices offers the devices to the kubelet. Observe: the vendor's plugin offers them; "
        "NodeDevices observes, reports and reacts.",
    )
    api: Literal["DevicePlugin", "DRA"] = Field(
        default="DevicePlugin",
        description="DevicePlugin: pods request an extended resource. DRA: devices are in ResourceSlices, and pods "
        "have ResourceClaims (Kubernetes 1.34 and later).",
    )


_NO_MATCH = "write productName and type in the entry itself"


class DeviceMatch(Strict):
    """Selects devices: all that is given must match; empty matches every device."""

    product_name: Glob | None = optional(
        "attributes.productName (glob), such as NVIDIA H100*, or NVIDIA * for every model. A device that never "
        "answered has none."
    )
    type: Word | None = optional("Device type, such as gpu.")
    ids: Annotated[tuple[DeviceId, ...], Field(max_length=64), ListType("set")] | None = optional("Only these ids.")

    gone: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("vendor", "profile", "minMemory", "near"),
        "only resources.devices has it; choose productName (such as NVIDIA *), type or ids",
    )


class OfferMatch(DeviceMatch):
    """Selects what is offered: devices, or with profile partitions. All that is given must match."""

    vendor: Word | None = optional("attributes.vendor, such as nvidia.")
    profile: Glob | None = optional("Partition profile (glob), such as 1g.*.")
    min_memory: QuantityInput | None = optional("Minimum memory, such as 40Gi.")
    near: Word | None = optional("Same PCIe root as another device of this type, such as nic.")


class ResourceRule(Strict):
    """Offers matching devices under a name; the first matching rule applies."""

    match: OfferMatch = Field(description="Devices that get the name.")
    name: ExtendedName = Field(description="Extended resource, such as nvidia.com/gpu.")


class Resources(Strict):
    """Under which resource names devices are offered."""

    devices: AtomicList[ResourceRule] = listed(
        32,
        "The first matching rule applies. Other devices get their vendor's default name, such as "
        "nvidia.com/gpu. A device without a default name, such as a NIC, is offered only if a rule matches its type, "
        "id or vendor.",
    )
    exclude: SetList[Glob] = listed(64, "Devices that are never offered: ids or globs.")


# What `devices` of a shared resource may say, too: NVIDIA's configuration file does.
ALL_DEVICES = "all"
FIRST = "first:"  # `first:2`: the first two devices by index; that file says it as `devices: 2`


# What goes with memoryUnit only.
_OF_MEMORY = ("memory_reserve", "packing", "numa", "enforcement", "container", "cores")


class SharedResource(Strict):
    """How one resource is shared."""

    name: ExtendedName = Field(description="Resource to share, such as nvidia.com/gpu.")
    strategy: Literal["timeSlicing", "memory"] | None = optional("Overrides sharing.strategy for this resource.")
    rename: ExtendedName | None = optional(
        "Name of the shares. Absent: the same name (for memory nodedevices.io/gpu-memory), or "
        "<name>.shared with renameByDefault. tencent.com/vcuda-memory also offers tencent.com/vcuda-core, 100 for each "
        "GPU: a container requests 1 to 99 together with memory, or a multiple of 100 for whole GPUs, which no longer "
        "have their usual name."
    )
    devices: Annotated[tuple[Glob, ...], Field(max_length=64), ListType("set")] | None = optional(
        "Only these devices: ids, globs over ids, or indices (0; 0:1 for a MIG device)."
    )
    replicas: Annotated[Whole, Field(ge=2, le=16384)] | None = optional("Shares of each device.")
    memory_unit: QuantityInput | None = optional(
        "Memory of each share, such as 1Gi. Can be absent if rename is "
        f"{' or '.join(f'{name} ({unit})' for name, unit in MEMORY_UNITS.items())}."
    )
    memory_reserve: QuantityInput | None = optional(
        "With memoryUnit: memory of each device that is not shared, for the driver and contexts."
    )
    packing: Packing | None = optional(
        "With memoryUnit: take shares from the fullest device with room (binpack, the default) or from the "
        "emptiest (spread)."
    )
    numa: Flag | None = optional(
        "With memoryUnit: tell the kubelet the NUMA nodes of shares. The kubelet can then refuse a "
        "container that fits on one device."
    )
    cores: Flag | None = optional(
        "With memoryUnit: pods request computing power by the annotation "
        "nodedevices.io/gpu-cores.<container>, in percent; no device is promised above 100. The agent needs the right "
        "to list and watch pods."
    )

    enforcement: Literal["none", "mps"] | None = optional(
        "With memoryUnit: what limits containers to their memory. none, the default: nothing. mps: "
        "NVIDIA's driver (component mps)."
    )
    container: Annotated[ContainerTemplate, Atomic()] | None = optional(
        "With memoryUnit: variables and files for containers with shares, such as a limiter library."
    )

    gone: ClassVar[Mapping[str, str]] = {
        "match": "give these devices a name of their own in the section resources, and share that name",
        "coreResource": " and ".join(f"rename {memory} brings {cores}" for memory, cores in CORE_RESOURCES.items()),
    }

    cel_rules = (
        Rule(
            "has(self.memoryUnit) || !has(self.replicas) || "
            + " && ".join(f"!has(self.{wire_name(name)})" for name in _OF_MEMORY),
            f"{', '.join(map(wire_name, _OF_MEMORY[:-1]))} and {wire_name(_OF_MEMORY[-1])} go with memoryUnit",
            lambda it: (
                it.memory_unit is not None
                or it.replicas is None
                or all(getattr(it, name) is None for name in _OF_MEMORY)
            ),
            found="self.name + ' has no memoryUnit'",
        ),
        Rule(
            f"has(self.replicas) ? !has(self.memoryUnit) : has(self.memoryUnit) || "
            f"has(self.rename) && self.rename in {list(MEMORY_UNITS)}",
            "a sharing resource has exactly one of replicas and memoryUnit; with rename "
            f"{' or '.join(MEMORY_UNITS)} memoryUnit can be left out",
            lambda it: it.memory_unit is None if it.replicas is not None else it.unit_of_memory is not None,
            found="self.name + ' has ' + (has(self.replicas) ? 'both' : 'neither')",
        ),
    )

    @property
    def unit_of_memory(self) -> str | None:
        """The amount of memory that one share is; None: the rule says none."""
        if self.memory_unit is not None or self.rename is None:
            return self.memory_unit
        return MEMORY_UNITS.get(self.rename)

    @property
    def core_resource(self) -> str | None:
        """The name under which its computing power is offered; None: under none."""
        return None if self.rename is None or self.replicas is not None else CORE_RESOURCES.get(self.rename)


def _units_match(sharing: Sharing) -> bool:
    """A mode that an agent adds may want either."""
    if sharing.strategy not in STRATEGIES or sharing.strategy == "none":
        return True
    return all(
        (sharing.strategy_of(resource) == "memory") == (resource.replicas is None) for resource in sharing.resources
    )


class Sharing(Strict):
    """How devices are shared between containers."""

    strategy: Strategy = Field(
        default="none", description="How containers share a device. mps: NVIDIA's Multi-Process Service."
    )
    rename_by_default: Flag = Field(default=False, description="Offer shares as <name>.shared.")
    fail_requests_greater_than_one: Flag = Field(
        default=False, description="Refuse containers that request several shares. With mps, true if not set."
    )
    resources: MapByName[SharedResource] = listed(32, "Resources to share.")

    cel_rules = (
        Rule(
            "!has(self.resources) || size(self.resources) == 0 || has(self.strategy) && self.strategy != 'none'",
            "strategy none has no resources; choose timeSlicing, mps or memory, or leave out resources",
            lambda it: it.strategy != "none" or not it.resources,
            found="resources has %s, and strategy %s",
            values="self.resources.map(r, r.name), has(self.strategy) ? 'is none' : 'is not given'",
        ),
        Rule(
            "!has(self.strategy) || self.strategy == 'none' || has(self.resources) && size(self.resources) > 0",
            "list at least one resource with its replicas, or choose strategy none",
            lambda it: it.strategy == "none" or bool(it.resources),
            found="'strategy is ' + self.strategy + ', and resources is ' + "
            "(has(self.resources) ? 'empty' : 'missing')",
        ),
        Rule(
            "!has(self.strategy) || self.strategy == 'none' || !has(self.resources) || "
            "self.resources.all(r, ((has(r.strategy) ? r.strategy : self.strategy) == 'memory') != has(r.replicas))",
            "strategy memory needs memoryUnit, and every other one replicas",
            _units_match,
            found="'strategy is ' + self.strategy",
        ),
        Rule(
            "!has(self.strategy) || self.strategy != 'memory' || !has(self.failRequestsGreaterThanOne) || "
            "!self.failRequestsGreaterThanOne",
            "with strategy memory a container requests as many shares as it needs memory; leave it out",
            lambda it: it.strategy != "memory" or not it.fail_requests_greater_than_one,
            found="'failRequestsGreaterThanOne is true'",
        ),
    )

    def strategy_of(self, rule: SharedResource) -> str:
        """Return how the rule's resource is shared."""
        return rule.strategy or self.strategy


class Partitions(Strict):
    """How MIG devices are offered."""

    strategy: Literal["none", "single", "mixed"] = Field(
        default="none",
        description="none: whole GPUs only. single: MIG devices under the GPU's name. mixed: a name for each profile.",
    )


class Injection(Strict):
    """How a container gets its devices."""

    device_list_strategies: Annotated[
        tuple[Literal["envvar", "volume-mounts", "cdi-annotations", "cdi-cri", "driver-directory"], ...],
        Field(min_length=1, max_length=4),
        ListType("set"),
    ] = Field(
        default=("envvar",),
        description="How devices are passed to the container runtime. driver-directory (alone): device nodes and the "
        "node's driver directory, without NVIDIA's container runtime.",
    )
    device_id_strategy: Literal["uuid", "index"] = Field(
        default="uuid", description="Id that the container runtime gets."
    )
    pass_device_specs: Flag = Field(default=False, description="Also pass the device nodes.")

    cel_rules = (
        Rule(
            "!has(self.deviceListStrategies) || !('driver-directory' in self.deviceListStrategies) || "
            "size(self.deviceListStrategies) == 1",
            "driver-directory brings the driver by itself, and each of the others would bring it once more; "
            "give it alone, or leave it out",
            lambda it: "driver-directory" not in it.device_list_strategies or len(it.device_list_strategies) == 1,
            found="deviceListStrategies is %s",
            values="self.deviceListStrategies",
        ),
    )


class DegradedRule(Strict):
    """A reading that makes a device Degraded while it lasts: reported, still offered."""

    signal: Signal = Field(
        description="A reading. The health reason is the same word with a capital, such as TemperatureCelsius; "
        "health.rules can name it."
    )
    threshold: Annotated[Whole, Field(ge=0, le=INTEGER_MAX)] = Field(description="This value or above.")
    for_seconds: Annotated[Whole, Field(ge=0, le=DAY_SECONDS)] = Field(
        default=0,
        description="Minimum duration in seconds; starts again with a lower or missing reading and with a restart of "
        "the agent.",
    )


class Repetition(Strict):
    """So many occurrences within a window that ends with the newest."""

    count: Annotated[Whole, Field(ge=2, le=MAX_AFTER)] = Field(
        description="Occurrences of the rule's reasons together. An event counts each time, a reading when it begins."
    )
    window_seconds: Annotated[Whole, Field(ge=1, le=30 * DAY_SECONDS)] = Field(
        description="Window in seconds, at most 30 days. The fault lasts for as long after its last occurrence, and "
        "for health.holdDownSeconds at least."
    )


class HealthRule(Strict):
    """Overrides the state of some health reasons; the first rule that matches reason and device applies."""

    reasons: SetList[ReasonGlob] = Field(
        min_length=1, max_length=MAX_REASONS, description="Health reasons or globs, such as Xid109 or Xid14*."
    )
    match: DeviceMatch | None = optional("Only these devices and their partitions; absent: all.")
    after: Repetition | None = optional(
        "Only if the reasons occurred this often on the device; absent: from the first time. Errors of "
        "programs count. Confirming a recovery resets the count."
    )
    state: Literal["Ignored", "Degraded", "Unhealthy"] = Field(
        description="Ignored: no effect. Degraded: reported, still offered. Unhealthy: not offered. A device that is "
        "missing, lost or does not answer is always Unhealthy."
    )

    gone: ClassVar[Mapping[str, str]] = {
        "holdDownSeconds": "health.holdDownSeconds is for all reasons, and with after a fault lasts for windowSeconds"
    }

    cel_rules = (
        Rule(
            "self.state != 'Ignored' || !has(self.after)",
            "what is ignored is not counted: leave out after, or choose Degraded or Unhealthy",
            lambda it: it.state != "Ignored" or it.after is None,
            found="state is Ignored, and after.count is %s",
            values="self.after.count",
        ),
    )


class Health(Strict):
    """Rules for when a device is unhealthy, and when it is healthy again."""

    rules: AtomicList[HealthRule] = listed(
        64, "Override the state of some health reasons; the first matching rule applies."
    )
    degraded: AtomicList[DegradedRule] = listed(32, "Readings that make a device Degraded: reported, still offered.")
    hold_down_seconds: Annotated[Whole, Field(ge=0, le=DAY_SECONDS)] = Field(
        default=300, description="Seconds without a new fault before a recovered device is offered again."
    )
    forget_missing_seconds: Annotated[Whole, Field(ge=60, le=INT32_MAX)] | None = optional(
        "Seconds after which a missing device that no pod holds leaves NodeDevices; if it returns, it is a "
        "new device. Absent: it leaves only when its removal is confirmed."
    )

    gone: ClassVar[Mapping[str, str]] = {
        "probe": "a probe has its own interval, and its devices are withdrawn after 300 s of silence; leave it out"
    }


class FaultRule(Strict):
    """Different actions for some faults; the first matching rule applies."""

    reasons: Annotated[tuple[Word, ...], Field(min_length=1, max_length=64), ListType("set")] | None = optional(
        "Health reasons, such as Xid79; the device must have one of them. Absent: any."
    )
    recovery_actions: (
        Annotated[tuple[RecoveryAction, ...], Field(min_length=1, max_length=16), ListType("set")] | None
    ) = optional("Recovery actions, such as RebootNode; absent: any.")
    match: DeviceMatch | None = optional("Only faults of these devices and their partitions; absent: all.")
    taint_effect: TaintEffect | None = optional("Overrides faults.taintEffect for these faults.")
    evict_mode: EvictMode | None = optional("Overrides faults.evictMode for these faults.")

    gone: ClassVar[Mapping[str, str]] = {
        "taint": "it is now taintEffect, such as NoSchedule",
        "evict": "it is now evictMode, such as AfterGrace; evictGraceSeconds and evictExcludeNamespaces are of faults",
    }


NodesOrPercent = Annotated[int | str, Field(json_schema_extra={"x-kubernetes-int-or-string": True, "maxLength": 16})]


def nodes_or_percent(key: str, least: int) -> tuple[BeforeValidator, Rule]:
    """The check of a number of nodes or a percentage of them, for us and for the API server."""
    right = f"give a number of nodes from {least}, or {least}% to 100% of them"
    pattern = r"^(100|[1-9][0-9]?)%$" if least else r"^(100|[1-9]?[0-9])%$"

    def checked(value: object) -> object:
        number = isinstance(value, int) and not isinstance(value, bool) and least <= value <= INT32_MAX
        percent = isinstance(value, str) and re.fullmatch(pattern, value) is not None
        if not number and not percent:
            text = f"{key} {clip(str(value), 32)}: {right}"
            raise PydanticCustomError("nodes_or_percent", "{message}", {"message": text})
        return value

    cel = f"type(self.{key}) == int ? int(self.{key}) >= {least} : string(self.{key}).matches('{pattern}')"
    # The field's own validator has checked already.
    rule = Rule(f"!has(self.{key}) || ({cel})", right, lambda _: True, found=f"{key} %s", values=f"self.{key}")
    return BeforeValidator(checked), rule


_MAX_UNAVAILABLE, _MAX_UNAVAILABLE_RULE = nodes_or_percent("maxUnavailable", 0)


class Budget(Strict):
    """Limits of what actions may take out of service in the fleet."""

    max_unavailable: Annotated[NodesOrPercent, _MAX_UNAVAILABLE] | None = optional(
        "Nodes out of service at one time: a number, or 0% to 100%, rounded down, of the nodes whose "
        "faults section is this policy's. Out of service: not Ready, cordoned, tainted for a fault, or pods are being "
        "evicted."
    )
    per_hour: Annotated[Whole, Field(ge=0, le=INT32_MAX)] | None = optional(
        "Actions (taints and evictions of pods) per hour; never more than 200."
    )

    cel_rules = (
        _MAX_UNAVAILABLE_RULE,
        Rule(
            "has(self.maxUnavailable) || has(self.perHour)",
            "a budget has maxUnavailable, perHour or both",
            lambda it: it.max_unavailable is not None or it.per_hour is not None,
            found="'budget has neither'",
        ),
    )


_CEL_TAINTS = "has({0}.taintEffect) && {0}.taintEffect == 'NoExecute'"
_CEL_EVICTS = "has(self.evictMode) && self.evictMode != 'Never'"
_CEL_RULE_ACTS = f"{_CEL_TAINTS.format('r')} || has(r.evictMode) && r.evictMode != 'Never'"


class Faults(Strict):
    """What the rest of the cluster sees, and what is done, when a device fails."""

    pod_condition: Literal["Never", "OnFault", "Always"] = Field(
        default="OnFault",
        description="Condition nodedevices.io/DeviceHealthy on pods that hold a device. Always: also True on every "
        "holder, for readiness gates; the cost grows with the pods.",
    )
    xid_node_condition: Flag = Field(
        default=False,
        description="Condition XidCriticalError on the Node, as by Google's device plugin, if XID 48, 63, 64, 79, 119, "
        "120, 123 or 140 made a device faulty since boot.",
    )
    taint_effect: TaintEffect = "None"
    evict_mode: EvictMode = Field(
        default="Never",
        description="When pods that hold a faulty device are evicted, by the Eviction API: PodDisruptionBudgets are "
        "honoured. AfterGrace: after evictGraceSeconds. Never evicted are pods of DaemonSets, static pods, and pods "
        'with the annotation nodedevices.io/evict: "false".',
    )
    evict_grace_seconds: Annotated[Whole, Field(ge=0, le=DAY_SECONDS)] = Field(
        default=60,
        description="With AfterGrace, here or in a rule: seconds from the pod's condition False (without a condition, "
        "from the fault) to the eviction.",
    )
    evict_exclude_namespaces: SetList[Glob] = listed(
        64, "Namespaces (globs) whose pods are never evicted, whatever a rule says."
    )
    rules: AtomicList[FaultRule] = listed(32, "Different actions for some faults; the first matching rule applies.")
    budget: Budget | None = optional("Limits of the actions. NoExecute and evictions need a budget.")
    breaker_percent: Annotated[Whole, Field(ge=0, le=100)] = Field(
        default=50,
        description="The actions of all policies stop if more than this percentage of the policy's nodes, and at least "
        "two of them, fail within 300 s. A user resumes them: kubectl nodedevices confirm actions resumed.",
    )

    gone: ClassVar[Mapping[str, str]] = {
        "taint": "it is now taintEffect, such as NoSchedule",
        "evict": "it is now evictMode, evictGraceSeconds and evictExcludeNamespaces",
        "breaker": "it is now breakerPercent, such as 50, of the nodes within 300 s; only a user resumes actions",
        "event": "Events are always written; leave it out",
        "nodeCondition": "the Node always has the conditions; leave it out",
    }

    cel_rules = (
        Rule(
            f"has(self.budget) || !({_CEL_TAINTS.format('self')} || {_CEL_EVICTS} || "
            f"has(self.rules) && self.rules.exists(r, {_CEL_RULE_ACTS}))",
            "NoExecute or an eviction needs a budget; give budget.maxUnavailable or budget.perHour",
            lambda it: (
                it.budget is not None
                or all(
                    part.taint_effect != "NoExecute" and part.evict_mode in {None, "Never"} for part in (it, *it.rules)
                )
            ),
            found=f"({_CEL_TAINTS.format('self')} ? 'taintEffect is NoExecute' : {_CEL_EVICTS} ? "
            "'evictMode is ' + self.evictMode : 'an entry of rules has one of both') + ', and there is no budget'",
        ),
    )


class Idle(Strict):
    """Whether devices that containers hold and do not use are shown. Nothing is ever ended for it."""

    after_seconds: Annotated[Whole, Field(ge=60, le=7 * DAY_SECONDS)] | None = optional(
        "Seconds without computation after which a held device is shown as not used, such as 1800: in "
        "holders[].idle, by the pod's condition nodedevices.io/DeviceIdle, and by one Event DeviceIdle for each idle "
        "period. Choose more than the longest pause of a job, such as a checkpoint. Absent: not measured."
    )

    gone: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("event", "podCondition"), "with afterSeconds the pod has both; leave it out"
    )


class CapacityEntry(Strict):
    """An extended resource on the Node that the operator owns."""

    name: ExtendedName = Field(description="Resource, such as nodedevices.io/gpu-memory-mib.")
    product_name: Glob | None = optional(
        "Devices that perDevice and sumOf count: attributes.productName (glob), such as NVIDIA *. Without productName "
        "and type, every GPU."
    )
    type: Word | None = optional("Devices that perDevice and sumOf count: their type, such as nic.")
    per_node: Count | None = optional("Number on each selected node.")
    per_device: Count | None = optional(
        "Number for each device that new pods can get: not Unhealthy, excluded or out of service."
    )
    sum_of: Literal["memoryMiB"] | None = optional("Sum over the same devices. memoryMiB: their memory in MiB.")

    gone: ClassVar[Mapping[str, str]] = {
        "match": _NO_MATCH,
        "scope": "perDevice and sumOf count devices that new pods can get; perNode is a number that no fault changes",
    }

    cel_rules = (
        Rule(
            "(has(self.perNode) ? 1 : 0) + (has(self.perDevice) ? 1 : 0) + (has(self.sumOf) ? 1 : 0) == 1",
            "a capacity has exactly one of perNode, perDevice and sumOf",
            lambda it: sum(value is not None for value in (it.per_node, it.per_device, it.sum_of)) == 1,
            found="self.name + ' has ' + (has(self.perNode) || has(self.perDevice) || has(self.sumOf) ? "
            "'several' : 'none') + ' of them'",
        ),
        Rule(
            "!has(self.perNode) || !has(self.productName) && !has(self.type)",
            "perNode counts no devices: leave out productName and type, or choose perDevice or sumOf",
            lambda it: it.match is None or it.per_node is None,
            found="%s has %s and perNode %s",
            values="self.name, has(self.type) ? 'type' : 'productName', self.perNode",
        ),
    )

    @property
    def match(self) -> DeviceMatch | None:
        """What it counts; None: every GPU."""
        if self.product_name is None and self.type is None:
            return None
        return DeviceMatch(product_name=self.product_name, type=self.type)


CapacityEntries = Annotated[
    tuple[Annotated[CapacityEntry, Atomic()], ...], Field(max_length=32), ListType("map", "name")
]


class ExpectedDevices(Strict):
    """Devices that a node must have."""

    product_name: Glob | None = optional(
        "Devices that are counted: attributes.productName (glob), such as NVIDIA H100*. Without productName and type, "
        "all."
    )
    type: Word | None = optional("Devices that are counted: their type, such as gpu.")
    count: Annotated[Whole, Field(ge=1, le=MAX_EXPECTED)] = Field(description="Minimum number on the node.")

    gone: ClassVar[Mapping[str, str]] = {"match": _NO_MATCH}

    @property
    def match(self) -> DeviceMatch:
        """What it counts."""
        return DeviceMatch(product_name=self.product_name, type=self.type)


ExpectEntries = Annotated[tuple[Annotated[ExpectedDevices, Atomic()], ...], Field(max_length=16), ListType("atomic")]


RESERVED_LABEL_DOMAINS = (  # with their subdomains
    *("kubernetes.io", "k8s.io", "x-k8s.io", "nodedevices.io"),
    *("cloud.google.com", "gke.io", "amazonaws.com", "azure.com", "oraclecloud.com", "openshift.io"),
    *("karpenter.sh", "k8s.aws"),  # Karpenter
    *("dgxc.nvidia.com", "dcm.amd.com"),  # NVSentinel, AMD's Device Config Manager
)
RESERVED_LABEL_KEYS = (  # each with all that begin so: NVIDIA's GPU operator, MIG manager, vGPU manager, device plugin
    *("nvidia.com/gpu.deploy.", "nvidia.com/gpu.workload.config", "nvidia.com/gpu-driver-upgrade"),
    *("nvidia.com/mig.config", "nvidia.com/vgpu.config", "nvidia.com/device-plugin.config"),
)
_DOMAINS, _KEYS = ("|".join(names).replace(".", "[.]") for names in (RESERVED_LABEL_DOMAINS, RESERVED_LABEL_KEYS))
RESERVED_LABEL_PATTERN = (
    f"^([^/]*[.])?({_DOMAINS})/|^({_KEYS})"  # the operator's admission policy for Nodes has it, too
)


def reserved_label(key: str) -> bool:
    """True when others act by labels of that name: the scheduler, cloud providers, admission, other operators, and we
    ourselves.

    Who may write policies may not thereby write these.
    """
    return re.match(RESERVED_LABEL_PATTERN, key) is not None


def _reserved_labels(labels: Labels) -> list[str]:
    return sorted(key for key in labels.extra if reserved_label(key))


class Labels(Strict):
    """Labels that the operator keeps on the Node."""

    feature_discovery: Flag = Field(default=False, description="Publish GPU Feature Discovery's labels.")
    extra: Annotated[dict[LabelKey, LabelValue], Field(max_length=16)] = Field(
        default={},
        description="Further labels. Labels that others act on are refused, such as those under kubernetes.io, k8s.io, "
        "nodedevices.io or a cloud's domain.",
    )

    cel_rules = (
        Rule(
            f"!has(self.extra) || !self.extra.exists(k, k.matches('{RESERVED_LABEL_PATTERN}'))",
            "a label of a policy is none that others act by (Kubernetes, clouds, Karpenter, NVIDIA's and AMD's "
            "operators, NVSentinel, NodeDevices): choose a domain of your own",
            lambda it: not _reserved_labels(it),
            describe=lambda it: f"extra has {', '.join(_reserved_labels(it))}",
            found="extra has %s",
            values=f"self.extra.filter(k, k.matches('{RESERVED_LABEL_PATTERN}'))",
        ),
    )


class Discovery(Strict):
    """The choice of the node's probes that run. A policy chooses among them, and brings none: no program runs because
    of it."""

    probes: Annotated[tuple[ProbeName, ...], Field(min_length=1, max_length=MAX_PROBES), ListType("set")] | None = (
        optional(
            "Probes that run instead of the node's own list: built-in (nvml), defined by the node's flags "
            "or file, or auto: all whose hardware the node has. Absent: the node's own list."
        )
    )


def _named_by_sharing(sections: Sections) -> set[str]:
    rules = (sections.sharing or Sharing()).resources
    return {name for rule in rules for name in (rule.name, rule.rename, rule.core_resource) if name is not None}


def _owned_twice(sections: Sections, served: Callable[[Sections], set[str]]) -> list[str]:
    taken = served(sections)
    return [entry.name for entry in sections.capacity or () if entry.name in taken]


def _one_owner(section: str, inside: str, same_name: str, served: Callable[[Sections], set[str]]) -> Rule:
    """`same_name`: CEL, whether the entry r of that list has the name of the capacity c. What two policies set between
    them no API server sees."""
    entries = f"self.{section}.{inside}"
    both = f"capacity and {section}.{inside} both name"
    return Rule(
        f"!has(self.capacity) || !has(self.{section}) || !has({entries}) || "
        f"self.capacity.all(c, !{entries}.exists(r, {same_name}))",
        "a resource has one owner; choose another name for the capacity",
        lambda it: not _owned_twice(it, served),
        found=f"{both} %s",
        values=f"self.capacity.filter(c, {entries}.exists(r, {same_name})).map(c, c.name)",
        describe=lambda it: f"{both} {json.dumps(_owned_twice(it, served))}",  # as CEL's format() writes a list
    )


_CEL_CORES = " || ".join(f"r.rename == '{memory}' && c.name == '{cores}'" for memory, cores in CORE_RESOURCES.items())


class Sections(Strict):
    """What policies can set, by section. No policy sets an absent section.

    A section is applied as a whole, too (atomic): policies never mix within one, and server-side apply of `{}` over an
    object with fields would otherwise leave null, which the API server then refuses.
    """

    serving: Annotated[Serving, Atomic()] | None = optional("Whether NodeDevices serves the kubelet.")
    resources: Annotated[Resources, Atomic()] | None = optional("Names under which devices are offered.")
    sharing: Annotated[Sharing, Atomic()] | None = optional("How devices are shared.")
    partitions: Annotated[Partitions, Atomic()] | None = optional(
        "How parts of devices, such as MIG devices, are offered."
    )
    injection: Annotated[Injection, Atomic()] | None = optional("How containers get their devices.")
    health: Annotated[Health, Atomic()] | None = optional("What makes a device Unhealthy or Degraded.")
    faults: Annotated[Faults, Atomic()] | None = optional("What happens when a device fails.")
    capacity: CapacityEntries | None = optional("Extended resources that the operator publishes and owns.")
    labels: Annotated[Labels, Atomic()] | None = optional("Labels that the operator keeps on the Node.")
    discovery: Annotated[Discovery, Atomic()] | None = optional("Which of the node's probes run.")
    expect: ExpectEntries | None = optional(
        "Devices that each selected node must have. Fewer are reported (condition ExpectedDevices), and "
        "nothing else follows."
    )
    idle: Annotated[Idle, Atomic()] | None = optional(
        "Shows devices that containers hold and do not use. No pod is ended."
    )

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        _one_owner(
            "resources",
            "devices",
            "r.name == c.name",
            lambda it: {rule.name for rule in (it.resources or Resources()).devices},
        ),
        _one_owner(
            "sharing",
            "resources",
            f"r.name == c.name || has(r.rename) && (r.rename == c.name || !has(r.replicas) && ({_CEL_CORES}))",
            _named_by_sharing,
        ),
    )


SECTION_NAMES: tuple[str, ...] = tuple(Sections.model_fields)
