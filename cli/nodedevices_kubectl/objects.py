"""Where the objects are that commands read and write."""

from __future__ import annotations

from urllib.parse import quote

from nodedevices_api import API_VERSION
from nodedevices_api.dra import RESOURCE_API
from nodedevices_kube import at as at  # noqa: PLC0414 - commands have it from here

OURS = f"/apis/{API_VERSION}"
NODE_DEVICES = f"{OURS}/nodedevices"
POLICIES = f"{OURS}/devicepolicies"
NODES = "/api/v1/nodes"
_DRA = f"/apis/{RESOURCE_API}"
SLICES, CLASSES, CLAIMS = f"{_DRA}/resourceslices", f"{_DRA}/deviceclasses", f"{_DRA}/resourceclaims"
PODS = "/api/v1/pods"  # of all namespaces
EVERY_EVENT = "/api/v1/events"
EVENTS = "/api/v1/namespaces/default/events"  # those about objects without a namespace


def configmap(namespace: str, name: str) -> str:
    return at(f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps", name)


def pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods"


def through_pod(namespace: str, name: str, port: int, path: str) -> str:
    """A path of a pod's own server, through the API server's proxy."""
    return f"{pods(namespace)}/{quote(name, safe='')}:{port}/proxy/{path}"


def operator_lease(namespace: str) -> str:
    return at(f"/apis/coordination.k8s.io/v1/namespaces/{quote(namespace, safe='')}/leases", "nodedevices-operator")
