"""The authoritative LIST without an API server: stalled watches, objects that a list leaves out, the gauges."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
from nodedevices_operator.cache import relist
from nodedevices_operator.cache.relist import MissingCRDs
from nodedevices_operator.kube.port import JsonObject, KubeError
from nodedevices_operator.manager import Manager
from nodedevices_operator.metrics import OperatorMetrics
from nodedevices_operator.records.kinds import Kind, read
from nodedevices_operator.records.names import NODE_DEVICES, NODES, POLICIES
from support.cases import cases
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
        self.offered = True  # by discovery
        self.lists: list[str] = []  # of the metadata of whole collections
        self.full: list[str] = []  # of whole collections
        self.meanwhile: Callable[[], None] = lambda: None  # between the API server's answer and its reading

    async def pages(self, path: str, query: None = None, *, metadata_only: bool = False) -> AsyncIterator[JsonObject]:
        if metadata_only:
            self.lists.append(path)
        else:
            self.full.append(path)
        if self.no_collection and path != NODES and not self.items[path]:
            raise KubeError("404 page not found", status=404)
        page = [it for it in self.items[path] if it["metadata"]["name"] not in self.hidden]
        self.meanwhile()
        yield {"items": page}

    async def get(self, path: str) -> JsonObject:
        if path == relist.OFFERED:
            return {"resources": [{"name": "nodedevices"}, {"name": "devicepolicies"}] if self.offered else []}
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
async def test_the_garbage_collector_rests_during_a_list_alone(manager: Manager, shelf: Shelf, fails: bool) -> None:
    meanwhile: list[bool] = []

    def look() -> None:
        meanwhile.append(gc.isenabled())
        if fails and meanwhile[-1] is False:
            raise KubeError("the API server has gone away")

    shelf.items[POLICIES] = [raw_policy("p", health={"holdDownSeconds": 1}, generation=2, version=2)]
    shelf.meanwhile = look
    with pytest.raises(KubeError) if fails else contextlib.nullcontext():
        await manager.relister.once()
    assert meanwhile[:3] == [True] * 3, "metadata is small"
    assert meanwhile[3:] == [False], "the kind that differs was listed in full"
    assert gc.isenabled()


@pytest.mark.parametrize("how", ["kopf listed anew", "a write met nothing"])
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
            manager.relister.listed()
        assert manager.cache.policies
        await until(lambda: not manager.cache.policies)
    finally:
        running.cancel()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():  # noqa: ASYNC110  a test's patience
            await asyncio.sleep(0.01)


class Kopf:
    """Stands for kopf: lists at its start, and delivers what it is told to."""

    def __init__(self, shelf: Shelf, manager: Manager) -> None:
        self.shelf, self.manager = shelf, manager
        self.started = 0
        self.deaf: set[Kind] = set()  # kinds that it does not deliver
        self.restarts: list[int] = []

    def start(self) -> None:
        self.started += 1
        asyncio.get_running_loop().call_later(0.2, self.deliver)

    def deliver(self) -> None:
        for kind in set(Kind) - self.deaf:
            for raw in self.shelf.items[kind.value]:
                self.manager.arrived(kind, False, read(kind, raw))
            self.manager.relister.listed()

    def restart(self) -> None:
        self.restarts.append(self.started)


async def with_kopf(shelf: Shelf, *deaf: Kind) -> tuple[Manager, Kopf]:
    loop = asyncio.get_running_loop()
    manager = Manager(shelf, OperatorMetrics(), clock=loop.time)  # type: ignore[arg-type]
    kopf = Kopf(shelf, manager)
    kopf.deaf = set(deaf)
    manager.relister.begin_watches, manager.relister.stalled = kopf.start, kopf.restart
    await manager.relister.once()
    return manager, kopf


def virtually(scene: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scene)


def at(raw: dict[str, Any], version: str, **metadata: str) -> dict[str, Any]:
    return raw | {"metadata": raw["metadata"] | {"resourceVersion": version, **metadata}}


def fill(shelf: Shelf) -> None:
    shelf.items[NODE_DEVICES] = [node_devices(device(0))]
    shelf.items[NODES] = [raw_node()]


def test_what_is_listed_comes_by_kopf_and_is_listed_by_nobody_else(shelf: Shelf) -> None:
    async def scene() -> None:
        fill(shelf)
        manager, kopf = await with_kopf(shelf)
        assert manager.cache.synced
        assert set(manager.cache.node_devices) == set(manager.cache.nodes) == {"n1"}
        assert (shelf.lists, shelf.full, kopf.restarts) == ([POLICIES, NODES, NODE_DEVICES], [], [])

    virtually(scene())


def test_a_watch_that_does_not_deliver_what_is_listed_is_restarted_and_its_kind_listed_in_full(shelf: Shelf) -> None:
    """At the start, and later: for a new object and for a change of a known one."""

    async def scene() -> None:
        fill(shelf)
        manager, kopf = await with_kopf(shelf, Kind.NODE)
        assert manager.cache.synced
        assert (set(manager.cache.nodes), shelf.full, len(kopf.restarts)) == ({"n1"}, [NODES], 1)
        for changed in (
            [node_devices(device(0), version=2)],
            [node_devices(device(0), version=2), at(node_devices(device(0)), "3", name="n2", uid="u2")],
        ):
            shelf.full.clear()
            shelf.items[NODE_DEVICES] = changed
            await manager.relister.once()
            assert (len(manager.cache.node_devices), shelf.full) == (len(changed), [NODE_DEVICES])
        assert len(kopf.restarts) == 3

    virtually(scene())


def test_what_comes_while_it_is_waited_for_is_no_sign_of_a_stalled_watch(shelf: Shelf) -> None:
    async def scene() -> None:
        fill(shelf)
        manager, kopf = await with_kopf(shelf)
        shelf.items[NODES] = [at(raw_node(), "5")]
        asyncio.get_running_loop().call_later(relist.HEARING_SECONDS - 1, kopf.deliver)
        await manager.relister.once()
        assert manager.cache.nodes["n1"].resource_version == "5"
        assert (shelf.full, kopf.restarts) == ([], [])

    virtually(scene())


def test_watches_that_have_ended_begin_again_before_the_next_list(shelf: Shelf) -> None:
    async def scene() -> None:
        fill(shelf)
        manager, kopf = await with_kopf(shelf)
        await manager.relister.once()
        assert kopf.started == 1
        manager.relister.ended()
        await manager.relister.once()
        assert kopf.started == 2

    virtually(scene())


def test_kopf_begins_only_when_the_api_server_says_that_it_has_every_kind(shelf: Shelf) -> None:
    async def scene() -> None:
        shelf.offered = False
        with pytest.raises(MissingCRDs, match=r"devicepolicies\.nodedevices\.io, nodedevices\.nodedevices\.io"):
            await with_kopf(shelf)
        assert shelf.lists == []

    virtually(scene())


async def test_an_object_deleted_during_a_list_does_not_come_back_by_it(manager: Manager, shelf: Shelf) -> None:
    """The page was made before the deletion, and is read after the watch has delivered it."""
    shelf.items[POLICIES] = [raw_policy("p", health={}), raw_policy("new", health={})]
    gone = read(Kind.POLICY, shelf.items[POLICIES][1])
    shelf.meanwhile = lambda: manager.arrived(Kind.POLICY, True, gone)
    shelf.items[POLICIES][0]["metadata"]["resourceVersion"] = "2"  # so that the kind is listed in full
    await manager.relister.once()
    assert set(manager.cache.policies) == {"p"}


async def test_missing_crds_are_named_all_at_once(shelf: Shelf) -> None:
    shelf.no_collection, shelf.offered = True, False
    shelf.items[NODES] = [raw_node()]
    manager = Manager(shelf, OperatorMetrics())  # type: ignore[arg-type]
    with pytest.raises(MissingCRDs, match=r"devicepolicies\.nodedevices\.io, nodedevices\.nodedevices\.io"):
        await manager.relister.once()
    assert not manager.cache.synced


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
            "ActionsSynced": ("False", "CapacityConflict"),
            "HoldersKnown": ("Unknown", "PodResourcesUnavailable"),
            "ExpectedDevices": ("False", "Expected8Found7"),
        },
        capacity="Conflict",
        taint="Refused",
        labels="InSync",
        idlePods="NotWritten",
    )
    assert shown["nodedevices_operator_node_problem"] == {
        (("condition", kind), ("node", "n1"), ("reason", reason)): 1
        for kind, reason in (
            ("Stale", "AgentLost"),
            ("ActionsSynced", "CapacityConflict"),
            ("ActionsSynced", "TaintRefused"),
            ("ActionsSynced", "IdlePodsNotWritten"),
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


@cases("reason", "Expected8Found7.", "Expected8", "Expected{expected}Found{found}")
async def test_only_numbers_make_a_reason_one_of_too_few_devices(reason: str) -> None:
    shown = operator({"ExpectedDevices": ("False", reason)})
    assert [dict(labels)["reason"] for labels in shown["nodedevices_operator_node_problem"]] == ["Other"]


async def test_what_a_lying_agent_writes_makes_no_label() -> None:
    conditions = {"Ready": ("False", "x" * 64), "Invented": ("False", "Anything")}
    shown = operator(conditions, labels="Blocked", invented="Pending")
    assert list(shown["nodedevices_operator_node_problem"]) == [
        (("condition", kind), ("node", "n1"), ("reason", "Other")) for kind in ("Ready", "ActionsSynced")
    ]


async def test_before_the_first_list_news_wait(shelf: Shelf) -> None:
    shelf.items[NODE_DEVICES] = [node_devices(device(0))]
    manager = Manager(shelf, OperatorMetrics())  # type: ignore[arg-type]
    manager.arrived(Kind.NODE_DEVICES, False, read(Kind.NODE_DEVICES, node_devices(device(0))))
    assert manager.nodes.take() is None
    await manager.relister.once()
    assert await next_node(manager) == "n1"


@cases("seconds", 0.5, 1.0, 7.0)
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
