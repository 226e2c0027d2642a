"""What the operator keeps on a node: each concern alone, in an order that survives kill -9; and one that a test brings.

`KeptAnnotation` (tests/support) is that second tenant: a file, and as its registration a place in the manager's tuple.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from nodedevices_operator.cleanup import clean_up
from nodedevices_operator.concerns.configuration import ConfigurationConcern
from nodedevices_operator.concerns.fleet_gate import KEY, NAME
from nodedevices_operator.concerns.port import Concern, Tools, View
from nodedevices_operator.concerns.registry import CONCERNS, Factory
from nodedevices_operator.desired.fleet import from_data
from nodedevices_operator.kube.port import KubeError
from nodedevices_operator.manager import Manager
from nodedevices_operator.metrics import OperatorMetrics
from nodedevices_operator.reconcile.node import ConcernError
from nodedevices_operator.records import names
from nodedevices_operator.records.kinds import Kind, read
from support.cases import cases
from support.crashes import at_most, lives
from support.fakekube import FakeKube, settle
from support.kept_annotation import ANNOTATION, KeptAnnotation
from support.opfacts import (
    GPU,
    MEMORY,
    SINCE,
    device,
    health,
    holder,
    node_devices,
    raw_node,
    raw_pod,
    raw_policy,
    rejected_pod,
)

ITEM = f"{names.NODE_DEVICES}/n1"
NODE = f"{names.NODES}/n1"
POD = "/api/v1/namespaces/ml/pods/trainer"
REJECTED = "/api/v1/namespaces/ml/pods/web-1"
RECORD = names.namespaced("nodedevices-system", "configmaps", NAME)


TWICE = {"AllocatedOnce": ("False", "DoubleAllocation")}


def broken(make: Factory, error: Exception) -> Factory:
    """A concern that raises."""

    def made(tools: Tools) -> Concern[Any]:
        concern: Any = make(tools)

        async def raises(_view: View) -> Any:
            raise error

        concern.reconcile = raises
        return concern  # type: ignore[no-any-return]

    return made


def own_rig() -> FakeKube:
    """A node with a lost GPU that the pod `trainer` holds, and a policy for everything that the operator can keep."""
    made = FakeKube()
    made.put(NODE, raw_node({GPU: 1}))
    made.objects[NODE]["status"]["nodeInfo"] = {"bootID": "boot-1"}
    lost = device(0, holders=[holder()], health=health("Unhealthy", "Xid79", xids=[79]))
    made.put(ITEM, node_devices(lost, agent={"heartbeatTime": SINCE, "bootID": "boot-1"}, conditions=TWICE))
    made.put(POD, raw_pod())
    capacity = [{"name": MEMORY, "perNode": 7}]
    sections: dict[str, Any] = {
        "capacity": capacity,
        "labels": {"extra": {"example.com/a": "b"}},
        "faults": {"xidNodeCondition": True},
        "idle": {"afterSeconds": 1800},
    }
    made.put(f"{names.POLICIES}/p", raw_policy("p", **sections))
    return made


def acting_rig() -> FakeKube:
    """The same, with a policy that taints the Node and evicts the pod as well, and a pod that the node rejected."""
    made = own_rig()
    pod = rejected_pod()
    a_minute_ago = (datetime.now(UTC) - timedelta(minutes=1)).isoformat()
    made.put(REJECTED, pod | {"status": pod["status"] | {"startTime": a_minute_ago}})
    acts = {
        "xidNodeCondition": True,
        "taintEffect": "NoSchedule",
        "evictMode": "Immediate",
        "budget": {"maxUnavailable": 1},
    }
    spec = made.objects[f"{names.POLICIES}/p"]["spec"]
    made.put(f"{names.POLICIES}/p", raw_policy("p", **(spec | {"faults": acts})))
    made.objects[NODE]["spec"] = {"taints": [{"key": "example.com/other", "effect": "NoSchedule"}]}
    return made


@pytest.fixture
def kube() -> FakeKube:
    return own_rig()


async def synced(kube: FakeKube, *concerns: Factory) -> Manager:
    manager = Manager(kube, OperatorMetrics(), concerns=concerns or CONCERNS)
    await manager.rejected.once()
    await manager.relister.once()
    return manager


def condition(kube: FakeKube, path: str, kind: str) -> tuple[str, str]:
    found = [it for it in kube.objects[path].get("status", {}).get("conditions", []) if it["type"] == kind]
    return (found[0]["status"], found[0]["reason"]) if found else ("", "")


def done(kube: FakeKube) -> dict[str, bool]:
    """What of all that is to be done has been done, by concern."""
    return {
        "configuration": kube.objects[ITEM]["spec"].get("configHash", "") != "",
        "staleness": condition(kube, ITEM, "Stale") == ("False", "Fresh"),
        "capacity": kube.objects[NODE]["status"]["capacity"].get(MEMORY) == "7",
        "labels": kube.objects[NODE]["metadata"]["labels"].get("example.com/a") == "b",
        "node-condition": condition(kube, NODE, "nodedevices.io/DevicesHealthy")[0] != "",
        "xid-condition": condition(kube, NODE, "XidCriticalError") == ("True", '{"79":true}'),
        "pod-marks": condition(kube, POD, "nodedevices.io/DeviceHealthy") == ("False", "Xid79"),
        "rejection-events": "DevicesUnavailable" in [each["reason"] for each in kube.events]
        or REJECTED not in kube.objects,
    }


def acted(kube: FakeKube) -> dict[str, bool]:
    """The same of what needs a grant."""
    return {
        "taint": [it.get("value") for it in kube.objects[NODE]["spec"]["taints"]] == [None, "Xid79"],
        "evictions": "deletionTimestamp" in kube.objects[POD]["metadata"],
    }


def counted(manager: Manager, concern: str, result: str) -> float:
    name = "nodedevices_operator_concern_reconciles_total"
    return manager.metrics.registry.get_sample_value(name, {"concern": concern, "result": result}) or 0.0


# --- a concern that only a test has ----------------------------------------------------------------------------------
async def test_another_concern_goes_through_the_whole_operator(kube: FakeKube) -> None:
    manager = await synced(kube, *CONCERNS, KeptAnnotation)
    await settle(manager)
    assert ANNOTATION not in kube.objects[NODE]["metadata"].get("annotations", {})
    policy = raw_policy("p", labels={"featureDiscovery": True}, generation=2)
    raw = kube.put(f"{names.POLICIES}/p", policy)
    manager.arrived(Kind.POLICY, False, read(Kind.POLICY, raw))
    await settle(manager)
    assert kube.objects[NODE]["metadata"]["annotations"] == {ANNOTATION: "1"}
    assert condition(kube, ITEM, "AnnotationSynced") == ("True", "InSync")
    assert counted(manager, "annotation", "done") > 0
    assert 'nodedevices_operator_writes_total{concern="annotation"} 1.0' in manager.metrics.render().decode()
    assert await clean_up(kube, dry_run=False) == 0
    assert kube.objects[NODE]["metadata"]["annotations"] == {}


@pytest.mark.parametrize(
    ("error", "reason", "result"),
    [
        (KubeError("GET the Node: no", status=403), "Failed", "forbidden"),
        (ValueError("a bug"), "Progressing", "failed"),
    ],
)
async def test_a_policy_has_not_applied_where_the_concern_of_its_section_fails(
    kube: FakeKube, error: Exception, reason: str, result: str
) -> None:
    manager = await synced(kube, *CONCERNS, broken(KeptAnnotation, error))
    with contextlib.suppress(ConcernError):
        await manager.reconcile_node("n1")
    applied = {"appliedConfigHash": kube.objects[ITEM]["spec"]["configHash"]}
    raw = kube.put(ITEM, kube.objects[ITEM] | {"status": kube.objects[ITEM]["status"] | applied})
    manager.arrived(Kind.NODE_DEVICES, False, read(Kind.NODE_DEVICES, raw))
    with contextlib.suppress(ConcernError):
        await manager.reconcile_node("n1")
    await manager.reconcile_policy("p")
    assert condition(kube, f"{names.POLICIES}/p", "Applied") == ("False", reason)
    assert counted(manager, "annotation", result) == 2


@cases(
    ("verb", "path"),
    ("patch", NODE),
    ("create", f"{POD}/eviction"),
    ("apply", f"{POD}/status"),
    ("apply", f"{NODE}/status"),
    ids=["taint", "eviction", "mark", "node-condition"],
)
async def test_a_policy_has_not_applied_while_what_it_leads_to_cannot_be_written(verb: str, path: str) -> None:
    kube = acting_rig()
    manager = await synced(kube)
    await settle(manager)
    applied = {"appliedConfigHash": kube.objects[ITEM]["spec"]["configHash"]}
    kube.put(ITEM, kube.objects[ITEM] | {"status": kube.objects[ITEM]["status"] | applied})
    kube.put(POD, raw_pod())
    kube.objects[NODE]["spec"]["taints"].pop()
    kube.objects[NODE]["status"]["conditions"] = raw_node()["status"]["conditions"]
    manager = await synced(kube)
    kube.fails = lambda *call: KubeError("a webhook failed", status=500) if call == (verb, path) else None
    with contextlib.suppress(KubeError):
        await manager.reconcile_node("n1")
    await manager.reconcile_fleet(KEY)
    with pytest.raises(KubeError):
        await manager.reconcile_node("n1")
    await manager.reconcile_policy("p")
    assert condition(kube, f"{names.POLICIES}/p", "Applied") == ("False", "Progressing")
    kube.fails = lambda *_: None
    await manager.reconcile_node("n1")
    await manager.reconcile_policy("p")
    assert condition(kube, f"{names.POLICIES}/p", "Applied") == ("True", "Applied")


# --- each alone ------------------------------------------------------------------------------------------------------
@cases("make", *CONCERNS, ids=lambda make: make.info.name)
async def test_a_concern_that_fails_keeps_no_other_from_being_reconciled(make: Any) -> None:
    kube = acting_rig()
    await settle(await synced(kube))  # what the broken one would have to decide first stands on the objects
    kube.put(POD, raw_pod())
    kube.objects[NODE]["spec"]["taints"].pop()
    kube.objects[NODE]["status"]["conditions"] = raw_node()["status"]["conditions"]
    kube.objects[NODE]["metadata"]["labels"] = {}
    kube.objects[NODE]["status"]["capacity"].pop(MEMORY)
    concerns = [broken(it, ValueError("a bug")) if it is make else it for it in CONCERNS]
    manager = await synced(kube, *concerns)
    with pytest.raises(ConcernError, match=make.info.name):
        await manager.reconcile_node("n1")
    others = {name: it for name, it in done(kube).items() if name != make.info.name}
    if make.info.name == "staleness":
        del others["node-condition"]  # which says how stale the node is
    assert all(others.values()), others
    assert counted(manager, make.info.name, "failed") == 1
    await manager.reconcile_fleet(KEY)
    with pytest.raises(ConcernError, match=make.info.name):
        await manager.reconcile_node("n1")
    granted = {name: it for name, it in acted(kube).items() if name != make.info.name}
    if make.info.name == "staleness":
        granted = {}  # what may be stale changes nothing on the Node and evicts nobody
    if make.info.name == "pod-marks":
        granted.pop("evictions")  # a pod that is not marked is not evicted
    assert all(granted.values()), granted


@pytest.mark.parametrize("error", [KubeError("no answer"), ValueError("a bug")])
async def test_nothing_changes_on_the_node_before_its_configuration_is_stored(kube: FakeKube, error: Exception) -> None:
    apply = kube.apply

    async def fails(path: str, *arguments: Any, **more: Any) -> Any:
        if path == ITEM:
            raise error
        return await apply(path, *arguments, **more)

    kube.apply = fails  # type: ignore[method-assign]
    manager = await synced(kube)
    with pytest.raises((KubeError, ConcernError)):
        await manager.reconcile_node("n1")
    assert kube.written(NODE) == []
    assert done(kube)["pod-marks"], "whom a fault concerns hangs on no configuration"


async def test_what_cannot_be_read_takes_nothing_back(kube: FakeKube) -> None:
    await settle(await synced(kube))
    kube.objects[ITEM]["spec"]["config"] = {"capacity": "of a newer version"}
    kube.writes.clear()
    concerns = [broken(it, ValueError("a bug")) if it is ConfigurationConcern else it for it in CONCERNS]
    with pytest.raises(ConcernError):
        await (await synced(kube, *concerns)).reconcile_node("n1")
    assert kube.written(NODE) == []


# --- in order --------------------------------------------------------------------------------------------------------
def wrote(write: tuple[str, str, Any]) -> str:
    _, path, body = write
    if path.endswith("/pods/trainer/status"):
        return "pod"
    if path == f"{ITEM}/status":
        return f"status with {len(body['status']['affectedPods'])} affected"
    if path == ITEM:
        return "config" if "spec" in body else "labels of the NodeDevices"
    return "node"


async def reconciled(manager: Manager, kube: FakeKube) -> list[str]:
    """What it wrote, but for Events, which nothing waits for."""
    await manager.reconcile_node("n1")
    return [wrote(write) for write in kube.writes if write[0] != "create"]


async def test_configuration_then_the_node_then_affected_pods_then_the_pod(kube: FakeKube) -> None:
    manager = await synced(kube)
    assert await reconciled(manager, kube) == [
        "config",
        "node",  # capacity
        "node",  # labels
        "node",  # condition
        "node",  # XidCriticalError
        "status with 1 affected",
        "pod",
        "labels of the NodeDevices",
    ]


async def test_a_mark_is_taken_back_on_the_pod_before_its_entry_is_removed(kube: FakeKube) -> None:
    manager = await synced(kube)
    await settle(manager)
    kube.writes.clear()
    raw = kube.objects[ITEM]
    well = kube.put(ITEM, raw | {"status": raw["status"] | {"devices": [device(0, holders=[holder()])]}})
    manager.arrived(Kind.NODE_DEVICES, False, read(Kind.NODE_DEVICES, well))
    assert await reconciled(manager, kube) == ["pod", "status with 0 affected"]


async def test_no_pod_is_marked_while_affected_pods_cannot_be_written(kube: FakeKube) -> None:
    kube.fails = lambda _verb, path: KubeError("no answer") if path == f"{ITEM}/status" else None
    manager = await synced(kube)
    with pytest.raises(KubeError):
        await manager.reconcile_node("n1")
    assert {name for name, it in done(kube).items() if not it} == {"staleness", "pod-marks"}


async def test_what_is_right_is_not_written_again(kube: FakeKube) -> None:
    manager = await synced(kube, *CONCERNS, KeptAnnotation)
    await settle(manager)
    kube.writes.clear()
    await manager.reconcile_node("n1")
    await settle(await synced(kube, *CONCERNS, KeptAnnotation))
    assert [write for write in kube.writes if write[0] != "create"] == []


async def test_cleanup_takes_our_taint_from_a_busy_node_and_leaves_the_others() -> None:
    kube = acting_rig()
    await settle(await synced(kube))
    assert acted(kube) == {"taint": True, "evictions": True}
    tries = [KubeError("it has changed", status=422), KubeError("it has changed", status=409)]
    kube.fails = lambda verb, path: tries.pop() if tries and (verb, path) == ("patch", NODE) else None
    assert await clean_up(kube, dry_run=False) == 0
    assert [it["key"] for it in kube.objects[NODE]["spec"]["taints"]] == ["example.com/other"]
    assert condition(kube, POD, "nodedevices.io/DeviceHealthy") == ("False", "Xid79"), (
        "the pod ends, and is not written"
    )


# --- killed ----------------------------------------------------------------------------------------------------------
def end_state(kube: FakeKube) -> tuple[Any, ...]:
    """What the operator answers for, without times and Events."""
    item = kube.objects[ITEM]
    conditions = [condition(kube, ITEM, kind) for kind in ("PolicyResolved", "ActionsSynced", "Stale")]
    actions_shown = [(it["name"], it["reason"]) for it in item["status"].get("actions", [])]
    marked = [it["name"] for it in item["status"]["affectedPods"]]
    taints = kube.objects[NODE].get("spec", {}).get("taints")
    evicted = "deletionTimestamp" in kube.objects[POD]["metadata"]
    record = from_data(kube.objects.get(RECORD, {}).get("data", {}))
    actions = [action for action, _ in record.actions] if record is not None else None
    return item["spec"], conditions, marked, done(kube), taints, evicted, actions, actions_shown


async def through(rig: Callable[[], FakeKube], dies_at: int) -> tuple[Any, list[Any], int]:
    """The states after a fault and after its end, each with a life that dies; the Events that were written, and the
    most calls of a life."""
    kube = rig()
    made = await lives(kube, dies_at)
    at_fault = end_state(kube)
    raw = kube.objects[ITEM]
    kube.put(ITEM, raw | {"status": raw["status"] | {"devices": [device(0, holders=[holder()])]}})
    made = max(made, await lives(kube, dies_at))
    events = sorted((it["reason"], it["involvedObject"]["kind"]) for it in kube.events)
    return (at_fault, end_state(kube)), events, made


async def test_killed_at_any_call_it_taints_and_evicts_once_and_takes_the_taint_back() -> None:
    unbroken, events, calls = await through(acting_rig, 0)
    assert ("DeviceFaultEviction", "Pod") in events
    assert [it.kind for it in unbroken[0][6]] == ["Evict", "Taint"]
    assert [len(it[4]) for it in unbroken] == [2, 1]
    assert [it[5] for it in unbroken] == [True, True]
    assert [it[3]["pod-marks"] for it in unbroken] == [True, True], "a pod that ends keeps what it is judged by"
    for dies_at in range(1, calls + 1):
        ended, written, _ = await through(acting_rig, dies_at)
        assert ended == unbroken, f"died at call {dies_at}"
        assert at_most(written, events), f"died at call {dies_at}"
