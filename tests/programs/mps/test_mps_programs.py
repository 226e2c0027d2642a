"""NVIDIA's two programs as we call them, the command line of nodedevices-mps, and the shared memory's size."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from nodedevices_plugin.mps import control, main
from nodedevices_plugin.mps.control import Control, ControlError, ControlMissingError
from support.mps import programs, with_path
from support.patience import PATIENCE_SECONDS

GPU = "nvidia.com/gpu"


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = programs(tmp_path / "bin")
    monkeypatch.setenv("PATH", with_path(folder)["PATH"])
    return folder


@pytest.fixture
def made(tmp_path: Path, bin_folder: Path) -> Control:
    return Control(str(tmp_path / "mps"))


def test_a_daemon_is_started_queried_commanded_and_ended(made: Control, tmp_path: Path) -> None:
    with pytest.raises(
        ControlError, match=r"^nvidia-cuda-mps-control get_.*: status 1: Cannot find MPS control daemon"
    ):
        made.percentage(GPU)
    made.start(GPU)
    assert made.percentage(GPU) == 100
    made.send(GPU, "set_default_active_thread_percentage 12")
    assert made.percentage(GPU) == 12
    first = made.process(GPU)
    assert first is not None
    made.start(GPU)
    second = made.process(GPU)
    assert second is not None
    assert second.instance != first.instance, "a new daemon, and the one before is killed"
    assert (made.alive(first), made.alive(second)) == (False, True)
    assert abs((datetime.now(UTC) - second.started).total_seconds()) < 60
    made.quit(GPU)
    assert not (tmp_path / "mps" / GPU / "pipe" / "control").exists()
    assert not made.alive(second)


def test_the_compute_mode_is_nvidia_smis(made: Control, bin_folder: Path) -> None:
    made.set_mode("GPU-1", control.EXCLUSIVE)
    assert (bin_folder / "nvidia-smi.log").read_text() == "-i GPU-1 -c EXCLUSIVE_PROCESS\n"


def test_a_program_that_is_not_there_is_reported_with_where_it_comes_from(made: Control, bin_folder: Path) -> None:
    (bin_folder / "nvidia-cuda-mps-control").unlink()
    with pytest.raises(ControlMissingError, match=r"not found; the nvidia container runtime brings it .* compute"):
        made.percentage(GPU)


def test_a_program_that_hangs_is_given_up(made: Control, bin_folder: Path) -> None:
    (bin_folder / "nvidia-cuda-mps-control").write_text("#!/bin/sh\nexec sleep 60\n")
    with pytest.raises(ControlError, match=r"quit: no answer within 0 s"):
        made.send(GPU, "quit", seconds=0.2)


def test_an_answer_that_is_no_number_is_an_error(made: Control, bin_folder: Path) -> None:
    (bin_folder / "nvidia-cuda-mps-control").write_text("#!/bin/sh\necho what\n")
    with pytest.raises(ControlError, match="'what', which is not a number"):
        made.percentage(GPU)


SLEEPS = "import time; time.sleep(60)"


@contextmanager
def sleeping(*arguments: str, pipe: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process with that first argument in its list, whose environment names that pipe folder."""
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": pipe}
    argv = [sys.executable, "-c", SLEEPS]
    with subprocess.Popen([*arguments, *argv[1:]], executable=sys.executable, env=environment) as process:
        while b"time.sleep" not in Path(f"/proc/{process.pid}/cmdline").read_bytes():
            time.sleep(0.01)
        yield process
        process.kill()


def test_a_hanging_daemon_is_killed_before_a_new_one_is_started_and_nobody_else_is(
    made: Control, tmp_path: Path
) -> None:
    pipe, program = f"{tmp_path}/mps/{GPU}/pipe", "nvidia-cuda-mps-control"
    with (
        sleeping(program, pipe=pipe) as hangs,
        sleeping(program, pipe=f"{tmp_path}/mps/{GPU}.large/pipe") as of_another_resource,
        sleeping("nvidia-cuda-mps-server", pipe=pipe) as of_another_program,
    ):
        for other in (of_another_resource, of_another_program):
            Path(pipe).mkdir(parents=True, exist_ok=True)
            Path(pipe, "nvidia-cuda-mps-control.pid").write_text(f"{other.pid}\n")
            made.start(GPU)
        assert hangs.wait(PATIENCE_SECONDS) == -9
        assert (of_another_resource.poll(), of_another_program.poll()) == (None, None)
    made.quit(GPU)


