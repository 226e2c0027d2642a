"""kill -9 of anything at any moment loses nothing: pods keep their devices, verdicts stay, marks end up right.

These tests reach into the nodes (they stop kubelets, the API server and single processes), so they run on our own rig.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
from nodedevices_common.confirming import CONFIRM
from support import installing, simulated
from support.cluster import GPU, HEALTHY, MEMORY, NAMESPACE, SYSTEM
from support.fleet import stamp
from support.kubectl import NotReached, Watch
from support.rig_cluster import RigCluster

pytestmark = [pytest.mark.e2e]

# Words of their command lines, as `ps` shows them.
AGENT, OPERATOR = "nodedevices-agent", "nodedevices-operator"
AGENTS = f"daemonset/{AGENT}"
STATE_FILE = "/var/lib/kubelet/device-plugins/nodedevices-state.json"
DEVICES_HEALTHY = "nodedevices.io/DevicesHealthy"  # on the Node
PROBE = r"nodedevices-probe|nodedevices_probe\.(main|spare)"


def test_a_kubelet_restart_keeps_ids_pods_and_their_devices(rig: RigCluster) -> None:
    pod = rig.pod("stays", rig.a, {GPU: 2})
    devices, ids = rig.visible("stays"), rig.ids(rig.a)
    rig.restart_kubelet(rig.a)
    rig.until("the kubelet has the same ids", lambda: rig.ids(rig.a) == ids)
    rig.until("the Node offers them", lambda: rig.node_count(rig.a, GPU) == 8)
    rig.until("the kubelet knows its pods", lambda: rig.held(rig.a, "stays") == devices)
    rig.alive(pod)
    assert rig.visible("stays") == devices
    rig.pod("after", rig.a, {GPU: 6})
    assert not rig.visible("after") & devices


def test_a_killed_agent_is_back_with_the_same_ids_and_verdicts(rig: RigCluster) -> None:
    pod = rig.pod("stays", rig.a, {GPU: 2})
    [bad, _] = sorted(rig.held(rig.a, "stays"))
    rig.hardware(rig.a, simulated.h100s(xid79=rig.devices(rig.a)[bad]["index"]))
    rig.until("the kubelet withdraws it", lambda: bad not in rig.ids(rig.a))
    rig.marked("stays", "False")
    ids = rig.ids(rig.a)
    since = rig.devices(rig.a)[bad]["health"]["since"]
    with rig.watching(rig.a) as seen:
        rig.kill(rig.a, AGENT)
        rig.until("its container was restarted", lambda: rig.restarts(rig.a) == 1)
        rig.until("the kubelet has the same ids", lambda: rig.ids(rig.a) == ids)
    assert all(bad not in offered for offered in seen()), "the faulty device was offered while the agent restarted"
    rig.until("NodeDevices is written again", lambda: rig.condition("nodedevices", rig.a, "Ready")["status"] == "True")
    health = rig.devices(rig.a)[bad]["health"]
    assert (health["state"], health["reason"], health["since"]) == ("Unhealthy", "Xid79", since)
    rig.alive(pod)
    rig.marked("stays", "False")


@pytest.mark.long
def test_s35_an_agent_that_the_kernel_kills_at_its_memory_limit_is_back_with_the_same_ids(rig: RigCluster) -> None:
    pod = rig.pod("stays", rig.a, {GPU: 2})
    ids = rig.ids(rig.a)
    rig.out_of_memory(rig.a, AGENT)
    rig.until("its container was restarted", lambda: rig.restarts(rig.a) == 1)
    rig.until("the kubelet has the same ids", lambda: rig.ids(rig.a) == ids)
    rig.until("NodeDevices is written again", lambda: rig.condition("nodedevices", rig.a, "Ready")["status"] == "True")
    rig.alive(pod)


@pytest.mark.long
def test_an_agent_that_is_replaced_flips_no_mark_and_one_that_is_taken_away_makes_its_node_stale(
    rig: RigCluster,
) -> None:
    pod = rig.pod("stays", rig.a, {GPU: 1})
    [bad] = rig.held(rig.a, "stays")
    rig.hardware(rig.a, simulated.h100s(xid79=rig.devices(rig.a)[bad]["index"]))
    mark = rig.marked("stays", "False")
    agent = rig.agent(rig.a)["metadata"]["name"]

    rig.kubectl.run("delete", "pod", "-n", SYSTEM, agent)
    rig.until("another agent serves", lambda: rig.condition("nodedevices", rig.a, "Ready")["status"] == "True")
    assert rig.agent(rig.a)["metadata"]["name"] != agent
    assert rig.marked("stays", "False") == mark

    rig.kubectl.run("label", "node", rig.a, "nodedevices.io/agent=away")
    try:
        rig.until("it says so", lambda: rig.condition("nodedevices", rig.a, "Ready")["reason"] == "AgentStopped")
        rig.until("it is stale", lambda: rig.condition("nodedevices", rig.a, "Stale")["reason"] == "AgentLost")
        assert rig.marked("stays", "False") == mark
    finally:
        rig.kubectl.run("label", "node", rig.a, "nodedevices.io/agent-")
    rig.until("it is believed again", lambda: rig.condition("nodedevices", rig.a, "Stale")["status"] == "False")
    assert rig.marked("stays", "False") == mark
    rig.alive(pod)


@pytest.mark.long
def test_a_killed_probe_changes_nothing_at_the_kubelet(rig: RigCluster) -> None:
    ids = rig.ids(rig.a)
    restarts = rig.restarts(rig.a)
    with rig.watching(rig.a) as seen:
        rig.kill(rig.a, PROBE)
        rig.until("there is a new probe", lambda: rig.processes(rig.a, PROBE))
        rig.hardware(rig.a, simulated.h100s(lost=5))
        rig.until("what the new probe sees arrives", lambda: len(rig.ids(rig.a)) == 7)
    assert all(offered in (ids, rig.ids(rig.a)) for offered in seen())
    assert rig.restarts(rig.a) == restarts


@pytest.mark.long
def test_s24_probes_and_their_server_that_hang_take_no_gpu_away_and_are_replaced_by_themselves(
    rig: RigCluster,
) -> None:
    pod, restarts = rig.pod("stays", rig.a, {GPU: 2}), rig.restarts(rig.a)
    ids, servers = rig.ids(rig.a), rig.restarts(rig.a, "probe")
    rig.freeze(rig.a, PROBE)
    rig.until("it says so", lambda: rig.device(rig.a, 0)["health"]["reason"] == "ProbeSilent")
    rig.pod("during", rig.a, {GPU: 1})
    assert rig.visible("during") <= ids - rig.visible("stays")
    rig.until("the server was restarted", lambda: rig.restarts(rig.a, "probe") > servers)
    rig.until("all is well again", lambda: rig.summary(rig.a)["healthy"] == 8)
    assert (rig.ids(rig.a), rig.restarts(rig.a)) == (ids, restarts)
    rig.alive(pod)


@pytest.mark.long
def test_a_killed_operator_changes_nothing_and_catches_up(rig: RigCluster) -> None:
    pod = rig.pod("held", rig.a, {GPU: 1})
    [bad] = rig.held(rig.a, "held")
    node = rig.operator()["spec"]["nodeName"]
    with rig.watching(rig.a) as seen:
        rig.kill(node, OPERATOR)
        rig.hardware(rig.a, simulated.h100s(ecc=rig.devices(rig.a)[bad]["index"]))
        rig.marked("held", "False")
    assert all(len(offered) in (7, 8) for offered in seen())
    rig.operators(0)
    rig.hardware(rig.a, simulated.h100s())
    rig.until("the device is well", lambda: rig.summary(rig.a)["healthy"] == 8)
    assert rig.condition("pod", "held", HEALTHY, NAMESPACE)["status"] == "False"
    rig.operators(2)
    rig.marked("held", "True")
    rig.alive(pod)


@pytest.mark.long
def test_a_roll_out_of_the_operator_hands_its_lead_over_before_the_lease_is_over(rig: RigCluster) -> None:
    def holder_of(lease: Mapping[str, Any]) -> str:
        return str(lease.get("spec", {}).get("holderIdentity", ""))

    pod = rig.pod("held", rig.a, {GPU: 1})
    [bad] = rig.held(rig.a, "held")
    before = {one["metadata"]["uid"] for one in rig.operator_pods()}
    with Watch(rig.kubectl, ("lease", OPERATOR, "-n", SYSTEM)) as lease:
        leader = holder_of(lease.first("one leads", holder_of, after=0.0)[1])
        rig.kubectl.run("rollout", "restart", "-n", SYSTEM, f"deployment/{OPERATOR}")
        _, taken = lease.first("another leads", lambda one: holder_of(one) not in ("", leader), after=0.0)
        states = [one for _, one in lease.seen]
        assert "" in map(holder_of, states[: states.index(taken)]), "the Lease was not released: another waited"
    rig.hardware(rig.a, simulated.h100s(xid79=rig.devices(rig.a)[bad]["index"]))
    rig.marked("held", "False")
    installing.rolled_out(rig.kubectl, f"deployment/{OPERATOR}")
    assert not before & {one["metadata"]["uid"] for one in rig.operator_pods()}
    nodes = {one["spec"]["nodeName"] for one in rig.operator_pods()}
    assert nodes == {rig.a, rig.b}
    rig.alive(pod)


def test_without_the_api_server_a_fault_reaches_the_kubelet_and_one_write_catches_up(rig: RigCluster) -> None:
    pod = rig.pod("stays", rig.a, {GPU: 2})
    [bad, _] = sorted(rig.held(rig.a, "stays"))
    index = rig.devices(rig.a)[bad]["index"]
    ids = rig.ids(rig.a)
    rig.until("NodeDevices knows the holder", lambda: rig.summary(rig.a)["held"] == 2)
    agent, writes = rig.agent(rig.a), "nodedevices_publish_writes_total"
    with rig.without_api_server():
        before = rig.counted(agent, writes)  # read now: what was still to be written would have counted meanwhile
        rig.hardware(rig.a, simulated.h100s(xid79=index))
        rig.until("the kubelet hears of the fault", lambda: rig.ids(rig.a) == ids - {bad})
        rig.never("anything else changes", lambda: rig.ids(rig.a) != ids - {bad}, seconds=15)
        assert rig.held(rig.a, "stays") >= {bad}
    rig.until("NodeDevices catches up", lambda: rig.devices(rig.a)[bad]["health"]["state"] == "Unhealthy")
    assert rig.counted(agent, writes) == before + 1
    rig.marked("stays", "False")
    rig.alive(pod)


@pytest.mark.long
def test_an_xid_outlives_agent_and_probe_without_field_230_and_without_an_api_server(rig: RigCluster) -> None:
    ids = rig.ids(rig.a)
    bad = rig.device(rig.a, 3)["id"]
    rig.hardware(rig.a, simulated.h100s(xid79=3, field_230=False))
    rig.until("the kubelet withdraws it", lambda: rig.ids(rig.a) == ids - {bad})
    with rig.without_api_server():
        # The next lines say nothing of it: an XID is an edge, and this driver cannot say what the device needs.
        rig.hardware(rig.a, simulated.h100s(field_230=False))
        with rig.watching(rig.a) as seen:
            before = rig.processes(rig.a, AGENT)
            rig.kill(rig.a, PROBE)
            rig.kill(rig.a, AGENT)
            rig.until(
                "the agent was started anew",
                lambda: (now := rig.processes(rig.a, AGENT)) and not set(now) & set(before),
            )
            rig.until("the kubelet has the others again", lambda: rig.ids(rig.a) == ids - {bad})
            rig.never("the device is offered", lambda: bad in rig.ids(rig.a), seconds=3)
        assert all(bad not in offered for offered in seen())
    rig.until("NodeDevices still says why", lambda: rig.devices(rig.a)[bad]["health"]["reason"] == "Xid79")


@pytest.mark.long
def test_running_pods_survive_a_kubelet_restart_after_a_fault_shrank_the_owned_capacity(rig: RigCluster) -> None:
    rig.policy("memory", {"capacity": [{"name": MEMORY, "sumOf": "memoryMiB", "scope": "healthy"}]})
    total = 4 * simulated.L4_MIB
    requested = total - 1000
    rig.until("the kubelet allows the capacity", lambda: rig.node_count(rig.b, MEMORY) == total)
    pod = rig.pod("large", rig.b, {MEMORY: requested})
    rig.hardware(rig.b, simulated.l4s(lost=0))
    rig.until("it shrinks as far as it may", lambda: rig.node_count(rig.b, MEMORY, "capacity") == requested)
    rig.restart_kubelet(rig.b)
    rig.until("the kubelet has its ids", lambda: len(rig.ids(rig.b)) == 3)

    def phase() -> str:
        found: str = (rig.kubectl.get("pod", "large", NAMESPACE) or {})["status"]["phase"]
        return found

    # A kubelet that finds too little rejects running pods about 8 s after its start.
    rig.never("the pod is rejected", lambda: phase() != "Running" and phase(), seconds=12)
    rig.alive(pod)


def test_a_node_recreated_under_a_running_agent_has_its_object_again(rig: RigCluster) -> None:
    agent, before = rig.agent(rig.a), rig.node(rig.a)["metadata"]["uid"]
    rig.kubectl.delete("node", rig.a)
    rig.restart_kubelet(rig.a)
    anew = rig.until(
        "the kubelet makes the Node anew",
        lambda: (uid := rig.node(rig.a).get("metadata", {}).get("uid", before)) != before and uid,
    )

    def owned() -> bool:
        item = rig.nodedevices(rig.a)
        owners = [one["uid"] for one in item.get("metadata", {}).get("ownerReferences", [])]
        return owners == [anew] and bool(item.get("status", {}).get("devices"))

    # The agent's token names the old Node until the kubelet has requested another one. A kubelet that requests it
    # before it has made the Node gets one that names none, and keeps it for most of an hour: its next start requests
    # another.
    try:
        rig.until("the kubelet gives the agent a token for the new Node", lambda: rig.token_node(rig.a) == anew)
    except NotReached:
        rig.restart_kubelet(rig.a)
    rig.until("the new Node owns its NodeDevices", owned)
    assert rig.agent(rig.a)["metadata"]["uid"] == agent["metadata"]["uid"]
    assert rig.restarts(rig.a) == agent["status"]["containerStatuses"][0]["restartCount"]


@pytest.mark.long
def test_a_roll_out_that_loses_the_devices_stops_at_the_first_node(rig: RigCluster) -> None:
    before = {node: rig.agent(node)["metadata"]["uid"] for node in (rig.a, rig.b)}
    pod = rig.pod("stays", rig.a, {GPU: 1})
    lost = {"name": "NODEDEVICES_SIMULATED", "value": "/var/lib/nodedevices/not-mounted.yaml"}
    containers = [{"name": each, "env": [lost]} for each in ("agent", "probe")]  # a path is the same in both
    template = {"spec": {"containers": containers}}
    rig.kubectl.run("patch", "-n", SYSTEM, AGENTS, "-p", json.dumps({"spec": {"template": template}}))
    try:
        rig.until("the first node has the new version", lambda: replaced(rig, before))
        [first] = replaced(rig, before)
        rig.until(
            "NodeDevices says so",
            lambda: rig.condition("nodedevices", first, "Ready")["reason"] == "DriverNotLoaded",
        )
        rig.never("the other node is touched", lambda: len(replaced(rig, before)) > 1, seconds=10)
        assert not ready(rig.agent(first))
        [second] = {rig.a, rig.b} - {first}
        assert rig.node_count(second, GPU) == len(rig.ids(second)) > 0
        rig.alive(pod)
    finally:
        rig.kubectl.run("rollout", "undo", "-n", SYSTEM, AGENTS)
        installing.rolled_out(rig.kubectl, AGENTS)
    assert rig.agent(second)["metadata"]["uid"] == before[second]
    rig.until("the first node offers its devices again", lambda: rig.node_count(first, GPU))
    rig.alive(pod)


def replaced(rig: RigCluster, before: dict[str, str]) -> list[str]:
    """The nodes with another agent's pod than before."""
    pods = rig.kubectl.items("pods", SYSTEM, labels="app.kubernetes.io/component=agent")
    living = [one for one in pods if "deletionTimestamp" not in one["metadata"] and "nodeName" in one["spec"]]
    return [one["spec"]["nodeName"] for one in living if one["metadata"]["uid"] not in before.values()]


