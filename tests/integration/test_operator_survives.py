"""The real operator when the world misbehaves: API server away, no CRDs, lists that lie, nothing to do, kill -9."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest
from nodedevices_api import GROUP
from nodedevices_operator.kube.client import KubeClient
from nodedevices_operator.kube.port import JsonObject, KubeError
from nodedevices_operator.manager import Manager
from nodedevices_operator.metrics import OperatorMetrics
from support import audit, fleet
from support.apiserver import ApiServer
from support.audit import Right
from support.fleet import MEMORY, FleetNode, get_pod, memory_capacity, pod, policy
from support.kubectl import Kubectl, action, condition, wait_until
from support.marking import next_node
from support.operatorprocess import NAMESPACE, OperatorProcess, service_account

ROOT = Path(__file__).parents[2]
DEVICE_HEALTHY = "nodedevices.io/DeviceHealthy"
CRDS = ("nodedevices.nodedevices.io", "devicepolicies.nodedevices.io")
ACCOUNT = f"{NAMESPACE}:nodedevices-operator"
WATCHED = {("", "nodes"), (GROUP, "nodedevices"), (GROUP, "devicepolicies")}
MISSING = "these CRDs are not installed: {}"


@pytest.fixture(autouse=True)
def _namespace(kubectl: Kubectl) -> None:
    fleet.namespace(kubectl)


def versions(kubectl: Kubectl) -> dict[str, str]:
    """resourceVersion of every object that the operator writes."""
    return {
        f"{kind}/{it['metadata']['name']}": it["metadata"]["resourceVersion"]
        for kind in ("nd", "dp", "nodes", "pods")
        for it in kubectl.items(kind)
    }


def writes(operator: OperatorProcess) -> float:
    return operator.metric("nodedevices_operator_writes_total")


def test_an_idle_fleet_is_written_nothing_over_several_lists(operator: OperatorProcess, kubectl: Kubectl) -> None:
    nodes = [FleetNode(kubectl, f"n{index}").create() for index in range(3)]
    kubectl.apply(policy("memory", capacity=memory_capacity(), faults={"podCondition": "Always"}))
    pod(kubectl, "a", "n0")
    nodes[0].hold(0, "a")
    nodes[0].fail(0)
    wait_until("marked", lambda: condition(get_pod(kubectl, "a"), DEVICE_HEALTHY).get("status") == "False")
    wait_until("capacity", lambda: all(MEMORY in node.capacity for node in nodes))
    settled = wait_until("settled", lambda: _still(kubectl, operator))
    lists = operator.metric("nodedevices_operator_relists_total")
    before = writes(operator)
    wait_until("three more lists", lambda: operator.metric("nodedevices_operator_relists_total") >= lists + 9)
    assert versions(kubectl) == settled
    assert writes(operator) == before


def _still(kubectl: Kubectl, operator: OperatorProcess) -> dict[str, str] | None:
    """The versions, once they have not changed for two seconds, and the operator has nothing to do."""
    before = versions(kubectl)
    time.sleep(2)
    rests = operator.metric("nodedevices_operator_queue_depth") == 0
    return before if rests and before == versions(kubectl) else None


def test_an_api_server_that_comes_back_finds_the_operator_at_work(
    operator: OperatorProcess, kubectl: Kubectl, apiserver: ApiServer
) -> None:
    """A deletion in the gap of the watches, which are refused as too old, is found, and nothing else goes."""
    node = FleetNode(kubectl, "n1").create()
    kubectl.apply(policy("memory", capacity=memory_capacity()), policy("lost", health={"holdDownSeconds": 7}))
    wait_until("capacity", lambda: MEMORY in node.capacity)
    wait_until("both", lambda: {"capacity", "health"} <= node.object["spec"]["config"].keys())
    apiserver.stop_apiserver()
    wait_until("noticed", lambda: operator.get("/readyz")[0] == 503)
    assert "failed to list" in operator.said()
    assert operator.get("/healthz")[0] == 200
    apiserver.lose("devicepolicies", "lost")
    apiserver.start_apiserver()
    assert node.capacity[MEMORY] == str(2 * 80 * 1024)
    wait_until("its deletion", lambda: set(node.object["spec"]["config"]) == {"capacity"})
    assert node.capacity[MEMORY] == str(2 * 80 * 1024)
    pod(kubectl, "a", "n1")
    node.hold(0, "a")
    node.fail(0)
    wait_until("marked", lambda: condition(get_pod(kubectl, "a"), DEVICE_HEALTHY).get("status") == "False")


def test_s09_nothing_is_written_when_an_api_server_comes_back_to_an_unchanged_cluster(
    operator: OperatorProcess, kubectl: Kubectl, apiserver: ApiServer
) -> None:
    """Neither after the restart nor while it is away, and no Event comes twice."""
    nodes = [FleetNode(kubectl, f"n{index}").create() for index in range(3)]
    kubectl.apply(policy("memory", capacity=memory_capacity(), labels={"extra": {"example.com/tier": "gold"}}))
    uid = pod(kubectl, "a", "n0")
    nodes[0].hold(0, "a")
    nodes[0].fail(0)
    wait_until("marked", lambda: condition(get_pod(kubectl, "a"), DEVICE_HEALTHY).get("status") == "False")
    wait_until("capacity", lambda: all(MEMORY in node.capacity for node in nodes))
    settled = wait_until("settled", lambda: _still(kubectl, operator))
    events, before = fleet.events(kubectl, uid), writes(operator)
    begin = audit.end(apiserver.audit_log)
    apiserver.stop_apiserver()
    wait_until("noticed", lambda: operator.get("/readyz")[0] == 503)
    apiserver.start_apiserver()
    wait_until("watched again", lambda: {it[:2] for it in requested(apiserver, begin) if it[2] == "watch"} >= WATCHED)
    listed = operator.metric("nodedevices_operator_relists_total")
    wait_until("listed once more", lambda: operator.metric("nodedevices_operator_relists_total") >= listed + 3)
    assert operator.get("/readyz")[0] == 200
    assert versions(kubectl) == settled
    assert [it["metadata"]["uid"] for it in fleet.events(kubectl, uid)] == [it["metadata"]["uid"] for it in events]
    assert writes(operator) == before
    assert {verb for _, _, verb in requested(apiserver, begin)} <= {"get", "list", "watch"}


def requested(apiserver: ApiServer, after: int) -> set[Right]:
    """What the operator's account requested since, and what of it was let through."""
    made = audit.requests(apiserver.audit_log, after=after)
    return {it.right for it in made if it.account == ACCOUNT and it.right is not None and it.code < 300}


