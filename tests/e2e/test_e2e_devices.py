"""Other makers' devices on a real kubelet, by the probes that read real hardware: GPUs, network cards and FPGAs;
and devices that exist by configuration: nodes of /dev, and a pool elsewhere.

What the kernel of a machine that has them all shows is a tree of files on node b, which the probes read with --root;
their device nodes are real ones, and containers open them. Each test has its own devices of that machine, and takes
back the faults that it makes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import character_devices, configured, fpga_trees, nic_trees, trees
from support.cluster import GPU, NAMESPACE, SYSTEM, Cluster
from support.configured import FUSE, KVM, MOST_FUSE, MOST_POOL, POOL, PORT, PORTS, PRESETS, TUN
from support.fpga_trees import U250_SHELL, U250_TIMESTAMP
from support.nic_trees import CONNECTX_7, E810, MELLANOX, Nics
from support.overlay import SIMULATED_MOUNT, agent_patch, installed_with
from support.rig_cluster import RigCluster
from support.trees import Tree

pytestmark = [pytest.mark.e2e, pytest.mark.long]

PROBES = ("amd", "intel", "nic", "fpga")
FOLDER = "hardware"  # below the folder that the demo's overlay mounts into the agent
AMD, INTEL, FPGA = "amd.com/gpu", "gpu.intel.com/i915", f"amd.com/{U250_SHELL}-{U250_TIMESTAMP}"
HCA, VF = "rdma/hca", "intel.com/vf"
HCA_PORT, VF_PORT = "ens81f0np0", "ens97f0"  # interfaces of the two cards
INTEGRITY_ERRORS = "counters/local_link_integrity_errors"  # of a port
CARD = 12  # of the FPGA tree: render node 140
# As Mellanox' and the SR-IOV device plugins have them.
RDMA_FILE = {"configList": [{"resourceName": "hca", "rdmaHcaMax": 2, "selectors": {"vendors": ["15b3"]}}]}
SRIOV_FILE = {"resourceList": [{"resourceName": "vf", "selectors": [{"vendors": ["8086"], "drivers": ["iavf"]}]}]}


@dataclass(frozen=True)
class Machine:
    """Node b with the hardware of a tree."""

    rig: RigCluster
    tree: Tree
    nodes: tuple[str, ...]
    controller: configured.Controller

    def file(self, path: str, content: str | int) -> None:
        self.tree.file(path, content)

    def offers(self, resource: str, count: int) -> None:
        self.rig.until(f"the Node has {count} {resource}", lambda: self.rig.node_count(self.rig.b, resource) == count)

    def pod(self, name: str, resource: str) -> str:
        """The id that a new pod holds."""
        self.rig.pod(name, self.rig.b, {resource: 1})
        (held,) = self.rig.held(self.rig.b, name)
        return held

    def opened(self, pod: str) -> set[str]:
        """The device nodes of that machine which are in the pod's container, all of which it can write to."""
        each = "if [ -c $node ]; then echo x >$node; echo $node; fi"
        script = f"for node in {' '.join(self.nodes)}; do {each}; done"
        return set(self.rig.kubectl.exec(pod, "sh", "-euc", script, namespace=NAMESPACE).split())

    def named_as_holder(self, pod: str) -> str:
        """The name of the device or partition that NodeDevices says the pod holds."""

        def look() -> str | None:
            for device in self.rig.devices(self.rig.b).values():
                if any(holder["pod"] == pod for holder in device.get("holders", ())):
                    return str(device["name"])
            return None

        found: str = self.rig.until(f"NodeDevices names the holder {pod}", look)
        return found


