"""The authoritative LIST without an API server: stalled watches, objects that a list leaves out, the gauges."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from nodedevices_operator.cache import relist
from nodedevices_operator.cache.relist import MissingCRDs
from nodedevices_operator.kube.port import JsonObject, KubeError
from nodedevices_operator.manager import Manager
from nodedevices_operator.metrics import OperatorMetrics
from nodedevices_operator.records.kinds import Kind, read
from nodedevices_operator.records.names import NODE_DEVICES, NODES, POLICIES
from support.exposed import operator, parsed
from support.marking import next_node
from support.opfacts import device, node_devices, raw_node, raw_policy
from support.patience import PATIENCE_SECONDS
from support.virtual_loop import VirtualLoop


class Shelf:
    """A Kube of lists; `hidden` names exist but are left out of lists, `lost` answers to any question by name."""

    def __init__(self) -> None:
        self.items: dict[str, list[dict[str, Any]]] = {NODE_DEVICES: [], NODES: [], POLICIES: []}
        self.hidden: set[str] = set()
        self.no_collection = False
        self.lists: list[str] = []  # of whole collections
        self.meanwhile: Callable[[], None] = lambda: None  # between the API server's answer and its reading

    async def pages(self, path: str, **query: str) -> AsyncIterator[list[dict[str, Any]]]:
        if query:
            yield []
            return
        self.lists.append(path)
        if self.no_collection and path != NODES and not self.items[path]:
            raise KubeError("404 page not found", status=404)
        page = [it for it in self.items[path] if it["metadata"]["name"] not in self.hidden]
        self.meanwhile()
        yield page

    async def get(self, path: str) -> JsonObject:
        collection, _, name = path.rpartition("/")
        for item in self.items[collection]:
            if item["metadata"]["name"] == name:
                return item
        raise KubeError(f"{name} not found", status=404, absent=None if self.no_collection else name)


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
async def manager(shelf: Shelf) -> Manager:
    shelf.items[POLICIES] = [raw_policy("p", health={})]
    shelf.items[NODE_DEVICES] = [node_devices(device(0, "Unhealthy", "Xid79"))]
    made = Manager(shelf, OperatorMetrics())  # type: ignore[arg-type]
    await made.relister.once()
    return made


async def test_an_object_that_a_list_leaves_out_stays_while_it_exists(manager: Manager, shelf: Shelf) -> None:
    shelf.hidden = {"p"}
    await manager.relister.once()
    assert set(manager.cache.policies) == {"p"}
    shelf.items[POLICIES] = []
    await manager.relister.once()
    assert manager.cache.policies == {}


async def test_a_collection_that_is_gone_is_no_news_of_its_objects(manager: Manager, shelf: Shelf) -> None:
    shelf.items[POLICIES] = []
    shelf.no_collection = True
    with pytest.raises(KubeError):
        await manager.relister.once()
    assert set(manager.cache.policies) == {"p"}


@pytest.mark.parametrize("fails", [True, False])
async def test_the_garbage_collector_rests_during_a_list_and_not_after_it(
    manager: Manager, shelf: Shelf, fails: bool
) -> None:
    meanwhile: list[bool] = []

    def look() -> None:
        meanwhile.append(gc.isenabled())
        if fails:
            raise KubeError("the API server has gone away")

    shelf.meanwhile = look
    with pytest.raises(KubeError) if fails else contextlib.nullcontext():
        await manager.relister.once()
    assert set(meanwhile) == {False}
    assert gc.isenabled()


async def test_a_watch_that_does_not_report_what_a_list_has_shown_is_started_again(
    manager: Manager, shelf: Shelf
) -> None:
    stalled: list[bool] = []
    manager.relister.stalled = lambda: stalled.append(True)
    shelf.items[POLICIES] = [raw_policy("p", health={"holdDownSeconds": 1}, generation=2, version=2)]
    await manager.relister.once()
    manager.arrived(Kind.POLICY, False, read(Kind.POLICY, shelf.items[POLICIES][0]))
    manager.relister.check_watch()
    assert stalled == []  # it was on its way
    shelf.items[POLICIES] = [raw_policy("p", health={"holdDownSeconds": 2}, generation=3, version=3)]
    await manager.relister.once()
    manager.relister.check_watch()
    assert stalled == [True]
    await manager.relister.once()
    manager.relister.check_watch()
    assert stalled == [True]  # nothing was missed


@pytest.mark.parametrize("how", ["a watch began anew", "a write met nothing"])
async def test_a_deletion_that_no_watch_has_reported_is_found_by_a_list_soon_after(
    manager: Manager, shelf: Shelf, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relist, "AGAIN_SECONDS", 0.05)
    shelf.items[POLICIES] = []
    before = manager.relister.last_complete
    running = asyncio.create_task(manager.relister.run())
    try:
        await until(lambda: manager.relister.last_complete != before)
        manager.cache.observe(Kind.POLICY, read(Kind.POLICY, raw_policy("p", health={})))
        if how == "a write met nothing":
            manager._failed("p", KubeError("p not found", status=404, absent="p"), 1.0)
        else:
            manager.relister.positioned(Kind.POLICY)
        assert manager.cache.policies
        await until(lambda: not manager.cache.policies)
    finally:
        running.cancel()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():  # noqa: ASYNC110  a test's patience
            await asyncio.sleep(0.01)


@pytest.fixture
async def watched(shelf: Shelf) -> AsyncIterator[Manager]:
    """A manager whose watches begin when they are called to, all at once; it lists for ever."""
    made = Manager(shelf, OperatorMetrics())  # type: ignore[arg-type]

    def begin() -> None:
        for kind in Kind:
            made.relister.positioned(kind)

    made.relister.begin_watches = begin
    running = asyncio.create_task(made.relister.run())
    yield made
    running.cancel()


async def test_everything_is_listed_once_at_the_start_and_after_the_watches_have_begun(
    shelf: Shelf, watched: Manager
) -> None:
    await until(lambda: watched.cache.synced)
    await asyncio.sleep(0.1)  # another LIST would begin at once
    assert shelf.lists == [POLICIES, NODES, NODE_DEVICES]


async def test_a_watch_that_was_too_old_has_its_kind_listed_again_and_no_other(shelf: Shelf, watched: Manager) -> None:
    await until(lambda: watched.cache.synced)
    shelf.lists.clear()
    watched.relister.positioned(Kind.NODE)
    await until(lambda: bool(shelf.lists))
    await asyncio.sleep(0.1)
    assert shelf.lists == [NODES]


async def test_watches_that_have_ended_begin_again_before_everything_is_listed(shelf: Shelf, watched: Manager) -> None:
    await until(lambda: watched.cache.synced)
    shelf.lists.clear()
    watched.relister.ended()
    await until(lambda: len(shelf.lists) >= 3)
    await asyncio.sleep(0.1)
    assert shelf.lists == [POLICIES, NODES, NODE_DEVICES]


async def test_what_a_new_watch_cannot_have_delivered_is_no_sign_that_it_has_stalled(
    manager: Manager, shelf: Shelf
) -> None:
    stalled: list[bool] = []
    manager.relister.stalled = lambda: stalled.append(True)
    shelf.items[POLICIES] = [raw_policy("p", health={"holdDownSeconds": 1}, generation=2, version=2)]
    manager.relister.positioned(Kind.POLICY)
    await manager.relister.once()
    manager.relister.check_watch()
    assert (manager.cache.policies["p"].generation, stalled) == (2, [])


async def test_an_object_deleted_while_a_list_is_under_way_does_not_come_back_by_it(
    manager: Manager, shelf: Shelf
) -> None:
    """The page was made before the deletion, and is read after the watch has delivered it."""
    shelf.items[POLICIES] = [raw_policy("p", health={}), raw_policy("new", health={})]
    gone = read(Kind.POLICY, shelf.items[POLICIES][1])
    shelf.meanwhile = lambda: manager.arrived(Kind.POLICY, True, gone)
    await manager.relister.once()
    assert set(manager.cache.policies) == {"p"}


async def test_one_kinds_watch_does_not_count_for_anothers(manager: Manager, shelf: Shelf) -> None:
    stalled: list[bool] = []
    manager.relister.stalled = lambda: stalled.append(True)
    shelf.items[NODE_DEVICES] = [node_devices(device(0), version=2)]
    await manager.relister.once()
    manager.arrived(Kind.NODE, False, read(Kind.NODE, raw_node()))
    manager.arrived(Kind.POLICY, False, read(Kind.POLICY, raw_policy("p", health={}, version=2)))
    manager.relister.check_watch()
    assert stalled == [True]


async def test_missing_crds_are_named_all_at_once(shelf: Shelf) -> None:
    shelf.no_collection = True
    shelf.items[NODES] = [raw_node()]
    manager = Manager(shelf, OperatorMetrics())  # type: ignore[arg-type]
    with pytest.raises(MissingCRDs, match=r"devicepolicies\.nodedevices\.io, nodedevices\.nodedevices\.io"):
        await manager.relister.once()
    assert (manager.cache.synced, set(manager.cache.nodes)) == (False, {"n1"})


async def test_metrics_show_the_state_of_the_fleet(manager: Manager) -> None:
    manager.gauge()
    text = manager.metrics.render().decode()
    for line in (
        "nodedevices_operator_devices_at_fault 1.0",
        "nodedevices_operator_node_devices 1.0",
        'nodedevices_operator_policies{accepted="true"} 1.0',
        'nodedevices_operator_queue_depth{kind="node"} 1.0',
        'nodedevices_operator_relists_total{kind="policy",result="complete"} 1.0',
    ):
        assert line in text
    assert "nodedevices_operator_fault_to_pod_seconds_bucket" in text


async def test_each_policy_shows_its_counts_of_nodes_and_a_deleted_one_shows_nothing(manager: Manager) -> None:
    def shown() -> dict[str | None, float]:
        manager.gauge()
        samples = parsed(manager.metrics.render().decode()).get("nodedevices_operator_policy_nodes", {})
        return {f"{dict(labels)['policy']} {dict(labels)['state']}": value for labels, value in samples.items()}

    counts = {"selected": 3, "applied": 2, "overridden": 0, "failed": 1, "invented": 7}
    policy = raw_policy("p", health={}, version=2) | {"status": {"nodes": counts}}
    manager.arrived(Kind.POLICY, False, read(Kind.POLICY, policy))
    assert shown() == {"p selected": 3, "p applied": 2, "p overridden": 0, "p failed": 1}
    manager.arrived(Kind.POLICY, True, read(Kind.POLICY, policy))
    assert not [each for each in shown() if str(each).startswith("p ")]


async def test_a_node_whose_conditions_are_not_as_they_should_be_is_named_with_the_reason() -> None:
    shown = operator(
        {
            "Ready": ("True", "AgentRunning"),
            "Stale": ("True", "AgentLost"),
            "CapacitySynced": ("False", "Conflict"),
            "HoldersKnown": ("Unknown", "PodResourcesUnavailable"),
            "ExpectedDevices": ("False", "Expected8Found7"),
        }
    )
    assert shown["nodedevices_operator_node_problem"] == {
        (("condition", kind), ("node", "n1"), ("reason", reason)): 1
        for kind, reason in (
            ("Stale", "AgentLost"),
            ("CapacitySynced", "Conflict"),
            ("HoldersKnown", "PodResourcesUnavailable"),
            ("ExpectedDevices", "TooFew"),
        )
    }
    assert shown["nodedevices_operator_stale_nodes"] == {(): 1}


async def test_a_node_that_is_well_again_leaves_no_series(manager: Manager) -> None:
    for version, status in enumerate(("False", "True"), 2):
        shown = node_devices(device(0), conditions={"Ready": (status, "DriverNotLoaded")}, version=version)
        manager.arrived(Kind.NODE_DEVICES, False, read(Kind.NODE_DEVICES, shown))
        manager.gauge()
    assert "nodedevices_operator_node_problem{" not in manager.metrics.render().decode()


@pytest.mark.parametrize("reason", ["Expected8Found7.", "Expected8", "Expected{expected}Found{found}"])
async def test_only_numbers_make_a_reason_one_of_too_few_devices(reason: str) -> None:
    shown = operator({"ExpectedDevices": ("False", reason)})
    assert [dict(labels)["reason"] for labels in shown["nodedevices_operator_node_problem"]] == ["Other"]


async def test_what_a_lying_agent_writes_makes_no_label() -> None:
    shown = operator({"Ready": ("False", "x" * 64), "Invented": ("False", "Anything")})
    assert list(shown["nodedevices_operator_node_problem"]) == [
        (("condition", "Ready"), ("node", "n1"), ("reason", "Other"))
    ]


async def test_before_the_first_list_news_wait(shelf: Shelf) -> None:
    shelf.items[NODE_DEVICES] = [node_devices(device(0))]
    manager = Manager(shelf, OperatorMetrics())  # type: ignore[arg-type]
    manager.arrived(Kind.NODE_DEVICES, False, read(Kind.NODE_DEVICES, node_devices(device(0))))
    assert manager.nodes.take() is None
    await manager.relister.once()
    assert await next_node(manager) == "n1"


@pytest.mark.parametrize("seconds", [0.5, 1.0, 7.0])
def test_a_list_for_what_is_gone_comes_however_often_it_is_asked_for(seconds: float) -> None:
    """Many nodes that went while the watch stalled keep meeting a 404 by turns."""

    async def first_list() -> float:
        kube, loop = Shelf(), asyncio.get_running_loop()
        manager = Manager(kube, OperatorMetrics(), relist_seconds=600.0, clock=loop.time)  # type: ignore[arg-type]
        listing = asyncio.create_task(manager.relister.run())
        await asyncio.sleep(1.0)
        began, before = loop.time(), manager.relister.last_complete
        while manager.relister.last_complete == before:
            manager.relister.again()
            await asyncio.sleep(seconds)
        listing.cancel()
        return (manager.relister.last_complete or 0.0) - began

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(first_list()) == pytest.approx(relist.AGAIN_SECONDS)
