"""Records of objects that the operator remembers: the few fields that decisions need, frozen, and cheap to compare.

Made from the raw JSON by what the annotations say (nodedevices_common.raw), without pydantic: this runs for every
watch event of the fleet. A missing or odd field reads as absent; nothing here raises for what a status contains,
because one odd status must not stop the rest. Equal records mean that nothing changed which anybody decides by:
resourceVersion and the heartbeat are carried but not compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from sys import hash_info, intern
from typing import Annotated, Any

from nodedevices_api.base import to_dict
from nodedevices_api.conditions import IN_SYNC, MISSING, NODE_DEVICES_HEALTHY, NODE_READY, XID_CRITICAL_ERROR
from nodedevices_api.devicepolicy import DevicePolicySpec
from nodedevices_api.errors import parse
from nodedevices_api.meta import LabelSelector
from nodedevices_api.sections import RESERVED_LABEL, reserved_label
from nodedevices_common.conditions import ConditionRecord
from nodedevices_common.conditions import read as read_condition
from nodedevices_common.confirming import CONFIRM
from nodedevices_common.errors import InputError
from nodedevices_common.observing import OBSERVE
from nodedevices_common.quantity import whole_units
from nodedevices_common.raw import At, Interned, Present, Raw, mapping, mappings, reader, text
from orjson import dumps

from nodedevices_operator.records.names import (
    CAPACITY,
    LABELS,
    NODE_CONDITION,
    OBJECT_LABELS,
    TAINT,
    XID_CONDITION,
)
from nodedevices_operator.records.neighbours import ReportRecord, reports
from nodedevices_operator.records.shared import (
    UNKNOWN_PLATFORM,
    DeviceModel,
    PartitionProfile,
    Platform,
    model,
    one_of_equals,
    platform,
    profile,
    shared,
)

_PRINT = hash_info.width // 8  # bytes of a fingerprint: a hash with a key that is this process's own


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
    uid: Annotated[str, At("podUID")] = ""  # "": the agent does not know it
    resource: Interned = ""
    claim: str = ""
    ids: tuple[str, ...] = ()
    health: HealthRecord | None = None  # what happened to this container alone; None: it is as its device is


@dataclass(frozen=True, slots=True)
class PartRecord:
    """A device, or a partition of one, with who holds it. A partition without its own health has its device's."""

    id: str
    health: HealthRecord
    holders: tuple[HolderRecord, ...] = ()
    profile: PartitionProfile | None = None  # of a MIG device

    @property
    def missing(self) -> bool:
        return self.health.missing


@dataclass(frozen=True, slots=True)
class NoticeRecord:
    """An event on a device that changed no state."""

    code: Interned
    message: Interned
    partition: Interned
    since: str
    time: str
    count: int


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
    memory_mib: int
    health: HealthRecord
    parts: tuple[PartRecord, ...]  # the device itself first
    model: DeviceModel
    excluded: bool  # by resources.exclude, it or each of its partitions
    unlisted: Annotated[int, At("holdersTruncated")] = 0  # holders that are left out
    type: Interned = ""
    unschedulable: Present = False  # people took it out of service
    index: int = 0  # in the driver's order
    notices: tuple[NoticeRecord, ...] = ()
    idle: tuple[IdleRecord, ...] = ()
    shares: Annotated[int, At("shares", "total")] = 0  # how many it is offered as; 0: it is not shared
    shares_of: Annotated[Interned, At("shares", "resource")] = ""  # the resource of these; "": of several

    @property
    def missing(self) -> bool:
        return self.health.missing


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


@dataclass(frozen=True, slots=True)
class UnmatchedRecord:
    """An entry of the configuration that matches nothing on the node."""

    section: Interned
    entry: Interned
    message: Interned


@dataclass(frozen=True, slots=True)
class ConfigurationRecord:
    """The agent's answer about the node's configuration."""

    refused_section: Interned  # the section at fault, where something is refused and it is one's
    files_alone: bool = False  # what is refused are files of the node, and the rest is in effect
    unmatched: tuple[UnmatchedRecord, ...] = ()
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
    fingerprints: bytes = field(
        default=b"", compare=False, repr=False
    )  # of the raw devices, by a hash with a secret key
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
    left_out: str = ""  # what of it is not applied, and why; the rest is
    confirm: Annotated[str, At("metadata", "annotations", CONFIRM)] = ""
    observed_generation: Annotated[int | None, At("status", "observedGeneration")] = None
    actions_record: Annotated[str, At("status", "actionsRecord")] = ""  # namespace/name of the ConfigMap that it names
    resume_record: Annotated[str, At("status", "resumeRecord")] = ""  # of the one by which a person resumes
    counts: Mapping[str, int] | None = None
    conditions: Annotated[tuple[ConditionRecord, ...], At("status", "conditions")] = ()
    resource_version: Annotated[str, At("metadata", "resourceVersion")] = field(default="", compare=False)

    @property
    def paused(self) -> bool:
        return self.spec is not None and self.spec.paused and not self.dry_run

    @property
    def rank(self) -> tuple[int, str, str]:
        """The strongest sorts first."""
        return -self.priority, self.created, self.name

    def selects(self, labels: Mapping[str, str]) -> bool:
        return self.selector is not None and self.selector.matches(labels)


