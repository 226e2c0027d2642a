"""nodedevices-check as a process, with simulated devices: what it prints, and its exit status.

A probe server runs the probes, as in the agent's pod: it forks them, which takes a tenth of a start. That the check
starts them itself, as on a machine without Kubernetes, is in the tests of hanging drivers and in test_check_page.py.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from nodedevices_api.nodedevices import NodeDevices
from nodedevices_common.errors import InputError
from nodedevices_plugin.check.command import parse
from nodedevices_plugin.check.reading import sections
from nodedevices_plugin.model import Fault, HealthState, InventoryDevice, Usual, Verdict
from nodedevices_plugin.pipeline.state import SeenSpec, State, StateFile
from nodedevices_probe.protocol import DeviceFact
from support.checked import COMMAND, CRITICAL, OK, UNKNOWN, WARNING, Simulated, check, environment
from support.patience import PATIENCE_SECONDS
from support.preloaded import Done
from support.served import preloaded_server

NOW = datetime.now(UTC)
BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()

TWO = "profile: l4 x 2\n"
HOT = "profile: l4 x 2\ndevices: [{index: 1, thermalSlowdown: true}]\n"
LOST = "profile: l4 x 2\ndevices: [{index: 1, lost: true, recoveryAction: RebootNode}]\n"
ONE_LEFT = "profile: l4 x 2\ndevices: [{index: 1, absent: true}]\n"
HUNG = "profile: l4 x 2\nhang: true\n"
GPU_0, GPU_1 = "GPU-03553a93-729e-52d5-9fe4-540a3dd201f2", "GPU-2413b378-7599-5748-af80-146f76b695e9"

XID79 = "{reasons: [Xid79]"

COOL_ENOUGH = """
apiVersion: nodedevices.io/v1alpha1
kind: DevicePolicy
metadata: {name: warm-room}
spec:
  nodeSelector: {}
  health: {rules: [{reasons: [ThermalSlowdown], state: Ignored}]}
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulated]:
    folder = tmp_path_factory.mktemp("machine")
    path = folder / "probes.sock"
    simulated = Simulated(folder, "--probe-server", f"unix:{path}")
    with preloaded_server(path, f"--simulated={simulated.file}"):
        yield simulated


@pytest.fixture
def alone(tmp_path: Path) -> Simulated:
    """Without a probe server."""
    return Simulated(tmp_path)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return tmp_path / "policy.yaml"


def devices(done: Done) -> list[str]:
    """The names of the devices in a table."""
    return [line.split()[0] for line in done.lines[3:]]


# --- verdicts, and the exit status that follows ----------------------------------------------------------------------
def test_devices_without_a_fault_are_ok(machine: Simulated) -> None:
    done = machine.check(TWO)
    assert (done.code, done.err) == (OK, "")
    assert done.lines == [
        "DEVICES OK - 2 healthy (2 gpu)",
        "",
        "NAME    ID                                         MODEL       HEALTH    REASON   ACTION   MESSAGE",
        f"gpu-0   {GPU_0}   NVIDIA L4   Healthy   <none>   <none>   <none>",
        f"gpu-1   {GPU_1}   NVIDIA L4   Healthy   <none>   <none>   <none>",
    ]


def test_a_degraded_device_is_a_warning(machine: Simulated) -> None:
    done = machine.check(HOT)
    assert (done.code, done.lines[0]) == (WARNING, "DEVICES WARNING - gpu-1 ThermalSlowdown")


def test_an_unhealthy_device_is_critical_with_its_reason_and_action(machine: Simulated) -> None:
    done = machine.check(LOST)
    assert (done.code, done.lines[0]) == (CRITICAL, "DEVICES CRITICAL - gpu-1 FallenOffBus")
    assert done.lines[-1].split("   ")[3:] == [
        "Unhealthy",
        "FallenOffBus",
        "RebootNode",
        "GPU has fallen off the bus; reboot the node",
    ]


