"""What an agent that lies reports hurts its own node at most: the operator over an API server in memory."""

from __future__ import annotations

import asyncio
import copy
import re
from typing import Any

from hypothesis import given, settings, strategies as st
from nodedevices_api.bounds import MAX_DEVICES
from nodedevices_api.fields import HEALTH_MESSAGE_LIMIT
from nodedevices_api.nodedevices import MAX_HOLDERS
from nodedevices_operator.concerns.budget import BURST
from nodedevices_operator.concerns.port import READS_AT_ONCE, READS_WAIT_SECONDS, SECONDS_PER_READ
from nodedevices_operator.kube.port import KubeError
from nodedevices_operator.manager import Manager
from nodedevices_operator.metrics import OperatorMetrics
from nodedevices_operator.records import names
from nodedevices_operator.records.kinds import Kind, read
from structlog.testing import capture_logs
from support.cases import cases
from support.clock import Clock
from support.fakekube import FakeKube, Raw
from support.fuzzing import scaled
from support.marking import next_node
from support.opfacts import GPU, MEMORY, SINCE, device, holder, node_devices, raw_policy, resource

LIAR, NEIGHBOUR = "liar", "neighbour"
POLICY: dict[str, Any] = {
    "capacity": [{"name": MEMORY, "sumOf": "memoryMiB"}],
    "labels": {"featureDiscovery": True, "extra": {"example.com/tier": "gold"}},
}
BYSTANDER = "on-liar-without-a-device"


class World:
    """Two nodes with a pod each on GPU-0; the operator has seen both well. Reads of pods are counted by path.

    On the liar's node runs a pod without a device, too, that requests what every pod does, what the operator sells
    there, and a name that nobody grants the node.
    """

    def __init__(self) -> None:
        self.kube, self.clock = FakeKube(), Clock()
        self.manager = Manager(self.kube, OperatorMetrics(), clock=self.clock)
        self.reads: list[str] = []
        self.kube.fails = self._seen
        self.kube.put(f"{names.POLICIES}/p", raw_policy("p", **POLICY))
        for node in (LIAR, NEIGHBOUR):
            ready = [{"type": "Ready", "status": "True", "lastTransitionTime": SINCE}]
            shown = {"capacity": {GPU: "1"}, "allocatable": {GPU: "1"}, "conditions": ready}
            head = {"name": node, "uid": f"uid-{node}", "labels": {}}
            self.kube.put(f"{names.NODES}/{node}", {"metadata": head, "status": shown})
            self.kube.put(self.path(node), self._object(node, device(0, holders=[holder(f"on-{node}")])))
            container = {"name": "main", "resources": {"limits": {GPU: "1"}}}
            pod = {"nodeName": node, "containers": [container]}
            head = {"name": f"on-{node}", "namespace": "ml", "uid": f"uid-on-{node}"}
            status = {"phase": "Running", "startTime": SINCE}
            self.kube.put(names.pod_path("ml", f"on-{node}"), {"metadata": head, "spec": pod, "status": status})
        limits = dict.fromkeys(("cpu", "memory", MEMORY, "example.com/x"), "1")
        pod = {"nodeName": LIAR, "containers": [{"name": "main", "resources": {"limits": limits}}]}
        head = {"name": BYSTANDER, "namespace": "ml", "uid": f"uid-{BYSTANDER}"}
        status = {"phase": "Running", "startTime": SINCE}
        self.kube.put(names.pod_path("ml", BYSTANDER), {"metadata": head, "spec": pod, "status": status})

    async def begin(self) -> World:
        await self.manager.relister.once()
        await self.settle()
        self.kube.writes.clear()
        self.reads.clear()
        return self

    async def report(self, node: str, *devices: Raw, **status: Any) -> None:
        before = self.kube.objects[self.path(node)]
        made = self._object(node, *devices, **status)
        made["spec"], made["metadata"]["generation"] = before["spec"], before["metadata"]["generation"]
        raw = self.kube.put(self.path(node), made)
        self.manager.arrived(Kind.NODE_DEVICES, False, read(Kind.NODE_DEVICES, raw))
        await self.settle()

    async def settle(self) -> None:
        """Every node that is due is reconciled, as the workers do it."""
        for _ in range(20):
            if (node := await next_node(self.manager)) is None:
                return
            try:
                self.manager.nodes.done(node, await self.manager.reconcile_node(node))
            except Exception as error:
                self.manager.nodes.failed(node, getattr(error, "seconds", None) or 0.0)
        raise AssertionError("it does not come to rest")

    def condition(self, node: str) -> tuple[str, str]:
        """Of the pod on that node."""
        shown = self.kube.objects[names.pod_path("ml", f"on-{node}")]["status"].get("conditions", [])
        return next(((it["status"], it["reason"]) for it in shown), ("", ""))

    def _seen(self, verb: str, path: str) -> KubeError | None:
        if verb == "get" and "/pods/" in path:
            self.reads.append(path)
        return None

    @staticmethod
    def path(node: str) -> str:
        return f"{names.NODE_DEVICES}/{node}"

    @staticmethod
    def _object(node: str, *devices: Raw, **status: Any) -> Raw:
        made = node_devices(*devices, **status)
        made["metadata"] |= {"name": node, "uid": f"nd-{node}"}
        return made


