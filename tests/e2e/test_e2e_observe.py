"""Beside the vendor's plugin on a real kubelet: we register nothing, show and react, and take over under its pods."""

from __future__ import annotations

from typing import Any

import pytest
from support import vendor
from support.cluster import GPU, NAMESPACE, Cluster

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
    cluster.kubectl.delete("pod", PLUGIN, namespace=NAMESPACE)
    cluster.until("the kubelet has noticed that it left, too", lambda: not cluster.ids(cluster.b))
