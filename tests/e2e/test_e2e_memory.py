"""GPUs by memory on a real kubelet: three pods on two cards, and a fourth that fits in sum and on no card; the same
with shares of computing power."""

from __future__ import annotations

from collections import Counter

import pytest
from support import simulated
from support.bookings import physical
from support.cluster import NAMESPACE, Cluster
from support.memory_shares import MEMORY, by_memory, offered, refused, variables

pytestmark = [pytest.mark.e2e, pytest.mark.any_cluster]

MIB = simulated.L4_MIB
EACH = MIB // 1024  # shares of 1Gi


@pytest.fixture
def cards(cluster: Cluster) -> list[str]:
    """Two cards of node b by memory; the others stay whole."""
    by_memory(cluster, devices=["0", "1"])
    return offered(cluster, 2 * EACH)


def card(cluster: Cluster, pod: str) -> str:
    """The one card of which the pod has shares."""
    [found] = {physical(each) for each in cluster.held(cluster.b, pod)}
    return found


def test_pods_share_cards_by_memory_and_one_that_no_card_has_room_for_is_told_so(
    cluster: Cluster, cards: list[str]
) -> None:
    with cluster.nothing_twice(cluster.b):
        for name, size in (("first", 12), ("second", 12), ("third", EACH - 12)):
            cluster.pod(name, cluster.b, {MEMORY: size})
        assert card(cluster, "first") != card(cluster, "second"), "no card has 24"
        assert card(cluster, "third") in cards
        told = variables(cluster, "first")
        assert told == {
            "NVIDIA_VISIBLE_DEVICES": card(cluster, "first"),
            "NODEDEVICES_MEMORY_DEVICE": card(cluster, "first"),
            "NODEDEVICES_MEMORY_LIMIT_MIB": str(12 * 1024),
            "NODEDEVICES_MEMORY_TOTAL_MIB": str(MIB),
            "NODEDEVICES_MEMORY_FRACTION": f"0.{12 * 1024 * 10_000 // MIB}",
            "NODEDEVICES_MEMORY_UNITS": "12",
        }

        def shown() -> Counter[str]:
            devices = cluster.devices(cluster.b).values()
            return Counter({one["pod"]: one["shares"] for each in devices for one in each.get("holders", ())})

        cluster.until("NodeDevices has them", lambda: shown() == {"first": 12, "second": 12, "third": EACH - 12})
        left = EACH - 12
        cluster.kubectl.delete("pod", "third", namespace=NAMESPACE)
        cluster.until("its shares are free", lambda: set(shown()) == {"first", "second"})
        cluster.pod("fourth", cluster.b, {MEMORY: left + 1}, run=False)
        message = refused(cluster, "fourth")
        assert f"no device of this node has {left + 1} free shares of 1Gi" in message
        assert all(f"{each}: {left}" in message for each in cards)