def test_for_a_monitoring_plugin_the_first_line_is_summary_and_performance_data(machine: Simulated) -> None:
    done = machine.check(LOST, "-o", "nagios")
    assert done.code == CRITICAL
    summary, _, data = done.lines[0].partition(" | ")
    assert summary == "DEVICES CRITICAL - gpu-1 FallenOffBus"
    assert data == "devices=2;;;0 healthy=1;;;0 degraded=0;;;0 unhealthy=1;;;0 unknown=0;;;0"
    assert done.lines[1:] == [f"{GPU_1}: Unhealthy: FallenOffBus: GPU has fallen off the bus; reboot the node"]


def passed(done: Done) -> dict[str, str]:
    """The result of the check, in the object that it prints."""
    [found] = [each for each in done.document["status"]["conditions"] if each["type"] == "CheckPassed"]
    return {key: found[key] for key in ("status", "reason", "message") if key in found}


def test_json_is_the_nodedevices_object_with_the_result_as_a_condition(machine: Simulated) -> None:
    done = machine.check(LOST, "-o", "json", "--device", "gpu-1")
    assert done.code == CRITICAL
    item = NodeDevices.model_validate(done.document)
    assert (item.metadata.name, done.document.keys()) == ("node-a", {"apiVersion", "kind", "metadata", "status"})
    [device], [probe], [driver] = item.status.devices, item.status.probes, item.status.drivers
    assert device.attributes is not None
    assert (device.name, device.id, device.attributes.product_name) == ("gpu-1", GPU_1, "NVIDIA L4")
    assert (device.health.state, device.health.reason, device.health.recovery_action, device.health.message) == (
        *("Unhealthy", "FallenOffBus", "RebootNode"),
        "GPU has fallen off the bus; reboot the node",
    )
    assert (probe.name, probe.state, driver.version) == ("simulated", "Ready", "570.148.08")
    assert passed(done) == {
        "status": "False",
        "reason": "CRITICAL",
        "message": f"{GPU_1}: Unhealthy: FallenOffBus: GPU has fallen off the bus; reboot the node",
    }


def test_json_has_the_agents_own_sum_of_the_node_and_nothing_of_a_kubelet(machine: Simulated) -> None:
    done = machine.check(LOST, "-o", "json", "--expect", "gpu=2")
    status = done.document["status"]
    assert (status["summary"]["devices"], status["summary"]["unhealthy"]) == (2, 1)
    assert [each["type"] for each in status["conditions"]] == ["DevicesHealthy", "ExpectedDevices", "CheckPassed"]
    assert not status.keys() & {"agent", "resources"}


# --- what should be there --------------------------------------------------------------------------------------------
def test_one_device_too_few_is_critical(machine: Simulated) -> None:
    done = machine.check(ONE_LEFT, "--expect", "gpu=2")
    assert (done.code, done.lines[0]) == (CRITICAL, "DEVICES CRITICAL - 1 of 2 (type gpu)")
    assert done.lines[1] == "type gpu: 1 of 2 expected; inspect the node"
    assert machine.check(ONE_LEFT, "--expect", "gpu=1").code == OK


def test_a_device_that_is_lost_is_none_of_those_that_are_found_and_the_message_names_it(machine: Simulated) -> None:
    done = machine.check(LOST, "--expect", "gpu=2")
    assert (done.code, done.lines[0]) == (CRITICAL, "DEVICES CRITICAL - gpu-1 FallenOffBus, 1 of 2 (type gpu)")
    assert done.lines[1] == "type gpu: 1 of 2 expected: gpu at 0000:18:00.0 is missing; inspect the node"
    both = "profile: l4 x 3\ndevices: [{index: 1, lost: true}, {index: 2, lost: true}]\n"
    said = machine.check(both, "--expect=gpu=3").lines[1]
    assert said.startswith("type gpu: 1 of 3 expected: gpu at ")
    assert said.endswith(" are missing; inspect the node")


def test_a_type_that_no_device_has_is_critical_and_the_types_that_are_here_are_named(machine: Simulated) -> None:
    done = machine.check("profile: l4 x 2, connectx-7 x 1\n", "--expect", "gpus=2")
    assert (done.code, done.lines[1]) == (
        CRITICAL,
        "type gpus: 0 of 2 expected; here are: 2 gpu, 1 nic; inspect the node",
    )


