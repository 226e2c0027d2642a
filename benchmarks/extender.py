"""The real scheduler extender beside a fleet of 5,000 nodes: its start, its memory, and how long an answer takes.

The API server is a process of its own that makes up NodeDevices and pods as they are listed, and sends changes of them
when it is told to. Every node has eight GPUs of 80 shares with two pods on each, and as many pods that request none; an
object is about as large as real ones are. The scheduler is this process, with one connection, as kube-scheduler has.

The floor is an empty request to the same server (/healthz); of CPU, which that takes too little of to be counted in
hundredths of a second, it is the JSON alone: a request decoded and its names encoded again. `python -m
benchmarks.extender serve NODES` is the API server.
"""

from __future__ import annotations

import asyncio
import http.client
import itertools
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web
from support.kubectl import wait_until
from support.nodeshares import container, gpu, holder, node_devices, pod
from support.operatorprocess import OperatorProcess

from benchmarks.process import cpu_seconds, free_port, memory_mib, until_it_rests
from benchmarks.recorded import kubeconfig
from benchmarks.table import Row, percentile

ROOT = Path(__file__).resolve().parents[1]
NODES_BY_DEFAULT = 5000
GPUS, SHARES, PODS_OF_GPU = 8, 80, 2
CHANGES_PER_SECOND = 100
CHANGE_SECONDS = 20
TARGET_MS = 100.0
READY_SECONDS = 300.0
FLOOR_IS = "an empty request to the same server"
CPU_FLOOR_IS = "its JSON decoded, and the names encoded"
NODE_DEVICES, PODS = "/apis/nodedevices.io/v1alpha1/nodedevices", "/api/v1/pods"
FILLING = {"bench.example/filling": "x" * 2500}  # of a pod; managedFields and a spec of several containers
NODE_FILLING = {"bench.example/filling": "x" * 4000}

Call = Callable[[], None]


@dataclass(frozen=True)
class Scale:
    nodes: int
    times: int = 200
    quiet_seconds: float = 2.0

    @classmethod
    def of(cls, nodes: int) -> Scale:
        """Under a hundred nodes nothing is learned but that it works, so that it need not take long."""
        return cls(nodes) if nodes >= 100 else cls(nodes, 5, 0.5)


def measure(nodes: int = NODES_BY_DEFAULT) -> list[Row]:
    scale = Scale.of(nodes)
    with tempfile.TemporaryDirectory(prefix="nd-bench-") as folder:
        with extending(Path(folder), 0) as (process, _, _):
            until_it_rests(process.pid, scale.quiet_seconds)
            least = memory_mib(process.pid)
        began = time.monotonic()
        with extending(Path(folder), nodes) as (process, scheduler, url):
            ready = time.monotonic() - began
            rest = until_it_rests(process.pid, scale.quiet_seconds)
            rows = [
                Row(what=f"{nodes:,} nodes: start until everything is listed", measured=ready, unit="s"),
                Row(what="  CPU", measured=rest.cpu_seconds, unit="s"),
            ]
            bodies = Body([name_of(at) for at in range(nodes)])
            first = timed(lambda: scheduler.post("/scheduler/filter", bodies.of(20)))
            rows.append(Row(what=f"filter {nodes:,} names, the first", measured=first, unit="ms", target=TARGET_MS))
            floor = replace(
                Took.of(process.pid, [scheduler.empty] * scale.times), cpu_milliseconds=json_alone(bodies, scale.times)
            )
            for what, sizes in (("one size", [20]), ("40 sizes", list(range(1, 41)))):
                for verb in ("filter", "prioritize"):
                    took = Took.of(process.pid, posts(scheduler, verb, bodies, sizes, scale.times))
                    rows += took.rows(f"{verb} {nodes:,} names, {what}", floor)
            change(url)
            changing = Took.of(process.pid, posts(scheduler, "filter", bodies, [20], scale.times))
            what = f"filter, {CHANGES_PER_SECOND} pods and as many NodeDevices change a second"
            rows += changing.rows(what, floor, cpu=False)
            memory = memory_mib(process.pid)
            rows.append(Row(what="memory", measured=memory, unit="MiB", floor=least, floor_is="beside no nodes"))
            return rows


