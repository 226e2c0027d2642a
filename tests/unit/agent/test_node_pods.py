"""The pods of a node as an input: what is read of them, and what stays when the API server is away or refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import pytest
from nodedevices_kube.errors import ApiError
from nodedevices_plugin.inputs.cluster import PodWatch, node_pod
from nodedevices_plugin.model import NodePod, PodContainer
from nodedevices_plugin.status.client import ChangedItem, KubeStore, ListedItems, Object, keep_watching
from support.cases import cases
from support.patience import PATIENCE_SECONDS
from support.there import there

MEMORY = "nodedevices.io/gpu-memory"
T = TypeVar("T")


def pod(name: str = "a", cores: str | None = "30", **more: Any) -> dict[str, Any]:
    annotations = {} if cores is None else {"nodedevices.io/gpu-cores.main": cores}
    return {
        "metadata": {"uid": f"uid-{name}", "name": name, "namespace": "ml", "annotations": annotations},
        "spec": {"containers": [{"name": "main", "resources": {"limits": {MEMORY: "2", "cpu": "1"}}}]},
        "status": {"phase": "Pending"},
        **more,
    }


def read(item: dict[str, Any]) -> NodePod:
    return there(node_pod(item))


# --- one pod ----------------------------------------------------------------------------------------------------------
def test_of_a_pod_it_matters_who_requests_what_and_an_odd_status_changes_nothing() -> None:
    assert read(pod()) == NodePod(
        uid="uid-a", namespace="ml", name="a", containers=(PodContainer(name="main", requests={MEMORY: 2}, cores="30"),)
    )
    odd = {"phase": "Running", "containerStatuses": [{"name": [], "restartCount": 1}, {"restartCount": 1}]}
    assert [each.started for each in read(pod(status=odd)).containers] == [False]
    assert not read(pod(status={"phase": []})).finished


def test_an_annotation_for_a_container_that_the_pod_has_not_is_kept_as_a_stray() -> None:
    item = pod()
    item["metadata"]["annotations"] = {"nodedevices.io/gpu-cores.mian": "30", "nodedevices.io/gpu-cores.main": "20"}
    assert read(item).strays == ("mian",)
    assert read(pod()).strays == ()


@cases("phase", "Succeeded", "Failed")
def test_a_pod_that_has_ended_is_finished(phase: str) -> None:
    assert read(pod(status={"phase": phase})).finished


def test_a_container_that_the_kubelet_has_started_is_known_as_such() -> None:
    status = {"startTime": "2026-11-22T16:00:00Z", "containerStatuses": [{"name": "main", "containerID": "c://1"}]}
    found = read(pod(status=status))
    assert found.acknowledged
    assert found.containers[0].started


@cases(
    "item",
    {},
    {"metadata": None},
    {"metadata": {"uid": 1, "name": "a", "namespace": "b"}},
    {"metadata": ["uid"], "spec": 7},
)
def test_what_is_no_pod_is_none(item: dict[str, Any]) -> None:
    assert node_pod(item) is None


@cases("spec", None, {"containers": None}, {"containers": [7, {"name": None}]}, {"initContainers": {"a": 1}}, [])
def test_odd_parts_count_as_absent(spec: Any) -> None:
    assert all(not each.requests for each in read(pod(spec=spec)).containers)


@cases(("value", "count"), ("2", 2), (3, 3), ("1k", 1000), ("two", 0), (None, 0), ({}, 0))
def test_an_amount_is_read_as_the_api_server_writes_it(value: Any, count: int) -> None:
    spec = {"containers": [{"name": "main", "resources": {"requests": {MEMORY: value}}}]}
    assert read(pod(spec=spec)).containers[0].requests.get(MEMORY, 0) == count


# --- again and again --------------------------------------------------------------------------------------------------
async def test_a_watch_that_ended_waits_as_long_as_the_api_server_asks_for_and_no_longer_once_it_works() -> None:
    ends = iter((ApiError("slow down", status=429, retry_after=40.0), ApiError("no answer"), None, ApiError("x")))
    waits, seen, failed = list[float](), list[str](), list[str]()

    async def watch() -> AsyncIterator[str]:
        end = next(ends)
        if end is not None:
            raise end
        yield "a pod"

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 4:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await keep_watching(watch, seen.append, lambda error: failed.append(str(error)), draw=max, sleep=sleep)
    assert (waits, seen, failed) == ([48.0, 1.0, 0.5, 1.0], ["a pod"], ["slow down", "no answer", "x"])


# --- all of a node ----------------------------------------------------------------------------------------------------
class Pods(KubeStore):
    """The API server's side: what is put into it comes out of the watch; an error ends that."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[ListedItems[Object] | ChangedItem[Object] | ApiError] = asyncio.Queue()
        self.watches = 0

    async def watch_pods(
        self, node: str, take: Callable[[Object], T]
    ) -> AsyncIterator[ListedItems[T] | ChangedItem[T]]:
        assert node == "n1"
        self.watches += 1
        while True:
            match await self.queue.get():
                case ListedItems(items=items):
                    yield ListedItems(tuple(map(take, items)))
                case ChangedItem(item=item, gone=gone):
                    yield ChangedItem(take(item), gone=gone)
                case ApiError() as error:
                    raise error


