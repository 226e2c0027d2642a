"""A second probe beside the simulated GPUs, on a real kubelet: a NIC and an FPGA, reported by a script in POSIX sh.

It is installed as a user would: a ConfigMap with the script and the agent's configuration file, whose `flags.probe` has
one probe more, mounted into the agent's container. Which of them run on a node a policy says, too. The device nodes are
made by the test, with the numbers of /dev/null, in its own folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cluster import GPU, NAMESPACE, SYSTEM, Cluster
from support.overlay import SIMULATED_MOUNT, container_patch, installed_with, write
from support.rig_cluster import RigCluster

pytestmark = [pytest.mark.e2e, pytest.mark.long]

PROBE = Path(__file__).parent.parent / "support" / "probe.sh"
SCRIPTS = "/opt/probes"
SAYS = "/var/lib/nodedevices/shell"  # files in it change what the script says; the demo's overlay mounts what is above
RDMA, FPGA = "example.com/rdma", "example.com/fpga"
DEV = "/dev/nodedevices-e2e"  # the rig's nodes have the machine's /dev
NODES = (f"{DEV}/infiniband/uverbs0", f"{DEV}/xclmgmt0")
SIMULATED, SHELL = ("simulated", "Ready", 4), ("shell", "Ready", 2)
RULES = [
    {"match": {"type": "nic", "vendor": "mellanox"}, "name": RDMA},
    {"match": {"type": "fpga"}, "name": FPGA},
]


@pytest.fixture
def with_second_probe(rig: RigCluster) -> Iterator[RigCluster]:
    """Every agent's file lists the script beside its simulated GPUs; the device nodes are there on node b."""
    rig.shell(rig.b, f"rm -rf {DEV}")
    for node in NODES:
        rig.shell(rig.b, f"mkdir -p {Path(node).parent}; mknod -m 666 {node} c 1 3")
    flags = {"probe": ["simulated", f"shell={SCRIPTS}/{PROBE.name} {SAYS} {DEV}"]}
    scripts = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "probes", "namespace": SYSTEM},
        "data": {PROBE.name: PROBE.read_text(), "config.yaml": json.dumps({"version": "v1", "flags": flags})},
    }
    rig.kubectl.apply(scripts)
    volume = {"name": "scripts", "configMap": {"name": "probes", "defaultMode": 0o755}}
    by_file = (("NODEDEVICES_PROBE", ""), ("CONFIG_FILE", f"{SCRIPTS}/config.yaml"))
    agent = container_patch("nodedevices-agent", "agent", *by_file, volumes=[volume])
    container = agent["spec"]["template"]["spec"]["containers"][0]
    container["volumeMounts"] = [{"name": "scripts", "mountPath": SCRIPTS}, SIMULATED_MOUNT]
    try:
        with installed_with(rig, patches=[agent]):
            yield rig
    finally:
        rig.kubectl.delete("configmap", "probes", namespace=SYSTEM)
        rig.shell(rig.b, f"rm -rf {DEV}")


def probes(cluster: Cluster, node: str) -> list[tuple[str, str, int]]:
    status = cluster.nodedevices(node)["status"]
    return [(each["name"], each["state"], each["devices"]) for each in status["probes"]]


