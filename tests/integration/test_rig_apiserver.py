"""The command tests/cluster/cluster with an API server alone: up, away, back with its data, gone. Needs no root."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from cluster.rig import layout, processes
from support.patience import CLUSTER_PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.apiserver, pytest.mark.long]


def cluster(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / "tests" / "cluster" / "cluster"), *args, "--state", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=CLUSTER_PATIENCE_SECONDS, check=False)


def kubectl(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KUBECONFIG": str(folder / "kubeconfig")}
    command = [str(folder / "bin" / "kubectl"), *args]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=CLUSTER_PATIENCE_SECONDS, check=False, env=environment
    )


def test_it_comes_goes_keeps_its_data_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    up = cluster(folder, "up", "--nodes", "0")
    try:
        assert up.returncode == 0, up.stderr
        assert f"KUBECONFIG={folder}/kubeconfig" in up.stdout
        assert kubectl(folder, "create", "namespace", "kept").returncode == 0
        again = cluster(folder, "up", "--nodes", "0")
        assert again.returncode == 1
        assert "is up already" in again.stderr
        assert cluster(folder, "apiserver-stop").returncode == 0
        assert kubectl(folder, "get", "namespaces").returncode != 0
        assert cluster(folder, "apiserver-start").returncode == 0
        assert "kept" in kubectl(folder, "get", "namespaces").stdout
    finally:
        down = cluster(folder, "down")
    assert down.returncode == 0, down.stderr
    assert "2 processes" in down.stdout
    assert processes.find(folder) == []
    assert not folder.exists()
    nothing = cluster(folder, "down")
    assert (nothing.returncode, "nothing to remove" in nothing.stdout) == (0, True)


def test_a_killed_up_is_taken_back(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    plan = layout.make("half", folder, 0)
    processes.start(plan.folder, "etcd", ["sleep", "600"])
    assert "1 processes" in cluster(folder, "down").stdout
    assert not folder.exists()
