"""A NodeDevices that is gone: what it led to stays while the agent makes it again, and goes when nobody does."""

from __future__ import annotations

from typing import Any

import pytest
from nodedevices_operator.cache.queue import MAX_LATE_SECONDS
from nodedevices_operator.concerns.fleet_gate import NAME, NAMESPACE
from nodedevices_operator.kube.port import KubeError
from nodedevices_operator.manager import Manager
from nodedevices_operator.reconcile.leftovers import RETURN_SECONDS
from nodedevices_operator.records import names
from nodedevices_operator.records.kinds import Kind, read
from support.clock import Clock
from support.crashes import CrashingKube, Killed
from support.fakekube import FakeKube, settle
from support.opfacts import GPU, SINCE, device, health, holder, node_devices, raw_node, raw_pod, raw_policy
from support.whole_operator import ITEM, NODE, POD, arrive, end, one_node, started

SLOTS, TIER = "example.com/slots", "example.com/tier"
OTHERS = {"key": "example.com/maintenance", "effect": "NoSchedule"}
OVER_SECONDS = RETURN_SECONDS + MAX_LATE_SECONDS + 1
FAULTY = device(0, holders=[holder()], health=health("Unhealthy", "Xid79", xids=[79]))
AGENT = {"heartbeatTime": SINCE, "bootID": "boot-1"}
SECTIONS: dict[str, Any] = {
    "faults": {"taintEffect": "NoSchedule", "xidNodeCondition": True},
    "capacity": [{"name": SLOTS, "perNode": 4}],
    "labels": {"extra": {TIER: "gold"}},
}


def left(kube: FakeKube) -> list[str]:
    """What of ours is on the Node and on the pod."""
    node, pod = kube.objects[NODE], kube.objects[POD]
    found = [f"taint {it['value']}" for it in node["spec"].get("taints", ()) if it["key"] == names.TAINT]
    found += [f"label {key}" for key in node["metadata"]["labels"] if key == TIER]
    found += [f"capacity {key}" for key in node["status"]["capacity"] if key == SLOTS]
    found += [f"Node {it['type']}" for it in node["status"]["conditions"] if it["type"] != "Ready"]
    return found + [f"pod {it['status']} {it['reason']}" for it in pod["status"].get("conditions", ())]


EVERYTHING = [
    "taint Xid79",
    f"label {TIER}",
    f"capacity {SLOTS}",
    "Node nodedevices.io/DevicesHealthy",
    "Node XidCriticalError",
    "pod False Xid79",
]


async def passes(manager: Manager, clock: Clock, seconds: float) -> None:
    clock.now += seconds
    await settle(manager)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def kube(clock: Clock) -> FakeKube:
    return await everything(clock)


async def everything(clock: Clock) -> FakeKube:
    """A node with a lost GPU, held by a pod, and all that a policy makes of it."""
    made = FakeKube()
    made.put(NODE, raw_node({GPU: 1}, spec={"taints": [OTHERS]}))
    made.objects[NODE]["status"]["nodeInfo"] = {"bootID": "boot-1"}
    made.put(ITEM, node_devices(FAULTY, agent=AGENT))
    made.put(POD, raw_pod())
    made.put(f"{names.POLICIES}/all", raw_policy("all", **SECTIONS))
    await started(made, clock=clock)
    assert left(made) == EVERYTHING
    return made


async def gone_for_good(manager: Manager, kube: FakeKube, clock: Clock) -> None:
    """The NodeDevices is deleted, and nobody makes it again."""
    end(manager, kube, ITEM)
    await settle(manager)
    await passes(manager, clock, OVER_SECONDS)


async def test_what_is_on_the_node_stays_while_the_agent_makes_the_object_again(kube: FakeKube, clock: Clock) -> None:
    manager = await started(kube, clock=clock)
    end(manager, kube, ITEM)
    await passes(manager, clock, RETURN_SECONDS - 1)
    assert left(kube) == EVERYTHING
    again = node_devices(FAULTY, agent=AGENT)
    again["metadata"]["uid"] = "another"
    arrive(manager, kube, ITEM, again)
    await passes(manager, clock, OVER_SECONDS)
    assert left(kube) == EVERYTHING


async def test_the_mark_of_an_idle_pod_goes_too_where_no_object_comes_back(clock: Clock) -> None:
    kube = one_node(device(0, holders=[holder() | {"idle": "NeverUsed", "idleSince": SINCE}]))
    kube.put(POD, raw_pod())
    kube.put(f"{names.POLICIES}/all", raw_policy("all", idle={"afterSeconds": 60}))
    manager = await started(kube, clock=clock)
    await passes(manager, clock, 1.0)
    assert "pod True NeverUsed" in left(kube)
    await gone_for_good(manager, kube, clock)
    assert left(kube) == []


