"""Beside the vendor's plugin on a real kubelet: we register nothing, show and react, and take over under its pods."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support import installing, simulated, vendor
from support.cluster import GPU, NAMESPACE, Cluster
from support.cluster_provider import ClusterProvider
from support.kubectl import condition

pytestmark = [pytest.mark.e2e, pytest.mark.any_cluster]

PLUGIN = "vendors-plugin"


def observe(cluster: Cluster) -> None:
    """Node b is left to the vendor: our registration is gone from its kubelet."""
    cluster.policy("observe", {"serving": {"mode": "Observe"}}, selector={"kubernetes.io/hostname": cluster.b})
    cluster.until("our registration is gone", lambda: not cluster.ids(cluster.b))
    cluster.until("the node says that it observes", lambda: "Observe" in ready(cluster)["message"])


def install(cluster: Cluster, *arguments: str, ids: set[str] | None = None) -> set[str]:
    """The vendor's plugin on node b, for these devices or all that NodeDevices shows; their ids."""
    ids = ids or set(cluster.devices(cluster.b))
    pod = vendor.pod(PLUGIN, cluster.b, sorted(ids), namespace=NAMESPACE, image=cluster.image, arguments=arguments)
    cluster.kubectl.apply(pod)
    cluster.running(PLUGIN)
    cluster.until("it has registered", lambda: "registered" in cluster.kubectl.logs(PLUGIN, namespace=NAMESPACE))
    return ids


def uninstall(cluster: Cluster) -> None:
    cluster.kubectl.delete("pod", PLUGIN, namespace=NAMESPACE)


def ready(cluster: Cluster) -> dict[str, Any]:
    return cluster.condition("nodedevices", cluster.b, "Ready")


def config(cluster: Cluster) -> dict[str, Any]:
    return cluster.condition("nodedevices", cluster.b, "ConfigApplied")


