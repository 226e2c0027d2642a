"""The real operator and the real kube-apiserver: labels on the Node come and go with the policy, and others' stay."""

from __future__ import annotations

from typing import Any

import pytest
from support.fleet import FleetNode, owners, policy
from support.kubectl import Kubectl, action, wait_until
from support.operatorprocess import OperatorProcess

MANAGER = "nodedevices-operator-labels"
PRODUCT, COUNT = "nvidia.com/gpu.product", "nvidia.com/gpu.count"
DRIVER = "nvidia.com/cuda.driver-version.full"
ON = {"featureDiscovery": True}


@pytest.fixture
def node(operator: OperatorProcess, kubectl: Kubectl) -> FleetNode:
    """Two H100, and labels of others."""
    made = FleetNode(
        kubectl,
        "n1",
        attributes={
            "vendor": "nvidia",
            "productName": "NVIDIA H100 80GB HBM3",
            "extra": {"cudaComputeCapability": {"version": "9.0.0"}},
        },
        facts={
            "drivers": [{"name": "nvidia", "version": "570.148.08", "cudaVersion": "12.8"}],
            "machine": {"type": "DGXH100", "mode": "compute", "migStrategy": "none"},
        },
    )
    return made.create({"pool": "a", "nvidia.com/gpu.deploy.driver": "true"})


def labels(node: FleetNode) -> dict[str, str]:
    shown: dict[str, str] = node.node["metadata"].get("labels", {})
    return shown


def synced(node: FleetNode) -> dict[str, Any]:
    return action(node.object, "labels")


def test_labels_come_with_the_policy_follow_the_devices_and_go_with_it(
    node: FleetNode, kubectl: Kubectl, operator: OperatorProcess
) -> None:
    before = labels(node)
    kubectl.apply(policy("labels", labels={**ON, "extra": {"example.com/tier": "gold"}}))
    wait_until("labels", lambda: PRODUCT in labels(node))
    shown = labels(node)
    assert {key: shown[key] for key in (PRODUCT, COUNT, DRIVER, "example.com/tier")} == {
        PRODUCT: "NVIDIA-H100-80GB-HBM3",
        COUNT: "2",
        DRIVER: "570.148.08",
        "example.com/tier": "gold",
    }
    assert shown["nvidia.com/gfd.timestamp"].isdigit()
    wait_until("marked", lambda: synced(node).get("reason") == "InSync")
    node.facts["drivers"][0]["version"] = "580.65.06"
    node.report()
    wait_until("the new driver", lambda: labels(node)[DRIVER] == "580.65.06")
    kubectl.apply(policy("labels", labels={"extra": {"example.com/tier": "gold"}}))
    wait_until("only the extra label", lambda: labels(node) == before | {"example.com/tier": "gold"})
    kubectl.delete("dp", "labels")
    wait_until("none", lambda: labels(node) == before)
    wait_until("the action is gone", lambda: synced(node) == {})
    assert MANAGER not in owners(node.node)


def test_our_label_that_somebody_changes_is_theirs_from_then_on(node: FleetNode, kubectl: Kubectl) -> None:
    kubectl.apply(policy("labels", labels=ON))
    wait_until("marked", lambda: synced(node).get("reason") == "InSync")
    kubectl.run("label", "--overwrite", "node", "n1", f"{PRODUCT}=by-hand")
    wait_until("marked", lambda: synced(node).get("reason") == "Conflict")
    assert labels(node)[PRODUCT] == "by-hand"
    kubectl.run("label", "node", "n1", f"{PRODUCT}-")
    wait_until("back", lambda: labels(node).get(PRODUCT) == "NVIDIA-H100-80GB-HBM3")


def test_nodedevices_are_selected_by_their_nodes_labels(node: FleetNode, kubectl: Kubectl) -> None:
    """With what a person sets on the object left as it is, and taken back where the Node has it no more."""

    def selected(selector: str) -> list[str]:
        return [each["metadata"]["name"] for each in kubectl.json("get", "nd", "-l", selector)["items"]]

    wait_until("copied", lambda: selected("pool=a") == ["n1"])
    assert selected("nvidia.com/gpu.deploy.driver") == []
    kubectl.run("label", "--overwrite", "nd", "n1", "pool=mine")
    kubectl.run("label", "--overwrite", "node", "n1", "pool=b", "rack=7")
    wait_until("the new label", lambda: selected("rack=7") == ["n1"])
    assert selected("pool=mine") == ["n1"]
    kubectl.run("label", "node", "n1", "rack-")
    wait_until("taken back", lambda: selected("rack") == [])
    kubectl.run("label", "nd", "n1", "pool-")
    wait_until("the Node's again", lambda: selected("pool=b") == ["n1"])
