"""Names at the API server: collections and paths, field managers, the head of an apply body. Imports
nothing but the contract, so that every module that reads or writes an object can use it.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

from nodedevices_api import API_VERSION, GROUP, VERSION

# Server-side apply: one manager for each concern, so that leaving a key out removes exactly our key.
MANAGER = "nodedevices-operator"
CONFIG = f"{MANAGER}-config"  # NodeDevices.spec: config, configName, configHash, policies, change
STATUS = f"{MANAGER}-status"  # NodeDevices.status: our conditions, actions, affectedPods
CAPACITY = f"{MANAGER}-capacity"  # Node.status.capacity
NODE_CONDITION = f"{MANAGER}-node-condition"  # Node.status.conditions: Ready, DevicesHealthy
XID_CONDITION = f"{MANAGER}-xid-condition"  # Node.status.conditions, another of them
LABELS = f"{MANAGER}-labels"  # Node.metadata.labels
OBJECT_LABELS = f"{MANAGER}-object-labels"  # NodeDevices.metadata.labels
POD_CONDITION = f"{MANAGER}-pod-condition"  # Pod.status.conditions: DeviceHealthy
POD_IDLE = f"{MANAGER}-pod-idle"  # Pod.status.conditions: DeviceIdle
POLICY_STATUS = f"{MANAGER}-policy-status"  # DevicePolicy.status
FLEET = f"{MANAGER}-fleet"  # the ConfigMap of the fleet gate
ELECTION = f"{MANAGER}-election"  # Lease.spec
CLUSTER_PROPERTIES = f"{MANAGER}-cluster-properties"  # ClusterProperty
DEVICE_CLASS_MANAGER = f"{MANAGER}-device-classes"  # DeviceClass

LEASE_NAME = MANAGER  # of the Lease that the leader holds

TAINT = "nodedevices.io/device-fault"  # key of our taint on Nodes

NODES = "/api/v1/nodes"
PODS = "/api/v1/pods"
NODE_DEVICES = f"/apis/{GROUP}/{VERSION}/nodedevices"
POLICIES = f"/apis/{GROUP}/{VERSION}/devicepolicies"

DEVICE_CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
PROPERTIES = "/apis/about.k8s.io/%s/clusterproperties"
CLUSTER_PROPERTY_VERSIONS = ("v1beta1", "v1alpha1")  # newest first; v1alpha1 alone is served by older ones of it
OURS = f"app.kubernetes.io/managed-by={MANAGER}"  # a label selector, of whole objects that the operator makes


def named(collection: str, name: str) -> str:
    """Return the path of one cluster-scoped object."""
    return f"{collection}/{quote(name, safe='')}"


_POD_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def is_pod(namespace: str, name: str) -> bool:
    """True when a pod can be called so. In a path, `..` would be another object."""
    return _NAMESPACE.fullmatch(namespace) is not None and _POD_NAME.fullmatch(name) is not None


def namespaced(namespace: str, resource: str, name: str = "") -> str:
    """Return the path of objects of the core API in a namespace, or of one of them."""
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/{resource}"
    return named(path, name) if name else path


def pod_path(namespace: str, name: str) -> str:
    return namespaced(namespace, "pods", name)


def leases(namespace: str) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{quote(namespace, safe='')}/leases"


def resource_of(path: str) -> str:
    """The resource of a path, with its subresource, as RBAC has it: `pods/status`."""
    _, api, *rest = path.split("/")
    rest = rest[1 if api == "api" else 2 :]  # without the version, and the group
    if not rest:
        return "discovery"
    if rest[0] == "namespaces" and len(rest) > 2:
        rest = rest[2:]
    resource, _, *sub = (*rest, "")
    return "/".join((resource, *filter(None, sub)))


def identified(kind: str, name: str, uid: str, *, namespace: str | None = None) -> dict[str, Any]:
    """The head of an apply body. With `metadata.uid` it changes that object or none: another uid is a 409."""
    version = API_VERSION if kind in {"NodeDevices", "DevicePolicy"} else "v1"
    metadata = {"name": name, "uid": uid} | ({} if namespace is None else {"namespace": namespace})
    return {"apiVersion": version, "kind": kind, "metadata": metadata}
