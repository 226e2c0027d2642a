"""A sharing mode that the agent does not come with, in the whole agent: from the object's spec to the container."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nodedevices_plugin.agent import Agent
from nodedevices_plugin.host.sharing_managers import MANAGERS
from nodedevices_plugin.runtime.worker import Worker
from nodedevices_plugin.settings.flags import Local, parse
from nodedevices_plugin.sharing.registry import MODES
from support.exclusive_window import NAME, ExclusiveWindow, Keepers
from support.fakestore import FakeStore
from support.kubelet import StandInKubelet

GPU = "nvidia.com/gpu"
NODE = "node-a"
SHARED = {"sharing": {"strategy": NAME, "resources": [{"name": GPU, "replicas": 3}]}}


class Node:
    """The agent's whole life in this process; only its probe is one of its own."""

    def __init__(self, folder: Path, kubelet: StandInKubelet) -> None:
        self.keepers = folder / "keepers"
        self.keepers.mkdir()
        self.store = FakeStore(
            item={"metadata": {"name": NODE, "uid": "u", "generation": 1}, "spec": {"config": SHARED}}
        )
        devices = folder / "devices.yaml"
        devices.write_text("profile: l4 x 2\n")
        arguments = [
            f"--node-name={NODE}",
            "--probe=simulated",
            f"--simulated-file={devices}",
            f"--device-plugin-dir={kubelet.plugin_folder}",
            f"--pod-resources-socket={kubelet.pod_resources_socket}",
            f"--cdi-dir={folder / 'cdi'}",
            f"--mps-dir={folder / 'mps'}",
            "--http-address=off",
            "--health-address=off",
            "--operator-wait-seconds=15",
        ]
        local = replace(parse(arguments, {}), modes=MODES.with_(ExclusiveWindow()))
        self.agent = Agent(local, store=self.store, helpers={**MANAGERS, NAME: self.manager})

    def manager(self, _local: Local, _worker: Worker, on_change: Callable[[], None]) -> Keepers:
        return Keepers(self.keepers, on_change=on_change)

    def keeper(self, instance: str) -> None:
        """The window keeper of the GPUs: another one, or none."""
        file = self.keepers / GPU.replace("/", "_")
        file.unlink(missing_ok=True)
        if instance:
            new = file.with_suffix(".new")
            new.write_text(instance)
            new.replace(file)

    @property
    def status(self) -> dict[str, Any]:
        return self.store.statuses[-1] if self.store.statuses else {}

    def allocated(self) -> int:
        return sum(each.get("allocated", 0) for each in self.status.get("resources", ()))

    def healths(self) -> list[str]:
        """What is said of the holders of its devices."""
        holders = [each for device in self.status.get("devices", ()) for each in device.get("holders", ())]
        return [each["health"]["reason"] for each in holders if "health" in each]


@pytest.fixture
async def node(tmp_path: Path, kubelet: StandInKubelet) -> AsyncIterator[Node]:
    node = Node(tmp_path, kubelet)
    running = asyncio.create_task(node.agent.run())
    yield node
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


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
