"""What the operator remembers of an object: the few fields that decisions need, frozen, and cheap to compare.

Made from the raw JSON, without pydantic: this runs for every watch event of the fleet. A missing or odd field
reads as absent; nothing here raises for what a status contains, because one odd status must not stop the rest. Equal
records mean that nothing changed which anybody decides by: resourceVersion and the heartbeat are carried but not
compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from sys import intern
from typing import Any

from nodedevices_api.base import to_dict
from nodedevices_api.conditions import MISSING, NODE_DEVICES_HEALTHY, XID_CRITICAL_ERROR
from nodedevices_api.devicepolicy import DevicePolicySpec
from nodedevices_api.errors import parse
from nodedevices_api.meta import LabelSelector
from nodedevices_api.sections import RESERVED_LABEL, reserved_label
from nodedevices_common.conditions import ConditionRecord
from nodedevices_common.errors import InputError
from nodedevices_common.quantity import whole_units
from orjson import dumps

from nodedevices_operator.records.configs import one_of_equals
from nodedevices_operator.records.names import (
    ACCEPT_CHANGE,
    CAPACITY,
    LABELS,
    NODE_CONDITION,
    OBJECT_LABELS,
    RESUME_ROLLOUT,
    TAINT,
    XID_CONDITION,
)
from nodedevices_operator.records.traits import (
    UNKNOWN_MODEL,
    UNKNOWN_PLATFORM,
    Model,
    Platform,
    Profile,
    model,
    platform,
    profile,
)

Raw = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Health:
    state: str = "Unknown"
    reason: str = ""
    message: str = ""
    since: str = ""
    action: str = ""
    domain: str = ""
    xids: tuple[int, ...] = ()  # of all its faults, since the machine booted


@dataclass(frozen=True, slots=True)
class Holder:
    """A container that holds a device or a part of it."""

    namespace: str
    pod: str
    container: str
    since: str
    uid: str = ""  # "": the agent does not know it
    resource: str = ""
    claim: str = ""
    ids: tuple[str, ...] = ()
    health: Health | None = None  # what happened to this container alone; None: it is as its device is


@dataclass(frozen=True, slots=True)
class Part:
    """A device, or a partition of one, with who holds it. A partition without its own health has its device's."""

    id: str
    health: Health
    holders: tuple[Holder, ...] = ()
    profile: Profile | None = None  # of a MIG device

    @property
    def missing(self) -> bool:
        """Whether its driver no longer lists it: it is shown, and counts nowhere."""
        return self.health.reason == MISSING


@dataclass(frozen=True, slots=True)
class NoticeRecord:
    """What came to a device and changed no state."""

    code: str
    message: str
    partition: str
    since: str
    time: str
    count: int


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    id: str
    name: str
    memory_mib: int
    health: Health
    parts: tuple[Part, ...]  # the device itself first
    unlisted: int = 0  # holders that are left out of the parts
    type: str = "gpu"
    unschedulable: bool = False  # people took it out of service
    index: int = 0  # in the driver's order
    excluded: bool = False  # by resources.exclude, it or each of its partitions
    notices: tuple[NoticeRecord, ...] = ()
    model: Model = UNKNOWN_MODEL
    pcie_root: str = ""
    shares: int = 0  # how many it is offered as; 0: it is not shared
    shares_of: str = ""  # the resource of these; "": of several

    @property
    def missing(self) -> bool:
        """Whether its driver no longer lists it: it is shown, and counts nowhere."""
        return self.health.reason == MISSING


@dataclass(frozen=True, slots=True)
class WithheldRecord:
    """Ids of a resource that no new container gets, and why."""

    reason: str
    count: int
    devices: tuple[str, ...] = ()  # the first of them, by name
    message: str = ""
    waits_for: tuple[str, ...] = ()  # pods, <namespace>/<name>