@pytest.fixture(scope="module")
def machine(installed: Cluster) -> Iterator[Machine]:
    if not isinstance(installed, RigCluster):
        pytest.skip("makes files and device nodes on a node: only on our own rig")
    installed.reset()
    nodes_folders = {each.name: each.folder / "nodedevices" / FOLDER for each in installed.rig.rig.layout.nodes}
    for folder in nodes_folders.values():
        folder.mkdir()
    root = nodes_folders[installed.b]
    trees.mi300x(root, gpus=1, compute="CPX", memory="NPS4")
    trees.flex(root, gpus=1, functions=2, first_minor=8)
    fpga_trees.alveo(root, cards=1, first=CARD, qdma=True)
    nics(root)
    nodes = tuple(sorted(f"/{each.relative_to(root)}" for each in (root / "dev").rglob("*") if each.is_file()))
    inside = f"/var/lib/nodedevices/{FOLDER}"
    reads = f"--root {inside} --interval-seconds 1"
    probes = ",".join(
        (
            "simulated",
            "generic",
            "remote",
            *(f"{name}=nodedevices-probe {name} {reads}" for name in PROBES),
        )
    )
    agent = agent_patch(
        ("NODEDEVICES_PROBE", probes),
    )
    # These programs name a root of their own, so that they run in the agent's container, and need there what they read.
    devices = {"name": "host-dev", "mountPath": "/driver-root/dev", "readOnly": True}
    agent["spec"]["template"]["spec"]["containers"][0]["volumeMounts"] = [SIMULATED_MOUNT, devices]
    with (
        character_devices.made(installed, installed.b, *nodes, *configured.nodes_to_make()),
        configured.files(installed, installed.b, rdma=json.dumps(RDMA_FILE), sriov=json.dumps(SRIOV_FILE)),
        configured.running(installed) as controller,
        installed_with(installed, "all-hardware", "device-files", patches=[agent]),
    ):
        yield Machine(installed, Tree(root), nodes, controller)


def nics(root: Path) -> None:
    """A ConnectX-7, and an E810 with two virtual functions."""
    machine = Nics(root)
    card = machine.card("0000:51:00.0", vendor=MELLANOX, device=CONNECTX_7, driver="mlx5_core")
    machine.rdma("mlx5_0", card, counters={INTEGRITY_ERRORS: 0})
    machine.interface(HCA_PORT, card)
    card = machine.card("0000:61:00.0", vendor=nic_trees.INTEL, device=E810, driver="ice")
    machine.interface(VF_PORT, card)
    parts = machine.virtual_functions("0000:61:00.0", 2, vendor=nic_trees.INTEL, device="0x1889", driver="iavf")
    for index, part in enumerate(parts):
        machine.interface(f"{VF_PORT}v{index}", part)


def test_a_partition_of_an_mi300x_is_opened_by_its_pod_and_an_uncorrectable_error_marks_it(machine: Machine) -> None:
    rig, bus_id = machine.rig, trees.amd_bus_id(0)
    for resource, count in ((AMD, 8), (GPU, 4), (INTEL, 2)):
        machine.offers(resource, count)
    held = machine.pod("rocm", AMD)
    number = int(held.removeprefix(f"{bus_id}-xcp-"))
    assert machine.opened("rocm") == {"/dev/kfd", f"/dev/dri/card{number}", f"/dev/dri/renderD{128 + number}"}
    assert machine.named_as_holder("rocm") == f"gpu-0-cpxnps4-{number}"

    errors = f"sys/bus/pci/devices/{bus_id}/ras/umc_err_count"
    machine.file(errors, "ue: 1\nce: 3")
    assert rig.marked("rocm", "False")["reason"] == "EccUncorrectable"
    machine.offers(AMD, 0)
    assert (rig.node_count(rig.b, GPU), rig.node_count(rig.b, INTEL)) == (4, 2), "another maker's fault is not theirs"
    machine.file(errors, "ue: 0\nce: 3")
    rig.marked("rocm", "True")
    machine.offers(AMD, 8)


