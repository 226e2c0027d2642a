"""Policies change what a node offers while pods hold it and others start: nobody ever has, or could get, a device that
another pod has. The kubelet is sampled all the time (Cluster.nothing_twice); containers and NodeDevices agree with it.
"""

from __future__ import annotations

from typing import Any

import pytest
from support import simulated
from support.bookings import physical
from support.cluster import GPU, NAMESPACE, Cluster
from support.kubectl import condition

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.any_cluster]

OTHER = "example.com/l4"
RENAME = {"resources": {"devices": [{"match": {"productName": "NVIDIA L4"}, "name": OTHER}]}}


def shares(replicas: int) -> dict[str, Any]:
    return {"sharing": {"strategy": "timeSlicing", "resources": [{"name": GPU, "replicas": replicas}]}}


def change(cluster: Cluster, sections: dict[str, Any]) -> None:
    cluster.policy("change", sections, selector={"kubernetes.io/hostname": cluster.b})


def offers(cluster: Cluster, ids: set[str], resource: str = GPU) -> None:
    cluster.until(f"the kubelet offers {sorted(ids)}", lambda: cluster.ids(cluster.b, resource) == ids)


def split(devices: set[str], replicas: int) -> set[str]:
    return {f"{device}::{share}" for device in devices for share in range(replicas)}


def load(cluster: Cluster, replicas: int, resource: str = GPU) -> None:
    """So many pods of a Deployment, which replaces those that are admitted in the very moment of a change and fail."""
    labels = {"app": "load"}
    template = {"metadata": {"labels": labels}, "spec": cluster.pod_spec(cluster.b, {resource: 1})}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    metadata = {"name": "load", "namespace": NAMESPACE}
    cluster.kubectl.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})


def loaded(cluster: Cluster, count: int) -> list[str]:
    """So many pods of it, once they are ready."""

    def ready() -> list[str]:
        pods = [one for one in cluster.pods() if condition(one, "Ready").get("status") == "True"]
        return [one["metadata"]["name"] for one in pods if one["metadata"]["name"].startswith("load-")]

    found: list[str] = cluster.until(f"{count} pods are ready", lambda: len(names := ready()) == count and names)
    return found


def waiting(cluster: Cluster, holders: dict[str, set[str]], resource: str = GPU) -> None:
    """The node waits for these pods and for no others; said for people, and in fields."""
    applied: dict[str, Any] = cluster.until(
        "the node waits",
        lambda: (
            (c := cluster.condition("nodedevices", cluster.b, "ConfigApplied")).get("reason") == "WaitingForHolders"
            and set(holders) == {pod for pod in cluster_pods(cluster) if f"{NAMESPACE}/{pod}" in c["message"]}
            and c
        ),
    )
    assert applied["status"] == "False"
    shown = cluster.nodedevices(cluster.b)["status"]["configuration"]["waitingForPods"]
    assert shown == sorted(f"{NAMESPACE}/{pod}" for pod in holders)


def cluster_pods(cluster: Cluster) -> list[str]:
    return [one["metadata"]["name"] for one in cluster.pods()]


def applied(cluster: Cluster) -> None:
    cluster.until(
        "the change is whole",
        lambda: cluster.condition("nodedevices", cluster.b, "ConfigApplied").get("reason") == "Applied",
    )


