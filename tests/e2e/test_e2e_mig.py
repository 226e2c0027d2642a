"""MIG devices on a real kubelet, by a policy: mixed and single, live changes, and what a pod holds of one that left."""

from __future__ import annotations

from typing import Any

import pytest
from support import simulated
from support.cluster import GPU, NAMESPACE, Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.any_cluster]

SMALL, MIDDLE, LARGE = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb", "nvidia.com/mig-3g.40gb"
Cut = dict[int, list[dict[str, object]]]


def instance(profile: str, gi: int, start: int) -> dict[str, object]:
    return {"profile": profile, "gi": gi, "start": start}


LAST_TWO: Cut = {
    6: [instance("3g.40gb", 1, 0), instance("3g.40gb", 2, 4)],
    7: [instance("1g.10gb", 7, 0), instance("1g.10gb", 8, 1), instance("1g.10gb", 9, 2)],
}


def offer(cluster: Cluster, strategy: str, cut: Cut, **sections: Any) -> None:
    """Node a's GPUs are cut up so, and offered by this strategy."""
    cluster.hardware(cluster.a, simulated.cut_h100s(cut=cut))
    policy = {"partitions": {"strategy": strategy}, **sections}
    cluster.policy("mig", policy, selector={"kubernetes.io/hostname": cluster.a})


def offered(cluster: Cluster, counts: dict[str, int]) -> None:
    """So many healthy ids of each, at the kubelet."""
    cluster.until(
        f"the kubelet has {counts}",
        lambda: {resource: len(cluster.ids(cluster.a, resource)) for resource in counts} == counts,
    )


def of_gpu(cluster: Cluster, index: int) -> dict[str, dict[str, Any]]:
    """MIG device id -> MIG device, as NodeDevices shows them."""
    parent = cluster.device(cluster.a, index)["name"]
    return {id_: one for id_, one in cluster.devices(cluster.a).items() if one.get("parent") == parent}


def held_of_gpu(cluster: Cluster, index: int) -> set[str]:
    """Ids of the MIG devices that a pod holds, as NodeDevices shows them."""
    return {id_ for id_, one in of_gpu(cluster, index).items() if "holders" in one}


def same_agent(cluster: Cluster, before: dict[str, Any]) -> bool:
    now = cluster.agent(cluster.a)
    count = now["status"]["containerStatuses"][0]["restartCount"]
    return bool(
        now["metadata"]["uid"] == before["metadata"]["uid"]
        and count == before["status"]["containerStatuses"][0]["restartCount"]
    )


def test_a_live_mig_change_appears_and_what_a_pod_holds_of_the_old_one_stays_unhealthy(cluster: Cluster) -> None:
    agent = cluster.agent(cluster.a)
    offer(cluster, "mixed", LAST_TWO)
    offered(cluster, {GPU: 6, SMALL: 3})
    pod = cluster.pod("small", cluster.a, {SMALL: 1})
    [held] = cluster.held(cluster.a, "small")
    assert cluster.visible("small") == {held}
    cluster.until("NodeDevices names the holder", lambda: held in held_of_gpu(cluster, 7))

    gone = of_gpu(cluster, 7)[held]["attributes"]["extra"]["gi"]["int"]
    others = [one for one in LAST_TWO[7] if one["gi"] != gone]
    cluster.hardware(cluster.a, simulated.cut_h100s(cut={7: [*others, instance("2g.20gb", 3, 4)]}))
    offered(cluster, {GPU: 7, SMALL: 2, MIDDLE: 1, LARGE: 0})
    assert held not in cluster.ids(cluster.a, SMALL)
    cluster.until(
        "NodeDevices says that it is gone", lambda: of_gpu(cluster, 7)[held]["health"]["state"] == "Unhealthy"
    )
    assert cluster.marked("small", "False")["message"]
    cluster.until("it still counts as capacity", lambda: cluster.node_count(cluster.a, SMALL, "capacity") == 3)
    cluster.alive(pod)
    cluster.pod("middle", cluster.a, {MIDDLE: 1})
    assert cluster.visible("middle") <= set(of_gpu(cluster, 7))

    cluster.kubectl.delete("pod", "small", namespace=NAMESPACE)
    cluster.until("what nobody holds is forgotten", lambda: held not in of_gpu(cluster, 7))
    cluster.until("the Node forgets it", lambda: cluster.node_count(cluster.a, SMALL, "capacity") == 2)
    assert same_agent(cluster, agent)


@pytest.mark.long
def test_a_gpu_that_is_cut_or_made_whole_under_idle_pods_goes_to_no_other_pod_until_they_have_ended(
    cluster: Cluster,
) -> None:
    offer(cluster, "mixed", {7: LAST_TWO[7]})
    offered(cluster, {GPU: 7, SMALL: 3})
    cluster.pod("all-whole", cluster.a, {GPU: 7})
    small = cluster.pod("small", cluster.a, {SMALL: 1})
    cut = {6: LAST_TWO[6]}  # gpu-6 is cut under the first pod, gpu-7 made whole under the second
    cluster.hardware(cluster.a, simulated.cut_h100s(cut=cut))
    cluster.until("NodeDevices shows the new ones", lambda: len(of_gpu(cluster, 6)) == 2)
    cluster.never(
        "either is offered",
        lambda: cluster.ids(cluster.a, LARGE) or cluster.ids(cluster.a) & {cluster.device(cluster.a, 7)["id"]},
        3,
    )
    reported = cluster.until(
        "the node says so",
        lambda: (c := cluster.condition("nodedevices", cluster.a, "ConfigApplied")).get("status") == "False" and c,
    )
    assert reported["reason"] == "WaitingForHolders"
    assert "gpu-6, gpu-7" in reported["message"]
    assert "all-whole" in reported["message"]
    cluster.alive(small)
    cluster.kubectl.delete("pod", "small", namespace=NAMESPACE)
    cluster.until("gpu-7 is offered whole", lambda: cluster.device(cluster.a, 7)["id"] in cluster.ids(cluster.a))
    cluster.kubectl.delete("pod", "all-whole", namespace=NAMESPACE)
    offered(cluster, {GPU: 7, LARGE: 2})
