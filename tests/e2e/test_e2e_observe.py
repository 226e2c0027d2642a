"""Beside the vendor's plugin on a real kubelet: we register nothing, show and react, and take over under its pods."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support import installing, simulated, vendor
from support.ground import Ground
from support.kubectl import condition
from support.world import GPU, NAMESPACE, World

pytestmark = [pytest.mark.e2e, pytest.mark.any_cluster, pytest.mark.timeout(180, method="signal")]

PLUGIN = "vendors-plugin"


def observe(world: World) -> None:
    """Node b is left to the vendor: our registration is gone from its kubelet."""
    world.policy("observe", {"serving": {"mode": "Observe"}}, selector={"kubernetes.io/hostname": world.b})
    world.until("our registration is gone", lambda: not world.ids(world.b))
    world.until("the node says that it observes", lambda: "Observe" in ready(world)["message"])


def install(world: World, *arguments: str, ids: set[str] | None = None) -> set[str]:
    """The vendor's plugin on node b, for these devices or all that NodeDevices shows; their ids."""
    ids = ids or set(world.devices(world.b))
    pod = vendor.pod(PLUGIN, world.b, sorted(ids), namespace=NAMESPACE, image=world.image, arguments=arguments)
    world.kubectl.apply(pod)
    world.running(PLUGIN)
    world.until("it has registered", lambda: "registered" in world.kubectl.logs(PLUGIN, namespace=NAMESPACE))
    return ids


def uninstall(world: World) -> None:
    world.kubectl.delete("pod", PLUGIN, namespace=NAMESPACE)


def ready(world: World) -> dict[str, Any]:
    return world.condition("nodedevices", world.b, "Ready")


def config(world: World) -> dict[str, Any]:
    return world.condition("nodedevices", world.b, "ConfigApplied")


def resources(world: World) -> dict[str, dict[str, Any]]:
    """name -> resource, as NodeDevices of node b shows it."""
    return {one["name"]: one for one in world.nodedevices(world.b)["status"].get("resources", [])}


def healthy(world: World) -> int | None:
    return resources(world).get(GPU, {}).get("healthy")


def allocated_by(world: World, pod: str) -> str:
    """Who answered Allocate for it: only the vendor's plugin leaves a name."""
    return world.kubectl.exec(pod, "sh", "-c", "echo ${ALLOCATED_BY:-us}", namespace=NAMESPACE).strip()


@pytest.fixture
def removed(world: World, here: Ground) -> Iterator[set[str]]:
    """Nothing of ours is installed, and node b does not remember that it ever was; the ids of its devices."""
    ids = set(world.devices(world.b))
    installing.uninstall(world.kubectl)
    try:
        world.until("our registration is gone", lambda: not world.ids(world.b))
        world.hands[world.b].ask("remove")
        world.hardware(world.b, simulated.l4s())
        yield ids
    finally:
        uninstall(world)
        installing.install(world.kubectl, here.images)


def test_the_vendors_plugin_serves_and_we_show_its_resource_its_holders_and_faults(world: World) -> None:
    observe(world)
    ids = install(world)
    world.until("the kubelet has the vendor's ids", lambda: world.ids(world.b) == ids)
    world.until("NodeDevices shows what the vendor offers", lambda: healthy(world) == 4)
    pod = world.pod("train", world.b, {GPU: 1})
    assert allocated_by(world, "train") == "vendor"
    [held] = world.held(world.b, "train")
    world.until("NodeDevices names the holder", lambda: world.devices(world.b)[held].get("holders"))
    shown = resources(world)[GPU]
    assert (shown["capacity"], shown["allocated"], shown["managedBy"]) == (4, 1, "plugin")
    assert (ready(world)["status"], ready(world)["reason"]) == ("True", "AgentRunning")

    world.hardware(world.b, simulated.l4s(lost=world.devices(world.b)[held]["index"]))
    assert world.marked("train", "False")["reason"] == "FallenOffBus"
    assert world.ids(world.b) == ids, "the vendor's plugin decides what is offered, not we"
    world.until("the node tells that the vendor still offers it", lambda: "not fit for use" in ready(world)["message"])
    world.alive(pod)

    world.kubectl.exec(PLUGIN, "sh", "-c", f"echo {held} > {vendor.UNHEALTHY}", namespace=NAMESPACE)
    world.until("NodeDevices follows the vendor's word", lambda: healthy(world) == 3)
    assert resources(world)[GPU]["capacity"] == 4


