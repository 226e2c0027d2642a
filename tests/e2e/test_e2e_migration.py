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
from support.ground import AGENT, OPERATOR, Ground
from support.kubectl import Watch, condition
from support.pagesteps import Page
from support.world import GPU, NAMESPACE, SYSTEM, World

pytestmark = [pytest.mark.e2e, pytest.mark.any_cluster, pytest.mark.timeout(400, method="signal")]

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

    def __init__(self, here: Ground, folder: Path, image: str) -> None:
        (folder / "nodedevices").symlink_to(installing.ROOT)
        self._page = Page.read(PAGE)
        self._folder = folder
        self._environment = {
            **here.kubectl.environment(),
            "PATH": f"{Path(here.kubectl.binary).parent}:{os.environ['PATH']}",
            "AGENT_IMAGE": here.images[AGENT],
            "OPERATOR_IMAGE": here.images[OPERATOR],
            "OVERLAY": "demo",
            "CHECK_IMAGE": image,
            "CHECK": "printenv NVIDIA_VISIBLE_DEVICES",
            "DRAIN_TIMEOUT": "60s",
        }

    def follows(self, step: int | str, *, node: str = "", **more: str) -> None:
        environment = self._environment | ({"NODE": node} if node else {}) | more
        self._page.run(str(step), folder=self._folder, environment=environment)


@pytest.fixture
def reader(world: World, here: Ground, tmp_path: Path) -> Reader:
    return Reader(here, tmp_path, world.image)


@pytest.fixture
def vendors(world: World, here: Ground) -> Iterator[World]:
    """A cluster on which the vendor's plugin serves both nodes, and nothing of ours is installed."""
    ids = {node: ",".join(sorted(world.devices(node))) for node in (world.a, world.b)}
    installing.uninstall(world.kubectl)
    try:
        for node, text in ((world.a, simulated.h100s()), (world.b, simulated.l4s())):
            world.hands[node].ask("remove")
            world.hardware(node, text)
            world.kubectl.run("label", "node", node, f"{PRESENT}=true")
        for node, labels in ((world.a, DISCOVERED["a"]), (world.b, DISCOVERED["b"])):
            written = [f"{key}={value}" for key, value in labels.items()]
            world.kubectl.run("label", "node", node, "--overwrite", f"--field-manager={DISCOVERER}", *written)
        world.kubectl.run("label", "node", world.b, f"{CONFIG}=shared")
        command = {world.a: [f"--ids={ids[world.a]}"], world.b: [f"--ids={ids[world.b]}", "--replicas=2"]}
        world.kubectl.apply(*vendor.chart(command, image=world.image, configs=CONFIGS))
        for node in (world.a, world.b):
            world.until(f"the vendor serves {node}", lambda n=node: len(world.ids(n)) == 8)  # type: ignore[misc]
        yield world
    finally:
        world.kubectl.delete("namespace", vendor.CHART_NAMESPACE)
        for label in (TAKEOVER, AGENT_AWAY, CONFIG, PRESENT, PRODUCT, COUNT, MACHINE):
            world.kubectl.run("label", "nodes", "--all", f"{label}-")
        installing.install(world.kubectl, here.images)


def vendors_pods(world: World) -> dict[str, dict[str, Any]]:
    """By node, those that are not about to end."""
    items = world.kubectl.json("get", "pods", "-n", vendor.CHART_NAMESPACE)["items"]
    return {one["spec"]["nodeName"]: one for one in items if "deletionTimestamp" not in one["metadata"]}


def allocated_by(world: World, pod: str) -> str:
    """Who answered Allocate for it: only the vendor's plugin leaves a name."""
    return world.kubectl.exec(pod, "sh", "-c", "echo ${ALLOCATED_BY:-us}", namespace=NAMESPACE).strip()


def labels(world: World, node: str) -> dict[str, str]:
    found: dict[str, str] = world.node(node)["metadata"]["labels"]
    return found


def holders(world: World, node: str) -> set[str]:
    """Pods, as NodeDevices shows them."""
    return {one["pod"] for device in world.devices(node).values() for one in device.get("holders", [])}


def agent_ready(world: World, node: str) -> bool:
    place = ("-l", "app.kubernetes.io/component=agent", "--field-selector", f"spec.nodeName={node}")
    pods = world.kubectl.json("get", "pods", "-n", SYSTEM, *place)["items"]
    return bool(pods) and all(condition(pod, "Ready").get("status") == "True" for pod in pods)


def offers_all(world: World, node: str) -> bool:
    """As NodeDevices shows it."""
    return [one["capacity"] for one in world.nodedevices(node)["status"]["resources"]] == [8]


def feature_discovery_ends(world: World, node: str, had: dict[str, str]) -> None:
    """Its labels go, and ours are there: the same, but for what it said otherwise."""
    world.kubectl.run("label", "node", node, f"--field-manager={DISCOVERER}", *(f"{key}-" for key in had))
    same = {key: value for key, value in had.items() if key != MACHINE}
    now = world.until(
        f"{node} has our labels",
        lambda: (found := labels(world, node)) and same.items() <= found.items() and MACHINE in found and found,
    )
    assert now[MACHINE] != had[MACHINE]


