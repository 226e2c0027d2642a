"""`make demo` from its first line to its last, on a cluster of its own: no other test plays it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import cluster_provider

ROOT = Path(__file__).parents[2]
SECONDS = 1200

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(SECONDS + 60, method="signal")]


@pytest.mark.skipif(
    cluster_provider.is_users() or sys.platform != "linux" or os.geteuid() != 0, reason="its cluster is of our rig"
)
def test_the_demo_plays_to_its_end_and_leaves_nothing_behind() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "demo"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    assert "nothing is left behind" in done.stdout
    assert "Second act" in done.stdout
