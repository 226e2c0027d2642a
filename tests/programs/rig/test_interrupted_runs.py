"""An interrupted run of pytest leaves nothing of what it has started; what a killed one leaves, the next removes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from cluster.rig import layout, processes, rig
from cluster.rig.problem import wait_for
from cluster.rig.processes import Process
from support.patience import CLUSTER_PATIENCE_SECONDS as SECONDS

TESTS = Path(__file__).resolve().parents[2]
# As a terminal starts it: whoever runs these tests may ignore SIGINT.
PYTEST = """
import signal, sys, pytest
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(pytest.main(["-p", "xdist", "-p", "support.owned_run", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""
# Each worker has a cluster, and a process in a session of its own.
WAITING = """
import subprocess, time
from pathlib import Path
import pytest
from cluster.rig import layout, processes

@pytest.mark.parametrize("number", [1, 2])
def test_waits(number):
    folder = layout.make(f"stand-in-{number}", layout.default_folder(f"stand-in-{number}"), 0).folder
    processes.start(folder, "etcd", ["sleep", "600"])
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    Path(f"started-{number}").touch()
    time.sleep(600)
"""


class Machine:
    """Runs of pytest that share a folder for their clusters."""

    def __init__(self, folder: Path) -> None:
        self.clusters = folder / "clusters"
        self._folder = folder
        (folder / "pytest.ini").write_text("[pytest]\n")  # or pytest looks for one in the folders above
        (folder / "waiting.py").write_text(WAITING)
        (folder / "passing.py").write_text("def test_passes():\n    pass\n")

    def _start(self, *arguments: str) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "PYTHONPATH": str(TESTS),
            "NODEDEVICES_STATE": str(self.clusters),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # which takes longer than the rest
        }
        for name in ("PYTEST_XDIST_WORKER", "PYTEST_ADDOPTS"):
            environment.pop(name, None)
        return subprocess.Popen(
            [sys.executable, "-c", PYTEST, *arguments],
            cwd=self._folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def waiting_run(self) -> subprocess.Popen[str]:
        """One whose two workers have started what they start."""
        run = self._start("-n2", "waiting.py")
        wait_for("both tests wait", lambda: len(list(self._folder.glob("started-*"))) == 2, seconds=SECONDS)
        wait_for("all four are sleep, no forks of Python", lambda: len(self.sleeping()) == 4, seconds=SECONDS)
        return run

    def next_run(self) -> str:
        """What a run says whose one test passes."""
        run = self._start("passing.py")
        said, _ = run.communicate(timeout=SECONDS)
        assert run.returncode == 0, said
        return said

    def living(self) -> list[Process]:
        return [process for process in processes.marked() if process.run.startswith(f"{self.clusters}:")]

    def sleeping(self) -> list[Process]:
        return [process for process in self.living() if _program(process.pid) == "sleep"]


def _program(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    found = Machine(tmp_path)
    yield found
    processes.end_of({process.run for process in found.living()})


def interrupt(run: subprocess.Popen[str]) -> None:
    run.send_signal(signal.SIGINT)


def interrupt_in_a_terminal(run: subprocess.Popen[str]) -> None:
    os.killpg(run.pid, signal.SIGINT)


def interrupt_twice(run: subprocess.Popen[str]) -> None:
    os.killpg(run.pid, signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        run.wait(0.2)
    with suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGINT)


def terminate(run: subprocess.Popen[str]) -> None:
    run.send_signal(signal.SIGTERM)


@pytest.mark.parametrize(
    "end",
    [
        interrupt_twice,
        *(pytest.param(each, marks=pytest.mark.long) for each in (interrupt, interrupt_in_a_terminal)),
    ],
)
def test_an_interrupted_run_leaves_nothing(machine: Machine, end: Callable[[subprocess.Popen[str]], None]) -> None:
    run = machine.waiting_run()
    end(run)
    said, _ = run.communicate(timeout=SECONDS)
    assert machine.living() == [], said
    assert not machine.clusters.exists(), said


def test_the_next_run_removes_what_a_killed_one_has_left_and_says_so(machine: Machine) -> None:
    run = machine.waiting_run()
    os.killpg(run.pid, signal.SIGKILL)
    run.communicate(timeout=SECONDS)
    assert len(machine.sleeping()) == 4
    clusters = [f"cluster {name} (1 process; {machine.clusters / name})" for name in ("stand-in-1", "stand-in-2")]
    assert f"removed what a killed run had left: {', '.join(clusters)}, 2 processes\n" in machine.next_run()
    assert machine.living() == []
    assert not machine.clusters.exists()
    assert "removed" not in machine.next_run()


def test_what_belongs_to_a_living_run_or_to_a_person_stays(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(processes.RUN, raising=False)
    persons = layout.make("default", machine.clusters / "default", 0).folder
    processes.start(persons, "etcd", ["sleep", "600"])
    run = machine.waiting_run()
    try:
        assert "removed" not in machine.next_run()
        assert len(machine.sleeping()) == 4
        terminate(run)
        run.communicate(timeout=SECONDS)
        assert [process.role for process in machine.living()] == []
        assert [process.role for process in processes.find(persons)] == ["etcd"]
        assert list(machine.clusters.iterdir()) == [persons]
    finally:
        rig.down(persons)
