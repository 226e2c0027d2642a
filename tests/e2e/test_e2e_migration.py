"""docs/migrate-from-nvidia.md, followed to the letter: its shell blocks move a cluster, under pods that go on running.

The vendor's plugin stands in for NVIDIA's image and chart, which cannot be had here: installed as the chart does it,
with two named configurations, one of which shares the GPUs of node b. So do the labels of its gpu-feature-discovery.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import installing, simulated, vendor
from support.cluster import GPU, NAMESPACE, SYSTEM, Cluster
from support.cluster_provider import AGENT, OPERATOR, ClusterProvider
from support.kubectl import Watch, condition
from support.pagesteps import Page

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.any_cluster]

# What the page promises of a take-over: our agent's stream ends with the vendor's plugin (a kubelet up to 1.36), it is
# back within milliseconds, and the Node says so with the kubelet's next write: every 10 s, here every second.
WITHOUT_SECONDS = 10.0
PAGE = installing.ROOT / "docs" / "migrate-from-nvidia.md"
TAKEOVER = "nodedevices.io/takeover"
AGENT_AWAY = "nodedevices.io/agent"
CONFIG = "nvidia.com/device-plugin.config"
PRESENT = "nvidia.com/gpu.present"
CONFIGS = {
    "default": "version: v1\n",
    "shared": "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n",
}
DISCOVERER = "nfd-master"  # who writes what gpu-feature-discovery finds
PRODUCT, COUNT, MACHINE = (f"nvidia.com/gpu.{one}" for one in ("product", "count", "machine"))
DISCOVERED = {  # node's place -> its labels; the machine's is not ours
    "a": {PRODUCT: "NVIDIA-H100-80GB-HBM3", COUNT: "8", MACHINE: "as-nvidia-says"},
    "b": {PRODUCT: "NVIDIA-L4-SHARED", COUNT: "4", MACHINE: "as-nvidia-says"},
}


class Reader:
    """Follows the page."""

    def __init__(self, provider: ClusterProvider, folder: Path, image: str) -> None:
        (folder / "nodedevices").symlink_to(installing.ROOT)
        self._page = Page.read(PAGE)
        self._folder = folder
        self._environment = {
            **provider.kubectl.environment(),
            "PATH": f"{Path(provider.kubectl.binary).parent}:{os.environ['PATH']}",
            "AGENT_IMAGE": provider.images[AGENT],
            "OPERATOR_IMAGE": provider.images[OPERATOR],
            "OVERLAY": "demo",
            "CHECK_IMAGE": image,
            "CHECK": "printenv NVIDIA_VISIBLE_DEVICES",
            "DRAIN_TIMEOUT": "60s",
        }

    def follows(self, step: int | str, *, node: str = "", **more: str) -> None:
        environment = self._environment | ({"NODE": node} if node else {}) | more
        self._page.run(str(step), folder=self._folder, environment=environment)


@pytest.fixture
def reader(cluster: Cluster, provider: ClusterProvider, tmp_path: Path) -> Reader:
    return Reader(provider, tmp_path, cluster.image)


@pytest.fixture
def vendors(cluster: Cluster, provider: ClusterProvider) -> Iterator[Cluster]:
    """A cluster on which the vendor's plugin serves both nodes, and nothing of ours is installed."""
    ids = {node: ",".join(sorted(cluster.devices(node))) for node in (cluster.a, cluster.b)}
    installing.uninstall(cluster.kubectl)
    try:
        for node, text in ((cluster.a, simulated.h100s()), (cluster.b, simulated.l4s())):
            cluster.node_clients[node].call("remove")
            cluster.hardware(node, text)
            cluster.kubectl.run("label", "node", node, f"{PRESENT}=true")
        for node, labels in ((cluster.a, DISCOVERED["a"]), (cluster.b, DISCOVERED["b"])):
            written = [f"{key}={value}" for key, value in labels.items()]
            cluster.kubectl.run("label", "node", node, "--overwrite", f"--field-manager={DISCOVERER}", *written)
        cluster.kubectl.run("label", "node", cluster.b, f"{CONFIG}=shared")
        command = {cluster.a: [f"--ids={ids[cluster.a]}"], cluster.b: [f"--ids={ids[cluster.b]}", "--replicas=2"]}
        cluster.kubectl.apply(*vendor.chart(command, image=cluster.image, configs=CONFIGS))
        for node in (cluster.a, cluster.b):
            cluster.until(f"the vendor serves {node}", lambda n=node: len(cluster.ids(n)) == 8)  # type: ignore[misc]
        yield cluster
    finally:
        cluster.kubectl.delete("namespace", vendor.CHART_NAMESPACE)
        for label in (TAKEOVER, AGENT_AWAY, CONFIG, PRESENT, PRODUCT, COUNT, MACHINE):
            cluster.kubectl.run("label", "nodes", "--all", f"{label}-")
        installing.install(cluster.kubectl, provider.images)