def test_the_page_moves_a_cluster_node_by_node_and_back_under_running_pods(vendors: World, reader: Reader) -> None:
    world = vendors
    a, b = world.a, world.b
    whole = world.pod("whole", a, {GPU: 2})
    share = world.pod("share", b, {GPU: 1})
    assert {allocated_by(world, "whole"), allocated_by(world, "share")} == {"vendor"}
    ids = {node: world.ids(node) for node in (a, b)}
    held = {name: world.held(node, name) for name, node in (("whole", a), ("share", b))}
    before = {node: pod["metadata"]["uid"] for node, pod in vendors_pods(world).items()}

    for step in (1, 2, 3):
        reader.follows(step)
    assert {node: world.ids(node) for node in (a, b)} == ids, "installed beside it, nothing changed"
    world.until("holders are shown", lambda: world.summary(a).get("held") == 2 and world.summary(b).get("held") == 1)
    config = world.until(
        "node b has its named configuration",
        lambda: "shared" in (c := world.condition("nodedevices", b, "ConfigApplied")).get("message", "") and c,
    )
    assert config["reason"] == "Applied"
    assert "default" in world.condition("nodedevices", a, "ConfigApplied")["message"]

    reader.follows(4)
    assert {node: pod["metadata"]["uid"] for node, pod in vendors_pods(world).items()} == before, "nothing restarted"
    for node, had in ((a, DISCOVERED["a"]), (b, DISCOVERED["b"])):
        assert had.items() <= labels(world, node).items(), "the labels of both agree, or theirs stay"
        synced = world.condition("nodedevices", node, "LabelsSynced")
        assert synced["reason"] == "Conflict"
        assert MACHINE in synced["message"]
        assert PRODUCT not in synced["message"]

    with Watch(world.kubectl, ("node", b)) as node_b:
        reader.follows(5, node=b)
        world.until("the vendor's plugin has left b alone", lambda: set(vendors_pods(world)) == {a})
        world.until("the kubelet has the same shares", lambda: world.ids(b) == ids[b])
        world.pod("next", b, {GPU: 1})
    assert allocated_by(world, "next") == "us"
    assert {one["status"]["allocatable"][GPU] for _, one in node_b.seen} == {"8"}, "the node was never without"
    world.alive(share)
    assert world.held(b, "share") == held["share"]

    feature_discovery_ends(world, b, DISCOVERED["b"])  # it has the plugin's affinity in the chart

    following = world.running("next")
    held["next"] = world.held(b, "next")
    reader.follows("In an emergency", node=b)
    world.until("the vendor has b", lambda: set(vendors_pods(world)) == {a, b} and world.ids(b) == ids[b])
    world.pod("meanwhile", b, {GPU: 1})
    assert allocated_by(world, "meanwhile") == "vendor"
    for pod in (share, following):
        world.alive(pod)
    assert {name: world.held(b, name) for name in ("share", "next")} == {name: held[name] for name in ("share", "next")}
    vendors_pod = vendors_pods(world)[b]["metadata"]["uid"]
    world.kubectl.run("label", "node", b, f"{AGENT_AWAY}-")
    world.until("the agent of b is back", lambda: agent_ready(world, b))
    world.until("it shows what the vendor offers", lambda: offers_all(world, b))
    assert vendors_pods(world)[b]["metadata"]["uid"] == vendors_pod
    assert world.ids(b) == ids[b]
    reader.follows(5, node=b)
    world.until("the vendor's plugin has left b again", lambda: set(vendors_pods(world)) == {a})
    world.until("the kubelet has the same shares again", lambda: world.ids(b) == ids[b])

    holding = {"share", "next", "meanwhile"}
    world.until("all holders are known", lambda: holding <= holders(world, b))
    with pytest.raises(AssertionError, match=r"until these pods have ended: .*/next, .*/share"):
        reader.follows(6, node=b, DRAIN_TIMEOUT="10s")
    for name in sorted(holding):
        world.kubectl.delete("pod", name, namespace=NAMESPACE)
    reader.follows(6, node=b)
    world.until("the vendor is back on b", lambda: set(vendors_pods(world)) == {a, b} and world.ids(b) == ids[b])
    world.until("that is seen", lambda: offers_all(world, b))
    again = world.pod("again", b, {GPU: 1})
    assert allocated_by(world, "again") == "vendor"

    for node in (b, a):
        reader.follows(5, node=node)
    world.until("the vendor's plugin is nowhere", lambda: not vendors_pods(world))
    world.kubectl.delete("namespace", vendor.CHART_NAMESPACE)  # in the place of helm uninstall
    reader.follows(7)
    for node in (a, b):
        world.until(f"{node} is served", lambda n=node: world.ids(n) == ids[n])  # type: ignore[misc]
        assert world.condition("nodedevices", node, "ConfigApplied")["reason"] == "Applied"
        assert TAKEOVER not in labels(world, node)
    feature_discovery_ends(world, a, DISCOVERED["a"])
    world.alive(whole)
    world.alive(again)
    assert world.held(a, "whole") == held["whole"]
    world.pod("last", a, {GPU: 6})
    assert world.visible("last") == ids[a] - held["whole"]
    environment = world.kubectl.json("get", "daemonset", "nodedevices-agent", "-n", SYSTEM)["spec"]["template"]["spec"][
        "containers"
    ][0]["env"]
    taken = {one["name"]: one.get("value") for one in environment}
    assert taken["MPS_ROOT"] == "/run/nvidia/mps"
    assert taken["DEFAULT_CONFIG"] == "default"
    assert "NODEDEVICES_SERVING_MODE" not in taken