def test_a_policy_says_what_should_be_there_too(machine: Simulated, policy: Path) -> None:
    policy.write_text("expect: [{productName: NVIDIA L4, count: 2}]")
    done = machine.check(ONE_LEFT, "--policy", str(policy))
    assert (done.code, done.lines[0]) == (CRITICAL, "DEVICES CRITICAL - 1 of 2 (productName NVIDIA L4)")


def test_without_the_driver_what_is_expected_is_lacking(machine: Simulated) -> None:
    done = machine.check("driver: {state: NotLoaded}", "--expect", "gpu=8")
    assert (done.code, done.lines[0]) == (CRITICAL, "DEVICES CRITICAL - 0 of 8 (type gpu), probe simulated: no driver")


# --- by which rules --------------------------------------------------------------------------------------------------
def test_a_policys_rules_decide(machine: Simulated, policy: Path) -> None:
    policy.write_text(COOL_ENOUGH)
    assert machine.check(HOT, "--policy", str(policy)).code == OK
    # Sections alone are a policy.
    policy.write_text('{"health": {"rules": [{"reasons": ["Thermal*"], "state": "Unhealthy"}]}}')
    assert machine.check(HOT, "--policy", str(policy)).code == CRITICAL


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("health: {holdDownSecond: 5}", "health.holdDownSecond: unknown key; did you mean holdDownSeconds?"),
        ("healht: {}", "healht: unknown key; did you mean health?"),
        ("kind: Pod", "kind: 'Pod' is not supported here; give a DevicePolicy, or only its sections"),
        (COOL_ENOUGH.replace("nodeSelector", "nodeSelect"), "spec.nodeSelect: unknown key; did you mean nodeSelector?"),
        ("- health", "['health'] is not a policy; give a DevicePolicy, or only its sections"),
        ("", "0 documents; give one policy"),
        ("health: {}\n---\nhealth: {}", "2 documents; give one policy"),
        ("health: [", "line 2: not YAML: "),
    ],
)
def test_what_is_wrong_in_a_policy_is_named(content: str, why: str) -> None:
    with pytest.raises(InputError) as refused:
        sections(content.encode())
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("rules", "note"),
    [
        ("{reasons: [thermalslowdown], state: Ignored}", "rules[0].reasons thermalslowdown: no such reason; "),
        (
            f"{XID79}, state: Unhealthy}}, {XID79}, state: Degraded, after: {{count: 3, windowSeconds: 60}}}}",
            "rules[1].after.count 3: rules[0] comes before it",
        ),
        (
            "{reasons: [Xid79], state: Unhealthy, match: {productName: NVIDIA H100}}",
            "rules[0].match productName NVIDIA H100: the rule applies to no device",
        ),
    ],
)
def test_a_rule_of_a_policy_that_has_no_effect_is_noted_after_the_table(
    machine: Simulated, policy: Path, rules: str, note: str
) -> None:
    policy.write_text(f"health: {{rules: [{rules}]}}")
    done = machine.check(TWO, "--policy", str(policy))
    assert (done.code, done.lines[-2]) == (OK, "")
    assert done.lines[-1].startswith(f"note: health.{note}")


@pytest.mark.parametrize("content", ["healht: {}", "discovery: {probes: [nvlm]}"])
def test_a_wrong_policy_judges_nothing(machine: Simulated, policy: Path, content: str) -> None:
    policy.write_text(content)
    done = machine.check(LOST, "--policy", str(policy), "-o", "json")
    assert (done.code, done.document["status"].keys()) == (UNKNOWN, {"conditions"})
    assert (passed(done)["status"], passed(done)["reason"]) == ("Unknown", "UNKNOWN")


def test_a_policy_that_is_not_there_is_named(machine: Simulated) -> None:
    done = machine.check(TWO, "--policy", "/no/policy")
    assert (done.code, done.lines) == (UNKNOWN, ["DEVICES UNKNOWN - --policy /no/policy: No such file or directory"])


