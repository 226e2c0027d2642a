"""A container with two resources whose answers set one variable: the kubelet keeps one, and its entry says so.

NVIDIA/k8s-device-plugin#728: one of three MIG devices is seen, and all three are booked.
"""

from __future__ import annotations

from typing import Any

from nodedevices_plugin.granting.conflicts import REASON
from nodedevices_plugin.model import Holder
from support.facts import START, gpu, gpu_id, mig_id, partition, xid
from support.stepped_node import Node, report_of

GPU, SMALL, LARGE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb"
CUT = gpu(0, mig_enabled=True, partitions=(partition(0, 0), partition(0, 1, profile="2g.20gb")))
MIXED: dict[str, Any] = {"partitions": {"strategy": "mixed"}}


def has(resource: str, *ids: str, container: str = "main", pod: str = "two") -> Holder:
    return Holder(namespace="ml", pod=pod, container=container, resource=resource, ids=ids, since=START)


BOTH = (has(SMALL, mig_id(0, 0)), has(LARGE, mig_id(0, 1)))


def said(node: Node) -> dict[tuple[str, str | None], str]:
    """By pod and resource, what its entries say of it alone."""
    return {
        (holder.pod, holder.resource): f"{holder.health.state} {holder.health.fault_domain} {holder.health.message}"
        for device in report_of(node.world, node.time).devices
        for holder in device.holders
        if holder.health is not None and holder.health.reason == REASON
    }


def injected(*strategies: str) -> dict[str, Any]:
    return MIXED | {"injection": {"deviceListStrategies": list(strategies)}}


def test_who_has_mig_devices_of_two_profiles_sees_those_of_one_and_it_is_said() -> None:
    node = Node(CUT, gpu(1)).now(MIXED, *BOTH, has(GPU, gpu_id(1), pod="other"))
    text = (
        f"Degraded Application {SMALL}, {LARGE} each set NVIDIA_VISIBLE_DEVICES, but the kubelet keeps only one "
        "value: the container may see the devices of only one resource; request only one of them in a container, or "
        "inject devices in another way (docs/injection.md)"
    )
    assert said(node) == {("two", SMALL): text, ("two", LARGE): text}


def test_something_is_said_only_where_one_well_container_does_not_see_all() -> None:
    node = Node(CUT, gpu(1)).now(MIXED, has(GPU, gpu_id(1)), has(SMALL, mig_id(0, 0)))
    assert sorted(said(node)) == [("two", GPU), ("two", SMALL)]
    assert said(Node(CUT).now(MIXED, BOTH[0], has(LARGE, mig_id(0, 1), container="side"))) == {}
    assert said(Node(CUT).now(injected("volume-mounts"), *BOTH)) == {}
    node = Node(CUT).now(MIXED, *BOTH).line(xids=(xid(79),))
    assert (node.says()[:2], said(node)) == (("Unhealthy", "Xid79"), {})
