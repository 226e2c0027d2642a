"""Policies change nodes without a restart, wait for holders, and say so when they are not applied."""

from __future__ import annotations

import json

import pytest
from support import simulated
from support.kubectl import KubectlError
from support.world import GPU, HOLD_DOWN_SECONDS, World

pytestmark = [pytest.mark.e2e, pytest.mark.any_cluster, pytest.mark.timeout(180, method="signal")]


def sharing(replicas: int) -> dict[str, object]:
    return {"sharing": {"strategy": "timeSlicing", "resources": [{"name": GPU, "replicas": replicas}]}}


def test_a_policy_shares_devices_by_time_slicing_without_a_restart_and_its_end_takes_it_back(world: World) -> None:
    agent = world.agent(world.b)
    world.policy("share", sharing(4), selector={"kubernetes.io/hostname": world.b})
    world.until("the kubelet has 16 ids", lambda: len(world.ids(world.b)) == 16)
    world.until("the Node has 16", lambda: world.node_count(world.b, GPU) == 16)
    assert len(world.ids(world.a)) == 8
    pod = world.pod("shared", world.b, {GPU: 1})
    assert world.visible("shared") <= set(world.devices(world.b)), "a container sees a device, not a replica"
    world.alive(pod)
    world.kubectl.delete("pod", "shared", namespace="nodedevices-e2e")
    world.drop_policy("share")
    world.until("the kubelet has 4 ids again", lambda: len(world.ids(world.b)) == 4)
    same = world.agent(world.b)
    assert same["metadata"]["uid"] == agent["metadata"]["uid"]
    assert (
        same["status"]["containerStatuses"][0]["restartCount"]
        == (agent["status"]["containerStatuses"][0]["restartCount"])
    )


def test_a_change_waits_for_the_held_gpu_alone_and_names_the_pod(world: World) -> None:
    world.pod("busy", world.a, {GPU: 1})
    [busy] = world.held(world.a, "busy")
    world.until("NodeDevices knows the holder", lambda: world.summary(world.a).get("held") == 1)
    out, ill, *_ = sorted(set(world.devices(world.a)) - {busy})
    sections = {
        **sharing(2),
        "resources": {"exclude": [out]},
        "health": {"rules": [{"reasons": ["Xid79"], "state": "Ignored"}]},
    }
    world.policy("share", sections, selector={"kubernetes.io/hostname": world.a})

    def applied() -> dict[str, str]:
        return world.condition("nodedevices", world.a, "ConfigApplied")

    waiting = world.until("the node waits", lambda: (c := applied()).get("reason") == "WaitingForHolders" and c)
    assert "busy" in waiting["message"]
    free = {f"{one}::{share}" for one in set(world.devices(world.a)) - {busy, out} for share in (0, 1)}
    world.until("all others are shared, or excluded", lambda: world.ids(world.a) == free)
    world.hardware(world.a, simulated.h100s(xid79=world.devices(world.a)[ill]["index"], field_230=False))
    world.never("an ignored XID counts", lambda: world.ids(world.a) != free, seconds=2)
    world.kubectl.delete("pod", "busy", namespace="nodedevices-e2e")
    world.until("the policy is applied", lambda: world.ids(world.a) == free | {f"{busy}::0", f"{busy}::1"})
    world.until("the node says so", lambda: applied().get("reason") == "Applied")


def test_a_policy_that_asks_for_what_is_not_yet_at_work_is_not_applied_at_all_and_names_it(world: World) -> None:
    world.policy("later", {"faults": {"taint": {"effect": "NoSchedule"}}, "health": {"holdDownSeconds": 77}})
    told = world.until(
        "the policy says so",
        lambda: (c := world.condition("devicepolicy", "later", "Accepted")).get("status") == "False" and c,
    )
    assert told["reason"] == "NotSupportedYet"
    assert "faults.taint" in told["message"]
    config = world.nodedevices(world.a)["spec"]["config"]
    assert config["health"]["holdDownSeconds"] == HOLD_DOWN_SECONDS, "the part that could be applied is not, either"


def test_an_impossible_policy_is_refused_with_its_field_named(world: World) -> None:
    with pytest.raises(KubectlError, match=r"replicas"):
        world.policy("impossible", sharing(1))


def test_the_policys_status_counts_its_nodes(world: World) -> None:
    world.policy("share", sharing(2), selector={"kubernetes.io/hostname": world.b})

    def nodes() -> dict[str, int]:
        found = world.kubectl.get("devicepolicy", "share") or {}
        counts: dict[str, int] = found.get("status", {}).get("nodes", {})
        return counts

    world.until("the policy is applied to its node", lambda: nodes().get("applied") == 1)
    assert nodes()["selected"] == 1, json.dumps(nodes())


def test_a_policy_labels_nodes_as_gpu_feature_discovery_does_and_its_end_takes_the_labels_off(world: World) -> None:
    def labels(node: str) -> dict[str, str]:
        found = world.node(node)["metadata"]["labels"]
        return {
            name: value for name, value in found.items() if name.startswith(("nvidia.com/gpu.", "nvidia.com/cuda."))
        }

    world.policy("labels", {"labels": {"featureDiscovery": True}})
    for node, product, count in ((world.a, "NVIDIA-H100-80GB-HBM3", "8"), (world.b, "NVIDIA-L4", "4")):
        wanted = {"nvidia.com/gpu.product": product, "nvidia.com/gpu.count": count}
        world.until(f"{node} has {wanted}", lambda n=node, w=wanted: w.items() <= labels(n).items())  # type: ignore[misc]
    world.drop_policy("labels")
    for node in (world.a, world.b):
        world.until(f"{node} has none of them", lambda n=node: not labels(n))  # type: ignore[misc]
