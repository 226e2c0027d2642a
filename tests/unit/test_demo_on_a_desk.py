"""`make demo-on`: simulated GPUs go into clusters of kind, k3d and minikube alone, and images come as archives."""

from __future__ import annotations

from typing import Any

import pytest
from support import desk
from support.cases import cases
from support.desk import Desk
from support.kubectl import NotReached

Json = dict[str, Any]
KIND, K3D, MINIKUBE = (desk.named(tool) for tool in ("kind", "k3d", "minikube"))


def node(name: str, provider: str = "", *, labels: Json | None = None, offers: Json | None = None) -> Json:
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"providerID": provider} if provider else {},
        "status": {"allocatable": {"cpu": "4", **(offers or {})}},
    }


def test_a_tools_name_means_its_default_cluster_and_a_contexts_name_that_one() -> None:
    assert Desk("kind", "kind", "kind-kind") == KIND
    assert Desk("k3d", "k3s-default", "k3d-k3s-default") == K3D
    assert Desk("minikube", "minikube", "minikube") == MINIKUBE
    assert desk.named("kind-dev") == Desk("kind", "dev", "kind-dev")
    assert desk.named("k3d-two-nodes") == Desk("k3d", "two-nodes", "k3d-two-nodes")


@cases("text", "", "prod", "kind-", "my-kind-cluster", "gke_kind-1", "minikube-2", "docker-desktop")
def test_a_context_of_any_other_name_is_refused_with_what_to_give(text: str) -> None:
    with pytest.raises(NotReached, match="give kind, kind-NAME, k3d, k3d-NAME or minikube"):
        desk.named(text)


def test_nodes_with_the_tools_own_mark_are_its_cluster() -> None:
    assert not KIND.foreign([node("kind-worker", "kind://docker/kind/kind-worker")])
    assert not KIND.foreign([node("kind-worker", "kind://podman/kind/kind-worker")])
    assert not K3D.foreign([node("k3d-k3s-default-agent-0", "k3s://k3d-k3s-default-agent-0")])
    first = node("minikube", labels={"minikube.k8s.io/name": "minikube"})
    assert not MINIKUBE.foreign([first, node("minikube-m02")])


@cases(
    ("cluster", "nodes"),
    (KIND, [node("kind-worker", "kind://docker/kind/kind-worker"), node("gpu-1", "aws:///eu-1a/i-0abc")]),
    (KIND, [node("gpu-1")]),
    (KIND, [node("gpu-1", "kind://docker/other/gpu-1")]),
    (K3D, [node("gpu-1", "k3s://gpu-1")]),
    (K3D, [node("k3d-gpu-1")]),
    (MINIKUBE, [node("minikube"), node("minikube-m02")]),
    (MINIKUBE, [node("minikube", labels={"minikube.k8s.io/name": "minikube"}), node("gpu-1")]),
)
def test_a_node_without_it_is_named_whatever_the_context_is_called(cluster: Desk, nodes: list[Json]) -> None:
    assert cluster.foreign(nodes)


@cases("resource", "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "amd.com/gpu", "gpu.intel.com/i915")
def test_a_gpu_that_is_offered_already_is_seen(resource: str) -> None:
    assert desk.gpus([node("a"), node("b", offers={resource: "2"})]) == f"b has 2 {resource}"
    assert desk.gpus([node("a"), node("b", offers={resource: "0", "example.com/nic": "1"})]) == ""
