"""The operator is killed at every call that it makes (`make test`: every third), and queued for work when all is done.

The API server is real.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from nodedevices_operator.concerns.fleet_gate import NAME as RECORD, NAMESPACE
from nodedevices_operator.kube.client import KubeClient
from nodedevices_operator.records.names import NODE_DEVICES, NODES, TAINT, named, namespaced, pod_path
from support import fleet
from support.apiserver import ApiServer
from support.crashes import CrashingKube, at_most, live, lives
from support.fleet import MEMORY, FleetNode, memory_capacity, pod, policy
from support.fuzzing import FULL
from support.kubectl import Kubectl, action, condition

MOST_CALLS = 80
STEP = 1 if FULL else 3
Observed = dict[str, Any]
Observe = Callable[[], Awaitable[Observed]]


@pytest.fixture
async def kube(apiserver: ApiServer, kubectl: Kubectl) -> AsyncIterator[KubeClient]:
    fleet.namespace(kubectl)
    client = await KubeClient.connect(str(apiserver.kubeconfig))
    yield client
    await client.close()


async def killed_at_every_call(
    kube: KubeClient, kubectl: Kubectl, begin: Callable[[FleetNode], Observe], *gpus: int, tidy: bool = False
) -> tuple[Observed, Observed]:
    """What is there after these GPUs failed and after they recovered, on one node after the other; each time the
    operator is killed at a later call. All ends are the same. `begin`: makes what stands on the node; `tidy`: no life
    reads the nodes of those before."""
    unbroken: tuple[Observed, Observed] | None = None
    calls = dies_at = 0
    while unbroken is None or dies_at <= calls:
        assert dies_at < MOST_CALLS
        name = f"k{dies_at}"
        node = FleetNode(kubectl, name).create({"life": name})
        observe = begin(node)
        node.fail(*gpus)
        made = await lives(kube, dies_at)
        at_fault = await observe()
        node.recover(*gpus)
        made = max(made, await lives(kube, dies_at))
        ends = at_fault, await observe()
        if unbroken is None:
            unbroken, calls = ends, made
        for end, whole in zip(ends, unbroken, strict=True):
            assert all(map(at_most, end["events"], whole["events"])), f"died at call {dies_at}"
            assert end | {"events": whole["events"]} == whole, f"died at call {dies_at}"
        for kind in ("nd", "node", "dp") if tidy else ():
            kubectl.delete(kind, name)
        dies_at += STEP
    return unbroken


async def cluster(kube: KubeClient, node: str, uids: dict[str, str]) -> Observed:
    """Everything that the operator answers for, without times, uids and the node's name."""
    item, own = await kube.get(named(NODE_DEVICES, node)), await kube.get(named(NODES, node))
    pods = [await kube.get(pod_path(fleet.NAMESPACE, name)) for name in sorted(uids)]
    marks = [condition(it, "nodedevices.io/DeviceHealthy") for it in pods]
    happened = [it async for page in kube.pages(namespaced(fleet.NAMESPACE, "events")) for it in page["items"]]
    about = [[it["reason"] for it in happened if it["involvedObject"]["uid"] == uids[name]] for name in sorted(uids)]
    conditions = ("PolicyResolved", "ActionsSynced", "Stale")
    return {
        "config": item["spec"]["config"],
        "hash": item["spec"]["configHash"],
        "sections": [it.get("sections") for it in item["spec"]["policies"]],
        "conditions": [[condition(item, kind).get(key) for key in ("type", "status", "reason")] for kind in conditions],
        "affected": [(it["device"], it["reason"]) for it in item["status"].get("affectedPods", [])],
        "capacity": own["status"]["capacity"].get(MEMORY),
        "node": [condition(own, "nodedevices.io/DevicesHealthy").get(key) for key in ("status", "reason")],
        "pods": [[it.get(key) for key in ("status", "reason", "message")] for it in marks],
        "events": [sorted(reasons) for reasons in about],
    }


