"""Twelve minutes in which a node has no kubelet and another one no agent: what is promised of all who wait for them.

Both absences begin at the same time, so that their minutes pass together. The tokens of agent and operator are of ten
minutes, the shortest that there are, and a kubelet that is away renews none.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from cluster.rig.problem import RigError
from support import installing, simulated
from support.cluster import GPU, HEALTHY, NAMESPACE, SYSTEM, Cluster
from support.rig_cluster import UNAUTHORIZED, RigCluster

# The longest of them waits for a token's end. By a signal: a thread would end pytest and leave the cluster behind.
pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1500, method="signal")]

AGENT = "nodedevices-agent"
NODE_HEALTHY = "nodedevices.io/DevicesHealthy"
TOKEN_SECONDS = 600
LEEWAY_SECONDS = 60 + 15  # an API server takes a token for 60 s after its end, and believes its own answer for 10 s
KUBELETS_SECONDS = 300  # from a plugin's end until a kubelet forgets its resources


@dataclass(frozen=True)
class Absence:
    rig: RigCluster
    without_kubelet: dict[str, Any]  # a pod on node a
    without_agent: dict[str, Any]  # a pod on node b
    mark: dict[str, Any]  # of the first
    ids: set[str]  # of node b
    held: set[str]  # by the second
    agent: dict[str, Any]  # of node a
    operator: dict[str, Any]  # the pod on node b


def with_short_tokens(rig: RigCluster) -> None:
    for what in (installing.AGENT, installing.OPERATOR):
        kind, _, name = what.partition("/")
        spec = (rig.kubectl.get(kind, name, SYSTEM) or {})["spec"]["template"]["spec"]
        [token] = [each for each in spec["volumes"] if each["name"] == "token"]
        [projected] = [each for each in token["projected"]["sources"] if "serviceAccountToken" in each]
        projected["serviceAccountToken"]["expirationSeconds"] = TOKEN_SECONDS
        change = {"spec": {"template": {"spec": {"volumes": [token]}}}}
        rig.kubectl.patch(kind, name, change, namespace=SYSTEM, how="strategic")
    installing.rolled_out(rig.kubectl, installing.AGENT, installing.OPERATOR)


def marked_pod(rig: RigCluster) -> tuple[dict[str, Any], dict[str, Any]]:
    """A pod on node a whose device had a fault, and its mark. Kubernetes evicts it from no node."""
    spec = rig.pod_spec(rig.a, {GPU: 1}) | {"tolerations": [{"operator": "Exists"}]}
    metadata = {"name": "marked", "namespace": NAMESPACE}
    rig.kubectl.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    pod = rig.running("marked")
    [held] = rig.held(rig.a, "marked")
    rig.hardware(rig.a, simulated.h100s(ecc=rig.devices(rig.a)[held]["index"]))
    rig.marked("marked", "False")
    rig.hardware(rig.a, simulated.h100s())
    return pod, rig.marked("marked", "True")


@pytest.fixture(scope="module")
def absent(installed: Cluster) -> Iterator[Absence]:
    """Node a without its kubelet, node b without its agent, both from now on."""
    if not isinstance(installed, RigCluster):
        pytest.skip("stops kubelets: only on our own rig")
    rig = installed
    rig.reset()
    with_short_tokens(rig)
    on_b = rig.pod("stays", rig.b, {GPU: 2})
    on_a, mark = marked_pod(rig)
    rig.until("the Node has all its devices again", lambda: counts(rig, rig.a) == (8, 8))
    operators = {each["spec"]["nodeName"]: each for each in rig.operator_pods()}
    absence = Absence(
        rig=rig,
        without_kubelet=on_a,
        without_agent=on_b,
        mark=mark,
        ids=rig.ids(rig.b),
        held=rig.held(rig.b, "stays"),
        agent=rig.agent(rig.a),
        operator=operators[rig.b],
    )
    rig.rig.stop_kubelet(rig.a)
    try:
        rig.kubectl.run("label", "node", rig.b, "nodedevices.io/agent=away")
        rig.until("the agent of node b is gone", lambda: not rig.processes(rig.b, AGENT))
        yield absence
    finally:
        rig.kubectl.run("label", "node", rig.b, "nodedevices.io/agent-")
        with suppress(RigError):  # a test has started it
            rig.rig.start_kubelet(rig.a)


def counts(rig: RigCluster, node: str) -> tuple[int | None, int | None]:
    return rig.node_count(node, GPU), rig.node_count(node, GPU, "capacity")


def test_c12_without_its_agent_a_node_has_nothing_allocatable_of_the_same_capacity(absent: Absence) -> None:
    rig = absent.rig
    rig.until("nothing is allocatable", lambda: counts(rig, rig.b) == (0, len(absent.ids)))
    rig.until("it is stale", lambda: rig.condition("nodedevices", rig.b, "Stale")["reason"] == "AgentLost")
    rig.alive(absent.without_agent)


def test_s21_a_node_whose_kubelet_is_gone_is_stale_and_its_pods_keep_their_mark(absent: Absence) -> None:
    rig = absent.rig
    rig.until("the Node is not Ready", lambda: rig.condition("node", rig.a, "Ready")["status"] == "Unknown", 150)
    rig.until("its NodeDevices is stale", lambda: rig.condition("nodedevices", rig.a, "Stale")["status"] == "True", 60)
    assert rig.condition("nodedevices", rig.a, "Stale")["reason"] == "NodeNotReady"
    rig.until("nothing is said of it", lambda: rig.condition("node", rig.a, NODE_HEALTHY)["status"] == "Unknown", 60)
    assert counts(rig, rig.a) == (8, 8), "what the kubelet said last stays"
    now = rig.kubectl.get("pod", "marked", NAMESPACE) or {}
    assert now["metadata"]["uid"] == absent.without_kubelet["metadata"]["uid"]
    assert rig.condition("pod", "marked", HEALTHY, NAMESPACE) == absent.mark


def test_f06_after_the_kubelets_five_minutes_an_agent_that_is_back_has_its_node_and_its_pods_as_before(
    absent: Absence,
) -> None:
    rig = absent.rig
    rig.until("the kubelet forgets the resource", lambda: counts(rig, rig.b) == (0, 0), KUBELETS_SECONDS + 150)
    rig.alive(absent.without_agent)
    rig.kubectl.run("label", "node", rig.b, "nodedevices.io/agent-")
    rig.until("the kubelet has the same ids", lambda: rig.ids(rig.b) == absent.ids)
    rig.until("so has the Node", lambda: counts(rig, rig.b) == (len(absent.ids), len(absent.ids)))
    assert rig.held(rig.b, "stays") == absent.held
    rig.pod("after", rig.b, {GPU: 2})
    assert rig.visible("after") == absent.ids - absent.held, "and nobody gets what the pod holds"
    rig.alive(absent.without_agent)
    rig.until("it is believed again", lambda: rig.condition("nodedevices", rig.b, "Stale")["status"] == "False")


def test_s36_a_token_that_has_expired_costs_nothing_but_writes_and_the_next_one_is_used_at_once(
    absent: Absence,
) -> None:
    """A kubelet that is away renews no token; the operator of the other node is given a new one in time."""
    rig = absent.rig
    restarts = rig.restarts(rig.a), rig.restarts(rig.a, "probe")
    ends = rig.token_claims(absent.agent)["exp"]
    until = ends + LEEWAY_SECONDS
    assert until - time.time() <= TOKEN_SECONDS + LEEWAY_SECONDS
    rig.until("the token has expired", lambda: time.time() > until, until - time.time() + 10)
    bad = rig.device(rig.a, 5)["id"]
    rig.hardware(rig.a, simulated.h100s(xid79=5))
    rig.until("the agent is refused", lambda: rig.counted(absent.agent, UNAUTHORIZED))
    assert rig.devices(rig.a)[bad]["health"]["state"] == "Healthy", "it cannot say so"

    rig.rig.start_kubelet(rig.a)
    rig.until("the kubelet hears of the fault", lambda: len(rig.ids(rig.a)) == 7 and bad not in rig.ids(rig.a))
    rig.until("NodeDevices catches up", lambda: rig.devices(rig.a)[bad]["health"]["state"] == "Unhealthy")
    rig.until("it is believed again", lambda: rig.condition("nodedevices", rig.a, "Stale")["status"] == "False")
    now = rig.agent(rig.a)
    assert now["metadata"]["uid"] == absent.agent["metadata"]["uid"]
    rig.until("the kubelet knows its pods", lambda: rig.held(rig.a, "marked"))
    assert (rig.restarts(rig.a), rig.restarts(rig.a, "probe")) == restarts, "nothing restarted"
    rig.alive(absent.without_kubelet)
    name, before = absent.operator["metadata"]["name"], absent.operator["status"]["containerStatuses"]
    operator = rig.kubectl.get("pod", name, SYSTEM) or {}
    assert rig.token_claims(operator)["exp"] > ends, "where a kubelet is there, it renews a token before its end"
    assert [each["restartCount"] for each in operator["status"]["containerStatuses"]] == [
        each["restartCount"] for each in before
    ]