def test_the_vendors_resource_is_not_given_to_the_operator_and_its_plugins_end_is_no_fault_of_ours(
    world: World,
) -> None:
    observe(world)
    install(world)
    world.until("NodeDevices shows what the vendor offers", lambda: healthy(world) == 4)
    world.policy(
        "own", {"capacity": [{"name": GPU, "perNode": 9}]}, selector={"kubernetes.io/hostname": world.b}, priority=5
    )
    told = world.until(
        "the operator refuses the name",
        lambda: (c := world.condition("nodedevices", world.b, "CapacitySynced")).get("reason") == "Conflict" and c,
    )
    assert "served by the device plugin" in told["message"]
    uninstall(world)
    world.until("the kubelet offers nothing", lambda: not world.ids(world.b))
    world.until("NodeDevices shows it", lambda: healthy(world) == 0)
    assert resources(world)[GPU]["managedBy"] == "plugin"
    assert ready(world)["status"] == "True"
    assert world.condition("nodedevices", world.b, "Stale")["status"] == "False"
    assert world.condition("nodedevices", world.b, "CapacitySynced")["reason"] == "Conflict"


def test_a_node_is_taken_over_with_its_pods_and_given_back_when_they_have_ended(world: World) -> None:
    agent = world.agent(world.b)
    observe(world)
    ids = install(world)
    world.until("the kubelet has the vendor's ids", lambda: world.ids(world.b) == ids)
    pod = world.pod("train", world.b, {GPU: 2})
    held = world.held(world.b, "train")
    world.until("NodeDevices names the holders", lambda: world.summary(world.b).get("held") == 2)
    world.until("the Node has them all", lambda: world.node_count(world.b, GPU) == 4)  # the kubelet writes every 10 s

    world.drop_policy("observe")
    world.until("the node serves", lambda: "Observe" not in ready(world)["message"])
    world.kubectl.delete("pod", PLUGIN, namespace=NAMESPACE, wait=False)
    world.never("the Node offers less", lambda: world.node_count(world.b, GPU) != 4, seconds=8)
    world.until("the vendor's plugin is gone", lambda: world.kubectl.get("pod", PLUGIN, NAMESPACE) is None)
    world.until("the kubelet has all ids", lambda: world.ids(world.b) == ids)
    world.pod("next", world.b, {GPU: 2})
    assert world.visible("next") == ids - held
    assert world.held(world.b, "train") == held
    world.alive(pod)

    world.policy("observe", {"serving": {"mode": "Observe"}}, selector={"kubernetes.io/hostname": world.b})
    waiting = world.until("the node waits", lambda: (c := config(world)).get("reason") == "WaitingForHolders" and c)
    assert "train" in waiting["message"]
    assert world.ids(world.b) == ids
    for name in ("train", "next"):
        world.kubectl.delete("pod", name, namespace=NAMESPACE)
    world.until("our registration is gone", lambda: not world.ids(world.b))
    install(world)
    world.until("the kubelet has the vendor's ids", lambda: world.ids(world.b) == ids)
    world.pod("again", world.b, {GPU: 1})
    assert allocated_by(world, "again") == "vendor"
    same = world.agent(world.b)
    assert same["metadata"]["uid"] == agent["metadata"]["uid"]
    restarts = [one["status"]["containerStatuses"][0]["restartCount"] for one in (agent, same)]
    assert restarts[0] == restarts[1]


