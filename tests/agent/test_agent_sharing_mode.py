"""A sharing mode that the agent does not come with, in the whole agent: from the object's spec to the container."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from nodedevices_plugin.agent import Agent
from nodedevices_plugin.host.sharing_managers import MANAGERS
from nodedevices_plugin.runtime.worker import Worker
from nodedevices_plugin.settings.flags import Local
from nodedevices_plugin.sharing.registry import MODES
from support.exclusive_window import NAME, ExclusiveWindow, Keepers
from support.kubelet import StandInKubelet
from support.running_agent import RunningAgent, replace_file, simulated

GPU = "nvidia.com/gpu"
SHARED = {"sharing": {"strategy": NAME, "resources": [{"name": GPU, "replicas": 3}]}}


class Node(RunningAgent):
    def __init__(self, folder: Path, kubelet: StandInKubelet) -> None:
        self.keepers = folder / "keepers"
        self.keepers.mkdir()
        flags = (*simulated(folder, "profile: l4 x 2\n"), f"--mps-dir={folder / 'mps'}")
        super().__init__(folder, kubelet, *flags, config=SHARED)

    def agent(self, local: Local) -> Agent:
        modes = MODES.with_(ExclusiveWindow())
        return Agent(replace(local, modes=modes), store=self.store, helpers={**MANAGERS, NAME: self.manager})

    def manager(self, _local: Local, _worker: Worker, on_change: Callable[[], None]) -> Keepers:
        return Keepers(self.keepers, on_change=on_change)

    def keeper(self, instance: str) -> None:
        """The window keeper of the GPUs: another one, or none."""
        file = self.keepers / GPU.replace("/", "_")
        file.unlink(missing_ok=True)
        if instance:
            replace_file(file, instance)

    def allocated(self) -> int:
        return sum(each.get("allocated", 0) for each in self.status.get("resources", ()))

    def healths(self) -> list[str]:
        """What is said of the holders of its devices."""
        holders = [each for device in self.devices.values() for each in device.get("holders", ())]
        return [each["health"]["reason"] for each in holders if "health" in each]


@pytest.fixture
async def node(tmp_path: Path, kubelet: StandInKubelet) -> AsyncIterator[Node]:
    async with Node(tmp_path, kubelet).running() as node:
        yield node


async def test_a_sharing_mode_goes_from_a_file_of_its_own_to_the_container_and_to_nodedevices(
    node: Node, kubelet: StandInKubelet
) -> None:
    await kubelet.until(lambda: "does not run; nothing is offered until it answers" in str(node.status))
    assert not kubelet.registered
    node.keeper("one")
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 6)
    granted = await kubelet.allocate(GPU, 1, pod="train-0", namespace="ml")
    [id_] = granted.ids
    assert granted.answer.envs["EXCLUSIVE_WINDOW"] == f"{id_.partition('::')[2]} of 3"
    await kubelet.until(lambda: node.allocated() == 1)
    assert node.status["resources"][0]["sharing"] == NAME
    node.keeper("")
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 0)
    assert kubelet.capacity(GPU) == 6
    await kubelet.until(lambda: node.healths() == ["WindowKeeperDown"])
    node.keeper("two")
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 6)
    await kubelet.until(lambda: node.healths() == ["WindowKeeperRestarted"])
