"""Server-side apply: agent, operator and people write the same object and never each other's fields."""

from __future__ import annotations

import copy
import json
import uuid
from typing import Any

import pytest
from nodedevices_api.base import to_dict
from nodedevices_api.errors import parse
from nodedevices_api.nodedevices import NodeDevices
from support.contract import FULL_NODE, condition, device, policy
from support.kubectl import Kubectl

AGENT, OPERATOR = "nodedevices-agent", "nodedevices-operator"
IDENTITY: dict[str, Any] = {"apiVersion": "nodedevices.io/v1alpha1", "kind": "NodeDevices", "metadata": {"name": "n1"}}


def apply(kubectl: Kubectl, manager: str, **parts: Any) -> None:
    """Apply the spec, or the status through its subresource."""
    kubectl.run(
        "apply",
        "--server-side",
        f"--field-manager={manager}",
        *(("--subresource=status",) if "status" in parts else ()),
        "-f",
        "-",
        stdin=json.dumps({**IDENTITY, **parts}),
    )


def node(kubectl: Kubectl) -> dict[str, Any]:
    found = kubectl.get("nd", "n1")
    assert found is not None
    return found


@pytest.fixture
def shared(kubectl: Kubectl) -> Kubectl:
    """An object that all three have written."""
    apply(kubectl, AGENT)
    apply(
        kubectl,
        AGENT,
        status={"devices": [device(0), device(1)], "conditions": [condition("Ready"), condition("HoldersKnown")]},
    )
    apply(kubectl, OPERATOR, spec={"config": {"health": {"holdDownSeconds": 5}}, "configHash": "ab"})
    apply(
        kubectl,
        OPERATOR,
        status={
            "conditions": [condition("Stale", "False")],
            "affectedPods": [{**FULL_NODE["status"]["affectedPods"][0], "uid": "u1"}],
        },
    )
    apply(kubectl, "person", spec={"unschedulable": [{"id": device(1)["id"], "reason": "RMA 4711"}]})
    return kubectl


def types(document: dict[str, Any]) -> set[str]:
    return {one["type"] for one in document["status"]["conditions"]}


def test_everyones_fields_stand_side_by_side(shared: Kubectl) -> None:
    kept = node(shared)
    assert types(kept) == {"Ready", "HoldersKnown", "Stale"}
    assert len(kept["status"]["devices"]) == 2
    assert kept["spec"]["config"] == {"health": {"holdDownSeconds": 5}}
    assert kept["spec"]["unschedulable"] == [{"id": device(1)["id"], "reason": "RMA 4711"}]


def test_a_device_left_out_of_the_agents_next_report_is_gone(shared: Kubectl) -> None:
    apply(shared, AGENT, status={"devices": [device(0)], "conditions": [condition("Ready")]})

    kept = node(shared)
    assert [one["id"] for one in kept["status"]["devices"]] == [device(0)["id"]]
    assert types(kept) == {"Ready", "Stale"}, "the agent's own condition went, the operator's stayed"
    assert kept["status"]["affectedPods"][0]["uid"] == "u1"


def test_the_operators_next_configuration_leaves_peoples_marks(shared: Kubectl) -> None:
    apply(shared, OPERATOR, spec={"config": {}})

    kept = node(shared)["spec"]
    assert kept["config"] == {}
    assert "configHash" not in kept
    assert kept["unschedulable"][0]["reason"] == "RMA 4711"


def test_a_person_takes_back_only_what_that_person_set(shared: Kubectl) -> None:
    apply(shared, "person", spec={})

    kept = node(shared)["spec"]
    assert "unschedulable" not in kept
    assert kept["configHash"] == "ab"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"config": {"health": {"holdDownSeconds": 5}}}, {"config": {}}),
        ({"unschedulable": [{"id": "GPU-1", "reason": "x"}]}, {"unschedulable": []}),
        ({"policies": [{"name": "a", "generation": 1, "priority": 0}]}, {}),
    ],
    ids=["configuration", "unschedulable", "spec"],
)
def test_what_is_emptied_by_apply_is_not_refused_as_null(
    kubectl: Kubectl, before: dict[str, Any], after: dict[str, Any]
) -> None:
    apply(kubectl, OPERATOR, spec=before)
    apply(kubectl, OPERATOR, spec=after)
    assert node(kubectl)["spec"] in (after, {})


def test_a_policy_emptied_by_apply_is_not_refused_as_null(kubectl: Kubectl) -> None:
    full = policy(
        nodeSelector={"matchLabels": {"pool": "gpu"}},
        health={"holdDownSeconds": 5},
        capacity=[{"name": "example.com/a", "perNode": 1}],
    )
    for document in (full, policy(health={}, capacity=[])):
        kubectl.run("apply", "--server-side", "-f", "-", stdin=json.dumps(document))

    kept = kubectl.object("dp", "example")["spec"]
    assert (kept["nodeSelector"], kept["health"], kept.get("capacity", [])) == ({}, {}, [])