def test_a_function_of_an_intel_gpu_is_opened_by_its_pod_and_a_device_node_that_goes_marks_it(
    machine: Machine,
) -> None:
    rig = machine.rig
    machine.offers(INTEL, 2)
    minors = {trees.intel_bus_id(0, function): 8 + function for function in (1, 2)}
    assert rig.ids(rig.b, INTEL) == minors.keys(), "the physical function is not offered"
    minor = minors[machine.pod("xpu", INTEL)]
    own = {f"/dev/dri/card{minor}", f"/dev/dri/renderD{128 + minor}"}
    assert machine.opened("xpu") == own

    rig.shell(rig.b, f"rm /dev/dri/renderD{128 + minor}")
    assert rig.marked("xpu", "False")["reason"] == "DeviceNodeMissing"
    machine.offers(INTEL, 1)
    character_devices.make(rig, rig.b, f"/dev/dri/renderD{128 + minor}")
    rig.marked("xpu", "True")
    machine.offers(INTEL, 2)


def test_an_fpga_is_opened_by_its_pod_without_its_management_node_and_comes_back_after_a_reset(
    machine: Machine,
) -> None:
    rig, user = machine.rig, fpga_trees.fpga_bus_id(CARD)
    machine.offers(FPGA, 1)
    assert machine.pod("synth", FPGA) == user
    bus = int(user[5:7], 16)
    assert machine.opened("synth") == {f"/dev/dri/renderD{128 + CARD}", f"/dev/xfpga/dma.qdma.u{bus << 8 | 1}.0"}

    offline = f"sys/bus/pci/devices/{user}/dev_offline"  # as the driver says while `xbutil reset` runs
    machine.file(offline, 1)
    assert "being reset" in rig.marked("synth", "False")["message"]
    machine.offers(FPGA, 0)
    machine.file(offline, 0)
    rig.marked("synth", "True")
    machine.offers(FPGA, 1)


def test_pods_share_an_hca_as_mellanox_file_says_and_a_lost_link_or_counted_errors_mark_all(machine: Machine) -> None:
    rig = machine.rig
    machine.offers(HCA, 2)
    machine.offers(VF, 2)
    own = {f"/dev/infiniband/{name}" for name in ("rdma_cm", "uverbs0", "umad0", "issm0")}
    for pod in ("mpi-0", "mpi-1"):
        machine.pod(pod, HCA)
        assert machine.opened(pod) == own
        assert machine.named_as_holder(pod) == "nic-0"

    carrier, port = f"sys/class/net/{HCA_PORT}/carrier", "sys/class/infiniband/mlx5_0/ports/1"
    machine.file(carrier, 0)
    machine.tree.files(port, state="1: DOWN", phys_state="3: Disabled")
    assert {rig.marked(pod, "False")["reason"] for pod in ("mpi-0", "mpi-1")} == {"LinkDown"}
    machine.offers(HCA, 0)
    assert rig.node_count(rig.b, VF) == 2, "another card's link is not its"
    machine.file(carrier, 1)
    machine.tree.files(port, state="4: ACTIVE", phys_state="5: LinkUp")
    for pod in ("mpi-0", "mpi-1"):
        rig.marked(pod, "True")

    machine.file(f"{port}/{INTEGRITY_ERRORS}", 3)
    assert {rig.marked(pod, "False")["reason"] for pod in ("mpi-0", "mpi-1")} == {"LinkIntegrityErrors"}
    machine.offers(HCA, 0)
    machine.file(f"{port}/{INTEGRITY_ERRORS}", 0)  # as `perfquery -R` does
    for pod in ("mpi-0", "mpi-1"):
        rig.marked(pod, "True")
    machine.offers(HCA, 2)


def test_a_virtual_function_is_named_to_its_pod_and_has_the_link_of_its_card(machine: Machine) -> None:
    rig = machine.rig
    machine.offers(VF, 2)
    held = machine.pod("dpdk", VF)
    assert rig.environment("dpdk")["PCIDEVICE_INTEL_COM_VF"] == held
    assert machine.named_as_holder("dpdk") == f"vf-{int(held[-1]) - 1}"

    carrier = f"sys/class/net/{VF_PORT}/carrier"
    machine.file(carrier, 0)
    assert rig.marked("dpdk", "False")["reason"] == "LinkDown"
    machine.offers(VF, 0)
    machine.file(carrier, 1)
    rig.marked("dpdk", "True")
    machine.offers(VF, 2)