def test_sigterm_ends_it_cleanly_and_kill_9_at_any_moment_loses_nothing(
    operator: OperatorProcess, kubectl: Kubectl
) -> None:
    node = FleetNode(kubectl, "n1").create()
    pod(kubectl, "a", "n1")
    node.hold(0, "a")
    node.report()
    assert operator.stop() == 0
    node.fail(0)
    operator.start()
    wait_until("marked", lambda: condition(get_pod(kubectl, "a"), DEVICE_HEALTHY).get("status") == "False")
    operator.kill()
    node.recover(0)
    operator.start()
    wait_until("well", lambda: condition(get_pod(kubectl, "a"), DEVICE_HEALTHY).get("status") == "True")
    wait_until("entry gone", lambda: not node.object["status"].get("affectedPods"))


@pytest.mark.parametrize("running", [True, False])
def test_an_object_deleted_by_hand_is_forgotten_and_its_successor_takes_the_marks_back(
    operator: OperatorProcess, kubectl: Kubectl, running: bool
) -> None:
    node = FleetNode(kubectl, "n1").create()
    pod(kubectl, "a", "n1")
    node.hold(0, "a")
    node.fail(0)
    wait_until("marked", lambda: condition(get_pod(kubectl, "a"), DEVICE_HEALTHY).get("status") == "False")
    if not running:
        operator.kill()
    kubectl.delete("nd", "n1")
    node.health, node.holders = {}, {}
    node.create_object()
    node.report()
    if not running:
        operator.start()
    wait_until("well", lambda: condition(get_pod(kubectl, "a"), DEVICE_HEALTHY).get("status") == "True")
    wait_until("entry gone", lambda: not node.object["status"].get("affectedPods"))


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[ApiServer]:
    """An API server of its own, without our CRDs."""
    with ApiServer(tmp_path / "bare") as server:
        yield server


