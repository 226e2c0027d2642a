"""MIG devices on a real kubelet, by a policy: mixed and single, live changes, and what a pod holds of one that left."""

from __future__ import annotations

from typing import Any

import pytest
from support import simulated
from support.world import GPU, NAMESPACE, World

pytestmark = [pytest.mark.e2e, pytest.mark.any_cluster, pytest.mark.timeout(180, method="signal")]

SMALL, MIDDLE, LARGE = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb", "nvidia.com/mig-3g.40gb"
MOUNTS = "/var/run/nvidia-container-devices"
Cut = dict[int, list[dict[str, object]]]


def instance(profile: str, gi: int, start: int) -> dict[str, object]:
    return {"profile": profile, "gi": gi, "start": start}


LAST_TWO: Cut = {
    6: [instance("3g.40gb", 1, 0), instance("3g.40gb", 2, 4)],
    7: [instance("1g.10gb", 7, 0), instance("1g.10gb", 8, 1), instance("1g.10gb", 9, 2)],
}
ALL_ALIKE: Cut = {gpu: [instance("3g.40gb", 1, 0), instance("3g.40gb", 2, 4)] for gpu in range(8)}


def offer(world: World, strategy: str, cut: Cut, **sections: Any) -> None:
    """Node a's GPUs are cut up so, and offered by this strategy."""
    world.hardware(world.a, simulated.cut_h100s(cut=cut))
    policy = {"partitions": {"strategy": strategy}, **sections}
    world.policy("mig", policy, selector={"kubernetes.io/hostname": world.a})


def offered(world: World, counts: dict[str, int]) -> None:
    """So many healthy ids of each, at the kubelet."""
    world.until(
        f"the kubelet has {counts}",
        lambda: {resource: len(world.ids(world.a, resource)) for resource in counts} == counts,
    )


def of_gpu(world: World, index: int) -> dict[str, dict[str, Any]]:
    """MIG device id -> MIG device, as NodeDevices shows them."""
    return {one["id"]: one for one in world.device(world.a, index).get("partitions", [])}


def same_agent(world: World, before: dict[str, Any]) -> bool:
    now = world.agent(world.a)
    count = now["status"]["containerStatuses"][0]["restartCount"]
    return bool(
        now["metadata"]["uid"] == before["metadata"]["uid"]
        and count == before["status"]["containerStatuses"][0]["restartCount"]
    )


def test_mixed_offers_whole_gpus_and_each_profile_and_one_container_gets_both(world: World) -> None:
    agent = world.agent(world.a)
    offer(world, "mixed", LAST_TWO, injection={"deviceListStrategies": ["volume-mounts"]})
    offered(world, {GPU: 6, SMALL: 3, LARGE: 2})
    for resource, count in ((GPU, 6), (SMALL, 3), (LARGE, 2)):
        world.until(
            f"the Node has {count} of {resource}",
            lambda r=resource, c=count: world.node_count(world.a, r) == c,  # type: ignore[misc]
        )
    world.pod("both", world.a, {GPU: 1, SMALL: 2, LARGE: 1})
    held = world.held(world.a, "both")
    mounted = set(world.kubectl.exec("both", "ls", MOUNTS, namespace=NAMESPACE).split())
    assert mounted == held
    assert len(held & set(of_gpu(world, 7))) == 2
    assert len(held & set(of_gpu(world, 6))) == 1
    assert len(held & set(world.devices(world.a))) == 1
    world.until(
        "NodeDevices names the holder of each MIG device",
        lambda: (
            {id_ for gpu in (6, 7) for id_, one in of_gpu(world, gpu).items() if one.get("holders")}
            == held - set(world.devices(world.a))
        ),
    )
    world.kubectl.delete("pod", "both", namespace=NAMESPACE)
    world.drop_policy("mig")
    offered(world, {GPU: 8, SMALL: 0, LARGE: 0})
    assert same_agent(world, agent)


