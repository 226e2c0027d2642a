"""An API server of a few recorded objects, over HTTP on loopback: lists in pages, single objects, watches whose events
are given, patches of which it keeps a record (and which it applies, as far as our command line's go).

For what a client does with what a real one says; that a real one says so is for tests/integration.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

JsonObject = dict[str, Any]
NODE_DEVICES = "/apis/nodedevices.io/v1alpha1/nodedevices"
POLICIES = "/apis/nodedevices.io/v1alpha1/devicepolicies"
NODES = "/api/v1/nodes"
EVENTS = "/api/v1/namespaces/default/events"
OURS = "/apis/nodedevices.io/"  # kinds that are there only where a test adds them
GZIP_BYTES = 128 << 10  # from where a real one compresses its answers


@dataclass
class RecordedApi:
    """`pages`: whole answers to a list, in their order, in place of `objects`. `refusals`: statuses by path, or by
    method and path."""

    url: str = ""
    objects: dict[str, list[JsonObject]] = field(default_factory=dict)
    singles: dict[str, JsonObject] = field(default_factory=dict)  # by path
    texts: dict[str, str] = field(default_factory=dict)  # what is no object, by path
    pages: dict[str, list[bytes]] = field(default_factory=dict)
    events: dict[str, list[list[JsonObject]]] = field(default_factory=dict)  # one list for each watch
    refusals: dict[str, list[int]] = field(default_factory=dict)
    page_size: int = 500
    requests: list[tuple[str, str]] = field(default_factory=list)
    changes: list[tuple[str, str, Any]] = field(default_factory=list)  # path with query, content type, body
    headers: list[dict[str, str]] = field(default_factory=list)
    expiries: int = 0  # how many pages that are not the first are refused with 410
    interloper: Callable[[], None] | None = None  # called once, before the next patch: another writer
    date: datetime | None = None  # by its clock; None: that of the newest sign of life among its objects

    def reset(self) -> None:
        for each in (
            self.objects,
            self.singles,
            self.texts,
            self.pages,
            self.events,
            self.refusals,
            self.requests,
            self.changes,
            self.headers,
        ):
            each.clear()
        self.objects[EVENTS] = []  # as in every cluster
        self.page_size, self.expiries, self.interloper, self.date = 500, 0, None, None

    def add(self, collection: str, *objects: JsonObject) -> None:
        self.objects.setdefault(collection, []).extend(objects)

    def kubeconfig(self, path: Path, **more: Any) -> Path:
        """A kubeconfig with the contexts `here` (current) and `gone`, where nobody listens."""
        user = {"token": "not-a-secret", **more}
        config = {
            "current-context": "here",
            "contexts": [
                {"name": name, "context": {"cluster": name, "user": "me", "namespace": "ml"}}
                for name in ("here", "gone")
            ],
            "clusters": [
                {"name": "here", "cluster": {"server": self.url}},
                {"name": "gone", "cluster": {"server": "http://127.0.0.1:1"}},
            ],
            "users": [{"name": "me", "user": user}],
        }
        path.write_text(json.dumps(config))
        return path

    def clock(self) -> str:
        """The header Date; none where nothing says what it could be."""
        if self.date is not None:
            return format_datetime(self.date, usegmt=True)
        signs = re.findall(
            r'"(?:heartbeatTime|renewTime)": "([-\d]+T[:.\d]+Z)"', json.dumps([self.objects, self.singles])
        )
        return format_datetime(max(map(datetime.fromisoformat, signs)), usegmt=True) if signs else ""

    # --- answers -----------------------------------------------------------------------------------------------------
    def find(self, path: str) -> JsonObject | None:
        if path in self.singles:
            return self.singles[path]
        collection, _, name = path.rpartition("/")
        return next((it for it in self.objects.get(collection, ()) if it["metadata"]["name"] == name), None)

    def page(self, path: str, query: dict[str, str]) -> bytes | None:
        if path in self.pages:
            return self.pages[path][int(query.get("continue", "0"))]
        if "continue" in query and self.expiries:
            self.expiries -= 1
            return None
        start, size = int(query.get("continue", "0")), min(int(query.get("limit", "500")), self.page_size)
        wanted = [it for it in self.objects[path] if selected(it, query.get("labelSelector", ""))]
        more = {"continue": str(start + size)} if start + size < len(wanted) else {}
        page = {"kind": "List", "metadata": {"resourceVersion": "100", **more}, "items": wanted[start : start + size]}
        return json.dumps(page).encode()


def selected(item: JsonObject, selector: str) -> bool:
    """Only `key=value`."""
    labels = item["metadata"].get("labels", {})
    return all(
        labels.get(key) == value for key, _, value in (each.partition("=") for each in selector.split(",") if each)
    )


def status(code: int, message: str, name: str = "") -> bytes:
    details = {"details": {"name": name}} if name else {}
    return json.dumps({"kind": "Status", "code": code, "message": message, **details}).encode()


def merged(value: Any, patch: Any) -> Any:
    """A merge patch (RFC 7386) applied."""
    if not isinstance(patch, dict):
        return patch
    found = dict(value) if isinstance(value, dict) else {}
    for key, each in patch.items():
        found[key] = merged(found.get(key), each)
        if each is None:
            del found[key]
    return found


def patched(item: JsonObject, patch: JsonObject) -> JsonObject:
    """LookupError for a resourceVersion that is not the object's."""
    version = patch.get("metadata", {}).get("resourceVersion")
    if version not in {None, item["metadata"]["resourceVersion"]}:
        raise LookupError(version)
    found: JsonObject = merged(item, patch)
    found["metadata"]["resourceVersion"] = str(int(item["metadata"]["resourceVersion"]) + 1)
    return found


