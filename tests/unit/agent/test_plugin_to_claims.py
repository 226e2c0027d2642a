"""A node that went from the device plugin API to DRA, and what its kubelet still has of the time before."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from nodedevices_plugin.model import Api, Holder, Offer
from nodedevices_plugin.vendors.cdi import CdiEnvironment
from support.facts import START, gpu, gpu_id
from support.stepped_node import NOBODY, Node

GPU = "nvidia.com/gpu"
INJECTION: dict[str, Any] = {"injection": {"deviceListStrategies": ["cdi-cri"]}}
BY_DRA = INJECTION | {"serving": {"api": "DRA"}}


def served_by_plugin(node: Node) -> list[tuple[str, int]]:
    return [(resource.name, len(resource.ids)) for resource in node.plan.by(Api.DEVICE_PLUGIN).resources]


def test_a_name_whose_pod_has_ended_is_registered_again_while_the_kubelets_checkpoint_names_it() -> None:
    """A kubelet that restarts reads what it wrote before the pod had ended, and writes it anew at a plugin's list."""
    node = Node(gpu(0), gpu(1)).given(cdi={"nvidia": CdiEnvironment(toolkit_libraries=True)}).now(INJECTION)
    pod = Holder(namespace="ml", pod="old", container="c", resource=GPU, ids=(gpu_id(0),), since=START)
    node.now(BY_DRA, pod)
    assert served_by_plugin(node) == [(GPU, 0)], "or the pod's container could not start again"
    node.now(BY_DRA)
    assert served_by_plugin(node) == []
    stale = replace(NOBODY, possible=(Offer(resource=GPU, ids=(gpu_id(0),)),), taken=node.clock + 1)
    node.given(holdings=stale).line()
    assert served_by_plugin(node) == [(GPU, 0)]
    [by_dra] = node.plan.by(Api.DRA).resources
    assert [entry.device_id for entry in by_dra.ids if entry.blocked] == [gpu_id(0)]
    assert node.world.waits_for_holders, "so that the kubelet is made to write"
    node.now(BY_DRA)
    assert (served_by_plugin(node), node.config) == ([], "Applied")
