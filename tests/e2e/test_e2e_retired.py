"""A name that is no longer offered leaves nothing on the Node: the kubelet's real five minutes, our six.

The names are left behind before the other tests of this cluster and looked for after them, so that no worker waits.
What makes a kubelet or the operator count anew runs on the other clusters (tests/conftest.py).
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from support import simulated
from support.cluster import GPU, Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.long]

SHARED, RENAMED, SMALL = "nvidia.com/gpu.shared", "nvidia.com/l4", "nvidia.com/mig-1g.10gb"
SECONDS = 6 * 60 + 120  # the operator's six minutes, in which the kubelet's five pass; a busy machine

Left = Mapping[str, frozenset[str]]  # by node


def names(cluster: Cluster, node: str) -> set[str]:
    """The resources that the Node shows, zeros too."""
    status = cluster.node(node)["status"]
    return {*status["capacity"], *status["allocatable"]}


def retired(cluster: Cluster, node: str) -> set[str]:
    return {each["name"] for each in cluster.nodedevices(node)["status"].get("retiredResources", ())}


@pytest.fixture(scope="package")
def left(installed: Cluster) -> Left:
    """What sharing, renaming and MIG offered once, and the baseline does not."""
    installed.reset()
    a, b = installed.a, installed.b
    on_b = {"kubernetes.io/hostname": b}
    installed.hardware(a, simulated.cut_h100s(cut={7: [{"profile": "1g.10gb", "gi": 7, "start": 0}]}))
    installed.policy("mig", {"partitions": {"strategy": "mixed"}}, selector={"kubernetes.io/hostname": a})
    twice = {"strategy": "timeSlicing", "resources": [{"name": GPU, "replicas": 2}], "renameByDefault": True}
    installed.policy("share", {"sharing": twice}, selector=on_b)
    installed.until("node a offers a MIG device", lambda: installed.node_count(a, SMALL) == 1)
    installed.until("node b offers shares", lambda: installed.node_count(b, SHARED) == 8)
    rename = [{"match": {"productName": "*L4*"}, "name": RENAMED}]
    installed.policy("share", {"resources": {"devices": rename}}, selector=on_b)
    installed.until("node b offers L4s", lambda: installed.node_count(b, RENAMED) == 4)
    installed.until("node b shows no share", lambda: installed.node_count(b, SHARED) == 0)
    installed.until("and no GPU", lambda: installed.node_count(b, GPU) == 0)
    installed.reset()
    return {a: frozenset({SMALL}), b: frozenset({SHARED, RENAMED})}


@pytest.mark.first
def test_names_that_sharing_renaming_and_mig_leave_behind_are_reported(left: Left, installed: Cluster) -> None:
    for node, gone in left.items():
        installed.until(f"{node} names what it retired", lambda n=node, g=gone: g <= retired(installed, n))  # type: ignore[misc]
        assert gone <= names(installed, node), "the kubelet keeps them for a while"
    assert GPU not in retired(installed, installed.b), "what is offered again"


@pytest.mark.last
def test_names_that_are_no_longer_offered_go_from_the_node(left: Left, cluster: Cluster) -> None:
    for node, gone in left.items():
        cluster.until(f"{node} shows none of {set(gone)}", lambda n=node, g=gone: not g & names(cluster, n), SECONDS)  # type: ignore[misc]
    cluster.never("one comes back", lambda: [node for node in left if left[node] & names(cluster, node)], 6)
    assert [cluster.node_count(node, GPU) for node in left] == [8, 4], "what is offered stays"