# --- from raw objects ------------------------------------------------------------------------------------------------
def node_devices_record(raw: Raw, before: NodeDevicesRecord | None = None) -> NodeDevicesRecord:
    """Return the record of a NodeDevices. Devices that are as they were `before` are the same objects: as a rule one of
    them changes, and they are most of an object."""
    metadata, spec, status = (mapping(raw.get(key)) for key in ("metadata", "spec", "status"))
    managed = mappings(metadata.get("managedFields"))
    owner = next((it for it in mappings(metadata.get("ownerReferences")) if it.get("kind") == "Node"), {})
    config = spec.get("config")
    others = (it for it in managed if not _applied(it, OBJECT_LABELS))
    said = mapping(status.get("configuration"))
    devices, fingerprints = _devices(mappings(status.get("devices")), before)
    return _node_devices(
        raw,
        owner_uid=text(owner.get("uid")),
        labels_owned=_owned(managed, OBJECT_LABELS, "f:metadata", "f:labels"),
        labels_of_others=shared(key for it in others for key in _keys(it, "f:metadata", "f:labels")),
        config=one_of_equals(without_reserved_labels(config)[0]) if isinstance(config, dict) else None,
        out_of_service=tuple(_out_of_service(it, managed) for it in mappings(spec.get("unschedulable"))),
        configuration=_configuration(said, refused_section=_refused_section(said)),
        devices=devices,
        fingerprints=fingerprints,
        platform=platform(status),
        probe_starting=any(it.get("state") == "Starting" for it in mappings(status.get("probes"))),
    )


def _refused_section(configuration: Raw) -> str:
    """The first of them is the reason why the configuration is not applied, if it is not."""
    refusals = mappings(configuration.get("refusals"))
    return intern(text(refusals[0].get("section"))) if refusals and not configuration.get("filesAlone") else ""


def _out_of_service(entry: Raw, managed: Sequence[Raw]) -> OutOfServiceRecord:
    """With the field manager that has the entry, and when that one wrote last."""
    key = 'k:{"id":' + dumps(text(entry.get("id"))).decode() + "}"
    having = (it for it in reversed(managed) if key in _inner(it, "f:spec", "f:unschedulable"))
    by: Raw = next(having, {})
    since = text(entry.get("since")) or text(by.get("time"))
    return _entry_out_of_service(entry, since=since, manager=text(by.get("manager")))


def _devices(found: Sequence[Raw], before: NodeDevicesRecord | None) -> tuple[tuple[DeviceRecord, ...], bytes]:
    """Return the records of these devices, and their fingerprints."""
    known: dict[bytes, DeviceRecord] = {}
    if before is not None:
        prints = before.fingerprints
        known = {prints[at * _PRINT : (at + 1) * _PRINT]: it for at, it in enumerate(before.devices)} if prints else {}
    healths: dict[HealthRecord, HealthRecord] = {}  # most of a node's are equal
    try:
        prints = b"".join([hash(dumps(it)).to_bytes(_PRINT, "big", signed=True) for it in found])
    except TypeError:  # an integer of more than 64 bits, which no schema of ours allows
        return tuple([_device_record(it, healths) for it in found]), b""
    records = [
        known.get(prints[at * _PRINT : (at + 1) * _PRINT]) or _device_record(it, healths) for at, it in enumerate(found)
    ]
    return tuple(records), prints


def _device_record(raw: Raw, healths: dict[HealthRecord, HealthRecord]) -> DeviceRecord:
    health, known = _health(mapping(raw.get("health"))), model(raw)
    health = healths.setdefault(health, health)
    partitions = mappings(raw.get("partitions"))
    own = ((mapping(it.get("health")), it) for it in partitions)
    held: dict[str, list[HolderRecord]] = {}  # by partition; "": the device itself
    idle = []
    for said in mappings(raw.get("holders")):
        holder = _holder(said)
        held.setdefault(text(said.get("partition")), []).append(holder)
        if since := text(said.get("idleSince")):
            idle.append(IdleRecord(holder, intern(text(said.get("idle"))), since))
    holders = {part: tuple(having) for part, having in held.items()}
    return _device(
        raw,
        memory_mib=known.memory_mib,
        health=health,
        idle=tuple(idle),
        parts=(
            _part(raw, health=health, profile=None, holders=holders.get("", ())),
            *(
                _part(
                    it,
                    health=_health(its) if its else health,
                    profile=profile(it),
                    holders=holders.get(text(it.get("id")), ()),
                )
                for its, it in own
            ),
        ),
        excluded="excluded" in raw or (bool(partitions) and all("excluded" in it for it in partitions)),
        model=known,
    )