def test_with_fewer_shares_only_the_device_of_a_share_that_goes_waits_for_its_pod(cluster: Cluster) -> None:
    devices = set(cluster.devices(cluster.b))
    change(cluster, shares(4))
    offers(cluster, split(devices, 4))
    cluster.until("the Node has 16", lambda: cluster.node_count(cluster.b, GPU) == 16)
    cluster.pod("most", cluster.b, {GPU: 12})
    goes = cluster.pod("goes", cluster.b, {GPU: 1})
    cluster.kubectl.delete("pod", "most", namespace=NAMESPACE)
    stays = cluster.pod("stays", cluster.b, {GPU: 1})
    [going], [staying] = cluster.held(cluster.b, "goes"), cluster.held(cluster.b, "stays")
    assert (going[-3:], staying[-3:]) == ("::3", "::0")
    assert physical(going) != physical(staying)
    free = split(devices - {physical(going)}, 2)
    with cluster.nothing_twice(cluster.b):
        load(cluster, 3)
        change(cluster, shares(2))
        offers(cluster, free)
        names = loaded(cluster, 3)
        waiting(cluster, {"goes": {going}})
        cluster.agreed(cluster.b, "goes", "stays", *names)
        cluster.pod("late", cluster.b, {GPU: 1})
        cluster.agreed(cluster.b, "late")
        assert cluster.held(cluster.b, "late") <= free
        assert cluster.kubelet_says("goes", {going: "Healthy"}), "an id that is offered no more"
        cluster.alive(goes)
        cluster.kubectl.delete("pod", "goes", namespace=NAMESPACE)
        offers(cluster, split(devices, 2))
        applied(cluster)
    cluster.alive(stays)


def test_a_renamed_resource_leaves_pods_their_device_of_the_old_name(cluster: Cluster) -> None:
    devices = set(cluster.devices(cluster.b))
    old = cluster.pod("old", cluster.b, {GPU: 1})
    [device] = cluster.held(cluster.b, "old")
    with cluster.nothing_twice(cluster.b):
        load(cluster, 4, OTHER)  # they wait for the name, and one of them for the pod of the old one
        change(cluster, RENAME)
        offers(cluster, devices - {device}, OTHER)
        names = loaded(cluster, 3)
        waiting(cluster, {"old": {device}})
        assert cluster.ids(cluster.b) == set()
        cluster.agreed(cluster.b, "old", *names)
        assert cluster.kubelet_says("old", {device: "Healthy"})
        cluster.alive(old)
        cluster.kubectl.delete("pod", "old", namespace=NAMESPACE)
        offers(cluster, devices, OTHER)
        names = loaded(cluster, 4)
        applied(cluster)
        cluster.agreed(cluster.b, *names)

        cluster.drop_policy("change")
        waiting(cluster, {name: cluster.held(cluster.b, name) for name in names}, OTHER)
        assert not cluster.ids(cluster.b)
        cluster.agreed(cluster.b, *names)
        cluster.kubectl.delete("deployment", "load", namespace=NAMESPACE)
        offers(cluster, devices)
        applied(cluster)


def test_time_slicing_goes_and_comes_while_pods_hold_shares_and_whole_devices(cluster: Cluster) -> None:
    devices = set(cluster.devices(cluster.b))
    change(cluster, shares(4))
    offers(cluster, split(devices, 4))
    pod = cluster.pod("share", cluster.b, {GPU: 1})
    [share] = cluster.held(cluster.b, "share")
    own = physical(share)
    with cluster.nothing_twice(cluster.b):
        cluster.drop_policy("change")
        offers(cluster, devices - {own})
        load(cluster, 2)
        names = loaded(cluster, 2)
        waiting(cluster, {"share": {share}})
        cluster.agreed(cluster.b, "share", *names)
        whole = {name: cluster.held(cluster.b, name) for name in names}

        # Its id is not in the kubelet's list, and still the pod's own status knows of the fault.
        cluster.hardware(cluster.b, simulated.l4s(lost=cluster.devices(cluster.b)[own]["index"]))
        cluster.until("the pod says so", lambda: cluster.kubelet_says("share", {share: "Unhealthy"}))
        assert cluster.marked("share", "False")["reason"] == "FallenOffBus"
        cluster.hardware(
            cluster.b, simulated.l4s()
        )  # the kubelet says Healthy with the pod's next sync, a minute later
        cluster.lost_it("share")
        assert cluster.ids(cluster.b) == devices - {own}

        change(cluster, shares(4))
        held = {device for ids in whole.values() for device in ids}
        offers(cluster, split(devices - held, 4))
        cluster.pod("next", cluster.b, {GPU: 1})
        waiting(cluster, whole)
        cluster.agreed(cluster.b, "share", "next", *names)
        cluster.kubectl.delete("deployment", "load", namespace=NAMESPACE)
        offers(cluster, split(devices, 4))
        applied(cluster)
    cluster.alive(pod)
