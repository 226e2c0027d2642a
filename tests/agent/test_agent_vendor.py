"""Devices of a vendor that the agent does not come with, and of one that nobody knows, in the whole agent: from the
probe's line to the container and to NodeDevices."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from nodedevices_plugin.agent import Agent
from nodedevices_plugin.settings.flags import parse
from nodedevices_plugin.vendors import registry
from support.acme import Acme
from support.fakestore import FakeStore
from support.kubelet import StandInKubelet

NODE = "node-a"
DEVICES = """
devices:
- {index: 0, model: l4}
- {index: 1, id: ACME-1, type: fpga, vendor: acme, deviceNodes: [/dev/acme1]}
- {index: 2, id: NIC-2, type: dpu, vendor: mellanox, deviceNodes: [/dev/infiniband/uverbs2]}
"""
CONFIG = {"resources": {"devices": [{"match": {"type": "dpu"}, "name": "example.com/nic"}]}}


@pytest.fixture
async def store(tmp_path: Path, kubelet: StandInKubelet) -> AsyncIterator[FakeStore]:
    take_back = registry.add(Acme())
    devices = tmp_path / "devices.yaml"
    devices.write_text(DEVICES)
    arguments = [
        f"--node-name={NODE}",
        "--probe=simulated",
        f"--simulated-file={devices}",
        f"--device-plugin-dir={kubelet.plugin_folder}",
        f"--pod-resources-socket={kubelet.pod_resources_socket}",
        f"--cdi-dir={tmp_path / 'cdi'}",
        "--http-address=off",
        "--health-address=off",
        "--operator-wait-seconds=15",
    ]
    store = FakeStore(item={"metadata": {"name": NODE, "uid": "u", "generation": 1}, "spec": {"config": CONFIG}})
    running = asyncio.create_task(Agent(parse(arguments, {}), store=store).run())
    yield store
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    take_back()


def names_and_holders(store: FakeStore) -> dict[str, list[str]]:
    devices: list[dict[str, Any]] = store.statuses[-1].get("devices", []) if store.statuses else []
    return {each["name"]: [holder["pod"] for holder in each.get("holders", ())] for each in devices}


async def test_an_fpga_and_a_dpu_go_from_the_probes_line_to_containers_and_to_nodedevices(
    store: FakeStore, kubelet: StandInKubelet
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
    await kubelet.until(lambda: names_and_holders(store) == held)
