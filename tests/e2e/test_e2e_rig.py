"""The rig itself: a second cluster beside the session's, and no trace of it however it ended."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from cluster.rig import cgroups, layout, processes, rig, versions
from cluster.rig.problem import Progress
from support.cluster_provider import ClusterProvider
from support.rig import own_name

TESTS = Path(__file__).resolve().parents[1]

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.long]


@pytest.fixture
def folder(provider: ClusterProvider) -> Iterator[Path]:
    if provider.own_rig is None:
        pytest.skip("tests our own rig, not the user's cluster")
    with ExitStack() as ending:
        place = layout.default_folder(own_name("e2e-rig", ending))
        rig.down(place)
        yield place
        rig.down(place)


def traces(folder: Path, plan: layout.Layout) -> list[str]:
    """What is left of a cluster on this machine."""
    links = [name for name in layout.links(plan.bridge) if Path("/sys/class/net", name).exists()]
    groups = [str(one) for hierarchy in cgroups.hierarchies() for one in hierarchy.glob(f"{plan.bridge}-*")]
    mounts = [line for line in Path("/proc/self/mounts").read_text().splitlines() if f"{folder}/" in line]
    routes = [line for line in layout.ip("route").splitlines() if plan.bridge in line.split()]
    found = [*map(str, processes.find(folder)), *links, *groups, *mounts, *routes]
    return [*found, str(folder)] if folder.exists() else found


def test_every_part_is_of_the_release_that_was_chosen(folder: Path, provider: ClusterProvider) -> None:
    server = json.loads(provider.kubectl.run("get", "--raw", "/version"))["gitVersion"]
    nodes = provider.kubectl.items("nodes")
    kubelets = {each["status"]["nodeInfo"]["kubeletVersion"] for each in nodes}
    assert {server, *kubelets} == {versions.chosen().release}


def test_a_cluster_beside_another_leaves_no_trace_after_its_parts_were_killed(
    folder: Path, provider: ClusterProvider
) -> None:
    made = rig.up(folder.name, folder, 1, [], Progress(quiet=True))
    assert traces(folder, made.layout)
    for role in ("etcd", "n1-pid1", "kube-scheduler"):
        processes.end(folder, role)
    rig.down(folder)
    assert traces(folder, made.layout) == []
    assert rig.down(folder) == []
    assert provider.kubectl.run("get", "--raw", "/readyz") == "ok"


def test_a_cluster_whose_folder_was_deleted_is_still_taken_down(folder: Path) -> None:
    made = rig.up(folder.name, folder, 1, [], Progress(quiet=True))
    shutil.rmtree(folder)
    assert rig.down(folder)
    assert traces(folder, made.layout) == []


@pytest.mark.parametrize("seconds", [0.3, 1.0, 2.0, 3.5])
def test_an_up_that_is_killed_is_taken_back(folder: Path, seconds: float) -> None:
    command = [sys.executable, "-m", "cluster.rig", "up", "--name", folder.name, "--nodes", "1"]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as up:
        time.sleep(seconds)
        up.kill()
    plan = layout.read(folder)
    rig.down(folder)
    assert plan is None or traces(folder, plan) == []
