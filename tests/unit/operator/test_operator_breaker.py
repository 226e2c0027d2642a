"""The circuit breaker of the whole operator, over an API server in memory: a mass fault is seen as it comes, and said
wherever a person looks."""

from __future__ import annotations

from typing import Any

import pytest
from nodedevices_common.confirming import CONFIRM
from nodedevices_operator.concerns.fleet_gate import NAME, NAMESPACE
from nodedevices_operator.kube.port import KubeError
from nodedevices_operator.manager import Manager
from nodedevices_operator.metrics import OperatorMetrics
from nodedevices_operator.reconcile.policy import SUM_UP_SECONDS
from nodedevices_operator.records import names
from nodedevices_operator.records.names import namespaced
from support.cases import cases
from support.fakekube import FakeKube, settle
from support.marking import events_sent
from support.opfacts import GPU, device, holder, node_devices, raw_node, raw_pod, raw_policy
from support.whole_operator import arrive

NODES = tuple(f"n{index}" for index in range(10))
RECORD = namespaced(NAMESPACE, "configmaps", NAME)
POLICY = f"{names.POLICIES}/faults"
PATIENT = {"evictMode": "AfterGrace", "evictGraceSeconds": 1800, "budget": {"perHour": 200}}
RESUME = "kubectl nodedevices confirm actions resumed"


class Cluster:
    """Ten nodes, each with a GPU that a pod holds, and a policy."""

    def __init__(self, faults: dict[str, Any], mode: str = "Enforce") -> None:
        self.kube, self.seconds = FakeKube(), 0.0
        self.kube.put(POLICY, raw_policy("faults", faults=faults, mode=mode))
        self.kube.put(f"{names.POLICIES}/health", raw_policy("health", health={}))
        for name in NODES:
            node, pod = raw_node({GPU: 1}), raw_pod(f"pod-{name}")
            node["metadata"] |= {"name": name, "uid": f"node-{name}"}
            pod["spec"]["nodeName"] = name
            self.kube.put(f"{names.NODES}/{name}", node)
            self.kube.put(f"/api/v1/namespaces/ml/pods/pod-{name}", pod)
            self.report(name)

    def report(self, name: str, state: str = "Healthy", reason: str = "", **own: Any) -> dict[str, Any]:
        """`own`: what there is about the holder alone."""
        path = f"{names.NODE_DEVICES}/{name}"
        shown = self.kube.objects.get(path)
        raw = node_devices(device(0, state, reason, holders=[holder(f"pod-{name}", **own)]))
        raw["metadata"] |= {"name": name, "uid": f"nd-{name}"}
        if shown is not None:
            raw = shown | {"status": shown["status"] | {"devices": raw["status"]["devices"]}}
        return self.kube.put(path, raw)

    async def start(self, namespace: str = NAMESPACE) -> None:
        """A new operator."""
        self.manager = Manager(self.kube, OperatorMetrics(), namespace=namespace, clock=lambda: self.seconds)
        await self.manager.relister.once()
        await self.settle()

    async def fail(self, *nodes: str) -> None:
        for name in nodes:
            arrive(self.manager, self.kube, f"{names.NODE_DEVICES}/{name}", self.report(name, "Unhealthy", "Xid79"))
        await self.settle()

    async def resume(self, value: str, path: str = RECORD) -> None:
        raw = self.kube.objects[path]
        self.kube.put(
            path, raw | {"metadata": raw["metadata"] | {"annotations": {CONFIRM: f"actions=resumed@{value}"}}}
        )
        self.manager.fleet.add("fleet")  # as the watch of the record does
        await self.settle()

    async def settle(self) -> None:
        while True:
            await settle(self.manager)
            self.seconds += SUM_UP_SECONDS
            name = self.manager.policies.take()
            if name is None:
                await events_sent()
                return
            self.manager.policies.done(name, await self.manager.reconcile_policy(name))

    def shown(self, path: str, kind: str) -> tuple[str, str, str] | None:
        found = [it for it in self.kube.objects[path]["status"].get("conditions", []) if it["type"] == kind]
        return (found[0]["status"], found[0]["reason"], found[0]["message"]) if found else None

    def evictions(self, node: str) -> tuple[str, str]:
        actions = self.kube.objects[f"{names.NODE_DEVICES}/{node}"]["status"]["actions"]
        (found,) = [it for it in actions if it["name"] == "evictions"]
        return found["reason"], found["message"]

    @property
    def evicted(self) -> int:
        return len(self.kube.written("/eviction"))

    @property
    def events(self) -> list[tuple[str, str]]:
        return [
            (it["reason"], it["involvedObject"]["name"])
            for it in self.kube.events
            if it["involvedObject"]["kind"] == "DevicePolicy"
        ]


