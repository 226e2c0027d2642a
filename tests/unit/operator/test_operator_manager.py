"""The whole operator over an API server in memory, with its own clock: heartbeats, waits, a restored cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from nodedevices_api.nodedevices import AffectedPod
from nodedevices_operator.cache.queue import MAX_LATE_SECONDS
from nodedevices_operator.cache.workers import RetryLater
from nodedevices_operator.concerns.labels import MOST_WRITES
from nodedevices_operator.desired.conditions import OVERDUE_AFTER_SECONDS
from nodedevices_operator.kube.port import KubeError
from nodedevices_operator.manager import Manager
from nodedevices_operator.metrics import OperatorMetrics
from nodedevices_operator.records import names
from nodedevices_operator.records.kinds import Kind, read
from support.clock import Clock
from support.fakekube import FakeKube, settle
from support.opfacts import GPU, device, health, holder, node_devices, raw_node, raw_pod, raw_policy
from support.whole_operator import (
    ITEM,
    NODE,
    POD,
    POLICY,
    action,
    arrive,
    condition,
    one_node,
    started,
    verdict,
    with_status,
)

POD_CONDITION = "nodedevices.io/DeviceHealthy"
BEAT_SECONDS = 300
WELL = device(0, holders=[holder()])
FAULTY = device(0, "Unhealthy", "Xid79", holders=[holder()])


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def kube() -> FakeKube:
    """One node with one GPU, which the pod `trainer` holds."""
    made = one_node()
    made.put(ITEM, node_devices(WELL, heartbeat="h0"))
    made.put(POD, raw_pod())
    return made


@pytest.fixture
async def manager(kube: FakeKube, clock: Clock) -> Manager:
    return await started(kube, clock=clock)


def report(kube: FakeKube, manager: Manager | None = None, **status: Any) -> None:
    """The agent's next report, with these fields of status; a manager hears of it."""
    if manager is None:
        kube.put(ITEM, with_status(kube, **status))
    else:
        arrive(manager, kube, ITEM, with_status(kube, **status))


def beat(manager: Manager, kube: FakeKube, heartbeat: str) -> None:
    report(kube, manager, agent={"heartbeatTime": heartbeat})


def stale(kube: FakeKube) -> str:
    reason: str = condition(kube, ITEM, "Stale")["reason"]
    return reason


async def until_overdue(manager: Manager, kube: FakeKube, clock: Clock) -> float:
    """Seconds until the operator says so; it reconciles when it is due."""
    began = clock.now
    while stale(kube) == "Fresh" and clock.now < began + 4 * OVERDUE_AFTER_SECONDS:
        clock.now += 1
        await settle(manager)
    return clock.now - began


# --- heartbeats ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("beats", [1, 2, 3, 4])
async def test_a_heartbeat_is_overdue_fifteen_minutes_after_the_last_one_came(
    manager: Manager, kube: FakeKube, clock: Clock, beats: int
) -> None:
    for number in range(beats):
        clock.now += BEAT_SECONDS
        await settle(manager)
        beat(manager, kube, f"h{number + 1}")
    waited = await until_overdue(manager, kube, clock)
    assert OVERDUE_AFTER_SECONDS <= waited <= OVERDUE_AFTER_SECONDS + MAX_LATE_SECONDS + 1


async def test_a_heartbeat_that_the_watch_did_not_report_is_found_before_it_is_called_overdue(
    manager: Manager, kube: FakeKube, clock: Clock
) -> None:
    clock.now += OVERDUE_AFTER_SECONDS - 10
    report(kube, agent={"heartbeatTime": "h1"})
    clock.now += 20
    await settle(manager)
    assert (stale(kube), manager.cache.node_devices["n1"].heartbeat) == ("Fresh", "h1")


