"""`make bench` as far as it needs no root: a fleet of two goes through the operator's part and the extender's, so that
they cannot rot; so do the parts of decisions and of kubectl nodedevices."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.apiserver, pytest.mark.long, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
MEASURED = (
    "2 nodes, a restart: start -> ready",
    "6 nodes, a restart: start -> ready",
    "another pod holds a GPU, nothing to write: CPU each",
    "an agent's heartbeat: CPU each",
    "a kubelet's heartbeat on its Node: CPU each",
    "2 nodes, a fresh install -> rests",
    "writes: config 2, node-condition 2, object-labels 2, status 2",
    "2 nodes, a LIST of pods each: the calls alone",
    "2 nodes, a policy touches all -> rests",
    "last report -> last pod marked",
    "2 nodes, a fault on a held GPU each -> rests",
)
DECIDED = (
    "2 nodes, 200 policies: a fault comes -> decided",
    "2 nodes, 200 policies on all of them: one node changes -> counts",
    "2 nodes, a roll-out 10 % at a time: all of its decisions",
)


def test_the_operators_benchmark_measures_a_tiny_fleet_to_its_last_mark() -> None:
    command = [sys.executable, "-m", "benchmarks", "operator", "--nodes", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    missing = [what for what in MEASURED if what not in done.stdout]
    assert not missing, done.stdout


@pytest.fixture(scope="module")
def others() -> str:
    """What the parts without an API server of Kubernetes print, of one process."""
    command = [sys.executable, "-m", "benchmarks", "decisions", "extender", "kubectl", "--nodes", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    return done.stdout


def test_the_benchmark_of_decisions_measures_a_tiny_fleet(others: str) -> None:
    missing = [what for what in DECIDED if what not in others]
    assert not missing, others


def test_the_extenders_benchmark_measures_a_tiny_fleet(others: str) -> None:
    for what in ("2 nodes: start", "filter 2 names, one size: p50", "prioritize 2 names, 40 sizes: p50", "memory"):
        assert what in others


def test_the_benchmark_of_kubectl_nodedevices_measures_a_tiny_fleet(others: str) -> None:
    for what in ("nodes: CPU", "devices: first page", "devices as JSON: memory"):
        assert f"2 nodes of 8 GPUs, {what}" in others