@pytest.mark.timeout(900)
async def test_killed_at_any_call_and_restarted_it_reaches_the_same_end_state(
    kube: KubeClient, kubectl: Kubectl
) -> None:
    def begin(node: FleetNode) -> Observe:
        name = node.name
        kubectl.apply(policy(name, {"life": name}, capacity=memory_capacity(), health={"holdDownSeconds": 3}))
        uids = {f"{name}-{place}": pod(kubectl, f"{name}-{place}", name) for place in ("a", "b")}
        node.hold(0, f"{name}-a")
        node.hold(1, f"{name}-b")
        return lambda: cluster(kube, name, uids)

    at_fault, well = await killed_at_every_call(kube, kubectl, begin, 0, 1)
    assert [it[0] for it in at_fault["pods"]] == ["False", "False"]
    assert [it[0] for it in well["pods"]] == ["True", "True"]
    assert well["affected"] == []
    assert well["capacity"] == str(2 * 80 * 1024)
    assert well["events"] == [["DeviceFault", "DeviceRecovered"]] * 2


ACTS = {"taintEffect": "NoSchedule", "evictMode": "Immediate", "budget": {"maxUnavailable": 1}}


async def acted(kube: KubeClient, node: str, uid: str) -> Observed:
    item, own = await kube.get(named(NODE_DEVICES, node)), await kube.get(named(NODES, node))
    evicted = await kube.get(pod_path(fleet.NAMESPACE, f"{node}-a"))
    happened = [it async for page in kube.pages(namespaced(fleet.NAMESPACE, "events")) for it in page["items"]]
    data = (await kube.get(namespaced(NAMESPACE, "configmaps", RECORD)))["data"]
    return {
        "taints": [it.get("value") for it in own["spec"].get("taints", []) if it["key"] == TAINT],
        "leaving": "deletionTimestamp" in evicted["metadata"],
        "mark": condition(evicted, "nodedevices.io/DeviceHealthy")["status"],
        "shown": [action(item, name).get("reason") for name in ("taint", "evictions")],
        "events": [sorted(it["reason"] for it in happened if it["involvedObject"]["uid"] == uid)],
        "actions": sorted(it["kind"] for it in json.loads(data["actions"]) if it["node"] == node),
        "breaker": data["breaker"],
    }


@pytest.mark.timeout(900)
async def test_killed_at_any_call_it_taints_and_evicts_once_and_takes_the_taint_back(
    kube: KubeClient, kubectl: Kubectl
) -> None:
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    kubectl.delete("configmap", RECORD, namespace=NAMESPACE)

    def begin(node: FleetNode) -> Observe:
        name = node.name
        kubectl.apply(policy(name, {"life": name}, faults=ACTS))
        uid = pod(kubectl, f"{name}-a", name)
        node.hold(0, f"{name}-a")
        return lambda: acted(kube, name, uid)

    at_fault, well = await killed_at_every_call(kube, kubectl, begin, 0, tidy=True)
    assert (at_fault["taints"], at_fault["leaving"], at_fault["mark"]) == (["Xid79"], True, "False")
    assert at_fault["actions"] == ["Evict", "Taint"]
    assert at_fault["shown"] == ["InSync"] * 2
    assert (well["taints"], well["breaker"]) == ([], "Closed")
    assert well["mark"] == "False", "the pod ends, and a Job judges its end by this"
    assert well["events"] == [["DeviceFault", "DeviceFaultEviction"]]


async def test_a_life_after_everything_is_settled_writes_nothing(kube: KubeClient, kubectl: Kubectl) -> None:
    node = FleetNode(kubectl, "n1").create()
    kubectl.apply(policy("memory", capacity=memory_capacity(), faults={"podCondition": "Always"}))
    pod(kubectl, "a", "n1")
    pod(kubectl, "b", "n1")
    node.hold(0, "a")
    node.hold(1, "b")
    node.fail(0)
    await live(kube)
    again = CrashingKube(kube)
    await live(again)
    assert [write for write in again.writes if not write.startswith("create")] == []
