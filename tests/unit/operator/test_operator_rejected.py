"""Deleting pods that a kubelet rejected for want of a device with enough free memory: which, when, and no other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from nodedevices_common.backoff import Backoff
from nodedevices_operator import settings
from nodedevices_operator.cache.rejected import RejectedPods
from nodedevices_operator.concerns.rejected_pods import BURST, MAX_AT_ONCE, SECONDS_PER_POD, RejectedPodsConcern
from nodedevices_operator.desired.rejected import named
from nodedevices_operator.kube.port import KubeError
from nodedevices_operator.records import names
from nodedevices_operator.records import pods as records
from nodedevices_operator.records.objects import NodeDevicesRecord
from support.cases import cases
from support.concerns import RejectionBench
from support.crashes import at_most, lives
from support.fakekube import FakeKube
from support.odd_json import with_odd_value
from support.opfacts import (
    REJECTED,
    SINCE,
    device,
    node_devices,
    raw_node,
    raw_pod,
    record,
    rejected_pod,
    resource,
)
from support.patience import PATIENCE_SECONDS

MEMORY = "nodedevices.io/gpu-memory"
POD = "/api/v1/namespaces/ml/pods/web-1"
SHARE = resource(22, 22, MEMORY, sharing="memory")
SHARES = record(device(0), resources=[SHARE])


class Bench(RejectionBench):
    """The concern that deletes them, a minute after the pods' start."""

    def __init__(self, *, seconds: float = 60.0) -> None:
        super().__init__(RejectedPodsConcern, SHARES, seconds=seconds)

    @property
    def left(self) -> list[str]:
        return [path.rpartition("/")[2] for path in self.kube.objects]

    @property
    def deleted(self) -> float:
        return self.metrics.registry.get_sample_value("nodedevices_operator_deleted_rejected_pods_total") or 0.0


@pytest.fixture
def one() -> Bench:
    return Bench()


async def test_a_rejected_pod_is_deleted_and_an_event_says_why_and_whose_it_is(one: Bench) -> None:
    one.put(rejected_pod())
    await one.run()
    assert one.left == []
    assert sorted((verb, path.rpartition("/")[2]) for verb, path, _ in one.kube.writes) == [
        ("create", "events"),
        ("delete", "web-1"),
    ]
    [event] = one.kube.events
    assert (event["reason"], event["type"], event["involvedObject"]["uid"]) == (
        "DeletingRejectedPod",
        "Normal",
        "pod-web-1",
    )
    assert event["message"].startswith("deleting the pod: node n1 rejected it, so it never runs, and ReplicaSet web")
    assert "no device of this node has 12 free shares of 1Gi" in event["message"]
    assert one.deleted == 1


async def test_it_stays_for_thirty_seconds() -> None:
    one = Bench(seconds=12.0)
    one.put(rejected_pod())
    assert (await one.run()).again == pytest.approx(18.0)
    assert one.left == ["web-1"]
    one.seconds = 30.5
    await one.run()
    assert one.left == []


async def test_a_deletion_names_the_uid_and_the_state_in_which_the_pod_was_found(one: Bench) -> None:
    one.put(rejected_pod())
    await one.pods.once()
    version = one.kube.objects[POD]["metadata"]["resourceVersion"]
    one.put(raw_pod("web-1") | {"metadata": rejected_pod()["metadata"] | {"uid": "another"}})  # of the same name
    found = await one.run(watched=False)
    assert one.kube.written("pods/web-1")[0][2] == {"uid": "pod-web-1", "resourceVersion": version}
    assert (one.left, one.deleted, found.retried) == (["web-1"], 0, False)
    assert one.pods.on_node("n1") == (), "what has changed is not tried again"


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(rejected_pod() | {"status": raw_pod()["status"] | {"message": REJECTED}}, id="that runs"),
        pytest.param(
            rejected_pod() | {"status": {"phase": "Failed", "reason": "Evicted", "message": REJECTED}},
            id="that failed otherwise",
        ),
        pytest.param(rejected_pod(ownerReferences=[]), id="that nobody replaces"),
        pytest.param(
            rejected_pod(ownerReferences=[{"kind": "Team", "name": "a", "uid": "u"}]), id="whose owner controls it not"
        ),
        pytest.param(
            rejected_pod(ownerReferences=[{"kind": "Node", "name": "n1", "uid": "u", "controller": True}]),
            id="that mirrors a static pod",
        ),
        pytest.param(rejected_pod(deletionTimestamp=SINCE), id="that is being deleted"),
        pytest.param(rejected_pod(message="Allocate failed for example.com/other"), id="of another resource"),
        pytest.param(
            rejected_pod(message=REJECTED.replace(MEMORY, f"{MEMORY}-large")), id="of a resource whose name goes on"
        ),
        pytest.param(rejected_pod(message=""), id="that says nothing"),
        pytest.param(
            rejected_pod() | {"spec": {"nodeName": "n2", "containers": []}}, id="of a node that has not reported"
        ),
    ],
)
async def test_a_pod_stays(one: Bench, pod: dict[str, Any]) -> None:
    one.put(pod)
    await one.run()
    assert (one.left, one.kube.writes) == (["web-1"], [])


