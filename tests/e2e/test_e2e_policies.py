"""Policies change nodes without a restart, wait for holders, and say so when they are not applied."""

from __future__ import annotations

import pytest
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