@contextmanager
def extending(folder: Path, nodes: int) -> Iterator[tuple[OperatorProcess, Scheduler, str]]:
    """An extender that has listed everything, what calls it, and the URL of the API server."""
    with serving(folder, nodes) as url:
        port = free_port()
        arguments = (f"--address=127.0.0.1:{port}", "--log-level=info")
        process = OperatorProcess(folder, kubeconfig(folder, url), *arguments, fresh=True, command="extender")
        process.start(ready=False)
        try:
            wait_until("all is listed", lambda: process.get("/readyz")[0] == 200, seconds=READY_SECONDS, every=0.1)
            yield process, Scheduler(port), url
        finally:
            process.kill()


def posts(scheduler: Scheduler, verb: str, bodies: Body, sizes: Sequence[int], times: int) -> list[Call]:
    made = [partial(scheduler.post, f"/scheduler/{verb}", bodies.of(size)) for size in sizes]
    return [call for call, _ in zip(itertools.cycle(made), range(times), strict=False)]


@dataclass(frozen=True)
class Took:
    """Answers, one after another."""

    milliseconds: list[float]
    cpu_milliseconds: float  # of the extender, for each

    @classmethod
    def of(cls, pid: int, calls: Sequence[Call]) -> Took:
        before = cpu_seconds(pid)
        took = [timed(each) for each in calls]
        return cls(took, 1000 * (cpu_seconds(pid) - before) / len(calls))

    def rows(self, what: str, floor: Took, *, cpu: bool = True) -> list[Row]:
        half, most = percentiles(self.milliseconds)
        least_half, least_most = percentiles(floor.milliseconds)
        rows = [
            Row(what=f"{what}: p50", measured=half, unit="ms", floor=least_half, floor_is=FLOOR_IS),
            Row(what="  p99", measured=most, unit="ms", target=TARGET_MS, floor=least_most, floor_is=FLOOR_IS),
        ]
        least = floor.cpu_milliseconds
        each = Row(what="  CPU each", measured=self.cpu_milliseconds, unit="ms", floor=least, floor_is=CPU_FLOOR_IS)
        return [*rows, each] if cpu else rows


def json_alone(bodies: Body, times: int) -> float:
    """Milliseconds of CPU of this process, for each."""
    body = bodies.of(20)
    began = time.process_time()
    for _ in range(times):
        orjson.dumps({"NodeNames": orjson.loads(body)["NodeNames"]})
    return 1000 * (time.process_time() - began) / times


def percentiles(took: Sequence[float]) -> tuple[float, float]:
    return percentile(took, 50), percentile(took, 99)


def timed(call: Call) -> float:
    """Milliseconds."""
    began = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - began)


class Body:
    """ExtenderArgs of one pod, of several sizes; encoding them is not what is measured."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)
        self._made: dict[int, bytes] = {}

    def of(self, size: int) -> bytes:
        if size not in self._made:
            self._made[size] = orjson.dumps({"Pod": pod("wanted", size), "Nodes": None, "NodeNames": self._names})
        return self._made[size]


class Scheduler:
    """One connection, kept."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def post(self, path: str, body: bytes) -> None:
        self._connection.request("POST", path, body, {"Content-Type": "application/json"})
        self._answer()

    def empty(self) -> None:
        self._connection.request("GET", "/healthz")
        self._answer()

    def _answer(self) -> None:
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {text[:200]!r}")


@contextmanager
def serving(folder: Path, nodes: int) -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.extender", "serve", str(nodes)]
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "HOME": str(folder), "PATH": "/usr/bin:/bin"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            if not url:
                raise RuntimeError(f"{' '.join(command)} ended before it served")
            yield url
        finally:
            process.kill()


def change(url: str) -> None:
    """Changes for some seconds, from now on."""
    with urllib.request.urlopen(urllib.request.Request(f"{url}/bench/change", data=b"{}"), timeout=30) as answer:
        answer.read()


# --- the API server's process ---------------------------------------------------------------------------------------
def name_of(node: int) -> str:
    return f"gpu-node-{node:05d}.example"


