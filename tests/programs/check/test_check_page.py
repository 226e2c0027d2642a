"""docs/check.md: its output is what the command prints, and its scripts do what the page says.

What the scripts call has the check done by a fork (preloaded): a socket is between them.
"""

from __future__ import annotations

import json
import re
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from nodedevices_plugin.health.levels import of_readings
from nodedevices_plugin.health.rules import HealthRules
from nodedevices_plugin.model import InventoryDevice
from nodedevices_plugin.vendors.registry import VENDORS
from nodedevices_probe.protocol import DeviceFact
from support.checked import CRITICAL, MODULE, WARNING, Simulated, environment
from support.preloaded import run
from support.repository import ROOT

PAGE = (ROOT / "docs" / "check.md").read_text()
SCRIPT = re.compile(r"^```sh\n(#!/bin/sh\n# (.*?)\n.*?)^```$", re.MULTILINE | re.DOTALL)
SCRIPTS = {name: text for text, name in SCRIPT.findall(PAGE)}
WELL = "profile: h100 x 8\n"
LOST = "profile: h100 x 8\ndevices: [{index: 3, lost: true}]\n"
OF_THE_PAGE = "profile: l4 x 2\ndevices: [{index: 1, lost: true, recoveryAction: RebootNode}]\n"


@pytest.fixture
def machine(tmp_path: Path) -> Simulated:
    return Simulated(tmp_path)


CALLS = """#!{python} -IS
import json, os, socket, sys
asked = socket.socket(socket.AF_UNIX)
asked.connect("{socket}")
asked.sendall(json.dumps([sys.argv[1:], dict(os.environ)]).encode() + b"\\n")
code, out, err = json.load(asked.makefile())
sys.stdout.write(out)
sys.stderr.write(err)
sys.exit(code)
"""