def node_record(raw: Raw) -> NodeRecord:
    """Return the record of a Node."""
    metadata, spec, status = (mapping(raw.get(key)) for key in ("metadata", "spec", "status"))
    managed = mappings(metadata.get("managedFields"))
    conditions = {it.type: it for it in map(read_condition, reversed(mappings(status.get("conditions"))))}
    taints = mappings(spec.get("taints"))
    ready = conditions.get("Ready")
    return _node(
        raw,
        ready=ready is not None and ready.status == "True",
        capacity=_extended(mapping(status.get("capacity"))),
        allocatable=_extended(mapping(status.get("allocatable"))),
        owned=_owned(managed, CAPACITY, "f:status", "f:capacity"),
        labels_owned=_owned(managed, LABELS, "f:metadata", "f:labels"),
        ready_condition=conditions.get(NODE_READY),
        condition=conditions.get(NODE_DEVICES_HEALTHY),
        conditions_owned=_conditions_owned(managed, NODE_CONDITION),
        xid_condition=conditions.get(XID_CRITICAL_ERROR),
        xid_condition_owned=bool(_conditions_owned(managed, XID_CONDITION)),
        taints=tuple(_taint(it) for it in taints if it.get("key") == TAINT),
        reports=reports(conditions, mapping(metadata.get("labels")), taints),
    )


def _extended(amounts: Raw) -> dict[str, int]:
    return {intern(name): whole_units(value) for name, value in amounts.items() if "/" in name}


def policy_record(raw: Raw) -> PolicyRecord:
    """Return the record of a DevicePolicy, read and judged."""
    spec_raw, reserved = without_reserved_labels(mapping(raw.get("spec")))
    spec: DevicePolicySpec | None = None
    selector: LabelSelector | None = None
    refusal = problem = ""
    try:
        spec = parse(DevicePolicySpec, spec_raw, "spec")
        selector = spec.node_selector
    except InputError as error:
        refusal, problem = "Invalid", str(error)
        try:
            selector = parse(LabelSelector, spec_raw.get("nodeSelector"))
        except InputError:
            selector = None
    nodes = mapping(raw.get("status")).get("nodes")
    return _policy(
        raw,
        selector=selector,
        spec=spec,
        sections={} if spec is None else to_dict(spec.sections()),
        dry_run=spec_raw.get("mode") == "DryRun",
        refusal=refusal,
        problem=problem,
        left_out=f"labels.extra has {', '.join(reserved)}: {RESERVED_LABEL}" if reserved else "",
        counts=dict(nodes) if isinstance(nodes, dict) else None,
    )


def without_reserved_labels(sections: Raw) -> tuple[Raw, tuple[str, ...]]:
    """The sections without labels that a policy may not set, and the keys of these.

    The API server refuses them; an object that was stored before it did so loses these labels and nothing else.
    """
    labels = mapping(sections.get("labels"))
    extra = mapping(labels.get("extra"))
    reserved = tuple(sorted(key for key in extra if reserved_label(key)))
    if not reserved:
        return sections, ()
    kept = {key: value for key, value in extra.items() if key not in reserved}
    return {**sections, "labels": {**labels, "extra": kept}}, reserved


# --- who wrote what --------------------------------------------------------------------------------------------------
_TYPE = 'k:{"type":"'  # as managedFields begin the name of a condition: k:{"type":"Ready"}


def _applied(entry: Raw, manager: object) -> bool:
    """True when an entry of managedFields is what this manager applied."""
    return entry.get("operation") == "Apply" and entry.get("manager") == manager


def _owned(managed: Sequence[Raw], manager: str, outer: str, inner: str) -> frozenset[str]:
    return shared(key for fields in managed if _applied(fields, manager) for key in _keys(fields, outer, inner))


def _conditions_owned(managed: Sequence[Raw], manager: str) -> frozenset[str]:
    """Return the types of the conditions that this manager applied."""
    keys = (
        key for fields in managed if _applied(fields, manager) for key in _inner(fields, "f:status", "f:conditions")
    )
    return shared(key[len(_TYPE) : -2] for key in keys if key.startswith(_TYPE))


def _inner(entry: Raw, outer: str, inner: str) -> Raw:
    return mapping(mapping(mapping(entry.get("fieldsV1")).get(outer)).get(inner))


def _keys(entry: Raw, outer: str, inner: str) -> set[str]:
    return {intern(key[2:]) for key in _inner(entry, outer, inner) if key.startswith("f:")}


_node_devices = reader(
    NodeDevicesRecord,
    given="owner_uid labels_owned labels_of_others config out_of_service configuration devices fingerprints platform "
    "probe_starting",
)
_entry_out_of_service = reader(OutOfServiceRecord, given="since manager")
_configuration = reader(ConfigurationRecord, given="refused_section")
_device = reader(DeviceRecord, given="memory_mib health parts excluded model idle")
_part = reader(PartRecord, given="health profile holders")
_holder = reader(HolderRecord)
_health = reader(HealthRecord)
_taint = reader(TaintRecord)
_node = reader(
    NodeRecord,
    given="ready capacity allocatable owned labels_owned taints reports "
    "ready_condition condition conditions_owned xid_condition xid_condition_owned",
)
_policy = reader(PolicyRecord, given="selector spec sections dry_run refusal problem left_out counts")
