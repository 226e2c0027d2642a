"""`kubectl nodedevices` beside a real API server: pages, a watch, a cordon, and what the CRD makes of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nodedevices_kube.errors import ApiError
from nodedevices_kubectl import objects
from nodedevices_kubectl.api import connect, find_context
from support.fleet import GPU, NAMESPACE, FleetNode, device_id, namespace, stamp
from support.kubectl import Kubectl

COMMAND = Path(sys.executable).with_name("kubectl-nodedevices")
SECONDS = 60


def run(kubectl: Kubectl, *args: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KUBECONFIG": str(kubectl.kubeconfig)}
    return subprocess.run(
        [COMMAND, *args], env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )


def heed_interrupts() -> None:
    """A shell starts what it runs in the background with SIGINT ignored, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def fleet(kubectl: Kubectl) -> list[FleetNode]:
    return [FleetNode(kubectl, f"n{number}").create() for number in range(3)]


def test_pages_of_a_real_api_server_make_one_list(kubectl: Kubectl, fleet: list[FleetNode]) -> None:
    api = connect(find_context(str(kubectl.kubeconfig), "", {}), {})
    api.page = 2
    counts: list[int] = []
    api.page_read = counts.append
    items, version = api.list_all(objects.NODE_DEVICES)
    assert counts == [2, 3]
    assert [item["metadata"]["name"] for item in items] == ["n0", "n1", "n2"]
    assert int(version) > 0
    assert api.names(objects.NODE_DEVICES) == ["n0", "n1", "n2"]
    with pytest.raises(ApiError) as missing:
        api.get(objects.at(objects.NODE_DEVICES, "n9"))
    assert missing.value.absent
    with pytest.raises(ApiError) as unknown:
        api.list_all("/apis/nodedevices.io/v1alpha1/nodetoys")
    assert unknown.value.no_such_kind
    api.close()


def test_a_cordon_is_what_the_crd_takes_and_a_second_writer_keeps_its_entry(
    kubectl: Kubectl, fleet: list[FleetNode]
) -> None:
    theirs = {"spec": {"unschedulable": [{"id": device_id(1), "reason": "theirs"}]}}
    kubectl.patch("nodedevices", "n0", theirs)
    done = run(kubectl, "cordon", "n0/0", "--reason", "RMA 4711", "--until", "8h")
    assert done.returncode == 0, done.stderr
    entries: list[dict[str, Any]] = fleet[0].object["spec"]["unschedulable"]
    assert [each["id"] for each in entries] == [device_id(1), device_id(0)]
    assert entries[1]["by"]  # whoever the kubeconfig says
    run(kubectl, "uncordon", f"n0/{device_id(0)}", f"n0/{device_id(1)}")
    assert "unschedulable" not in fleet[0].object["spec"]


def test_a_watch_prints_the_device_that_fails_and_ends_with_130(kubectl: Kubectl, fleet: list[FleetNode]) -> None:
    watching = subprocess.Popen(
        [COMMAND, "devices", "-w", "--no-headers", "--kubeconfig", str(kubectl.kubeconfig)],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,  # noqa: PLW1509 - no thread of ours holds a lock
    )
    with watching:
        try:
            assert watching.stdout is not None
            first = [watching.stdout.readline().split()[:2] for _ in range(6)]
            assert first[0][0] == "n0"
            fleet[1].fail(1)
            changed = watching.stdout.readline().split()
            assert changed[0] == "n1"
            assert "Xid79" in changed
            watching.send_signal(signal.SIGINT)
            assert watching.wait(SECONDS) == 130
        finally:
            watching.kill()


def test_a_policy_is_tried_by_the_api_server_and_nothing_is_written(
    kubectl: Kubectl, fleet: list[FleetNode], tmp_path: Path
) -> None:
    policy = {
        "apiVersion": "nodedevices.io/v1alpha1",
        "kind": "DevicePolicy",
        "metadata": {"name": "tried"},
        "spec": {"nodeSelector": {}, "health": {"holdDownSeconds": 5}},
    }
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(policy))
    for change in ("created", "changed"):
        done = run(kubectl, "policy", "dry-run", "-f", str(path))
        assert (done.returncode, f"policy tried would be {change}" in done.stderr) == (0, True), done.stderr
        assert "has not checked" not in done.stderr
        if change == "created":
            assert kubectl.get("devicepolicy", "tried") is None
            kubectl.create({**policy, "spec": {**policy["spec"], "priority": 7}})  # type: ignore[dict-item]
    assert (kubectl.get("devicepolicy", "tried") or {})["spec"]["priority"] == 7


