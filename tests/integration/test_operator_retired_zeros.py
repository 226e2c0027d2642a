"""Zeros that a kubelet leaves on the Node for names which the agent has retired, on the real API server.

Six minutes are two seconds here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.apiserver import ApiServer
from support.fleet import GPU, FleetNode, stamp
from support.kubectl import Kubectl, wait_until
from support.operatorprocess import OperatorProcess

SHARED = "nvidia.com/gpu.shared"
ELSE = "example.com/else"


@pytest.fixture
def node(apiserver: ApiServer, kubectl: Kubectl, tmp_path: Path) -> Iterator[FleetNode]:
    """A node whose agent retired one of three names; all of them show 0 but one."""
    made = FleetNode(kubectl, "n1").create()
    made.kubelet({GPU: 2, SHARED: 0, ELSE: 0})
    made.retired = {SHARED: stamp()}
    with OperatorProcess(tmp_path, apiserver.kubeconfig, retired_seconds=2):
        made.report()
        yield made


def test_a_retired_zero_goes_and_every_other_name_stays(node: FleetNode) -> None:
    wait_until("removed", lambda: SHARED not in node.capacity)
    status = node.node["status"]
    assert SHARED not in status["allocatable"]
    assert {name: status["capacity"][name] for name in (GPU, ELSE)} == {GPU: "2", ELSE: "0"}


def test_a_name_that_is_above_zero_stays_until_it_is_zero(node: FleetNode) -> None:
    node.kubelet({GPU: 2, SHARED: 8})
    node.retired = {SHARED: stamp(60)}
    node.report()
    wait_until("known", lambda: node.object["status"].get("retiredResources"))
    assert node.capacity[SHARED] == "8"
    node.kubelet({SHARED: 0})
    wait_until("removed", lambda: SHARED not in node.capacity)


def test_a_name_that_is_served_again_stays(node: FleetNode) -> None:
    wait_until("removed", lambda: SHARED not in node.capacity)
    node.retired = {GPU: stamp()}
    node.kubelet({GPU: 0, SHARED: 0})
    node.retired[SHARED] = stamp(1)
    node.report()
    wait_until("the other is removed", lambda: SHARED not in node.capacity)
    assert node.capacity[GPU] == "0"
