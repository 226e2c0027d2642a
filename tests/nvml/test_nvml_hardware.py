"""`make hardware` rehearsed: the folder that a machine with a GPU is given, on a library that takes the driver's place.

No network, and nothing of this environment but its Python. What needs CUDA or MPS says that it was skipped, and why.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hardware import bundle, main
from hardware.step import Request
from support import nvidia_smi

if TYPE_CHECKING:
    from nvml.conftest import FakeMachine

Json = dict[str, Any]
OFFLINE = ("unshare", "--net") if os.geteuid() == 0 else ()


def run(folder: Path, *arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    argv = [*OFFLINE, sys.executable, "-I", str(folder / "run.py"), *arguments]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.timeout(720, method="signal")
def test_the_whole_of_it_on_a_stand_in(machine: FakeMachine, tmp_path: Path) -> None:
    python, processor = bundle.here()
    folder = bundle.write(tmp_path / "bundle", python=python, machine=processor)
    machine.say(count=1)
    smi = nvidia_smi.program(tmp_path / "bin")
    environment = {**machine.environment(), "PATH": f"{smi}:{os.environ['PATH']}"}
    out = tmp_path / "record"
    state = environment["NVML_STATE"]
    done = run(folder, "--out", str(out), "--seconds", "1", "--nvml-state", state, environment=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((out / "record.json").read_text())
    steps: dict[str, Json] = record["steps"]
    assert {name: step["outcome"] for name, step in steps.items()} == {
        "probing": "done",
        "checking": "done",
        "serving": "done",
        "faults": "done",
        "use": "skipped",
        "mps": "skipped",
    }
    assert (steps["use"]["why"], steps["mps"]["why"]) == ("no CUDA on a stand-in", "no MPS on a stand-in")
    probed(steps["probing"]["found"])
    served(steps["serving"]["found"])
    failed(steps["faults"]["found"])
    assert steps["checking"]["found"]["summary"] == "DEVICES OK - 1 healthy (1 gpu)"
    assert steps["use"]["found"]["held and never used"]["word"] == "NeverUsed"
    assert (out / "row.md").read_text().splitlines()[-1] == record["row"]
    assert "different: powerLimit (W); " in record["row"]
    assert record["row"] in done.stdout


def probed(found: Json) -> None:
    card = found["nvidia-smi"][1]
    assert {field["field"] for field in card["fields"] if field["outcome"] == "different"} == {"powerLimit (W)"}
    assert found["calls"]["answers"]["nvmlDeviceGetUUID"]["answered"] == {"Success": 3}
    assert found["calls"]["answers"]["nvmlDeviceGetFanSpeed"]["answered"] == {"3 Not Supported": 3}
    assert set(found["at rest"]["resident MiB"]) == {"probe", "agent", "agent's"}
    assert found["at rest"]["poll milliseconds"] is not None


def served(found: Json) -> None:
    id_ = "GPU-00000000-0000-4000-8000-000000000000"
    assert found["by variables"]["Allocate"] == {"envs": {"NVIDIA_VISIBLE_DEVICES": id_}}
    files = found["by CDI, with device nodes alone"]["CDI"].values()
    [written] = [file for file in files if file["kind"] == "k8s.device-plugin.nvidia.com/gpu"]
    assert (written["devices"], written["no device node"]) == ([id_], ["/dev/nvidia0"])
    assert "no CDI specification with the driver's libraries" in found["by CDI, with the libraries"]


def failed(found: Json) -> None:
    for action, xid in (("read-out-of-bounds", 31), ("trap", 13)):
        case = found[action]
        assert (case["as expected"], case["kubelet offers it"], case["status"]["health"]["state"]) == (
            True,
            True,
            "Healthy",
        )
        assert f"Xid{xid}" in {notice["code"] for notice in case["status"]["notices"]}


def test_neither_another_python_nor_an_archive_that_was_changed_is_run(tmp_path: Path) -> None:
    python, machine = bundle.here()
    shutil.copy(bundle.HERE / "run.py", tmp_path)
    (tmp_path / bundle.ARCHIVE).write_bytes(b"another")
    for made_for, code, said in (("3.9", 2, "for CPython 3.9 on "), (python, 1, "is not the file that was put there")):
        about = {"python": made_for, "machine": machine, "sha256": "0" * 64}
        (tmp_path / "manifest.json").write_text(json.dumps(about))
        done = run(tmp_path, environment={})
        assert (done.returncode, said in done.stderr) == (code, True)


def test_a_step_that_hangs_in_the_driver_is_ended_with_what_it_had_found(
    machine: FakeMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.say(count=1, hang="nvmlDeviceGetUUID")
    for name, value in {**machine.environment(), "PYTHONPATH": str(bundle.HERE.parent), main.MARK: "hangs"}.items():
        monkeypatch.setenv(name, value)
    request = Request(out=tmp_path)
    request.write(tmp_path / "request.json")
    result = main.run_step(main.Step("probing", "", 5.0), request, 60.0)
    assert (result["outcome"], result["why"]) == ("failed", "ended after 5 s; it had found: machine")