@pytest.mark.parametrize(
    "shown",
    [
        pytest.param(record(device(0), resources=[resource(8, 8, MEMORY)]), id="whole"),
        pytest.param(record(device(0), resources=[resource(8, 8, MEMORY, sharing="timeSlicing")]), id="time-sliced"),
        pytest.param(record(device(0), resources=[]), id="not offered"),
    ],
)
async def test_a_pod_of_a_resource_that_is_not_by_memory_stays(one: Bench, shown: NodeDevicesRecord) -> None:
    one.put(rejected_pod())
    await one.run(shown)
    assert one.left == ["web-1"]


async def test_without_the_switch_nothing_is_done(one: Bench) -> None:
    one.put(rejected_pod())
    one.begin(delete=False)
    await one.run()
    assert (one.left, one.kube.writes) == (["web-1"], [])
    assert settings.read([], {}).delete_rejected_pods is False
    assert settings.read(["--delete-rejected-pods"], {}).delete_rejected_pods is True
    assert settings.read([], {"NODEDEVICES_DELETE_REJECTED_PODS": "true"}).delete_rejected_pods is True


async def test_killed_at_any_call_and_restarted_it_deletes_the_pod_with_one_event_at_most() -> None:
    calls = dies_at = 0  # never
    while dies_at <= calls:
        kube = FakeKube()
        kube.put(f"{names.NODES}/n1", raw_node({}))
        kube.put(f"{names.NODE_DEVICES}/n1", node_devices(device(0), resources=[SHARE]))
        kube.put(POD, rejected_pod())
        made = await lives(kube, dies_at, rejected=RejectedPods(kube), delete_rejected=True)
        assert POD not in kube.objects, f"died at call {dies_at}"
        assert at_most([event["reason"] for event in kube.events], ["DeletingRejectedPod"])
        calls, dies_at = max(calls, made), dies_at + 1
    assert calls > 2


async def test_an_event_that_is_refused_does_not_keep_the_pod(one: Bench) -> None:
    one.put(rejected_pod())
    one.kube.fails = lambda verb, _: KubeError("namespace is ending", status=403) if verb == "create" else None
    await one.run()
    assert one.left == []


async def test_a_flood_of_them_is_deleted_at_a_bounded_rate(one: Bench) -> None:
    for number in range(BURST + 20):
        one.put(rejected_pod(f"web-{number}"))
    found = await one.run()
    assert (one.deleted, found.again) == (MAX_AT_ONCE, 1.0)
    while one.deleted < BURST:
        await one.run(watched=False)
    await one.run(watched=False)
    assert one.deleted == BURST, "the budget of all nodes"
    one.seconds += 2.0
    await one.run(watched=False)
    assert one.deleted == BURST + 10


async def test_nodes_that_wait_for_the_same_budget_come_by_turns(one: Bench) -> None:
    nodes = [f"m{number}" for number in range(40)]
    for node in nodes:
        for number in range(MAX_AT_ONCE + 1):
            pod = rejected_pod(f"{node}-{number}")
            one.put(pod | {"spec": pod["spec"] | {"nodeName": node}})
    waits = [(await one.run(replace(SHARES, name=node))).again for node in nodes]
    full = BURST // MAX_AT_ONCE
    assert waits[:full] == [pytest.approx(1.0 + SECONDS_PER_POD * number) for number in range(full)]
    assert waits[full:] == [pytest.approx(1.0 + SECONDS_PER_POD * number) for number in range(full, len(nodes))]
    one.concern.forget("m0")
    assert (await one.run(replace(SHARES, name="m1"), watched=False)).again == waits[-2]


