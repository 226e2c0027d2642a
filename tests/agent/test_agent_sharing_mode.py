"""A sharing mode that the agent does not come with, in the whole agent: from the object's spec to the container."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from nodedevices_plugin.agent import Agent
from nodedevices_plugin.settings.flags import Local
from nodedevices_plugin.sharing.registry import MODES
from support.exclusive_window import NAME, ExclusiveWindow
from support.kubelet import StandInKubelet
from support.running_agent import RunningAgent, simulated

GPU = "nvidia.com/gpu"
SHARED = {"sharing": {"strategy": NAME, "resources": [{"name": GPU, "replicas": 3}]}}


class Node(RunningAgent):
    def __init__(self, folder: Path, kubelet: StandInKubelet) -> None:
        super().__init__(folder, kubelet, *simulated(folder, "profile: l4 x 2\n"), config=SHARED)

    def agent(self, local: Local) -> Agent:
        return Agent(replace(local, modes=MODES.with_(ExclusiveWindow())), store=self.store)

    def allocated(self) -> int:
        return sum(each.get("allocated", 0) for each in self.status.get("resources", ()))


@pytest.fixture
async def node(tmp_path: Path, kubelet: StandInKubelet) -> AsyncIterator[Node]:
    async with Node(tmp_path, kubelet).running() as node:
        yield node


async def test_a_sharing_mode_goes_from_a_file_of_its_own_to_the_container_and_to_nodedevices(
    node: Node, kubelet: StandInKubelet
) -> None:
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 6)
    granted = await kubelet.allocate(GPU, 1, pod="train-0", namespace="ml")
    [id_] = granted.ids
    assert granted.answer.envs["EXCLUSIVE_WINDOW"] == f"{id_.partition('::')[2]} of 3"
    await kubelet.until(lambda: node.allocated() == 1)
    assert node.status["resources"][0]["sharing"] == NAME
