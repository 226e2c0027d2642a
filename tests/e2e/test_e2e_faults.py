"""A device fails: the kubelet, NodeDevices, the pod and the Node all hear of it, and of its recovery."""

from __future__ import annotations

from typing import Any

import pytest
from support import simulated
from support.world import GPU, HEALTHY, MEMORY, NAMESPACE, World

pytestmark = [pytest.mark.e2e, pytest.mark.any_cluster, pytest.mark.timeout(180, method="signal")]


def test_a_fault_reaches_kubelet_nodedevices_pod_and_node_and_so_does_the_recovery(world: World) -> None:
    pod = world.pod("victim", world.a, {GPU: 1})
    bystander = world.pod("bystander", world.a, {GPU: 1})
    [bad] = world.held(world.a, "victim")
    index = world.devices(world.a)[bad]["index"]
    before = world.ids(world.a)
    world.until("NodeDevices names the holder", lambda: world.devices(world.a)[bad].get("holders"))

    world.hardware(world.a, simulated.h100s(xid79=index))
    world.until("the kubelet withdraws it", lambda: world.ids(world.a) == before - {bad})
    health = world.until(
        "NodeDevices says why",
        lambda: (h := world.devices(world.a)[bad]["health"])["state"] == "Unhealthy" and h,
    )
    assert (health["reason"], health["xid"]) == ("Xid79", 79)
    assert world.summary(world.a)["reason"] == "Xid79"
    mark = world.marked("victim", "False")
    assert mark["reason"] == "Xid79"
    assert bad in mark["message"]
    [event] = world.until("the pod has an Event", lambda: world.events("victim"))
    assert (event["reason"], event["type"]) == ("DeviceFault", "Warning")
    world.until(
        "the Node has the condition",
        lambda: world.condition("node", world.a, "nodedevices.io/DevicesHealthy").get("status") == "False",
    )
    world.until("the Node offers one less", lambda: world.node_count(world.a, GPU) == 7)
    assert world.node_count(world.a, GPU, "capacity") == 8
    world.alive(pod)
    world.alive(bystander)
    assert world.condition("pod", "bystander", HEALTHY, NAMESPACE).get("status") != "False"

    world.hardware(world.a, simulated.h100s())
    world.until("the kubelet has it again", lambda: world.ids(world.a) == before)
    world.marked("victim", "True")
    world.until(
        "the Node's condition is back",
        lambda: world.condition("node", world.a, "nodedevices.io/DevicesHealthy").get("status") == "True",
    )
    world.until(
        "the pod has the Event of the recovery",
        lambda: {one["reason"] for one in world.events("victim")} == {"DeviceFault", "DeviceRecovered"},
    )
    world.alive(pod)


def test_a_silent_probe_takes_no_pod_out_of_its_service_and_a_fault_does_until_nobody_watches(world: World) -> None:
    world.policy("gate", {"faults": {"podCondition": "Always"}})
    spec = world.pod_spec(world.a, {GPU: 1}) | {"readinessGates": [{"conditionType": HEALTHY}]}
    metadata = {"name": "web", "namespace": NAMESPACE}
    world.kubectl.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def shown(kind: str) -> dict[str, Any]:
        return world.condition("pod", "web", kind, NAMESPACE)

    world.running("web")
    ready, well = shown("Ready"), shown(HEALTHY)
    world.hardware(world.a, simulated.h100s(silent=True))
    world.until("the pod says that nobody can tell", lambda: shown(HEALTHY)["reason"] == "ProbeSilent")
    assert (shown(HEALTHY)["status"], shown(HEALTHY)["lastTransitionTime"]) == ("True", well["lastTransitionTime"])
    assert shown("Ready") == ready

    [bad] = world.held(world.a, "web")
    world.hardware(world.a, simulated.h100s(xid79=world.devices(world.a)[bad]["index"]))
    world.marked("web", "False")
    world.until("it is not ready", lambda: shown("Ready")["status"] == "False")
    world.policy("gate", {"faults": {"podCondition": "Never"}})
    world.until("nobody watches", lambda: shown(HEALTHY)["reason"] == "NotMonitored")
    assert shown(HEALTHY)["status"] == "True"
    world.until("it is ready", lambda: shown("Ready")["status"] == "True")


def test_a_lost_device_stays_listed_and_its_neighbours_stay_allocatable(world: World) -> None:
    gone = world.device(world.b, 2)["id"]
    before = world.ids(world.b)
    world.hardware(world.b, simulated.l4s(lost=2))
    world.until("the kubelet withdraws it", lambda: world.ids(world.b) == before - {gone})
    world.until("NodeDevices says why", lambda: world.devices(world.b)[gone]["health"]["reason"] == "FallenOffBus")
    pod = world.pod("rest", world.b, {GPU: 3})
    assert gone not in world.visible("rest")
    world.alive(pod)


def test_a_device_that_vanishes_is_missing_and_returns_with_its_id(world: World) -> None:
    gone = world.device(world.b, 3)["id"]
    world.hardware(world.b, simulated.l4s(without=3))
    world.until("NodeDevices says why", lambda: world.devices(world.b)[gone]["health"]["reason"] == "Missing")
    world.until("the kubelet withdraws it", lambda: gone not in world.ids(world.b))
    assert world.summary(world.b)["devices"] == 4
    world.hardware(world.b, simulated.l4s())
    world.until("the kubelet has it again", lambda: gone in world.ids(world.b))


def test_a_broken_devices_file_changes_nothing_at_the_kubelet(world: World) -> None:
    before = world.ids(world.b)
    world.hardware(world.b, "devices: [{index: many}]\n")
    world.never("an id is withdrawn", lambda: world.ids(world.b) != before, seconds=4)
    assert world.summary(world.b)["healthy"] == 4


def test_the_owned_capacity_follows_the_healthy_devices_and_is_repaired_when_somebody_edits_it(world: World) -> None:
    world.policy("memory", {"capacity": [{"name": MEMORY, "sumOf": "memoryMiB", "scope": "healthy"}]})

    def capacity() -> int | None:
        return world.node_count(world.b, MEMORY, "capacity")

    world.until("the capacity is there", lambda: capacity() == 4 * simulated.L4_MIB)
    world.hardware(world.b, simulated.l4s(lost=1))
    world.until("it shrinks with the devices", lambda: capacity() == 3 * simulated.L4_MIB)
    world.hardware(world.b, simulated.l4s())
    world.until("it grows with the devices", lambda: capacity() == 4 * simulated.L4_MIB)
    patch = f'{{"status": {{"capacity": {{"{MEMORY}": "1"}}}}}}'
    world.kubectl.run("patch", "node", world.b, "--subresource=status", "--type=merge", "-p", patch)
    world.until("the edit is repaired", lambda: capacity() == 4 * simulated.L4_MIB)
    world.drop_policy("memory")
    world.until("it is gone with its policy", lambda: capacity() is None)
