"""The real agent and the real operator: a node whose agent was stopped is shown as stale soon, and never kept by it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.agentprocess import NODE, AgentProcess
from support.apiserver import ApiServer
from support.fleet import FleetNode
from support.kubectl import Kubectl, condition, wait_until
from support.operatorprocess import OperatorProcess

pytestmark = pytest.mark.timeout(180)  # each waits for processes to start and to notice

STALE_WITHIN_SECONDS = 20.0  # of a graceful stop
GRACE_SECONDS = 10.0  # of the agent's pod


@pytest.fixture
def agent(operator: OperatorProcess, apiserver: ApiServer, kubectl: Kubectl, tmp_path: Path) -> Iterator[AgentProcess]:
    """On a Node that shows its GPUs all the time, so that nothing but its own word says that it is gone."""
    FleetNode(kubectl, NODE, gpus=8).create()
    with AgentProcess(tmp_path, arguments=(f"--kubeconfig={apiserver.kubeconfig}",), fresh=True) as running:
        wait_until("a report", lambda: shown(kubectl, "Ready").get("reason") == "KubeletUnreachable")
        wait_until("the operator's word", lambda: shown(kubectl, "Stale").get("status") == "False")
        yield running


def shown(kubectl: Kubectl, kind: str) -> dict[str, Any]:
    return condition(kubectl.get("nodedevices", NODE) or {}, kind)


def test_a_node_whose_agent_was_stopped_is_stale_within_20_seconds_and_not_when_it_is_back(
    agent: AgentProcess, kubectl: Kubectl
) -> None:
    assert agent.terminate() == 0
    stopped = time.monotonic()
    assert shown(kubectl, "Ready")["reason"] == "AgentStopped"
    assert shown(kubectl, "Stale")["status"] == "False"
    wait_until("stale", lambda: shown(kubectl, "Stale")["status"] == "True", seconds=STALE_WITHIN_SECONDS)
    print(f"stale {time.monotonic() - stopped:.1f} s after the stop")
    assert shown(kubectl, "Stale")["reason"] == "AgentLost"

    agent.start()
    wait_until("it says that it is back", lambda: shown(kubectl, "Ready")["reason"] != "AgentStopped")
    wait_until("fresh", lambda: shown(kubectl, "Stale")["status"] == "False")


def test_an_api_server_that_hangs_does_not_keep_an_agent_beyond_its_grace(
    agent: AgentProcess, apiserver: ApiServer, kubectl: Kubectl
) -> None:
    began = time.monotonic()
    with apiserver.hanging():
        assert agent.terminate() == 0
        assert time.monotonic() - began < GRACE_SECONDS
    assert agent.lines("failed to write that the agent stopped")
    agent.start()
    wait_until("it is back", lambda: shown(kubectl, "Ready").get("reason") == "KubeletUnreachable")
