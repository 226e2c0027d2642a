"""Other makers' devices on a real kubelet, by the probes that read real hardware: AMD and Intel GPUs.

What the kernel of a machine that has them all shows is a tree of files on node b, which the probes read with --root;
their device nodes are real ones, and containers open them. Each test has its own devices of that machine, and takes
back the faults that it makes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import character_devices, trees
from support.cluster import GPU, NAMESPACE, Cluster
from support.overlay import agent_patch, installed_with
from support.rig_cluster import RigCluster
from support.trees import Tree

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180, method="signal")]

PROBES = ("amd", "intel")
FOLDER = "hardware"  # below the folder that the demo's overlay mounts into the agent
AMD, INTEL = "amd.com/gpu", "gpu.intel.com/i915"


@dataclass(frozen=True)
class Machine:
    """Node b with the hardware of a tree."""

    rig: RigCluster
    tree: Tree
    nodes: tuple[str, ...]

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
                for part in (device, *device.get("partitions", ())):
                    if pod in [one["pod"] for one in part.get("holders", ())]:
                        return str(part["name"])
            return None

        found: str = self.rig.until(f"NodeDevices names the holder {pod}", look)
        return found


@pytest.fixture(scope="module")
def machine(installed: Cluster) -> Iterator[Machine]:
    if not isinstance(installed, RigCluster):
        pytest.skip("makes files and device nodes on a node: only on our own rig")
    installed.reset()
    root: Path = installed.rig.rig.layout.node(installed.b).folder / "nodedevices" / FOLDER
    trees.mi300x(root, gpus=1, compute="CPX", memory="NPS4")
    tree = trees.flex(root, gpus=1, functions=2, first_minor=8)
    nodes = tuple(sorted(f"/{each.relative_to(root)}" for each in (root / "dev").rglob("*") if each.is_file()))
    reads = f"--root /var/lib/nodedevices/{FOLDER} --interval-seconds 1"
    probes = ",".join(("simulated", *(f"{name}=nodedevices-probe {name} {reads}" for name in PROBES)))
    with (
        character_devices.made(installed, installed.b, *nodes),
        installed_with(installed, "host-dev", patches=[agent_patch(("NODEDEVICES_PROBE", probes))]),
    ):
        yield Machine(installed, tree, nodes)


def test_a_partition_of_an_mi300x_is_opened_by_its_pod_and_an_uncorrectable_error_marks_it(machine: Machine) -> None:
    rig, bus_id = machine.rig, trees.amd_bus_id(0)
    machine.offers(AMD, 8)
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