class Following:
    def __init__(self) -> None:
        self.server = Pods()
        self.changed = asyncio.Event()
        self.clock = 1.0
        self.watch = PodWatch(self.server, "n1", on_change=self.changed.set, clock=lambda: self.clock)

    async def after(self, event: ListedItems[Object] | ChangedItem[Object] | ApiError) -> list[str]:
        """The names of the pods that are known after this event."""
        self.changed.clear()
        self.server.queue.put_nowait(event)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self.changed.wait()
        return self.names

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.watch.pods.pods or ()]


@pytest.fixture
async def here() -> AsyncIterator[Following]:
    made = Following()
    made.watch.want(wanted=True)
    running = asyncio.create_task(made.watch.run())
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_pods_are_followed_one_by_one_after_the_first_list(here: Following) -> None:
    assert here.watch.pods.pods is None
    assert await here.after(ListedItems((pod("a"), pod("b"), {}))) == ["a", "b"]
    assert await here.after(ChangedItem(pod("c"))) == ["a", "b", "c"]
    assert await here.after(ChangedItem(pod("a"), gone=True)) == ["b", "c"]
    assert await here.after(ListedItems((pod("c"),))) == ["c"]


async def test_an_annotation_counts_as_it_was_when_the_pod_was_first_seen(here: Following) -> None:
    await here.after(ListedItems((pod(cores="30"),)))
    here.clock = 2.0
    await here.after(ChangedItem(pod(cores="90", status={"phase": "Running", "startTime": "2026-11-22T16:00:00Z"})))
    [found] = here.watch.pods.pods or ()
    assert (found.containers[0].cores, found.seen, found.acknowledged) == ("30", 1.0, True)


async def test_an_api_server_that_is_away_leaves_the_pods_that_are_known(here: Following) -> None:
    await here.after(ListedItems((pod(),)))
    assert await here.after(ApiError("list pods: no answer: refused")) == ["a"]
    assert here.watch.pods.problem == "list pods: no answer: refused"
    assert await here.after(ListedItems((pod(), pod("b")))) == ["a", "b"]
    assert not here.watch.pods.problem
    assert here.server.watches == 2


async def test_without_the_right_to_list_pods_or_an_api_server_the_problem_says_so(here: Following) -> None:
    await here.after(ApiError("list pods: 403 pods is forbidden", status=403))
    assert here.watch.pods.pods is None
    assert here.watch.pods.forbidden
    assert here.watch.pods.problem == (
        "list pods: 403 pods is forbidden; apply the ClusterRole of docs/sharing-memory.md#shares-of-computing-power"
    )
    watch = PodWatch(None, "n1", on_change=lambda: None)
    assert watch.pods.pods is None
    assert "standalone" in watch.pods.problem


async def test_pods_that_nobody_needs_any_more_are_not_followed_nor_known(here: Following) -> None:
    await here.after(ListedItems((pod(),)))
    here.changed.clear()
    here.watch.want(wanted=False)
    assert here.watch.pods.pods is None
    assert here.changed.is_set()  # whoever decides by them forgets them, too
    here.watch.want(wanted=True)
    assert await here.after(ListedItems((pod("b"),))) == ["b"]
    assert here.server.watches == 2
