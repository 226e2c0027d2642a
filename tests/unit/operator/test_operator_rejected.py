"""The watch of pods that a kubelet rejected, and what is read of one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import orjson
import pytest
from hypothesis import given
from nodedevices_common.backoff import Backoff
from nodedevices_operator.cache.rejected import RejectedPods
from nodedevices_operator.kube.port import KubeError
from nodedevices_operator.records import kinds as records
from support.cases import cases
from support.odd_json import with_odd_value
from support.opfacts import SINCE, raw_pod, rejected_pod
from support.patience import PATIENCE_SECONDS

JOB = {"kind": "Job", "name": "b", "uid": "j", "controller": True}
MIRRORED = {"kind": "Node", "name": "n1", "uid": "u", "controller": True}  # of a static pod


@cases(
    "odd",
    {},
    {"metadata": None, "spec": None, "status": None},
    {"status": {"phase": "Failed", "reason": "UnexpectedAdmissionError"}, "metadata": {"ownerReferences": None}},
    raw_pod(),
    rejected_pod(deletionTimestamp=SINCE),
)
def test_a_pod_without_these_fields_that_runs_or_is_being_deleted_is_none(odd: dict[str, Any]) -> None:
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
        ("ADDED", rejected_pod("c", ownerReferences=[MIRRORED])),
        ("ADDED", rejected_pod("d") | {"status": {"phase": "Failed", "reason": "Evicted"}}),
        ("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": "7"}}),
    ]
    changes = [("DELETED", rejected_pod("a")), ("MODIFIED", rejected_pod("b", ownerReferences=[JOB]))]
    stream = Stream([*found, *changes])
    nodes = list[str]()
    pods = RejectedPods(stream, nodes.append)
    await pods.once()
    [query] = stream.queries
    assert (query["path"], query["fieldSelector"]) == ("/api/v1/pods", "status.phase=Failed")
    assert (query["resourceVersion"], 1500 <= int(query["timeoutSeconds"]) <= 1800) == ("0", True)
    assert query["allowWatchBookmarks"] == "true", "a silent watch is given up"
    assert [(each.name, each.owner) for each in pods.on_node("n1")] == [("b", "Job b"), ("c", "")]
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
    known = asyncio.Event()
    stream = Stream([KubeError("no", status=403)], [("ADDED", rejected_pod("a"))])
    pods = RejectedPods(stream, lambda _: known.set(), backoff=soon)
    task = asyncio.create_task(pods.run())
    async with asyncio.timeout(PATIENCE_SECONDS):
        await known.wait()
    task.cancel()
    assert [each.name for each in pods.on_node("n1")] == ["a"]