def named(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """Name -> device, as NodeDevices of node b shows it."""
    return {one["name"]: one for one in cluster.devices(cluster.b).values()}


def test_a_nic_and_an_fpga_go_from_a_scripts_line_to_containers_and_to_nodedevices(
    with_second_probe: RigCluster,
) -> None:
    rig = with_second_probe
    on_b = {"kubernetes.io/hostname": rig.b}
    rig.until("the file's probes run", lambda: [name for name, *_ in probes(rig, rig.a)] == ["simulated", "shell"])
    rig.policy("only-gpus", {"discovery": {"probes": ["simulated"]}}, selector=on_b)
    rig.until("a policy takes one of them away", lambda: probes(rig, rig.b) == [SIMULATED])
    rig.policy("probes", {"resources": {"devices": RULES}}, selector=on_b)
    rig.policy("both", {"discovery": {"probes": ["shell", "simulated"]}}, priority=1, selector=on_b)
    for resource in (RDMA, FPGA):
        rig.until(f"the Node has one {resource}", lambda name=resource: rig.node_count(rig.b, name) == 1)  # type: ignore[misc]
    pod = rig.pod("mpi", rig.b, {GPU: 1, RDMA: 1})
    rig.pod("synth", rig.b, {FPGA: 1})

    def inside(pod: str, script: str) -> str:
        return rig.kubectl.exec(pod, "sh", "-euc", script, namespace=NAMESPACE).strip()

    def reach(pod: str) -> list[str]:
        """The device nodes that its container has and can write to."""
        each = "if [ -c $node ]; then echo x >$node; echo $node; fi"
        return inside(pod, f"for node in {' '.join(NODES)}; do {each}; done").split()

    assert (reach("mpi"), reach("synth")) == ([NODES[0]], [NODES[1]])
    assert inside("synth", "echo ${NVIDIA_VISIBLE_DEVICES:-none}") == "none"
    (gpu,) = rig.visible("mpi")
    assert rig.held(rig.b, "mpi") == {gpu, "0000:3b:00.0"}

    def holders() -> dict[str, list[str]]:
        return {name: [one["pod"] for one in each.get("holders", ())] for name, each in named(rig).items()}

    expected: dict[str, list[str]] = {f"gpu-{index}": [] for index in range(4)}
    expected |= {rig.devices(rig.b)[gpu]["name"]: ["mpi"], "nic-0": ["mpi"], "fpga-0": ["synth"]}
    rig.until("NodeDevices names all the holders", lambda: holders() == expected)
    assert probes(rig, rig.b) == [SHELL, SIMULATED], "and another adds it, in its order"
    assert named(rig)["nic-0"]["attributes"]["extra"]["speedGbps"] == {"int": 400}

    write(rig, rig.b, f"{SAYS}/lost", "")
    assert rig.marked("synth", "False")["reason"] == "FallenOffBus"
    rig.until("the Node has no FPGA to give", lambda: rig.node_count(rig.b, FPGA) == 0)
    assert (rig.node_count(rig.b, GPU), rig.node_count(rig.b, RDMA)) == (4, 1), "another device's fault is not theirs"
    rig.alive(pod)
    rig.shell(rig.b, f"rm {SAYS}/lost")

    def well() -> bool:
        """A confirmation is acted on once, and counts for nothing before the probe has read the file's end."""
        rig.confirm_recovered(rig.b)
        return not [each for each in named(rig).values() if each["health"]["state"] == "Unhealthy"]

    rig.until("the FPGA is well again", well)
    rig.lost_it("synth")

    rig.drop_policy("both")
    rig.until("without its policy the probe is gone", lambda: probes(rig, rig.b) == [SIMULATED])
    rig.until("the Node has none to give", lambda: {rig.node_count(rig.b, one) for one in (RDMA, FPGA)} <= {0, None})
    assert holders() == expected, "what pods hold is listed"
    ready = rig.condition("nodedevices", rig.b, "Ready")
    assert (ready["status"], "ProbeRemoved: fpga-0, nic-0" in ready["message"]) == ("True", True)
    rig.alive(pod)
    rig.policy("both", {"discovery": {"probes": ["simulated", "no-such"]}}, priority=1, selector=on_b)
    applied = rig.until(
        "a name that the node does not have is refused",
        lambda: (one := rig.condition("nodedevices", rig.b, "ConfigApplied"))["reason"] == "ConfigInvalid" and one,
    )
    assert "discovery.probes: this node has no probe 'no-such'" in applied["message"]
    assert probes(rig, rig.b) == [SIMULATED]
