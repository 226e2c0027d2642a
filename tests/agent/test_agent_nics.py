"""RDMA devices in the whole agent: Mellanox' file, a tree of sysfs that the nic probe reads, and pods that share HCAs.

The probe is its own process, as on a node; the tree is a dual-port ConnectX-7 of the tests' own making.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.kubelet import StandInKubelet
from support.nic_trees import connectx_7_pair
from support.running_agent import RunningAgent, replace_file

SHARED = "rdma/hca_a"
ENTRY = {"resourceName": "hca_a", "rdmaHcaMax": 10, "selectors": {"vendors": ["15b3"]}}


class Node(RunningAgent):
    def __init__(self, folder: Path, kubelet: StandInKubelet) -> None:
        self.tree, self.file = folder / "tree", folder / "devices" / "rdma.json"
        self.file.parent.mkdir()
        connectx_7_pair(self.tree)
        self.writes(ENTRY)
        probe = f"{Path(sys.executable).parent / 'nodedevices-probe'} nic --root {self.tree} --interval-seconds 0.2"
        flags = (f"--probe=nic={probe}", f"--devices-dir={self.file.parent}")
        super().__init__(folder, kubelet, *flags)

    def writes(self, *entries: dict[str, Any]) -> None:
        replace_file(self.file, json.dumps({"configList": entries}))

    def holders(self) -> dict[str, list[str]]:
        """Pods of each HCA, by its RDMA device."""
        return {
            each["attributes"]["extra"]["rdmaDevice"]["string"]: sorted(one["pod"] for one in each.get("holders", ()))
            for each in self.devices.values()
        }

    def applied(self) -> tuple[str, str]:
        return self.condition("ConfigApplied")


@pytest.fixture
async def node(tmp_path: Path, kubelet: StandInKubelet) -> AsyncIterator[Node]:
    async with Node(tmp_path, kubelet).running() as node:
        yield node


async def test_pods_share_hcas_and_an_edit_that_makes_these_exclusive_waits_for_the_pods(
    node: Node, kubelet: StandInKubelet
) -> None:
    await kubelet.until(lambda: kubelet.allocatable(SHARED) == 10)
    for pod in ("mpi-0", "mpi-1"):
        granted = await kubelet.allocate(SHARED, 1, pod=pod, namespace="ml")
        paths = {each.host_path for each in granted.answer.devices}
        assert {"/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1"} <= paths
        assert {each.permissions for each in granted.answer.devices} == {"rwm"}
    await kubelet.until(lambda: set(map(tuple, node.holders().values())) == {("mpi-0", "mpi-1")})
    assert len(node.holders()) == 2
    [resource] = [each for each in node.status["resources"] if each["name"] == SHARED]
    assert (resource["capacity"], resource["allocated"], resource["sharing"]) == (10, 2, "shared")
    node.writes({"resourceName": "hca", "mode": "perDevice", "selectors": {"vendors": ["15b3"]}})
    await kubelet.until(lambda: node.applied()[0] == "WaitingForHolders")
    assert kubelet.allocatable("rdma/hca") == 0, "each HCA is the pod's, whichever id it was granted"
    for pod in ("mpi-0", "mpi-1"):
        kubelet.release(pod, namespace="ml")
    await kubelet.until(lambda: kubelet.allocatable("rdma/hca") == 2)
    await kubelet.until(lambda: kubelet.allocatable(SHARED) == 0)
    await kubelet.until(lambda: node.applied()[0] == "Applied")