def test_missing_crds_are_said_and_waited_for_and_the_loss_of_any_leaves_nobody_blind(
    bare: ApiServer, tmp_path: Path
) -> None:
    kubectl = Kubectl(bare.kubeconfig, str(bare.kubectl))
    operator = OperatorProcess(tmp_path, bare.kubeconfig).start(ready=False)  # it lists every ten minutes
    try:
        wait_until("said", lambda: MISSING.format("devicepolicies.nodedevices.io, nodedevices") in operator.said())
        assert operator.get("/healthz")[0] == 200
        assert operator.metric("nodedevices_operator_ready") == 0
        _install(kubectl)
        fleet.namespace(kubectl)
        node = FleetNode(kubectl, "n1").create()
        pod(kubectl, "a", "n1")
        node.hold(0, "a")
        node.report()
        wait_until("at work", lambda: "config" in node.object.get("spec", {}))
        for lost, noticed in ((CRDS, True), (CRDS[:1], False)):
            said = operator.said().count(MISSING.format(""))
            kubectl.run("delete", "crd", *lost)
            if noticed:
                wait_until("said again", lambda said=said: operator.said().count(MISSING.format("")) > said)  # type: ignore[misc]
                assert operator.get("/readyz")[0] == 503
            _install(kubectl)
            wait_until("ready", lambda: operator.get("/readyz")[0] == 200)
            if CRDS[0] in lost:
                node.create_object()
            node.fail(0)
            wait_until("marked", lambda: condition(get_pod(kubectl, "a"), DEVICE_HEALTHY).get("status") == "False")
            node.recover(0)
            wait_until("well", lambda: condition(get_pod(kubectl, "a"), DEVICE_HEALTHY).get("status") == "True")
        assert operator.running
        assert "Traceback" not in operator.said()
    finally:
        operator.kill()


def test_s17_while_the_crd_of_nodedevices_is_away_the_node_keeps_its_capacity(
    operator: OperatorProcess, kubectl: Kubectl
) -> None:
    """All NodeDevices go with their CRD, which says nothing of what the nodes offer. Nothing is written on the Node."""
    node = FleetNode(kubectl, "n1").create()
    kubectl.apply(policy("memory", capacity=memory_capacity()))
    wait_until("capacity", lambda: action(node.object, "capacity").get("reason") == "InSync")
    wait_until("it rests", lambda: operator.metric("nodedevices_operator_queue_depth") == 0)
    before = node.node["metadata"]["resourceVersion"]
    try:
        kubectl.run("delete", "crd", CRDS[0])
        wait_until("noticed", lambda: CRDS[0] in operator.get("/readyz")[1])
        assert operator.get("/readyz")[0] == 503
        assert node.node["metadata"]["resourceVersion"] == before
    finally:
        _install(kubectl)
    wait_until("ready", lambda: operator.get("/readyz")[0] == 200)
    node.create_object()
    node.report()
    wait_until("at work", lambda: action(node.object, "capacity").get("reason") == "InSync")
    assert node.capacity[MEMORY] == str(2 * 80 * 1024)
    assert node.node["metadata"]["resourceVersion"] == before


def _install(kubectl: Kubectl) -> None:
    kubectl.run("apply", "--server-side", "-k", str(ROOT / "crds"))
    named = [f"crd/{name}" for name in CRDS]
    # kubectl wait fails on an object that has no conditions yet.
    wait_until("CRDs", lambda: kubectl.run("wait", "--for=condition=Established", "--timeout=30s", *named))


