"""Policies change nodes without a restart, wait for holders, and say so when they are not applied."""

from __future__ import annotations

import json

import pytest
from nodedevices_common.confirming import CONFIRM
from support import simulated
from support.cluster import GPU, Cluster
from support.kubectl import KubectlError

pytestmark = [pytest.mark.e2e, pytest.mark.any_cluster]


def sharing(replicas: int) -> dict[str, object]:
    return {"sharing": {"strategy": "timeSlicing", "resources": [{"name": GPU, "replicas": replicas}]}}


def test_a_policy_shares_devices_by_time_slicing_without_a_restart_and_its_end_takes_it_back(cluster: Cluster) -> None:
    agent = cluster.agent(cluster.b)
    cluster.policy("share", sharing(4), selector={"kubernetes.io/hostname": cluster.b})
    cluster.until("the kubelet has 16 ids", lambda: len(cluster.ids(cluster.b)) == 16)
    cluster.until("the Node has 16", lambda: cluster.node_count(cluster.b, GPU) == 16)
    assert len(cluster.ids(cluster.a)) == 8
    pod = cluster.pod("shared", cluster.b, {GPU: 1})
    assert cluster.visible("shared") <= set(cluster.devices(cluster.b)), "a container sees a device, not a replica"
    cluster.alive(pod)
    cluster.kubectl.delete("pod", "shared", namespace="nodedevices-e2e")
    cluster.drop_policy("share")
    cluster.until("the kubelet has 4 ids again", lambda: len(cluster.ids(cluster.b)) == 4)
    same = cluster.agent(cluster.b)
    assert same["metadata"]["uid"] == agent["metadata"]["uid"]
    assert (
        same["status"]["containerStatuses"][0]["restartCount"]
        == (agent["status"]["containerStatuses"][0]["restartCount"])
    )


def test_a_change_waits_for_the_held_gpu_alone_and_names_the_pod(cluster: Cluster) -> None:
    cluster.pod("busy", cluster.a, {GPU: 1})
    [busy] = cluster.held(cluster.a, "busy")
    cluster.until("NodeDevices knows the holder", lambda: cluster.summary(cluster.a).get("held") == 1)
    out, ill, *_ = sorted(set(cluster.devices(cluster.a)) - {busy})
    sections = {
        **sharing(2),
        "resources": {"exclude": [out]},
        "health": {"rules": [{"reasons": ["Xid79"], "state": "Ignored"}]},
    }
    cluster.policy("share", sections, selector={"kubernetes.io/hostname": cluster.a})

    def applied() -> dict[str, str]:
        return cluster.condition("nodedevices", cluster.a, "ConfigApplied")

    waiting = cluster.until("the node waits", lambda: (c := applied()).get("reason") == "WaitingForHolders" and c)
    assert "busy" in waiting["message"]
    free = {f"{one}::{share}" for one in set(cluster.devices(cluster.a)) - {busy, out} for share in (0, 1)}
    cluster.until("all others are shared, or excluded", lambda: cluster.ids(cluster.a) == free)
    cluster.hardware(cluster.a, simulated.h100s(xid79=cluster.devices(cluster.a)[ill]["index"], field_230=False))
    cluster.never("an ignored XID counts", lambda: cluster.ids(cluster.a) != free, seconds=2)
    cluster.kubectl.delete("pod", "busy", namespace="nodedevices-e2e")
    cluster.until("the policy is applied", lambda: cluster.ids(cluster.a) == free | {f"{busy}::0", f"{busy}::1"})
    cluster.until("the node says so", lambda: applied().get("reason") == "Applied")
    cluster.kubectl.delete("devicepolicy", "share")
    cluster.until(
        "it counts without the rule", lambda: cluster.devices(cluster.a)[ill]["health"].get("reason") == "Xid79"
    )


def test_an_impossible_policy_is_refused_with_its_field_named(cluster: Cluster) -> None:
    with pytest.raises(KubectlError, match=r"replicas"):
        cluster.policy("impossible", sharing(1))


