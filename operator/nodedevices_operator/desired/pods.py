"""Pods that a fault concerns: what their condition says, and whether this NodeDevices may name them.

PodResources knows no pod uid, so a holder is a name. The operator reads the pod of that name and `match_holder` decides
whether it is the one that holds the device (the CRD contract's "whose pod"): a namesake elsewhere, or one created
later, is never marked, and neither is one that does not hold what the node is granted (`Scope`): an agent that lies
cannot have a pod marked or evicted by its CPU request. A pod's condition is that of its worst device.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from enum import Enum
from typing import Any, Self

from msgspec import Struct
from msgspec.structs import replace
from nodedevices_api import conditions as names
from nodedevices_api.bounds import WORD_PATTERN
from nodedevices_api.defaults import Resolved
from nodedevices_api.nodedevices import MAX_AFFECTED_PODS
from nodedevices_common import conditions
from nodedevices_common.conditions import ConditionRecord
from nodedevices_common.text import some
from nodedevices_common.times import seconds_between, zoned_time

from nodedevices_operator.desired.capacity import FINISHED
from nodedevices_operator.desired.events import Event, ObjectRef
from nodedevices_operator.records.names import is_pod
from nodedevices_operator.records.objects import (
    Affected,
    DeviceRecord,
    HealthRecord,
    HolderRecord,
    NodeDevicesRecord,
    NodeRecord,
    PartRecord,
)

# startTime has whole seconds and is written after Allocate, by the same clock.
START_TIME_SLACK = timedelta(seconds=30)
EVENT_LIFE = timedelta(minutes=50)  # the API server's default --event-ttl is an hour
MAX_HOLDERS_SHOWN = 10  # in an Event
RESTART = "RestartApp"  # recoveryAction
UNDECIDED = "Correlating"  # health.reason: for at most 10 s, while an XID's meaning depends on its neighbours
_SEVERITY = {"Unhealthy": 3, "Unknown": 2, "Degraded": 1, "Healthy": 0}
_STATUSES = ("True", "False", "Unknown")
WORD = re.compile(WORD_PATTERN)  # of a reason; others may write what they like into a pod's condition
NO_DEVICE = "unknown"  # in affectedPods, of a mark that was found on the pod and nowhere else
NOT_MONITORED = "this pod's devices are no longer monitored; the condition remains because of the pod's readinessGates"


class Holding(Struct, frozen=True):
    """One holder of one device or partition, with the state of what it holds."""

    holder: HolderRecord
    device: str  # id of the physical device, or of the partition where that is what is at fault
    device_name: str
    ids: frozenset[str]  # what the kubelet may call what it holds, replica suffixes aside
    health: HealthRecord
    device_health: HealthRecord | None = None  # where `health` is the holder's own

    @classmethod
    def for_part(cls, device: DeviceRecord, part: PartRecord | DeviceRecord, holder: HolderRecord) -> Self:
        """Return the holder of the device or of a part of it, as that is."""
        return cls(holder, part.id, device.name, _known_as(part, holder), part.health)

    @property
    def severity(self) -> int:
        return _severity(self.health)

    @property
    def ends_with_restart(self) -> bool:
        """Only what the container has done until now is lost: well again once it has restarted."""
        return self.device_health is not None and self.health.action == RESTART

    @property
    def unknown(self) -> bool:
        """True when the state of the device is not known."""
        return self.severity == _SEVERITY["Unknown"]

    @property
    def application(self) -> bool:
        """True for a workload's own error: it leads to an Event only."""
        return self.health.domain == "Application"

    @property
    def undecided(self) -> bool:
        """Seconds decide what it is: until then the pod's condition neither changes nor is taken back."""
        return self.health.reason == UNDECIDED


def _severity(health: HealthRecord) -> int:
    return _SEVERITY.get(health.state, _SEVERITY["Unknown"])


class Scope(Struct, frozen=True):
    """Node and resources about which its NodeDevices may speak."""

    node: str
    resources: frozenset[str]  # names by which pods there can hold devices