def test_the_agents_configuration_file_says_which_probes_run(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("version: v1\nflags: {probe: [simulated]}\n")
    done = check("--config-file", str(file), "--simulated", "l4 x 2")
    assert done.lines[0] == "DEVICES OK - 2 healthy (2 gpu)"
    file.write_text("version: v1\nflags: {prob: [simulated]}\n")
    done = check("--config-file", str(file), "--simulated", "l4 x 2")
    assert (done.code, "flags.prob: unknown key" in done.out) == (UNKNOWN, True)


def test_the_agents_variables_say_which_probes_run() -> None:
    done = check(more={"NODEDEVICES_PROBE": "simulated", "NODEDEVICES_SIMULATED": "h100 x 8, connectx-7 x 2"})
    assert done.lines[0] == "DEVICES OK - 10 healthy (8 gpu, 2 nic)"


# --- the devices of one job ------------------------------------------------------------------------------------------
def test_a_device_is_chosen_by_index_name_or_id_and_a_job_does_not_suffer_from_another_jobs(machine: Simulated) -> None:
    for called in ("1", "gpu-1", GPU_1):
        done = machine.check(LOST, "--device", called)
        assert (done.code, devices(done)) == (CRITICAL, ["gpu-1"])
    done = machine.check(LOST, "--device", "0")
    assert (done.code, done.lines[0]) == (OK, "DEVICES OK - 1 healthy (1 gpu)")


def test_an_index_is_a_gpus_and_no_nics(machine: Simulated) -> None:
    done = machine.check("profile: l4 x 1, connectx-7 x 1\n", "--device", "1")
    assert done.code == CRITICAL
    assert done.lines[1] == "--device 1: there are: gpu-0, nic-1"


def test_a_mig_device_stands_for_its_gpu(machine: Simulated) -> None:
    cut = "{index: 1, migEnabled: true, mig: [{profile: 1g.10gb, id: MIG-1}], eccUncorrectableVolatile: 1}"
    done = machine.check(f"profile: h100 x 2\ndevices: [{cut}]\n", "--device", "MIG-1")
    assert (done.code, devices(done)) == (CRITICAL, ["gpu-1"])


def test_a_device_that_is_not_there_is_critical(machine: Simulated) -> None:
    done = machine.check(TWO, "--device", "0,7")
    assert (done.code, done.lines[0]) == (CRITICAL, "DEVICES CRITICAL - no device 7")
    assert done.lines[1] == "--device 7: there are: gpu-0, gpu-1"
    many = machine.check("profile: l4 x 17\n", "--device", "99")
    assert many.lines[1].endswith("gpu-14, gpu-15 and 1 more")
    assert machine.check("devices: []\ndriver: {state: Loaded}", "--device", "7").out.count("there are: none") == 1


def test_while_a_probe_is_silent_it_is_unknown_whether_a_device_is_there(machine: Simulated) -> None:
    done = machine.check(TWO, "--device", "7", "--probe", "mine=/no/such-probe")
    assert (done.code, done.lines[0]) == (UNKNOWN, "DEVICES UNKNOWN - no device 7, probe mine: no line")


def test_a_log_that_is_not_read_is_a_warning_and_hides_nothing_that_is_missing(machine: Simulated) -> None:
    log = ("--probe", "kmsg=/no/such-probe")
    done = machine.check(TWO, *log)
    assert (done.code, done.lines[0]) == (WARNING, "DEVICES WARNING - probe kmsg: no line")
    done = machine.check(ONE_LEFT, *log, "--expect", "gpu=2")
    assert (done.code, done.lines[0]) == (CRITICAL, "DEVICES CRITICAL - 1 of 2 (type gpu), probe kmsg: no line")


def test_a_range_of_indices_is_about_gpus_as_slurm_writes_it(machine: Simulated) -> None:
    done = machine.check("profile: l4 x 7\n", "--device", "0-2,4", "--device", "5-5", "--device", "gpu-6")
    assert devices(done) == ["gpu-0", "gpu-1", "gpu-2", "gpu-4", "gpu-5", "gpu-6"]
    for text in ("2-0", "0-256", "0-9999"):
        assert machine.check(TWO, "--device", text).lines[0] == f"DEVICES CRITICAL - no device {text}"


def test_that_a_policys_number_of_devices_is_not_counted_for_one_job_is_said(machine: Simulated, policy: Path) -> None:
    policy.write_text("expect: [{type: gpu, count: 8}]")
    note = "note: expect: not counted with --device, which checks only some devices"
    done = machine.check(TWO, "--policy", str(policy), "--device", "0")
    assert (done.code, done.lines[-1]) == (OK, note)
    done = machine.check(TWO, "--policy", str(policy), "--device", "0", "-o", "json")
    assert passed(done) == {"status": "True", "reason": "OK", "message": f"DEVICES OK - 1 healthy (1 gpu); {note}"}


def test_that_nothing_is_chosen_is_an_error_and_not_everything(machine: Simulated) -> None:
    done = machine.check(TWO, "--device", "")
    assert (done.code, done.out) == (UNKNOWN, "")
    assert done.err == "nodedevices-check: --device: empty; leave it out, or say which\n"


# --- what cannot be known --------------------------------------------------------------------------------------------
def test_a_driver_that_is_not_loaded_is_unknown(machine: Simulated) -> None:
    done = machine.check("driver: {state: NotLoaded}")
    assert (done.code, done.lines) == (
        UNKNOWN,
        ["DEVICES UNKNOWN - probe simulated: no driver", "probe simulated: the driver is not loaded"],
    )


def test_no_device_at_all_is_unknown(machine: Simulated) -> None:
    done = machine.check("devices: []\ndriver: {state: Loaded}")
    assert (done.code, done.lines[0]) == (UNKNOWN, "DEVICES UNKNOWN - probe simulated: no device")


def test_a_driver_that_lists_fewer_devices_than_the_bus_has_is_noted(machine: Simulated) -> None:
    done = machine.check("profile: l4 x 2\nacceleratorsOnBus: 3\n")
    assert (done.code, done.lines[-1]) == (
        OK,
        "note: probe simulated: 3 accelerators on the PCI bus, its driver lists 2; --expect makes that CRITICAL",
    )
    beside_a_nic = machine.check("profile: l4 x 2, connectx-7 x 1\nacceleratorsOnBus: 3\n")
    assert "its driver lists 2" in beside_a_nic.out
    assert "accelerators" not in machine.check("profile: l4 x 2\nacceleratorsOnBus: 2\n").out


def test_a_gpu_on_the_bus_that_never_came_up_is_a_warning_with_its_address(machine: Simulated) -> None:
    done = machine.check(f"{ONE_LEFT}acceleratorsOnBus: 2\n")
    assert (done.code, done.lines[0]) == (WARNING, "DEVICES WARNING - probe simulated: DriverUnbound")
    assert done.lines[1].startswith("probe simulated: 0000:")
    why = "it did not start (dmesg says why), or was unbound"
    assert done.lines[1].endswith(f": on the PCI bus without a driver: {why}")
    assert machine.check(ONE_LEFT).code == OK


def test_a_probe_whose_hardware_is_not_there_is_no_fault_beside_others(machine: Simulated, tmp_path: Path) -> None:
    (none := tmp_path / "none.yaml").write_text("driver: {state: NotLoaded}\nacceleratorsOnBus: 0\n")
    other = f"other={sys.executable} -m nodedevices_probe.main simulated --file {none}"
    assert machine.check(TWO, "--probe", other).lines[0] == "DEVICES OK - 2 healthy (2 gpu)"
    none.write_text("driver: {state: NotLoaded}\nacceleratorsOnBus: 4\n")
    done = machine.check(TWO, "--probe", other)
    assert (done.code, done.lines[0]) == (UNKNOWN, "DEVICES UNKNOWN - probe other: no driver")
    assert done.lines[1] == ("probe other: 4 accelerators on the PCI bus and no usable driver")


def children(marker: str) -> list[str]:
    """The processes with this in their command line, but for the command itself."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = each.read_bytes().decode().split("\0")
        except OSError:
            continue
        if marker in " ".join(words) and "nodedevices_probe.main" in words:
            found.append(each.parent.name)
    return found


def test_a_driver_that_hangs_is_unknown_when_the_time_is_up_and_its_process_is_gone(alone: Simulated) -> None:
    done = alone.check(HUNG, "--timeout-seconds", "2")
    assert (done.code, done.lines[0]) == (UNKNOWN, "DEVICES UNKNOWN - probe simulated: no line")
    assert not children(str(alone.file))


def test_a_probe_that_hangs_takes_no_verdict_from_others(alone: Simulated) -> None:
    for seconds in ("4", "16", "64"):  # the other one's line takes as long as this machine does to start it
        done = alone.check(LOST, "--probe", "mine=/bin/sh -c 'sleep 600'", "--timeout-seconds", seconds)
        if "probe simulated: no line" not in done.lines[0]:
            break
    assert (done.code, done.lines[0]) == (CRITICAL, "DEVICES CRITICAL - gpu-1 FallenOffBus, probe mine: no line")


def test_a_program_that_is_not_there_is_said_at_once() -> None:
    done = check("--probe", "mine=/no/such-probe", "--timeout-seconds", "600")
    assert (done.code, done.lines) == (
        UNKNOWN,
        [
            "DEVICES UNKNOWN - probe mine: no line",
            "probe mine: failed to start the probe /no/such-probe: No such file or directory",
        ],
    )


def test_a_program_that_ends_again_and_again_is_given_up() -> None:
    done = check("--probe", "mine=/bin/false", "--timeout-seconds", "600")
    assert (done.code, done.lines[1]) == (UNKNOWN, "probe mine: the probe exited with status 1")


def test_a_sigterm_ends_the_probe_and_the_answer_is_unknown(alone: Simulated) -> None:
    alone.file.write_text(HUNG)
    running = subprocess.Popen([*COMMAND, *alone.arguments], stdout=subprocess.PIPE, text=True, env=environment())
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not children(str(alone.file)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    running.send_signal(signal.SIGTERM)
    out, _ = running.communicate(timeout=PATIENCE_SECONDS)
    assert (running.returncode, out) == (UNKNOWN, "DEVICES UNKNOWN - ended by a signal\n")
    assert not children(str(alone.file))


# --- the agent's state file ------------------------------------------------------------------------------------------
def device(**more: Any) -> InventoryDevice:
    known = {"id": GPU_1, "index": 1, "type": "gpu", "vendor": "nvidia", "product_name": "NVIDIA L4"}
    fact = DeviceFact(**{**known, **more})
    return InventoryDevice(fact=fact, present=True, last_seen=NOW, probe="simulated")


def fault() -> Verdict:
    one = Fault(
        reason="Xid79",
        state=HealthState.UNHEALTHY,
        message="GPU has fallen off the bus (XID 79)",
        action="ResetBus",
        fault_domain="Device",
        since=NOW,
        last_seen=NOW,
        boot_id=BOOT,
        xid=79,
        usual=Usual(state=HealthState.UNHEALTHY, action="ResetBus", domain="Device"),
    )
    return Verdict(
        state=HealthState.UNHEALTHY, reason="Xid79", message="", since=NOW, offered=False, xid=79, faults=(one,)
    )


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "nodedevices-state.json"


def test_an_xid_that_the_running_agent_has_seen_counts(machine: Simulated, state: Path) -> None:
    StateFile(state).save(State(boot_id=BOOT, devices=(device(),), probes=("simulated",), verdicts={GPU_1: fault()}))
    before = state.read_bytes(), state.stat().st_mtime_ns
    done = machine.check(TWO, "--state-file", str(state))
    assert (done.code, done.lines[0]) == (CRITICAL, "DEVICES CRITICAL - gpu-1 Xid79")
    assert before == (state.read_bytes(), state.stat().st_mtime_ns)
    assert list(state.parent.iterdir()) == [state]


def test_a_device_that_the_agent_had_is_missing(machine: Simulated, state: Path) -> None:
    StateFile(state).save(State(boot_id=BOOT, devices=(device(),), probes=("simulated",)))
    done = machine.check(ONE_LEFT, "--state-file", str(state))
    assert (done.code, done.lines[0]) == (CRITICAL, "DEVICES CRITICAL - gpu-1 Missing")


def test_an_index_that_a_missing_device_had_is_of_the_one_that_is_there_now(machine: Simulated, state: Path) -> None:
    gone = device(id="GPU-gone")
    StateFile(state).save(State(boot_id=BOOT, devices=(gone,), probes=("simulated",)))
    done = machine.check(TWO, "--state-file", str(state), "--device", "1", "-o", "json")
    assert (done.code, [each["id"] for each in done.document["status"]["devices"]]) == (OK, [GPU_1])


def test_which_of_two_missing_devices_had_an_index_is_unknown(machine: Simulated, state: Path) -> None:
    gone = device(id="GPU-one"), device(id="GPU-two")
    StateFile(state).save(State(boot_id=BOOT, devices=gone, probes=("simulated",)))
    done = machine.check(ONE_LEFT, "--state-file", str(state), "--device", "1")
    assert (done.code, done.lines[0]) == (UNKNOWN, "DEVICES UNKNOWN - no device 1")
    assert done.lines[1].startswith("--device 1: several have this index: gpu-1, gpu-1-")
    assert done.lines[1].endswith("; give an id or a name")


def test_where_no_flag_says_it_the_probes_are_those_of_the_agent(state: Path) -> None:
    StateFile(state).save(State(boot_id=BOOT, probes=("mine=/no/such-probe",)))
    assert check("--state-file", str(state)).lines[0] == "DEVICES UNKNOWN - probe mine: no line"


def describing(file: Path) -> str:
    """A probe of a person's own, with the devices of this file."""
    return f"{sys.executable} -m nodedevices_probe.main simulated --file {file}"


def test_a_probe_that_is_added_by_a_variable_takes_none_of_the_agents_probes_away(tmp_path: Path, state: Path) -> None:
    (gpus := tmp_path / "gpus.yaml").write_text(LOST)
    (nics := tmp_path / "nics.yaml").write_text("profile: connectx-7 x 1\n")
    mine, added = f"mine={describing(gpus)}", f"nics={describing(nics)}"
    StateFile(state).save(State(boot_id=BOOT, probes=(mine, added)))
    variable = {"NODEDEVICES_ADD_PROBE_NICS": added}
    done = check("--state-file", str(state), "-o", "json", more=variable)
    assert passed(done)["message"].startswith(f"{GPU_1}: Unhealthy: FallenOffBus: ")
    assert [each["name"] for each in done.document["status"]["probes"]] == ["mine", "nics"]


def test_an_added_probe_runs_as_it_is_given_now_and_not_as_the_agent_had_it(tmp_path: Path, state: Path) -> None:
    (gpus := tmp_path / "gpus.yaml").write_text(TWO)
    StateFile(state).save(State(boot_id=BOOT, probes=("mine=/no/such-probe",)))
    done = check("--state-file", str(state), more={"NODEDEVICES_ADD_PROBE_MINE": f"mine={describing(gpus)}"})
    assert (done.code, done.lines[0]) == (OK, "DEVICES OK - 2 healthy (2 gpu)")


def test_a_probe_of_the_agent_that_does_not_run_here_is_said_in_the_checks_own_words(
    machine: Simulated, state: Path
) -> None:
    gone = replace(device(), probe="nvml")
    StateFile(state).save(State(boot_id=BOOT, devices=(gone,), probes=("nvml",)))
    done = machine.check("devices: []", "--state-file", str(state))
    assert "probe nvml: devices of it in --state-file: 1; it does not run here" in done.out
    assert "delete this pod" not in done.out


def test_the_nodes_policies_are_those_of_the_agent(machine: Simulated, state: Path) -> None:
    rules = {"rules": [{"reasons": ["ThermalSlowdown"], "state": "Ignored"}]}
    StateFile(state).save(State(boot_id=BOOT, spec=SeenSpec(config={"health": rules})))
    assert machine.check(HOT, "--state-file", str(state)).code == OK


@pytest.mark.parametrize("content", [b"not JSON", b'{"version": 1, "verdicts": []}'])
def test_a_state_file_that_cannot_be_used_is_unknown_and_stays_as_it_is(
    machine: Simulated, state: Path, content: bytes
) -> None:
    state.write_bytes(content)
    done = machine.check(TWO, "--state-file", str(state))
    assert (done.code, f"--state-file {state}: " in done.out) == (UNKNOWN, True)
    assert list(state.parent.iterdir()) == [state]
    assert state.read_bytes() == content


def test_a_state_file_that_is_not_there_is_unknown(machine: Simulated) -> None:
    done = machine.check(TWO, "--state-file", "/no/state")
    assert (done.code, done.lines[0]) == (
        UNKNOWN,
        "DEVICES UNKNOWN - --state-file /no/state: No such file or directory",
    )


# --- the command line ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--prob", "nvml"], "--prob: unknown flag; did you mean --probe?"),
        (["-o", "xml"], "--output: 'xml' is not allowed; give table or json or nagios"),
        (["--probe", "nvlm"], "--probe: 'nvlm' is not allowed; give auto, nvml,"),
        (
            ["--expect", "8"],
            "--expect: '8' is not allowed; give each type once, in small letters, as gpu=8, with 1 to ",
        ),
        (["--expect", "gpu=8,gpu=4"], "--expect: 'gpu=4' is not allowed; give each type once"),
        (["--expect", "gpu=0"], "--expect: 'gpu=0' is not allowed"),
        (["--expect", "GPU=4"], "--expect: 'GPU=4' is not allowed; give each type once, in small letters, as gpu=8"),
        (["--policy", "a", "--policy", "b"], "--policy: given 2 times; give it once"),
        (["-o", "json", "--output", "nagios"], "--output: given 2 times; give it once"),
        (["--expect", "gpu=8", "--device", "0"], "--expect: cannot be combined with --device"),
        (["--timeout-seconds", "0"], "--timeout-seconds: '0' is not a whole number of seconds from 1 to 600"),
        (["--simulated", "l4"], "--simulated: only valid with --probe simulated"),
        (["gpu-0"], "'gpu-0'; every argument is a flag (see --help)"),
        (["--device"], "argument --device: expected one argument"),
    ],
)
def test_what_is_wrong_in_a_command_line_is_named(arguments: list[str], said: str) -> None:
    with pytest.raises(InputError) as refused:
        parse(arguments, {})
    assert said in str(refused.value)


