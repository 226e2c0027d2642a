"""NVIDIA's two programs as we call them, the command line of nodedevices-mps, and the shared memory's size."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from nodedevices_plugin.mps import control, main, shm
from nodedevices_plugin.mps.control import Control, ControlError, ControlMissingError
from support.mps import programs, with_path

GPU = "nvidia.com/gpu"


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = programs(tmp_path / "bin")
    monkeypatch.setenv("PATH", with_path(folder)["PATH"])
    return folder


@pytest.fixture
def made(tmp_path: Path, bin_folder: Path) -> Control:
    return Control(str(tmp_path / "mps"))


def test_a_daemon_is_started_asked_told_and_ended(made: Control, tmp_path: Path) -> None:
    with pytest.raises(
        ControlError, match=r"^nvidia-cuda-mps-control get_.*: status 1: Cannot find MPS control daemon"
    ):
        made.percentage(GPU)
    made.start(GPU)
    assert made.percentage(GPU) == 100
    made.ask(GPU, "set_default_active_thread_percentage 12")
    assert made.percentage(GPU) == 12
    with pytest.raises(ControlError, match="already running"):
        made.start(GPU)
    made.quit(GPU)
    assert not (tmp_path / "mps" / GPU / "pipe" / "control").exists()


def test_the_compute_mode_is_nvidia_smis(made: Control, bin_folder: Path) -> None:
    made.set_mode("GPU-1", control.EXCLUSIVE)
    assert (bin_folder / "nvidia-smi.log").read_text() == "-i GPU-1 -c EXCLUSIVE_PROCESS\n"


def test_a_program_that_is_not_there_is_told_with_where_it_comes_from(made: Control, bin_folder: Path) -> None:
    (bin_folder / "nvidia-cuda-mps-control").unlink()
    with pytest.raises(ControlMissingError, match=r"not found; the nvidia container runtime brings it .* compute"):
        made.percentage(GPU)


def test_a_program_that_hangs_is_given_up(made: Control, bin_folder: Path) -> None:
    (bin_folder / "nvidia-cuda-mps-control").write_text("#!/bin/sh\nexec sleep 60\n")
    with pytest.raises(ControlError, match=r"quit: no answer within 0 s"):
        made.ask(GPU, "quit", seconds=0.2)


def test_an_answer_that_is_no_number_is_an_error(made: Control, bin_folder: Path) -> None:
    (bin_folder / "nvidia-cuda-mps-control").write_text("#!/bin/sh\necho what\n")
    with pytest.raises(ControlError, match="'what', which is no number"):
        made.percentage(GPU)


def test_a_hanging_daemon_is_killed_before_a_new_one_is_started_and_nobody_else_is(
    made: Control, bin_folder: Path, tmp_path: Path
) -> None:
    pipe = tmp_path / "mps" / GPU / "pipe"
    pipe.mkdir(parents=True)
    argv = [sys.executable, "-c", "import time; time.sleep(60)"]
    with subprocess.Popen([*argv, "nvidia-cuda-mps-control"]) as daemon, subprocess.Popen(argv) as other:
        for process in (other, daemon):
            while b"time.sleep" not in Path(f"/proc/{process.pid}/cmdline").read_bytes():
                time.sleep(0.01)
            (pipe / "nvidia-cuda-mps-control.pid").write_text(f"{process.pid}\n")
            (pipe / "control").unlink(missing_ok=True)
            made.start(GPU)
        assert daemon.wait(10) == -9
        assert other.poll() is None
        other.kill()


def test_the_shared_memory_is_half_of_the_machines() -> None:
    assert shm.size_kib("MemTotal:       65536000 kB\nMemFree: 1 kB\n") == 32768000
    assert shm.size_kib("") == shm.size_kib("MemTotal: many kB") == shm.FALLBACK_KIB


def test_one_that_cannot_be_mounted_is_told(tmp_path: Path) -> None:
    (tmp_path / "shm").touch()
    with pytest.raises(shm.ShmError, match=f"^{tmp_path}/shm: File exists"):
        shm.mount(tmp_path)
    argv = [sys.executable, "-m", "nodedevices_plugin.mps.main", "mount-shm", "--root", str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (1, f"nodedevices-mps: {tmp_path}/shm: File exists\n")


def test_a_wrong_command_line_is_refused() -> None:
    with pytest.raises(SystemExit, match="2"):
        main.main(["stop"])