def test_probes_see_the_hosts_routes_where_functions_are_offered(machine: Machine) -> None:
    """The component all-hardware: by them the card with the node's default route is left out."""
    rig = machine.rig
    agent = rig.agent(rig.b)["metadata"]["name"]
    assert rig.kubectl.exec(agent, "cat", "/host-net/route", namespace=SYSTEM, container="probe").startswith("Iface")


def test_nodes_of_dev_are_opened_by_their_pods_one_by_two_at_once_and_one_that_goes_comes_back(
    machine: Machine,
) -> None:
    rig = machine.rig
    for resource, count in ((FUSE, MOST_FUSE), (TUN, 100), (KVM, 100), (PORT, len(PORTS))):
        machine.offers(resource, count)
    rig.pod("vm", rig.b, {FUSE: 1, TUN: 1, KVM: 1, PORT: 1})
    rig.pod("mounts", rig.b, {FUSE: 1})

    def inside(pod: str, script: str) -> str:
        return rig.kubectl.exec(pod, "sh", "-euc", script, namespace=NAMESPACE).strip()

    port = inside("vm", "echo $PORT")
    opened = inside(
        "vm", f"for node in {' '.join(PRESETS)} {port}; do exec 3<>$node; stat -c %t:%T $node; done"
    ).split()
    [own] = [each for each in PORTS if each.endswith(port.removeprefix("/dev/"))]
    assert opened == rig.shell(rig.b, f"stat -c %t:%T {' '.join(PRESETS)} {own}").split()
    assert (
        inside("mounts", "exec 3<>/dev/fuse; [ -e /dev/kvm ] || [ -e /dev/net/tun ] || echo /dev/fuse") == "/dev/fuse"
    )

    def holders() -> dict[str, set[str]]:
        every = rig.devices(rig.b)
        return {id_: {one["pod"] for one in every[id_].get("holders", ())} for id_ in ("dev-fuse", _generic_id(own))}

    expected = {"dev-fuse": {"vm", "mounts"}, _generic_id(own): {"vm"}}
    rig.until("NodeDevices names both holders of one device", lambda: holders() == expected)

    rig.shell(rig.b, f"rm {own}")
    assert rig.marked("vm", "False")["reason"] == "Missing"
    machine.offers(PORT, 1)
    assert rig.node_count(rig.b, FUSE) == MOST_FUSE
    configured.make_port(rig, rig.b, own)

    def well() -> bool:
        """A confirmation is acted on once, and counts for nothing before the probe has seen the node again."""
        rig.confirm_recovered(rig.b)
        return str(rig.devices(rig.b)[_generic_id(own)]["health"]["state"]) == "Healthy"

    rig.until("the device is well again", well)
    rig.marked("vm", "True")
    machine.offers(PORT, 2)


def test_a_pool_elsewhere_is_offered_by_count_while_its_controller_answers(machine: Machine) -> None:
    rig = machine.rig
    machine.offers(POOL, MOST_POOL)
    rig.pod("remote", rig.b, {POOL: 2})
    said = rig.kubectl.exec("remote", "sh", "-euc", "echo $ORION_VGPU $ORION_CONTROLLER", namespace=NAMESPACE)
    assert said.split() == ["2", machine.controller.address]
    machine.controller.stop()
    assert rig.marked("remote", "False")["reason"] == "ControllerUnreachable"
    machine.offers(POOL, 0)
    machine.controller.start()
    rig.marked("remote", "True")
    machine.offers(POOL, MOST_POOL)


def _generic_id(path: str) -> str:
    return path.removeprefix("/").replace("/", "-")
