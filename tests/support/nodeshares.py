"""NodeDevices, pods and requests as the scheduler extender sees them, in a few words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nodedevices_operator.extender.cache import SharesCache
from nodedevices_operator.extender.table import BoundPod
from support.entries import listed

MEMORY = "nodedevices.io/gpu-memory"
EPOCH = "2026-11-22T12:00:00Z"


def holder(
    pod: str, shares: int, *, container: str = "main", resource: str = MEMORY, cores: int | None = None
) -> dict[str, Any]:
    """`pod` is in the namespace default."""
    power = {} if cores is None else {"cores": cores}
    return power | {
        "namespace": "default",
        "pod": pod,
        "container": container,
        "resource": resource,
        "shares": shares,
        "since": EPOCH,
    }


def gpu(
    index: int,
    total: int,
    *holders: Mapping[str, Any],
    free: int | None = None,
    held: int | None = None,
    state: str = "Healthy",
    resource: str = MEMORY,
    truncated: int = 0,
    cores_held: int | None = None,
) -> dict[str, Any]:
    """A device of a NodeDevices; what is free and held comes from the holders, unless it is given."""
    held = sum(each["shares"] for each in holders) if held is None else held
    free = (total - held if state in ("Healthy", "Degraded") else 0) if free is None else free
    shares: dict[str, Any] = {"resource": resource, "total": total, "held": held, "free": free}
    if cores_held is not None:
        shares["coresHeld"] = cores_held
    made = {
        "id": f"GPU-{index}",
        "name": f"gpu-{index}",
        "type": "gpu",
        "index": index,
        "health": {"state": state, "since": EPOCH},
        "shares": shares,
        "holders": list(holders),
    }
    return made | ({"holdersTruncated": truncated} if truncated else {})


COUNTS = {"capacity": 0, "healthy": 0, "allocated": 0, "sharing": "memory", "managedBy": "plugin"}  # the CRD has them


def node_devices(
    name: str,
    *devices: Mapping[str, Any],
    heartbeat: str = EPOCH,
    stale: bool = False,
    version: str = "1",
    packing: str = "binpack",
) -> dict[str, Any]:
    """Each resource of which devices have shares is shared by memory."""
    entries = listed(devices)
    named = dict.fromkeys(entry["shares"]["resource"] for entry in entries if "shares" in entry)
    conditions = [{"type": "Stale", "status": "True", "reason": "AgentLost"}] if stale else []
    return {
        "apiVersion": "nodedevices.io/v1alpha1",
        "kind": "NodeDevices",
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": version},
        "spec": {},
        "status": {
            "agent": {"version": "1", "bootID": "b", "startTime": EPOCH, "heartbeatTime": heartbeat},
            "devices": entries,
            "resources": [{"name": name, "unit": "1Gi", "packing": packing, **COUNTS} for name in named],
            "conditions": conditions,
        },
    }


def container(name: str, shares: int | str, *, always: bool = False, resource: str = MEMORY) -> dict[str, Any]:
    made: dict[str, Any] = {"name": name, "image": "x"}
    if shares:
        made["resources"] = {"limits": {resource: str(shares)}, "requests": {resource: str(shares)}}
    return made | ({"restartPolicy": "Always"} if always else {})


def pod(
    name: str,
    *containers: Mapping[str, Any] | int,
    init: Sequence[Mapping[str, Any]] = (),
    node: str = "",
    scheduled: str = EPOCH,
    created: str = EPOCH,
    phase: str = "Pending",
    resource: str = MEMORY,
    cores: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A number is one container `main` that requests so many."""
    made = [container("main", each, resource=resource) if isinstance(each, int) else each for each in containers]
    spec: dict[str, Any] = {"containers": made}
    if init:
        spec["initContainers"] = list(init)
    status: dict[str, Any] = {"phase": phase}
    if node:
        spec["nodeName"] = node
        status["conditions"] = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": scheduled}]
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": "default",
        "uid": f"uid-{name}",
        "creationTimestamp": created,
    }
    if cores:  # by container
        metadata["annotations"] = {f"nodedevices.io/gpu-cores.{name}": said for name, said in cores.items()}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def cache(*objects: Mapping[str, Any], now: float = 0.0) -> SharesCache:
    """One that has listed these NodeDevices and pods."""
    made = SharesCache()
    for each in objects:
        if each["kind"] == "NodeDevices":
            made.observe_node(each, now)
    listed = [each for each in objects if each["kind"] == "Pod"]
    bound: list[BoundPod] = []
    for each in listed:
        found = made.read_pod(each, made.resources, arrival=0)
        if found is not None:
            bound.append(found)
    made.replace_pods(bound, made.resources)
    return made
