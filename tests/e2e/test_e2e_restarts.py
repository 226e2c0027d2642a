"""kill -9 of anything at any moment loses nothing: pods keep their devices, verdicts stay, marks end up right.

These tests reach into the nodes (they stop kubelets, the API server and single processes), so they run on our own rig.
"""

from __future__ import annotations

import pytest
from support import simulated
from support.cluster import GPU
from support.kubectl import NotReached
from support.rig_cluster import RigCluster

pytestmark = [pytest.mark.e2e]

# Words of their command lines, as `ps` shows them.
AGENT = "nodedevices-agent"
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
