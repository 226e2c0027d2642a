"""Devices of a vendor that the agent does not come with, and of one that nobody knows, in the whole agent: from the
probe's line to the container and to NodeDevices."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from nodedevices_plugin.vendors.registry import VENDORS
from support.acme import Acme
from support.kubelet import StandInKubelet
from support.running_agent import RunningAgent, simulated

DEVICES = """
devices:
- {index: 0, model: l4}
- {index: 1, id: ACME-1, type: fpga, vendor: acme, deviceNodes: [/dev/acme1]}
- {index: 2, id: NIC-2, type: dpu, vendor: mellanox, deviceNodes: [/dev/infiniband/uverbs2]}
"""
CONFIG = {"resources": {"devices": [{"match": {"type": "dpu"}, "name": "example.com/nic"}]}}


@pytest.fixture
async def node(tmp_path: Path, kubelet: StandInKubelet) -> AsyncIterator[RunningAgent]:
    vendors, flags = VENDORS.with_(Acme()), simulated(tmp_path, DEVICES)
    async with RunningAgent(tmp_path, kubelet, *flags, config=CONFIG, vendors=vendors).running() as node:
        yield node


def names_and_holders(node: RunningAgent) -> dict[str, list[str]]:
    return {name: [holder["pod"] for holder in each.get("holders", ())] for name, each in node.devices.items()}


async def test_an_fpga_and_a_dpu_go_from_the_probes_line_to_containers_and_to_nodedevices(
    node: RunningAgent, kubelet: StandInKubelet
) -> None:
    offered = ("acme.com/fpga", "example.com/nic", "nvidia.com/gpu")
    await kubelet.until(lambda: [kubelet.allocatable(each) for each in offered] == [1, 1, 1])
    fpga = await kubelet.allocate("acme.com/fpga", 1, pod="synth", namespace="ml")
    assert (list(fpga.ids), dict(fpga.answer.envs)) == (["ACME-1"], {"ACME_FPGAS": "ACME-1"})
    assert [each.host_path for each in fpga.answer.devices] == ["/dev/acme1"]
    nic = await kubelet.allocate("example.com/nic", 1, pod="train", namespace="ml")
    assert dict(nic.answer.envs) == {}
    assert [each.host_path for each in nic.answer.devices] == ["/dev/infiniband/uverbs2"]
    held = {"fpga-1": ["synth"], "gpu-0": [], "dpu-2": ["train"]}
    await kubelet.until(lambda: names_and_holders(node) == held)