def ready(pod: dict[str, Any]) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"]["conditions"])


@pytest.mark.long
def test_a_node_that_was_installed_anew_and_has_too_few_devices_says_so(rig: RigCluster) -> None:
    def expected() -> tuple[str, str]:
        found = rig.condition("nodedevices", rig.b, "ExpectedDevices")
        return found.get("status", ""), found.get("reason", "")

    def begins_anew() -> None:
        before = rig.processes(rig.b, AGENT)
        rig.shell(rig.b, f"rm {STATE_FILE}")
        rig.kill(rig.b, AGENT)
        rig.until("it was started anew", lambda: (now := rig.processes(rig.b, AGENT)) and not set(now) & set(before))

    rig.hardware(rig.b, simulated.l4s(without=3))
    rig.until("it is missed by its id", lambda: rig.summary(rig.b)["unhealthy"] == 1)
    assert expected() == ("", "")
    begins_anew()
    rig.until("it is missed by the number", lambda: expected() == ("False", "Expected4Found3"))
    assert len(rig.devices(rig.b)) == 3
    rig.until("the others are offered", lambda: rig.node_count(rig.b, GPU) == 3)
    on_node = partial(rig.condition, "node", rig.b, DEVICES_HEALTHY)
    rig.until("nothing acts by what is expected", lambda: on_node()["status"] == "True")
    rig.kubectl.patch("nodedevices", rig.b, {"metadata": {"annotations": {CONFIRM: f"*=removed@{stamp()}"}}})
    rig.until("a person's word ends it", lambda: expected() == ("", ""))

    rig.policy("four", {"expect": [{"match": {"type": "gpu"}, "count": 4}]}, selector={"kubernetes.io/hostname": rig.b})
    rig.until("a policy expects it again", lambda: expected() == ("False", "Expected4Found3"))
    rig.hardware(rig.b, simulated.l4s())
    rig.until("all are there", lambda: expected() == ("True", "AllFound"))