def scope(name: str, node: NodeRecord | None, sections: Resolved | None) -> Scope:
    """The names that the node's policies grant, and those that its kubelet shows or has shown (flags and files of the
    node may name resources, too, and so may another's plugin that is observed): extended resources all of them.

    Not what the operator itself owns there: no device is held by that. What the agent says is no grant.
    """
    shown = frozenset() if node is None else frozenset(node.capacity) - node.owned
    if sections is None:
        return Scope(name, shown)
    named = {rule.name for rule in sections.resources.devices}
    for shared in sections.sharing.resources:
        named |= {shared.name, f"{shared.name}.shared"} | ({shared.rename} if shared.rename else set())
    return Scope(name, shown | named)


class HolderMatch(Enum):
    YES = "yes"
    NO = "no"
    NOT_YET = "not yet"  # the pod does not say enough about itself so far


def holdings(record: NodeDevicesRecord, *, healthy_too: bool = False) -> list[Holding]:
    """Return the holders of what is not Healthy (or, with `healthy_too`, of anything), worst first.

    An agent's claim: a name that no pod can have is ignored.
    """
    found = [
        Holding(
            holder=holder,
            device=_held(device, part),
            device_name=device.name,
            ids=_known_as(part, holder),
            health=part.health if own is None else own,
            device_health=None if own is None else part.health,
        )
        for device in record.devices
        for part in device.parts
        for holder in part.holders
        for own in [own_health(holder, part.health)]
        if (healthy_too or (own or part.health).state != "Healthy") and is_pod(holder.namespace, holder.pod)
    ]
    found.sort(key=lambda it: (-it.severity, it.holder.namespace, it.holder.pod, it.device, it.holder.container))
    return found


def _known_as(part: DeviceRecord | PartRecord, holder: HolderRecord) -> frozenset[str]:
    """Return the names by which a kubelet may show what the container holds. A claim's device has its slice's name."""
    return frozenset({part.id, part.name, *holder.ids})


def own_faults(record: NodeDevicesRecord) -> Iterator[tuple[str, HealthRecord]]:
    """Yield what happened to holders alone and is worse than what holds for their device, with the device's id."""
    for device in record.devices:
        for part in device.parts:
            for holder in part.holders:
                if (own := own_health(holder, part.health)) is not None:
                    yield _held(device, part), own


def _held(device: DeviceRecord, part: PartRecord) -> str:
    """Return the id of what is at fault for a holder of the part, which may have no health but its device's."""
    return part.id if part.health != device.health else device.id


def own_health(holder: HolderRecord, health: HealthRecord) -> HealthRecord | None:
    """Return what happened to the holder alone, where it is worse than what holds for its device."""
    worse = holder.health is not None and _severity(holder.health) > _severity(health)
    return holder.health if worse else None


def without_own_health(holding: Holding) -> Holding:
    return replace(holding, health=holding.device_health or holding.health, device_health=None)


def restarted(pod: Mapping[str, Any], holding: Holding) -> bool:
    """True when the container does not run, or runs since after what happened to it. Its devices stay the same over
    such a start."""
    status, since = pod.get("status") or {}, zoned_time(holding.health.since)
    for container in (*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())):
        if container.get("name") == holding.holder.container:
            state = container.get("state") or {}
            started = zoned_time((state.get("running") or {}).get("startedAt"))
            stopped = bool(state) and "running" not in state
            return stopped or (started is not None and since is not None and started > since)
    return False


def match_holder(pod: Mapping[str, Any] | None, holding: Holding, scope: Scope) -> HolderMatch:
    """Return whether the pod of that name, if there is one, is the one that the holder entry means. `scope`: of the
    node that the entry is from."""
    if pod is None:
        return HolderMatch.NO
    spec, status = (pod.get(key) or {} for key in ("spec", "status"))
    holder = holding.holder
    granted = bool(holder.claim) or holder.resource in scope.resources
    if not (granted and on_node(pod, scope.node) and _requests(spec, status, holder)) or finished(pod):
        return HolderMatch.NO
    listed = _listed_ids(status, holder)
    if listed:
        held = {identity.split("::")[0] for identity in holding.ids} | holding.ids
        return HolderMatch.YES if any(_matches(identity, held) for identity in listed) else HolderMatch.NO
    start, since = zoned_time(status.get("startTime")), zoned_time(holder.since)
    if start is None or since is None:
        return HolderMatch.NOT_YET
    return HolderMatch.YES if start - since <= START_TIME_SLACK else HolderMatch.NO