@pytest.mark.parametrize("restarts", [False, True])
async def test_the_mark_of_a_pod_goes_where_its_node_shows_nothing_of_ours(clock: Clock, restarts: bool) -> None:
    """An agent that says nothing of its devices' health: the Node has no condition of ours."""
    kube = one_node(FAULTY)
    conditions = kube.objects[ITEM]["status"]["conditions"]
    conditions[:] = [it for it in conditions if it["type"] == "HoldersKnown"]
    kube.put(POD, raw_pod())
    manager = await started(kube, clock=clock)
    assert left(kube) == ["pod False Xid79"]
    end(manager, kube, ITEM)
    await settle(manager)
    if restarts:
        manager = await started(kube, clock=clock)
    await passes(manager, clock, OVER_SECONDS)
    assert left(kube) == []


async def test_the_pods_of_a_node_without_devices_are_listed_once_and_no_more(clock: Clock) -> None:
    kube = FakeKube()
    kube.put(NODE, raw_node({GPU: 1}))
    manager = await started(kube, clock=clock)
    lists: list[str] = []
    kube.fails = lambda verb, path: lists.append(path) if verb == "list" else None
    for number in range(3):
        await passes(manager, clock, OVER_SECONDS)
        arrive(manager, kube, NODE, raw_node({GPU: number}))
    assert lists == [names.PODS]


async def test_all_of_it_goes_where_no_object_comes_back(kube: FakeKube, clock: Clock) -> None:
    manager = await started(kube, clock=clock)
    await gone_for_good(manager, kube, clock)
    assert left(kube) == []
    assert kube.objects[NODE]["spec"]["taints"] == [OTHERS]
    kube.writes.clear()
    await passes(manager, clock, 10 * OVER_SECONDS)
    assert kube.writes == []


async def test_an_operator_that_starts_later_finds_it_on_the_node(kube: FakeKube, clock: Clock) -> None:
    del kube.objects[ITEM], kube.objects[f"{names.POLICIES}/all"]
    manager = await started(kube, clock=clock)
    assert left(kube) == EVERYTHING
    await passes(manager, clock, OVER_SECONDS)
    assert left(kube) == []


async def test_a_pod_whose_readiness_needs_the_condition_stays_ready(kube: FakeKube, clock: Clock) -> None:
    gates = [{"conditionType": "nodedevices.io/DeviceHealthy"}]
    kube.objects[POD]["spec"]["readinessGates"] = gates
    manager = await started(kube, clock=clock)
    await gone_for_good(manager, kube, clock)
    assert left(kube) == ["pod True NotMonitored"]


async def test_a_pod_that_may_not_be_written_does_not_keep_the_node(kube: FakeKube, clock: Clock) -> None:
    manager = await started(kube, clock=clock)
    end(manager, kube, ITEM)
    await settle(manager)
    kube.fails = lambda verb, path: KubeError("no", status=403) if verb == "apply" and "/pods/" in path else None
    await passes(manager, clock, OVER_SECONDS)
    assert left(kube) == ["pod False Xid79"]


async def test_a_node_that_is_gone_leaves_the_record_and_costs_nothing_else(kube: FakeKube, clock: Clock) -> None:
    manager = await started(kube, clock=clock)
    manager.arrived(Kind.NODE, True, read(Kind.NODE, kube.objects[NODE]))
    end(manager, kube, ITEM)
    kube.writes.clear()
    await passes(manager, clock, 2 * OVER_SECONDS)
    [(_, path, body)] = kube.writes
    assert (path, body["data"]["unavailable"]) == (names.namespaced(NAMESPACE, "configmaps", NAME), "{}")


async def test_a_node_without_anything_of_ours_is_never_written(clock: Clock) -> None:
    kube = FakeKube()
    kube.put(NODE, raw_node({GPU: 1}, spec={"taints": [OTHERS]}))
    manager = await started(kube, clock=clock)
    await passes(manager, clock, 2 * OVER_SECONDS)
    assert kube.writes == []


async def test_killed_after_any_call_the_next_one_takes_the_rest_back(clock: Clock) -> None:
    for dies_at in range(1, 100):
        kube = await everything(clock)
        del kube.objects[ITEM]
        mortal = CrashingKube(kube, dies_at)
        try:
            await passes(await started(mortal, clock=clock), clock, OVER_SECONDS)
            break
        except Killed:
            await passes(await started(kube, clock=clock), clock, OVER_SECONDS)
            assert left(kube) == [], f"killed after {mortal.calls[-1]}"
    assert len(mortal.writes) == len(EVERYTHING)
    assert left(kube) == []