def lost(index: int, *holders: Raw) -> Raw:
    return device(index, "Unhealthy", "Xid79", holders=list(holders))


NAMELESS = ("on-liar/status", "on-liar\n", "on-liar?force=true", "..", ".", "%2e%2e", "x" * 300, "\u202egpj", "X", "")


@cases(("namespace", "pod"), *(("ml", name) for name in NAMELESS), ("..", "on-liar"), ("ml/pods/x", "y"), ("", "y"))
async def test_a_name_that_no_pod_can_have_is_requested_nowhere(namespace: str, pod: str) -> None:
    world = await World().begin()
    await world.report(LIAR, lost(0, holder(pod, namespace=namespace), holder("on-liar")))
    assert world.condition(LIAR) == ("False", "Xid79")
    assert set(world.reads) == {names.pod_path("ml", "on-liar")}


async def test_thousands_of_invented_pods_cost_so_many_reads_and_delay_nobody_else() -> None:
    world = await World().begin()
    for round_ in range(3):  # other names each time, as fast as it can write
        crowd = [lost(i, *(holder(f"p-{round_}-{i}-{n}") for n in range(64))) for i in range(30)]
        await world.report(LIAR, *crowd)
    assert len(world.reads) <= READS_AT_ONCE
    await world.report(NEIGHBOUR, lost(0, holder("on-neighbour")))
    assert world.condition(NEIGHBOUR) == ("False", "Xid79")
    world.reads.clear()
    for _ in range(60):
        world.clock.now += 1
        await world.settle()
    assert 0 < len(world.reads) <= 60 / SECONDS_PER_READ


async def test_a_node_that_reports_the_truth_again_is_trusted_again() -> None:
    world = await World().begin()
    await world.report(LIAR, *(lost(i, *(holder(f"p-{i}-{n}") for n in range(64))) for i in range(30)))
    world.clock.now += 10 * READS_WAIT_SECONDS
    await world.report(LIAR, lost(0, holder("on-liar")))
    assert world.condition(LIAR) == ("False", "Xid79")


async def test_the_largest_status_that_the_schema_takes_is_bounded_in_what_it_causes_and_delays_nobody() -> None:
    """Every list is full, every name another, and every text as long and as hostile as it may be."""
    world = await World().begin()
    text = ("\x1b[2J\n\u202e" * HEALTH_MESSAGE_LIMIT)[:HEALTH_MESSAGE_LIMIT]
    crowd = [
        device(
            index,
            health={"state": "Unhealthy", "reason": "Xid79", "message": text, "since": SINCE},
            holders=[holder(f"p-{index}-{number}") for number in range(MAX_HOLDERS)],
            notices=[{"code": "Xid31", "message": text, "since": SINCE, "time": SINCE, "count": 2**31 - 1}] * 4,
        )
        for index in range(MAX_DEVICES)
    ]
    crowd[0]["holders"][0] = holder("on-liar")
    retired = [{"name": f"example.com/{number}", "since": SINCE} for number in range(64)]
    for _ in range(2):
        await world.report(LIAR, *crowd, retiredResources=retired)
    assert len(world.reads) <= READS_AT_ONCE
    assert len(world.kube.events) <= BURST
    assert len(world.kube.written(world.path(LIAR))) <= 12, "its NodeDevices, a few times for each report"
    await world.report(NEIGHBOUR, lost(0, holder("on-neighbour")))
    assert world.condition(NEIGHBOUR) == ("False", "Xid79")


async def test_a_report_that_comes_after_a_newer_one_is_not_acted_on() -> None:
    world = await World().begin()
    await world.report(LIAR, lost(0, holder("on-liar")))
    late = copy.deepcopy(world.kube.objects[world.path(LIAR)])
    await world.report(LIAR, device(0, holders=[holder("on-liar")]))
    assert world.condition(LIAR) == ("True", "Healthy")
    world.kube.writes.clear()
    world.manager.arrived(Kind.NODE_DEVICES, False, read(Kind.NODE_DEVICES, late))
    await world.settle()
    assert (world.condition(LIAR), world.kube.writes) == (("True", "Healthy"), [])


@cases("name", "cpu", "memory", MEMORY, "example.com/x", "")
async def test_a_pod_is_not_marked_by_a_resource_that_its_node_is_not_granted(name: str) -> None:
    """The agent says that the pod holds a lost GPU by its CPU request, and even that it offers that name."""
    world = await World().begin()
    bystander = world.kube.objects[names.pod_path("ml", BYSTANDER)]
    before = str(bystander)
    claim = holder(BYSTANDER, resource=name)
    await world.report(LIAR, lost(0, holder("on-liar"), claim), resources=[resource(1, 1, name or "x")])
    assert world.condition(LIAR) == ("False", "Xid79"), "who does hold it"
    assert str(world.kube.objects[names.pod_path("ml", BYSTANDER)]) == before
    assert not [path for _, path, _ in world.kube.writes if BYSTANDER in path]


