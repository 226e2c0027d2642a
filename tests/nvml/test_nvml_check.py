"""nodedevices-check through the nvml probe and real pynvml, against a library that says what each test wants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.checked import CRITICAL, OK, UNKNOWN, check
from support.preloaded import Done

if TYPE_CHECKING:
    from nvml.conftest import FakeMachine


def checked(machine: FakeMachine, *arguments: str, age: str = "current") -> Done:
    return check("--probe", "nvml", "--driver-root-ctr-path", "", *arguments, more=machine.environment(age=age))


def test_gpus_that_nvml_reports_without_a_fault_are_ok(machine: FakeMachine) -> None:
    machine.say(count=8)
    done = checked(machine, "--expect", "gpu=8")
    assert (done.code, done.lines[0]) == (OK, "DEVICES OK - 8 healthy (8 gpu)")


def test_a_gpu_that_fell_off_the_bus_is_critical_for_the_job_that_gets_it_alone(machine: FakeMachine) -> None:
    machine.say(count=8, gpu3__lost=1)
    assert checked(machine, "--device", "0,1,2").code == OK
    done = checked(machine, "--device", "2,3")
    assert (done.code, "FallenOffBus" in done.lines[0]) == (CRITICAL, True)


def test_one_odd_answer_is_asked_again_before_it_is_judged(machine: FakeMachine) -> None:
    machine.say(count=2, gpu1__odd__nvmlDeviceGetRemappedRows=1)
    done = checked(machine)
    assert (done.code, done.lines[0]) == (OK, "DEVICES OK - 2 healthy (2 gpu)")


def test_without_the_library_the_answer_is_unknown_and_says_what_is_lacking(machine: FakeMachine) -> None:
    done = checked(machine, age="none")
    assert (done.code, done.lines[0]) == (UNKNOWN, "DEVICES UNKNOWN - probe nvml: no driver")
    assert "libnvidia-ml.so.1" in done.lines[1]
