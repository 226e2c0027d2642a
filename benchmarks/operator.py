"""The real operator process beside a fleet: on a real kube-apiserver, and on a recording of it.

The API server (no nodes, no root; its fleet is fleet.py's) is there for what the operator writes: a fresh install, a
policy that touches every node, and faults on many nodes at once. What needs no write is measured on a recording of
that same fleet (recorded.py), where nothing else takes the cores: the first sync, memory, and what one change costs.

Floors are clients that decode and drop, or make the same calls (bare.py), in their own processes and in the same
run; between them and the operator stands kopf with handlers that drop. CPU is user and system time of the process that
is measured; seconds are this machine's, which API server, operator and fleet share.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.rig import processes
from cluster.rig.problem import Progress, RigError
from support import fleet as support_fleet
from support.apiserver import ApiServer
from support.kubectl import Kubectl, condition, wait_until
from support.operatorprocess import OperatorProcess, service_account

from benchmarks.bare import COLLECTIONS, NODE_DEVICES, NODES, Call, Client, Took, apply
from benchmarks.fleet import Fleet, model, own, pods
from benchmarks.process import Rest, cpu_seconds, memory_mib, until_it_rests
from benchmarks.recorded import Recorded, plural, record
from benchmarks.table import NotHere, Row, percentile

ROOT = Path(__file__).resolve().parents[1]
NODES_BY_DEFAULT = 1000
TIMES = 3  # the recording is shown, and so many times over
TARGETS_ARE_FOR = 5000  # nodes: the recording is shown as often as makes these, and TIMES so many
STRUCK = 750  # nodes that fault at once
CHANGES = 2000
PER_SECOND = 200.0
READY_SECONDS = 300.0
POD_CONDITION = "nodedevices.io/DeviceHealthy"
LISTS_DECODED = "the same lists, decoded and dropped"
EVENTS_DECODED = "the same events, decoded and dropped"
SAME_CALLS = "the same calls, 16 at once, nothing decided"
ARGUMENTS, RELIST_SECONDS = ("--log-level=info",), 86400.0  # no LIST of its own falls into a measurement

Say = Callable[[str], None]


@dataclass(frozen=True)
class Scale:
    nodes: int
    start_quiet_seconds: float = 8.0  # on a busy machine it may wait long for its turn
    quiet_seconds: float = 2.0
    shown: int = 1  # times that the recording is shown

    @classmethod
    def of(cls, nodes: int) -> Scale:
        """Under a hundred nodes nothing is learned but that it works, so that it need not take long."""
        if nodes < 100:
            return cls(nodes, 1.5, 1.0)
        return cls(nodes, shown=max(1, TARGETS_ARE_FOR // nodes))

    @property
    def struck(self) -> int:
        return min(STRUCK, self.nodes)

    @property
    def changes(self) -> int:
        return min(CHANGES, 10 * self.nodes)


def measure(nodes: int = NODES_BY_DEFAULT) -> list[Row]:
    if sys.platform != "linux":
        raise NotHere("CPU and memory are read from Linux' /proc")
    scale, say = Scale.of(nodes), Progress().say
    with tempfile.TemporaryDirectory(prefix="nd-bench-") as folder:
        place = Path(folder)
        try:
            written = asyncio.run(OnApiServer(scale, place, say).measure())
        except RigError as error:
            raise NotHere(str(error)) from error
        return [*on_recording(scale, place / "recorded", say), *written]


# --- on the real API server -----------------------------------------------------------------------------------------
class OnApiServer:
    def __init__(self, scale: Scale, folder: Path, say: Say) -> None:
        self._scale = scale
        self._folder = folder
        self._recorded = folder / "recorded"
        self._recorded.mkdir()
        self._say = say
        self._storm_work: list[Work] = []

    async def measure(self) -> list[Row]:
        with ApiServer(self._folder / "apiserver") as server:
            [self._server] = processes.find((self._folder / "apiserver").absolute(), "kube-apiserver")
            kubectl = Kubectl(server.kubeconfig, str(server.kubectl))
            kubectl.run("apply", "--server-side", "-k", str(ROOT / "crds"))
            crds = [f"crd/{name}.nodedevices.io" for name in ("nodedevices", "devicepolicies")]
            wait_until("CRDs", lambda: kubectl.run("wait", "--for=condition=Established", "--timeout=30s", *crds))
            support_fleet.namespace(kubectl)
            self._credentials = service_account(kubectl, self._folder)
            self._admin = await Client.connect(str(server.kubeconfig))
            try:
                agent = self._folder / "agent"
                agent.mkdir()
                shape = await model(server.kubeconfig, kubectl, agent)
                self._fleet = await Fleet.create(
                    self._admin, shape, self._scale.nodes, self._say, with_pods=self._scale.struck
                )
                self._struck = self._fleet.names[: self._scale.struck]
                await self._fleet.run(self._struck)
                return await self._parts()
            finally:
                await self._admin.close()

    async def _parts(self) -> list[Row]:
        with operating(self._folder, self._credentials) as operator:
            fresh = await self._fresh(operator)
        self._say("recording")
        await record(self._admin, self._recorded)
        with operating(self._folder, self._credentials) as operator:
            again = Start.of(operator.pid, self._scale.start_quiet_seconds, ready(operator))
            policy = await self._policy(operator)
            storm = await self._storm(operator)
            await self._recover(operator)
            storm += await self._storm(operator, policy="everywhere")
        self._say("floors: the same calls by a client that decides nothing")
        with bare(self._credentials, "watch") as process:
            floor = Start.of(process.pid, self._scale.quiet_seconds, listed(process))
        with bare(self._credentials, "calls") as process:
            lists, server = await self._calls(process, self._lists())
            writes, _ = await self._calls(process, self._writes())
            conditions, _ = await self._calls(process, self._node_conditions())
            marks, _ = await self._calls(process, self._marks())
        nodes, struck = self._scale.nodes, len(self._struck)
        many = f"{nodes:,} nodes"
        return [
            *again.rows(f"{many}, a restart beside kube-apiserver", floor),
            *fresh.rows(f"{many}, a fresh install", total(lists, writes, conditions), nodes),
            Row(what=f"{many}, a LIST of pods each: the calls alone", measured=lists.seconds, unit="s"),
            Row(what="  CPU of the client for each", measured=1000 * lists.cpu_seconds / nodes, unit="ms"),
            Row(what="  CPU of kube-apiserver for each", measured=1000 * server / nodes, unit="ms"),
            *policy.rows(f"{many}, a policy touches all", writes, nodes),
            *storm,
            *self._storm_work[0].rows(f"{struck:,} nodes, a fault on a held GPU each", marks, struck),
        ]

    async def _fresh(self, operator: OperatorProcess) -> Work:
        self._say("fresh install: the operator has seen none of these nodes")
        began, server = time.monotonic(), cpu_seconds(self._server.pid)
        rest = await self._rest(operator, self._scale.start_quiet_seconds)
        return Work(rest.at - began, rest.cpu_seconds, cpu_seconds(self._server.pid) - server, concerns(operator, {}))

    async def _policy(self, operator: OperatorProcess) -> Work:
        self._say("a policy that touches every node")
        return await self._work(operator, lambda: self._reach_all("bench", {"health": {"holdDownSeconds": 60}}))

    async def _reach_all(self, name: str, sections: dict[str, Any]) -> None:
        await self._admin.call(Call("POST", COLLECTIONS[0], body=support_fleet.policy(name, **sections)))

    async def _recover(self, operator: OperatorProcess) -> None:
        self._say(f"{len(self._struck)} nodes are well again")
        await self._work(operator, lambda: self._fleet.report(self._struck))

    async def _storm(self, operator: OperatorProcess, policy: str = "") -> list[Row]:
        """`policy`: the name of one that is made at the same moment, and reaches all nodes."""
        also = ", while a policy reaches all" if policy else ""
        self._say(f"{len(self._struck)} nodes report a fault at once{also}")
        listing = json.loads(await self._admin.call(Call("GET", pods(), {"limit": "1"})))
        marked: dict[str, float] = {}
        moments: dict[str, float] = {}

        async def notice() -> None:
            async for event in self._admin.watch(pods(), listing["metadata"]["resourceVersion"]):
                if condition(event["object"], POD_CONDITION).get("status") == "False":
                    marked.setdefault(event["object"]["metadata"]["name"], time.monotonic())

        async def strike() -> None:
            if policy:
                await self._reach_all(policy, {"faults": {"event": False}})
            moments["first"] = time.monotonic()
            await self._fleet.report(self._struck, at_fault=True)
            moments["last"] = time.monotonic()

        noticing = asyncio.create_task(notice())
        try:
            self._storm_work.append(await self._work(operator, strike))
        finally:
            noticing.cancel()
            await asyncio.gather(noticing, return_exceptions=True)
        if len(marked) != len(self._struck):
            raise RuntimeError(f"{len(marked)} of {len(self._struck)} pods were marked")
        first, last, ends = moments["first"], moments["last"], sorted(marked.values())
        name = f"{len(self._struck):,} nodes fault at once{also}"
        wrote = last - first
        return [
            Row(what=f"{name}: first report -> last report", measured=wrote, unit="s"),
            Row(what="  first report -> first pod marked", measured=ends[0] - first, unit="s"),
            Row(what="  first report -> half of the pods marked", measured=percentile(ends, 50) - first, unit="s"),
            Row(what="  last report -> last pod marked", measured=ends[-1] - last, unit="s", target=10.0),
        ]

    # --- floors ------------------------------------------------------------------------------------------------------
    def _lists(self) -> list[Call]:
        """The requests of a fresh install to the API server for each node."""
        return [Call("GET", "/api/v1/pods", {"fieldSelector": f"spec.nodeName={name}"}) for name in self._fleet.names]

    def _writes(self) -> list[Call]:
        """A write of the object and one of its status for each node, as a policy causes them."""
        found = []
        for name in self._fleet.names:
            body = own(name, annotations={"bench.example/config": "x" * 200})
            found.append(apply(f"{NODE_DEVICES}/{name}", body, "bench"))
            found.append(self._condition(f"{NODE_DEVICES}/{name}", own(name)))
        return found

    def _node_conditions(self) -> list[Call]:
        """A fresh install writes one on every Node as well."""
        return [self._node_condition(name) for name in self._fleet.names]

    def _marks(self) -> list[Call]:
        """For each fault: the pod is read and marked, and the NodeDevices, the Node and two Events are written."""
        found = []
        for name in self._struck:
            pod = self._fleet.model.marked_pod(name)
            path = f"{pods()}/{pod}"
            head = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod, "namespace": support_fleet.NAMESPACE}}
            found += [
                Call("GET", path),
                self._condition(f"{NODE_DEVICES}/{name}", own(name)),
                self._condition(path, head),
                self._node_condition(name),
                *(self._event(name, number) for number in range(2)),
            ]
        return found

    def _node_condition(self, name: str) -> Call:
        return self._condition(
            f"{NODES}/{name}", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}, manager="bench-node"
        )

    @staticmethod
    def _condition(path: str, head: dict[str, Any], manager: str = "bench") -> Call:
        made = {"type": "BenchFloor", "status": "True", "reason": "Floor", "message": "x" * 100}
        made["lastTransitionTime"] = support_fleet.stamp()
        return apply(f"{path}/status", head | {"status": {"conditions": [made]}}, manager)

    @staticmethod
    def _event(name: str, number: int) -> Call:
        about = {"apiVersion": "v1", "kind": "Pod", "name": name, "namespace": support_fleet.NAMESPACE}
        metadata = {"name": f"{name}-floor-{number}", "namespace": support_fleet.NAMESPACE}
        body = {"apiVersion": "v1", "kind": "Event", "metadata": metadata, "involvedObject": about, "type": "Warning"}
        body |= {"reason": "Floor", "message": "x" * 100, "reportingComponent": "bench"}
        return Call("POST", f"/api/v1/namespaces/{support_fleet.NAMESPACE}/events", body=body)

    async def _calls(self, process: subprocess.Popen[str], calls: Sequence[Call]) -> tuple[Took, float]:
        """What they took, and the CPU of the API server meanwhile."""
        before = cpu_seconds(self._server.pid)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps([vars(call) for call in calls]) + "\n")
        process.stdin.flush()
        line = await asyncio.to_thread(process.stdout.readline)
        if not line:
            raise RuntimeError("the floor's calls failed; see above")
        return Took(**json.loads(line)), cpu_seconds(self._server.pid) - before

    async def _work(self, operator: OperatorProcess, cause: Callable[[], Any]) -> Work:
        """From the cause until the operator rests again."""
        before = concerns(operator, {})
        began, used, server = time.monotonic(), cpu_seconds(operator.pid), cpu_seconds(self._server.pid)
        await cause()
        rest = await self._rest(operator, self._scale.quiet_seconds)
        taken = cpu_seconds(self._server.pid) - server
        return Work(rest.at - began, rest.cpu_seconds - used, taken, concerns(operator, before))

    @staticmethod
    async def _rest(operator: OperatorProcess, quiet: float) -> Rest:
        return await asyncio.to_thread(until_it_rests, operator.pid, quiet, idle(operator))


@dataclass(frozen=True)
class Work:
    """What the operator did about one cause."""

    seconds: float
    cpu_seconds: float
    server_cpu_seconds: float
    writes: dict[str, int]  # by concern

    def rows(self, name: str, floor: Took, count: int) -> list[Row]:
        tally = ", ".join(f"{each} {number:,}" for each, number in sorted(self.writes.items())) or "none"
        each_ms, floor_ms = (1000 * seconds / count for seconds in (self.cpu_seconds, floor.cpu_seconds))
        return [
            Row(what=f"{name} -> rests", measured=self.seconds, unit="s", floor=floor.seconds, floor_is=SAME_CALLS),
            Row(what="  CPU of the operator for each", measured=each_ms, unit="ms", floor=floor_ms,
                floor_is=SAME_CALLS),
            Row(what="  CPU of kube-apiserver for each", measured=1000 * self.server_cpu_seconds / count, unit="ms"),
            Row(what=f"  writes: {tally}", measured=sum(self.writes.values()) / count, unit="each"),
        ]  # fmt: skip


def total(*parts: Took) -> Took:
    return Took(sum(each.seconds for each in parts), sum(each.cpu_seconds for each in parts))


# --- on the recording -----------------------------------------------------------------------------------------------
def on_recording(scale: Scale, folder: Path, say: Say) -> list[Row]:
    rows = [
        Row(what=f"{name}, as it is listed", measured=size(folder, path) / scale.nodes / 1024, unit="KiB")
        for name, path in (("a NodeDevices", NODE_DEVICES), ("a Node", NODES))
    ]
    floors: Costs = {}
    costs: Costs = {}
    changed_mib = 0.0
    at_rest: dict[int, float] = {}  # MiB, by nodes
    for times in (scale.shown, TIMES * scale.shown):
        nodes, streams = scale.nodes * times, times == TIMES * scale.shown
        say(f"a recording of {nodes:,} nodes: a client that drops them, and the operator")
        with Recorded.of(folder, times) as api, bare(api.kubeconfig, "watch") as process:
            floor = Start.of(process.pid, scale.quiet_seconds, listed(process))
            floors = streamed(api, process.pid, scale, say) if streams else {}
        with Recorded.of(folder, times) as api, operating(folder, api.kubeconfig) as operator:
            start = Start.of(operator.pid, scale.start_quiet_seconds, ready(operator))
            rows += start.rows(f"{nodes:,} nodes, a restart", floor, targets=nodes == TARGETS_ARE_FOR)
            at_rest[nodes] = start.resident_mib
            costs = streamed(api, operator.pid, scale, say) if streams else {}
            changed_mib = memory_mib(operator.pid)
            if wrote := api.refused():
                raise RuntimeError(f"the operator wrote to the recording: {wrote}")
    (fewer, little), (more, much) = at_rest.items()
    rows.append(Row(what="  memory for each node more", measured=1024 * (much - little) / (more - fewer), unit="KiB"))
    rows.append(Row(what="  memory after these changes", measured=changed_mib, unit="MiB"))
    say("the same through kopf alone")
    with Recorded.of(folder, TIMES * scale.shown) as api, bare(api.kubeconfig, "kopf") as process:
        alone = Start.of(process.pid, scale.start_quiet_seconds)
        through_kopf = streamed(api, process.pid, scale, say)
    rows.append(Row(what="  kopf with handlers that drop: CPU", measured=alone.cpu_seconds, unit="s"))
    rows.append(Row(what="  kopf with handlers that drop: memory at rest", measured=alone.resident_mib, unit="MiB"))
    for key, name in STREAMS.items():
        target = 1.5 * through_kopf[key]
        rows += [
            Row(what=f"{name}: CPU each", measured=costs[key], unit="ms", target=target, floor=floors[key],
                floor_is=EVENTS_DECODED),
            Row(what="  kopf with handlers that drop", measured=through_kopf[key], unit="ms", floor=floors[key],
                floor_is=EVENTS_DECODED),
        ]  # fmt: skip
    beat = costs["nodes", "node-heartbeat"]
    for seconds, often in ((10, "10 s"), (300, "5 min")):
        percent = 100 * nodes / seconds * beat / 1000
        rows.append(Row(what=f"  so {nodes:,} Nodes, each every {often}", measured=percent, unit="% of a core"))
    return rows


def size(folder: Path, path: str) -> int:
    return (folder / f"{plural(path)}.ndjson").stat().st_size


Costs = dict[tuple[str, str], float]  # milliseconds of CPU for each event, by collection and change
STREAMS = {
    ("nodedevices", "holder"): "another pod holds a GPU, nothing to write",
    ("nodedevices", "agent-heartbeat"): "an agent's heartbeat",
    ("nodes", "node-heartbeat"): "a kubelet's heartbeat on its Node",
}


def streamed(api: Recorded, pid: int, scale: Scale, say: Say) -> Costs:
    found = {}
    for collection, change in STREAMS:
        say(f"  {scale.changes} events at {PER_SECOND:.0f} per second: {change}")
        before = cpu_seconds(pid)
        api.stream(collection, change, count=scale.changes, rate=PER_SECOND)
        rest = until_it_rests(pid, scale.quiet_seconds)
        found[collection, change] = 1000 * (rest.cpu_seconds - before) / scale.changes
    return found


# --- processes ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Start:
    """Of a process that was started a moment ago, once it has listed everything and rests."""

    ready_seconds: float
    seconds: float
    cpu_seconds: float
    resident_mib: float
    peak_mib: float

    @classmethod
    def of(cls, pid: int, quiet_seconds: float, until_ready: Callable[[], object] = lambda: None) -> Start:
        began = time.monotonic()
        until_ready()
        ready = time.monotonic()
        rest = until_it_rests(pid, quiet_seconds)
        return cls(ready - began, rest.at - began, rest.cpu_seconds, memory_mib(pid), memory_mib(pid, "VmHWM"))

    def rows(self, name: str, floor: Start, *, targets: bool = False) -> list[Row]:
        """`targets`: as many nodes as these are for."""
        return [
            Row(what=f"{name}: start -> ready", measured=self.ready_seconds, unit="s", target=10 if targets else None,
                floor=floor.ready_seconds, floor_is=LISTS_DECODED),
            Row(what="  start -> rests", measured=self.seconds, unit="s"),
            Row(what="  CPU", measured=self.cpu_seconds, unit="s", target=6 if targets else None,
                floor=floor.cpu_seconds, floor_is=LISTS_DECODED),
            Row(what="  memory at rest, resident", measured=self.resident_mib, unit="MiB",
                target=150 if targets else None, floor=floor.resident_mib, floor_is=LISTS_DECODED),
            Row(what="  memory at most", measured=self.peak_mib, unit="MiB", floor=floor.peak_mib,
                floor_is=LISTS_DECODED),
        ]  # fmt: skip


@contextmanager
def operating(folder: Path, kubeconfig: Path) -> Iterator[OperatorProcess]:
    """The operator, just started."""
    operator = OperatorProcess(folder, kubeconfig, *ARGUMENTS, fresh=True, relist_seconds=RELIST_SECONDS)
    operator.start(ready=False)
    try:
        yield operator
    finally:
        operator.kill()


@contextmanager
def bare(kubeconfig: Path, role: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "benchmarks.bare", str(kubeconfig), role]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT) as process:
        try:
            yield process
        finally:
            process.kill()


def ready(operator: OperatorProcess) -> Callable[[], object]:
    """Until /readyz says so: everything was listed and is watched."""
    return lambda: wait_until("ready", lambda: operator.get("/readyz")[0] == 200, seconds=READY_SECONDS, every=0.1)


def idle(operator: OperatorProcess) -> Callable[[], bool]:
    """Whether it is ready, and has nothing queued and nothing under way."""

    def look() -> bool:
        try:
            return operator.get("/readyz")[0] == 200 and operator.metric("nodedevices_operator_queue_depth") == 0
        except ConnectionError:  # on a busy machine it may not listen yet
            return False

    return look


def listed(process: subprocess.Popen[str]) -> Callable[[], object]:
    """Until it says so."""
    assert process.stdout is not None
    return process.stdout.readline


def concerns(operator: OperatorProcess, before: dict[str, int]) -> dict[str, int]:
    """Writes by concern since then, as the operator's metrics have them."""
    code, text = operator.get("/metrics")
    if code != 200:
        raise RuntimeError(f"/metrics: {code}")
    found = re.findall(r'^nodedevices_operator_writes_total\{concern="([^"]+)"\} (\S+)$', text, re.MULTILINE)
    counts = {concern: int(float(number)) - before.get(concern, 0) for concern, number in found}
    return {concern: number for concern, number in counts.items() if number}