def full_holder(number: int) -> dict[str, Any]:
    """A holder with a 40-character name."""
    return {
        "namespace": "machine-learning",
        "pod": f"llama-70b-pretraining-worker-{number:011d}",
        "container": "trainer",
        "resource": "nvidia.com/gpu",
        "since": "2026-11-21T07:02:11.123456Z",
    }


def full_partition(index: int, number: int) -> dict[str, Any]:
    return {
        "id": f"MIG-{uuid.UUID(int=100 * index + number)}",
        "profile": "1g.10gb",
        "name": f"gpu-{index}-mig-1g10gb-19-{number}",
        "type": "gpu",
        "index": number,
        "parent": f"gpu-{index}",
        "attributes": {"extra": {"gi": {"int": 7 + number}, "ci": {"int": 0}}},
        "health": {"state": "Healthy", "since": "2026-11-21T07:00:00Z"},
        "holders": [full_holder(100 * index + number)],
        "capacity": {
            "memory": "9856Mi",
            "multiprocessors": "16",
            "copyEngines": "1",
            "decoders": "1",
            "jpegEngines": "1",
        },
    }


def full_device(index: int, partitions: int) -> list[dict[str, Any]]:
    """A device as a real node reports it: full attributes, NVLinks, a holder of it or of each partition."""
    whole = device(
        index,
        id=f"GPU-{uuid.UUID(int=index)}",
        attributes={
            "vendor": "nvidia",
            "productName": "NVIDIA H100 80GB HBM3",
            "brand": "Nvidia",
            "architecture": "Hopper",
            "pciBusID": f"0000:{index:02x}:00.0",
            "pcieRoot": f"pci0000:{index:02x}",
            "numaNode": index // 4,
            "minor": index,
            "extra": {
                "cudaComputeCapability": {"version": "9.0.0"},
                "migCapable": {"bool": True},
                "migEnabled": {"bool": partitions > 0},
            },
        },
        probe="nvml",
        capacity={"memory": "81559Mi"},
        links=[{"kind": "NVLink", "to": "switch", "count": 18}],
        **({} if partitions else {"holders": [full_holder(index)]}),
    )
    return [whole, *(full_partition(index, number) for number in range(partitions))]


@pytest.mark.parametrize(
    ("gpus", "partitions", "limit"),
    [(8, 0, 10_600), (8, 7, 43_100), (16, 7, 81_800)],
    ids=["8 GPUs", "8 x 7 MIG", "16 x 7 MIG"],
)
def test_an_object_stays_small(kubectl: Kubectl, gpus: int, partitions: int, limit: int) -> None:
    """With managedFields, as every watcher receives it; every part held by a pod with a name of 40 characters."""
    status = copy.deepcopy(FULL_NODE["status"])
    status["devices"] = [entry for index in range(gpus) for entry in full_device(index, partitions)]
    del (
        status["affectedPods"],
        status["actions"],
        status["retiredResources"],
        status["machine"]["vgpuVersion"],
        status["machine"]["vgpuBranch"],
    )  # none of these on most nodes
    del status["drivers"][1:], status["probes"][1:], status["resources"][1:]
    status["configuration"] = {"sources": ["policy", "flags", "file"]}
    status["conditions"] = [
        {**condition(name), "message": "8 devices are offered to the kubelet"}
        for name in ("Ready", "DevicesHealthy", "ConfigApplied", "HoldersKnown", "AllocatedOnce")
    ]
    written = to_dict(parse(NodeDevices, {**IDENTITY, "status": status}).status)
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": str(uuid.UUID(int=1))}
    apply(kubectl, AGENT, metadata={"name": "n1", "ownerReferences": [owner]})
    apply(kubectl, AGENT, status=written)
    apply(
        kubectl,
        OPERATOR,
        spec={
            "config": {
                "sharing": {"strategy": "timeSlicing", "resources": [{"name": "nvidia.com/gpu", "replicas": 4}]},
                "health": {"holdDownSeconds": 30},
            },
            "configHash": "9f2c1d7e0a4b5c6d",
            "policies": [{"name": "h100", "generation": 2, "priority": 100, "sections": ["sharing", "health"]}],
        },
    )
    apply(
        kubectl,
        OPERATOR,
        status={"conditions": [condition(name) for name in ("PolicyResolved", "ActionsSynced", "Stale")]},
    )

    kept = node(kubectl)
    size = len(json.dumps(kept, separators=(",", ":")))
    managed = len(json.dumps(kept["metadata"]["managedFields"], separators=(",", ":")))
    assert len(kept["status"]["devices"]) == gpus * (1 + partitions)
    assert size <= limit, f"{size} bytes, of which managedFields {managed}"