def sizes_of(node: int) -> list[tuple[int, ...]]:
    """Of the pods on each of its GPUs."""
    dice = random.Random(node)
    return [tuple(dice.randint(8, 38) for _ in range(PODS_OF_GPU)) for _ in range(GPUS)]


def node_of(node: int, *, version: int = 1) -> dict[str, Any]:
    devices = []
    for index, sizes in enumerate(sizes_of(node)):
        held = [holder(pod_name(node, index, at), size) for at, size in enumerate(sizes)]
        devices.append(gpu(index, SHARES, *held) | {"attributes": {"productName": "NVIDIA H100 80GB HBM3"} | FACTS})
    made = node_devices(name_of(node), *devices, version=str(version))
    made["metadata"]["annotations"] = NODE_FILLING
    return made


FACTS = {"vendor": "nvidia", "architecture": "Hopper", "pciBusID": "0000:1b:00.0", "pcieRoot": "pci0000:16"}


def pod_name(node: int, index: int, at: int) -> str:
    return f"training-{node:05d}-{index}-{at}"


def pods_of(node: int) -> Iterator[dict[str, Any]]:
    for index, sizes in enumerate(sizes_of(node)):
        for at, size in enumerate(sizes):
            yield real(pod(pod_name(node, index, at), size, node=name_of(node), phase="Running"))
            plain = pod(f"web-{node:05d}-{index}-{at}", container("main", 0), node=name_of(node), phase="Running")
            yield real(plain)


def real(made: dict[str, Any]) -> dict[str, Any]:
    """About as large as pods are."""
    metadata = made["metadata"] | {"resourceVersion": "1", "annotations": FILLING}
    return made | {"metadata": metadata}


class Server:
    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self._version = 10
        self._watching: dict[str, set[asyncio.Queue[bytes]]] = {NODE_DEVICES: set(), PODS: set()}
        self._tasks: set[asyncio.Task[None]] = set()

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/bench/change", self._change)
        app.router.add_get(NODE_DEVICES, self._get)
        app.router.add_get(PODS, self._get)
        return app

    async def _get(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("watch"):
            return await self._watch(request)
        of_page = 50 if request.path == NODE_DEVICES else 16  # nodes; of a page of 500 objects
        start = int(request.query.get("continue") or 0)
        end = min(self._nodes, start + of_page)
        metadata = {"resourceVersion": "10"} | ({"continue": str(end)} if end < self._nodes else {})
        if request.path == NODE_DEVICES:
            items = [node_of(at) for at in range(start, end)]
        else:
            items = [each for at in range(start, end) for each in pods_of(at)]
        text = orjson.dumps({"kind": "List", "metadata": metadata, "items": items})
        return web.Response(body=text, content_type="application/json")

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._watching[request.path].add(queue)
        try:
            while True:
                await response.write(await queue.get())
        finally:
            self._watching[request.path].discard(queue)

    async def _change(self, _: web.Request) -> web.Response:
        task = asyncio.create_task(self._changes())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return web.json_response({})

    async def _changes(self) -> None:
        """One pod is new and one NodeDevices shows another holder, so often a second, on nodes all over the fleet."""
        dice = random.Random("changes")
        loop = asyncio.get_running_loop()
        began = loop.time()
        for at in range(CHANGES_PER_SECOND * CHANGE_SECONDS):
            await asyncio.sleep(max(0.0, began + at / CHANGES_PER_SECOND - loop.time()))
            self._version += 1
            coming, shown = dice.randrange(self._nodes), node_of(dice.randrange(self._nodes), version=self._version)
            shown["status"]["devices"][at % GPUS]["holders"][0]["pod"] = f"other-{at}"
            self._send(PODS, "ADDED", real(pod(f"coming-{at}", 1, node=name_of(coming))))
            self._send(NODE_DEVICES, "MODIFIED", shown)

    def _send(self, path: str, kind: str, thing: dict[str, Any]) -> None:
        line = orjson.dumps({"type": kind, "object": thing}) + b"\n"
        for queue in self._watching[path]:
            queue.put_nowait(line)


async def serve(nodes: int) -> None:
    runner = web.AppRunner(Server(nodes).app(), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[2])))
