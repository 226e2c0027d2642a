"""Records of objects that the operator remembers: the few fields that decisions need, frozen, and cheap to compare.

How they are made of raw objects, kinds.py says. Equal records mean that nothing changed which anybody decides by:
resourceVersion and the heartbeat are carried but not compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Annotated, Any

from nodedevices_api.conditions import IN_SYNC, MISSING
from nodedevices_api.devicepolicy import DevicePolicySpec
from nodedevices_api.matching import matches
from nodedevices_api.meta import LabelSelector
from nodedevices_api.sections import DeviceMatch
from nodedevices_common.conditions import ConditionRecord
from nodedevices_common.confirming import CONFIRM
from nodedevices_common.observing import OBSERVE
from nodedevices_common.raw import At, Interned, Present, Raw

from nodedevices_operator.records.neighbours import ReportRecord
from nodedevices_operator.records.shared import UNKNOWN_PLATFORM, DeviceModel, PartitionProfile, Platform


def shows(shown: Mapping[str, object], owned: Set[str], wanted: Mapping[str, object]) -> bool:
    """True when an object shows these values already, and these keys and no others are ours."""
    return wanted.keys() == owned and all(shown.get(key) == value for key, value in wanted.items())


@dataclass(frozen=True, slots=True)
class HealthRecord:
    state: Interned = "Unknown"
    reason: Interned = ""
    reasons: tuple[str, ...] = ()  # where there are several: all, reason first
    message: str = ""
    since: Interned = ""
    action: Annotated[Interned, At("recoveryAction")] = ""
    domain: Annotated[Interned, At("faultDomain")] = ""
    xids: tuple[int, ...] = ()  # of all its faults, since the machine booted

    @property
    def missing(self) -> bool:
        """True when its driver no longer lists it: it is shown, and counts nowhere. One whose probe lists no device at
        all is Unknown, and counts on."""
        return self.reason == MISSING and self.state != "Unknown"


@dataclass(frozen=True, slots=True)
class HolderRecord:
    """A container that holds a device or a part of it."""

    namespace: Interned
    pod: str
    container: Interned
    since: str
    resource: Interned = ""
    claim: str = ""
    ids: tuple[str, ...] = ()
    health: HealthRecord | None = None  # what happened to this container alone; None: it is as its device is


@dataclass(frozen=True, slots=True)
class NoticeRecord:
    """An event on a device that changed no state."""

    code: Interned
    message: Interned
    since: str
    time: str
    count: int


@dataclass(frozen=True, slots=True)
class PartRecord:
    """A device, or a partition of one, with who holds it. A partition without faults of its own has its device's
    health."""

    id: str
    health: HealthRecord
    name: Interned = ""
    holders: tuple[HolderRecord, ...] = ()
    profile: PartitionProfile | None = None  # of a MIG device
    notices: tuple[NoticeRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class IdleRecord:
    """A container that holds the whole device and does not use it."""

    holder: HolderRecord
    word: Interned  # NeverUsed, Idle or MemoryOnly
    since: str


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    id: str
    name: Interned
    health: HealthRecord
    parts: tuple[PartRecord, ...]  # the device itself first
    model: DeviceModel
    excluded: bool  # by resources.exclude, it or each of its partitions
    unlisted: int = 0  # holders of it and of its parts that are left out
    type: Interned = ""
    unschedulable: Present = False  # people took it out of service
    index: int = 0  # in the driver's order
    idle: tuple[IdleRecord, ...] = ()
    shares: Annotated[int, At("shares", "total")] = 0  # how many it is offered as; 0: it is not shared
    shares_of: Annotated[Interned, At("shares", "resource")] = ""  # the resource of these; "": of several

    def selected_by(self, match: DeviceMatch) -> bool:
        """True when it is one of those; the agent decides by the same test. Devices are selected, never partitions:
        what is about a partition goes by its device."""
        return matches(match, product_name=self.model.product, type=self.type, ids=(self.id,))


@dataclass(frozen=True, slots=True)
class WithheldRecord:
    """Ids of a resource that no new container gets, and why."""

    reason: Interned
    count: int
    devices: tuple[str, ...] = ()  # the first of them, by name
    message: str = ""
    waits_for: tuple[str, ...] = ()  # pods, <namespace>/<name>


@dataclass(frozen=True, slots=True)
class ResourceRecord:
    name: Interned
    capacity: int
    healthy: int
    managed_by: Interned
    sharing: Interned = ""
    replicas: int = 0  # 0: not shared
    allocated: int = 0
    free: int | None = None  # None: not known
    withheld: tuple[WithheldRecord, ...] = ()

    @property
    def served(self) -> bool:
        """True when the node's agent offers it, by the device plugin API or by DRA."""
        return self.managed_by in {"plugin", "dra"}


