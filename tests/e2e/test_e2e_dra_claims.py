"""What a claim can say and what happens to a device under it, on a real kubelet and scheduler."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from nodedevices_common.confirming import CONFIRM
from support import simulated
from support.claims_on_rig import (
    NODES,
    attribute,
    claim,
    device_of,
    holders,
    nodes_seen,
    pod,
    published,
    refusals,
    results,
    served_by_dra,
    wanted,
)
from support.cluster import GPU, HEALTHY, NAMESPACE, Cluster
from support.driver_root import CONTROL, ROOT, installed_with_root
from support.fleet import stamp
from support.rig_cluster import RigCluster

pytestmark = [pytest.mark.e2e, pytest.mark.long]

# A kubelet forgets a resource whose plugin is away for five minutes, and then starts no container of its pods again
# (endpointStopGracePeriod, pkg/kubelet/cm/devicemanager).
FORGETS_SECONDS = 360
SOME = {"name": "some", "exactly": wanted()}
# Device nodes of the capabilities of GPU 3's instances, by /proc/driver/nvidia-caps/mig-minors.
CAPABILITIES = f"""
mkdir -p {ROOT}/dev/nvidia-caps && cd {ROOT}/dev/nvidia-caps
for minor in $(seq 406 540); do [ -e nvidia-cap$minor ] || mknod -m 666 nvidia-cap$minor c 1 3; done
"""


@pytest.fixture(scope="module")
def with_dra(installed: Cluster) -> Iterator[None]:
    with installed_with_root(installed, "cdi", "dra"):
        yield


@pytest.fixture
def dra(with_dra: None, rig: RigCluster) -> Iterator[RigCluster]:
    """Four L4s in slices."""
    with served_by_dra(rig):
        rig.until("all GPUs are in slices", lambda: len(published(rig)) == 4)
        yield rig


def nodes_of(rig: RigCluster, *devices: str) -> list[str]:
    """The device nodes that a container with these has."""
    shown = published(rig)
    return sorted((*CONTROL, *(f"nvidia{shown[device]['attributes']['minor']['int']}" for device in devices)))


def restart_container(rig: RigCluster, name: str) -> None:
    """The only container of a pod ends, and the kubelet starts it again."""

    def status() -> dict[str, Any]:
        [found] = rig.kubectl.object("pod", name, NAMESPACE)["status"]["containerStatuses"]
        return dict(found)

    before = status()
    own = before["containerID"].rpartition("/")[2]
    running = rig.node_clients[rig.b].call("containers", prefixes=[""])
    rig.shell(rig.b, f"kill -9 {min(each['pid'] for each in running if each['container'] == own)}")
    rig.until(f"the container of {name} was restarted", lambda: status()["restartCount"] > before["restartCount"])
    rig.running(name)


def taints(rig: RigCluster, device: str) -> list[tuple[str, str]]:
    return [(taint["key"], taint["effect"]) for taint in published(rig)[device].get("taints", ())]


def test_a_claim_by_alternatives_one_that_two_pods_share_and_one_of_an_init_container(dra: RigCluster) -> None:
    memory = 'device.capacity["nodedevices.io"].memory.compareTo(quantity("{}")) >= 0'
    alternatives = [
        {"name": "large", **wanted(memory.format("1000Gi"))},
        {"name": "small", **wanted(memory.format("1Gi"))},
    ]
    claim(dra, "first", {"name": "gpu", "firstAvailable": alternatives})
    claim(dra, "together", SOME)
    pod(dra, "one", "first", "together", init=("python3", "-c", NODES))
    pod(dra, "two", "together")
    assert list(results(dra, "first")) == ["gpu/small"]
    own, shared = device_of(dra, "first"), device_of(dra, "together")
    assert own != shared
    assert nodes_seen(dra, "one") == nodes_of(dra, own, shared)
    assert nodes_seen(dra, "two") == nodes_of(dra, shared)
    init = dra.kubectl.run("logs", "one", "-c", "init", "-n", NAMESPACE)
    assert json.loads(init) == nodes_of(dra, own, shared)
    dra.until("NodeDevices names both pods", lambda: holders(dra, shared) == {("one", "together"), ("two", "together")})
    dra.kubectl.delete("pod", "one", namespace=NAMESPACE)
    dra.until("the first is nobody's", lambda: not results(dra, "first") and not holders(dra, own))
    assert holders(dra, shared) == {("two", "together")}


def test_an_administrator_sees_the_device_of_another_and_no_claim_brings_parameters(dra: RigCluster) -> None:
    claim(dra, "worker", SOME)
    pod(dra, "worker", "worker")
    device = device_of(dra, "worker")
    label = "resource.kubernetes.io/admin-access"
    dra.kubectl.run("label", "namespace", NAMESPACE, f"{label}=true")
    try:
        uuid = f'{attribute("uuid")} == "{published(dra)[device]["attributes"]["uuid"]["string"]}"'
        claim(dra, "admin", {"name": "it", "exactly": wanted(uuid, adminAccess=True)})
        pod(dra, "admin", "admin")
    finally:
        dra.kubectl.run("label", "namespace", NAMESPACE, f"{label}-")
    assert device_of(dra, "admin") == device
    assert nodes_seen(dra, "admin") == nodes_of(dra, device)

    opaque = {"driver": "nodedevices.io", "parameters": {"sharing": "timeSlicing"}}
    claim(dra, "opaque", SOME, config=[{"requests": ["some"], "opaque": opaque}])
    pod(dra, "opaque", "opaque", run=False)
    why = "DevicePolicy sets"  # an earlier try may have been before the API server let this kubelet read the claim
    dra.until("the kubelet says why", lambda: any(why in refusal for refusal in refusals(dra, "opaque")))


def test_a_fault_keeps_new_claims_away_is_shown_on_the_pod_and_goes_with_the_recovery(dra: RigCluster) -> None:
    claim(dra, "victim", SOME)
    victim = pod(dra, "victim", "victim")
    bad = device_of(dra, "victim")
    index = next(each["index"] for each in dra.devices(dra.b).values() if each["name"] == bad)
    dra.hardware(dra.b, simulated.l4s(lost=index))
    dra.until("its slice has the taint", lambda: ("nodedevices.io/unhealthy", "NoSchedule") in taints(dra, bad))
    dra.marked("victim", "False")
    for name in ("second", "third", "fourth"):
        claim(dra, name, SOME)
        pod(dra, name, name)
    assert bad not in {device_of(dra, name) for name in ("second", "third", "fourth")}
    dra.kubectl.delete("pod", "victim", namespace=NAMESPACE)
    dra.until("nobody has it", lambda: not results(dra, "victim"))
    claim(dra, "late", SOME)
    pod(dra, "late", "late", run=False)
    dra.until("no device is left for it", lambda: dra.condition("pod", "late", "PodScheduled", NAMESPACE))
    assert dra.condition("pod", "late", "PodScheduled", NAMESPACE)["status"] == "False"
    dra.hardware(dra.b, simulated.l4s())
    dra.running("late")
    assert device_of(dra, "late") == bad
    assert not taints(dra, bad)
    assert dra.condition("pod", "late", HEALTHY, NAMESPACE).get("status") != "False"
    assert victim["metadata"]["uid"] not in {each["metadata"]["uid"] for each in dra.pods()}


def test_a_device_out_of_service_goes_to_those_who_tolerate_it_alone(dra: RigCluster) -> None:
    [(name, device)] = [(each["id"], each["name"]) for each in dra.devices(dra.b).values() if each["index"] == 2]
    dra.kubectl.patch("nodedevices", dra.b, {"spec": {"unschedulable": [{"id": name, "reason": "RMA 4711"}]}})
    try:
        dra.until("its slice says so", lambda: taints(dra, device) == [("nodedevices.io/unschedulable", "NoSchedule")])
        uuid = f'{attribute("uuid")} == "{name}"'
        claim(dra, "strict", {"name": "it", "exactly": wanted(uuid)})
        pod(dra, "strict", "strict", run=False)
        tolerations = [{"key": "nodedevices.io/unschedulable", "operator": "Exists"}]
        claim(dra, "tolerant", {"name": "it", "exactly": wanted(uuid, tolerations=tolerations)})
        pod(dra, "tolerant", "tolerant")
        assert device_of(dra, "tolerant") == device
        assert not results(dra, "strict")
    finally:
        dra.kubectl.patch("nodedevices", dra.b, {"spec": {"unschedulable": []}})
    dra.kubectl.delete("pod", "tolerant", namespace=NAMESPACE)
    dra.running("strict")
    assert device_of(dra, "strict") == device


def test_restarts_of_kubelet_agent_and_container_leave_each_pod_its_device(dra: RigCluster) -> None:
    claim(dra, "stays", SOME)
    stays = pod(dra, "stays", "stays")
    device = device_of(dra, "stays")
    slices = published(dra)
    dra.restart_kubelet(dra.b)
    dra.until("the slices are back", lambda: published(dra) == slices)
    claim(dra, "after", SOME)
    pod(dra, "after", "after")
    assert device_of(dra, "after") != device
    dra.alive(stays)

    restarts = dra.restarts(dra.b)
    dra.kill(dra.b, "nodedevices-agent")
    dra.until("its container was restarted", lambda: dra.restarts(dra.b) == restarts + 1)
    claim(dra, "again", SOME)
    pod(dra, "again", "again")
    assert len({device_of(dra, name) for name in ("stays", "after", "again")}) == 3
    dra.alive(stays)

    restart_container(dra, "stays")
    assert dra.until("it runs", lambda: nodes_seen(dra, "stays")) == nodes_of(dra, device)
    assert holders(dra, device) == {("stays", "stays")}
    assert published(dra) == slices


@pytest.fixture
def other_machine(with_dra: None, rig: RigCluster) -> Iterator[RigCluster]:
    """Node b may have other devices; afterwards a person says that they are removed."""
    own = set(rig.devices(rig.b))
    yield rig
    rig.settle()
    there = rig.devices(rig.b)
    gone = ",".join(f"{id_}=removed@{stamp()}" for id_ in sorted(there.keys() - own) if "parent" not in there[id_])
    rig.kubectl.patch("nodedevices", rig.b, {"metadata": {"annotations": {CONFIRM: gone}}})
    rig.until("the machine is as before", lambda: set(rig.devices(rig.b)) == own)


def test_a_mig_device_by_its_profile_and_a_gpu_beside_a_nic(other_machine: RigCluster) -> None:
    rig = other_machine
    parts = [{"profile": "1g.10gb", "gi": 7, "start": 0}, {"profile": "2g.20gb", "gi": 3, "start": 2}]
    machine = {
        "profile": "h100 x 4, connectx-7",
        "devices": [{"index": 3, "migEnabled": True, "mig": parts}],
    }
    rule = {"match": {"type": "nic"}, "name": "example.com/rdma"}
    rig.shell(rig.b, CAPABILITIES)
    rig.hardware(rig.b, yaml.safe_dump(machine))
    with served_by_dra(rig, partitions={"strategy": "mixed"}, resources={"devices": [rule]}):
        rig.until("all are in slices", lambda: len(published(rig)) == 6)
        profile = f'{attribute("profile")} == "2g.20gb"'
        claim(rig, "part", {"name": "it", "exactly": wanted(profile, class_name="mig-2g.20gb.nvidia.com")})
        pod(rig, "part", "part")
        given = published(rig)[device_of(rig, "part")]["attributes"]
        assert given["profile"]["string"] == "2g.20gb"
        assert "parent" in given

        near = {"requests": ["gpu", "nic"], "matchAttribute": "resource.kubernetes.io/pcieRoot"}
        nic = {"name": "nic", "exactly": wanted(class_name="rdma.example.com")}
        claim(rig, "beside", {"name": "gpu", "exactly": wanted()}, nic, constraints=[near])
        pod(rig, "beside", "beside")
        shown = published(rig)
        roots = {
            shown[device]["attributes"]["resource.kubernetes.io/pcieRoot"]["string"]
            for device in results(rig, "beside").values()
        }
        assert len(results(rig, "beside")) == 2
        assert len(roots) == 1


def test_six_minutes_after_a_switch_a_container_of_before_starts_again_and_a_claim_gets_a_device(
    with_dra: None, rig: RigCluster
) -> None:
    rig.pod("old", rig.b, {GPU: 1})
    held = rig.held(rig.b, "old")
    with served_by_dra(rig):
        rig.until("all others are in slices", lambda: len(published(rig)) == 3)
        time.sleep(FORGETS_SECONDS)
        restart_container(rig, "old")
        assert rig.held(rig.b, "old") == held
        claim(rig, "new", SOME)
        pod(rig, "new", "new")
        assert held.isdisjoint({published(rig)[device_of(rig, "new")]["attributes"]["uuid"]["string"]})