def test_shares_of_the_vendor_are_taken_over_only_when_nobody_holds_or_offers_them(world: World) -> None:
    observe(world)
    ids = install(world, "--replicas=2")
    world.until("the kubelet has the vendor's shares", lambda: len(world.ids(world.b)) == 8)
    world.pod("train", world.b, {GPU: 1})
    [share] = world.held(world.b, "train")
    device = share.partition("::")[0]
    found = world.until("NodeDevices names the holder", lambda: world.devices(world.b)[device].get("holders"))
    assert found[0]["ids"] == [share]
    assert resources(world)[GPU]["replicas"] == 2

    world.drop_policy("observe")
    waiting = world.until("the node waits", lambda: (c := config(world)).get("reason") == "WaitingForHolders" and c)
    assert "train" in waiting["message"]
    world.kubectl.delete("pod", "train", namespace=NAMESPACE)
    world.until("it waits for the plugin", lambda: "another plugin" in config(world).get("message", ""))
    assert len(world.ids(world.b)) == 8
    uninstall(world)
    world.until("the kubelet has whole devices", lambda: world.ids(world.b) == ids)


def test_where_observe_was_forgotten_the_vendors_plugin_goes_on_until_it_is_removed(
    world: World, removed: set[str], here: Ground
) -> None:
    ids = install(world, ids=removed)
    world.until("the kubelet has the vendor's ids", lambda: world.ids(world.b) == ids)
    pod = world.pod("train", world.b, {GPU: 1})
    held = world.held(world.b, "train")

    installing.apply(world.kubectl, here.images)
    told = world.until("the node says who serves it", lambda: (c := ready(world)).get("status") == "False" and c, 90)
    assert told["reason"] == "RegistrationRejected"
    assert f"another device plugin serves {GPU} to this kubelet: 4 healthy ids" in told["message"]
    assert "set serving.mode: Observe" in told["message"]
    assert condition(world.agent(world.b), "Ready")["status"] == "False"
    world.until("NodeDevices names the holder", lambda: world.summary(world.b).get("held") == 1)
    world.pod("next", world.b, {GPU: 1})
    assert {allocated_by(world, "train"), allocated_by(world, "next")} == {"vendor"}
    assert world.metric(world.b, "nodedevices_resource_served_by_another") == 1

    uninstall(world)
    world.until("the node serves", lambda: ready(world)["status"] == "True")
    assert world.ids(world.b) == ids
    world.until("the agent's pod is ready", lambda: condition(world.agent(world.b), "Ready")["status"] == "True")
    world.pod("last", world.b, {GPU: 2})
    assert allocated_by(world, "last") == "us"
    assert world.held(world.b, "train") == held
    world.alive(pod)


def test_a_vendors_plugin_that_took_our_place_leaves_the_node_to_us_again(world: World) -> None:
    """Nobody tells us of either: our stream stays open."""
    before = world.ids(world.b)
    ids = install(world)
    assert ids == before
    world.pod("train", world.b, {GPU: 1})
    assert allocated_by(world, "train") == "vendor"
    uninstall(world)
    world.until("the kubelet has all ids again", lambda: world.ids(world.b) == ids)
    world.pod("next", world.b, {GPU: 3})
    assert allocated_by(world, "next") == "us"
    assert ready(world)["status"] == "True"


def test_a_node_that_we_leave_is_the_vendors_plugins_whichever_of_us_registered_last(world: World) -> None:
    """The kubelet tells neither of it, and up to 1.36 forgets the plugin that stays: it is asked to dial it anew."""

    def leave() -> None:
        world.policy("observe", {"serving": {"mode": "Observe"}}, selector={"kubernetes.io/hostname": world.b})
        world.until("the node says that it observes", lambda: "Observe" in ready(world)["message"])
        world.until("the kubelet has the vendor's ids", lambda: world.ids(world.b) == ids)
        world.until("NodeDevices shows what the vendor offers", lambda: healthy(world) == 4)

    def client(name: str) -> str:
        world.pod(name, world.b, {GPU: 1})
        who = allocated_by(world, name)
        world.kubectl.delete("pod", name, namespace=NAMESPACE)
        return who

    ids = install(world)
    assert client("first") == "vendor"
    leave()
    assert client("second") == "vendor"

    world.drop_policy("observe")
    world.until("the node serves", lambda: "Observe" not in ready(world)["message"])
    assert client("third") == "us"
    leave()
    assert client("fourth") == "vendor"
