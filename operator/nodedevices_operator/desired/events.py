"""Events: EventKind has all there are.

The name is a hash of (uid of the object, device, reason, since), so that writing the same thing again is a 409 and no
duplicate, whichever replica writes it and however often the operator was killed.
"""

from __future__ import annotations

import hashlib
from enum import Enum
from typing import Any, Self

from msgspec import Struct
from nodedevices_api import API_VERSION
from nodedevices_api import conditions as names
from nodedevices_api.fields import CONDITION_MESSAGE_LIMIT
from nodedevices_common.text import clip

from nodedevices_operator.records.objects import HolderRecord, NodeDevicesRecord, PolicyRecord

CLUSTER_SCOPED_NAMESPACE = "default"  # where Events about cluster-scoped objects go
REPORTER = "nodedevices-operator"


class EventKind(Enum):
    """The reason of an Event, and how severe it is."""

    FAULT = names.EVENT_FAULT, "Warning"  # the object holds, or has, a device that is no longer well
    NOTICED = names.EVENT_NOTICED, "Warning"  # something came to a device that it holds, and changed no state
    IDLE = names.EVENT_IDLE, "Normal"  # it holds a device and does not use it
    RECOVERED = names.EVENT_RECOVERED, "Normal"  # the fault is over
    OUT_OF_SERVICE = names.EVENT_OUT_OF_SERVICE, "Normal"  # people took a device out of service
    IN_SERVICE = names.EVENT_IN_SERVICE, "Normal"  # and brought it back
    DOUBLE_ALLOCATION = names.DOUBLE_ALLOCATION, "Warning"  # the node's kubelet has given a device to two pods
    EVICTING = names.EVENT_EVICTION, "Warning"  # the pod is about to be evicted, because of what it holds
    BLOCKED = names.EVENT_BLOCKED, "Warning"  # a PodDisruptionBudget does not allow it now
    REFUSED = names.EVENT_REFUSED, "Warning"  # the budget does not allow what a policy would do about the node's fault
    UNAVAILABLE = names.EVENT_UNAVAILABLE, "Warning"  # the pod, which its node has rejected, found no devices there
    STOPPED = names.ACTIONS_STOPPED, "Warning"  # the breaker is open: what the policy would do about faults is not done
    RESUMED = names.EVENT_RESUMED, "Normal"  # it is closed
    RESUME_REFUSED = names.EVENT_RESUME_REFUSED, "Warning"  # a person's annotation does not close it
    WORSE_OFF = names.EVENT_ROLLOUT, "Warning"  # a change of configuration has cost a node devices
    SUPPRESSED = names.EVENTS_SUPPRESSED, "Warning"  # so many were not written


class About(Struct, frozen=True):
    """The object that an Event is about."""

    kind: str  # Pod, NodeDevices or DevicePolicy
    name: str
    uid: str
    namespace: str = ""

    @classmethod
    def record(cls, record: NodeDevicesRecord | PolicyRecord) -> Self:
        return cls("NodeDevices" if isinstance(record, NodeDevicesRecord) else "DevicePolicy", record.name, record.uid)

    @classmethod
    def holder(cls, holder: HolderRecord, uid: str) -> Self:
        """The pod of that uid, which the holder means."""
        return cls("Pod", holder.pod, uid, holder.namespace)


class EventIdentity(Struct, frozen=True):
    """What happened to which device; together with the object's uid it is the Event's name."""

    node: str = ""
    device: str = ""
    reason: str = ""
    since: str = ""


class Event(Struct, frozen=True):
    """Something to be said of an object, once."""

    kind: EventKind
    about: About
    what: EventIdentity
    message: str

    def body(self, now: str) -> dict[str, Any]:
        """Return the object as it is created at that time."""
        reason, severity = self.kind.value
        about, what = self.about, self.what
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
            "metadata": {"name": f"nodedevices-{digest}", "namespace": about.namespace or CLUSTER_SCOPED_NAMESPACE},
            "involvedObject": involved,
            "reason": reason,
            "type": severity,
            "message": clip(self.message, CONDITION_MESSAGE_LIMIT),
            "source": {"component": REPORTER, "host": what.node},
            "reportingComponent": REPORTER,
            "reportingInstance": REPORTER,
            "action": reason,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }


def suppressed(about: About, count: int, since: str, limit: str) -> Event:
    """So many Events were not written since then; `limit` says what the limit is."""
    more = "1 more Event" if count == 1 else f"{count} more Events"
    message = (
        f"{more} about devices of {about.name} and the pods that hold them since {since}, not written: {limit}. "
        "The status of the NodeDevices and the conditions of the pods are complete."
    )
    return Event(EventKind.SUPPRESSED, about, EventIdentity(about.name, since=since), message)