def on_node(pod: Mapping[str, Any], node: str) -> bool:
    """True when the pod is bound to that node: a NodeDevices is about its own node's pods only, whatever it names."""
    return (pod.get("spec") or {}).get("nodeName") == node


def finished(pod: Mapping[str, Any]) -> bool:
    """True when the pod has ended: its condition is evidence from then on, and never written again."""
    return (pod.get("status") or {}).get("phase") in FINISHED


def leaving(pod: Mapping[str, Any]) -> bool:
    """True when the pod is being deleted: its condition is what a Job judges its end by, and is taken back no more."""
    return bool((pod.get("metadata") or {}).get("deletionTimestamp"))


def gated(pod: Mapping[str, Any]) -> bool:
    """True when the pod is ready only while our condition is True."""
    gates = (pod.get("spec") or {}).get("readinessGates") or ()
    return any(gate.get("conditionType") == names.POD_DEVICE_HEALTHY for gate in gates)


def _requests(spec: Mapping[str, Any], status: Mapping[str, Any], holder: HolderRecord) -> bool:
    """True when the container of that name requests the resource, or the pod for the claim, by which it was given.

    A claim made from a template, or for an extended resource, has a generated name, which the pod's status shows.
    """
    if holder.claim:
        claims = [*(spec.get("resourceClaims") or ()), *(status.get("resourceClaimStatuses") or ())]
        claims.append(status.get("extendedResourceClaimStatus") or {})
        return any(claim.get("resourceClaimName") == holder.claim for claim in claims)
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    asked = (container.get("resources") or {} for container in containers if container.get("name") == holder.container)
    return any(holder.resource in (resources.get(kind) or {}) for resources in asked for kind in ("limits", "requests"))


# A CDI name that no device has: of a claim (`nodedevices.io/claim=<uid>-<request>`), or an index.
_UNTOLD = re.compile(r"[^=]*(/claim=.*|=[0-9]+(:[0-9]+)?)", re.DOTALL)


def _listed_ids(status: Mapping[str, Any], holder: HolderRecord) -> list[str]:
    """Device ids in allocatedResourcesStatus of the holder's container and resource (KEP-4680; default since 1.36). Of
    a claim's device it is its first CDI name, where it has one, which may not say which device it is."""
    statuses = [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]
    return [
        identity
        for container in statuses
        if container.get("name") == holder.container
        for resource in container.get("allocatedResourcesStatus") or ()
        if (holder.resource and resource.get("name") == holder.resource)
        or (holder.claim and str(resource.get("name", "")).startswith("claim:"))
        for item in resource.get("resources") or ()
        for identity in [str(item.get("resourceID", ""))]
        if not (holder.claim and _UNTOLD.fullmatch(identity))
    ]


def _matches(identity: str, held: set[str]) -> bool:
    """A replica (`uuid::3`) is its device; a claim's (`driver/pool/name`, or the CDI name `kind=name`) is known by its
    last part, too."""
    return bool({identity, identity.split("::", 1)[0], identity.rsplit("/", 1)[-1], identity.rsplit("=", 1)[-1]} & held)


# --- what is written -------------------------------------------------------------------------------------------------
def pod_condition(
    holding: Holding, previous: ConditionRecord | None, now: str, *, fault_over: bool = False
) -> dict[str, Any]:
    """Return the condition for the state of what the pod holds; Degraded is True with reason Degraded.

    Unknown keeps the current status: a monitor that hangs must not empty a Service. A pod that shows no
    condition has no status to keep. `fault_over`: the current status is for a fault of another device that is over.
    """
    health, text = holding.health, fault_text(holding)
    if health.state == "Healthy":
        return condition("True", "Healthy", f"{holding.device_name} {holding.device} is healthy", previous, now)
    if health.state == "Degraded":
        return condition("True", "Degraded", text, previous, now)
    if not holding.unknown:
        return condition("False", health.reason or health.state, text, previous, now)
    text += f" Health unknown since {health.since}"
    status = "True" if fault_over else previous.status if previous is not None else ""
    if status not in _STATUSES:
        return condition("Unknown", health.reason or "Unknown", f"{text}.", previous, now)
    text += f"; status {status} is the last known."
    return condition(status, health.reason or "Unknown", text, previous, now)