def test_a_process_of_another_container_is_never_a_daemon_of_ours(made: Control, tmp_path: Path) -> None:
    pipe = f"{tmp_path}/mps/{GPU}/pipe"
    if subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("needs to make a mount namespace")
    with sleeping("nvidia-cuda-mps-control", pipe=pipe) as ours:
        assert made.process(GPU) is not None
        ours.kill()
        ours.wait(PATIENCE_SECONDS)
    argv = ["unshare", "--mount", "sh", "-c", f"exec nvidia-cuda-mps-control --serve {tmp_path}"]
    with subprocess.Popen(argv, env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": pipe}) as client:
        while b"--serve" not in Path(f"/proc/{client.pid}/cmdline").read_bytes().split(b"\0"):
            time.sleep(0.01)
        assert made.process(GPU) is None
        made.start(GPU)
        assert client.poll() is None
        client.kill()
    made.quit(GPU)


@pytest.mark.parametrize("what", ["fifo", "endless", "link"])
def test_what_a_client_puts_into_the_pipe_folder_neither_hangs_a_start_nor_is_written_through(
    made: Control, tmp_path: Path, what: str
) -> None:
    pipe, mine = tmp_path / "mps" / GPU / "pipe", tmp_path / "mine"
    pipe.mkdir(parents=True)
    mine.write_text("mine")
    for name in ("nvidia-cuda-mps-control.pid", "percentage", "control"):
        if what == "fifo":
            os.mkfifo(pipe / name)
        else:
            (pipe / name).symlink_to("/dev/zero" if what == "endless" else mine)
    made.start(GPU)
    assert made.percentage(GPU) == 100
    made.quit(GPU)
    assert mine.read_text() == "mine"


def test_a_link_in_the_place_of_a_daemons_folder_is_refused(made: Control, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "mps").mkdir()
    (tmp_path / "mps" / "nvidia.com").symlink_to(elsewhere)
    with pytest.raises(ControlError, match=r"mps/nvidia.com/gpu/pipe: "):
        made.start(GPU)
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("answer", ["inf", "nan", "1e400", "9" * 5000])
def test_no_number_that_a_client_answers_with_ends_the_one_that_queries(
    made: Control, bin_folder: Path, answer: str
) -> None:
    (bin_folder / "nvidia-cuda-mps-control").write_text(f"#!/bin/sh\necho {answer}\n")
    with pytest.raises(ControlError, match="which is not a number"):
        made.percentage(GPU)


def test_an_endless_answer_is_cut_off(made: Control, bin_folder: Path) -> None:
    (bin_folder / "nvidia-cuda-mps-control").write_text("#!/bin/sh\nexec cat /dev/zero\n")
    with pytest.raises(ControlError, match="status -25"):
        made.percentage(GPU)


def test_the_shared_memory_is_half_of_the_machines() -> None:
    [total] = [line.split()[1] for line in Path("/proc/meminfo").read_text().splitlines() if "MemTotal" in line]
    assert main.half_of_memory_kib() == int(total) // 2


def test_one_that_cannot_be_mounted_is_reported(tmp_path: Path) -> None:
    (tmp_path / "shm").touch()
    with pytest.raises(main.ShmError, match=f"^{tmp_path}/shm: Not a directory"):
        main.mount(tmp_path)
    argv = [sys.executable, "-m", "nodedevices_plugin.mps.main", "mount-shm", "--root", str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert (done.returncode, done.stderr) == (1, f"nodedevices-mps: {tmp_path}/shm: Not a directory\n")


def test_a_wrong_command_line_is_refused() -> None:
    with pytest.raises(SystemExit, match="2"):
        main.main(["stop"])


def test_a_folder_that_a_client_made_in_a_daemons_place_is_out_of_the_way(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    (pipe / "control").mkdir(parents=True)
    (pipe / "control.log" / "deep" / "er").mkdir(parents=True)
    (pipe / "link").symlink_to(tmp_path)
    for _ in range(2):  # what was put aside once stays so
        with control.open_folder(pipe) as descriptor:
            control.clear(descriptor)
        [left] = pipe.iterdir()
        assert left.name.startswith(control.ASIDE)
    assert tmp_path.is_dir()
