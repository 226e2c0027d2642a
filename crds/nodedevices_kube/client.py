"""Objects of the API server: get, list, watch, write. Raw JSON in and out.

An answer that makes no sense is an ApiError of status 200. A list that expires between two pages (410) is begun anew; a
watch that does says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from email.message import Message
from typing import Any, TypeVar
from urllib.parse import urlencode

from nodedevices_common.raw import Raw, mapping, mappings, text

from nodedevices_kube.connection import Answer, Connection
from nodedevices_kube.errors import ApiError

MAX_PAGES = 2000
LISTS = 3  # a list that expires is begun anew
JSON = "application/json"

T = TypeVar("T")


class Client:
    """One API server. Not for several threads at once. All methods but `close` may raise ApiError."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self.server = connection, connection.server
        self.page = 0  # objects in an answer to a list; 0: all
        self.page_read: Callable[[int], None] = lambda _: None  # gets how many objects are known so far
        self.dated: Callable[[str], None] = lambda _: None  # gets the header Date of each answer

    def get(self, path: str) -> Raw:
        return self._call("GET", path)

    def read_all(
        self,
        collection: str,
        read: Callable[[Raw], T],
        *,
        selector: str = "",
        fields: str = "",
        accept: str = JSON,
    ) -> tuple[list[T], str]:
        """What `read` makes of every object, and the resourceVersion from which a watch goes on. Of the objects one
        page is kept at a time. A list that takes so long that the API server no longer has its state is begun anew,
        twice."""
        query = {"limit": str(self.page)} if self.page else {}
        query |= _selected(selector, fields)
        for left in reversed(range(LISTS)):
            try:
                return self._pages(collection, query, accept, read)
            except ApiError as error:
                if not error.expired or not left:
                    raise
        raise AssertionError("not reached")

    def _pages(
        self, collection: str, query: Mapping[str, str], accept: str, read: Callable[[Raw], T]
    ) -> tuple[list[T], str]:
        found: list[T] = []
        token = ""
        for _ in range(MAX_PAGES):
            page = self._call("GET", collection, {**query, **({"continue": token} if token else {})}, accept=accept)
            about, items = mapping(page.get("metadata")), page.get("items")
            version, token = text(about.get("resourceVersion")), text(about.get("continue"))
            if not text(page.get("kind")).endswith("List") or not version or not isinstance(items, list | None):
                raise ApiError(f"GET {collection}: the answer is not a list", status=200)
            found += map(read, mappings(items))
            self.page_read(len(found))
            if not token:
                return found, version
        raise ApiError(f"GET {collection}: more than {MAX_PAGES} pages of {self.page}", status=200)

    def watch(
        self, collection: str, version: str, *, selector: str = "", fields: str = "", seconds: int = 0
    ) -> Iterator[tuple[str, Raw]]:
        """What happens after this resourceVersion, until the API server ends the watch (after `seconds`, or some
        minutes) or the connection breaks: the type and the object, BOOKMARK included."""
        query = {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": version}
        query |= {"timeoutSeconds": str(seconds)} if seconds else {}
        target = f"{collection}?{urlencode(query | _selected(selector, fields))}"
        with self._connection.stream(target, {"Accept": JSON}) as (answer, lines):
            if answer.status != 200:
                raise self._refusal("GET", collection, answer)
            for line in lines:
                event = _json(line, f"watch {collection}")
                kind, subject = text(event.get("type")), mapping(event.get("object"))
                code = subject.get("code")
                if kind == "ERROR" and isinstance(code, int):
                    raise self._refusal("GET", collection, Answer(code, json.dumps(subject).encode(), Message()))
                if kind == "ERROR" or not isinstance(subject.get("metadata"), dict):
                    raise ApiError(f"watch {collection}: the answer is not an event: {line[:100]!r}", status=200)
                yield kind, subject

    def apply(self, path: str, body: Mapping[str, Any], *, manager: str) -> Raw:
        """Server-side apply, which takes fields that another manager has. Returns the object."""
        query = {"fieldManager": manager, "force": "true"}
        return self._call("PATCH", path, query, body=body, content_type="application/apply-patch+yaml")  # JSON is YAML

    def write(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any],
        *,
        manager: str = "",
        content_type: str = JSON,
        dry_run: bool = False,
    ) -> Raw:
        """Return the object as it is then."""
        query = ({"fieldManager": manager} if manager else {}) | ({"dryRun": "All"} if dry_run else {})
        return self._call(method, path, query, body=body, content_type=content_type)

    def close(self) -> None:
        self._connection.close()

    def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: Mapping[str, Any] | None = None,
        content_type: str = "",
        accept: str = JSON,
    ) -> Raw:
        headers = {"Accept": accept} | ({"Content-Type": content_type} if content_type else {})
        data = None if body is None else json.dumps(body).encode()
        return _json(self._send(method, path, query, data, headers), f"{method} {path}")

    def _send(
        self, method: str, path: str, query: Mapping[str, str] | None, body: bytes | None, headers: Mapping[str, str]
    ) -> bytes:
        answer = self._connection.exchange(method, f"{path}?{urlencode(query)}" if query else path, body, headers)
        self.dated(answer.headers.get("Date", ""))
        if not 200 <= answer.status <= 299:
            raise self._refusal(method, path, answer)
        return answer.data

    def _refusal(self, method: str, path: str, answer: Answer) -> ApiError:
        return ApiError(
            f"{answer.status} {answer.message}".strip(),
            status=answer.status,
            retry_after=answer.retry_after,
            names_object=answer.names_object,
        )


def _selected(selector: str, fields: str) -> dict[str, str]:
    return {key: value for key, value in (("labelSelector", selector), ("fieldSelector", fields)) if value}


def _json(data: bytes, what: str) -> Raw:
    try:
        found = json.loads(data)
    except ValueError as error:
        raise ApiError(f"{what}: the answer is not JSON: {data[:100]!r}", status=200) from error
    if not isinstance(found, dict):
        raise ApiError(f"{what}: the answer is not an object: {data[:100]!r}", status=200)
    return found
