"""A kind of hardware: one file, and one line of registration."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from nodedevices_common.options import Value
from nodedevices_plugin.inputs.reader import parse_line
from nodedevices_plugin.settings.flags import parse
from nodedevices_plugin.settings.options import OPTIONS
from nodedevices_plugin.vendors.registry import VENDORS
from nodedevices_probe.main import main
from nodedevices_probe.node.sysfs import System
from nodedevices_probe.protocol import DriverState, Problem
from nodedevices_probe.registry import KINDS
from nodedevices_probe.source import SysfsSource
from support import leds
from support.patience import PATIENCE_SECONDS
from support.trees import Tree

PROGRAM = """
import sys
from nodedevices_probe.main import main
from support.leds import KIND
sys.exit(main(sys.argv[1:], {KIND.name: KIND}))
"""


def run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", PROGRAM, *arguments]
    path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    return subprocess.run(command, capture_output=True, timeout=PATIENCE_SECONDS, check=False, env={"PYTHONPATH": path})


def test_a_kind_of_one_file_reports_what_it_finds_below_its_root(tmp_path: Path) -> None:
    for name in ("front:red", "front:green", "rear:red"):
        (tmp_path / "sys/class/leds" / name).mkdir(parents=True)
    done = run("leds", f"--root={tmp_path}", "--once", "--prefix=front")
    assert done.returncode == 0, done.stderr
    line = parse_line(done.stdout)
    assert (line.probe, [each.id for each in line.devices]) == ("leds", ["front:green", "front:red"])


def test_help_has_its_flags_and_those_that_all_kinds_have(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (["leds", "--help"], ("--prefix", "--root", "--once", "--fd", "--listen", "--interval-seconds")),
        (["--help"], ("LEDs",)),
    ):
        with pytest.raises(SystemExit):
            main(arguments, {leds.KIND.name: leds.KIND})
        shown = capsys.readouterr().out
        assert [word for word in words if word not in shown] == []


@pytest.mark.parametrize(
    ("given", "arguments"),
    [("front", ["leds", "--prefix=front"]), ("--once", ["leds", "--prefix=--once"]), ("", ["leds"])],
)
def test_it_gets_what_the_agent_was_given_for_it(given: Value, arguments: list[str]) -> None:
    assert leds.KIND.arguments({"led-prefix": given}) == arguments


def test_what_the_agent_passes_on_to_the_built_in_kinds_are_options_of_its_own() -> None:
    wanted = {option for kind in KINDS.values() for option in (*kind.passed_on.values(), *kind.requires)}
    files = {name for kind in KINDS.values() for name in kind.files}
    assert wanted - files <= {option.name for option in OPTIONS}
    assert files <= VENDORS.files_by_name().keys()
    local = parse(["--standalone", "--telemetry", "--driver-root-ctr-path=/d", "--node-name=n"], {})
    assert KINDS["nvml"].arguments(local.probe_options) == ["nvml", "--driver-root-ctr-path=/d", "--telemetry"]
    local = parse(["--standalone", "--probe=simulated", "--simulated=h100 x 8", "--node-name=n"], {})
    assert KINDS["simulated"].arguments(local.probe_options) == ["simulated", "--profile=h100 x 8", "--node-name=n"]


@pytest.mark.parametrize("kind", [*KINDS, "auto"])
@pytest.mark.parametrize("root", ["/nope", __file__, ""])
def test_a_root_that_is_no_folder_is_refused(kind: str, root: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([kind, "--once", f"--root={root}"])
    assert ended.value.code == 2
    assert f"argument --root: {root!r} is not allowed; give a folder that is there" in capsys.readouterr().err


def test_kernel_modules_are_reported_with_those_missing_and_the_version_of_the_one_there(tmp_path: Path) -> None:
    source = SysfsSource(name="x", system=System(tmp_path))
    found = (), (Problem(code="Odd", message="odd"),)
    for modules, why in (
        (("one",), "the kernel module one is not loaded"),
        (("one", "two", "three"), "none of the kernel modules one, two and three is loaded"),
    ):
        facts = source.facts(modules, lambda: found, on_bus=2)
        assert (facts.driver.state, facts.accelerators_on_bus) == (DriverState.NOT_LOADED, 2)
        assert [(each.code, each.message) for each in facts.problems] == [("DriverNotLoaded", why)]
    tree = Tree(tmp_path)
    tree.file("proc/sys/kernel/osrelease", "6.8.0")
    tree.file("sys/module/two/version", "1.2,abcdef")
    tree.file("sys/module/three/refcnt", 1)
    tree.file("sys/class/dmi/id/product_name", "Box")
    facts = source.facts(("one", "two", "three"), lambda: found)
    assert (facts.driver.name, facts.driver.version, facts.machine.type) == ("two", "1.2", "Box")
    assert facts.problems == found[1]
    assert source.facts(("three",), lambda: found).driver.version == "6.8.0", "a module that comes with the kernel"


def test_pci_addresses_come_in_the_order_of_the_bus(tmp_path: Path) -> None:
    for name in ("0000:1a:00.0", "0000:0a:00.0", "0000:09:00.0", "0000:19:00.1", "0000:19:00.0", "slot"):
        (tmp_path / "sys/bus/pci/devices" / name).mkdir(parents=True)
    found = System(tmp_path).bus_ids()
    assert found == ["0000:09:00.0", "0000:0a:00.0", "0000:19:00.0", "0000:19:00.1", "0000:1a:00.0"]
