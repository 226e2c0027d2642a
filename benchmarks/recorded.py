"""An API server that shows recorded objects and streams changes of them: for what a client's CPU costs, and its alone.

    with Recorded.of(folder, times=5) as api:
        ... start a client with api.kubeconfig ...
        api.stream("nodedevices", "holder", count=2000, rate=200.0)

`record` fills the folder from a real API server. Objects are sent as they were recorded, and as often as is wanted: the
second time and later under names, uids and device ids of their own. A change alters one field,
raises resourceVersion and comes to those who watch, so often a second. All events are encoded before the first is sent.
Discovery, LIST by pages, GET and watch from a version are answered; a write is refused and counted: whoever writes to a
recording is not what the measurement is about.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import subprocess
import sys
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import yaml
from aiohttp import web

from benchmarks.bare import COLLECTIONS, NODE_DEVICES, NODES, POLICIES, Client

KINDS = {"nodes": "Node", "nodedevices": "NodeDevices", "devicepolicies": "DevicePolicy"}
BUNDLES_PER_SECOND = 20  # events of the same twentieth of a second are sent together
SEND_SECONDS = 300
UID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
ROOT = Path(__file__).resolve().parents[1]


def plural(path: str) -> str:
    return path.rpartition("/")[2]


# --- the changes ----------------------------------------------------------------------------------------------------
def agent_heartbeat(item: dict[str, Any], at: int) -> None:
    item["status"]["agent"]["heartbeatTime"] = moment(at)


def holder(item: dict[str, Any], at: int) -> None:
    """Another pod has the GPU."""
    [entry] = item["status"]["devices"][at % len(item["status"]["devices"])]["holders"]
    entry["pod"], entry["since"] = f"{item['metadata']['name']}-next-{at}", moment(at)


def node_heartbeat(item: dict[str, Any], at: int) -> None:
    for condition in item["status"]["conditions"]:
        if "lastHeartbeatTime" in condition:
            condition["lastHeartbeatTime"] = moment(at)


def moment(at: int) -> str:
    return f"2026-11-22T{at // 3600 % 24:02d}:{at // 60 % 60:02d}:{at % 60:02d}Z"


CHANGES: dict[str, Callable[[dict[str, Any], int], None]] = {
    "agent-heartbeat": agent_heartbeat,
    "holder": holder,
    "node-heartbeat": node_heartbeat,
}


# --- for who measures -----------------------------------------------------------------------------------------------
async def record(api: Client, folder: Path) -> None:
    """The objects of the three kinds, as the API server has them now."""
    for path in COLLECTIONS:
        with (folder / f"{plural(path)}.ndjson").open("wb") as file:
            async for page in api.pages(path):
                for item in page["items"]:
                    file.write(orjson.dumps(item) + b"\n")


@dataclass(frozen=True)
class Recorded:
    url: str
    kubeconfig: Path

    @classmethod
    @contextmanager
    def of(cls, folder: Path, times: int) -> Iterator[Recorded]:
        """The server in a separate process, with the recording's Nodes and NodeDevices so many times over."""
        command = [sys.executable, "-m", "benchmarks.recorded", str(folder), str(times)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
            try:
                assert process.stdout is not None
                url = process.stdout.readline().strip()
                if not url:
                    raise RuntimeError(f"{' '.join(command)} ended before it served")
                yield cls(url, kubeconfig(folder, url))
            finally:
                process.kill()

    def stream(self, collection: str, change: str, *, count: int, rate: float) -> None:
        """So many changes, one object after the other; returns when the last one was sent."""
        wanted = {"collection": collection, "change": change, "count": count, "rate": rate}
        request = urllib.request.Request(f"{self.url}/bench/stream", data=json.dumps(wanted).encode())
        with urllib.request.urlopen(request, timeout=SEND_SECONDS) as answer:
            answer.read()

    def refused(self) -> dict[str, int]:
        """Writes that were tried, by method and collection."""
        with urllib.request.urlopen(f"{self.url}/bench/refused", timeout=SEND_SECONDS) as answer:
            found: dict[str, int] = json.load(answer)
            return found


def kubeconfig(folder: Path, url: str) -> Path:
    made = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "none"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path = folder / "recorded.kubeconfig"
    path.write_text(yaml.safe_dump(made))
    return path


# --- the server's process -------------------------------------------------------------------------------------------
@dataclass
class Collection:
    items: dict[str, bytes]
    watchers: set[asyncio.Queue[bytes]]


def another(name: str, text: str, copy: int) -> tuple[str, str]:
    """The object as another one: whatever is named after it, and every uid, is another, the same one everywhere."""
    if not copy:
        return name, text
    other = f"{name}-{copy}"
    return other, UID.sub(lambda uid: str(uuid.uuid5(uuid.UUID(uid[0]), str(copy))), text.replace(name, other))


class Server:
    def __init__(self, folder: Path, times: int) -> None:
        self._collections: dict[str, Collection] = {}
        self._version = 0
        self._refused: Counter[str] = Counter()
        for path in COLLECTIONS:
            items: dict[str, bytes] = {}
            with (folder / f"{plural(path)}.ndjson").open("rb") as file:
                for line in file:
                    metadata = orjson.loads(line)["metadata"]
                    self._version = max(self._version, int(metadata["resourceVersion"]))
                    for copy in range(times if path != POLICIES else 1):
                        name, text = another(metadata["name"], line.decode().rstrip("\n"), copy)
                        items[name] = text.encode()
            self._collections[path] = Collection(items, set())

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/bench/stream", self._stream)
        app.router.add_get("/bench/refused", self._tell_refused)
        app.router.add_get("/{path:.*}", self._get)
        app.router.add_post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", self._review)
        app.router.add_route("*", "/{path:.*}", self._refuse)
        return app

    async def _stream(self, request: web.Request) -> web.Response:
        wanted = await request.json()
        path = {plural(each): each for each in COLLECTIONS}[wanted["collection"]]
        collection, change = self._collections[path], CHANGES[wanted["change"]]
        lines: list[bytes] = []
        for at, name in zip(range(wanted["count"]), itertools.cycle(sorted(collection.items)), strict=False):
            item = orjson.loads(collection.items[name])
            self._version += 1
            item["metadata"]["resourceVersion"] = str(self._version)
            change(item, self._version)
            collection.items[name] = data = orjson.dumps(item)
            lines.append(b'{"type":"MODIFIED","object":' + data + b"}\n")
            if at % 100 == 0:
                await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        began = loop.time()
        bundle = max(1, round(wanted["rate"] / BUNDLES_PER_SECOND))
        for at in range(0, len(lines), bundle):
            await asyncio.sleep(max(0.0, began + at / wanted["rate"] - loop.time()))
            for queue in collection.watchers:
                for line in lines[at : at + bundle]:
                    queue.put_nowait(line)
        for queue in collection.watchers:
            await queue.join()
        return web.json_response({})

    async def _review(self, _: web.Request) -> web.Response:
        """A question, and no write: whether there is a right to DeviceClasses."""
        return web.json_response({"status": {"allowed": False}}, status=201)

    async def _tell_refused(self, _: web.Request) -> web.Response:
        return web.json_response(dict(self._refused))

    async def _refuse(self, request: web.Request) -> web.Response:
        self._refused[f"{request.method} {request.path}"] += 1
        return status(501, f"{request.method} {request.path}: this is a recording")

    async def _get(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if path in self._collections:
            if request.query.get("watch"):
                return await self._watch(request, self._collections[path])
            return self._list(path, request)
        parent, _, name = path.rpartition("/")
        if parent in self._collections:
            item = self._collections[parent].items.get(name)
            return status(404, f"{name} not found") if item is None else answer(item)
        known = discovery(path)
        return status(404, f"{path} is not recorded") if known is None else web.json_response(known)

    def _list(self, path: str, request: web.Request) -> web.Response:
        items = [] if "fieldSelector" in request.query else list(self._collections[path].items.values())
        start, limit = int(request.query.get("continue") or 0), int(request.query.get("limit") or len(items) or 1)
        page, end = items[start : start + limit], start + limit
        if "as=PartialObjectMetadataList" in request.headers.get("Accept", ""):
            page = [orjson.dumps({"metadata": orjson.loads(item)["metadata"]}) for item in page]
        metadata = {"resourceVersion": str(self._version)} | ({"continue": str(end)} if end < len(items) else {})
        group, _, version = path.removeprefix("/apis/").removeprefix("/api/").rpartition("/")[0].rpartition("/")
        head = {"kind": f"{KINDS[plural(path)]}List", "apiVersion": f"{group}/{version}".lstrip("/")}
        text = orjson.dumps(head | {"metadata": metadata})
        return answer(text[:-1] + b',"items":[' + b",".join(page) + b"]}")

    async def _watch(self, request: web.Request, collection: Collection) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        # Who measures sends changes only to clients that rest, so that nothing comes between a LIST and its watch.
        collection.watchers.add(queue)
        try:
            while True:
                await response.write(await queue.get())
                queue.task_done()
        except ConnectionError:
            return response
        finally:
            collection.watchers.discard(queue)


def answer(data: bytes) -> web.Response:
    return web.Response(body=data, content_type="application/json")


def status(code: int, text: str) -> web.Response:
    return web.json_response({"kind": "Status", "status": "Failure", "code": code, "message": text}, status=code)


def discovery(path: str) -> dict[str, Any] | None:
    """What kopf requests before it watches."""
    group, _, version = NODE_DEVICES.removeprefix("/apis/").rpartition("/")[0].rpartition("/")
    both = {"groupVersion": f"{group}/{version}", "version": version}
    match path:
        case "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        case "/apis":
            known = {"name": group, "preferredVersion": both, "versions": [both]}
            return {"kind": "APIGroupList", "groups": [known]}
        case "/api/v1":
            names = ["namespaces", plural(NODES)]
        case _ if path == NODE_DEVICES.rpartition("/")[0]:
            names = [plural(NODE_DEVICES), plural(POLICIES)]
        case _:
            return None
    verbs = ["get", "list", "watch", "patch"]
    resources = [
        {"name": each, "singularName": each, "namespaced": False, "kind": KINDS.get(each, "Namespace"), "verbs": verbs}
        for each in names
    ]
    return {"kind": "APIResourceList", "resources": resources}


async def serve(folder: Path, times: int) -> None:
    runner = web.AppRunner(Server(folder, times).app(), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2])))