TEXT = st.sampled_from(["", "Xid79", "x" * 600, "a\nb", "\x1b[2J", "\u202e", "{{7*7}}", "${jndi:x}", "../..", "0"])
TIMES = st.sampled_from([SINCE, "", "yesterday", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", "2026-11-21"])
NODES = st.sampled_from([LIAR, NEIGHBOUR, "kube-system", "..", BYSTANDER.removeprefix("on-")])
HEALTH = st.fixed_dictionaries(
    {"state": st.sampled_from(["Healthy", "Degraded", "Unhealthy", "Unknown", "Superb"]), "reason": TEXT},
    optional={"message": TEXT, "since": TIMES, "recoveryAction": TEXT, "faultDomain": TEXT},
)
HOLDERS = st.lists(
    st.builds(
        lambda node, since, resource: holder(f"on-{node}", since=since, resource=resource),
        NODES,
        TIMES,
        st.sampled_from([GPU, "cpu", "memory", "", MEMORY, "example.com/x"]),
    ),
    max_size=3,
)
DEVICES = st.lists(
    st.builds(
        lambda index, health, holders, memory: device(
            index, holders=holders, health=health, capacity={"memory": memory}
        ),
        st.integers(0, 2),
        HEALTH,
        HOLDERS,
        st.sampled_from(["80Gi", "-1", "1e99", "NaN", "9" * 400, ""]),
    ),
    max_size=3,
)
RESOURCES = st.lists(
    st.builds(
        resource,
        st.integers(-(2**63), 2**63),
        st.integers(-(2**63), 2**63),
        st.sampled_from([GPU, MEMORY, "cpu", "example.com/x"]),
        st.sampled_from(["plugin", "operator", "dra", "god"]),
    ),
    max_size=3,
)
STATUS = st.fixed_dictionaries(
    {},
    optional={
        "resources": RESOURCES,
        "retiredResources": st.lists(
            st.builds(lambda name: {"name": name, "since": SINCE}, st.sampled_from([GPU, MEMORY, "cpu", "a/b"]))
        ),
        "affectedPods": st.lists(
            st.builds(
                lambda node, since: {
                    "namespace": "ml",
                    "name": f"on-{node}",
                    "uid": f"uid-on-{node}",
                    "device": "GPU-0",
                    "reason": "Xid79",
                    "since": since,
                },
                NODES,
                TIMES,
            ),
            max_size=3,
        ),
        "nodeUID": st.sampled_from([f"uid-{LIAR}", f"uid-{NEIGHBOUR}", ""]),
        "heartbeat": TIMES,
        "drivers": st.lists(st.builds(lambda text: {"name": "nvidia", "version": text}, TEXT), max_size=2),
    },
)


@settings(max_examples=scaled(60))
@given(st.lists(st.tuples(DEVICES, STATUS), min_size=1, max_size=3))
def test_whatever_it_reports_only_its_own_node_and_pods_are_written(reports: list[tuple[list[Raw], Raw]]) -> None:
    async def live() -> None:
        world = await World().begin()
        await world.report(NEIGHBOUR, lost(0, holder("on-neighbour")))
        assert world.condition(NEIGHBOUR) == ("False", "Xid79")
        others = [each for each in world.kube.objects.items() if NEIGHBOUR in each[0]]
        before = [(path, str(each)) for path, each in others]
        world.kube.writes.clear()
        world.kube.events.clear()
        for devices, status in reports:
            world.clock.now += 200
            await world.report(LIAR, *devices, **status)
        assert [(path, str(world.kube.objects[path])) for path, _ in others] == before
        own = f"{names.NODES}/{LIAR}", world.path(LIAR), names.pod_path("ml", f"on-{LIAR}"), f"{names.POLICIES}/p"
        for _, path, body in world.kube.writes:
            if body and isinstance(body, dict) and body.get("kind") == "Event":
                about = body["involvedObject"]
                assert (about["kind"], about["name"]) in {("NodeDevices", LIAR), ("Pod", f"on-{LIAR}")}
                continue
            assert path.removesuffix("/status") in own
        for name, amount in world.kube.objects[own[0]]["status"]["capacity"].items():
            assert name in {GPU, MEMORY}, "only what a policy grants, and what the kubelet has"
            assert re.fullmatch(r"[0-9]{1,19}", amount)
        assert set(world.kube.objects[own[0]]["metadata"]["labels"]) <= {"example.com/tier"} | {
            key for key in world.kube.objects[own[0]]["metadata"]["labels"] if key.startswith("nvidia.com/")
        }

    with capture_logs() as said:
        asyncio.run(live())
    assert [each for each in said if each["log_level"] == "error"] == [], "a concern failed"