@cases(
    ("message", "found"),
    ("example.com/gpu-mem: no device", "example.com/gpu-mem"),
    ("unavailable for example.com/gpu-mem. Requested: 2", "example.com/gpu-mem"),
    ('"example.com/gpu-mem"', "example.com/gpu-mem"),
    ("example.com/gpu-mem.large", None),
    ("example.com/gpu-memory", None),
    ("my.example.com/gpu-mem", None),
    ("x/example.com/gpu-mem", None),
    ("examplescom/gpu-mem", None),
)
def test_a_resource_is_named_in_full_or_not_at_all(message: str, found: str | None) -> None:
    assert named(message, ["example.com/gpu-mem"]) == found


@cases(
    "odd",
    {},
    {"metadata": None, "spec": None, "status": None},
    {"status": {"phase": "Failed", "reason": "UnexpectedAdmissionError"}, "metadata": {"ownerReferences": None}},
)
def test_a_pod_without_these_fields_is_none(odd: dict[str, Any]) -> None:
    assert records.rejected_pod(odd) is None


@given(with_odd_value(rejected_pod()))
def test_whatever_stands_at_any_place_of_a_pod_reading_it_does_not_fail(odd: dict[str, Any]) -> None:
    records.rejected_pod(odd)


# --- the watch -------------------------------------------------------------------------------------------------------
class Stream:
    """Watches that send what a test says, one list each; a KubeError ends one."""

    def __init__(self, *watches: list[tuple[str, dict[str, Any]] | bytes | KubeError]) -> None:
        self._watches = list(watches)
        self.queries: list[dict[str, str]] = []

    async def watch(self, path: str, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        self.queries.append({"path": path, **query})
        for each in self._watches.pop(0):
            if isinstance(each, KubeError):
                raise each
            yield each if isinstance(each, bytes) else orjson.dumps({"type": each[0], "object": each[1]})


async def test_only_failed_pods_are_watched_and_of_these_only_rejected_ones_are_kept() -> None:
    found = [
        ("ADDED", rejected_pod("a")),
        ("ADDED", rejected_pod("b")),
        ("ADDED", rejected_pod("c", ownerReferences=[], resourceVersion="1")),
        ("ADDED", rejected_pod("d") | {"status": {"phase": "Failed", "reason": "Evicted"}}),
        ("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": "7"}}),
    ]
    changes = [("DELETED", rejected_pod("a")), ("MODIFIED", rejected_pod("b", resourceVersion="9"))]
    stream = Stream([*found, *changes])
    pods, nodes = RejectedPods(stream), list[str]()
    pods.changed = nodes.append
    await pods.once()
    [query] = stream.queries
    assert (query["path"], query["fieldSelector"]) == ("/api/v1/pods", "status.phase=Failed")
    assert (query["resourceVersion"], 1500 <= int(query["timeoutSeconds"]) <= 1800) == ("0", True)
    assert query["allowWatchBookmarks"] == "true", "a silent watch is given up"
    assert [(each.name, each.owner, each.resource_version) for each in pods.on_node("n1")] == [
        ("b", "ReplicaSet web", "9"),
        ("c", "", "1"),
    ]
    assert nodes == ["n1", "n1", "n1", "n1"]


@cases("line", b"{", b"[]", b"{}", orjson.dumps({"type": "ERROR", "object": {"code": 410, "message": "too old"}}))
async def test_what_is_no_event_ends_the_watch_and_nothing_else(line: bytes) -> None:
    pods = RejectedPods(Stream([("ADDED", rejected_pod("a")), line]))
    with pytest.raises(KubeError):
        await pods.once()
    assert [each.name for each in pods.on_node("n1")] == ["a"]


async def test_the_next_watch_corrects_what_one_has_missed() -> None:
    pods = RejectedPods(Stream([("ADDED", rejected_pod("a"))], [("ADDED", rejected_pod("b"))]))
    await pods.once()
    await pods.once()
    assert [each.name for each in pods.on_node("n1")] == ["b"]


async def test_no_more_pods_are_remembered_than_a_bound_and_a_refused_watch_is_tried_again() -> None:
    found = [("ADDED", rejected_pod(each)) for each in "abc"]
    pods = RejectedPods(Stream([*found, ("DELETED", rejected_pod("a"))]), most=2)
    await pods.once()
    assert [each.name for each in pods.on_node("n1")] == ["b"]
    soon = Backoff(initial_seconds=0.01, max_seconds=0.01, jitter=0.0)
    pods = RejectedPods(Stream([KubeError("no", status=403)], [("ADDED", rejected_pod("a"))]), backoff=soon)
    known = asyncio.Event()
    pods.changed = lambda _node: known.set()
    task = asyncio.create_task(pods.run())
    async with asyncio.timeout(PATIENCE_SECONDS):
        await known.wait()
    task.cancel()
    assert [each.name for each in pods.on_node("n1")] == ["a"]