def test_what_it_may_not_do_is_shown_and_the_rest_goes_on(
    apiserver: ApiServer, kubectl: Kubectl, tmp_path: Path
) -> None:
    bound = service_account(kubectl, tmp_path, without="nodes/status")
    try:
        with OperatorProcess(tmp_path, bound, relist_seconds=3):
            node = FleetNode(kubectl, "n1").create()
            kubectl.apply(policy("memory", capacity=memory_capacity()))
            wait_until("shown", lambda: action(node.object, "capacity").get("reason") == "Forbidden")
            pod(kubectl, "a", "n1")
            node.hold(0, "a")
            node.fail(0)
            wait_until("marked", lambda: condition(get_pod(kubectl, "a"), DEVICE_HEALTHY).get("status") == "False")
    finally:
        service_account(kubectl, tmp_path)


# --- lists that lie, in this process, without a watch ----------------------------------------------------------------
class Lying:
    """A Kube whose lists can be made to lie."""

    def __init__(self, kube: KubeClient) -> None:
        self._kube = kube
        self.lie = ""
        self.get, self.apply, self.create = kube.get, kube.apply, kube.create
        self.json_patch, self.delete, self.watch = kube.json_patch, kube.delete, kube.watch

    async def pages(
        self, path: str, query: Mapping[str, str] | None = None, *, metadata_only: bool = False
    ) -> AsyncIterator[JsonObject]:
        if self.lie == "failed":
            raise KubeError(f"GET {path}: 504 timeout", status=504)
        if self.lie == "gap":
            raise KubeError(f"GET {path}: 410 Expired: too old resource version", status=410)
        async for page in self._kube.pages(path, query, metadata_only=metadata_only):
            if self.lie in {"partial", "expired"}:
                yield {**page, "items": page["items"][:1]}
                status = 410 if self.lie == "expired" else 0  # the continue token is too old by now
                raise KubeError(f"GET {path}: no answer", status=status)
            yield {**page, "items": []} if self.lie == "empty" else page


@pytest.fixture
async def lying(apiserver: ApiServer, _operator: OperatorProcess) -> AsyncIterator[Lying]:
    """Without the operator of the other tests, which would write what a test's own has just taken away."""
    _operator.kill()
    client = await KubeClient.connect(str(apiserver.kubeconfig))
    yield Lying(client)
    await client.close()


async def _settle(core: Manager) -> None:
    while (name := await next_node(core)) is not None:
        await core.reconcile_node(name)
        core.nodes.done(name)


@pytest.mark.parametrize("lie", ["failed", "gap", "partial", "expired", "empty"])
async def test_a_list_that_lies_removes_nothing(lying: Lying, kubectl: Kubectl, lie: str) -> None:
    nodes = [FleetNode(kubectl, f"n{index}").create() for index in range(2)]
    kubectl.apply(policy("memory", capacity=memory_capacity()))
    core = Manager(lying, OperatorMetrics())
    await core.relister.once()
    await _settle(core)
    lying.lie = lie
    if lie == "empty":
        await core.relister.once()
    else:
        with pytest.raises(KubeError):
            await core.relister.once()
    await _settle(core)
    assert (set(core.cache.node_devices), set(core.cache.policies)) == ({"n0", "n1"}, {"memory"})
    assert all(MEMORY in node.capacity for node in nodes)


async def test_before_everything_was_listed_nothing_is_decided(lying: Lying, kubectl: Kubectl) -> None:
    FleetNode(kubectl, "n1").create()
    core = Manager(lying, OperatorMetrics())
    lying.lie = "partial"
    with pytest.raises(KubeError):
        await core.relister.once()
    assert core.nodes.take() is None
    assert not core.cache.synced


async def test_a_deletion_that_the_watch_never_reported_is_found_by_the_list(lying: Lying, kubectl: Kubectl) -> None:
    node = FleetNode(kubectl, "n1").create()
    kubectl.apply(policy("memory", capacity=memory_capacity()))
    core = Manager(lying, OperatorMetrics())
    await core.relister.once()
    await _settle(core)
    assert MEMORY in node.capacity
    kubectl.delete("dp", "memory")  # this core has no watch at all
    await core.relister.once()
    await _settle(core)
    assert MEMORY not in node.capacity
    assert core.cache.policies == {}
