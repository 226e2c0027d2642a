"""Objects of the API server: get, list in pages, watch, patch. Raw JSON in and out.

A list that expires between two pages (410) is begun anew; a watch that does says so with Expired.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from nodedevices_api import API_VERSION
from nodedevices_common.loading import quickly
from nodedevices_common.raw import Raw, mapping, mappings, text

from nodedevices_kubectl.api.connection import Connection
from nodedevices_kubectl.api.errors import ApiError, Expired

PAGE = 500
MAX_PAGES = 2000
LISTS = 3  # a list that expires is begun anew
OURS = f"/apis/{API_VERSION}"
NODE_DEVICES = f"{OURS}/nodedevices"
POLICIES = f"{OURS}/devicepolicies"
NODES = "/api/v1/nodes"
EVENTS = "/api/v1/namespaces/default/events"  # those about objects without a namespace
FIELD_MANAGER = "kubectl-nodedevices"
_NAMES_ONLY = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json"

WatchEvent = tuple[str, Raw]
T = TypeVar("T")


def at(collection: str, name: str) -> str:
    return f"{collection}/{quote(name, safe='')}"


def configmap(namespace: str, name: str) -> str:
    return at(f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps", name)


def pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods"


def through_pod(namespace: str, name: str, port: int, path: str) -> str:
    """A path of a pod's own server, through the API server's proxy."""
    return f"{pods(namespace)}/{quote(name, safe='')}:{port}/proxy/{path}"


def operator_lease(namespace: str) -> str:
    return at(f"/apis/coordination.k8s.io/v1/namespaces/{quote(namespace, safe='')}/leases", "nodedevices-operator")


class Api:
    def __init__(self, connection: Connection, context: str) -> None:
        self._connection = connection
        self.context = context
        self.page = PAGE
        self.page_read: Callable[[int], None] = _nothing  # gets how many objects are known so far

    @property
    def server(self) -> str:
        return self._connection.server

    def tell_time(self, dated: Callable[[str], None]) -> None:
        """Have `dated` called with the header Date of each answer."""
        self._connection.dated = dated

    def get(self, path: str) -> Raw:
        return self._call("GET", path)

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

    def list_all(
        self, collection: str, *, selector: str = "", fields: str = "", accept: str = ""
    ) -> tuple[list[Raw], str]:
        """Every object, page by page, and the resourceVersion from which a watch goes on."""
        return self.read_all(collection, lambda item: item, selector=selector, fields=fields, accept=accept)

    def read_all(
        self,
        collection: str,
        read: Callable[[Raw], T],
        *,
        selector: str = "",
        fields: str = "",
        accept: str = "",
    ) -> tuple[list[T], str]:
        """What `read` makes of every object, and the resourceVersion from which a watch goes on. Of the objects one
        page is kept at a time. A list that takes so long that the API server no longer has its state is begun anew,
        twice."""
        query = {"limit": str(self.page)}
        query |= {"labelSelector": selector} if selector else {}
        query |= {"fieldSelector": fields} if fields else {}
        for left in reversed(range(LISTS)):
            try:
                with quickly():  # nothing in an object refers to itself
                    return self._pages(collection, query, accept, read)
            except Expired:
                if not left:
                    raise
        raise AssertionError("not reached")

    def _pages(
        self, collection: str, query: Mapping[str, str], accept: str, read: Callable[[Raw], T]
    ) -> tuple[list[T], str]:
        found: list[T] = []
        token = ""
        for _ in range(MAX_PAGES):
            page = self._call("GET", collection, {**query, **({"continue": token} if token else {})}, accept=accept)
            if not text(page.get("kind")).endswith("List"):
                raise ApiError(f"GET {collection}: the answer is not a list", status=200)
            found += map(read, mappings(page.get("items")))
            about = mapping(page.get("metadata"))
            token = text(about.get("continue"))
            self.page_read(len(found))
            if not token:
                return found, text(about.get("resourceVersion"))
        raise ApiError(f"GET {collection}: more than {MAX_PAGES} pages of {self.page}", status=200)

    def names(self, collection: str, *, selector: str = "") -> list[str]:
        """The names of all objects, without what is in them."""
        return self.read_all(
            collection,
            lambda item: text(mapping(item.get("metadata")).get("name")),
            selector=selector,
            accept=_NAMES_ONLY,
        )[0]

    def watch(self, collection: str, version: str, *, selector: str = "", name: str = "") -> Iterator[WatchEvent]:
        """What happens after this resourceVersion, until the API server ends the watch (after some minutes): the type
        and the object, BOOKMARK included."""
        query = {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": version}
        if selector:
            query["labelSelector"] = selector
        if name:
            query["fieldSelector"] = f"metadata.name={name}"
        target = f"{collection}?{urlencode(query)}"
        with self._connection.stream(target, {"Accept": "application/json"}) as (status, lines):
            if status != 200:
                raise self._refusal("GET", collection, status, b"".join(lines))
            for line in lines:
                event = _json(line, f"watch {collection}")
                kind, subject = text(event.get("type")), mapping(event.get("object"))
                if kind == "ERROR":
                    code = subject.get("code")
                    raise self._refusal("GET", collection, code if isinstance(code, int) else 500, line, subject)
                yield kind, subject

    def merge(self, path: str, change: Mapping[str, Any], *, dry_run: bool = False) -> Raw:
        return self._change("PATCH", path, change, "application/merge-patch+json", dry_run=dry_run)

    def create(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> Raw:
        return self._change("POST", path, body, "application/json", dry_run=dry_run)

    def try_write(self, collection: str, body: Mapping[str, Any], version: str) -> None:
        """Let the API server check an object that would be written, and write nothing. `version`: of the object that is
        there; empty: there is none. Raises ApiError with what it refuses."""
        given = mapping(body.get("metadata"))
        about = {key: given[key] for key in ("name", "labels", "annotations") if key in given}
        if version:
            whole = {**body, "metadata": {**about, "resourceVersion": version}}
            self._change("PUT", at(collection, text(about.get("name"))), whole, "application/json", dry_run=True)
        else:
            self.create(collection, {**body, "metadata": about}, dry_run=True)

    def close(self) -> None:
        self._connection.close()

    def _change(self, method: str, path: str, body: Any, content_type: str, *, dry_run: bool) -> Raw:
        query = {"fieldManager": FIELD_MANAGER} | ({"dryRun": "All"} if dry_run else {})
        return self._call(method, path, query, body=json.dumps(body).encode(), content_type=content_type)

    def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: bytes | None = None,
        content_type: str = "",
        accept: str = "",
    ) -> Raw:
        headers = {"Accept": accept or "application/json"} | ({"Content-Type": content_type} if content_type else {})
        return _json(self._send(method, path, query, body, headers), f"{method} {path}")

    def _send(
        self, method: str, path: str, query: Mapping[str, str] | None, body: bytes | None, headers: Mapping[str, str]
    ) -> bytes:
        target = f"{path}?{urlencode(query)}" if query else path
        status, data = self._connection.exchange(method, target, body, headers)
        if not 200 <= status <= 299:
            raise self._refusal(method, path, status, data)
        return data

    def _refusal(self, method: str, path: str, status: int, data: bytes, given: Raw | None = None) -> ApiError:
        said = given if given is not None else _status(data)
        message = text(said.get("message")) or data[:300].decode(errors="replace").strip()
        named = bool(text(mapping(said.get("details")).get("name")))
        ours, advice = path.startswith(f"{OURS}/"), ""
        if status == 401:
            message = f"it does not accept these credentials (context {self.context}): {message or 'Unauthorized'}"
        elif status == 403 and not said:
            message = f"{method} {path} is forbidden: {message}"
        if status == 403 and ours:
            advice = _rights("nodedevices-view" if method == "GET" else "nodedevices-admin")
        elif status == 404 and ours and not named:
            message = f"it has no {path.removeprefix(f'{OURS}/').partition('/')[0]} ({API_VERSION})"
            advice = f"Is NodeDevices installed in the cluster of context {self.context}? docs/operations.md says how."
        kind = Expired if status == 410 else ApiError
        return kind(
            f"API server {self.server}: {message or f'{method} {path}: HTTP {status}'}",
            status=status,
            names_object=named,
            advice=advice,
        )


def _rights(role: str) -> str:
    return (
        f"That takes the cluster role {role} in the whole cluster; a RoleBinding is not enough. To give it: "
        f"kubectl create clusterrolebinding NAME --clusterrole={role} --user=USER"
    )


def _nothing(count: int) -> None:
    return None


def _status(data: bytes) -> Raw:
    try:
        return mapping(json.loads(data))
    except ValueError:
        return {}


def _json(data: bytes, what: str) -> Raw:
    try:
        found = json.loads(data)
    except ValueError as error:
        raise ApiError(f"{what}: the answer is not JSON: {data[:100]!r}", status=200) from error
    return mapping(found)
