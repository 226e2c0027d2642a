"""The MPS runner on daemons that a test commands: what is started, sent, taken over, and given back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace
from nodedevices_plugin.mps import records
from nodedevices_plugin.mps.control import Control, ControlError, ControlMissingError, Process
from nodedevices_plugin.mps.runner import BACKOFF, Runner
from nodedevices_plugin.sharing.mps import Gpu, MpsDaemon

GPU = "nvidia.com/gpu"


class Driver(Control):
    """NVIDIA's part: daemons by resource with their percentage, GPUs with their mode. `broken` names what fails."""

    def __init__(self) -> None:
        super().__init__("/mps")
        self.running: dict[str, int] = {}
        self.modes: dict[str, str] = {}
        self.said: list[str] = []
        self.broken: set[str] = set()
        self.servers = ""  # what get_server_list answers
        self.processes: dict[str, Process] = {}
        self.started = 0

    def find(self) -> None:
        if "programs" in self.broken:
            raise ControlMissingError("nvidia-cuda-mps-control not found")

    def percentage(self, resource: str) -> int:
        if resource not in self.running:
            raise ControlError("Cannot find MPS control daemon process")
        return self.running[resource]

    def send(self, resource: str, command: str, *, seconds: float = 0.0) -> str:
        self.percentage(resource)
        self.said.append(command)
        if command in self.broken:
            raise ControlError(command)
        if command.startswith("set_default_active"):
            self.running[resource] = int(command.split()[1])
        return self.servers if command == "get_server_list" else ""

    def start(self, resource: str) -> None:
        self.said.append("start")
        if "start" in self.broken:
            raise ControlError("no")
        self.running[resource] = 100
        self.started += 1
        self.processes[resource] = Process(pid=4711, start_ticks=self.started)

    def process(self, resource: str) -> Process | None:
        return self.processes.get(resource)

    def alive(self, process: Process) -> bool:
        return process in self.processes.values()

    def quit(self, resource: str) -> None:
        self.percentage(resource)
        self.said.append("quit")
        del self.running[resource]
        self.processes.pop(resource, None)

    def set_mode(self, gpu: str, mode: str) -> None:
        if gpu in self.broken:
            raise ControlError(f"{gpu} is lost")
        self.modes[gpu] = mode


def running(root: Path) -> tuple[records.Running, ...]:
    return records.read((root / records.RUNNING_FILE).read_bytes(), records.File[records.Running])


def daemon(*gpus: int, percentage: int = 25, resource: str = GPU, limit: int = 1000) -> MpsDaemon:
    listed = tuple(Gpu(id=f"GPU-{each}", index=each, limit_mib=limit) for each in gpus)
    return MpsDaemon(resource=resource, percentage=percentage, gpus=listed)


