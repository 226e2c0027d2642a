"""The kinds that are watched, and how each object becomes its record.

By what the annotations of records say (nodedevices_common.raw), without pydantic: this runs for every watch event of
the fleet. A missing or odd field reads as absent; nothing here raises for what a status contains, because one odd
status must not stop the rest.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from sys import intern
from typing import Any

from nodedevices_api.base import to_dict
from nodedevices_api.conditions import NODE_DEVICES_HEALTHY, NODE_READY, XID_CRITICAL_ERROR
from nodedevices_api.devicepolicy import DevicePolicySpec
from nodedevices_api.errors import parse
from nodedevices_api.meta import LabelSelector
from nodedevices_common.conditions import read as read_condition
from nodedevices_common.devices import grouped
from nodedevices_common.errors import InputError
from nodedevices_common.pod_requests import INIT, extended_resources, raw_containers
from nodedevices_common.quantity import whole_units
from nodedevices_common.raw import Raw, mapping, mappings, reader, text
from orjson import dumps

from nodedevices_operator.records.names import (
    CAPACITY,
    LABELS,
    NODE_CONDITION,
    NODE_DEVICES,
    NODES,
    OBJECT_LABELS,
    POLICIES,
    TAINT,
    XID_CONDITION,
)
from nodedevices_operator.records.neighbours import reports
from nodedevices_operator.records.objects import (
    ConfigurationRecord,
    DeviceRecord,
    HealthRecord,
    HolderRecord,
    IdleRecord,
    NodeDevicesRecord,
    NodeRecord,
    OutOfServiceRecord,
    PartRecord,
    PolicyRecord,
    RejectedPod,
    TaintRecord,
)
from nodedevices_operator.records.shared import PartitionProfile, model, one_of_equals, platform, profile, shared


class Kind(Enum):
    """The watched kinds; the value is the collection's path."""

    NODE_DEVICES = NODE_DEVICES
    NODE = NODES
    POLICY = POLICIES


Record = NodeDevicesRecord | NodeRecord | PolicyRecord


def node_devices_record(raw: Raw, before: NodeDevicesRecord | None = None) -> NodeDevicesRecord:
    """Return the record of a NodeDevices. Devices that are as they were `before` are the same objects: as a rule one of
    them changes, and they are most of an object."""
    metadata, spec, status = (mapping(raw.get(key)) for key in ("metadata", "spec", "status"))
    managed = mappings(metadata.get("managedFields"))
    owner = next((it for it in mappings(metadata.get("ownerReferences")) if it.get("kind") == "Node"), {})
    config = spec.get("config")
    said = mapping(status.get("configuration"))
    # The first of them is the reason why the configuration is not applied, if it is not.
    refused = next(iter([] if said.get("filesAlone") else mappings(said.get("refusals"))), {})
    devices, fingerprints = _devices(grouped(status.get("devices")), before)
    return _node_devices(
        raw,
        owner_uid=text(owner.get("uid")),
        labels_owned=_owned(managed, OBJECT_LABELS, "f:metadata", "f:labels"),
        labels_of_others=shared(
            key for it in managed if not _applied(it, OBJECT_LABELS) for key in _keys(it, "f:metadata", "f:labels")
        ),
        config=one_of_equals(config) if isinstance(config, dict) else None,
        out_of_service=tuple(_out_of_service(it, managed) for it in mappings(spec.get("unschedulable"))),
        configuration=_configuration(said, refused_section=intern(text(refused.get("section")))),
        devices=devices,
        fingerprints=fingerprints,
        platform=platform(status),
        probe_starting=any(it.get("state") == "Starting" for it in mappings(status.get("probes"))),
    )


def _out_of_service(entry: Raw, managed: Sequence[Raw]) -> OutOfServiceRecord:
    """With the field manager that has the entry, and when that one wrote last."""
    key = 'k:{"id":' + dumps(text(entry.get("id"))).decode() + "}"
    by: Raw = next((it for it in reversed(managed) if key in _inner(it, "f:spec", "f:unschedulable")), {})
    since = text(entry.get("since")) or text(by.get("time"))
    return _entry_out_of_service(entry, since=since, manager=text(by.get("manager")))


def _devices(
    found: Sequence[Sequence[Raw]], before: NodeDevicesRecord | None
) -> tuple[tuple[DeviceRecord, ...], array[int]]:
    """Return the records of these devices, each with its partitions, and their fingerprints: hashes with a key that is
    this process's own."""
    known = {} if before is None else dict(zip(before.fingerprints, before.devices, strict=False))
    healths: dict[HealthRecord, HealthRecord] = {}  # most of a node's are equal
    try:
        prints = array("q", [hash(dumps(it)) for it in found])
    except TypeError:  # an integer of more than 64 bits, which no schema of ours allows
        return tuple([_device_record(it, healths) for it in found]), array("q")
    records = [known.get(at) or _device_record(it, healths) for at, it in zip(prints, found, strict=True)]
    return tuple(records), prints


def _device_record(found: Sequence[Raw], healths: dict[HealthRecord, HealthRecord]) -> DeviceRecord:
    raw, partitions = found[0], found[1:]
    parts = tuple([_part_record(it, healths, profile(it) if it is not raw else None) for it in found])
    return _device(
        raw,
        health=parts[0].health,
        idle=tuple([idle for it in found for idle in _idle(it)]),
        parts=parts,
        excluded="excluded" in raw or (bool(partitions) and all("excluded" in it for it in partitions)),
        unlisted=sum(left for it in found if type(left := it.get("holdersTruncated")) is int),
        model=model(raw),
    )


def _part_record(raw: Raw, healths: dict[HealthRecord, HealthRecord], size: PartitionProfile | None) -> PartRecord:
    health = _health(mapping(raw.get("health")))
    return _part(raw, health=healths.setdefault(health, health), profile=size)