async def test_while_the_api_server_is_away_no_agent_is_late(manager: Manager, kube: FakeKube, clock: Clock) -> None:
    kube.fails = lambda _verb, path: KubeError(f"{path}: no answer")
    clock.now += 2 * OVERDUE_AFTER_SECONDS
    with pytest.raises(KubeError):
        await manager.reconcile_node("n1")
    kube.fails = lambda _verb, _path: None
    await manager.reconcile_node("n1")
    assert stale(kube) == "Fresh"
    beat(manager, kube, "h1")
    clock.now += OVERDUE_AFTER_SECONDS - 1
    await manager.reconcile_node("n1")
    assert stale(kube) == "Fresh"


async def test_who_is_silent_after_the_servers_return_is_late(manager: Manager, kube: FakeKube, clock: Clock) -> None:
    kube.fails = lambda _verb, path: KubeError(f"{path}: no answer")
    clock.now += 2 * OVERDUE_AFTER_SECONDS
    with pytest.raises(KubeError):
        await manager.reconcile_node("n1")
    kube.fails = lambda _verb, _path: None
    clock.now += 200
    await manager.reconcile_node("n1")
    assert stale(kube) == "HeartbeatOverdue"


# --- what goes first -------------------------------------------------------------------------------------------------
def more_nodes(kube: FakeKube, count: int) -> None:
    for number in range(count):
        name = f"other-{number}"
        raw, shown = raw_node({GPU: 1}), node_devices(device(0), heartbeat="h0")
        raw["metadata"] |= {"name": name, "uid": f"node-{name}"}
        shown["metadata"] |= {"name": name, "uid": f"nd-{name}"}
        kube.put(f"{names.NODES}/{name}", raw)
        kube.put(f"{names.NODE_DEVICES}/{name}", shown)


async def test_a_fault_goes_before_a_policy_that_reaches_all_nodes(kube: FakeKube, clock: Clock) -> None:
    more_nodes(kube, 50)
    manager = await started(kube, clock=clock)
    arrive(manager, kube, POLICY, raw_policy("p", health={"holdDownSeconds": 60}))
    assert len(manager.nodes) == 51
    report(kube, manager, devices=[FAULTY])
    assert manager.nodes.take_ahead() == "n1"


async def test_an_operator_that_starts_looks_at_faulty_nodes_first(kube: FakeKube, clock: Clock) -> None:
    more_nodes(kube, 50)
    report(kube, devices=[FAULTY])
    manager = Manager(kube, OperatorMetrics(), clock=clock)
    await manager.relister.once()
    assert manager.nodes.take_ahead() == "n1"


# --- waits that the server sets --------------------------------------------------------------------------------------
async def test_the_longest_wait_that_the_server_requires_is_kept(manager: Manager, kube: FakeKube) -> None:
    report(kube, manager, devices=[FAULTY])
    refusals = {
        f"{NODE}/status": KubeError("no answer"),
        f"{ITEM}/status": KubeError("slow down", status=429, retry_after=17.0),
    }
    kube.fails = lambda _verb, path: refusals.get(path)
    with pytest.raises(RetryLater) as wanted:
        await manager.reconcile_node("n1")
    assert wanted.value.seconds == 17.0


async def test_the_wait_that_the_server_requires_on_a_policys_status_is_kept(manager: Manager, kube: FakeKube) -> None:
    manager.arrived(Kind.POLICY, False, read(Kind.POLICY, raw_policy("p", health={})))
    await settle(manager)
    kube.fails = lambda _verb, _path: KubeError("slow down", status=429, retry_after=9.0)
    with pytest.raises(RetryLater) as wanted:
        await manager.reconcile_policy("p")
    assert wanted.value.seconds == 9.0


# --- a cluster that went back in time --------------------------------------------------------------------------------
async def restored(manager: Manager, kube: FakeKube, *devices: dict[str, Any]) -> None:
    """etcd has an earlier state again; the watch of before waits for versions that are far away."""
    kube.version = 10
    kube.put(NODE, kube.objects[NODE])
    kube.put(POD, raw_pod())
    kube.put(ITEM, node_devices(*devices, heartbeat="h0"))
    await manager.relister.once()
    await settle(manager)