def vendors_pods(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """By node, those that are not about to end."""
    items = cluster.kubectl.items("pods", vendor.CHART_NAMESPACE)
    return {one["spec"]["nodeName"]: one for one in items if "deletionTimestamp" not in one["metadata"]}


def allocated_by(cluster: Cluster, pod: str) -> str:
    """Who answered Allocate for it: only the vendor's plugin leaves a name."""
    return cluster.environment(pod).get("ALLOCATED_BY", "us")


def labels(cluster: Cluster, node: str) -> dict[str, str]:
    found: dict[str, str] = cluster.node(node)["metadata"]["labels"]
    return found


def holders(cluster: Cluster, node: str) -> set[str]:
    """Pods, as NodeDevices shows them."""
    return {one["pod"] for device in cluster.devices(node).values() for one in device.get("holders", [])}


def agent_ready(cluster: Cluster, node: str) -> bool:
    label = "app.kubernetes.io/component=agent"
    pods = cluster.kubectl.items("pods", SYSTEM, labels=label, fields=f"spec.nodeName={node}")
    return bool(pods) and all(condition(pod, "Ready").get("status") == "True" for pod in pods)


def offers_all(cluster: Cluster, node: str) -> bool:
    """As NodeDevices shows it."""
    return [one["capacity"] for one in cluster.nodedevices(node)["status"]["resources"]] == [8]


def feature_discovery_ends(cluster: Cluster, node: str, had: dict[str, str]) -> None:
    """Its labels go, and ours are there: the same, but for what it said otherwise."""
    cluster.kubectl.run("label", "node", node, f"--field-manager={DISCOVERER}", *(f"{key}-" for key in had))
    same = {key: value for key, value in had.items() if key != MACHINE}
    now = cluster.until(
        f"{node} has our labels",
        lambda: (found := labels(cluster, node)) and same.items() <= found.items() and MACHINE in found and found,
    )
    assert now[MACHINE] != had[MACHINE]


def longest_without(node: Watch, count: str) -> float:
    """Seconds: the longest time in which the Node said anything but that its GPUs are all allocatable."""
    began: float | None = None
    longest = 0.0
    for at, one in node.seen:
        if one["status"]["allocatable"][GPU] != count:
            began = at if began is None else began
        elif began is not None:
            longest, began = max(longest, at - began), None
    return max(longest, node.seen[-1][0] - began) if began is not None else longest


def test_the_page_moves_a_cluster_node_by_node_and_back_under_running_pods(vendors: Cluster, reader: Reader) -> None:
    cluster = vendors
    a, b = cluster.a, cluster.b
    whole = cluster.pod("whole", a, {GPU: 2})
    share = cluster.pod("share", b, {GPU: 1})
    assert {allocated_by(cluster, "whole"), allocated_by(cluster, "share")} == {"vendor"}
    ids = {node: cluster.ids(node) for node in (a, b)}
    held = {name: cluster.held(node, name) for name, node in (("whole", a), ("share", b))}
    before = {node: pod["metadata"]["uid"] for node, pod in vendors_pods(cluster).items()}

    for step in (1, 2, 3):
        reader.follows(step)
    assert {node: cluster.ids(node) for node in (a, b)} == ids, "installed beside it, nothing changed"
    cluster.until(
        "holders are shown", lambda: cluster.summary(a).get("held") == 2 and cluster.summary(b).get("held") == 1
    )
    config = cluster.until(
        "node b has its named configuration",
        lambda: "shared" in (c := cluster.condition("nodedevices", b, "ConfigApplied")).get("message", "") and c,
    )
    assert config["reason"] == "Applied"
    assert "default" in cluster.condition("nodedevices", a, "ConfigApplied")["message"]

    reader.follows(4)
    assert {node: pod["metadata"]["uid"] for node, pod in vendors_pods(cluster).items()} == before, "nothing restarted"
    for node, had in ((a, DISCOVERED["a"]), (b, DISCOVERED["b"])):
        assert had.items() <= labels(cluster, node).items(), "the labels of both agree, or theirs stay"
        synced = cluster.action(node, "labels")
        assert synced["reason"] == "Conflict"
        assert MACHINE in synced["message"]
        assert PRODUCT not in synced["message"]

    with Watch(cluster.kubectl, ("node", b)) as node_b:
        reader.follows(5, node=b)
        cluster.until("the vendor's plugin has left b alone", lambda: set(vendors_pods(cluster)) == {a})
        cluster.until("the kubelet has the same shares", lambda: cluster.ids(b) == ids[b])
        cluster.pod("next", b, {GPU: 1})
    assert allocated_by(cluster, "next") == "us"
    assert longest_without(node_b, "8") <= WITHOUT_SECONDS
    cluster.alive(share)
    assert cluster.held(b, "share") == held["share"]

    feature_discovery_ends(cluster, b, DISCOVERED["b"])  # it has the plugin's affinity in the chart

    following = cluster.running("next")
    held["next"] = cluster.held(b, "next")
    reader.follows("In an emergency", node=b)
    cluster.until("the vendor has b", lambda: set(vendors_pods(cluster)) == {a, b} and cluster.ids(b) == ids[b])
    cluster.pod("meanwhile", b, {GPU: 1})
    assert allocated_by(cluster, "meanwhile") == "vendor"
    for pod in (share, following):
        cluster.alive(pod)
    assert {name: cluster.held(b, name) for name in ("share", "next")} == {
        name: held[name] for name in ("share", "next")
    }
    vendors_pod = vendors_pods(cluster)[b]["metadata"]["uid"]
    cluster.kubectl.run("label", "node", b, f"{AGENT_AWAY}-")
    cluster.until("the agent of b is back", lambda: agent_ready(cluster, b))
    cluster.until("it shows what the vendor offers", lambda: offers_all(cluster, b))
    assert vendors_pods(cluster)[b]["metadata"]["uid"] == vendors_pod
    assert cluster.ids(b) == ids[b]
    reader.follows(5, node=b)
    cluster.until("the vendor's plugin has left b again", lambda: set(vendors_pods(cluster)) == {a})
    cluster.until("the kubelet has the same shares again", lambda: cluster.ids(b) == ids[b])

    holding = {"share", "next", "meanwhile"}
    cluster.until("all holders are known", lambda: holding <= holders(cluster, b))
    with pytest.raises(AssertionError, match=r"until these pods have ended: .*/next, .*/share"):
        reader.follows(6, node=b, DRAIN_TIMEOUT="10s")
    for name in sorted(holding):
        cluster.kubectl.delete("pod", name, namespace=NAMESPACE)
    reader.follows(6, node=b)
    cluster.until("the vendor is back on b", lambda: set(vendors_pods(cluster)) == {a, b} and cluster.ids(b) == ids[b])
    cluster.until("that is seen", lambda: offers_all(cluster, b))
    again = cluster.pod("again", b, {GPU: 1})
    assert allocated_by(cluster, "again") == "vendor"

    for node in (b, a):
        reader.follows(5, node=node)
    cluster.until("the vendor's plugin is nowhere", lambda: not vendors_pods(cluster))
    cluster.kubectl.delete("namespace", vendor.CHART_NAMESPACE)  # in the place of helm uninstall
    reader.follows(7)
    for node in (a, b):
        cluster.until(f"{node} is served", lambda n=node: cluster.ids(n) == ids[n])  # type: ignore[misc]
        assert cluster.condition("nodedevices", node, "ConfigApplied")["reason"] == "Applied"
        assert TAKEOVER not in labels(cluster, node)
    feature_discovery_ends(cluster, a, DISCOVERED["a"])
    cluster.alive(whole)
    cluster.alive(again)
    assert cluster.held(a, "whole") == held["whole"]
    cluster.pod("last", a, {GPU: 6})
    assert cluster.visible("last") == ids[a] - held["whole"]
    spec = cluster.kubectl.object("daemonset", "nodedevices-agent", SYSTEM)["spec"]["template"]["spec"]
    [environment] = [each["env"] for each in spec["containers"] if each["name"] == "agent"]
    taken = {one["name"]: one.get("value") for one in environment}
    assert taken["MPS_ROOT"] == "/run/nvidia/mps"
    assert taken["DEFAULT_CONFIG"] == "default"
    assert "NODEDEVICES_SERVING_MODE" not in taken