DRIVER, CLASS = "nodedevices.io", "gpu.nvidia.com"
DRA = {"apiVersion": "resource.k8s.io/v1"}
EXACTLY = {"deviceClassName": CLASS, "allocationMode": "ExactCount", "count": 1}


def of_dra(name: str, kind: str, **spec: Any) -> dict[str, Any]:
    place = {} if kind in {"ResourceSlice", "DeviceClass"} else {"namespace": NAMESPACE}
    return {**DRA, "kind": kind, "metadata": {"name": name, **place}, "spec": spec}


def published(driver: str, node: str, *devices: str) -> dict[str, Any]:
    shown = [{"name": name, "attributes": {"resource": {"string": GPU}}} for name in devices]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return of_dra(f"{node}-{driver}", "ResourceSlice", driver=driver, nodeName=node, pool=pool, devices=shown)


def waiting(kubectl: Kubectl, name: str, **spec: Any) -> str:
    """A claim and a pod that waits with it; returns the pod's uid."""
    request = {"name": "gpu", "exactly": EXACTLY}
    kubectl.create(of_dra(name, "ResourceClaim", devices={"requests": [request]}))
    containers = [{"name": "main", "image": "x", "resources": {"claims": [{"name": "gpu"}]}}]
    claims = [{"name": "gpu", "resourceClaimName": name}]
    pod = {"resourceClaims": claims, "containers": containers, "automountServiceAccountToken": False, **spec}
    metadata = {"name": name, "namespace": NAMESPACE}
    made = kubectl.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod})
    uid: str = made["metadata"]["uid"]
    return uid


@pytest.fixture
def by_dra(kubectl: Kubectl) -> Iterator[Kubectl]:
    """A node that serves two GPUs by DRA, with the class, beside another driver's slice."""
    shown = {"name": GPU, "capacity": 2, "healthy": 2, "allocated": 0, "sharing": "none", "managedBy": "dra"}
    namespace(kubectl)
    FleetNode(
        kubectl, "n0", conditions={"SlicesPublished": ("True", "Published")}, facts={"resources": [shown]}
    ).create()
    selects = {"cel": {"expression": f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].resource == "x"'}}
    kubectl.apply(
        published(DRIVER, "n0", "gpu-0", "gpu-1"),
        published("gpu.example.com", "n0", "gpu-0"),
        of_dra(CLASS, "DeviceClass", selectors=[selects], extendedResourceName=GPU),
    )
    yield kubectl
    kubectl.run("delete", "resourceslices,deviceclasses", "--all")
    kubectl.run("delete", "pods,resourceclaims,events", "--all", "-n", NAMESPACE, "--force", "--grace-period=0")


def test_check_reads_slices_classes_and_claims_that_wait_as_a_real_api_server_has_them(by_dra: Kubectl) -> None:
    def links() -> dict[tuple[str, str], tuple[str, str]]:
        done = run(by_dra, "check", "--all", "-o", "json")
        assert done.stdout, done.stderr
        found = json.loads(done.stdout)["items"]
        return {(each["node"], each["link"]): (each["status"], each["detail"]) for each in found}

    well = links()
    assert well["n0", "slices"] == ("ok", f"published: {GPU}: 2")
    assert well["<cluster>", f"class {CLASS}"] == ("ok", f"for {GPU}")
    assert (well["<cluster>", "claims"][0], well["n0", "claims"][0]) == ("ok", "ok")

    waiting(by_dra, "giant")
    uid = waiting(by_dra, "big", nodeName="n0")
    result = {"request": "gpu", "driver": DRIVER, "pool": "n0", "device": "gpu-0"}
    by_dra.patch(
        "resourceclaim",
        "big",
        {"status": {"allocation": {"devices": {"results": [result]}}}},
        namespace=NAMESPACE,
        subresource="status",
    )
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "big.1", "namespace": NAMESPACE},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": NAMESPACE, "name": "big", "uid": uid},
        "reason": "FailedPrepareDynamicResources",
        "message": "the device gpu-0 is prepared for the claim ml/first",
        "type": "Warning",
        "lastTimestamp": stamp(),
    }
    by_dra.create(event)
    by_dra.create(
        {**event, "metadata": {"name": "big.2", "namespace": NAMESPACE}, "reason": "Scheduled", "message": ""}
    )
    found = links()
    said = f"{NAMESPACE}/giant: ResourceClaim giant is not allocated: not scheduled yet"
    assert found["<cluster>", "claims"] == ("warning", said)
    assert found["n0", "claims"] == ("broken", f"{NAMESPACE}/big: {event['message']}")
    by_dra.run("delete", "resourceslices", f"n0-{DRIVER}")
    assert links()["n0", "slices"][0] in {"pending", "broken"}