async def test_after_a_restore_the_list_is_trusted(manager: Manager, kube: FakeKube, clock: Clock) -> None:
    stalled: list[bool] = []
    manager.relister.stalled = lambda: stalled.append(True)
    await restored(manager, kube, FAULTY)
    assert manager.cache.node_devices["n1"].devices[0].health.state == "Unhealthy"
    assert condition(kube, POD, POD_CONDITION).get("status") == "False"
    assert stalled == [True]
    await manager.relister.once()
    assert stalled == [True]  # it is the present state by now


async def test_a_pod_that_lost_its_mark_in_a_restore_is_marked_again(manager: Manager, kube: FakeKube) -> None:
    report(kube, manager, devices=[FAULTY])
    await settle(manager)
    assert condition(kube, POD, POD_CONDITION).get("status") == "False"
    await restored(manager, kube, FAULTY)
    assert condition(kube, POD, POD_CONDITION).get("status") == "False"


async def test_a_state_that_came_while_a_list_was_read_is_newer_than_the_list(manager: Manager, kube: FakeKube) -> None:
    late = read(Kind.NODE_DEVICES, node_devices(device(0, "Unhealthy", "Xid79"), version=10_000))
    pages = kube.pages

    async def slow(path: str, query: Mapping[str, str] | None = None, *, metadata_only: bool = False) -> Any:
        async for page in pages(path, query, metadata_only=metadata_only):
            if path == names.NODE_DEVICES:
                manager.arrived(Kind.NODE_DEVICES, False, late)
            yield page

    kube.pages = slow  # type: ignore[method-assign]
    await manager.relister.once()
    assert manager.cache.node_devices["n1"].devices[0].health.state == "Unhealthy"


# --- marks whose NodeDevices is gone ---------------------------------------------------------------------------------
async def broken_and_gone(manager: Manager, kube: FakeKube) -> None:
    """The pod is marked; then the operator ends, and the NodeDevices is deleted."""
    report(kube, manager, devices=[FAULTY])
    await settle(manager)
    assert condition(kube, POD, POD_CONDITION)["status"] == "False"
    del kube.objects[ITEM]


def made_anew(kube: FakeKube, *devices: dict[str, Any], **more: Any) -> None:
    raw = node_devices(*devices, **more)
    raw["metadata"]["uid"] = "another"
    kube.put(ITEM, raw)


async def test_marks_of_a_nodedevices_deleted_while_no_operator_ran_are_taken_back_by_its_successor(
    manager: Manager, kube: FakeKube, clock: Clock
) -> None:
    await broken_and_gone(manager, kube)
    made_anew(kube, device(0))
    await started(kube, clock=clock)
    assert verdict(kube, POD, POD_CONDITION) == ("True", "Healthy")
    assert kube.objects[ITEM]["status"]["affectedPods"] == []
    assert [it["reason"] for it in kube.events if it["involvedObject"]["kind"] == "Pod"][-1] == "DeviceRecovered"


async def test_such_marks_stay_until_holders_are_known(manager: Manager, kube: FakeKube, clock: Clock) -> None:
    await broken_and_gone(manager, kube)
    made_anew(kube, heartbeat="")
    await started(kube, clock=clock)
    unknown = {"HoldersKnown": ("Unknown", "PodResourcesUnavailable")}
    raw = kube.objects[ITEM]
    ill = node_devices(device(0, "Unhealthy", "Xid79"), conditions=unknown)["status"]
    ill["conditions"] += [it for it in raw["status"]["conditions"] if it["type"] in {"Stale", "PolicyResolved"}]
    kube.put(ITEM, raw | {"status": ill | {"affectedPods": raw["status"]["affectedPods"]}})
    await started(kube, clock=clock)
    assert condition(kube, POD, POD_CONDITION)["status"] == "False"
    assert [it["uid"] for it in kube.objects[ITEM]["status"]["affectedPods"]] == ["pod-trainer"]
    report(kube, devices=[device(0)])
    await started(kube, clock=clock)
    assert condition(kube, POD, POD_CONDITION)["status"] == "True"