class Answer(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        done = run(MODULE, *json.loads(self.rfile.readline()))
        self.wfile.write(json.dumps([done.code, done.out, done.err]).encode())


class Host:
    """A folder in the place of /opt/nodedevices/bin, with a stand-in for scontrol."""

    def __init__(self, folder: Path, socket: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.drained = folder / "drained"
        self._program("nodedevices-check", CALLS.format(python=sys.executable, socket=socket))
        self._program("scontrol", f'#!/bin/sh\necho "$*" > {self.drained}\n')

    def _program(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)

    def run(self, name: str, machine: Simulated, devices: str, **variables: str) -> subprocess.CompletedProcess[str]:
        machine.file.write_text(devices)
        script = SCRIPTS[name].replace("/opt/nodedevices/bin", str(self.bin))
        simulated = {"NODEDEVICES_PROBE": "simulated", "NODEDEVICES_SIMULATED": str(machine.file)}
        variables = {"SLURM_JOB_GPUS": "", **simulated, **variables}
        return subprocess.run(
            ["/bin/sh", "-c", script], capture_output=True, text=True, env=environment(variables), check=False
        )


@pytest.fixture(scope="module")
def checks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where checks are done for those who connect."""
    path = tmp_path_factory.mktemp("checks") / "socket"
    with socketserver.UnixStreamServer(str(path), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield path
        server.shutdown()


@pytest.fixture
def host(tmp_path: Path, checks: Path) -> Host:
    return Host(tmp_path, checks)


def test_the_page_has_the_scripts_that_are_tested_here() -> None:
    assert set(SCRIPTS) == {"Prolog, Epilog", "HealthCheckProgram", "/opt/nodedevices/npd.sh"}


@pytest.mark.parametrize("command", ["nodedevices-check", "nodedevices-check -o nagios"])
def test_the_output_is_what_the_command_prints(machine: Simulated, command: str) -> None:
    shown = re.search(rf"^    \$ {command}\n((?: {{4}}.*\n|\n(?= ))+)", PAGE, re.MULTILINE)
    assert shown is not None
    printed = machine.check(OF_THE_PAGE, *command.split()[1:]).out
    assert re.sub(r"^ {4}", "", shown[1], flags=re.MULTILINE).rstrip() == printed.rstrip()


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        ("0,1", ""),
        ("", ""),
        ("2-4", "DEVICES CRITICAL - gpu-3 FallenOffBus\n"),
        ("12", "DEVICES CRITICAL - no device 12\n"),
    ],
)
def test_the_prolog_fails_for_a_job_with_a_gpu_that_is_unhealthy_or_gone_alone(
    host: Host, machine: Simulated, gpus: str, said: str
) -> None:
    done = host.run("Prolog, Epilog", machine, LOST, SLURM_JOB_GPUS=gpus)
    assert (done.returncode, done.stderr) == (1 if said else 0, said)


HUNG = "profile: h100 x 8\nhang: true\n"


def variant(name: str) -> str:
    """A script of the page with the test that the page has for a site which lets no job start on what is unknown."""
    assert "`[ $? -lt 2 ]` in the place of `[ $? -ne 2 ]`" in PAGE
    script: str = SCRIPTS[name]
    assert script.count("[ $? -ne 2 ]") == 1
    return script.replace("[ $? -ne 2 ]", "[ $? -lt 2 ]").replace("seconds 20", "seconds 2")


@pytest.mark.parametrize("found", [True, False])
def test_what_is_unknown_or_not_found_lets_a_job_start_but_for_the_variant(
    host: Host, machine: Simulated, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not found:
        (host.bin / "nodedevices-check").unlink()
    usual = SCRIPTS["Prolog, Epilog"].replace("seconds 20", "seconds 2")
    monkeypatch.setitem(SCRIPTS, "Prolog, Epilog", usual)
    assert host.run("Prolog, Epilog", machine, HUNG, SLURM_JOB_GPUS="0").returncode == 0
    monkeypatch.setitem(SCRIPTS, "Prolog, Epilog", variant("Prolog, Epilog"))
    assert host.run("Prolog, Epilog", machine, HUNG, SLURM_JOB_GPUS="0").returncode == 1


def test_the_readings_that_must_last_are_those_of_the_page() -> None:
    device = InventoryDevice(
        fact=DeviceFact(id="GPU-0", index=0, type="gpu", vendor="nvidia"), present=True, last_seen=datetime.now(UTC)
    )
    sources, rules = VENDORS.fault_sources().values(), HealthRules()
    read = [each for source in sources for each in of_readings(device, source, rules)]
    lasting = {each.reason for each in read if each.for_seconds}
    line = re.search(r"^- \*\*Readings that must last.*?(?=^- )", PAGE, re.MULTILINE | re.DOTALL)
    assert line is not None
    assert set(re.findall(r"`([A-Z]\w+)`", line[0])) == lasting


def test_a_nics_link_is_a_warning_and_critical_by_the_policy_of_the_page(machine: Simulated, tmp_path: Path) -> None:
    down = "profile: connectx-7 x 1\ndevices: [{index: 0, conditions: [linkDown]}]\n"
    assert machine.check(down).code == WARNING
    shown = re.search(r"CRITICAL: `(health: .*)`", PAGE)
    assert shown is not None
    (policy := tmp_path / "policy.yaml").write_text(shown[1])
    assert machine.check(down, "--policy", str(policy)).code == CRITICAL


def test_the_health_check_drains_a_node_that_is_critical_with_the_reason(host: Host, machine: Simulated) -> None:
    assert host.run("HealthCheckProgram", machine, WELL).returncode == 0
    assert not host.drained.exists()
    assert host.run("HealthCheckProgram", machine, "profile: h100 x 7\n").returncode == 0
    drained = host.drained.read_text()
    assert "state=drain reason=DEVICES CRITICAL - 7 of 8 (type gpu)" in drained


@pytest.mark.parametrize(
    ("devices", "code"),
    [(WELL, 0), ("profile: h100\ndevices: [{index: 0, thermalSlowdown: true}]", 0), (LOST, 1), ("devices: []", 2)],
)
def test_the_script_for_node_problem_detector_has_its_exit_status(
    host: Host, machine: Simulated, devices: str, code: int
) -> None:
    done = host.run("/opt/nodedevices/npd.sh", machine, devices)
    assert done.returncode == code
    assert re.fullmatch(r"DEVICES [A-Z]+ - [^|\n]+\n", done.stdout)


def test_node_problem_detectors_configuration_fits_the_script_and_the_bound_of_a_summary() -> None:
    found = re.search(r"^```json\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    document = json.loads(found[1])
    [rule], [condition] = document["rules"], document["conditions"]
    assert (document["plugin"], rule["condition"]) == ("custom", condition["type"])
    assert rule["path"] == "/opt/nodedevices/npd.sh"
    seconds = {name: int(document["pluginConfig"][name].removesuffix("s")) for name in ("timeout", "invoke_interval")}
    assert int(rule["timeout"].removesuffix("s")) <= seconds["timeout"] <= seconds["invoke_interval"]
    given = re.search(r"--timeout-seconds (\d+)", SCRIPTS["/opt/nodedevices/npd.sh"])
    assert given is not None
    assert int(given[1]) < seconds["timeout"]
    assert document["pluginConfig"]["max_output_length"] == 80


def test_the_parts_of_json_are_those_of_the_page(machine: Simulated) -> None:
    document = machine.check(OF_THE_PAGE, "-o", "json", "--expect", "gpu=2").document
    table = PAGE[PAGE.index("## JSON") :]
    named = set(re.findall(r"`(\w+)(?:\[\])?`", table))
    conditions = {each["type"] for each in document["status"]["conditions"]}
    assert {*document, *document["status"], *conditions} <= named
