"""Consequences of a fault by policy: the taint of its Node, and the eviction of the pods that hold the device.

A fault is a device, or a partition, that is Unhealthy, or what happened to one of its holders alone, which taints no
Node. One that is not decided yet (Correlating) or that is a workload's own leads to nothing. Of the rules the first
that matches decides; what it does not set is as in general. A rule may be about some devices only; a partition, and
what happened to a holder alone, goes by its device.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

import orjson
from msgspec import Struct
from nodedevices_api.errors import parse
from nodedevices_api.sections import EvictMode, Faults
from nodedevices_api.withheld import SERVED_BY_ANOTHER
from nodedevices_common.errors import InputError
from nodedevices_common.times import zoned_time

from nodedevices_operator.desired import fleet, pods
from nodedevices_operator.desired.fleet import Action
from nodedevices_operator.desired.pods import Holding
from nodedevices_operator.records.names import TAINT
from nodedevices_operator.records.objects import (
    DeviceRecord,
    HealthRecord,
    HolderRecord,
    NodeDevicesRecord,
    TaintRecord,
)
from nodedevices_operator.records.shared import shared

ON_OFFER = "another plugin still offers the device (serving.mode Observe), and no taint keeps new pods from it"
KEEP = "nodedevices.io/evict"  # annotation of a pod; "false": it is never evicted by us
MIRROR = "kubernetes.io/config.mirror"  # annotation of a static pod's mirror
EFFECTS = ("None", "NoSchedule", "NoExecute")  # the stronger the later
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
HeldFault = tuple[str, str, str, str]  # a pod's namespace and name, the device, since when it is at fault
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


class Tainting(Struct, frozen=True):
    """The taint that a Node shall have, and the fault that it is for."""

    taint: TaintRecord
    reason: str = ""
    since: str = ""

    def action(self, node: str, shown: Sequence[TaintRecord]) -> Action | None:
        """Return what it takes more from pods than the Node shows already; None: nothing."""
        if _rank(self.taint.effect) <= max((_rank(other.effect) for other in shown), default=0):
            return None
        return Action(self.since, node, fleet.TAINT, self.taint.effect, self.reason)


class Due(Struct, frozen=True):
    """A pod that holds what is at fault, and is to be evicted."""

    holding: Holding
    grace: timedelta


def read_faults(section: object) -> Faults | None:
    """Return a section `faults` in wire form; None: it cannot be read."""
    return _parsed(orjson.dumps(section))


@lru_cache(maxsize=1024)  # a fleet has few different ones, and each decision about it reads them all
def _parsed(section: bytes) -> Faults | None:
    try:
        return parse(Faults, orjson.loads(section), "faults")
    except InputError:
        return None


def consequences(section: Faults, health: HealthRecord, device: DeviceRecord) -> tuple[str, EvictMode]:
    """Return what the policy says of this fault of the device, or of a partition of it: the taint's effect, and when
    pods are evicted."""
    for rule in section.rules:
        if (
            (rule.reasons is None or not {health.reason, *health.reasons}.isdisjoint(rule.reasons))
            and (rule.recovery_actions is None or (health.action or "None") in rule.recovery_actions)
            and (rule.match is None or device.selected_by(rule.match))
        ):
            return rule.taint_effect or section.taint_effect, rule.evict_mode or section.evict_mode
    return section.taint_effect, section.evict_mode


def taints(section: Faults) -> bool:
    """True when the policy taints Nodes for any fault."""
    return not {section.taint_effect, *(rule.taint_effect for rule in section.rules)} <= {None, "None"}


def evicts(section: Faults) -> bool:
    """True when the policy evicts pods for any fault."""
    return not {section.evict_mode, *(rule.evict_mode for rule in section.rules)} <= {None, "Never"}


def faulty(record: NodeDevicesRecord) -> dict[str, str]:
    """Return what is at fault by id, and since when; equal where nothing has changed. What happened to a holder alone
    is a fault of its device as long as it holds it, since the newest such time."""
    found = {part.id: part.health.since for device in record.devices for part in device.parts if _acted_on(part.health)}
    for device, health in pods.own_faults(record):
        if _acted_on(health):
            found[device] = max(found.get(device, ""), health.since, key=lambda since: zoned_time(since) or LONG_AGO)
    return dict(sorted(found.items()))


def unclear(record: NodeDevicesRecord) -> frozenset[str]:
    """Ids of devices and partitions whose state is not known now."""
    return shared(
        part.id
        for device in record.devices
        for part in device.parts
        if part.health.state == "Unknown" or part.health.reason == pods.UNDECIDED
    )


def _acted_on(health: HealthRecord) -> bool:
    return health.state == "Unhealthy" and health.domain != "Application" and health.reason != pods.UNDECIDED


# --- the taint -------------------------------------------------------------------------------------------------------
def tainting(
    record: NodeDevicesRecord, section: Faults, shown: Sequence[TaintRecord], acted_on: Collection[str] | None = None
) -> Tainting | None:
    """The taint that the Node shall have. `shown` are those of our key that it has; `acted_on`: ids of what they are
    for, None: not known.

    The strongest effect of all faults, for the oldest of these. The one that is there stays while a fault requires
    it, and while the state of a device that it is for is not known.
    """
    if not taints(section):
        return None
    faults = [(device, part.health) for device in record.devices for part in device.parts if _acted_on(part.health)]
    faults.sort(key=lambda it: (it[1].since, it[1].reason))  # the oldest first
    required = [(EFFECTS.index(consequences(section, health, device)[0]), health) for device, health in faults]
    most = max((rank for rank, _ in required), default=0)
    held = max(shown, key=lambda taint: _rank(taint.effect), default=None)
    unsure = unclear(record) if acted_on is None else unclear(record).intersection(acted_on)
    if held is not None and unsure and _rank(held.effect) > most:
        return Tainting(held)
    strongest = [health for rank, health in required if rank == most] if most else []
    if not strongest:
        return None
    health = next((it for it in strongest if held is not None and held.value == _value(it.reason)), strongest[0])
    return Tainting(TaintRecord(EFFECTS[most], _value(health.reason)), health.reason, health.since)


def _rank(effect: str) -> int:
    return EFFECTS.index(effect) if effect in EFFECTS else 0


def _value(reason: str) -> str:
    return reason if _LABEL_VALUE.fullmatch(reason) else ""


def taint_patch(node: Mapping[str, Any], wanted: TaintRecord | None) -> list[dict[str, Any]]:
    """JSON patch operations that leave exactly the wanted taint of our key on a Node, and every other taint as it is;
    empty: it is so. They hold for this resourceVersion only."""
    listed = (node.get("spec") or {}).get("taints") or []
    ours = [place for place, taint in enumerate(listed) if taint.get("key") == TAINT]
    shown = [TaintRecord(listed[place].get("effect") or "", listed[place].get("value") or "") for place in ours]
    if shown == ([] if wanted is None else [wanted]):
        return []
    metadata = node["metadata"]
    operations: list[dict[str, Any]] = [
        {"op": "test", "path": f"/metadata/{name}", "value": metadata[name]} for name in ("uid", "resourceVersion")
    ]
    operations += [{"op": "remove", "path": f"/spec/taints/{place}"} for place in reversed(ours)]
    if wanted is not None:
        body = {"key": TAINT, "effect": wanted.effect} | ({"value": wanted.value} if wanted.value else {})
        place, value = ("/spec/taints/-", body) if listed else ("/spec/taints", [body])
        operations.append({"op": "add", "path": place, "value": value})
    return operations


# --- evictions -------------------------------------------------------------------------------------------------------
def evictions(
    record: NodeDevicesRecord, section: Faults, restarted: Container[tuple[HolderRecord, str]] = frozenset()
) -> list[Due]:
    """Return the pods to be evicted, each once and by what is due first, as far as NodeDevices and policy say; whether
    the pod is the holder, and may be evicted, only the pod itself can say (`kept`). `restarted` are holders, each with
    its device, whose own fault is over with the start of their container."""
    if not evicts(section):
        return []
    found: dict[tuple[str, str], tuple[datetime, Due]] = {}
    devices = {part.id: device for device in record.devices for part in device.parts}
    for holding in pods.holdings(record):
        if (holding.holder, holding.device) in restarted:
            holding = pods.without_own_health(holding)  # noqa: PLW2901
        holder, mode = holding.holder, consequences(section, holding.health, devices[holding.device])[1]
        # Every pod has cpu: that it holds a device, only a device's resource says.
        of_device = holder.claim or "/" in holder.resource
        excluded = any(fnmatchcase(holder.namespace, pattern) for pattern in section.evict_exclude_namespaces)
        if mode == "Never" or excluded or not (of_device and _acted_on(holding.health)):
            continue
        due = Due(holding, timedelta(seconds=0 if mode == "Immediate" else section.evict_grace_seconds))
        at = (zoned_time(holding.health.since) or LONG_AGO) + due.grace
        key = (holder.namespace, holder.pod)
        if key not in found or at < found[key][0]:
            found[key] = (at, due)
    return [found[key][1] for key in sorted(found)]


def on_offer(record: NodeDevicesRecord, holding: Holding, taints: Sequence[TaintRecord]) -> bool:
    """True when the next pod could get the device again: another plugin serves the kubelet and has not withdrawn it, as
    far as is known, and no taint of ours keeps pods from the Node. What happened to a holder alone is not its
    device's."""
    if not record.observes or taints or holding.device_health is not None:
        return False
    kept_back = (it for resource in record.resources for it in resource.withheld if it.reason == SERVED_BY_ANOTHER)
    return holding.ids.isdisjoint(name for it in kept_back for name in it.devices)


