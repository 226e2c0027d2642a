"""What the operator reads of pods: the requests of any, and of one that its node's kubelet rejected when it assigned
devices what is remembered.

The kubelet reports such a pod as Failed with reason UnexpectedAdmissionError. It is terminal: nothing starts it again,
and its controller, if it has one, makes another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from nodedevices_common.pod_requests import INIT, extended_resources, raw_containers
from nodedevices_common.raw import At, Raw, mapping, mappings, reader, text

FAILED = "Failed"  # status.phase
REASON = "UnexpectedAdmissionError"  # status.reason
MAX_REQUESTS = 16  # resources of one pod that are kept


@dataclass(frozen=True, slots=True)
class RejectedPod:
    namespace: Annotated[str, At("metadata", "namespace")]
    name: Annotated[str, At("metadata", "name")]
    uid: Annotated[str, At("metadata", "uid")]
    node: Annotated[str, At("spec", "nodeName")]
    owner: str  # its controller, for people: ReplicaSet web-5d4f; "": no controller makes another one
    since: str  # when the kubelet took it up, RFC 3339
    requests: tuple[tuple[str, int], ...] = ()  # extended resources, and how many of each


_read = reader(RejectedPod, given="owner since requests")


def rejected_pod(raw: Raw) -> RejectedPod | None:
    """None: it is not such a pod, or it is being deleted."""
    metadata, spec, status = (mapping(raw.get(key)) for key in ("metadata", "spec", "status"))
    if status.get("phase") != FAILED or status.get("reason") != REASON:
        return None
    if metadata.get("deletionTimestamp") or not metadata.get("uid"):
        return None
    owner = _controller(metadata)
    return _read(
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