class Machine:
    """A root with a runner on it, and a clock."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.driver = Driver()
        self.clock = 100.0
        self.runner = Runner(root, self.driver)

    def want(self, *daemons: MpsDaemon) -> Machine:
        (self.root / records.WANTED_FILE).write_text(records.text(daemons))
        return self.after()

    def after(self, seconds: float = 1.0) -> Machine:
        self.clock += seconds
        self.runner.step(self.clock)
        return self

    def said(self) -> list[str]:
        new, self.driver.said = self.driver.said, []
        return new


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


STARTED = [
    "start",
    "set_default_active_thread_percentage 25",
    "set_default_device_pinned_mem_limit 0 1000M",
    "set_default_device_pinned_mem_limit 1 1000M",
]


def test_nothing_happens_before_a_request_and_a_daemon_is_started_once(machine: Machine) -> None:
    assert machine.after().said() == []
    assert machine.want(daemon(0, 1)).said() == STARTED
    assert machine.driver.modes == {"GPU-0": "EXCLUSIVE_PROCESS", "GPU-1": "EXCLUSIVE_PROCESS"}
    assert machine.after().after(60).said() == []


def test_gpus_that_are_offered_otherwise_are_announced_and_taken_when_they_no_longer_are(machine: Machine) -> None:
    waiting = replace(daemon(0, 1), waits=True)
    assert machine.want(waiting).after().said() == []
    assert machine.driver.modes == {}
    [announced] = running(machine.root)
    assert [gpu.id for gpu in announced.gpus] == ["GPU-0", "GPU-1"]
    assert machine.want(daemon(0, 1)).said() == STARTED
    assert set(machine.driver.modes.values()) == {"EXCLUSIVE_PROCESS"}


def test_without_its_programs_a_daemon_announces_nothing_so_that_its_gpus_stay_offered(machine: Machine) -> None:
    machine.driver.broken.add("programs")
    waiting = replace(daemon(0, 1), waits=True)
    machine.want(waiting).after(60)
    assert [run.gpus for run in running(machine.root)] == [()]
    machine.driver.broken.clear()
    machine.after(BACKOFF.max_seconds)
    [announced] = running(machine.root)
    assert [gpu.id for gpu in announced.gpus] == ["GPU-0", "GPU-1"]


def test_a_daemon_that_is_not_wanted_after_all_gives_back_what_was_announced(machine: Machine) -> None:
    machine.want(replace(daemon(0), waits=True)).want()
    assert running(machine.root) == ()
    assert machine.driver.modes == {"GPU-0": "DEFAULT"}


def test_a_daemon_that_runs_with_these_limits_is_taken_over(machine: Machine) -> None:
    machine.driver.running[GPU] = 25
    assert machine.want(daemon(0)).said() == ["set_default_device_pinned_mem_limit 0 1000M"]


def test_a_daemon_that_died_is_started_again_with_all_its_limits(machine: Machine) -> None:
    machine.want(daemon(0, 1)).said()
    del machine.driver.running[GPU]
    assert machine.after(10).said() == []  # one question without an answer is no death
    assert machine.after().said() == STARTED


def test_a_client_that_answers_for_a_dead_daemon_is_not_trusted(machine: Machine) -> None:
    machine.want(daemon(0, 1)).said()
    del machine.driver.processes[GPU]
    assert machine.after().said() == STARTED
    del machine.driver.processes[GPU]
    again = Runner(machine.root, machine.driver)
    again.step(1000)
    assert machine.said() == STARTED


def instance(root: Path) -> str:
    return running(root)[0].instance


def test_the_file_says_which_process_a_daemon_is_as_soon_as_it_answers(machine: Machine) -> None:
    seen = []
    sent = machine.driver.send

    def send(resource: str, command: str, *, seconds: float = 0.0) -> str:
        seen.append(instance(machine.root))
        return sent(resource, command)

    machine.driver.send = send  # type: ignore[method-assign]
    machine.want(daemon(0))
    assert seen[0].endswith("-4711-1")
    assert set(seen) == {instance(machine.root)}
    Runner(machine.root, machine.driver).step(1000)
    assert instance(machine.root) == seen[0], "one that is taken over is the same"
    del machine.driver.processes[GPU]
    machine.after()
    assert instance(machine.root).endswith("-4711-2")


def test_a_daemon_of_anothers_making_is_no_process_of_ours(machine: Machine) -> None:
    machine.driver.running[GPU] = 25
    machine.want(daemon(0))
    assert instance(machine.root) == ""


def test_what_the_agent_put_in_a_files_place_neither_hangs_nor_misleads_the_runner(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.want(daemon(0))
    (machine.root / records.WANTED_FILE).unlink()
    os.mkfifo(machine.root / records.WANTED_FILE)
    machine.after(30)
    assert "not a regular file" in capsys.readouterr().out
    (machine.root / records.WANTED_FILE).unlink()
    (machine.root / records.WANTED_FILE).write_text("[" * 100_000)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    (machine.root / f".{records.RUNNING_FILE}.new").symlink_to(elsewhere)
    del machine.driver.processes[GPU]
    machine.after(30)
    assert elsewhere.read_text() == "mine"
    assert machine.driver.running == {GPU: 25}


def test_one_that_cannot_be_started_is_tried_ever_more_rarely(machine: Machine) -> None:
    machine.driver.broken.add("start")
    machine.want(daemon(0))
    tries = sum("start" in machine.after(1).said() for _ in range(600))
    assert 600 / BACKOFF.max_seconds <= tries <= 600 / BACKOFF.max_seconds + 8
    machine.driver.broken.clear()
    machine.after(BACKOFF.max_seconds)
    assert machine.driver.running == {GPU: 25}


def test_other_threads_for_clients_need_a_new_daemon_and_another_gpu_does_not(machine: Machine) -> None:
    machine.want(daemon(0, 1)).said()
    assert machine.want(daemon(0, 1, 2)).said() == ["set_default_device_pinned_mem_limit 2 1000M"]
    assert machine.want(daemon(0, 1, percentage=50)).said() == [
        "quit",
        "start",
        "set_default_active_thread_percentage 50",
        "set_default_device_pinned_mem_limit 0 1000M",
        "set_default_device_pinned_mem_limit 1 1000M",
    ]
    assert machine.driver.modes["GPU-2"] == "DEFAULT"


def test_another_limit_of_a_gpu_reaches_the_servers_that_run(machine: Machine) -> None:
    machine.want(daemon(0)).said()
    machine.driver.servers = "4711"
    assert machine.want(daemon(0, limit=2000)).said() == [
        "get_server_list",
        "set_default_device_pinned_mem_limit 0 2000M",
        "set_active_thread_percentage 4711 25",
        "set_device_pinned_mem_limit 4711 0 2000M",
        "set_default_active_thread_percentage 25",
    ]


def test_limits_that_were_changed_are_set_and_clients_go_on(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.want(daemon(0)).said()
    machine.driver.running[GPU] = 80
    machine.driver.servers = "4711\n4712\n"
    assert machine.after(10).said() == [
        "get_server_list",
        "set_default_device_pinned_mem_limit 0 1000M",
        "set_active_thread_percentage 4711 25",
        "set_device_pinned_mem_limit 4711 0 1000M",
        "set_active_thread_percentage 4712 25",
        "set_device_pinned_mem_limit 4712 0 1000M",
        "set_default_active_thread_percentage 25",
    ]
    assert machine.driver.running == {GPU: 25}
    assert machine.after(10).said() == []
    assert "it limits its clients to 80 %, not 25 %" in capsys.readouterr().out


def test_limits_that_cannot_be_set_are_tried_at_every_pass(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.want(daemon(0)).said()
    machine.driver.running[GPU] = 80
    machine.driver.broken |= {"get_server_list", "set_default_active_thread_percentage 25"}
    assert "start" not in machine.after(10).after(10).said()
    assert machine.driver.running == {GPU: 80}
    machine.driver.broken.clear()
    machine.after(10)
    assert machine.driver.running == {GPU: 25}
    assert capsys.readouterr().out.count("limit not set") == 1


def test_a_gpu_that_fails_leaves_the_others_shared(machine: Machine) -> None:
    machine.driver.broken |= {"GPU-0", "set_default_device_pinned_mem_limit 0 1000M"}
    machine.want(daemon(0, 1))
    assert machine.driver.running == {GPU: 25}
    assert machine.driver.modes == {"GPU-1": "EXCLUSIVE_PROCESS"}


def test_where_every_gpu_fails_no_daemon_is_started(machine: Machine) -> None:
    machine.driver.broken |= {"GPU-0"}
    assert machine.want(daemon(0)).said() == []


def test_what_is_no_longer_wanted_ends_and_its_neighbour_goes_on(machine: Machine) -> None:
    other = daemon(1, resource="nvidia.com/big")
    machine.want(daemon(0), other).want(other)
    assert machine.driver.running == {"nvidia.com/big": 25}
    assert machine.driver.modes == {"GPU-0": "DEFAULT", "GPU-1": "EXCLUSIVE_PROCESS"}


def test_after_a_crash_the_gpus_of_a_daemon_that_nobody_wants_are_given_back(machine: Machine) -> None:
    machine.want(daemon(0), daemon(1, resource="nvidia.com/big"))
    again = Runner(machine.root, machine.driver)
    machine.driver.running.clear()  # the container's end took them along
    machine.driver.processes.clear()
    (machine.root / records.WANTED_FILE).write_text(records.text([daemon(0)]))
    again.step(1000)
    assert machine.driver.running == {GPU: 25}
    assert machine.driver.modes == {"GPU-0": "EXCLUSIVE_PROCESS", "GPU-1": "DEFAULT"}


def test_a_file_that_vanishes_or_is_wrong_ends_nothing(machine: Machine) -> None:
    machine.want(daemon(0))
    (machine.root / records.WANTED_FILE).write_text("{")
    machine.after(30)
    (machine.root / records.WANTED_FILE).unlink()
    machine.after(30)
    assert machine.driver.running == {GPU: 25}


def test_at_the_end_everything_is_given_back_whatever_fails(machine: Machine) -> None:
    machine.want(daemon(0, 1), daemon(2, resource="nvidia.com/big"))
    del machine.driver.running[GPU]
    machine.driver.broken.add("GPU-0")
    machine.runner.stop()
    assert machine.driver.running == {}
    assert machine.driver.modes["GPU-1"] == machine.driver.modes["GPU-2"] == "DEFAULT"


def test_problem_is_reported_once(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.driver.broken.add("start")
    machine.want(daemon(0)).after(100).after(100)
    assert capsys.readouterr().out.count("MPS control daemon not running") == 1


def test_a_root_that_cannot_be_written_ends_no_daemon(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    (machine.root / ".nodedevices-running.json.new").mkdir()
    machine.want(daemon(0)).after()
    assert machine.driver.running == {GPU: 25}
    assert "file error" in capsys.readouterr().out
