"""Events DeviceFault and DeviceRecovered, DeviceFaultEviction and EvictionBlocked, DevicesUnavailable and
DeletingRejectedPod, DoubleAllocation, and EventsSuppressed for those that were too many; on DevicePolicies
ActionsStopped, ActionsResumed and ResumeRefused; on NodeDevices ActionRefused.

The name is a hash of (uid of the object, device, reason, since), so that writing the same thing again is a 409 and no
duplicate, whichever replica writes it and however often the operator was killed.
"""

from __future__ import annotations

import hashlib
from typing import Any

from msgspec import Struct
from nodedevices_api import API_VERSION
from nodedevices_api.conditions import (
    ACTIONS_STOPPED,
    DOUBLE_ALLOCATION,
    EVENT_BLOCKED,
    EVENT_EVICTION,
    EVENT_FAULT,
    EVENT_IDLE,
    EVENT_IN_SERVICE,
    EVENT_NOTICED,
    EVENT_OUT_OF_SERVICE,
    EVENT_RECOVERED,
    EVENT_REFUSED,
    EVENT_REJECTED,
    EVENT_RESUME_REFUSED,
    EVENT_RESUMED,
    EVENT_ROLLOUT,
    EVENT_UNAVAILABLE,
    EVENTS_SUPPRESSED,
)
from nodedevices_api.fields import CONDITION_MESSAGE_LIMIT
from nodedevices_common.text import clip

CLUSTER_SCOPED_NAMESPACE = "default"  # where Events about cluster-scoped objects go
REPORTER = "nodedevices-operator"


class About(Struct, frozen=True):
    """The object that an Event is about."""

    kind: str  # Pod, NodeDevices or DevicePolicy
    name: str
    uid: str
    namespace: str = ""

    @property
    def event_namespace(self) -> str:
        return self.namespace or CLUSTER_SCOPED_NAMESPACE


class EventIdentity(Struct, frozen=True):
    """What happened to which device; together with the object's uid it is the Event's name."""

    node: str
    device: str
    reason: str
    since: str


def fault(about: About, what: EventIdentity, message: str, now: str) -> dict[str, Any]:
    """The object holds, or has, a device that is no longer well."""
    return _event(about, what, (EVENT_FAULT, "Warning"), message, now)


def noticed(about: About, what: EventIdentity, message: str, now: str) -> dict[str, Any]:
    """Something came to a device that the object holds, and changed no state."""
    return _event(about, what, (EVENT_NOTICED, "Warning"), message, now)


def idle(about: About, what: EventIdentity, message: str, now: str) -> dict[str, Any]:
    """The object holds a device and does not use it."""
    return _event(about, what, (EVENT_IDLE, "Normal"), message, now)


def recovered(about: About, what: EventIdentity, message: str, now: str) -> dict[str, Any]:
    """Return the Event that the fault is over."""
    return _event(about, what, (EVENT_RECOVERED, "Normal"), message, now)


def service(about: About, what: EventIdentity, message: str, now: str, *, back: bool) -> dict[str, Any]:
    """People took a device out of service, or brought it back."""
    return _event(about, what, (EVENT_IN_SERVICE if back else EVENT_OUT_OF_SERVICE, "Normal"), message, now)


def double_allocation(about: About, what: EventIdentity, message: str, now: str) -> dict[str, Any]:
    """The node's kubelet has given a device to two pods."""
    return _event(about, what, (DOUBLE_ALLOCATION, "Warning"), message, now)


def evicting(about: About, what: EventIdentity, message: str, now: str) -> dict[str, Any]:
    """The pod is about to be evicted, because of what it holds."""
    return _event(about, what, (EVENT_EVICTION, "Warning"), message, now)


def blocked(about: About, what: EventIdentity, message: str, now: str) -> dict[str, Any]:
    """Return the Event that a PodDisruptionBudget does not allow it now."""
    return _event(about, what, (EVENT_BLOCKED, "Warning"), message, now)


def refused(about: About, what: EventIdentity, message: str, now: str) -> dict[str, Any]:
    """The budget does not allow what a policy would do about the node's fault."""
    return _event(about, what, (EVENT_REFUSED, "Warning"), message, now)


def unavailable(about: About, node: str, message: str, now: str) -> dict[str, Any]:
    """The pod, which its node has rejected, found no devices there. One for each pod."""
    return _event(about, EventIdentity(node, "", "", ""), (EVENT_UNAVAILABLE, "Warning"), message, now)


def deleting(about: About, what: EventIdentity, message: str, now: str) -> dict[str, Any]:
    """The pod, which its node has rejected, is about to be deleted."""
    return _event(about, what, (EVENT_REJECTED, "Normal"), message, now)


def stopped(about: About, message: str, since: str, now: str) -> dict[str, Any]:
    """The breaker is open since then: what the policy would do about faults is not done."""
    return _event(about, EventIdentity("", "", "", since), (ACTIONS_STOPPED, "Warning"), message, now)


def resumed(about: About, message: str, since: str, now: str) -> dict[str, Any]:
    """Return the Event that the breaker, open since then, is closed."""
    return _event(about, EventIdentity("", "", "", since), (EVENT_RESUMED, "Normal"), message, now)


def resume_refused(about: About, message: str, since: str, now: str) -> dict[str, Any]:
    """A person's annotation does not close the breaker that is open since then."""
    return _event(about, EventIdentity("", "", message, since), (EVENT_RESUME_REFUSED, "Warning"), message, now)


def worse_off(about: About, what: EventIdentity, message: str, now: str) -> dict[str, Any]:
    """A change of its configuration has cost the node devices; or of a policy, one of its nodes."""
    return _event(about, what, (EVENT_ROLLOUT, "Warning"), message, now)


def suppressed(about: About, count: int, since: str, limit: str, now: str) -> dict[str, Any]:
    """So many Events were not written since then; `limit` says what the limit is."""
    more = "1 more Event" if count == 1 else f"{count} more Events"
    message = (
        f"{more} about devices of {about.name} and the pods that hold them since {since}, not written: {limit}. "
        "The status of the NodeDevices and the conditions of the pods are complete."
    )
    return _event(about, EventIdentity(about.name, "", "", since), (EVENTS_SUPPRESSED, "Warning"), message, now)


def _event(about: About, what: EventIdentity, kind: tuple[str, str], message: str, now: str) -> dict[str, Any]:
    reason, severity = kind
    key = (reason, about.uid, what.device, what.reason, what.since)
    digest = hashlib.sha256("\0".join(key).encode()).hexdigest()[:20]
    involved = {
        "apiVersion": "v1" if about.kind == "Pod" else API_VERSION,
        "kind": about.kind,
        "name": about.name,
        "uid": about.uid,
    }
    if about.namespace:
        involved["namespace"] = about.namespace
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"nodedevices-{digest}", "namespace": about.event_namespace},
        "involvedObject": involved,
        "reason": reason,
        "type": severity,
        "message": clip(message, CONDITION_MESSAGE_LIMIT),
        "source": {"component": REPORTER, "host": what.node},
        "reportingComponent": REPORTER,
        "reportingInstance": REPORTER,
        "action": reason,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
