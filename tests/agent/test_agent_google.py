"""The real agent on a node prepared as Google does it: its answers to the kubelet, and gpu_config.json edited live."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.agentprocess import AgentProcess, agent_on
from support.kubelet import AdmissionError, StandInKubelet

GPU = "nvidia.com/gpu"
MOUNTS = [
    ("/usr/local/nvidia", "/home/kubernetes/bin/nvidia", True),
    ("/etc/vulkan/icd.d", "/home/kubernetes/bin/nvidia/vulkan/icd.d", True),
]


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """What the agent sees of the host, with all control nodes but one that the driver makes at its first use."""
    dev = tmp_path / "driver-root" / "dev"
    dev.mkdir(parents=True)
    for name in ("nvidiactl", "nvidia-modeset", "nvidia0", "nvidia1"):
        (dev / name).touch()
    return dev


@pytest.fixture
def gpu_config(tmp_path: Path) -> Path:
    folder = tmp_path / "devices"
    folder.mkdir()
    return folder / "gpu_config.json"


@pytest.fixture
def made(kubelet: StandInKubelet, tmp_path: Path, host: Path, gpu_config: Path) -> AgentProcess:
    """Two L4s; not started yet."""
    return agent_on(
        kubelet,
        tmp_path,
        devices="profile: l4 x 2\n",
        arguments=(
            "--standalone",
            "-device-list-strategy=driver-directory",
            f"-devices-dir={gpu_config.parent}",
            f"--driver-root-ctr-path={host.parent}",
        ),
    )


@pytest.fixture
async def agent(
    made: AgentProcess, kubelet: StandInKubelet, host: Path, gpu_config: Path
) -> AsyncIterator[AgentProcess]:
    (host / "nvidia-uvm").touch()
    write(gpu_config, {})
    async with made:
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 2)
        yield made


def write(path: Path, document: Any) -> None:
    """A text as it is, anything else as JSON; None: no file."""
    if document is None:
        path.unlink()
    else:
        path.write_text(document if isinstance(document, str) else json.dumps(document))


def shared(clients: int) -> dict[str, Any]:
    return {"GPUSharingConfig": {"GPUSharingStrategy": "time-sharing", "MaxSharedClientsPerGPU": clients}}


def messages(agent: AgentProcess) -> list[str]:
    return [entry["message"] for entry in agent.lines("configuration")]


async def test_nothing_is_offered_before_the_drivers_control_nodes_are_there_which_a_container_gets_with_the_driver(
    made: AgentProcess, kubelet: StandInKubelet, host: Path, gpu_config: Path
) -> None:
    write(gpu_config, {})
    async with made as agent:
        await agent.until(lambda: any("/dev/nvidia-uvm does not exist on this node" in it for it in messages(agent)))
        assert not kubelet.registered
        (host / "nvidia-uvm").touch()
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 2)
        answer = (await kubelet.allocate(GPU, 2)).answer
    assert dict(answer.envs) == {}
    assert [(each.container_path, each.host_path, each.read_only) for each in answer.mounts] == MOUNTS
    assert {(each.container_path, each.host_path, each.permissions) for each in answer.devices} == {
        (f"/dev/{name}", f"/dev/{name}", "rw")
        for name in ("nvidiactl", "nvidia-uvm", "nvidia-modeset", "nvidia0", "nvidia1")
    }


async def test_time_sharing_by_gpu_config_comes_and_goes_live_one_share_for_a_container(
    agent: AgentProcess, kubelet: StandInKubelet, gpu_config: Path
) -> None:
    write(gpu_config, shared(3))
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 6)
    with pytest.raises(AdmissionError, match="2 shares requested; a container may have 1 on this node"):
        await kubelet.allocate(GPU, 2, pod="greedy")
    await kubelet.allocate(GPU, 1)
    kubelet.release("pod")
    write(gpu_config, {})
    await kubelet.until(lambda: kubelet.capacity(GPU) == 2)
    assert kubelet.registrations_of(GPU) == 1


@pytest.mark.parametrize("broken", ['{"GPUSharingConfig": {"GPUSharingStrategy": "mps"}}', None])
async def test_a_broken_or_missing_gpu_config_keeps_the_shares_across_a_restart_too(
    agent: AgentProcess, kubelet: StandInKubelet, gpu_config: Path, broken: str | None
) -> None:
    """Else the GPU of a pod that holds a share would be offered whole."""
    write(gpu_config, shared(3))
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 6)
    await kubelet.allocate(GPU, 1, pod="train-0", namespace="ml")
    write(gpu_config, broken)
    await agent.until(lambda: any(f"{gpu_config}: " in each for each in messages(agent)))
    assert kubelet.capacity(GPU) == 6
    agent.kill()
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 0)
    agent.start()
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 6)
    write(gpu_config, shared(4))
    await kubelet.until(lambda: kubelet.capacity(GPU) == 8)