async def test_a_pod_with_the_broken_device_stays_marked(manager: Manager, kube: FakeKube, clock: Clock) -> None:
    await broken_and_gone(manager, kube)
    made_anew(kube, FAULTY)
    await started(kube, clock=clock)
    assert condition(kube, POD, POD_CONDITION)["status"] == "False"
    assert [it["device"] for it in kube.objects[ITEM]["status"]["affectedPods"]] == ["GPU-0"]


async def test_pods_are_searched_for_once_in_an_objects_life(manager: Manager, kube: FakeKube, clock: Clock) -> None:
    listed: list[str] = []
    kube.fails = lambda verb, path: listed.append(path) if verb == "list" else None
    await started(kube, clock=clock)
    report(kube, devices=[device(0, "Degraded", "NvlinkDown")])
    await started(kube, clock=clock)
    assert names.PODS not in listed


async def test_while_the_nodes_pods_cannot_be_listed_nothing_says_that_they_were(kube: FakeKube, clock: Clock) -> None:
    kube.fails = lambda verb, path: KubeError("no answer") if (verb, path) == ("list", names.PODS) else None
    manager = Manager(kube, OperatorMetrics(), clock=clock)
    await manager.relister.once()
    with pytest.raises(KubeError):
        await manager.reconcile_node("n1")
    assert condition(kube, ITEM, "PolicyResolved") == {}
    kube.fails = lambda _verb, _path: None
    await manager.reconcile_node("n1")
    assert condition(kube, ITEM, "PolicyResolved")["status"] == "True"


@pytest.mark.parametrize("shown", [{"reason": "not one word"}, {"reason": "x" * 200}, {}])
async def test_a_condition_that_somebody_else_wrote_is_listed_as_the_contract_allows(
    kube: FakeKube, clock: Clock, shown: dict[str, str]
) -> None:
    odd = {"type": POD_CONDITION, "status": "False", **shown}
    pod = raw_pod(conditions=[odd])
    pod["metadata"]["creationTimestamp"] = "2026-11-21T10:00:00Z"
    kube.put(POD, pod)
    made_anew(kube, heartbeat="")  # nothing is taken back before the agent has reported
    await started(kube, clock=clock)
    (entry,) = kube.objects[ITEM]["status"]["affectedPods"]
    assert AffectedPod.model_validate(entry).reason == ""


# --- a Node made anew ------------------------------------------------------------------------------------------------
async def test_a_node_recreated_between_two_looks_inherits_no_limit(manager: Manager, kube: FakeKube) -> None:
    async def wanted(turn: int) -> str:
        raw = raw_policy("tiers", labels={"extra": {"example.com/tier": str(turn)}}, generation=turn + 1)
        arrive(manager, kube, f"{names.POLICIES}/tiers", raw)
        await settle(manager)
        shown: str = action(kube, "labels")["reason"]
        return shown

    reasons = [await wanted(turn) for turn in range(MOST_WRITES + 1)]
    assert reasons == ["InSync"] * MOST_WRITES + ["Conflict"]
    raw = raw_node({GPU: 1})
    raw["metadata"]["uid"] = "another-uid"
    arrive(manager, kube, NODE, raw)
    await settle(manager)
    assert action(kube, "labels")["reason"] == "InSync"
    assert kube.objects[NODE]["metadata"]["labels"] == {"example.com/tier": str(MOST_WRITES)}


async def test_a_container_to_which_alone_something_happened_is_among_those_that_hold_a_device_at_fault(
    kube: FakeKube, clock: Clock
) -> None:
    hit = holder("old", health=health("Unhealthy", "MpsDaemonRestarted", recoveryAction="RestartApp"))
    report(kube, devices=[device(0, holders=[hit, holder("new")])])
    manager = await started(kube, clock=clock)
    manager.gauge()
    lines = manager.metrics.render().decode().splitlines()
    held = [line for line in lines if line.startswith("nodedevices_operator_unhealthy_device_holder{")]
    assert ['pod="old"' in line for line in held] == [True]
    assert not any(line.startswith("nodedevices_operator_device_unhealthy{") for line in lines)