@dataclass(frozen=True, slots=True)
class ResourceRecord:
    name: str
    capacity: int
    healthy: int
    managed_by: str
    sharing: str = "none"
    replicas: int = 0  # 0: not shared
    allocated: int = 0
    free: int | None = None  # None: not known
    withheld: tuple[WithheldRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class Unmatched:
    """An entry of the configuration that matches nothing on the node."""

    section: str
    entry: str
    message: str


@dataclass(frozen=True, slots=True)
class ConfigurationRecord:
    """What the agent has to say about the node's configuration."""

    refused_section: str = ""  # the section at fault, where something is refused and it is one's
    files_alone: bool = False  # what is refused are files of the node, and the rest is in effect
    unmatched: tuple[Unmatched, ...] = ()


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
class OutOfService:
    """An entry of NodeDevices.spec.unschedulable."""

    id: str
    reason: str
    by: str = ""
    since: str = ""  # as it says, else when its field manager wrote last
    until: str = ""
    manager: str = ""  # the field manager that has it


@dataclass(frozen=True, slots=True)
class NodeDevicesRecord:
    name: str
    uid: str
    generation: int = 0
    owner_uid: str = ""  # uid of the Node that owns it
    labels: Mapping[str, str] = field(default_factory=dict)
    labels_owned: frozenset[str] = frozenset()  # keys of our field manager
    labels_of_others: frozenset[str] = frozenset()  # keys of other field managers; one that two have is in both
    node_uid: str = ""  # status.nodeUID: the Node that the agent saw
    config: Raw | None = None
    config_name: str = ""
    config_hash: str = ""
    policies: tuple[PolicyRef, ...] = ()
    change: ChangeRecord | None = None
    accepted_change: str = ""  # annotation nodedevices.io/accept-change
    observed_generation: int = 0
    out_of_service: tuple[OutOfService, ...] = ()  # what people took out of it
    applied_hash: str = ""
    summary: SummaryRecord = SummaryRecord()
    configuration: ConfigurationRecord = ConfigurationRecord()
    devices: tuple[DeviceRecord, ...] = ()
    resources: tuple[ResourceRecord, ...] = ()
    platform: Platform = UNKNOWN_PLATFORM
    retired: tuple[tuple[str, str], ...] = ()  # names that the agent no longer offers, each with since when
    affected: tuple[Affected, ...] = ()
    conditions: tuple[ConditionRecord, ...] = ()
    boot_id: str = ""  # of the boot that the devices' health is about
    heartbeat: str = field(default="", compare=False)
    resource_version: str = field(default="", compare=False)

    def condition(self, kind: str) -> ConditionRecord | None:
        return next((item for item in self.conditions if item.type == kind), None)


@dataclass(frozen=True, slots=True)
class HeartbeatArrival:
    """When the heartbeat of a NodeDevices came, by the operator's monotonic clock."""

    at: float
    first: bool = True  # it stood there when this operator first saw the object


@dataclass(frozen=True, slots=True)
class TaintRecord:
    """A taint of our key on a Node."""

    effect: str
    value: str = ""


@dataclass(frozen=True, slots=True)
class NodeRecord:
    name: str
    uid: str
    labels: Mapping[str, str] = field(default_factory=dict)
    ready: bool = True
    capacity: Mapping[str, int] = field(default_factory=dict)  # extended resources only
    allocatable: Mapping[str, int] = field(default_factory=dict)
    owned: frozenset[str] = frozenset()  # capacity keys of our field manager
    labels_owned: frozenset[str] = frozenset()  # label keys of our field manager
    condition: ConditionRecord | None = None  # ours
    condition_owned: bool = False  # our field manager has that condition
    xid_condition: ConditionRecord | None = None  # XidCriticalError, whoever wrote it
    xid_condition_owned: bool = False
    boot_id: str = ""
    cordoned: bool = False  # spec.unschedulable
    taints: tuple[TaintRecord, ...] = ()  # those of our key
    resource_version: str = field(default="", compare=False)

    @property
    def marked(self) -> bool:
        """Whether anything on it is ours."""
        return bool(self.owned or self.labels_owned or self.taints or self.condition_owned or self.xid_condition_owned)


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    """A DevicePolicy. `spec` is None when it is refused."""

    name: str
    uid: str
    generation: int
    created: str = ""
    priority: int = 0
    selector: LabelSelector | None = None  # None: not readable; then the policy selects nothing
    spec: DevicePolicySpec | None = None
    sections: Mapping[str, Any] = field(default_factory=dict, compare=False)  # of spec, in wire form
    dry_run: bool = False
    refusal: str = ""  # reason of Accepted=False
    problem: str = ""  # its message
    left_out: str = ""  # what of it is not applied, and why; the rest is
    resume_rollout: str = ""  # annotation nodedevices.io/resume-rollout
    observed_generation: int | None = None
    actions_record: str = ""  # namespace/name of the ConfigMap that the status names
    counts: Mapping[str, int] | None = None
    conditions: tuple[ConditionRecord, ...] = ()
    resource_version: str = field(default="", compare=False)

    def selects(self, labels: Mapping[str, str]) -> bool:
        return self.selector is not None and self.selector.matches(labels)


# --- from raw objects ------------------------------------------------------------------------------------------------
def node_devices_record(raw: Raw) -> NodeDevicesRecord:
    """The record of a NodeDevices."""
    metadata, spec, status = _map(raw, "metadata"), _map(raw, "spec"), _map(raw, "status")
    owners = [o for o in _items(metadata, "ownerReferences") if o.get("kind") == "Node"]
    config, _ = without_reserved_labels(_map(spec, "config"))
    labels_owned, labels_of_others = _label_owners(metadata)
    return NodeDevicesRecord(
        name=intern(_text(metadata, "name")),
        uid=_text(metadata, "uid"),
        generation=_number(metadata, "generation"),
        owner_uid=_text(owners[0], "uid") if owners else "",
        labels=_labels(metadata),
        labels_owned=labels_owned,
        labels_of_others=labels_of_others,
        node_uid=_text(status, "nodeUID"),
        config=one_of_equals(config) if isinstance(spec.get("config"), Mapping) else None,
        config_name=_text(spec, "configName"),
        config_hash=_text(spec, "configHash"),
        policies=tuple(
            PolicyRef(
                _text(it, "name"),
                _number(it, "generation"),
                _number(it, "priority"),
                tuple(map(str, it.get("sections") or ())),
            )
            for it in _items(spec, "policies")
        ),
        change=_change(_map(spec, "change")),
        accepted_change=_text(_map(metadata, "annotations"), ACCEPT_CHANGE),
        observed_generation=_number(status, "observedGeneration"),
        out_of_service=_out_of_service(spec, metadata),
        applied_hash=_text(status, "appliedConfigHash"),
        summary=_summary(_map(status, "summary")),
        configuration=_configuration(_map(status, "configuration")),
        devices=tuple(_device(it) for it in _items(status, "devices")),
        resources=tuple(
            ResourceRecord(
                intern(_text(it, "name")),
                _number(it, "capacity"),
                _number(it, "healthy"),
                intern(_text(it, "managedBy")),
                intern(_text(it, "sharing")),
                _number(it, "replicas"),
                _number(it, "allocated"),
                _number(it, "free") if "free" in it else None,
                tuple(_withheld(each) for each in _items(it, "withheld")),
            )
            for it in _items(status, "resources")
        ),
        platform=platform(status),
        retired=tuple((intern(_text(it, "name")), _text(it, "since")) for it in _items(status, "retiredResources")),
        affected=tuple(
            Affected(*(_text(it, key) for key in ("namespace", "name", "uid", "device", "reason", "since")))
            for it in _items(status, "affectedPods")
        ),
        conditions=_conditions(status),
        boot_id=_text(_map(status, "agent"), "bootID"),
        heartbeat=_text(_map(status, "agent"), "heartbeatTime"),
        resource_version=_text(metadata, "resourceVersion"),
    )


def _change(raw: Raw) -> ChangeRecord | None:
    if not raw:
        return None
    named = raw.get("policies")
    policies = tuple(sorted(map(str, named))) if isinstance(named, list) else ()
    return ChangeRecord(_text(raw, "time"), _number(raw, "devices"), policies)


def _summary(raw: Raw) -> SummaryRecord:
    return SummaryRecord(
        offered=_number(raw, "offered") if "offered" in raw else None,
        held=_number(raw, "held"),
        excluded=_number(raw, "excluded"),
        unschedulable=_number(raw, "unschedulable"),
    )


def _out_of_service(spec: Raw, metadata: Raw) -> tuple[OutOfService, ...]:
    found = []
    for it in _items(spec, "unschedulable"):
        key = 'k:{"id":' + dumps(_text(it, "id")).decode() + "}"
        manager = time = ""
        for entry in _items(metadata, "managedFields"):
            if key in _map(_map(_map(entry, "fieldsV1"), "f:spec"), "f:unschedulable"):
                manager, time = _text(entry, "manager"), _text(entry, "time")
        found.append(
            OutOfService(
                id=_text(it, "id"),
                reason=_text(it, "reason"),
                by=_text(it, "by"),
                since=_text(it, "since") or time,
                until=_text(it, "until"),
                manager=manager,
            )
        )
    return tuple(found)


def _withheld(of: Raw) -> WithheldRecord:
    return WithheldRecord(
        reason=intern(_text(of, "reason")),
        count=_number(of, "count"),
        devices=_texts(of, "devices"),
        message=_text(of, "message"),
        waits_for=_texts(of, "waitsFor"),
    )


def _configuration(raw: Raw) -> ConfigurationRecord:
    return ConfigurationRecord(
        refused_section=intern(_text(_map(raw, "refused"), "section")),
        files_alone="refused" not in raw and bool(_items(raw, "refusals")),
        unmatched=tuple(
            Unmatched(intern(_text(it, "section")), intern(_text(it, "entry")), intern(_text(it, "message")))
            for it in _items(raw, "unmatched")
        ),
    )


def _device(raw: Raw) -> DeviceRecord:
    health = _health(_map(raw, "health"))
    whole = Part(_text(raw, "id"), health, _holders(raw))
    known = model(raw)
    parts = tuple(
        Part(_text(it, "id"), _health(_map(it, "health")) if it.get("health") else health, _holders(it), profile(it))
        for it in _items(raw, "partitions")
    )
    return DeviceRecord(
        id=whole.id,
        name=intern(_text(raw, "name")),
        memory_mib=known.memory_mib,
        health=health,
        parts=(whole, *parts),
        unlisted=_number(raw, "holdersTruncated"),
        type=intern(_text(raw, "type")),
        unschedulable="unschedulable" in raw,
        index=_number(raw, "index"),
        excluded="excluded" in raw or _all_excluded(raw),
        notices=tuple(
            NoticeRecord(
                code=intern(_text(it, "code")),
                message=intern(_text(it, "message")),
                partition=intern(_text(it, "partition")),
                since=_text(it, "since"),
                time=_text(it, "time"),
                count=_number(it, "count"),
            )
            for it in _items(raw, "notices")
        ),
        model=known,
        pcie_root=intern(_text(_map(raw, "attributes"), "pcieRoot")),
        shares=_number(_map(raw, "shares"), "total"),
        shares_of=intern(_text(_map(raw, "shares"), "resource")),
    )


def _all_excluded(raw: Raw) -> bool:
    partitions = list(_items(raw, "partitions"))
    return bool(partitions) and all("excluded" in it for it in partitions)


def _health(raw: Raw) -> Health:
    return Health(
        state=intern(_text(raw, "state") or "Unknown"),
        reason=intern(_text(raw, "reason")),
        message=_text(raw, "message"),
        since=_text(raw, "since"),
        action=intern(_text(raw, "recoveryAction")),
        domain=intern(_text(raw, "faultDomain")),
        xids=_numbers(raw, "xids"),
    )


def _holders(raw: Raw) -> tuple[Holder, ...]:
    return tuple(
        Holder(
            namespace=intern(_text(it, "namespace")),
            pod=_text(it, "pod"),
            container=intern(_text(it, "container")),
            since=_text(it, "since"),
            uid=_text(it, "podUID"),
            resource=intern(_text(it, "resource")),
            claim=_text(it, "claim"),
            ids=tuple(map(str, it.get("ids") or ())),
            health=_health(_map(it, "health")) if it.get("health") else None,
        )
        for it in _items(raw, "holders")
    )


def node_record(raw: Raw) -> NodeRecord:
    """The record of a Node."""
    metadata, spec, status = _map(raw, "metadata"), _map(raw, "spec"), _map(raw, "status")
    conditions = _conditions(status)
    ready = next((item for item in conditions if item.type == "Ready"), None)
    owned, labels_owned, conditions_owned = _ownership(metadata)
    return NodeRecord(
        name=intern(_text(metadata, "name")),
        uid=_text(metadata, "uid"),
        labels=_labels(metadata),
        ready=ready is not None and ready.status == "True",
        capacity=_extended(_map(status, "capacity")),
        allocatable=_extended(_map(status, "allocatable")),
        owned=owned,
        labels_owned=labels_owned,
        condition=next((item for item in conditions if item.type == NODE_DEVICES_HEALTHY), None),
        condition_owned=NODE_CONDITION in conditions_owned,
        xid_condition=next((item for item in conditions if item.type == XID_CRITICAL_ERROR), None),
        xid_condition_owned=XID_CONDITION in conditions_owned,
        boot_id=_text(_map(status, "nodeInfo"), "bootID"),
        cordoned=spec.get("unschedulable") is True,
        taints=tuple(
            TaintRecord(intern(_text(it, "effect")), intern(_text(it, "value")))
            for it in _items(spec, "taints")
            if it.get("key") == TAINT
        ),
        resource_version=_text(metadata, "resourceVersion"),
    )


def _extended(amounts: Raw) -> dict[str, int]:
    return {intern(name): whole_units(value) for name, value in amounts.items() if "/" in name}


def _ownership(metadata: Raw) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Which capacity keys and labels are ours according to managedFields, and which managers have a condition."""
    names: frozenset[str] = frozenset()
    labels: frozenset[str] = frozenset()
    conditions: frozenset[str] = frozenset()
    for entry in _items(metadata, "managedFields"):
        if entry.get("operation") != "Apply":
            continue
        fields = _map(_map(entry, "fieldsV1"), "f:status")
        if entry.get("manager") == CAPACITY:
            names |= _keys(_map(fields, "f:capacity"))
        elif entry.get("manager") == LABELS:
            labels |= _label_keys(entry)
        elif (manager := entry.get("manager")) in {NODE_CONDITION, XID_CONDITION} and _map(fields, "f:conditions"):
            conditions |= {str(manager)}
    return names, labels, conditions


def _label_owners(metadata: Raw) -> tuple[frozenset[str], frozenset[str]]:
    """Which labels of a NodeDevices are ours, and which are others', according to managedFields."""
    ours: set[str] = set()
    others: set[str] = set()
    for entry in _items(metadata, "managedFields"):
        own = entry.get("operation") == "Apply" and entry.get("manager") == OBJECT_LABELS
        (ours if own else others).update(_label_keys(entry))
    return frozenset(ours), frozenset(others)


def _label_keys(entry: Raw) -> set[str]:
    return _keys(_map(_map(_map(entry, "fieldsV1"), "f:metadata"), "f:labels"))


def _labels(metadata: Raw) -> dict[str, str]:
    return {intern(str(key)): intern(str(value)) for key, value in _map(metadata, "labels").items()}


def _keys(fields: Raw) -> set[str]:
    return {intern(key[2:]) for key in fields if key.startswith("f:")}


def policy_record(raw: Raw) -> PolicyRecord:
    """The record of a DevicePolicy, read and judged."""
    metadata, status = _map(raw, "metadata"), _map(raw, "status")
    spec_raw, reserved = without_reserved_labels(_map(raw, "spec"))
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
    nodes = status.get("nodes")
    observed = status.get("observedGeneration")
    return PolicyRecord(
        name=_text(metadata, "name"),
        uid=_text(metadata, "uid"),
        generation=_number(metadata, "generation"),
        created=_text(metadata, "creationTimestamp"),
        priority=_number(spec_raw, "priority"),
        selector=selector,
        spec=None if refusal else spec,
        sections={} if refusal or spec is None else to_dict(spec.sections()),
        dry_run=spec_raw.get("mode") == "DryRun",
        refusal=refusal,
        problem=problem,
        left_out=f"labels.extra has {', '.join(reserved)}: {RESERVED_LABEL}" if reserved else "",
        resume_rollout=_text(_map(metadata, "annotations"), RESUME_ROLLOUT),
        observed_generation=observed if isinstance(observed, int) else None,
        actions_record=_text(status, "actionsRecord"),
        counts=dict(nodes) if isinstance(nodes, Mapping) else None,
        conditions=_conditions(status),
        resource_version=_text(metadata, "resourceVersion"),
    )


def without_reserved_labels(sections: Raw) -> tuple[Raw, tuple[str, ...]]:
    """The sections without labels that a policy may not set, and the keys of these.

    The API server refuses them; an object that was stored before it did so loses these labels and nothing else.
    """
    labels = _map(sections, "labels")
    extra = _map(labels, "extra")
    reserved = tuple(sorted(key for key in extra if reserved_label(key)))
    if not reserved:
        return sections, ()
    kept = {key: value for key, value in extra.items() if key not in reserved}
    return {**sections, "labels": {**labels, "extra": kept}}, reserved


# --- raw values ------------------------------------------------------------------------------------------------------
def _conditions(status: Raw) -> tuple[ConditionRecord, ...]:
    return tuple(
        ConditionRecord(
            type=intern(_text(it, "type")),
            status=intern(_text(it, "status")),
            reason=intern(_text(it, "reason")),
            message=_text(it, "message"),
            since=_text(it, "lastTransitionTime"),
            generation=_number(it, "observedGeneration") if "observedGeneration" in it else None,
        )
        for it in _items(status, "conditions")
    )


def _map(raw: Raw, key: str) -> Raw:
    value = raw.get(key)
    return value if isinstance(value, Mapping) else {}


def _items(raw: Raw, key: str) -> Iterable[Raw]:
    value = raw.get(key)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else ()


def _numbers(raw: Raw, key: str) -> tuple[int, ...]:
    value = raw.get(key)
    return tuple(each for each in value if type(each) is int) if isinstance(value, list) else ()


def _texts(raw: Raw, key: str) -> tuple[str, ...]:
    value = raw.get(key)
    return tuple(it for it in value if isinstance(it, str)) if isinstance(value, (list, tuple)) else ()


def _text(raw: Raw, key: str) -> str:
    value = raw.get(key)
    return value if isinstance(value, str) else ""


def _number(raw: Raw, key: str) -> int:
    value = raw.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
