"""What the operator reads of an object: each field from its place, and of an object that says nothing what is safe."""

from __future__ import annotations

from array import array
from dataclasses import fields
from typing import Any

from nodedevices_common.confirming import CONFIRM
from nodedevices_operator.records import names
from nodedevices_operator.records.kinds import node_devices_record, node_record, policy_record, rejected_pod
from nodedevices_operator.records.shared import UNKNOWN_PLATFORM
from support.there import there


def flat(record: object) -> dict[str, object]:
    return {each.name: getattr(record, each.name) for each in fields(record)}  # type: ignore[arg-type]


def said(record: object) -> dict[str, object]:
    """Its fields, but for those that say nothing."""
    return {
        name: value for name, value in flat(record).items() if value not in ("", array("q"), (), {}, frozenset(), None)
    }


# --- objects that say nothing ----------------------------------------------------------------------------------------
def test_an_object_without_a_status_reads_as_one_of_which_nothing_is_known() -> None:
    empty = node_devices_record({})
    assert said(empty) == {
        "generation": 0,
        "observed_generation": 0,
        "summary": empty.summary,
        "configuration": empty.configuration,
        "platform": UNKNOWN_PLATFORM,
        "probe_starting": False,
    }
    assert flat(empty.summary) == {"offered": None, "held": 0, "excluded": 0, "unschedulable": 0}
    assert said(empty.configuration) == {"files_alone": False}
    assert said(UNKNOWN_PLATFORM) == {}


def test_a_device_of_which_nothing_is_said_is_unknown_in_service_and_not_shared() -> None:
    [device] = node_devices_record({"status": {"devices": [{}]}}).devices
    assert said(device) == {
        "health": device.health,
        "parts": device.parts,
        "model": device.model,
        "unlisted": 0,
        "unschedulable": False,
        "index": 0,
        "excluded": False,
        "shares": 0,
    }
    assert said(device.health) == {"state": "Unknown"}
    assert said(device.model) == {"memory_mib": 0}
    [part] = device.parts
    assert said(part) == {"health": device.health}


def test_an_object_that_says_nothing_is_what_is_safe() -> None:
    [resource] = node_devices_record({"status": {"resources": [{}]}}).resources
    assert said(resource) == {"capacity": 0, "healthy": 0, "replicas": 0, "allocated": 0}
    assert resource.free is None
    node = node_record({})
    assert said(node) == {"ready": False, "xid_condition_owned": False, "cordoned": False}
    assert not node.marked
    policy = policy_record({})
    known = said(policy)
    assert known.pop("problem") == policy.problem
    assert (policy.generation, policy.priority, policy.dry_run, policy.refusal) == (0, 0, False, "Invalid")


# --- each field from its place ---------------------------------------------------------------------------------------
METADATA: dict[str, Any] = {
    "name": "n1",
    "uid": "u1",
    "generation": 3,
    "resourceVersion": "77",
    "labels": {"a": "b"},
    "annotations": {"nodedevices.io/confirm": "yes"},
    "ownerReferences": [{"kind": "Pod", "uid": "pod-uid"}, {"kind": "Node", "uid": "node-uid"}],
}
SPEC: dict[str, Any] = {
    "config": {"health": {"holdDownSeconds": 5}},
    "configName": "large",
    "configHash": "h1",
    "policies": [{"name": "p", "generation": 4, "priority": 5, "sections": ["health"]}],
    "change": {"time": "T1", "devices": 8, "policies": ["p"]},
    "unschedulable": [{"id": "GPU-1", "reason": "repair", "by": "ann", "since": "T2", "until": "T3"}],
}
STATUS: dict[str, Any] = {
    "nodeUID": "node-uid",
    "observedGeneration": 2,
    "appliedConfigHash": "h0",
    "summary": {"offered": 7, "held": 6, "excluded": 5, "unschedulable": 4},
    "configuration": {
        "refusals": [{"section": "sharing"}, {"section": "health"}],
        "unmatched": [{"section": "resources", "entry": "exclude[0] x", "message": "none"}],
    },
    "agent": {"bootID": "b1", "heartbeatTime": "T4"},
    "probes": [{"state": "Running"}, {"state": "Starting"}],
    "retiredResources": [{"name": "example.com/old", "since": "T5"}],
    "affectedPods": [
        {"namespace": "ml", "name": "t", "uid": "tu", "device": "GPU-1", "reason": "Xid79", "since": "T6"}
    ],
    "conditions": [{"type": "Ready", "status": "True", "reason": "R", "message": "M", "lastTransitionTime": "T7"}],
    "machine": {
        "type": "DGX",
        "mode": "compute",
        "clique": "c1",
        "vgpuVersion": "v1",
        "vgpuBranch": "b",
        "migStrategy": "mixed",
    },
    "drivers": [{"name": "nvidia", "version": "570.1", "cudaVersion": "12.8"}],
}


