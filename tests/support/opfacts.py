"""Raw objects, as the API server would send them, and the operator's records of them; for unit tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from nodedevices_api.sections import Labels
from nodedevices_operator.desired.fleet import Action, ActionAnswer, Decision, Fleet
from nodedevices_operator.desired.labels import plan_labels
from nodedevices_operator.desired.vendors.registry import VENDORS
from nodedevices_operator.records.kinds import node_devices_record, node_record, policy_record
from nodedevices_operator.records.objects import NodeDevicesRecord, NodeRecord, PolicyRecord
from support.entries import listed

GPU = "nvidia.com/gpu"
MEMORY = "nodedevices.io/gpu-memory-mib"
NOW = "2026-11-21T12:00:00Z"
SINCE = "2026-11-21T11:59:00Z"


def health(state: str = "Healthy", reason: str = "", **more: Any) -> dict[str, Any]:
    return {"state": state, "reason": reason, "message": "", "since": SINCE, **more}


def holder(pod: str = "trainer", **more: Any) -> dict[str, Any]:
    return {"namespace": "ml", "pod": pod, "container": "main", "resource": GPU, "since": SINCE, **more}


def device(index: int, state: str = "Healthy", reason: str = "", **more: Any) -> dict[str, Any]:
    """A device; `partitions` become entries behind it (entries.listed)."""
    return {
        "id": f"GPU-{index}",
        "name": f"gpu-{index}",
        "type": "gpu",
        "index": index,
        "capacity": {"memory": "80Gi"},
        "health": health(state, reason),
        **more,
    }


def resource(capacity: int, healthy: int, name: str = GPU, by: str = "plugin", sharing: str = "none") -> dict[str, Any]:
    return {"name": name, "capacity": capacity, "healthy": healthy, "allocated": 0, "sharing": sharing, "managedBy": by}


def node_devices(
    *devices: Mapping[str, Any],
    resources: list[dict[str, Any]] | None = None,
    conditions: Mapping[str, tuple[str, str]] | None = None,
    spec: Mapping[str, Any] | None = None,
    version: int = 1,
    heartbeat: str = SINCE,
    **status: Any,
) -> dict[str, Any]:
    given = {"HoldersKnown": ("True", "Synced"), "DevicesHealthy": ("True", "AllHealthy")} | dict(conditions or {})
    return {
        "metadata": {"name": "n1", "uid": "nd-uid", "generation": 1, "resourceVersion": str(version)},
        "spec": dict(spec or {}),
        "status": {
            "agent": {"heartbeatTime": heartbeat},
            "devices": listed(devices),
            "resources": resources if resources is not None else [resource(len(devices), len(devices))],
            "conditions": [
                {"type": kind, "status": it[0], "reason": it[1], "message": "", "lastTransitionTime": SINCE}
                for kind, it in given.items()
            ],
            **status,
        },
    }


def record(*devices: Mapping[str, Any], **more: Any) -> NodeDevicesRecord:
    return node_devices_record(node_devices(*devices, **more))


def raw_node(
    capacity: Mapping[str, Any] | None = None,
    *,
    owned: tuple[str, ...] = (),
    ready: str = "True",
    allocatable: Mapping[str, Any] | None = None,
    labels: Mapping[str, str] | None = None,
    spec: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    fields: dict[str, Any] = {"f:status": {"f:capacity": {f"f:{name}": {} for name in owned}}}
    managed = [{"manager": "nodedevices-operator-capacity", "operation": "Apply", "fieldsV1": fields}] if owned else []
    return {
        "metadata": {
            "name": "n1",
            "uid": "node-uid",
            "labels": dict(labels or {}),
            "managedFields": managed,
            "resourceVersion": "1",
        },
        "spec": dict(spec or {}),
        "status": {
            "capacity": {name: str(value) for name, value in (capacity or {}).items()},
            "allocatable": {name: str(value) for name, value in (allocatable or capacity or {}).items()},
            "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": SINCE}],
        },
    }


def node(capacity: Mapping[str, Any] | None = None, **more: Any) -> NodeRecord:
    return node_record(raw_node(capacity, **more))


def feature_labels(record: NodeDevicesRecord) -> dict[str, str]:
    """What a Node that has no labels yet is to show of the devices, without timestamps."""
    values = plan_labels(Labels(feature_discovery=True), record, node(), now=0).values
    return {
        key: value
        for key, value in values.items()
        if key not in {vendor.timestamp for vendor in VENDORS if vendor.timestamp}
    }


def raw_pod(name: str = "trainer", **status: Any) -> dict[str, Any]:
    """A running pod of namespace ml on n1 that holds a GPU."""
    container = {"name": "main", "resources": {"limits": {GPU: "1"}, "requests": {GPU: "1"}}}
    return {
        "metadata": {"name": name, "namespace": "ml", "uid": f"pod-{name}"},
        "spec": {"nodeName": "n1", "containers": [container]},
        "status": {"phase": "Running", "startTime": SINCE, **status},
    }


def rejected_pod(name: str = "web-1", **metadata: Any) -> dict[str, Any]:
    """A pod of a ReplicaSet in namespace ml that the kubelet of n1 rejected."""
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "rs", "controller": True}
    made = raw_pod(name, phase="Failed", reason="UnexpectedAdmissionError")
    return made | {"metadata": made["metadata"] | {"ownerReferences": [owner]} | metadata}


def raw_policy(
    name: str,
    priority: int = 0,
    *,
    created: str = "2026-11-21T10:00:00Z",
    selector: Mapping[str, Any] | None = None,
    generation: int = 1,
    version: int = 1,
    **sections: Any,
) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "generation": generation,
            "creationTimestamp": created,
            "resourceVersion": str(version),
        },
        "spec": {"nodeSelector": dict(selector or {}), "priority": priority, **sections},
    }


def policy(name: str, priority: int = 0, **more: Any) -> PolicyRecord:
    return policy_record(raw_policy(name, priority, **more))


def sharing(replicas: int) -> dict[str, Any]:
    return {"strategy": "timeSlicing", "resources": [{"name": GPU, "replicas": replicas}]}


class Decided(NamedTuple):
    """A decision of the fleet gate, and its answers by what they say."""

    fleet: Fleet
    answers: Mapping[Action, ActionAnswer]
    granted: frozenset[Action]
    refused: dict[Action, str]

    @classmethod
    def of(cls, decision: Decision) -> Decided:
        answers = decision.answers
        granted = frozenset(action for action, answer in answers.items() if answer.granted)
        refused = {action: answer.reason for action, answer in answers.items() if not answer.granted}
        return cls(decision.fleet, answers, granted, refused)
