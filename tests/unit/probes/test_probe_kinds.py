"""A kind of hardware: one file, and one line of registration."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from nodedevices_common.options import Value
from nodedevices_plugin.inputs.reader import parse_line
from nodedevices_plugin.settings.flags import parse
from nodedevices_plugin.settings.options import OPTIONS
from nodedevices_probe.registry import KINDS
from support import leds

PROGRAM = """
import sys
from nodedevices_probe.main import main
from support.leds import KIND
sys.exit(main(sys.argv[1:], {KIND.name: KIND}))
"""


def run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", PROGRAM, *arguments]
    tests = Path(__file__).parents[2]
    return subprocess.run(command, capture_output=True, timeout=60, check=False, env={"PYTHONPATH": str(tests)})


def test_a_kind_of_one_file_reports_what_it_finds_below_its_root(tmp_path: Path) -> None:
    for name in ("front:red", "front:green", "rear:red"):
        (tmp_path / "sys/class/leds" / name).mkdir(parents=True)
    done = run("leds", f"--root={tmp_path}", "--once", "--prefix=front")
    assert done.returncode == 0, done.stderr
    line = parse_line(done.stdout)
    assert (line.probe, [each.id for each in line.devices]) == ("leds", ["front:green", "front:red"])


def test_help_has_its_flags_and_those_that_all_kinds_have() -> None:
    shown = run("leds", "--help").stdout.decode()
    for flag in ("--prefix", "--root", "--once", "--fd", "--listen", "--interval-seconds"):
        assert flag in shown
    assert b"LEDs" in run("--help").stdout


@pytest.mark.parametrize(
    ("given", "arguments"),
    [("front", ["leds", "--prefix=front"]), ("--once", ["leds", "--prefix=--once"]), ("", ["leds"])],
)
def test_it_gets_what_the_agent_was_given_for_it(given: Value, arguments: list[str]) -> None:
    assert leds.KIND.arguments({"led-prefix": given}) == arguments


def test_what_the_agent_passes_on_to_the_built_in_kinds_are_options_of_its_own() -> None:
    wanted = {option for kind in KINDS.values() for option in (*kind.passed_on.values(), *kind.one_of)}
    assert wanted <= {option.name for option in OPTIONS}
    local = parse(["--standalone", "--telemetry", "--driver-root-ctr-path=/d", "--node-name=n"], {})
    assert KINDS["nvml"].arguments(local.probe_options) == ["nvml", "--driver-root-ctr-path=/d", "--telemetry"]
    local = parse(["--standalone", "--probe=simulated", "--simulated-profile=h100 x 8", "--node-name=n"], {})
    assert KINDS["simulated"].arguments(local.probe_options) == ["simulated", "--profile=h100 x 8", "--node-name=n"]