def test_every_field_of_a_nodes_object_is_read_from_its_place() -> None:
    found = node_devices_record({"metadata": METADATA, "spec": SPEC, "status": STATUS})
    assert {
        name: value
        for name, value in said(found).items()
        if isinstance(value, (str, int)) or name in {"labels", "config"}
    } == {
        "name": "n1",
        "uid": "u1",
        "generation": 3,
        "owner_uid": "node-uid",
        "labels": {"a": "b"},
        "node_uid": "node-uid",
        "config": {"health": {"holdDownSeconds": 5}},
        "config_name": "large",
        "config_hash": "h1",
        "confirm": "yes",
        "observed_generation": 2,
        "applied_hash": "h0",
        "probe_starting": True,
        "boot_id": "b1",
        "heartbeat": "T4",
        "resource_version": "77",
    }
    [policy], [entry], [gone], [affected], [shown] = (
        found.policies,
        found.out_of_service,
        found.retired,
        found.affected,
        found.conditions,
    )
    assert flat(policy) == {"name": "p", "generation": 4, "priority": 5, "sections": ("health",)}
    assert found.change is not None
    assert flat(found.change) == {"time": "T1", "devices": 8, "policies": ("p",)}
    assert said(entry) == {"id": "GPU-1", "reason": "repair", "by": "ann", "since": "T2", "until": "T3"}
    assert flat(found.summary) == {"offered": 7, "held": 6, "excluded": 5, "unschedulable": 4}
    assert (found.configuration.refused_section, found.configuration.files_alone) == ("sharing", False)
    [unmatched] = found.configuration.unmatched
    assert flat(unmatched) == {"section": "resources", "entry": "exclude[0] x", "text": "none"}
    assert flat(gone) == {"name": "example.com/old", "since": "T5"}
    assert flat(affected) == STATUS["affectedPods"][0]
    assert said(shown) == {"type": "Ready", "status": "True", "reason": "R", "message": "M", "since": "T7"}
    assert said(found.platform) == {
        "drivers": found.platform.drivers,
        "machine": "DGX",
        "mode": "compute",
        "clique": "c1",
        "vgpu_version": "v1",
        "vgpu_branch": "b",
        "mig_strategy": "mixed",
    }
    assert [flat(each) for each in found.platform.drivers] == [
        {"name": "nvidia", "version": "570.1", "cuda_version": "12.8"}
    ]


def test_every_field_of_a_device_is_read_from_its_place() -> None:
    health = {"state": "Unhealthy", "reason": "Xid79", "message": "m", "since": "T1", "recoveryAction": "Reset"}
    raw = {
        "id": "GPU-1",
        "name": "gpu-1",
        "type": "gpu",
        "index": 3,
        "capacity": {"memory": "80Gi", "multiprocessors": "132"},
        "attributes": {
            "vendor": "nvidia",
            "productName": "H100",
            "pcieRoot": "pci0",
            "extra": {"migEnabled": {"bool": True}, "cores": {"int": 7}},
        },
        "health": {**health, "faultDomain": "Hardware", "xids": [79]},
        "unschedulable": {"reason": "repair"},
        "excluded": "GPU-1",
        "holdersTruncated": 9,
        "shares": {"resource": "example.com/mem", "total": 80},
        "holders": [
            {
                "namespace": "ml",
                "pod": "t",
                "container": "main",
                "since": "T2",
                "resource": "example.com/mem",
                "claim": "c",
                "ids": ["i"],
            }
        ],
        "notices": [{"code": "X", "message": "n", "since": "T3", "time": "T4", "count": 2}],
    }
    [device] = node_devices_record({"status": {"devices": [raw]}}).devices
    assert said(device) == {
        "id": "GPU-1",
        "name": "gpu-1",
        "health": device.health,
        "parts": device.parts,
        "model": device.model,
        "unlisted": 9,
        "type": "gpu",
        "unschedulable": True,
        "index": 3,
        "excluded": True,
        "shares": 80,
        "shares_of": "example.com/mem",
    }
    assert (device.health.action, device.health.domain, device.health.xids) == ("Reset", "Hardware", (79,))
    assert (device.model.vendor, device.model.product, device.model.memory_mib) == ("nvidia", "H100", 81920)
    assert (device.model.attribute("migEnabled"), device.model.attribute("cores")) == (True, "7")
    assert (device.model.count("multiprocessors"), device.model.count("memory")) == (132, None)
    [[holder], [notice]] = device.parts[0].holders, device.parts[0].notices
    assert flat(holder) == {
        "namespace": "ml",
        "pod": "t",
        "container": "main",
        "since": "T2",
        "resource": "example.com/mem",
        "claim": "c",
        "ids": ("i",),
        "health": None,
    }
    assert flat(notice) == raw["notices"][0]  # type: ignore[index]