@contextmanager
def recorded_api() -> Iterator[RecordedApi]:
    api = RecordedApi()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

        def date_time_string(self, timestamp: float | None = None) -> str:
            return api.clock()

        def answer(self, code: int, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            if len(body) > GZIP_BYTES and "gzip" in self.headers.get("Accept-Encoding", ""):
                body = gzip.compress(body, 1)
                self.send_header("Content-Encoding", "gzip")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def begin(self) -> tuple[str, dict[str, str]]:
            url = urlsplit(self.path)
            api.requests.append((self.command, self.path))
            api.headers.append(dict(self.headers.items()))
            return url.path, {key: values[0] for key, values in parse_qs(url.query).items()}

        def refused(self, path: str) -> bool:
            codes = api.refusals.get(path) or api.refusals.get(f"{self.command} {path}")
            if not codes:
                return False
            code = codes.pop(0)
            self.answer(code, status(code, f"{path} is refused"))
            return True

        def do_GET(self) -> None:
            path, query = self.begin()
            if self.refused(path):
                return
            if query.get("watch"):
                self.stream(api.events[path].pop(0) if api.events.get(path) else [])
            elif path in api.objects or path in api.pages:
                found_page = api.page(path, query)
                gone = status(410, "the list has expired")
                self.answer(410 if found_page is None else 200, found_page or gone)
            elif path in api.texts:
                self.answer(200, api.texts[path].encode())
            elif found := api.find(path):
                self.answer(200, json.dumps(found).encode())
            else:
                collection, _, name = path.rpartition("/")
                known = collection in api.objects or not collection.startswith(OURS)
                self.answer(404, status(404, f"{name} not found", name if known else ""))

        def stream(self, events: Sequence[JsonObject]) -> None:
            self.send_response(200)
            self.send_header("Connection", "close")
            self.end_headers()
            for event in events:
                self.wfile.write(json.dumps(event).encode() + b"\n")
            self.close_connection = True

        def do_PATCH(self) -> None:
            self.change()

        def do_POST(self) -> None:
            self.change()

        def do_PUT(self) -> None:
            self.change()

        def change(self) -> None:
            path, _ = self.begin()
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.refused(path):
                return
            api.changes.append((self.path, self.headers["Content-Type"], body))
            if path.endswith("/selfsubjectreviews"):
                self.answer(201, json.dumps({"status": {"userInfo": {"username": "jane"}}}).encode())
                return
            if self.command == "POST" and path in api.objects and "dryRun" in self.path:
                self.answer(201, json.dumps(body).encode())
                return
            if api.interloper is not None:
                interloper, api.interloper = api.interloper, None
                interloper()
            found = api.find(path)
            if found is None:
                self.answer(404, status(404, f"{path} not found", path.rpartition("/")[2]))
                return
            try:
                after = patched(found, body)
            except LookupError as error:
                self.answer(409, status(409, f"the object has changed since {error}"))
                return
            if "dryRun" not in self.path:
                found.clear()
                found.update(after)
            self.answer(200, json.dumps(after).encode())

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    api.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