def test_a_live_mig_change_appears_and_what_a_pod_holds_of_the_old_one_stays_unhealthy(world: World) -> None:
    agent = world.agent(world.a)
    offer(world, "mixed", LAST_TWO)
    offered(world, {GPU: 6, SMALL: 3})
    pod = world.pod("small", world.a, {SMALL: 1})
    [held] = world.held(world.a, "small")
    assert world.visible("small") == {held}
    world.until("NodeDevices names the holder", lambda: of_gpu(world, 7)[held].get("holders"))

    gone = of_gpu(world, 7)[held]["gi"]
    others = [one for one in LAST_TWO[7] if one["gi"] != gone]
    world.hardware(world.a, simulated.cut_h100s(cut={7: [*others, instance("2g.20gb", 3, 4)]}))
    offered(world, {GPU: 7, SMALL: 2, MIDDLE: 1, LARGE: 0})
    assert held not in world.ids(world.a, SMALL)
    health = world.until("NodeDevices says that it is gone", lambda: of_gpu(world, 7)[held].get("health"))
    assert health["state"] == "Unhealthy"
    assert world.marked("small", "False")["message"]
    world.until("it still counts as capacity", lambda: world.node_count(world.a, SMALL, "capacity") == 3)
    world.alive(pod)
    world.pod("middle", world.a, {MIDDLE: 1})
    assert world.visible("middle") <= set(of_gpu(world, 7))

    world.kubectl.delete("pod", "small", namespace=NAMESPACE)
    world.until("what nobody holds is forgotten", lambda: held not in of_gpu(world, 7))
    world.until("the Node forgets it", lambda: world.node_count(world.a, SMALL, "capacity") == 2)
    assert same_agent(world, agent)


def test_a_gpu_that_is_cut_or_made_whole_under_idle_pods_goes_to_no_other_pod_until_they_have_ended(
    world: World,
) -> None:
    offer(world, "mixed", {7: LAST_TWO[7]})
    offered(world, {GPU: 7, SMALL: 3})
    world.pod("all-whole", world.a, {GPU: 7})
    small = world.pod("small", world.a, {SMALL: 1})
    cut = {6: LAST_TWO[6]}  # gpu-6 is cut under the first pod, gpu-7 made whole under the second
    world.hardware(world.a, simulated.cut_h100s(cut=cut))
    world.until("NodeDevices shows the new ones", lambda: len(of_gpu(world, 6)) == 2)
    world.never(
        "either is offered",
        lambda: world.ids(world.a, LARGE) or world.ids(world.a) & {world.device(world.a, 7)["id"]},
        3,
    )
    told = world.until(
        "the node says so",
        lambda: (c := world.condition("nodedevices", world.a, "ConfigApplied")).get("status") == "False" and c,
    )
    assert told["reason"] == "WaitingForHolders"
    assert "gpu-6, gpu-7" in told["message"]
    assert "all-whole" in told["message"]
    world.alive(small)
    world.kubectl.delete("pod", "small", namespace=NAMESPACE)
    world.until("gpu-7 is offered whole", lambda: world.device(world.a, 7)["id"] in world.ids(world.a))
    world.kubectl.delete("pod", "all-whole", namespace=NAMESPACE)
    offered(world, {GPU: 7, LARGE: 2})


def test_single_offers_mig_devices_as_gpus_and_a_fault_of_a_gpu_is_one_of_all_its_mig_devices(world: World) -> None:
    offer(world, "single", ALL_ALIKE)
    offered(world, {GPU: 16})
    pod = world.pod("part", world.a, {GPU: 1})
    [held] = world.visible("part")
    assert held.startswith("MIG-")
    [hit] = [gpu for gpu in range(8) if held in of_gpu(world, gpu)]
    world.until("NodeDevices names the holder", lambda: of_gpu(world, hit)[held].get("holders"))
    both = set(of_gpu(world, hit))
    world.hardware(world.a, simulated.cut_h100s(cut=ALL_ALIKE, lost=hit))
    offered(world, {GPU: 14})
    assert not world.ids(world.a) & both
    assert world.marked("part", "False")["reason"] == "FallenOffBus"
    world.alive(pod)


def test_single_is_refused_where_gpus_are_not_alike_and_what_was_offered_stays(world: World) -> None:
    offer(world, "single", LAST_TWO)
    told = world.until(
        "the node says why",
        lambda: (c := world.condition("nodedevices", world.a, "ConfigApplied")).get("reason") == "ConfigInvalid" and c,
    )
    assert "partitions.strategy" in told["message"]
    assert "use mixed" in told["message"]
    assert len(world.ids(world.a)) == 8
