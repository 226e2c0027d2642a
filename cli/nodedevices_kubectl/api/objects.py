"""The objects that commands read and write, and what a refusal of theirs means for a person."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

from nodedevices_api import API_VERSION
from nodedevices_common.loading import quickly
from nodedevices_common.raw import Raw, mapping, text
from nodedevices_kube import at as at  # noqa: PLC0414 - commands have it from here
from nodedevices_kube.client import JSON, Client
from nodedevices_kube.connection import Answer, Connection
from nodedevices_kube.errors import ApiError

PAGE = 500
OURS = f"/apis/{API_VERSION}"
NODE_DEVICES = f"{OURS}/nodedevices"
POLICIES = f"{OURS}/devicepolicies"
NODES = "/api/v1/nodes"
EVENTS = "/api/v1/namespaces/default/events"  # those about objects without a namespace
FIELD_MANAGER = "kubectl-nodedevices"
_NAMES_ONLY = f"{JSON};as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,{JSON}"

T = TypeVar("T")


def configmap(namespace: str, name: str) -> str:
    return at(f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps", name)


def pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods"


def through_pod(namespace: str, name: str, port: int, path: str) -> str:
    """A path of a pod's own server, through the API server's proxy."""
    return f"{pods(namespace)}/{quote(name, safe='')}:{port}/proxy/{path}"


def operator_lease(namespace: str) -> str:
    return at(f"/apis/coordination.k8s.io/v1/namespaces/{quote(namespace, safe='')}/leases", "nodedevices-operator")


class Api(Client):
    def __init__(self, connection: Connection, context: str) -> None:
        super().__init__(connection)
        self.context = context
        self.page = PAGE

    def find(self, path: str) -> Raw | None:
        """Return the object; None: there is none of this name."""
        try:
            return self.get(path)
        except ApiError as error:
            if not error.absent:
                raise
        return None

    def text(self, path: str) -> str:
        """Return what is no object, such as a pod's answer through the API server's proxy."""
        return self._send("GET", path, None, None, {"Accept": "text/plain"}).decode(errors="replace")

    def list_all(self, collection: str, *, selector: str = "", fields: str = "") -> tuple[list[Raw], str]:
        """Every object, page by page, and the resourceVersion from which a watch goes on."""
        return self.read_all(collection, lambda item: item, selector=selector, fields=fields)

    def _pages(
        self, collection: str, query: Mapping[str, str], accept: str, read: Callable[[Raw], T]
    ) -> tuple[list[T], str]:
        with quickly():  # nothing in an object refers to itself
            return super()._pages(collection, query, accept, read)

    def names(self, collection: str, *, selector: str = "") -> list[str]:
        """The names of all objects, without what is in them."""
        return self.read_all(
            collection,
            lambda item: text(mapping(item.get("metadata")).get("name")),
            selector=selector,
            accept=_NAMES_ONLY,
        )[0]

    def merge(self, path: str, change: Mapping[str, Any], *, dry_run: bool = False) -> Raw:
        patch = "application/merge-patch+json"
        return self.write("PATCH", path, change, manager=FIELD_MANAGER, content_type=patch, dry_run=dry_run)

    def create(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> Raw:
        return self.write("POST", path, body, manager=FIELD_MANAGER, dry_run=dry_run)

    def try_write(self, collection: str, body: Mapping[str, Any], version: str) -> None:
        """Let the API server check an object that would be written, and write nothing. `version`: of the object that is
        there; empty: there is none. Raises ApiError with what it refuses."""
        given = mapping(body.get("metadata"))
        about = {key: given[key] for key in ("name", "labels", "annotations") if key in given}
        if version:
            whole = {**body, "metadata": {**about, "resourceVersion": version}}
            self.write("PUT", at(collection, text(about.get("name"))), whole, manager=FIELD_MANAGER, dry_run=True)
        else:
            self.create(collection, {**body, "metadata": about}, dry_run=True)

    def _refusal(self, method: str, path: str, answer: Answer) -> ApiError:
        status, message, advice = answer.status, answer.message, ""
        ours = path.startswith(f"{OURS}/")
        if status == 401:
            message = f"it does not accept these credentials (context {self.context}): {message or 'Unauthorized'}"
        elif status == 403 and not answer.said:
            message = f"{method} {path} is forbidden: {message}"
        if status == 403 and ours:
            advice = _rights("nodedevices-view" if method == "GET" else "nodedevices-admin")
        elif status == 404 and ours and not answer.names_object:
            message = f"it has no {path.removeprefix(f'{OURS}/').partition('/')[0]} ({API_VERSION})"
            advice = f"Is NodeDevices installed in the cluster of context {self.context}? docs/operations.md says how."
        return ApiError(
            f"API server {self.server}: {message or f'{method} {path}: HTTP {status}'}",
            status=status,
            retry_after=answer.retry_after,
            names_object=answer.names_object,
            advice=advice,
        )


def _rights(role: str) -> str:
    return (
        f"This needs the cluster role {role} in the whole cluster; a RoleBinding is not enough. To grant it: "
        f"kubectl create clusterrolebinding NAME --clusterrole={role} --user=USER"
    )