@pytest.fixture
async def cluster() -> Cluster:
    made = Cluster(PATIENT)
    await made.start()
    return made


async def test_a_mass_fault_stops_actions_while_every_pod_still_has_its_grace(cluster: Cluster) -> None:
    await cluster.fail(*NODES)
    reason, message = cluster.evictions("n3")
    assert reason == "Stopped", "an eviction that the breaker holds is not promised"
    assert "10 of the 10 nodes of policy faults failed" in message
    assert RESUME in message


async def test_an_open_breaker_is_a_condition_of_the_policies_that_it_stops_and_an_event(cluster: Cluster) -> None:
    assert cluster.shown(POLICY, "ActionsStopped") == ("False", "NotStopped", "")
    await cluster.fail(*NODES)
    status, reason, message = cluster.shown(POLICY, "ActionsStopped") or ("", "", "")
    assert (status, reason, RESUME in message) == ("True", "MassFault", True)
    assert cluster.shown(f"{names.POLICIES}/health", "ActionsStopped") is None
    assert cluster.events == [("ActionsStopped", "faults")]


@pytest.mark.parametrize("status", [0, 403, 429, 500])
async def test_an_open_breaker_is_shown_and_closed_again_while_events_cannot_be_written(
    cluster: Cluster, status: int
) -> None:
    cluster.kube.fails = lambda _, path: KubeError("no", status=status) if path.endswith("/events") else None
    await cluster.fail(*NODES)
    assert (cluster.shown(POLICY, "ActionsStopped") or ("",))[0] == "True"
    await cluster.resume(cluster.kube.objects[RECORD]["data"]["opened"])
    assert cluster.shown(POLICY, "ActionsStopped") == ("False", "NotStopped", "")
    assert cluster.events == []


async def test_an_operator_that_was_away_finds_the_mass_fault_when_it_comes_back() -> None:
    """By its own clock the faults are long ago."""
    cluster = Cluster({"evictMode": "Immediate", "budget": {"perHour": 200}})
    for name in NODES:
        cluster.report(name, "Unhealthy", "Xid79")
    await cluster.start()
    assert cluster.kube.written("/eviction") == []
    assert (cluster.shown(POLICY, "ActionsStopped") or ("", "", ""))[:2] == ("True", "MassFault")


# --- the record moves with the operator, or nothing is done ----------------------------------------------------------
ONE_AN_HOUR = {"evictMode": "Immediate", "budget": {"perHour": 1}}
MOVED = namespaced("elsewhere", "configmaps", NAME)


@pytest.fixture
async def used_up() -> Cluster:
    """One pod was evicted, which is all that the hour allows; another node has failed as well."""
    made = Cluster(ONE_AN_HOUR)
    await made.start()
    await made.fail("n1")
    await made.fail("n2")
    assert made.evicted == 1
    assert made.kube.objects[POLICY]["status"]["actionsRecord"] == f"{NAMESPACE}/{NAME}"
    return made


async def test_what_a_budget_refuses_is_one_event_of_the_node(used_up: Cluster) -> None:
    await used_up.manager.reconcile_node("n2")
    await used_up.settle()
    about = [it["involvedObject"]["name"] for it in used_up.kube.events if it["reason"] == "ActionRefused"]
    assert about == ["n2"]


async def test_an_operator_in_another_namespace_does_nothing_without_the_record(used_up: Cluster) -> None:
    await used_up.start("elsewhere")
    status, reason, message = used_up.shown(POLICY, "ActionsStopped") or ("", "", "")
    assert (used_up.evicted, status, reason) == (1, "True", "RecordMissing")
    assert f"are recorded in ConfigMap {NAME} of namespace {NAMESPACE}" in message
    assert message.endswith(f"until a person resumes them: {RESUME}")
    assert used_up.kube.objects[POLICY]["status"]["resumeRecord"] == f"elsewhere/{NAME}"
    assert used_up.kube.objects[POLICY]["status"]["actionsRecord"] == f"{NAMESPACE}/{NAME}"
    await used_up.start("elsewhere")
    assert used_up.evicted == 1, "nor after a restart"


