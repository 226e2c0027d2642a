"""The real agent and a stand-in kubelet: a fault reaches the kubelet, and nothing that is killed makes it forgotten."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.agentprocess import AgentProcess, agent_on
from support.hangingdisk import HangingDisk
from support.kubelet import StandInKubelet
from support.simulated import h100s

GPU = "nvidia.com/gpu"


@pytest.fixture
async def agent(kubelet: StandInKubelet, tmp_path: Path) -> AsyncIterator[AgentProcess]:
    async with agent_on(kubelet, tmp_path) as running:
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)
        yield running


async def test_what_is_wrong_with_the_very_first_devices_file_is_in_the_log_and_on_readyz(
    kubelet: StandInKubelet, tmp_path: Path
) -> None:
    made = agent_on(kubelet, tmp_path, devices="profile: h101 x 8\n")
    async with made as agent:
        await agent.until(lambda: agent.lines("the probe reports problems"))
        [logged] = agent.lines("the probe reports problems")[0]["problems"]
        assert logged.startswith("FileInvalid: ")
        assert "h101 x 8" in logged
        await agent.until(lambda: logged in agent.get("/readyz")[1])
        agent.edit("profile: h100 x 8\n")
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)
        await agent.until(lambda: agent.lines("the probe reports no problems any more"))
        await agent.until(lambda: agent.get("/readyz") == (200, "ok\n"))
        assert len(agent.lines("the probe reports problems")) == 1


async def test_a_killed_agent_comes_back_with_the_same_ids_and_never_offers_the_bad_gpu(
    agent: AgentProcess, kubelet: StandInKubelet
) -> None:
    agent.edit(h100s(xid79=3, field_230=False))
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 7)
    ids, [bad] = set(kubelet.views[GPU].devices), kubelet.views[GPU].unhealthy
    # The kubelet is told after a quarter of a second, even if the disk is slow.
    await agent.until(lambda: bad in json.loads(agent.state_file.read_text())["verdicts"])
    await _kill(agent, kubelet)
    told_before = len(kubelet.views[GPU].updates)
    agent.edit(h100s(field_230=False))  # the probe forgets with its process: only the state file remembers
    agent.start()
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 7)
    assert set(kubelet.views[GPU].devices) == ids
    for message in kubelet.views[GPU].updates[told_before:]:
        assert {each.ID for each in message.devices if each.health != "Healthy"} == {bad}


async def test_a_killed_probe_changes_nothing_at_the_kubelet(agent: AgentProcess, kubelet: StandInKubelet) -> None:
    agent.edit(h100s(xid79=3, field_230=False))
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 7)
    registrations, updates = kubelet.registrations_of(GPU), len(kubelet.views[GPU].updates)
    killed = agent.probe_pid
    os.kill(killed, signal.SIGKILL)
    agent.edit(h100s(field_230=False))
    await agent.until(lambda: agent.probe_pid != killed)
    lines = "nodedevices_probe_lines_total"
    seen = metric(agent, lines)
    await agent.until(lambda: metric(agent, lines) >= seen + 2)
    assert (kubelet.registrations_of(GPU), len(kubelet.views[GPU].updates)) == (registrations, updates)
    assert kubelet.allocatable(GPU) == 7


async def test_a_fault_reaches_the_kubelet_while_the_state_file_cannot_be_written(
    agent: AgentProcess, kubelet: StandInKubelet
) -> None:
    await _kill(agent, kubelet)
    agent.state_file.unlink()
    agent.state_file.mkdir()  # nothing can be renamed onto it
    agent.start()
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)
    agent.edit(h100s(xid79=3))
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 7)
    await agent.until(lambda: agent.lines("state file not written, a restart of the agent would lose the change"))
    assert agent.alive


async def test_a_disk_that_hangs_keeps_no_fault_from_the_kubelet_and_only_the_newest_state_waits(
    kubelet: StandInKubelet, tmp_path: Path
) -> None:
    disk = HangingDisk(tmp_path)
    async with agent_on(
        kubelet,
        tmp_path,
        environment=disk.environment,
        fresh=True,  # which reads sitecustomize.py
    ) as agent:
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)
        await agent.until(lambda: agent.state_file.exists() and len(kubelet.views[GPU].devices) == 8)
        disk.hang()
        for lost in range(6):
            agent.edit(h100s(lost=lost))
            # The others are held down.
            await kubelet.until(lambda lost=lost: kubelet.allocatable(GPU) == 7 - lost)  # type: ignore[misc]
        await agent.until(lambda: agent.lines("state file not written, a restart of the agent would lose the change"))
        assert (
            "the disk may be hanging"
            in agent.lines("state file not written, a restart of the agent would lose the change")[0]["error"]
        )
        assert metric(agent, 'nodedevices_worker_call_seconds{worker="state-file"}') > 0
        assert agent.get("/healthz")[0] == 200
        saves = metric(agent, "nodedevices_state_file_writes_total")
        disk.let_go()
        await agent.until(lambda: agent.lines("state file writes succeed again"))
        await agent.until(lambda: len(json.loads(agent.state_file.read_text())["verdicts"]) == 6)
        assert metric(agent, "nodedevices_state_file_writes_total") <= saves + 2


async def test_it_ends_at_once_and_cleanly_on_request(agent: AgentProcess, kubelet: StandInKubelet) -> None:
    probe = agent.probe_pid
    assert agent.terminate() == 0
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 0)
    await agent.until(lambda: not Path(f"/proc/{probe}").exists())
    left = {path.name for path in kubelet.plugin_folder.iterdir()}
    assert left == {kubelet.socket.name, kubelet.checkpoint.name, agent.state_file.name}


async def _kill(agent: AgentProcess, kubelet: StandInKubelet) -> None:
    agent.kill()
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 0)


def metric(agent: AgentProcess, name: str) -> float:
    _, text = agent.get("/metrics")
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))


async def test_a_probe_that_hangs_is_reported_and_its_devices_stay_offered(
    agent: AgentProcess, kubelet: StandInKubelet
) -> None:
    updates = len(kubelet.views[GPU].updates)
    os.kill(agent.probe_pid, signal.SIGSTOP)
    await agent.until(lambda: agent.lines("device not healthy"))
    [logged] = agent.lines("device not healthy")
    assert (logged["reason"], len(logged["devices"])) == ("ProbeSilent", 8)
    assert (kubelet.allocatable(GPU), len(kubelet.views[GPU].updates)) == (8, updates)
    assert agent.get("/healthz")[0] == 200
    os.kill(agent.probe_pid, signal.SIGCONT)
    await agent.until(lambda: [len(each["devices"]) for each in agent.lines("device healthy")] == [8])


async def test_s02_a_frozen_agent_answers_no_liveness_probe_and_goes_on_where_it_was(
    agent: AgentProcess, kubelet: StandInKubelet
) -> None:
    """So the kubelet, which notices nothing by itself, ends it."""
    agent.freeze()
    try:
        with pytest.raises(TimeoutError):
            await asyncio.to_thread(agent.get, "/healthz", seconds=1.0)
        assert kubelet.allocatable(GPU) == 8, "the kubelet goes on giving its devices"
        agent.edit(h100s(xid79=3))
    finally:
        agent.thaw()
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 7)
    assert agent.get("/healthz")[0] == 200


async def test_s23_a_driver_that_is_unloaded_and_loaded_again_needs_no_restart_of_the_agent(
    agent: AgentProcess, kubelet: StandInKubelet
) -> None:
    ids = set(kubelet.views[GPU].devices)
    agent.edit("profile: h100 x 8\ndriver: {state: NotLoaded}\n")
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 0)
    assert set(kubelet.views[GPU].devices) == ids, "they stay listed"
    assert agent.lines("device not healthy")[-1]["reason"] == "DriverNotLoaded"
    agent.edit("profile: h100 x 8\n")
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)
    assert kubelet.registrations_of(GPU) == 1


async def test_s40_a_flapping_gpu_is_withdrawn_once(agent: AgentProcess, kubelet: StandInKubelet) -> None:
    before, lines = len(kubelet.views[GPU].updates), "nodedevices_probe_lines_total"
    for devices in (h100s(lost=3), h100s()) * 3:
        agent.edit(devices)
        seen = metric(agent, lines)
        await agent.until(lambda seen=seen: metric(agent, lines) >= seen + 2)  # type: ignore[misc]
    assert (len(kubelet.views[GPU].updates), kubelet.allocatable(GPU)) == (before + 1, 7), "the hold-down lasts"
