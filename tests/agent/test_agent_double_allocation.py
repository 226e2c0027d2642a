"""S31: the whole agent and a stand-in kubelet that gives one device to two pods."""

from __future__ import annotations

from pathlib import Path

import pytest
from nodedevices_plugin.kubelet import podresources
from nodedevices_plugin.kubelet.api import podresources_v1_pb2 as api
from support.kubelet import Owner, StandInKubelet
from support.running_agent import RunningAgent

GPU = "nvidia.com/gpu"
ONCE = "AllocatedOnce"


@pytest.fixture
def node(tmp_path: Path, kubelet: StandInKubelet, monkeypatch: pytest.MonkeyPatch) -> RunningAgent:
    monkeypatch.setattr(podresources, "LIST_SECONDS", 0.5)
    return RunningAgent(tmp_path, kubelet, "--probe=simulated", "--simulated=h100 x 1")


async def test_s31_a_gpu_that_the_kubelet_gives_to_two_pods_is_granted_and_named(
    node: RunningAgent, kubelet: StandInKubelet
) -> None:
    async with node.running():
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 1)
        [gpu] = (await kubelet.allocate(GPU, 1, pod="a")).ids
        await kubelet.until(lambda: node.condition(ONCE)[0] == "NoDoubleAllocation")
        answer = await kubelet.allocate_ids(GPU, [gpu])
        assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == gpu, "the kubelet decides"
        kubelet.allocated[Owner("default", "b", "main")] = {GPU: (gpu,)}
        await kubelet.until(lambda: node.condition(ONCE)[0] == "DoubleAllocation")
        assert f"{gpu}: default/a and default/b; delete all of these pods except one" in node.condition(ONCE)[1]
        kubelet.release("b")
        await kubelet.until(lambda: node.condition(ONCE)[0] == "NoDoubleAllocation")


async def test_s31_a_gpu_of_a_running_pod_that_a_kubelet_without_its_checkpoint_gives_away_is_named(
    node: RunningAgent, kubelet: StandInKubelet
) -> None:
    async with node.running():
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 1)
        await kubelet.allocate(GPU, 1, pod="train")
        await kubelet.until(lambda: node.condition("HoldersKnown")[0] == "Synced")
        await kubelet.until(lambda: node.devices["gpu-0"].get("holders"))
        await kubelet.stop()
        kubelet.allocated.clear()
        kubelet.checkpoint.unlink()
        kubelet.extra_pods = [api.PodResources(name="train", namespace="default")]
        await kubelet.restart()
        await kubelet.until(lambda: "default/train without the devices" in node.condition("HoldersKnown")[1])
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 1)
        await kubelet.allocate(GPU, 1, pod="next")
        await kubelet.until(lambda: node.condition(ONCE)[0] == "DoubleAllocation")
        assert "default/next and default/train" in node.condition(ONCE)[1]
        kubelet.extra_pods = []
        await kubelet.until(lambda: node.condition(ONCE)[0] == "NoDoubleAllocation")
