"""The API server as the operator sees it: a few verbs on paths, and one error. `client.py` is the real one; tests bring
their own. There are no hidden retries behind it: a KubeError says what happened, and the key queue tries again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

import orjson
from nodedevices_common.errors import RequestError

from nodedevices_operator.records.names import PODS, named

JsonObject = Mapping[str, Any]


class KubeError(RequestError):
    """A request of the operator's that did not succeed."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        retry_after: float | None = None,
        absent: str | None = None,
        blocked: str = "",
    ) -> None:
        super().__init__(message, status=status, retry_after=retry_after)
        self.absent = absent  # the name of the object that the API server says does not exist
        self.blocked = blocked  # why a PodDisruptionBudget does not allow an eviction now, as the API server says

    @property
    def gone(self) -> bool:
        """There is no such object, or another one has its name by now."""
        return self.status in {404, 409, 410}

    @property
    def forbidden(self) -> bool:
        return self.status == 403


class Watching(Protocol):
    """Watches at the API server."""

    def watch(self, path: str, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        """The events of a watch, a line of JSON each, until the API server ends it. May raise KubeError."""
        ...


class WatchingKube(Watching, Protocol):
    """Calls of a reflector at the API server."""

    def pages(
        self, path: str, query: Mapping[str, str] | None = None, *, metadata_only: bool = False
    ) -> AsyncIterator[JsonObject]:
        """A LIST, a page at a time: `items`, and the list's own `metadata`. Ends without an error only when every page
        was read. May raise KubeError.

        What a field selector selects (a node's pods) comes in one page, unless `limit` is given. `metadata_only`:
        without spec and status.
        """
        ...


class Kube(WatchingKube, Protocol):
    """Calls of the operator at the API server. Every method may raise KubeError."""

    async def get(self, path: str) -> JsonObject:
        """Return one object."""
        ...

    async def apply(self, path: str, body: JsonObject, manager: str, *, force: bool = True) -> JsonObject:
        """Server-side apply. Returns the object. Without force, a value that another manager has is a 409."""
        ...

    async def create(self, path: str, body: JsonObject) -> JsonObject:
        """POST. Returns the object."""
        ...

    async def json_patch(self, path: str, operations: list[dict[str, Any]]) -> JsonObject:
        """JSON patch, for what server-side apply cannot say. Returns the object."""
        ...

    async def delete(self, path: str, *, uid: str, resource_version: str) -> None:
        """Delete the object if it is still the one of that uid, in that very state; else 409, or 404."""
        ...


async def delete(kube: Kube, collection: str, item: JsonObject) -> None:
    """Delete the object if it still is as it was read. May raise KubeError."""
    metadata = item["metadata"]
    path = named(collection, metadata["name"])
    await kube.delete(path, uid=metadata["uid"], resource_version=metadata["resourceVersion"])


async def find(kube: Kube, path: str) -> JsonObject | None:
    """Return one object; None: there is none. May raise KubeError."""
    try:
        return await kube.get(path)
    except KubeError as error:
        if error.status != 404:
            raise
        return None


async def node_pods(kube: Kube, node: str) -> AsyncIterator[dict[str, Any]]:
    """All pods that are bound to the node. May raise KubeError."""
    async for page in kube.pages(PODS, {"fieldSelector": f"spec.nodeName={node}"}):
        for pod in page["items"]:
            yield pod


def watch_event(path: str, line: bytes) -> tuple[str, JsonObject]:
    """Return the type of a watch's event, and the object. KubeError where it is an error, or cannot be read."""
    try:
        event = orjson.loads(line)
        kind, item = event["type"], event["object"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise KubeError(f"watch {path}: not an event: {line[:100]!r}") from error
    if not isinstance(item, dict):
        raise KubeError(f"watch {path}: not an event: {line[:100]!r}")
    if kind == "ERROR":
        raise KubeError(f"watch {path}: {str(item.get('message', item))[:300]}", status=int(item.get("code") or 0))
    return kind, item
