"""Three minutes of chaos, of seeds that stay the same: `make chaos` has longer ones, and others.

The cluster is this file's own: its agents have a second probe and a disk that can be full. What is done, and what must
hold after each step, is in tests/chaos.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from chaos import cluster
from chaos.driver import Journal, Run, Violated
from support import cluster_provider

SEED = 124
SECONDS = 180
LIMIT_SECONDS = 600

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(LIMIT_SECONDS, method="signal")]


def test_three_minutes_of_chaos_take_no_device_from_its_pod_and_leave_nothing_unexplained(tmp_path: Path) -> None:
    if cluster_provider.is_users() or sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("stops kubelets, the API server and processes: only on our own rig, which needs Linux and root")
    with cluster.running("chaos") as made:
        journal = Journal(tmp_path)
        try:
            Run(made, SEED, journal).go(seconds=SECONDS)
        except Violated as error:
            error.add_note(f"make chaos SEED={SEED} runs the same steps again\n{journal.text()}")
            raise
        finally:
            journal.close()