def test_a_rejected_pod_says_who_makes_another_one_and_since_when_it_is() -> None:
    controller = {"kind": "ReplicaSet", "name": "web", "controller": True}
    raw = {
        "metadata": {
            "namespace": "ml",
            "name": "w",
            "uid": "u",
            "creationTimestamp": "T1",
            "ownerReferences": [{"kind": "Job", "name": "other"}, controller],
        },
        "spec": {"nodeName": "n1"},
        "status": {"phase": "Failed", "reason": "UnexpectedAdmissionError"},
    }
    found = there(rejected_pod(raw))
    assert flat(found) == {
        "namespace": "ml",
        "name": "w",
        "uid": "u",
        "node": "n1",
        "owner": "ReplicaSet web",
        "since": "T1",
        "requests": (),
    }


# --- names at the API server -----------------------------------------------------------------------------------------
def test_every_path_is_one_of_the_api_server() -> None:
    assert [names.NODES, names.PODS] == ["/api/v1/nodes", "/api/v1/pods"]
    assert names.NODE_DEVICES == "/apis/nodedevices.io/v1alpha1/nodedevices"
    assert names.POLICIES == "/apis/nodedevices.io/v1alpha1/devicepolicies"
    assert f"{names.pod_path('ml', 't')}/eviction" == "/api/v1/namespaces/ml/pods/t/eviction"
    assert names.namespaced("ml", "events") == "/api/v1/namespaces/ml/events"
    assert names.namespaced("ml", "configmaps", "c") == "/api/v1/namespaces/ml/configmaps/c"
    assert (
        names.named(names.leases("ml"), names.LEASE_NAME)
        == "/apis/coordination.k8s.io/v1/namespaces/ml/leases/nodedevices-operator"
    )
    assert names.named(names.NODES, "a/../b") == "/api/v1/nodes/a%2F..%2Fb"


def test_field_managers_keep_their_names() -> None:
    """One that were called otherwise would leave behind what it has written under the old name."""
    managers = {each: value for each, value in vars(names).items() if str(value).startswith(names.MANAGER)}
    assert managers == {
        "MANAGER": "nodedevices-operator",
        "LEASE_NAME": "nodedevices-operator",
        "CONFIG": "nodedevices-operator-config",
        "STATUS": "nodedevices-operator-status",
        "CAPACITY": "nodedevices-operator-capacity",
        "NODE_CONDITION": "nodedevices-operator-node-condition",
        "XID_CONDITION": "nodedevices-operator-xid-condition",
        "LABELS": "nodedevices-operator-labels",
        "OBJECT_LABELS": "nodedevices-operator-object-labels",
        "POD_CONDITION": "nodedevices-operator-pod-condition",
        "POD_IDLE": "nodedevices-operator-pod-idle",
        "POLICY_STATUS": "nodedevices-operator-policy-status",
        "FLEET": "nodedevices-operator-fleet",
        "ELECTION": "nodedevices-operator-election",
        "CLUSTER_PROPERTIES": "nodedevices-operator-cluster-properties",
        "DEVICE_CLASS_MANAGER": "nodedevices-operator-device-classes",
    }


def test_what_people_write_on_objects_and_nodes_keeps_its_name() -> None:
    assert names.TAINT == "nodedevices.io/device-fault"
    assert CONFIRM == "nodedevices.io/confirm"
    assert names.OURS == "app.kubernetes.io/managed-by=nodedevices-operator"
