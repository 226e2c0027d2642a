"""Events: nodedevices_api.conditions has the reasons of all there are.

The name is a hash of (uid of the object, device, reason, since), so that writing the same thing again is a 409 and no
duplicate, whichever replica writes it and however often the operator was killed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Self

from msgspec import Struct
from nodedevices_api import API_VERSION, conditions as names
from nodedevices_common.conditions import MESSAGE_LIMIT
from nodedevices_common.text import clip

from nodedevices_operator.records.objects import HolderRecord, NodeDevicesRecord, PolicyRecord

CLUSTER_SCOPED_NAMESPACE = "default"  # where Events about cluster-scoped objects go
REPORTER = "nodedevices-operator"
NORMAL = frozenset(
    {
        names.EVENT_IDLE,
        names.EVENT_RECOVERED,
        names.EVENT_OUT_OF_SERVICE,
        names.EVENT_IN_SERVICE,
        names.EVENT_RESUMED,
    }
)  # all others are warnings


class ObjectRef(Struct, frozen=True):
    """A very object, which an Event is about, or that is written to."""

    kind: str  # Pod, NodeDevices or DevicePolicy
    name: str
    uid: str
    namespace: str = ""

    @classmethod
    def record(cls, record: NodeDevicesRecord | PolicyRecord) -> Self:
        return cls("NodeDevices" if isinstance(record, NodeDevicesRecord) else "DevicePolicy", record.name, record.uid)

    @classmethod
    def pod(cls, raw: Mapping[str, Any]) -> Self:
        metadata = raw["metadata"]
        return cls("Pod", str(metadata["name"]), str(metadata["uid"]), str(metadata["namespace"]))

    @classmethod
    def holder(cls, holder: HolderRecord, uid: str) -> Self:
        """The pod of that uid, which the holder means."""
        return cls("Pod", holder.pod, uid, holder.namespace)


class Event(Struct, frozen=True):
    """Something to be said of an object, once. What happened to which device is, with the object's uid, its name."""

    reason: str
    about: ObjectRef
    message: str
    node: str = ""
    device: str = ""
    cause: str = ""  # what happened to it
    since: str = ""

    def body(self, now: str) -> dict[str, Any]:
        """Return the object as it is created at that time."""
        about = self.about
        key = (self.reason, about.uid, self.device, self.cause, self.since)
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
            "reason": self.reason,
            "type": "Normal" if self.reason in NORMAL else "Warning",
            "message": clip(self.message, MESSAGE_LIMIT),
            "source": {"component": REPORTER, "host": self.node},
            "reportingComponent": REPORTER,
            "reportingInstance": REPORTER,
            "action": self.reason,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }


def suppressed(about: ObjectRef, count: int, since: str, limit: str) -> Event:
    """So many Events were not written since then; `limit` says what the limit is."""
    more = "1 more Event" if count == 1 else f"{count} more Events"
    message = (
        f"{more} about devices of {about.name} and the pods that hold them since {since}, not written: {limit}. "
        "The status of the NodeDevices and the conditions of the pods are complete."
    )
    return Event(names.EVENTS_SUPPRESSED, about, message, about.name, since=since)