def test_a_wrong_command_line_is_unknown_and_not_critical_and_said_in_the_form_that_is_read() -> None:
    said = "--prob: unknown flag; did you mean --probe?"
    done = check("--prob=nvml")
    assert (done.code, done.out, done.err) == (UNKNOWN, "", f"nodedevices-check: {said}\n")
    for form in (["-o", "json"], ["--output=json"]):
        done = check("--prob=nvml", *form)
        assert (done.code, done.document["metadata"]["name"]) == (UNKNOWN, "node-a")
        assert passed(done) == {"status": "Unknown", "reason": "UNKNOWN", "message": said}
    done = check("--prob=nvml", "-o", "nagios")
    assert done.lines[0].startswith(f"DEVICES UNKNOWN - {said} | ")


def test_a_simulated_file_may_be_relative(alone: Simulated, monkeypatch: pytest.MonkeyPatch) -> None:
    alone.file.write_text(TWO)
    monkeypatch.chdir(alone.file.parent)
    assert check("--probe", "simulated", "--simulated", alone.file.name).code == OK


def test_a_relative_path_in_a_variable_is_refused_by_the_variables_name() -> None:
    with pytest.raises(InputError) as refused:
        parse([], {"NODEDEVICES_PROBE": "simulated", "NODEDEVICES_SIMULATED": "devices.yaml"})
    assert str(refused.value).startswith(
        "environment variable NODEDEVICES_SIMULATED: 'devices.yaml' is a relative path; give an absolute one"
    )


def test_a_locale_with_few_characters_is_no_error(machine: Simulated) -> None:
    machine.file.write_text("devices: [{index: 0, model: l4, productName: NVIDIA \u00dc4}]")
    done = check(*machine.arguments, more={"PYTHONIOENCODING": "ascii"}, fresh=True)
    assert (done.code, "NVIDIA \\xdc4" in done.out) == (OK, True)


def test_help_is_no_error() -> None:
    done = check("--help")
    assert (done.code, done.err) == (OK, "")
    assert "Exit status: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN" in done.out


def test_it_loads_nothing_of_a_cluster() -> None:
    heavy = ("grpc", "kubernetes", "prometheus_client", "google.protobuf", "pynvml", "nodedevices_plugin.kubelet")
    code = f"import sys, nodedevices_plugin.check.command; print([each for each in {heavy} if each in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
