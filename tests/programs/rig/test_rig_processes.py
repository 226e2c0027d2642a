"""The rig's processes: found by their mark, ended by it, and nobody else's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from cluster.rig import processes
from cluster.rig.problem import wait_for
from support.patience import PATIENCE_SECONDS

TESTS = Path(__file__).resolve().parents[2]


def test_a_process_is_found_by_folder_and_role_and_ended(tmp_path: Path) -> None:
    processes.start(tmp_path, "one", ["sleep", "600"])
    processes.start(tmp_path, "two", ["sleep", "600"])
    assert sorted(found.role for found in processes.find(tmp_path)) == ["one", "two"]
    assert [ended.role for ended in processes.end(tmp_path, "one")] == ["one"]
    assert [ended.role for ended in processes.end(tmp_path)] == ["two"]
    assert processes.end(tmp_path) == []


def test_another_folders_process_is_left_alone(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "a", tmp_path / "ab"
    processes.start(ours, "one", ["sleep", "600"])
    processes.start(theirs, "one", ["sleep", "600"])
    try:
        processes.end(ours)
        assert len(processes.find(theirs)) == 1
    finally:
        processes.end(theirs)


def test_a_process_may_be_terminated_politely(tmp_path: Path) -> None:
    processes.start(tmp_path, "one", ["sleep", "600"])
    assert len(processes.end(tmp_path, how=signal.SIGTERM)) == 1


def test_a_mortal_process_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path; from cluster.rig import processes; "
        "processes.start(Path(sys.argv[1]), 'one', ['sleep', '600'], mortal=True); print('started', flush=True); "
        "signal.pause()"
    )
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"started\n"
        try:
            wait_for(
                "the child runs", lambda: programs(tmp_path) == ["sleep"], seconds=PATIENCE_SECONDS
            )  # and is to end with it
        finally:
            parent.kill()
    wait_for("the child is gone", lambda: not processes.find(tmp_path), seconds=PATIENCE_SECONDS)


def programs(folder: Path) -> list[str]:
    return [Path(f"/proc/{one.pid}/comm").read_text().strip() for one in processes.find(folder)]


def test_output_goes_to_a_log_named_by_the_role(tmp_path: Path) -> None:
    processes.start(tmp_path, "talker", ["echo", "words"])
    log = tmp_path / "log" / "talker"
    wait_for("it has spoken", lambda: log.read_text() == "words\n", seconds=PATIENCE_SECONDS)
