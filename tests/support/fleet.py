"""Nodes, pods and NodeDevices made by hand on a real API server, as kubelets and agents would show them.

No kubelet and no agent runs: a test plays both, through kubectl and with the agent's own field manager, so that every
state the operator must react to can be had at once. Names are given by the test; everything is cluster-admin's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from support.kubectl import Kubectl

MEMORY = "nodedevices.io/gpu-memory-mib"
GPU = "nvidia.com/gpu"
NAMESPACE = "fleet"
XID79 = {
    "state": "Unhealthy",
    "reason": "Xid79",
    "message": "GPU has fallen off the bus",
    "recoveryAction": "RebootNode",
}
WELL = {"state": "Healthy"}
_AGENT = "nodedevices-agent"


def stamp(offset: float = 0.0, *, micro: bool = False) -> str:
    """Now, plus so many seconds, as Kubernetes writes it."""
    moment = datetime.now(UTC) + timedelta(seconds=offset)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")


def device_id(index: int) -> str:
    return f"GPU-{index:08d}-0000-0000-0000-000000000000"


@dataclass
class FleetNode:
    """One Node with its NodeDevices; `report` writes what the agent would."""

    kubectl: Kubectl
    name: str
    gpus: int = 2
    health: dict[int, dict[str, Any]] = field(default_factory=dict)
    holders: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    conditions: dict[str, tuple[str, ...]] = field(default_factory=dict)  # status, reason, message if any
    retired: dict[str, str] = field(default_factory=dict)  # names no longer offered, since when
    healthy: int | None = None  # resources[].healthy, where it differs from the healthy devices
    facts: dict[str, Any] = field(default_factory=dict)  # more of status: driver, machine
    attributes: dict[str, Any] = field(default_factory=dict)  # of every device
    more: dict[int, dict[str, Any]] = field(default_factory=dict)  # of one device
    model: str = "Simulated"
    uid: str = ""
    heartbeat: str = ""

    def create(self, labels: Mapping[str, str] | None = None) -> FleetNode:
        """The Node (Ready, with its GPUs) and the NodeDevices with a first report."""
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name, "labels": dict(labels or {})}}
        self.uid = self.kubectl.create(node)["metadata"]["uid"]
        self.kubelet({GPU: self.gpus})
        self.create_object()
        self.report()
        return self

    def create_object(self) -> None:
        owner = {"apiVersion": "v1", "kind": "Node", "name": self.name, "uid": self.uid}
        metadata = {"name": self.name, "ownerReferences": [owner | {"controller": False, "blockOwnerDeletion": False}]}
        body = {"apiVersion": "nodedevices.io/v1alpha1", "kind": "NodeDevices", "metadata": metadata}
        self.kubectl.apply_as(_AGENT, body)

    def kubelet(self, amounts: Mapping[str, int], *, ready: str = "True") -> None:
        """What the kubelet reports; its own condition and its own keys."""
        shown = {name: str(amount) for name, amount in amounts.items()}
        ready_condition = {"type": "Ready", "status": ready, "reason": "KubeletReady", "lastTransitionTime": stamp()}
        status = {"capacity": shown, "allocatable": shown, "conditions": [ready_condition]}
        self.patch_node({"status": status}, "strategic")

    def patch_node(self, patch: Mapping[str, Any], kind: str = "merge", manager: str = "kubelet") -> None:
        self.kubectl.patch("node", self.name, patch, how=kind, manager=manager, subresource="status")

    def report(self, *, applied_hash: str | None = None) -> None:
        """The agent's whole status, by server-side apply."""
        unwell = {index: it for index, it in self.health.items() if it.get("state") != "Healthy"}
        faulty = sum(it.get("state") in {"Unhealthy", "Unknown"} for it in unwell.values())
        healthy = self.gpus - faulty if self.healthy is None else self.healthy
        worst = next(iter(unwell.values()), {})
        devices_healthy = ("False", "DeviceFault") if faulty else ("True", "AllHealthy")
        conditions: dict[str, tuple[str, ...]] = {"Ready": ("True", "AgentRunning"), "DevicesHealthy": devices_healthy}
        conditions |= {"HoldersKnown": ("True", "Synced"), "ConfigApplied": ("True", "Applied")}
        self.heartbeat = self.heartbeat or stamp()
        names = [f"gpu-{index}" for index, it in unwell.items() if it.get("state") != "Degraded"]
        withheld = {
            "reason": "Unhealthy",
            "count": len(names),
            "devices": names[:8],
            "message": worst.get("reason", ""),
        }
        status = {
            "nodeUID": self.uid,
            "agent": {"version": "0", "bootID": "b", "startTime": stamp(), "heartbeatTime": self.heartbeat},
            "summary": {
                "devices": self.gpus,
                "healthy": self.gpus - faulty,
                "degraded": 0,
                "unhealthy": faulty,
                "unknown": 0,
                "held": len(self.holders),
                "unschedulable": 0,
                "model": self.model,
                "models": 1,
                "reason": worst.get("reason", ""),
                "recoveryAction": worst.get("recoveryAction", ""),
            },
            "devices": [self._device(index) for index in range(self.gpus)],
            "resources": [
                {
                    "name": GPU,
                    "capacity": self.gpus,
                    "healthy": healthy,
                    "allocated": len(self.holders),
                    "sharing": "none",
                    "managedBy": "plugin",
                }
                | ({"withheld": [withheld]} if names else {})
            ],
            "conditions": [
                {
                    "type": kind,
                    "status": it[0],
                    "reason": it[1],
                    "message": "".join(it[2:]),
                    "lastTransitionTime": stamp(),
                }
                for kind, it in (conditions | self.conditions).items()
            ],
        }
        status |= self.facts
        if self.retired:
            status["retiredResources"] = [{"name": name, "since": since} for name, since in self.retired.items()]
        if applied_hash is not None:
            status["appliedConfigHash"] = applied_hash
        metadata = {"name": self.name}
        body = {"apiVersion": "nodedevices.io/v1alpha1", "kind": "NodeDevices", "metadata": metadata, "status": status}
        self.kubectl.apply_as(_AGENT, body, subresource="status")

    def _device(self, index: int) -> dict[str, Any]:
        health = {"since": "2026-11-21T07:00:00Z"} | self.health.get(index, WELL)
        found = {
            "id": device_id(index),
            "name": f"gpu-{index}",
            "type": "gpu",
            "index": index,
            "capacity": {"memory": "80Gi"},
            "health": health,
        } | ({"attributes": self.attributes} if self.attributes else {})
        found |= self.more.get(index, {})
        return found | ({"holders": self.holders[index]} if self.holders.get(index) else {})

    def fail(self, *indices: int, **fault: Any) -> None:
        """XID 79, or another fault, strikes these GPUs; the agent reports it."""
        for index in indices:
            self.health[index] = {**XID79, "since": stamp(), **fault}
        self.report()

    def recover(self, *indices: int) -> None:
        for index in indices:
            self.health[index] = {**WELL, "since": stamp()}
        self.report()

    def hold(self, index: int, pod: str, *, since: str | None = None, **more: Any) -> None:
        """The container `main` of the pod holds the GPU, as PodResources shows it."""
        entry = {"namespace": NAMESPACE, "pod": pod, "container": "main", "resource": GPU}
        self.holders.setdefault(index, []).append(entry | {"since": since or stamp(micro=True)} | more)

    # --- what the cluster shows --------------------------------------------------------------------------------------
    @property
    def object(self) -> dict[str, Any]:
        return self.kubectl.get("nodedevices", self.name) or {}

    @property
    def node(self) -> dict[str, Any]:
        return self.kubectl.get("node", self.name) or {}

    @property
    def capacity(self) -> dict[str, str]:
        shown: dict[str, str] = self.node.get("status", {}).get("capacity", {})
        return shown