@dataclass(frozen=True, slots=True)
class Note:
    """A hint about an entry of the configuration that matches nothing on the node, or has no effect there."""

    section: Interned
    entry: Interned
    text: Annotated[Interned, At("message")]


@dataclass(frozen=True, slots=True)
class ConfigurationRecord:
    """The agent's answer about the node's configuration."""

    refused_section: Interned  # the section at fault, where something is refused and it is one's
    files_alone: bool = False  # what is refused are files of the node, and the rest is in effect
    unmatched: tuple[Note, ...] = ()
    serving: Interned = ""


@dataclass(frozen=True, slots=True)
class PolicyRef:
    """An entry of NodeDevices.spec.policies."""

    name: str
    generation: int
    priority: int
    sections: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Affected:
    """An entry of NodeDevices.status.affectedPods."""

    namespace: str
    name: str
    uid: str
    device: str
    reason: str
    since: str


@dataclass(frozen=True, slots=True)
class ActionRecord:
    """An entry of NodeDevices.status.actions."""

    name: Interned
    reason: Interned = ""
    message: Interned = ""
    generation: Annotated[int | None, At("observedGeneration")] = None

    @property
    def in_sync(self) -> bool:
        return self.reason == IN_SYNC


@dataclass(frozen=True, slots=True)
class SummaryRecord:
    """NodeDevices.status.summary, as far as a roll-out goes by it."""

    offered: int | None = None  # None: not known
    held: int = 0
    excluded: int = 0
    unschedulable: int = 0


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """NodeDevices.spec.change."""

    time: str
    devices: int
    policies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OutOfServiceRecord:
    """An entry of NodeDevices.spec.unschedulable."""

    id: str
    reason: str
    by: str = ""
    since: str = ""  # as it says, else when its field manager wrote last
    until: str = ""
    manager: str = ""  # the field manager that has it


@dataclass(frozen=True, slots=True)
class Retirement:
    """A resource that the agent no longer offers. One that comes and goes again is another one."""

    name: Interned
    since: str  # by the agent's clock


@dataclass(frozen=True, slots=True)
class NodeDevicesRecord:
    name: Annotated[Interned, At("metadata", "name")]
    uid: Annotated[str, At("metadata", "uid")]
    configuration: ConfigurationRecord
    probe_starting: bool  # a probe has not reported yet
    generation: Annotated[int, At("metadata", "generation")] = 0
    owner_uid: str = ""  # uid of the Node that owns it
    labels: Annotated[Mapping[str, str], At("metadata", "labels")] = field(default_factory=dict)
    labels_owned: frozenset[str] = frozenset()  # keys of our field manager
    labels_of_others: frozenset[str] = frozenset()  # keys of other field managers; one that two have is in both
    node_uid: Annotated[str, At("status", "nodeUID")] = ""  # the Node that the agent saw
    config: Raw | None = None
    config_name: Annotated[str, At("spec", "configName")] = ""
    config_hash: Annotated[str, At("spec", "configHash")] = ""
    policies: Annotated[tuple[PolicyRef, ...], At("spec", "policies")] = ()
    change: Annotated[ChangeRecord | None, At("spec", "change")] = None
    confirm: Annotated[str, At("metadata", "annotations", CONFIRM)] = ""
    observed_generation: Annotated[int, At("status", "observedGeneration")] = 0
    out_of_service: tuple[OutOfServiceRecord, ...] = ()  # what people took out of it
    applied_hash: Annotated[str, At("status", "appliedConfigHash")] = ""
    summary: Annotated[SummaryRecord, At("status", "summary")] = SummaryRecord()
    devices: tuple[DeviceRecord, ...] = ()
    resources: Annotated[tuple[ResourceRecord, ...], At("status", "resources")] = ()
    platform: Platform = UNKNOWN_PLATFORM
    retired: Annotated[tuple[Retirement, ...], At("status", "retiredResources")] = ()
    affected: Annotated[tuple[Affected, ...], At("status", "affectedPods")] = ()
    actions: Annotated[tuple[ActionRecord, ...], At("status", "actions")] = ()
    conditions: Annotated[tuple[ConditionRecord, ...], At("status", "conditions")] = ()
    boot_id: Annotated[str, At("status", "agent", "bootID")] = ""  # of the boot that the devices' health is about
    fingerprints: Sequence[int] = field(default=(), compare=False, repr=False)  # of the raw devices
    heartbeat: Annotated[str, At("status", "agent", "heartbeatTime")] = field(default="", compare=False)
    resource_version: Annotated[str, At("metadata", "resourceVersion")] = field(default="", compare=False)

    @property
    def observes(self) -> bool:
        """True when another plugin serves the kubelet there, and the agent only observes."""
        return self.configuration.serving == OBSERVE

    def condition(self, kind: str) -> ConditionRecord | None:
        return next((item for item in self.conditions if item.type == kind), None)

    def is_true(self, kind: str) -> bool:
        """True when the condition of that type is."""
        shown = self.condition(kind)
        return shown is not None and shown.status == "True"

    def action(self, name: str) -> ActionRecord | None:
        return next((item for item in self.actions if item.name == name), None)


