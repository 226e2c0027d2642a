"""The real agent and its configuration file: edits take effect live, a bad one changes nothing, pods are waited for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from support.agentprocess import AgentProcess, agent_on
from support.kubelet import StandInKubelet
from support.patience import PATIENCE_SECONDS

GPU = "nvidia.com/gpu"
NONE = "version: v1\n"
SIXTEEN = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"
EIGHT = "version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}}\n"
BAD = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 1}]}}\n"


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


@pytest.fixture
def made(kubelet: StandInKubelet, tmp_path: Path, config_file: Path) -> AgentProcess:
    """Four L4s; not started yet."""
    return agent_on(
        kubelet, tmp_path, devices="profile: l4 x 4\n", arguments=("--standalone", f"--config-file={config_file}")
    )


@pytest.fixture
async def agent(made: AgentProcess, kubelet: StandInKubelet, config_file: Path) -> AsyncIterator[AgentProcess]:
    write(config_file, NONE)
    async with made:
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 4)
        yield made


def write(path: Path, text: str) -> None:
    path.write_text(text)


def held(agent: AgentProcess) -> float:
    """Containers that hold devices, as the agent knows them from PodResources."""
    lines = agent.get("/metrics")[1].splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("nodedevices_device_holders"))


def conditions(agent: AgentProcess) -> list[str]:
    return [entry["condition"] for entry in agent.lines("configuration")]


async def test_time_slicing_by_the_file_needs_no_restart_and_goes_back_again(
    agent: AgentProcess, kubelet: StandInKubelet, config_file: Path
) -> None:
    write(config_file, SIXTEEN)
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 16)
    granted = await kubelet.allocate(GPU, 1)
    assert granted.answer.envs["NVIDIA_VISIBLE_DEVICES"] == granted.ids[0].partition("::")[0]
    await agent.until(lambda: held(agent) == 1)
    kubelet.release("pod")
    write(config_file, NONE)
    await kubelet.until(lambda: kubelet.capacity(GPU) == 4)
    assert kubelet.registrations_of(GPU) == 1


async def test_a_bad_file_keeps_the_last_good_configuration_and_a_corrected_one_is_taken_up(
    agent: AgentProcess, kubelet: StandInKubelet, config_file: Path
) -> None:
    write(config_file, SIXTEEN)
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 16)
    write(config_file, BAD)
    await agent.until(lambda: "ConfigInvalid" in conditions(agent))
    assert "replicas: 1" in agent.lines("configuration")[-1]["message"]
    assert kubelet.allocatable(GPU) == 16
    assert 'nodedevices_config_errors_total{source="file"} 1.0' in agent.get("/metrics")[1]
    write(config_file, "sharing: {timeSlicing: {resources: [{name: gpuu, replicas: 4}, {name: gpu, replicas: 2}]}}")
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)
    [logged] = agent.lines("configuration entry matches nothing on this node")
    assert "nvidia.com/gpuu: no such resource on this node; offered: nvidia.com/gpu" in logged["what"]
    write(config_file, "# sharing comes later\n")
    await agent.until(lambda: agent.lines("the configuration file is empty: flags, environment and defaults apply"))
    await kubelet.until(lambda: kubelet.capacity(GPU) == 4)
    assert agent.alive


async def test_an_agent_that_starts_with_a_bad_file_takes_the_last_good_one_from_its_state_file(
    agent: AgentProcess, kubelet: StandInKubelet, config_file: Path
) -> None:
    write(config_file, SIXTEEN)
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 16)
    agent.kill()
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 0)
    write(config_file, "sharing: [")
    agent.start()
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 16)
    assert conditions(agent)[-1] == "ConfigInvalid"


async def test_a_file_that_is_missing_or_wrong_at_the_very_first_start_is_waited_for(
    made: AgentProcess, kubelet: StandInKubelet, config_file: Path
) -> None:
    async with made as agent:
        for says in ("No such file", "replicas: 1"):
            await agent.until(lambda says=says: says in agent.get("/readyz")[1] if conditions(agent) else False)  # type: ignore[misc]
            assert agent.get("/readyz")[0] == 503
            said = agent.lines("configuration")[-1]["message"]
            assert says in said
            assert "nothing is offered" in said
            assert not kubelet.registered
            write(config_file, BAD)
        write(config_file, EIGHT)
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)


async def test_without_podresources_devices_are_served_and_changes_wait(
    agent: AgentProcess, kubelet: StandInKubelet, config_file: Path
) -> None:
    kubelet.pod_resources_error = (grpc.StatusCode.UNAVAILABLE, "not today")
    await agent.until(lambda: [it["state"] for it in agent.lines("pod resources")][-1:] == ["PodResourcesUnavailable"])
    write(config_file, SIXTEEN)
    await agent.until(lambda: "WaitingForHolders" in conditions(agent))
    assert len((await kubelet.allocate(GPU, 1)).ids) == 1
    kubelet.release("pod")
    assert kubelet.capacity(GPU) == 4
    kubelet.pod_resources_error = None
    await agent.until(lambda: kubelet.capacity(GPU) == 16)


async def test_outside_a_pod_the_agent_says_which_flags_would_help(kubelet: StandInKubelet, tmp_path: Path) -> None:
    made = agent_on(kubelet, tmp_path, arguments=())
    async with made as agent:
        message = "failed to watch NodeDevices"
        await agent.until(lambda: agent.lines(message))
        logged = agent.lines(message)[0]["error"]
        assert "the pod's service account" in logged
        assert "--kubeconfig" in logged
        assert "--standalone" in logged


async def test_flags_that_cannot_be_end_it_with_a_sentence(made: AgentProcess) -> None:
    made.start("--mig-strategy=mixd", "--simulate=x")
    assert made.process is not None
    assert made.process.wait(PATIENCE_SECONDS) == 2
    text = made.log.read_text()
    assert "did you mean --simulated?" in text
    assert "Traceback" not in text


async def test_readiness_is_the_kubelets_registration_and_health_is_the_loop(
    agent: AgentProcess, kubelet: StandInKubelet
) -> None:
    assert agent.get("/healthz") == (200, "ok\n")
    await agent.until(lambda: agent.get("/readyz")[0] == 200)
    await kubelet.stop()
    await agent.until(lambda: agent.get("/readyz")[0] == 503)
    assert agent.get("/healthz") == (200, "ok\n")
    assert agent.get("/nothing")[0] == 404