async def test_a_record_that_was_copied_is_gone_on_from(used_up: Cluster) -> None:
    used_up.kube.put(MOVED, {"metadata": {"name": NAME, "uid": "copy"}, "data": used_up.kube.objects[RECORD]["data"]})
    await used_up.start("elsewhere")
    assert used_up.shown(POLICY, "ActionsStopped") == ("False", "NotStopped", "")
    assert used_up.evictions("n2")[0] == "Refused"
    assert used_up.kube.objects[POLICY]["status"]["actionsRecord"] == f"elsewhere/{NAME}"
    await used_up.start()
    assert (used_up.shown(POLICY, "ActionsStopped") or ("", "", ""))[1] == "RecordMissing", "the old one is outdated"


async def test_a_person_has_the_operator_go_on_without_the_record(used_up: Cluster) -> None:
    await used_up.start("elsewhere")
    await used_up.resume(used_up.kube.objects[MOVED]["data"]["opened"], MOVED)
    assert used_up.evicted == 2
    assert used_up.kube.objects[POLICY]["status"]["actionsRecord"] == f"elsewhere/{NAME}"
    assert "resumeRecord" not in used_up.kube.objects[POLICY]["status"]
    await used_up.start("elsewhere")
    assert used_up.shown(POLICY, "ActionsStopped") == ("False", "NotStopped", "")


async def test_a_breaker_stays_open_when_its_record_is_deleted_while_no_operator_runs(cluster: Cluster) -> None:
    await cluster.fail(*NODES)
    del cluster.kube.objects[RECORD]
    for name in NODES[1:]:
        cluster.report(name)  # well again: the faults alone would not open it
    await cluster.start()
    status, reason, message = cluster.shown(POLICY, "ActionsStopped") or ("", "", "")
    assert (status, reason) == ("True", "RecordMissing")
    assert "is gone, and the policies say that actions were stopped" in message


# --- what a DryRun policy says ---------------------------------------------------------------------------------------
@cases(
    ("limits", "failing", "said"),
    ({"budget": {"perHour": 9}}, 1, "n0: would change faults, would evict ml/pod-n0"),
    (
        {"budget": {"maxUnavailable": "5%"}},
        1,
        "n0: would change faults, would not evict ml/pod-n0: the budget of policy faults allows 0 nodes out of",
    ),
    ({"budget": {"perHour": 1}}, 2, "would not evict ml/pod-n1: the budget of policy faults allows 1 actions an hour"),
    ({"budget": {"perHour": 99}}, 6, "would not evict ml/pod-n0: all actions would be stopped, 6 of the 10 nodes"),
    ids=["allowed", "nodes out of service", "an hour", "the breaker"],
)
async def test_a_dry_run_says_what_enforce_would_do_now(limits: dict[str, Any], failing: int, said: str) -> None:
    cluster = Cluster({"evictMode": "Immediate"} | limits, mode="DryRun")
    await cluster.start()
    await cluster.fail(*NODES[:failing])
    assert said in (cluster.shown(POLICY, "Applied") or ("", "", ""))[2]
    assert (cluster.evicted, RECORD in cluster.kube.objects) == (0, False)
    enforced = Cluster({"evictMode": "Immediate"} | limits)
    await enforced.start()
    await enforced.fail(*NODES[:failing])
    assert enforced.evicted == (1 if "would evict" in said or "an hour" in said else 0)


async def test_a_dry_run_of_dra_says_on_which_nodes_pods_lose_the_resources_name() -> None:
    cluster = Cluster({})
    cluster.kube.put(POLICY, raw_policy("faults", serving={"api": "DRA"}, mode="DryRun"))
    for name in NODES:
        path = f"{names.NODES}/{name}"
        node = cluster.kube.objects[path]
        version = "v1.35.1" if name == NODES[0] else "v1.36.0"
        cluster.kube.put(path, node | {"status": node["status"] | {"nodeInfo": {"kubeletVersion": version}}})
    await cluster.start()
    message = (cluster.shown(POLICY, "Applied") or ("", "", ""))[2]
    assert f"n0: would change serving ({GPU} by DRA; held by ml/pod-n0: these keep what they hold" in message
    lost = f"pods that request {GPU} without a claim get none of this node (kubelet v1.35.1; that needs 1.36)"
    assert message.count(lost) == 1