@dataclass(frozen=True, slots=True)
class HeartbeatArrival:
    """Arrival of a NodeDevices' heartbeat, by the operator's monotonic clock."""

    at: float
    first: bool = True  # it stood there when this operator first saw the object


@dataclass(frozen=True, slots=True)
class TaintRecord:
    """A taint of our key on a Node."""

    effect: Interned
    value: Interned = ""


@dataclass(frozen=True, slots=True)
class NodeRecord:
    name: Annotated[Interned, At("metadata", "name")]
    uid: Annotated[str, At("metadata", "uid")]
    labels: Annotated[Mapping[str, str], At("metadata", "labels")] = field(default_factory=dict)
    ready: bool = True
    capacity: Mapping[str, int] = field(default_factory=dict)  # extended resources only
    allocatable: Mapping[str, int] = field(default_factory=dict)
    owned: frozenset[str] = frozenset()  # capacity keys of our field manager
    labels_owned: frozenset[str] = frozenset()  # label keys of our field manager
    ready_condition: ConditionRecord | None = None  # nodedevices.io/Ready
    condition: ConditionRecord | None = None  # nodedevices.io/DevicesHealthy
    conditions_owned: frozenset[str] = frozenset()  # of these two, what our field manager has
    xid_condition: ConditionRecord | None = None  # XidCriticalError, of any writer
    xid_condition_owned: bool = False
    boot_id: Annotated[str, At("status", "nodeInfo", "bootID")] = ""
    kubelet: Annotated[Interned, At("status", "nodeInfo", "kubeletVersion")] = ""
    cordoned: Annotated[bool, At("spec", "unschedulable")] = False
    taints: tuple[TaintRecord, ...] = ()  # those of our key
    reports: tuple[ReportRecord, ...] = ()  # what other monitors and the cloud say is wrong or will be
    resource_version: Annotated[str, At("metadata", "resourceVersion")] = field(default="", compare=False)

    @property
    def marked(self) -> bool:
        """True when anything on it is ours."""
        return bool(self.owned or self.labels_owned or self.taints or self.conditions_owned or self.xid_condition_owned)


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    """A DevicePolicy. `spec` is None when it is refused."""

    name: Annotated[str, At("metadata", "name")]
    uid: Annotated[str, At("metadata", "uid")]
    generation: Annotated[int, At("metadata", "generation")]
    dry_run: bool
    created: Annotated[str, At("metadata", "creationTimestamp")] = ""
    priority: Annotated[int, At("spec", "priority")] = 0
    selector: LabelSelector | None = None  # None: not readable; then the policy selects nothing
    spec: DevicePolicySpec | None = None
    sections: Mapping[str, Any] = field(default_factory=dict, compare=False)  # of spec, in wire form
    refusal: str = ""  # reason of Accepted=False
    problem: str = ""  # its message
    confirm: Annotated[str, At("metadata", "annotations", CONFIRM)] = ""
    observed_generation: Annotated[int | None, At("status", "observedGeneration")] = None
    actions_record: Annotated[str, At("status", "actionsRecord")] = ""  # namespace/name of the ConfigMap that it names
    resume_record: Annotated[str, At("status", "resumeRecord")] = ""  # of the one by which a person resumes
    counts: Mapping[str, int] | None = None
    conditions: Annotated[tuple[ConditionRecord, ...], At("status", "conditions")] = ()
    resource_version: Annotated[str, At("metadata", "resourceVersion")] = field(default="", compare=False)

    @property
    def paused(self) -> bool:
        return self.spec is not None and self.spec.mode == "Paused"

    @property
    def rank(self) -> tuple[int, str, str]:
        """The strongest sorts first."""
        return -self.priority, self.created, self.name

    def selects(self, labels: Mapping[str, str]) -> bool:
        return self.selector is not None and self.selector.matches(labels)


@dataclass(frozen=True, slots=True)
class RejectedPod:
    """What is remembered of a pod that its node's kubelet rejected when it assigned devices."""

    namespace: Annotated[str, At("metadata", "namespace")]
    name: Annotated[str, At("metadata", "name")]
    uid: Annotated[str, At("metadata", "uid")]
    node: Annotated[str, At("spec", "nodeName")]
    owner: str  # its controller, for people: ReplicaSet web-5d4f; "": no controller makes another one
    since: str  # when the kubelet took it up, RFC 3339
    requests: tuple[tuple[str, int], ...] = ()  # extended resources, and how many of each