def _idle(raw: Raw) -> Iterator[IdleRecord]:
    for holder in mappings(raw.get("holders")):
        if since := text(holder.get("idleSince")):
            yield IdleRecord(_holder(holder), intern(text(holder.get("idle"))), since)


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
        conditions_owned=_owned(managed, NODE_CONDITION, "f:status", "f:conditions", _TYPE),
        xid_condition=conditions.get(XID_CRITICAL_ERROR),
        xid_condition_owned=bool(_owned(managed, XID_CONDITION, "f:status", "f:conditions", _TYPE)),
        taints=tuple(_taint(it) for it in taints if it.get("key") == TAINT),
        reports=reports(conditions, mapping(metadata.get("labels")), taints),
    )


def _extended(amounts: Raw) -> dict[str, int]:
    return {intern(name): whole_units(value) for name, value in amounts.items() if "/" in name}


def policy_record(raw: Raw) -> PolicyRecord:
    """Return the record of a DevicePolicy, read and judged."""
    spec_raw = mapping(raw.get("spec"))
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
        counts=dict(nodes) if isinstance(nodes, dict) else None,
    )


# --- who wrote what --------------------------------------------------------------------------------------------------
_TYPE = 'k:{"type":"'  # as managedFields begin the name of a condition: k:{"type":"Ready"}


def _applied(entry: Raw, manager: object) -> bool:
    """True when an entry of managedFields is what this manager applied."""
    return entry.get("operation") == "Apply" and entry.get("manager") == manager


def _owned(managed: Sequence[Raw], manager: str, outer: str, inner: str, begin: str = "f:") -> frozenset[str]:
    """Return the keys of a map, or the types of conditions, that this manager applied."""
    return shared(key for fields in managed if _applied(fields, manager) for key in _keys(fields, outer, inner, begin))


def _inner(entry: Raw, outer: str, inner: str) -> Raw:
    return mapping(mapping(mapping(entry.get("fieldsV1")).get(outer)).get(inner))


def _keys(entry: Raw, outer: str, inner: str, begin: str = "f:") -> set[str]:
    """Return the keys that begin so, without that, and without the end of a condition's."""
    found = (key for key in _inner(entry, outer, inner) if key.startswith(begin))
    return {intern(key[len(begin) :].removesuffix('"}')) for key in found}


_node_devices = reader(
    NodeDevicesRecord,
    given="owner_uid labels_owned labels_of_others config out_of_service configuration devices fingerprints platform "
    "probe_starting",
)
_entry_out_of_service = reader(OutOfServiceRecord, given="since manager")
_configuration = reader(ConfigurationRecord, given="refused_section")
_device = reader(DeviceRecord, given="health parts excluded unlisted model idle")
_part = reader(PartRecord, given="health profile")
_holder = reader(HolderRecord)
_health = reader(HealthRecord)
_taint = reader(TaintRecord)
_node = reader(
    NodeRecord,
    given="ready capacity allocatable owned labels_owned taints reports "
    "ready_condition condition conditions_owned xid_condition xid_condition_owned",
)
_policy = reader(PolicyRecord, given="selector spec sections dry_run refusal problem counts")


def read(kind: Kind, raw: Mapping[str, Any], before: Record | None = None) -> Record:
    """Return the record of a raw object. `before`: an earlier one of it, of which what has not changed is kept."""
    match kind:
        case Kind.NODE_DEVICES:
            return node_devices_record(raw, before if isinstance(before, NodeDevicesRecord) else None)
        case Kind.NODE:
            return node_record(raw)
        case Kind.POLICY:
            return policy_record(raw)


# --- pods ------------------------------------------------------------------------------------------------------------
FAILED = "Failed"  # status.phase
REASON = "UnexpectedAdmissionError"  # status.reason
MAX_REQUESTS = 16  # resources of one pod that are kept
_rejected = reader(RejectedPod, given="owner since requests")


def rejected_pod(raw: Raw) -> RejectedPod | None:
    """Return the record of a pod that its node's kubelet rejected: Failed, with this reason. None: it is no such pod,
    or is being deleted. Nothing starts it again, and its controller, if it has one, makes another one."""
    metadata, spec, status = (mapping(raw.get(key)) for key in ("metadata", "spec", "status"))
    rejected = status.get("phase") == FAILED and status.get("reason") == REASON
    if not rejected or metadata.get("deletionTimestamp") or not metadata.get("uid"):
        return None
    owner = _controller(metadata)
    return _rejected(
        raw,
        owner="" if owner is None else f"{owner.get('kind', '')} {owner.get('name', '')}",
        since=text(status.get("startTime")) or text(metadata.get("creationTimestamp")),
        requests=tuple(sorted(pod_requests(spec).items()))[:MAX_REQUESTS],
    )


def _controller(metadata: Raw) -> Raw | None:
    """Return the owner that makes another one. A mirror pod's is its Node: its kubelet would only write the same pod
    again."""
    owners = mappings(metadata.get("ownerReferences"))
    return next((owner for owner in owners if owner.get("controller") is True and owner.get("kind") != "Node"), None)


def pod_requests(spec: Raw) -> dict[str, int]:
    """By resource. The scheduler's rule: all containers with sidecars, or an init container with the sidecars before it
    if that is more."""
    running: dict[str, int] = {}  # sidecars, then with the others
    peak: dict[str, int] = {}
    for kind, container in raw_containers(spec):
        for name, count in extended_resources(container).items():
            at_once = running.get(name, 0) + count
            peak[name] = max(peak.get(name, 0), at_once)
            if kind != INIT:
                running[name] = at_once
    return peak