def released_condition(pod: Mapping[str, Any], now: str) -> dict[str, Any] | None:
    """Return the condition that stays once we no longer write it: none, but True where the pod's readiness needs it."""
    if not gated(pod):
        return None
    return condition("True", names.NOT_MONITORED, NOT_MONITORED, own_condition(pod), now)


def condition(status: str, reason: str, message: str, previous: ConditionRecord | None, now: str) -> dict[str, Any]:
    """Return the condition DeviceHealthy after the `previous` one."""
    return conditions.build(names.POD_DEVICE_HEALTHY, status, reason, message, shown=previous, now=now)


def fault_text(holding: Holding) -> str:
    """Return what a person reads on the pod."""
    return describe(holding.device_name, holding.device, holding.health)


def event(kind: str, holding: Holding, uid: str, node: str, text: str) -> Event:
    """Return the Event about the pod of that uid, which the holder means, and what is at fault."""
    about, health = ObjectRef.holder(holding.holder, uid), holding.health
    return Event(kind, about, text, node, holding.device, health.reason, health.since)


def describe(name: str, identity: str, health: HealthRecord) -> str:
    """`gpu-3 GPU-8d0a...: Xid79: GPU has fallen off the bus. Recovery: RebootNode.`, for people."""
    text = f"{name} {identity}: {health.reason or health.state}"
    if health.message:
        text += f": {health.message.rstrip('.')}"
    return f"{text}. Recovery: {health.action}." if health.action not in {"", "None"} else f"{text}."


def device_text(device: DeviceRecord) -> str:
    """Return the same for the NodeDevices' own Event, with the pods that hold the device."""
    held = sorted({f"{it.namespace}/{it.pod}" for part in device.parts for it in part.holders})
    text = describe(device.name, device.id, device.health)
    if not held:
        return f"{text} Not held by any pod."
    text = f"{text} Held by {some(held, MAX_HOLDERS_SHOWN)}."
    if device.unlisted:
        text += f" {device.unlisted} further holders are not listed here, so their pods are not marked."
    return text


def own_condition(pod: Mapping[str, Any], type_: str = names.POD_DEVICE_HEALTHY) -> ConditionRecord | None:
    """Return a condition of ours as the pod shows it."""
    shown = (pod.get("status") or {}).get("conditions") or ()
    return next((conditions.read(it) for it in shown if it.get("type") == type_), None)


def may_have_expired(since: object, now: str, *, after: float = 0) -> bool:
    """True when an Event of that time, or of so many seconds `after` it, may have expired."""
    age = seconds_between(since, now)
    return age is not None and age > EVENT_LIFE.total_seconds() + after


def affected(holding: Holding, uid: str) -> Affected:
    """Return the entry that is written before the pod is."""
    holder = holding.holder
    return Affected(holder.namespace, holder.pod, uid, holding.device, holding.health.reason, holding.health.since)


def fault_over(record: NodeDevicesRecord, entry: Affected) -> bool:
    """True when what the entry names is no longer Unhealthy, as far as is known, or no longer there."""
    found = (part.health for device in record.devices for part in device.parts if part.id == entry.device)
    return entry.device != NO_DEVICE and all(_severity(health) <= _SEVERITY["Degraded"] for health in found)


def left_behind(pods: Iterable[Mapping[str, Any]]) -> list[Affected]:
    """Return entries for the pods of one node that carry our condition because of a fault of a device that is no longer
    known."""
    found = []
    for pod in pods:
        metadata, shown = pod["metadata"], own_condition(pod)
        if shown is not None and not finished(pod) and shown.reason not in {"Healthy", names.NOT_MONITORED}:
            namespace, name, uid = (str(metadata.get(key, "")) for key in ("namespace", "name", "uid"))
            reason = shown.reason if WORD.fullmatch(shown.reason) else ""
            since = shown.since or str(metadata.get("creationTimestamp", ""))
            found.append(Affected(namespace, name, uid, NO_DEVICE, reason, since))
    return found


def bounded(entries: Iterable[Affected]) -> tuple[Affected, ...]:
    """Return at most as many entries as the contract allows, the first of each uid, in order of namespace and name."""
    by_uid: dict[str, Affected] = {}
    for entry in entries:
        if len(by_uid) < MAX_AFFECTED_PODS:
            by_uid.setdefault(entry.uid, entry)
    return tuple(sorted(by_uid.values(), key=lambda it: (it.namespace, it.name, it.uid)))
