"""The publisher on a store in memory: the object ends up as wanted, whatever happens in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from nodedevices_common.backoff import LATE, Draw
from nodedevices_kube.errors import ApiError
from nodedevices_plugin.status.client import Object
from nodedevices_plugin.status.metrics import AgentMetrics
from nodedevices_plugin.status.publisher import Publisher, owned
from support.fakestore import FakeStore
from support.patience import PATIENCE_SECONDS
from support.there import there


class Counts(AgentMetrics):
    """Metrics that remember."""

    def __init__(self) -> None:
        self.causes: list[str] = []
        self.errors: list[int] = []
        self.reachable: list[bool] = []
        self.works = False

    def published(self, cause: str, seconds: float) -> None:
        self.causes.append(cause)

    def publish_failed(self, status: int) -> None:
        self.errors.append(status)
        self.reachable.append(status != 0)
        self.works = False

    def publishing(self, *, works: bool) -> None:
        self.reachable.append(True)
        self.works = works


class Desk:
    """A publisher that runs, and what it does."""

    def __init__(
        self, store: FakeStore, draw: Draw = lambda low, _: low, *, stop_seconds: float = PATIENCE_SECONDS
    ) -> None:
        self.store = store
        self.later = 0.0  # by which the publisher's clock is ahead
        self.counts = Counts()
        self.seen: list[Object | None] = []
        self.publisher = Publisher(
            store=store,
            name="n1",
            on_object=self.seen.append,
            metrics=self.counts,
            clock=lambda: time.monotonic() + self.later,
            draw=draw,
            owner_seconds=0.05,
            credentials_seconds=0.05,
            stop_seconds=stop_seconds,
        )

    def want(
        self, healthy: int = 8, *, may_create: bool = True, out: tuple[dict[str, str], ...] = (), **more: Any
    ) -> None:
        self.publisher.want(status(healthy, **more), may_create=may_create, unschedulable=out)

    async def writes(self, healthy: int = 8, **more: Any) -> None:
        """What is wanted is written."""
        before = len(self.store.statuses)
        self.want(healthy, **more)
        await self.until(lambda: len(self.store.statuses) > before)

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():  # noqa: ASYNC110  a test's patience
                await asyncio.sleep(0.005)


def status(healthy: int = 8, **more: Any) -> dict[str, Any]:
    devices = [
        {"id": f"GPU-{number}", "health": {"state": "Healthy" if number < healthy else "Unhealthy", "reason": ""}}
        for number in range(8)
    ]
    return {"agent": {"version": "1"}, "devices": devices, "conditions": [], **more}


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    made = Desk(FakeStore())
    task = asyncio.create_task(made.publisher.run())
    yield made
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_object_is_created_with_its_owner_and_then_gets_its_status(desk: Desk) -> None:
    await desk.writes()
    assert desk.store.calls[-1] == "status"
    assert there(desk.store.item)["metadata"]["ownerReferences"] == [{"uid": "node-uid"}]
    written = desk.store.statuses[-1]
    assert written["nodeUID"] == "node-uid"
    assert written["agent"]["heartbeatTime"].endswith("Z")


async def test_wanting_the_same_again_writes_nothing(desk: Desk) -> None:
    await desk.writes()
    for _ in range(20):
        desk.want()
        await asyncio.sleep(0)
    await desk.writes(7)
    assert desk.counts.causes == ["device", "device"]


async def test_a_token_that_names_no_node_gives_an_object_without_owner(desk: Desk) -> None:
    desk.store.uid = None
    await desk.writes()
    assert there(desk.store.item)["metadata"]["ownerReferences"] == []
    assert "nodeUID" not in desk.store.statuses[-1]


async def test_a_node_without_devices_gets_no_object_but_keeps_one_that_it_has(desk: Desk) -> None:
    desk.want(may_create=False)
    await desk.until(lambda: desk.seen)
    await asyncio.sleep(0.05)
    assert desk.store.calls == []
    await desk.writes(may_create=True)
    await desk.writes(7, may_create=False)


RMA = {"id": "GPU-3", "reason": "RMA 4711", "by": "me"}


async def test_an_object_deleted_by_hand_comes_back_with_what_was_out_of_service(desk: Desk) -> None:
    await desk.writes()
    desk.want(out=(RMA,))
    desk.store.delete()
    await desk.until(lambda: len(desk.store.statuses) == 2)
    assert there(desk.store.item)["spec"] == {"unschedulable": [RMA]}


async def test_what_people_wrote_into_an_object_that_is_there_stays(desk: Desk) -> None:
    desk.store.item = {"metadata": {"name": "n1", "uid": "u", "ownerReferences": [{"uid": "an earlier Node"}]}}
    await desk.writes(out=(RMA,))
    assert "spec" not in desk.store.item


async def test_an_object_that_somebody_else_makes_first_says_what_is_out_of_service(desk: Desk) -> None:
    desk.want(out=(RMA,))
    metadata = {"name": "n1", "uid": "u", "ownerReferences": [], "resourceVersion": "7"}
    theirs = {"metadata": metadata, "spec": {"unschedulable": []}}
    create = desk.store.create_object

    async def late(name: str, owner_uid: str | None, spec: Any) -> Object:
        desk.store.item = dict(theirs)
        return await create(name, owner_uid, spec)

    desk.store.create_object = late  # type: ignore[method-assign]
    await desk.until(lambda: desk.store.statuses)
    assert there(desk.store.item)["spec"] == {"unschedulable": []}


async def test_an_object_deleted_before_a_write_of_it_was_answered_comes_back(desk: Desk) -> None:
    answer = desk.store.held = asyncio.Event()
    desk.want()
    await desk.until(lambda: desk.store.statuses and desk.seen and desk.seen[-1] == desk.store.item)
    desk.store.delete()
    await desk.until(lambda: desk.seen[-1] is None)
    desk.store.held = None
    answer.set()
    await desk.until(lambda: len(desk.store.statuses) == 2)
    assert desk.store.item is not None


async def test_the_operators_fields_are_neither_touched_nor_a_reason_to_write(desk: Desk) -> None:
    await desk.writes()
    stale = {"type": "Stale", "status": "False"}
    desk.store.patch_status(affectedPods=[{"uid": "u1"}], conditions=[stale])
    count = len(desk.seen)
    await desk.until(lambda: len(desk.seen) > count or desk.seen[-1] == desk.store.item)
    await asyncio.sleep(0.05)
    assert len(desk.store.statuses) == 1


async def test_a_field_of_ours_that_somebody_changed_is_set_again(desk: Desk) -> None:
    await desk.writes(summary={"healthy": 8})
    desk.store.patch_status(summary={"healthy": 1})
    await desk.until(lambda: len(desk.store.statuses) == 2)
    assert desk.counts.causes[-1] == "repair"
    assert there(desk.store.item)["status"]["summary"] == {"healthy": 8}


async def test_a_field_that_somebody_changed_before_our_write_was_answered_is_set_again(desk: Desk) -> None:
    desk.store.held = asyncio.Event()
    await desk.writes(summary={"healthy": 8})
    desk.store.patch_status(summary={"healthy": 1})
    await desk.until(lambda: desk.seen[-1] == desk.store.item)
    desk.store.held.set()
    await desk.until(lambda: len(desk.store.statuses) == 2)
    assert desk.counts.causes[-1] == "repair"
    assert there(desk.store.item)["status"]["summary"] == {"healthy": 8}


async def test_what_people_write_after_etcd_was_restored_is_seen_at_once() -> None:
    """All versions are lower then, and the object is the same; an event from before our write is dropped still."""
    made = Desk(FakeStore())

    def item(version: int, out: str = "") -> Object:
        spec = {"unschedulable": [{"id": out}]} if out else {}
        return {"metadata": {"name": "n1", "uid": "u1", "resourceVersion": str(version)}, "spec": spec, "status": {}}

    publisher = made.publisher
    publisher._see(item(1000))
    publisher._wrote(item(1005))
    publisher._see(item(1003, "stale"))
    publisher._see(item(1005))
    publisher._see(item(500))
    publisher._see(item(501, "GPU-0"))
    told = [[each["id"] for each in (seen or {})["spec"].get("unschedulable", [])] for seen in made.seen]
    assert told == [[], [], [], ["GPU-0"]]


async def test_a_server_that_is_away_costs_one_write_when_it_is_back(desk: Desk) -> None:
    await desk.writes()
    desk.store.drop_watches(ApiError("no answer"))
    for healthy in (7, 6, 5):
        desk.want(healthy)
        await asyncio.sleep(0.02)
    await desk.until(lambda: len(desk.counts.errors) >= 2)
    desk.store.problem = None
    await desk.until(lambda: len(desk.store.statuses) == 2)
    await desk.until(lambda: desk.counts.reachable[-1])
    assert desk.store.statuses[-1]["devices"] == status(5)["devices"]


@pytest.mark.parametrize("code", [401, 403, 404, 409, 422, 429, 500, 503])
async def test_a_refusal_is_counted_by_its_status_and_tried_again(desk: Desk, code: int) -> None:
    desk.store.problem = ApiError("no", status=code)
    desk.want()
    await desk.until(lambda: code in desk.counts.errors)
    desk.store.problem = None
    await desk.until(lambda: desk.store.statuses)


async def test_retry_after_is_kept_to_whatever_news_come(desk: Desk) -> None:
    await desk.writes()
    desk.store.problem = ApiError("slow down", status=429, retry_after=0.5)
    loop = asyncio.get_running_loop()
    refused_at = loop.time()
    desk.want(7)
    await desk.until(lambda: 429 in desk.counts.errors)
    desk.store.problem = None
    desk.store.patch_status(affectedPods=[{"name": "somebody-elses"}])
    await desk.until(lambda: len(desk.store.statuses) == 2)
    assert loop.time() - refused_at >= 0.5
    assert desk.store.calls.count("status") == 3


async def test_s12_nodes_that_are_given_the_same_retry_after_do_not_come_back_at_the_same_moment() -> None:
    """The API server gives all of them the same, in whole seconds. Jitter only makes it longer."""
    desk = Desk(FakeStore(), draw=lambda _, high: high)
    desk.store.problem = ApiError("slow down", status=429, retry_after=0.5)
    task = asyncio.create_task(desk.publisher.run())
    refused_at = asyncio.get_running_loop().time()
    desk.want()
    await desk.until(lambda: 429 in desk.counts.errors)
    desk.store.problem = None
    await desk.until(lambda: desk.store.statuses)
    assert asyncio.get_running_loop().time() - refused_at >= 0.5 * (1 + LATE)
    task.cancel()
    await asyncio.wait([task])


async def test_the_owner_of_an_earlier_node_is_replaced() -> None:
    old = {"metadata": {"name": "n1", "uid": "u", "ownerReferences": [{"uid": "old"}], "resourceVersion": "1"}}
    desk = Desk(FakeStore(item=old))
    task = asyncio.create_task(desk.publisher.run())
    await desk.writes()
    assert there(desk.store.item)["metadata"]["ownerReferences"] == [{"uid": "node-uid"}]
    task.cancel()
    await asyncio.wait([task])


# --- a Node made anew -------------------------------------------------------------------------------------------------
async def test_a_node_recreated_gets_its_object_as_soon_as_the_token_names_it(desk: Desk) -> None:
    await desk.writes()
    desk.store.node = "new-uid"
    desk.store.collect_garbage()
    await desk.until(lambda: "deleted 3 times in a row" in desk.publisher.problem())
    assert "uid node-uid" in desk.publisher.problem()
    assert not desk.counts.works
    tried = desk.store.calls.count("object")
    await asyncio.sleep(0.3)
    assert desk.store.calls.count("object") == tried, "a fight with the garbage collector"
    desk.store.uid = "new-uid"
    await desk.until(lambda: desk.store.statuses[-1]["nodeUID"] == "new-uid")
    assert desk.publisher.problem() == ""
    assert there(desk.store.item)["metadata"]["ownerReferences"] == [{"uid": "new-uid"}]
    await desk.until(lambda: desk.counts.works)


async def test_an_object_of_its_old_owner_is_taken_over_when_the_token_names_the_new_node(desk: Desk) -> None:
    await desk.writes()
    desk.store.uid = "new-uid"  # the garbage collector has not come by yet
    desk.want(7)
    await desk.until(lambda: desk.store.statuses[-1]["nodeUID"] == "new-uid")
    assert there(desk.store.item)["metadata"]["ownerReferences"] == [{"uid": "new-uid"}]


@pytest.mark.parametrize("before", ["node-uid", None])
async def test_a_new_token_that_names_another_node_is_enough(desk: Desk, before: str | None) -> None:
    """Nothing changes on the node, and no write is refused: the next heartbeat would be minutes away."""
    desk.store.uid = before  # None: the kubelet requested the token before it had made the Node
    await desk.writes()
    desk.store.uid, desk.store.token = "new-uid", 1
    await desk.until(lambda: (desk.store.item or {})["metadata"]["ownerReferences"] == [{"uid": "new-uid"}])


@pytest.mark.parametrize("code", [403, 422])
async def test_who_owns_the_object_is_queried_again_after_a_refusal(desk: Desk, code: int) -> None:
    await desk.writes()
    reads = desk.store.reads
    desk.store.problem = ApiError("no", status=code)
    desk.want(7)
    await desk.until(lambda: desk.store.reads > reads)
    desk.store.problem = None
    await desk.until(lambda: len(desk.store.statuses) == 2)


async def test_a_settled_node_is_not_read_again(desk: Desk) -> None:
    await desk.writes()
    for healthy in (7, 6):
        desk.want(healthy)
        await desk.until(lambda healthy=healthy: desk.store.statuses[-1]["devices"] == status(healthy)["devices"])  # type: ignore[misc]
    assert desk.store.reads == 1


# --- the last write ---------------------------------------------------------------------------------------------------
STOPPED = status(
    agent={"startTime": "then"}, conditions=[{"type": "Ready", "status": "False", "reason": "AgentStopped"}]
)


@pytest.fixture
async def settled(request: pytest.FixtureRequest) -> Desk:
    """A publisher that has written its status, and ended. Its parameter: how long its last write may take."""
    desk = Desk(FakeStore(), stop_seconds=getattr(request, "param", PATIENCE_SECONDS))
    running = asyncio.create_task(desk.publisher.run())
    await desk.writes(agent={"startTime": "then"})
    running.cancel()
    await asyncio.wait([running])
    return desk


async def test_the_last_write_is_made_at_once_whatever_was_written_before(settled: Desk) -> None:
    await settled.publisher.stop(STOPPED)
    assert settled.store.statuses[-1]["conditions"] == STOPPED["conditions"]
    assert settled.store.statuses[-1]["agent"].keys() == {"startTime", "heartbeatTime"}
    assert settled.counts.causes[-1] == "stop"


async def test_an_agent_that_has_written_nothing_has_no_last_word() -> None:
    desk = Desk(FakeStore())
    await desk.publisher.stop(STOPPED)
    assert desk.store.calls == []


async def test_the_word_of_an_agent_that_came_meanwhile_stands(settled: Desk) -> None:
    settled.store.hangs = True
    running = asyncio.create_task(settled.publisher.run())
    settled.store.patch_status(agent={"startTime": "later"})
    await settled.until(lambda: (settled.seen[-1] or {}).get("status", {}).get("agent") == {"startTime": "later"})
    running.cancel()
    await asyncio.wait([running])
    settled.store.hangs = False
    await settled.publisher.stop(STOPPED)
    assert settled.store.statuses[-1]["conditions"] == []


@pytest.mark.parametrize("problem", [ApiError("no answer"), ApiError("no", status=503)])
async def test_a_last_write_that_is_refused_does_not_keep_the_agent(settled: Desk, problem: ApiError) -> None:
    settled.store.problem = problem
    await settled.publisher.stop(STOPPED)
    assert settled.store.statuses[-1]["conditions"] == []


@pytest.mark.parametrize("settled", [0.05], indirect=True)
async def test_an_api_server_that_does_not_answer_keeps_the_agent_for_a_bounded_time(settled: Desk) -> None:
    settled.store.hangs = True
    async with asyncio.timeout(PATIENCE_SECONDS):
        await settled.publisher.stop(STOPPED)
    assert settled.store.calls[-1] == "status"
    assert settled.store.statuses[-1]["conditions"] == []


# --- what /readyz says ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("code", "says"),
    [
        (403, "failed to write NodeDevices for "),
        (404, "(is the NodeDevices CRD installed?)"),
        (0, "failed to write NodeDevices for "),
    ],
)
async def test_a_refusal_that_lasts_is_a_problem_until_it_is_over(desk: Desk, code: int, says: str) -> None:
    await desk.writes()
    desk.store.problem = ApiError("no", status=code)
    desk.want(7)
    await desk.until(lambda: code in desk.counts.errors)
    assert desk.publisher.problem() == ""
    assert not desk.counts.works
    desk.later += 65
    await desk.until(lambda: says in desk.publisher.problem())
    assert desk.counts.reachable[-1] is (code != 0)
    desk.store.problem = None
    await desk.until(lambda: len(desk.store.statuses) >= 2)
    await desk.until(lambda: not desk.publisher.problem() and desk.counts.works)


async def test_a_watch_that_cannot_be_established_is_a_problem_although_writes_go_on(desk: Desk) -> None:
    await desk.writes()
    desk.store.blind = ApiError("nodedevices.nodedevices.io is forbidden", status=403)
    desk.store.drop_watches(desk.store.blind)
    await desk.until(lambda: 403 in desk.counts.errors)
    desk.store.problem = None
    await desk.writes(7)
    desk.later += 65
    assert desk.publisher.problem().startswith("failed to watch NodeDevices for 6")
    assert not desk.counts.works
    desk.store.blind = None
    await desk.until(lambda: desk.publisher.problem() == "")


OLDER = {
    "properties": {
        "agent": {"properties": {"version": {}, "heartbeatTime": {}}},
        "devices": {"items": {"properties": {"id": {}, "health": {"x-kubernetes-preserve-unknown-fields": True}}}},
        "conditions": {},
        "nodeUID": {},
    }
}


async def test_an_agent_newer_than_the_crd_reports_what_the_crd_has_fields_for(desk: Desk) -> None:
    desk.store.schema = OLDER
    await desk.writes(
        7, mostSeen=[{"count": 8}], devices=[{"id": "GPU-0", "history": [], "health": {"state": "Healthy"}}]
    )
    written = desk.store.statuses[-1]
    assert written["devices"] == [{"id": "GPU-0", "health": {"state": "Healthy"}}]
    assert written.keys() == {"agent", "devices", "conditions", "nodeUID"}
    refused = len(desk.counts.errors)
    await desk.writes(6, mostSeen=[{"count": 8}])
    assert (refused, len(desk.counts.errors)) == (0, 0), "it is asked once what the CRD has"
    assert desk.store.calls == ["object", "status", "status", "status"]


async def test_a_crd_that_got_the_fields_has_them_five_minutes_later_at_the_latest(desk: Desk) -> None:
    desk.store.schema = OLDER
    await desk.writes(mostSeen=[{"count": 8}])
    desk.store.schema = None
    desk.later = 400.0
    desk.want(7, mostSeen=[{"count": 8}])
    await desk.until(lambda: "mostSeen" in desk.store.statuses[-1])


async def test_a_refusal_for_another_reason_stays_one(desk: Desk) -> None:
    desk.store.schema = {"properties": {}, "x-kubernetes-preserve-unknown-fields": True}
    desk.store.problem = ApiError("etcd is away", status=500)
    desk.want()
    await desk.until(lambda: desk.counts.errors)
    desk.store.drop_watches(desk.store.problem)
    assert desk.store.statuses == []
    assert set(desk.counts.errors) == {500}


def test_what_is_ours_in_a_status_does_not_depend_on_the_operator() -> None:
    ready = {"type": "Ready", "status": "True"}
    mine = {"summary": {"devices": 8}, "conditions": [ready]}
    fields = {"affectedPods": [{"uid": "u"}], "actions": [{"name": "taint"}]}
    theirs = {**mine, **fields, "conditions": [{"type": "Stale", "status": "False"}, ready]}
    assert owned(theirs) == owned(mine)
    assert owned({**mine, "summary": {}}) != owned(mine)