@pytest.mark.long
def test_the_policys_status_counts_its_nodes(cluster: Cluster) -> None:
    cluster.policy("share", sharing(2), selector={"kubernetes.io/hostname": cluster.b})

    def nodes() -> dict[str, int]:
        found = cluster.kubectl.get("devicepolicy", "share") or {}
        counts: dict[str, int] = found.get("status", {}).get("nodes", {})
        return counts

    cluster.until("the policy is applied to its node", lambda: nodes().get("applied") == 1)
    assert nodes()["selected"] == 1, json.dumps(nodes())


def test_a_policy_labels_nodes_as_gpu_feature_discovery_does_and_its_end_takes_the_labels_off(cluster: Cluster) -> None:
    def labels(node: str) -> dict[str, str]:
        found = cluster.node(node)["metadata"]["labels"]
        return {
            name: value for name, value in found.items() if name.startswith(("nvidia.com/gpu.", "nvidia.com/cuda."))
        }

    cluster.policy("labels", {"labels": {"featureDiscovery": True}})
    for node, product, count in ((cluster.a, "NVIDIA-H100-80GB-HBM3", "8"), (cluster.b, "NVIDIA-L4", "4")):
        wanted = {"nvidia.com/gpu.product": product, "nvidia.com/gpu.count": count}
        cluster.until(f"{node} has {wanted}", lambda n=node, w=wanted: w.items() <= labels(n).items())  # type: ignore[misc]
    cluster.drop_policy("labels")
    for node in (cluster.a, cluster.b):
        cluster.until(f"{node} has none of them", lambda n=node: not labels(n))  # type: ignore[misc]


def test_nodedevices_are_selected_by_the_labels_of_their_nodes(cluster: Cluster) -> None:
    def selected() -> list[str]:
        return cluster.kubectl.run("get", "nd", "-l", "example.com/e2e-pool=x", "-o", "name").split()

    cluster.kubectl.run("label", "node", cluster.b, "example.com/e2e-pool=x")
    cluster.until("its NodeDevices has it", lambda: selected() == [f"nodedevices.nodedevices.io/{cluster.b}"])
    cluster.kubectl.run("label", "node", cluster.b, "example.com/e2e-pool-")
    cluster.until("neither has it", lambda: not selected())


@pytest.mark.long
def test_a_policy_that_costs_a_node_its_devices_goes_no_further_until_a_person_says_so(cluster: Cluster) -> None:
    """A probe that finds nothing: right to the letter, and no device is left, which shows only when it has reported."""
    nodes = (cluster.a, cluster.b)
    before = {node: cluster.ids(node) for node in nodes}
    cluster.policy("hurts", {"discovery": {"probes": ["nvml"]}})

    def rolled_out() -> dict[str, str]:
        return cluster.condition("devicepolicy", "hurts", "RolledOut")

    stopped = cluster.until("the roll-out stops", lambda: (c := rolled_out()).get("reason") == "Stopped" and c)
    first, other = sorted(nodes, key=lambda node: len(cluster.ids(node)))
    assert stopped["message"].startswith(f"{first}: {len(before[first])} of {len(before[first])} devices")
    assert cluster.ids(other) == before[other]
    assert "Stopped" in cluster.kubectl.run("get", "devicepolicy", "hurts")

    def says(word: str) -> None:
        cluster.kubectl.run("annotate", "--overwrite", "devicepolicy", "hurts", f"{CONFIRM}=rollout=resumed@{word}")

    says("yes")
    cluster.until("the word is refused", lambda: "resumed@yes: give rollout=resumed@<" in rolled_out()["message"])
    assert cluster.ids(other) == before[other]
    says("1")
    cluster.until("it goes on", lambda: not cluster.ids(other))
    cluster.drop_policy("hurts")
    for node in nodes:
        cluster.until(f"{node} offers its devices again", lambda n=node: cluster.ids(n) == before[n])  # type: ignore[misc]
        cluster.until(f"{node} is not watched", lambda n=node: "change" not in cluster.nodedevices(n)["spec"])  # type: ignore[misc]