def resources(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """name -> resource, as NodeDevices of node b shows it."""
    return {one["name"]: one for one in cluster.nodedevices(cluster.b)["status"].get("resources", [])}


def healthy(cluster: Cluster) -> int | None:
    return resources(cluster).get(GPU, {}).get("healthy")


def allocated_by(cluster: Cluster, pod: str) -> str:
    """Who answered Allocate for it: only the vendor's plugin leaves a name."""
    return cluster.environment(pod).get("ALLOCATED_BY", "us")


@pytest.fixture
def removed(cluster: Cluster, provider: ClusterProvider) -> Iterator[set[str]]:
    """Nothing of ours is installed, and node b does not remember that it ever was; the ids of its devices."""
    ids = set(cluster.devices(cluster.b))
    installing.uninstall(cluster.kubectl)
    try:
        cluster.until("our registration is gone", lambda: not cluster.ids(cluster.b))
        cluster.node_clients[cluster.b].call("remove")
        cluster.hardware(cluster.b, simulated.l4s())
        yield ids
    finally:
        uninstall(cluster)
        installing.install(cluster.kubectl, provider.images)


@pytest.mark.long
def test_the_vendors_plugin_serves_and_we_show_its_resource_its_holders_and_faults(cluster: Cluster) -> None:
    observe(cluster)
    ids = install(cluster)
    cluster.until("the kubelet has the vendor's ids", lambda: cluster.ids(cluster.b) == ids)
    cluster.until("NodeDevices shows what the vendor offers", lambda: healthy(cluster) == 4)
    pod = cluster.pod("train", cluster.b, {GPU: 1})
    assert allocated_by(cluster, "train") == "vendor"
    [held] = cluster.held(cluster.b, "train")
    cluster.until("NodeDevices names the holder", lambda: cluster.devices(cluster.b)[held].get("holders"))
    shown = resources(cluster)[GPU]
    assert (shown["capacity"], shown["allocated"], shown["managedBy"]) == (4, 1, "plugin")
    assert (ready(cluster)["status"], ready(cluster)["reason"]) == ("True", "AgentRunning")

    cluster.hardware(cluster.b, simulated.l4s(lost=cluster.devices(cluster.b)[held]["index"]))
    assert cluster.marked("train", "False")["reason"] == "FallenOffBus"
    assert cluster.ids(cluster.b) == ids, "the vendor's plugin decides what is offered, not we"
    cluster.until(
        "the node says that the vendor still offers it", lambda: "though not healthy" in ready(cluster)["message"]
    )
    cluster.alive(pod)

    cluster.kubectl.exec(PLUGIN, "sh", "-c", f"echo {held} > {vendor.UNHEALTHY}", namespace=NAMESPACE)
    cluster.until("NodeDevices follows the vendor's word", lambda: healthy(cluster) == 3)
    assert resources(cluster)[GPU]["capacity"] == 4


@pytest.mark.long
def test_the_vendors_resource_is_not_given_to_the_operator_and_its_plugins_end_is_no_fault_of_ours(
    cluster: Cluster,
) -> None:
    observe(cluster)
    install(cluster)
    cluster.until("NodeDevices shows what the vendor offers", lambda: healthy(cluster) == 4)
    cluster.policy(
        "own", {"capacity": [{"name": GPU, "perNode": 9}]}, selector={"kubernetes.io/hostname": cluster.b}, priority=5
    )
    reported = cluster.until(
        "the operator refuses the name",
        lambda: (c := cluster.action(cluster.b, "capacity")).get("reason") == "Conflict" and c,
    )
    assert "served by the device plugin" in reported["message"]
    uninstall(cluster)
    cluster.until("the kubelet offers nothing", lambda: not cluster.ids(cluster.b))
    cluster.until("NodeDevices shows it", lambda: healthy(cluster) == 0)
    assert resources(cluster)[GPU]["managedBy"] == "plugin"
    assert ready(cluster)["status"] == "True"
    assert cluster.condition("nodedevices", cluster.b, "Stale")["status"] == "False"
    assert cluster.action(cluster.b, "capacity")["reason"] == "Conflict"


def test_a_node_is_taken_over_with_its_pods_and_given_back_when_they_have_ended(cluster: Cluster) -> None:
    agent = cluster.agent(cluster.b)
    observe(cluster)
    ids = install(cluster)
    cluster.until("the kubelet has the vendor's ids", lambda: cluster.ids(cluster.b) == ids)
    pod = cluster.pod("train", cluster.b, {GPU: 2})
    held = cluster.held(cluster.b, "train")
    cluster.until("NodeDevices names the holders", lambda: cluster.summary(cluster.b).get("held") == 2)
    cluster.until("the Node has them all", lambda: cluster.node_count(cluster.b, GPU) == 4)

    cluster.drop_policy("observe")
    cluster.until("the node serves", lambda: "Observe" not in ready(cluster)["message"])
    cluster.kubectl.delete("pod", PLUGIN, namespace=NAMESPACE, wait=False)
    # A kubelet up to 1.36 ends every stream of the name when one of its plugins leaves: ours as well, which registers
    # again. A Node that is written in these milliseconds shows 0 once.
    cluster.until("the vendor's plugin is gone", lambda: cluster.kubectl.get("pod", PLUGIN, NAMESPACE) is None)
    cluster.until("the kubelet has all ids", lambda: cluster.ids(cluster.b) == ids)
    cluster.until("the Node has them all", lambda: cluster.node_count(cluster.b, GPU) == 4)
    cluster.pod("next", cluster.b, {GPU: 2})
    assert cluster.visible("next") == ids - held
    assert cluster.held(cluster.b, "train") == held
    cluster.alive(pod)

    cluster.policy("observe", {"serving": {"mode": "Observe"}}, selector={"kubernetes.io/hostname": cluster.b})
    waiting = cluster.until("the node waits", lambda: (c := config(cluster)).get("reason") == "WaitingForHolders" and c)
    assert "train" in waiting["message"]
    assert cluster.ids(cluster.b) == ids
    for name in ("train", "next"):
        cluster.kubectl.delete("pod", name, namespace=NAMESPACE)
    cluster.until("our registration is gone", lambda: not cluster.ids(cluster.b))
    install(cluster)
    cluster.until("the kubelet has the vendor's ids", lambda: cluster.ids(cluster.b) == ids)
    cluster.pod("again", cluster.b, {GPU: 1})
    assert allocated_by(cluster, "again") == "vendor"
    same = cluster.agent(cluster.b)
    assert same["metadata"]["uid"] == agent["metadata"]["uid"]
    restarts = [one["status"]["containerStatuses"][0]["restartCount"] for one in (agent, same)]
    assert restarts[0] == restarts[1]


@pytest.mark.long
def test_shares_of_the_vendor_are_taken_over_only_when_nobody_holds_or_offers_them(cluster: Cluster) -> None:
    observe(cluster)
    ids = install(cluster, "--replicas=2")
    cluster.until("the kubelet has the vendor's shares", lambda: len(cluster.ids(cluster.b)) == 8)
    cluster.pod("train", cluster.b, {GPU: 1})
    [share] = cluster.held(cluster.b, "train")
    device = share.partition("::")[0]
    found = cluster.until("NodeDevices names the holder", lambda: cluster.devices(cluster.b)[device].get("holders"))
    assert found[0]["ids"] == [share]
    assert resources(cluster)[GPU]["replicas"] == 2

    cluster.drop_policy("observe")
    waiting = cluster.until("the node waits", lambda: (c := config(cluster)).get("reason") == "WaitingForHolders" and c)
    assert "train" in waiting["message"]
    cluster.kubectl.delete("pod", "train", namespace=NAMESPACE)
    cluster.until("it waits for the plugin", lambda: "another plugin" in config(cluster).get("message", ""))
    assert len(cluster.ids(cluster.b)) == 8
    uninstall(cluster)
    cluster.until("the kubelet has whole devices", lambda: cluster.ids(cluster.b) == ids)


@pytest.mark.long
def test_where_observe_was_forgotten_the_vendors_plugin_goes_on_until_it_is_removed(
    cluster: Cluster, removed: set[str], provider: ClusterProvider
) -> None:
    ids = install(cluster, ids=removed)
    cluster.until("the kubelet has the vendor's ids", lambda: cluster.ids(cluster.b) == ids)
    pod = cluster.pod("train", cluster.b, {GPU: 1})
    held = cluster.held(cluster.b, "train")

    installing.apply(cluster.kubectl, provider.images)
    reported = cluster.until(
        "the node says who serves it", lambda: (c := ready(cluster)).get("status") == "False" and c, 90
    )
    assert reported["reason"] == "ServedByAnother"
    assert f"another device plugin serves {GPU} to this kubelet: 4 healthy ids" in reported["message"]
    assert "set serving.mode: Observe" in reported["message"]
    cluster.until("the agent's pod is not", lambda: condition(cluster.agent(cluster.b), "Ready")["status"] == "False")
    cluster.until("NodeDevices names the holder", lambda: cluster.summary(cluster.b).get("held") == 1)
    cluster.pod("next", cluster.b, {GPU: 1})
    assert {allocated_by(cluster, "train"), allocated_by(cluster, "next")} == {"vendor"}
    assert cluster.metric(cluster.b, "nodedevices_resource_served_by_another") == 1

    uninstall(cluster)
    cluster.until("the node serves", lambda: ready(cluster)["status"] == "True")
    assert cluster.ids(cluster.b) == ids
    cluster.until("the agent's pod is ready", lambda: condition(cluster.agent(cluster.b), "Ready")["status"] == "True")
    cluster.pod("last", cluster.b, {GPU: 2})
    assert allocated_by(cluster, "last") == "us"
    assert cluster.held(cluster.b, "train") == held
    cluster.alive(pod)


@pytest.mark.long
def test_a_vendors_plugin_that_took_our_place_leaves_the_node_to_us_again(cluster: Cluster) -> None:
    """Nothing notifies us of either: our stream stays open."""
    before = cluster.ids(cluster.b)
    ids = install(cluster)
    assert ids == before
    cluster.pod("train", cluster.b, {GPU: 1})
    assert allocated_by(cluster, "train") == "vendor"
    uninstall(cluster)
    cluster.until("the kubelet has all ids again", lambda: cluster.ids(cluster.b) == ids)
    cluster.pod("next", cluster.b, {GPU: 3})
    assert allocated_by(cluster, "next") == "us"
    assert ready(cluster)["status"] == "True"


@pytest.mark.long
def test_a_node_that_we_leave_is_the_vendors_plugins_whichever_of_us_registered_last(cluster: Cluster) -> None:
    """The kubelet notifies neither, and up to 1.36 forgets the plugin that stays: we make it dial that one again."""

    def leave() -> None:
        cluster.policy("observe", {"serving": {"mode": "Observe"}}, selector={"kubernetes.io/hostname": cluster.b})
        cluster.until("the node says that it observes", lambda: "Observe" in ready(cluster)["message"])
        cluster.until("the kubelet has the vendor's ids", lambda: cluster.ids(cluster.b) == ids)
        cluster.until("NodeDevices shows what the vendor offers", lambda: healthy(cluster) == 4)

    def client(name: str) -> str:
        cluster.pod(name, cluster.b, {GPU: 1})
        who = allocated_by(cluster, name)
        cluster.kubectl.delete("pod", name, namespace=NAMESPACE)
        return who

    ids = install(cluster)
    assert client("first") == "vendor"
    leave()
    assert client("second") == "vendor"

    cluster.drop_policy("observe")
    cluster.until("the node serves", lambda: "Observe" not in ready(cluster)["message"])
    assert client("third") == "us"
    leave()
    assert client("fourth") == "vendor"
    uninstall(cluster)
    cluster.until("the kubelet has noticed that it left, too", lambda: not cluster.ids(cluster.b))
