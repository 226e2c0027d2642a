"""S39: the agent of the previous version and this one, each with the state file that the other has written.

A node's upgrade, and the way back: the new process finds what the old one left, while pods hold devices and the kubelet
goes on. Both are real processes of their own code (support.previous); the order is previous, this one, previous.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from support import previous
from support.agentprocess import AgentProcess, agent_on
from support.kubelet import AdmissionError, StandInKubelet
from support.nic_trees import connectx_7_pair
from support.running_agent import replace_file
from support.simulated import h100s

GPU, SHARED, RDMA = "nvidia.com/gpu", "nvidia.com/gpu.shared", "rdma/hca_a"
SLICES = {"resources": [{"name": GPU, "replicas": 2}], "renameByDefault": True}
BACK_AND_FORTH = ["previous", "this", "previous"]


class Node:
    """One agent after the other on the same folders, of either version."""

    def __init__(self, folder: Path, kubelet: StandInKubelet) -> None:
        self.folder, self.kubelet = folder, kubelet
        self.config = folder / "config.json"
        self.arguments = ["--standalone", f"--config-file={self.config}"]
        self.devices = h100s(field_230=False)
        self.devices_dir: Path | None = None

    def shares(self, sharing: dict[str, object]) -> None:
        replace_file(self.config, json.dumps({"version": "v1", "sharing": {"timeSlicing": sharing} if sharing else {}}))

    @contextmanager
    def running(self, version: str) -> Iterator[AgentProcess]:
        old = version == "previous"
        made = agent_on(
            self.kubelet,
            self.folder,
            devices=self.devices,
            arguments=tuple(self.arguments),
            environment=previous.environment() if old else None,
            fresh=old,
        )
        if old:  # these flags are newer
            newer = ("--cdi-spec-dirs", "--simulated", "--devices-dir")
            made.arguments = [each for each in made.arguments if not each.startswith(newer)]
            made.arguments += [f"--simulated-file={made.devices}", f"--cdi-dir={self.folder / 'cdi'}"]
            made.arguments.append("--operator-wait-seconds=0")
            if self.devices_dir is not None:
                made.arguments.append(f"--rdma-config-file={self.devices_dir / 'rdma.json'}")
                made.arguments.append(f"--device-info-dir={self.folder / 'info'}")
        with made as agent:
            yield agent

    @property
    def state(self) -> Path:
        return self.kubelet.plugin_folder / "nodedevices-state.json"

    def nothing_was_put_aside(self) -> bool:
        return not self.state.with_name(f"{self.state.name}.unreadable").exists()


@pytest.fixture
def node(tmp_path: Path, kubelet: StandInKubelet) -> Node:
    made = Node(tmp_path, kubelet)
    made.shares(SLICES)
    return made


def physical(ids: tuple[str, ...]) -> set[str]:
    return {each.partition("::")[0] for each in ids}


@asynccontextmanager
async def life(node: Node, version: str) -> AsyncIterator[AgentProcess]:
    """One agent from its start to its end, which the kubelet has noticed."""
    with node.running(version) as agent:
        yield agent
        assert agent.terminate() == 0
        await agent.until(lambda: not any(each.connected for each in node.kubelet.views.values()))


async def test_s39_a_fault_a_share_and_every_id_outlive_an_upgrade_and_the_way_back(
    node: Node, kubelet: StandInKubelet
) -> None:
    async with life(node, BACK_AND_FORTH[0]) as agent:
        await agent.until(lambda: kubelet.allocatable(SHARED) == 16)
        agent.edit(h100s(xid79=3, field_230=False))
        await agent.until(lambda: kubelet.allocatable(SHARED) == 14)
        held = await kubelet.allocate(SHARED, 1, pod="train")
        ids, bad = set(kubelet.views[SHARED].devices), set(kubelet.views[SHARED].unhealthy)
        await agent.until(node.state.exists)
    # The probe forgets with its process, and the next one is given healthy GPUs: only the state file remembers.
    for version in BACK_AND_FORTH[1:]:
        updates = len(kubelet.views[SHARED].updates)
        async with life(node, version) as agent:
            await agent.until(lambda: kubelet.allocatable(SHARED) == 14)
            assert set(kubelet.views[SHARED].devices) == ids
            for message in kubelet.views[SHARED].updates[updates:]:
                assert {each.ID for each in message.devices if each.health != "Healthy"} >= bad
            other = await kubelet.allocate(SHARED, 1, pod=version)
            assert not set(other.ids) & set(held.ids)
            kubelet.release(version)
    assert node.nothing_was_put_aside()


@pytest.mark.parametrize("before", ["previous", "this"])
async def test_s39_a_gpu_that_a_pod_had_whole_is_shared_by_no_other_version(
    node: Node, kubelet: StandInKubelet, before: str
) -> None:
    """The configuration changes with the version: no running agent has seen both."""
    node.shares({})
    async with life(node, before) as agent:
        await agent.until(lambda: kubelet.allocatable(GPU) == 8)
        whole = await kubelet.allocate(GPU, 1, pod="train")
        await agent.until(node.state.exists)
    node.shares(SLICES)
    async with life(node, "this" if before == "previous" else "previous") as agent:
        await agent.until(lambda: kubelet.allocatable(SHARED) == 14)
        for number in range(14):
            share = await kubelet.allocate(SHARED, 1, pod=f"share-{number}")
            assert not physical(share.ids) & physical(whole.ids)
        with pytest.raises(AdmissionError):
            await kubelet.allocate(SHARED, 1, pod="one-too-many")


async def test_s39_what_a_device_file_says_outlives_an_upgrade_and_the_way_back(
    node: Node, kubelet: StandInKubelet, tmp_path: Path
) -> None:
    """The two versions write it into the state file in two forms."""
    tree, node.devices_dir = tmp_path / "tree", tmp_path / "devices"
    node.devices_dir.mkdir()
    file = node.devices_dir / "rdma.json"
    connectx_7_pair(tree)
    entry = {"resourceName": "hca_a", "rdmaHcaMax": 10, "selectors": {"vendors": ["15b3"]}}
    replace_file(file, json.dumps({"configList": [entry]}))
    probe = f"{sys.executable} -P -m nodedevices_probe.main nic --root {tree} --interval-seconds 0.2"
    node.arguments += [f"--probe=nic={probe}", f"--devices-dir={node.devices_dir}"]
    node.devices = "profile: l4 x 1\ndevices: [{index: 0, pciBusId: '00000000:e0:00.0'}]\n"  # where no NIC is
    held: set[str] = set()
    for number, version in enumerate([*BACK_AND_FORTH, "this"]):
        async with life(node, version) as agent:
            await agent.until(lambda: kubelet.allocatable(RDMA) == 10)
            granted = await kubelet.allocate(RDMA, 1, pod=f"mpi-{number}")
            assert not held & set(granted.ids)
            held |= set(granted.ids)
            await agent.until(node.state.exists)
    file.unlink()  # what the last one saved is all that the next one has
    async with life(node, "this") as agent:
        await agent.until(lambda: kubelet.allocatable(RDMA) == 10)
        granted = await kubelet.allocate(RDMA, 1, pod="mpi-last")
        assert not held & set(granted.ids)
        refused = [each["message"] for each in agent.lines("configuration")]
        assert any("rdma.json: no such file; its last content stays in effect" in each for each in refused)
