"""A pod that its node's kubelet rejected when it assigned devices, as far as the operator remembers it.

The kubelet reports such a pod as Failed with reason UnexpectedAdmissionError. It is terminal: nothing starts it again,
and its controller, if it has one, makes another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nodedevices_common.raw import Raw
from nodedevices_common.text import clip

from nodedevices_operator.records.requests import pod_requests

FAILED = "Failed"  # status.phase
REASON = "UnexpectedAdmissionError"  # status.reason
MAX_REQUESTS = 16  # resources of one pod that are kept
MAX_MESSAGE = 4096  # characters that are kept; the agent's own text is shorter


@dataclass(frozen=True, slots=True)
class RejectedPod:
    namespace: str
    name: str
    uid: str
    resource_version: str
    node: str
    owner: str  # its controller, for people: ReplicaSet web-5d4f; "": nobody makes another one
    message: str  # the kubelet's
    since: str  # when the kubelet took it up, RFC 3339
    requests: tuple[tuple[str, int], ...] = ()  # extended resources, and how many of each

    @property
    def shown(self) -> str:
        return f"{self.namespace}/{self.name}"


def rejected_pod(raw: Raw) -> RejectedPod | None:
    """None: it is not such a pod, or it is being deleted."""
    metadata, spec, status = (raw.get(key) or {} for key in ("metadata", "spec", "status"))
    owner = _controller(metadata)
    if status.get("phase") != FAILED or status.get("reason") != REASON:
        return None
    if metadata.get("deletionTimestamp") or not metadata.get("uid"):
        return None
    return RejectedPod(
        namespace=str(metadata.get("namespace", "")),
        name=str(metadata.get("name", "")),
        uid=str(metadata.get("uid", "")),
        resource_version=str(metadata.get("resourceVersion", "")),
        node=str(spec.get("nodeName", "")),
        owner="" if owner is None else f"{owner.get('kind', '')} {owner.get('name', '')}",
        message=clip(str(status.get("message", "")), MAX_MESSAGE),
        since=str(status.get("startTime") or metadata.get("creationTimestamp", "")),
        requests=tuple(sorted(pod_requests(spec).items()))[:MAX_REQUESTS],
    )


def _controller(metadata: Raw) -> Raw | None:
    """Who makes another one. A mirror pod's is its Node: its kubelet would only write the same pod again."""
    owners: Any = metadata.get("ownerReferences") or ()
    return next((each for each in owners if each.get("controller") is True and each.get("kind") != "Node"), None)
