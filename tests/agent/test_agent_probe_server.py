"""The real agent and the real probe server, as in the pod's two containers, on a stand-in kubelet."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.agentprocess import AgentProcess, agent_on
from support.kubelet import StandInKubelet
from support.served import probe_server
from support.simulated import h100s

GPU = "nvidia.com/gpu"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "probes.sock"


@contextmanager
def serving(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with probe_server(path, f"--simulated={path.parent / 'devices.yaml'}") as server:
        yield server


@pytest.fixture
def agent(kubelet: StandInKubelet, tmp_path: Path, path: Path) -> AgentProcess:
    return agent_on(kubelet, tmp_path, arguments=("--standalone", f"--probe-server=unix:{path}"))


def processes_of(server: subprocess.Popen[bytes]) -> list[int]:
    listed = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text()
    return [int(each) for each in listed.split()]


async def probe_of(server: subprocess.Popen[bytes], agent: AgentProcess) -> int:
    """The process that stays: the server starts one for each look at the paths, too, which ends by itself."""
    await agent.until(lambda: len(processes_of(server)) == 1)
    [probe] = processes_of(server)
    return probe


async def test_an_agent_without_its_server_says_so_and_lists_what_it_knew_until_the_server_is_there(
    agent: AgentProcess, kubelet: StandInKubelet, path: Path
) -> None:
    async with agent:
        await agent.until(lambda: agent.lines("serving metrics and health"))
        await agent.until(lambda: "failed to connect to the probe server" in agent.get("/readyz")[1])
        with serving(path) as server:
            await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)
            old = await probe_of(server, agent)
            agent.kill()
            await agent.until(lambda: not Path(f"/proc/{old}").exists())
        agent.start()
        await agent.until(lambda: agent.lines("device not healthy"))
        [known] = agent.lines("device not healthy")
        assert (len(known["devices"]), known["reason"]) == (8, "Starting")
        with serving(path):
            await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)
            agent.edit(h100s(xid79=3))
            await kubelet.until(lambda: kubelet.allocatable(GPU) == 7)


async def test_a_probe_and_its_server_that_hang_are_reported_and_all_is_well_with_the_next_server(
    agent: AgentProcess, kubelet: StandInKubelet, path: Path
) -> None:
    async with agent:
        with serving(path) as server:
            await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)
            updates, probe = len(kubelet.views[GPU].updates), await probe_of(server, agent)
            server.send_signal(signal.SIGSTOP)
            os.kill(probe, signal.SIGSTOP)
            await agent.until(lambda: agent.lines("device not healthy"))
            [logged] = agent.lines("device not healthy")
            assert (logged["reason"], len(logged["devices"])) == ("ProbeSilent", 8)
            assert (kubelet.allocatable(GPU), len(kubelet.views[GPU].updates)) == (8, updates)
            assert agent.get("/healthz")[0] == 200
            unanswered = 'nodedevices_probe_server_failures_total{request="paths"}'
            await agent.until(lambda: unanswered in agent.get("/metrics")[1])
        with serving(path):  # as the kubelet restarts the container
            await agent.until(lambda: [len(each["devices"]) for each in agent.lines("device healthy")] == [8])
            agent.edit(h100s(xid79=3))
            await kubelet.until(lambda: kubelet.allocatable(GPU) == 7)


async def test_a_pod_that_ends_says_nothing_of_lost_devices_though_its_probes_end_first(
    agent: AgentProcess, kubelet: StandInKubelet, path: Path
) -> None:
    async with agent:
        with serving(path) as server:
            await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)
            await agent.until(agent.state_file.exists)
            updates, state = len(kubelet.views[GPU].updates), agent.state_file.read_text()
            server.terminate()
            server.wait()
            await agent.until(lambda: agent.lines("probe ended"))
            assert agent.terminate() == 0
        assert (len(kubelet.views[GPU].updates), agent.state_file.read_text()) == (updates, state)
        assert agent.lines("device not healthy") == []
