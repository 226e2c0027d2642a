"""GPUs by memory on a real kubelet: three pods on two cards, a fourth that fits in sum and on no card, an agent that
restarts, and a unit that changes while pods hold shares."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from support.bookings import physical
from support.cluster import NAMESPACE, Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.any_cluster]

MEMORY = "nodedevices.io/gpu-memory"
MIB = 23034  # of a simulated L4
EACH = MIB // 1024  # shares of 1Gi


def by_memory(cluster: Cluster, unit: str) -> None:
    rule = {"name": "nvidia.com/gpu", "memoryUnit": unit, "devices": ["0", "1"]}
    sections = {"sharing": {"strategy": "memory", "resources": [rule]}}
    cluster.policy("memory", sections, selector={"kubernetes.io/hostname": cluster.b})


@pytest.fixture
def cards(cluster: Cluster) -> list[str]:
    """Two cards of node b by memory, the fullest first; the others stay whole."""
    by_memory(cluster, "1Gi")
    cluster.until("the kubelet has the shares", lambda: len(cluster.ids(cluster.b, MEMORY)) == 2 * EACH)
    cluster.until("the Node, too", lambda: cluster.node_count(cluster.b, MEMORY) == 2 * EACH)
    return sorted({physical(each) for each in cluster.ids(cluster.b, MEMORY)})


def card(cluster: Cluster, pod: str) -> str:
    """The one card of which the pod has shares."""
    [found] = {physical(each) for each in cluster.held(cluster.b, pod)}
    return found


def variables(cluster: Cluster, pod: str) -> dict[str, str]:
    lines = cluster.kubectl.exec(pod, "env", namespace=NAMESPACE).splitlines()
    return dict(line.split("=", 1) for line in lines if line.startswith(("NODEDEVICES_", "NVIDIA_VISIBLE")))


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

        def refused() -> dict[str, Any] | None:
            pod = cluster.kubectl.get("pod", "fourth", NAMESPACE) or {}
            status: dict[str, Any] = pod.get("status", {})
            return status if status.get("reason") == "UnexpectedAdmissionError" else None

        message = cluster.until("the kubelet refuses it", refused)["message"]
        assert f"no device of this node has {left + 1} free shares of 1Gi" in message
        assert all(f"{each}: {left}" in message for each in cards)


def test_another_unit_waits_for_the_card_that_is_held(cluster: Cluster, cards: list[str]) -> None:
    cluster.pod("holder", cluster.b, {MEMORY: 5})
    held = card(cluster, "holder")
    [other] = set(cards) - {held}
    half = {f"{other}::2Gi.{number}" for number in range(EACH // 2)}
    with cluster.nothing_twice(cluster.b):
        by_memory(cluster, "2Gi")
        cluster.until("the other card has the new unit", lambda: cluster.ids(cluster.b, MEMORY) == half)
        cluster.kubectl.delete("pod", "holder", namespace=NAMESPACE)
        whole = half | {f"{held}::2Gi.{number}" for number in range(EACH // 2)}
        cluster.until("both have", lambda: cluster.ids(cluster.b, MEMORY) == whole)
