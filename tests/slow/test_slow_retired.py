"""A name that is no longer offered leaves nothing on the Node: the kubelet's real five minutes, our six."""

from __future__ import annotations

import pytest
from support import simulated
from support.cluster import GPU
from support.rig_cluster import RigCluster

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(700, method="signal")]

SHARED, RENAMED, SMALL = "nvidia.com/gpu.shared", "nvidia.com/l4", "nvidia.com/mig-1g.10gb"
SECONDS = 6 * 60 + 120  # the operator's six minutes, in which the kubelet's five pass; a busy machine


def names(rig: RigCluster, node: str) -> set[str]:
    """The vendor's resources that the Node shows, zeros too."""
    status = rig.node(node)["status"]
    return {each for each in {*status["capacity"], *status["allocatable"]} if each.startswith("nvidia.com/")}


def reported(rig: RigCluster, node: str) -> set[str]:
    return {each["name"] for each in rig.nodedevices(node)["status"].get("retiredResources", ())}


def test_names_that_sharing_renaming_and_mig_leave_behind_go_from_the_node(rig: RigCluster) -> None:
    rig.hardware(rig.a, simulated.cut_h100s(cut={7: [{"profile": "1g.10gb", "gi": 7, "start": 0}]}))
    rig.policy("mig", {"partitions": {"strategy": "mixed"}}, selector={"kubernetes.io/hostname": rig.a})
    rig.policy(
        "share",
        {"sharing": {"strategy": "timeSlicing", "resources": [{"name": GPU, "replicas": 2}], "renameByDefault": True}},
        selector={"kubernetes.io/hostname": rig.b},
    )
    rig.until("node a offers a MIG device", lambda: rig.node_count(rig.a, SMALL) == 1)
    rig.until("node b offers shares", lambda: rig.node_count(rig.b, SHARED) == 8)

    rig.drop_policy("mig")
    rig.hardware(rig.a, simulated.h100s())
    rig.policy(
        "share",
        {"resources": {"devices": [{"match": {"productName": "*L4*"}, "name": RENAMED}]}},
        selector={"kubernetes.io/hostname": rig.b},
    )
    rig.until("node a offers GPUs alone", lambda: rig.node_count(rig.a, GPU) == 8)
    rig.until("node b offers L4s", lambda: rig.node_count(rig.b, RENAMED) == 4)
    left = {rig.a: {SMALL}, rig.b: {GPU, SHARED}}
    for node, retired in left.items():
        rig.until(f"{node} names what it retired", lambda n=node, r=retired: reported(rig, n) == r)  # type: ignore[misc]
        assert retired <= names(rig, node), "the kubelet keeps them for a while"

    for node, kept in ((rig.a, {GPU}), (rig.b, {RENAMED})):
        rig.until(f"{node} shows what is offered and nothing else", lambda n=node, k=kept: names(rig, n) == k, SECONDS)  # type: ignore[misc]
    rig.never("they come back", lambda: names(rig, rig.a) != {GPU} or names(rig, rig.b) != {RENAMED}, 20)
