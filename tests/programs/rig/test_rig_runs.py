"""Which runs count as living, and whose a cluster is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from cluster.rig import layout, processes, runs


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODEDEVICES_STATE", str(tmp_path))
    monkeypatch.setenv(processes.RUN, "")


def test_a_run_lives_as_long_as_its_process_even_if_nobody_has_reaped_that() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        run = runs.name(process.pid)
        assert runs.alive(run)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not runs.alive(run)
    assert not runs.alive(run)


def test_a_pid_that_is_used_again_is_another_run() -> None:
    before, _, started = runs.name(os.getpid()).rpartition(":")
    assert runs.alive(f"{before}:{started}")
    assert not runs.alive(f"{before}:{int(started) - 1}")


def test_what_a_part_of_a_run_starts_belongs_to_the_run_and_otherwise_to_a_person(tmp_path: Path) -> None:
    persons = layout.make("default", tmp_path / "default", 0).folder
    assert (runs.current(), layout.owner(persons)) == ("", "")
    runs.begin()
    own = layout.make("own", tmp_path / "own", 0).folder
    assert runs.current() == layout.owner(own) == runs.name(os.getpid())
