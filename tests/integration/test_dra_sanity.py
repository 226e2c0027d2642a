"""dra_sanity alone, as a command, on the driver that Kubernetes has as an example, and on a real API server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.example_driver import DRIVER, ExampleDriver
from support.kubectl import Kubectl, wait_until

ROOT = Path(__file__).parents[2]
NODE = "sanity"
RUN_SECONDS = 600.0
WRONG = {  # in v0.4.0
    "and its file is written again",  # after a reboot
    "several goes on to its end",  # one claim that is not there fails the whole call
    "a device that is prepared for another claim is refused",
}


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_the_example_driver_is_checked_by_the_command_and_its_faults_are_found(admin: Kubectl, tmp_path: Path) -> None:
    admin.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    driver = ExampleDriver(tmp_path)
    with driver.running(admin.kubeconfig, NODE):
        wait_until("its registration socket is there", lambda: any(driver.registry.glob("*.sock")))
        argv = [sys.executable, "-m", "dra_sanity", "--driver", DRIVER, "--pool", NODE, "--cdi", str(driver.cdi)]
        argv += ["--plugins-registry", str(driver.registry), "--kubeconfig", str(admin.kubeconfig)]
        path = f"{ROOT / 'tests'}:{os.environ.get('PYTHONPATH', '')}"
        done = subprocess.run(
            argv,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )
    failed = {
        line.removeprefix("FAILED").strip().partition(": ")[0] for line in done.stdout.splitlines() if "FAILED " in line
    }
    assert (done.returncode, failed) == (1, WRONG), done.stdout + done.stderr
