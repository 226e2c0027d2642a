"""The real agent and the real operator: a node whose agent was stopped is shown as stale, and never kept by it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from nodedevices_operator.desired.conditions import STOPPED_AFTER_SECONDS
from support.agentprocess import NODE, AgentProcess
from support.apiserver import ApiServer
from support.fleet import FleetNode
from support.kubectl import Kubectl, condition, wait_until
from support.operatorprocess import OperatorProcess


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


def changed(kubectl: Kubectl, kind: str) -> datetime:
    return datetime.fromisoformat(shown(kubectl, kind)["lastTransitionTime"])


def test_a_node_whose_agent_was_stopped_is_stale_some_seconds_later_and_not_when_it_is_back(
    agent: AgentProcess, kubectl: Kubectl
) -> None:
    assert agent.terminate() == 0
    assert shown(kubectl, "Ready")["reason"] == "AgentStopped"
    wait_until("stale", lambda: shown(kubectl, "Stale")["status"] == "True")
    assert shown(kubectl, "Stale")["reason"] == "AgentLost"
    between = changed(kubectl, "Stale") - changed(kubectl, "Ready")
    assert between.total_seconds() >= STOPPED_AFTER_SECONDS - 1, "one agent may follow another; times of whole seconds"

    agent.start()
    wait_until("it says that it is back", lambda: shown(kubectl, "Ready")["reason"] != "AgentStopped")
    wait_until("fresh", lambda: shown(kubectl, "Stale")["status"] == "False")


def test_an_api_server_that_hangs_does_not_keep_an_agent_beyond_its_grace(
    agent: AgentProcess, apiserver: ApiServer, kubectl: Kubectl
) -> None:
    with apiserver.hanging():
        assert agent.terminate() == 0
    [said] = agent.lines("failed to write that the agent stopped")
    assert said["error"] == "no answer", "it gave up by itself: that takes 4 s (status/publisher.py)"
    agent.start()
    wait_until("it is back", lambda: shown(kubectl, "Ready").get("reason") == "KubeletUnreachable")
