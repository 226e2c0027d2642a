"""MPS, all of it but the GPU: the real agent, the real nodedevices-mps, a stand-in for NVIDIA's two binaries."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from nodedevices_probe.simulated.probe import from_profile
from support.agentprocess import NODE, AgentProcess, agent_on
from support.kubelet import StandInKubelet
from support.mps import MpsRunner, with_path
from support.vendor import VendorProcess

GPU = "nvidia.com/gpu"
FOUR = "version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"
L4_MIB = 23034


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[MpsRunner]:
    with MpsRunner(tmp_path) as runner:
        yield runner


@pytest.fixture
def made(kubelet: StandInKubelet, tmp_path: Path, runner: MpsRunner) -> AgentProcess:
    """Two L4s, with NVIDIA's client at hand; not started yet."""
    return agent_on(
        kubelet,
        tmp_path,
        devices="profile: l4 x 2\n",
        arguments=(
            "--standalone",
            f"--config-file={tmp_path / 'config.yaml'}",
            "--mps-root=/run/nvidia/mps",
        ),
        environment=with_path(runner.programs),
        mps_dir=str(runner.root),
    )


@pytest.fixture
async def agent(made: AgentProcess) -> AsyncIterator[AgentProcess]:
    configure(made, FOUR)
    async with made:
        yield made


def configure(agent: AgentProcess, text: str) -> None:
    (agent.devices.parent / "config.yaml").write_text(text)


def message_of(agent: AgentProcess) -> str:
    return str(agent.lines("configuration")[-1]["message"]) if agent.lines("configuration") else ""


async def test_a_daemon_is_started_with_its_limits_before_its_shares_are_offered(
    agent: AgentProcess, kubelet: StandInKubelet, runner: MpsRunner
) -> None:
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)
    assert runner.commands(GPU) == [
        "-d",
        "set_default_active_thread_percentage 25",
        f"set_default_device_pinned_mem_limit 0 {L4_MIB // 4}M",
        f"set_default_device_pinned_mem_limit 1 {L4_MIB // 4}M",
    ]
    assert sorted(runner.modes().values()) == ["EXCLUSIVE_PROCESS"] * 2
    granted = await kubelet.allocate(GPU, 1)
    assert granted.answer.envs["CUDA_MPS_PIPE_DIRECTORY"] == "/mps/nvidia.com/gpu/pipe"
    assert [(each.host_path, each.container_path) for each in granted.answer.mounts] == [
        ("/run/nvidia/mps/nvidia.com/gpu/pipe", "/mps/nvidia.com/gpu/pipe"),
        ("/run/nvidia/mps/shm", "/dev/shm"),
    ]


async def test_while_no_daemon_answers_nothing_is_registered_and_the_reason_is_reported(
    made: AgentProcess, kubelet: StandInKubelet, runner: MpsRunner
) -> None:
    (runner.programs / "nvidia-cuda-mps-control").unlink()
    configure(made, FOUR)
    async with made as agent:
        await agent.until(lambda: "nvidia-cuda-mps-control not found" in message_of(agent))
        assert agent.lines("configuration")[-1]["condition"] == "ConfigInvalid"
        assert message_of(agent).endswith("nothing is offered until it answers")
        assert agent.get("/readyz")[0] == 503
        assert not kubelet.registered


async def test_the_end_of_a_daemon_is_reported_to_its_clients_however_soon_another_answers(
    agent: AgentProcess, kubelet: StandInKubelet, runner: MpsRunner
) -> None:
    def marked() -> list[tuple[str, str]]:
        lines = agent.lines("MPS client without its daemon")
        return [(each["client"].split("/")[1], each["reason"]) for each in lines]

    await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)
    await kubelet.allocate(GPU, 1, pod="train-0", namespace="ml")
    await agent.until(lambda: "train-0" in agent.state_file.read_text())
    runner.die(GPU)
    await agent.until(lambda: marked() == [("train-0", "MpsDaemonRestarted")])
    assert kubelet.allocatable(GPU) == 8
    await kubelet.allocate(GPU, 1, pod="train-1", namespace="ml")
    await agent.until(lambda: "train-1" in agent.state_file.read_text())
    agent.kill()
    runner.die(GPU)
    await agent.until(lambda: runner.commands(GPU).count("-d") == 3)
    agent.start()
    await agent.until(lambda: marked()[1:] == [("train-1", "MpsDaemonRestarted")])


async def test_a_restart_of_the_agent_or_of_the_runner_leaves_the_daemon_and_its_clients_alone(
    agent: AgentProcess, kubelet: StandInKubelet, runner: MpsRunner
) -> None:
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)
    agent.kill()
    runner.kill()
    runner.start()
    agent.start()
    await agent.until(lambda: len(runner.lines("MPS control daemon ready")) == 2)
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)
    assert "quit" not in runner.commands(GPU)
    assert runner.commands(GPU).count("-d") == 1
    assert runner.terminate() == 0
    assert not runner.alive(GPU)
    assert set(runner.modes().values()) == {"DEFAULT"}


async def test_at_a_first_start_gpus_that_another_plugin_hands_out_get_no_daemon(
    made: AgentProcess, kubelet: StandInKubelet, runner: MpsRunner, tmp_path: Path
) -> None:
    ids = [each.id for each in from_profile("l4 x 2", node=NODE).facts.devices]
    configure(made, FOUR)
    with VendorProcess(tmp_path, kubelet.plugin_folder, ids) as vendor:
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 2)
        async with made as agent:
            await agent.until(lambda: "by MPS waits: another device plugin serves nvidia.com/gpu" in message_of(agent))
            assert (runner.modes(), runner.commands(GPU)) == ({}, [])
            vendor.end()
            await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)


async def test_a_root_that_is_not_mounted_is_reported(made: AgentProcess, kubelet: StandInKubelet) -> None:
    configure(made, FOUR)
    made.fixed["mps_dir"] = "/nowhere"
    async with made as agent:
        await agent.until(lambda: "/nowhere/nodedevices-daemons.json" in message_of(agent))
        assert "mount the MPS root there (manifests/components/mps)" in message_of(agent)
        assert not kubelet.registered