def given_after(holding: Holding, pod: Mapping[str, Any]) -> datetime | None:
    """Return when the pod had the device, where that was after its fault was known; None: it was not. All times are by
    the node's clock, and the earlier of the two is nearer to the Allocate."""
    times = (holding.holder.since, (pod.get("status") or {}).get("startTime"))
    given = min(filter(None, map(zoned_time, times)), default=None)
    since = zoned_time(holding.health.since)
    return given if given is not None and since is not None and given > since else None


def held_faults(record: NodeDevicesRecord) -> set[HeldFault]:
    """The faults of what pods hold that may lead to an eviction, whatever the policy says."""
    return {held_fault(holding) for holding in pods.holdings(record) if _acted_on(holding.health)}


def held_fault(holding: Holding) -> HeldFault:
    holder = holding.holder
    return holder.namespace, holder.pod, holding.device, holding.health.since


def grace_begins(due: Due, pod: Mapping[str, Any], noticed: datetime | None, now: datetime) -> datetime:
    """Return when the pod's condition has said of this very fault that the device is at fault, by the operator's clock.

    The condition may have been False before, for another one: so not before this one was `noticed`. None: it was there
    when the operator began; then not before the fault, by the node's clock.
    """
    shown = pods.own_condition(pod)
    marked = zoned_time(shown.since) if shown is not None and shown.status == "False" else None
    return max(marked or LONG_AGO, noticed or min(zoned_time(due.holding.health.since) or LONG_AGO, now))


def kept(pod: Mapping[str, Any]) -> str:
    """Return why the pod is not evicted; empty: it may be."""
    metadata = pod.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    if str(annotations.get(KEEP, "")).lower() == "false":
        return f"its annotation {KEEP} says so"
    if MIRROR in annotations:
        return "it is a static pod"
    if any(
        owner.get("kind") == "DaemonSet" and owner.get("controller") for owner in metadata.get("ownerReferences") or ()
    ):
        return "it belongs to a DaemonSet"
    return ""