def namespace(kubectl: Kubectl) -> None:
    """The pods' namespace, with the service account that no controller makes here."""
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    account = {"name": "default", "namespace": NAMESPACE}
    kubectl.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})


def pod(
    kubectl: Kubectl,
    name: str,
    node: str,
    *,
    requests: Mapping[str, int] | None = None,
    phase: str = "Running",
    started: float | None = 0.0,
    gate: str = "",
) -> str:
    """A pod bound to the node, with the status that its kubelet would write. Returns its uid.

    `gate`: the condition that its readinessGates name.
    """
    limits = {key: str(value) for key, value in (requests or {GPU: 1}).items()}
    container = {"name": "main", "image": "none", "resources": {"limits": limits, "requests": limits}}
    spec: dict[str, Any] = {"nodeName": node, "containers": [container], "automountServiceAccountToken": False}
    if gate:
        spec["readinessGates"] = [{"conditionType": gate}]
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}
    made = kubectl.create(body)
    status: dict[str, Any] = {"phase": phase}
    if started is not None:
        status["startTime"] = stamp(started)
    patch_pod(kubectl, name, status)
    uid: str = made["metadata"]["uid"]
    return uid


def get_pod(kubectl: Kubectl, name: str) -> dict[str, Any]:
    return kubectl.get("pod", name, NAMESPACE) or {}


def policy(name: str, selector: Mapping[str, str] | None = None, priority: int = 0, **sections: Any) -> dict[str, Any]:
    """A DevicePolicy; sections by their wire names."""
    spec = {"nodeSelector": {"matchLabels": dict(selector)} if selector else {}, "priority": priority, **sections}
    return {"apiVersion": "nodedevices.io/v1alpha1", "kind": "DevicePolicy", "metadata": {"name": name}, "spec": spec}


def memory_capacity() -> list[dict[str, Any]]:
    return [{"name": MEMORY, "sumOf": "memoryMiB"}]


def events(kubectl: Kubectl, uid: str) -> list[dict[str, Any]]:
    """Events about the object of that uid, oldest first."""
    found = kubectl.items("events", fields=f"involvedObject.uid={uid}")
    return sorted(found, key=lambda it: str(it["metadata"]["creationTimestamp"]))


def owners(thing: Mapping[str, Any], prefix: str = "nodedevices-operator") -> Sequence[str]:
    """Field managers of the operator that own anything in the object."""
    entries = thing.get("metadata", {}).get("managedFields", [])
    return [entry["manager"] for entry in entries if entry["manager"].startswith(prefix)]


def patch_pod(kubectl: Kubectl, name: str, status: Mapping[str, Any]) -> None:
    """What the pod's kubelet adds to its status."""
    change = {"status": status}
    kubectl.patch("pod", name, change, namespace=NAMESPACE, manager="kubelet", subresource="status")
