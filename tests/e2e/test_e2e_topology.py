"""GPUs and NICs of one pod from one NUMA node, by the kubelet's topology manager and the hints of all kinds of devices.

The kubelet (cadvisor) reads which NUMA nodes there are below /sys/devices/system/node. In the mount namespace of node b
a folder with two of them is mounted there, and its kubelet gets `topologyManagerPolicy: single-numa-node`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import yaml
from nodedevices_common.confirming import CONFIRM
from support.cluster import GPU, NAMESPACE
from support.fleet import stamp
from support.rig_cluster import RigCluster

pytestmark = [pytest.mark.e2e, pytest.mark.long]

RDMA, FPGA = "example.com/rdma", "example.com/fpga"
NODES = "/sys/devices/system/node"
TWO_NODES = f"""
mkdir -p /run/numa && cd /run/numa
for number in 0 1; do
  mkdir -p node$number/hugepages
  ln -sfn /sys/devices/system/cpu/cpu$number node$number/cpu$number
  printf 'Node %d MemTotal: 4194304 kB\\n' $number >node$number/meminfo
done
echo 10 20 >node0/distance
echo 20 10 >node1/distance
mount --bind /run/numa {NODES}
"""
# GPUs 0 and 1 are on NUMA node 0, 2 and 3 on node 1, where the NIC is, too; the FPGA is on none.
MACHINE = {
    "profile": "l4 x 4, connectx-7, u250",
    "devices": [{"index": 4, "numaNode": 1}, {"index": 5, "numaNode": -1}],
}
COUNTS = {GPU: 4, RDMA: 1, FPGA: 1}


@pytest.fixture
def two_numa_nodes(rig: RigCluster) -> Iterator[RigCluster]:
    """Node b has two NUMA nodes, a NIC on the second, and a kubelet that aligns devices."""
    file = next(each.folder for each in rig.rig.rig.layout.nodes if each.name == rig.b) / "kubelet.json"
    before = file.read_text()
    own = set(rig.devices(rig.b))
    rules = [{"match": {"type": "nic"}, "name": RDMA}, {"match": {"type": "fpga"}, "name": FPGA}]
    rig.policy("topology", {"resources": {"devices": rules}}, selector={"kubernetes.io/hostname": rig.b})
    rig.hardware(rig.b, yaml.safe_dump(MACHINE))
    rig.rig.stop_kubelet(rig.b)
    rig.shell(rig.b, TWO_NODES)
    file.write_text(json.dumps({**json.loads(before), "topologyManagerPolicy": "single-numa-node"}))
    rig.rig.start_kubelet(rig.b)
    try:
        yield rig
    finally:
        rig.rig.stop_kubelet(rig.b)
        rig.shell(rig.b, f"umount {NODES}")
        file.write_text(before)
        rig.rig.start_kubelet(rig.b)
        rig.settle()
        gone = ",".join(f"{each}=removed@{stamp()}" for each in sorted(set(rig.devices(rig.b)) - own))
        rig.kubectl.patch("nodedevices", rig.b, {"metadata": {"annotations": {CONFIRM: gone}}})
        rig.until("the machine is as before", lambda: set(rig.devices(rig.b)) == own)


def numa(rig: RigCluster, *ids: str) -> list[int]:
    devices = rig.devices(rig.b)
    return sorted(devices[each]["attributes"]["numaNode"] for each in ids if "numaNode" in devices[each]["attributes"])


def test_gpus_and_a_nic_of_one_pod_come_from_one_numa_node_and_a_pod_that_none_can_hold_is_refused(
    two_numa_nodes: RigCluster,
) -> None:
    rig = two_numa_nodes
    rig.until("the kubelet lists them", lambda: {each: len(rig.ids(rig.b, each)) for each in COUNTS} == COUNTS)
    rig.until("the Node has them", lambda: {each: rig.node_count(rig.b, each) for each in COUNTS} == COUNTS)
    gpus = rig.ids(rig.b)
    rig.until("NodeDevices has them", lambda: "nic-4" in {each["name"] for each in rig.devices(rig.b).values()})
    links = {each["name"]: each.get("links") for each in rig.devices(rig.b).values()}
    first = rig.device(rig.b, 0)["id"]
    assert links["nic-4"] == [{"kind": "PCIe", "to": first, "count": 1}], "the profile's NIC is on that GPU's root"
    rig.pod("aligned", rig.b, {GPU: 2, RDMA: 1, FPGA: 1})
    held = rig.held(rig.b, "aligned")
    assert (len(held), numa(rig, *held)) == (4, [1, 1, 1]), "the FPGA has no NUMA node, and stands in nobody's way"
    assert numa(rig, *(held & gpus)) == [1, 1]

    rig.pod("near", rig.b, {GPU: 2})
    assert numa(rig, *rig.held(rig.b, "near")) == [0, 0]
    for name in ("near", "aligned"):
        rig.kubectl.delete("pod", name, namespace=NAMESPACE)

    rig.pod("across", rig.b, {GPU: 3, RDMA: 1}, run=False)
    status = rig.until(
        "the kubelet refuses it",
        lambda: (found := (rig.kubectl.get("pod", "across", NAMESPACE) or {})["status"])["phase"] == "Failed" and found,
    )
    assert status["reason"] == "TopologyAffinityError"
