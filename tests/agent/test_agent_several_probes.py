"""Several probes in the whole agent: simulated GPUs of one that listens on a unix socket, a NIC and an FPGA that a
program in POSIX sh reports."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.kubelet import StandInKubelet
from support.running_agent import RunningAgent, replace_file

GPU = "nvidia.com/gpu"
RDMA, FPGA = "example.com/rdma", "example.com/fpga"
PROBE = Path(__file__).parent.parent / "support" / "probe.sh"
CONFIG = {
    "resources": {
        "devices": [
            {"match": {"type": "nic", "vendor": "mellanox"}, "name": RDMA},
            {"match": {"type": "fpga"}, "name": FPGA},
        ]
    }
}


class Node(RunningAgent):
    """Two simulated GPUs, and the shell's probe: both by flags, or by the file."""

    def __init__(self, folder: Path, kubelet: StandInKubelet, *more: str, by_file: bool = False, **agent: Any) -> None:
        self.file = folder / "config.yaml"
        self.shell = f"shell={PROBE} {folder}"
        probes = (f"--config-file={self.file}",) if by_file else ("--probe=simulated", f"--probe={self.shell}")
        super().__init__(folder, kubelet, "--simulated=l4 x 2", *probes, *more, **{"config": CONFIG, **agent})

    def use(self, *probes: str) -> None:
        replace_file(self.file, json.dumps({"version": "v1", "flags": {"probe": probes}}))

    def processes(self) -> int:
        """How many processes of the shell's probe there are."""
        return sum(f"{PROBE}\0{self.folder}".encode() in command for command in commands())

    def probes(self) -> list[str]:
        return [each["name"] for each in self.status.get("probes", ())]


def commands() -> Iterator[bytes]:
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield each.read_bytes()


@pytest.fixture
async def node(tmp_path: Path, kubelet: StandInKubelet) -> AsyncIterator[Node]:
    async with Node(tmp_path, kubelet).running() as node:
        yield node


async def test_a_nic_and_an_fpga_go_from_a_shell_programs_line_to_a_container_and_to_nodedevices(
    node: Node, kubelet: StandInKubelet
) -> None:
    await kubelet.until(lambda: [kubelet.allocatable(each) for each in (GPU, RDMA, FPGA)] == [2, 1, 1])
    granted = await kubelet.allocate(RDMA, 1, pod="mpi-0", namespace="ml")
    assert [each.host_path for each in granted.answer.devices] == ["/dev/infiniband/uverbs0"]
    assert not any("NVIDIA" in each for each in granted.answer.envs)
    granted = await kubelet.allocate(FPGA, 1, pod="synth-0", namespace="ml")
    assert [each.host_path for each in granted.answer.devices] == ["/dev/xclmgmt0"]
    await kubelet.until(lambda: node.devices["nic-0"].get("holders"))
    nic = node.devices["nic-0"]
    assert (nic["attributes"]["vendor"], nic["capacity"]) == ("mellanox", {"vfs": "1"})
    assert nic["attributes"]["extra"] == {
        "linkType": {"string": "InfiniBand"},
        "rdma": {"bool": True},
        "speedGbps": {"int": 400},
    }
    part = node.devices["nic-0-vf-0"]
    assert (part["parent"], part["profile"], part["type"], "attributes" in part) == ("nic-0", "vf", "nic", False)
    assert nic["holders"][0]["pod"] == "mpi-0"
    assert [(each["name"], each["state"], each["devices"]) for each in node.status["probes"]] == [
        ("simulated", "Ready", 2),
        ("shell", "Ready", 2),
    ]
    assert [each["name"] for each in node.status["drivers"]] == ["nvidia", "mlx5_core"]


async def test_the_file_says_which_probes_run_and_an_edit_takes_effect_while_pods_go_on(
    tmp_path: Path, kubelet: StandInKubelet
) -> None:
    node = Node(tmp_path, kubelet, by_file=True)
    node.use("simulated")
    async with node.running():
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 2)
        assert node.processes() == 0

        node.use("simulated", node.shell)
        await kubelet.until(lambda: [kubelet.allocatable(each) for each in (GPU, RDMA, FPGA)] == [2, 1, 1])
        await kubelet.allocate(RDMA, 1, pod="mpi-0", namespace="ml")
        await kubelet.until(lambda: node.processes() == 1)  # for a moment there is a fork of it, too

        node.use("simulated")
        await kubelet.until(lambda: [kubelet.allocatable(each) for each in (GPU, RDMA, FPGA)] == [2, 0, 0])
        await kubelet.until(lambda: node.processes() == 0)
        await kubelet.until(lambda: [each["name"] for each in node.status["probes"]] == ["simulated"])
        assert node.devices["nic-0"]["holders"][0]["pod"] == "mpi-0"
        assert "ProbeRemoved: " in node.condition("Ready")[1]
        assert node.condition("ConfigApplied")[0] == "Applied"

        node.use("simulated", node.shell)
        await kubelet.until(lambda: [kubelet.allocatable(each) for each in (GPU, RDMA, FPGA)] == [2, 1, 1])
    assert node.processes() == 0


async def test_auto_starts_what_the_machine_has_and_notices_what_came(tmp_path: Path, kubelet: StandInKubelet) -> None:
    hardware = {"amd": "a card"}
    node = Node(tmp_path, kubelet, by_file=True, hardware=hardware)
    node.use("auto", node.shell)
    async with node.running():
        await kubelet.until(lambda: node.probes() == ["amd", "shell"])
        node.use(node.shell)
        await kubelet.until(lambda: node.probes() == ["shell"])
        hardware["intel"] = "another"
        node.use("auto", node.shell)
        await kubelet.until(lambda: node.probes() == ["amd", "intel", "shell"])
        assert [kubelet.allocatable(each) for each in (RDMA, FPGA)] == [1, 1]
