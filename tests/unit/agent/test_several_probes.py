"""Several probes side by side: each one's line, silence, driver and events are about its own devices alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from nodedevices_common.text import show
from nodedevices_plugin.model.plan import ProbeCounters
from nodedevices_plugin.pipeline.configuration import request_config
from nodedevices_plugin.pipeline.inventory import owned
from nodedevices_plugin.pipeline.state import SeenSpec, State
from nodedevices_plugin.settings.file import ConfigError, FileConfig, FileOutcome
from nodedevices_plugin.settings.flags import Local, parse
from nodedevices_plugin.settings.probes import ProbeSpec, read
from nodedevices_plugin.status.facts import ProbeFacts
from nodedevices_plugin.status.metrics import AgentMetrics
from nodedevices_plugin.status.report import report
from nodedevices_plugin.vendors.base import DeviceFileOutcome, DeviceFiles
from nodedevices_probe.protocol import Driver, DriverState
from nodedevices_probe.registry import KINDS
from support.cases import cases
from support.facts import START, gpu, gpu_id, xid
from support.probed_node import Node, nic
from support.reports import node_facts
from support.stepped_node import NOBODY

LOCAL = parse(["--standalone", "--probe=nvml", "--probe", "nics=/opt/nic-probe --fast"], {})


def made(local: Local = LOCAL, state: State | None = None) -> Node:
    return Node(FileOutcome(), local, state)


def status(node: Node) -> Any:
    silent = node.last.silent
    probes = owned(node.world.known.probes).items()
    return report(
        node_facts(
            inventory=node.world.known.inventory,
            verdicts=node.world.known.verdicts,
            plan=node.world.plan,
            holdings=NOBODY,
            started=START,
            probes=tuple(ProbeFacts(name=name, inventory=part, silent=name in silent) for name, part in probes),
            now=START,
        )
    )


def both() -> Node:
    return made().line("nvml", gpu(0), gpu(1)).line("nics", nic())


def test_one_probes_line_says_nothing_of_anothers_devices_and_events_are_counted_by_probe() -> None:
    node = both().line("nvml", gpu(0), gpu(1)).line("nics", nic())
    assert node.states == dict.fromkeys([gpu_id(0), gpu_id(1), "NIC-0"], ("Healthy", ""))
    assert [(each.fact.id, each.probe) for each in node.world.known.inventory.devices] == [
        (gpu_id(0), "nvml"),
        (gpu_id(1), "nvml"),
        ("NIC-0", "nics"),
    ]
    node = both().line("nics", nic(), events=(replace(xid(79, sequence=7), device_id="NIC-0", kind="port"),))
    node.line("nvml", gpu(0), gpu(1), events=(xid(79, sequence=3),))
    assert node.states[gpu_id(0)] == ("Unhealthy", "Xid79")
    assert {name: cursor.sequence for name, cursor in node.world.known.cursors.items()} == {"nvml": 3, "nics": 7}


def test_what_goes_or_is_silent_of_one_probe_leaves_anothers_devices() -> None:
    node = both().line("nvml", gpu(0))
    assert node.states[gpu_id(1)] == ("Unhealthy", "Missing")
    assert node.states["NIC-0"] == ("Healthy", "")
    gone = Driver(state=DriverState.NOT_LOADED)
    node = both().line("nics", driver=gone)
    assert node.states["NIC-0"] == ("Unknown", "DriverNotLoaded")
    assert node.states[gpu_id(0)] == ("Healthy", "")
    assert [(each.name, each.version) for each in status(node).drivers] == [("nvidia", "570.148.08")]


def test_a_silent_probe_makes_only_its_own_devices_unknown() -> None:
    node = both().wait(10).line("nvml", gpu(0), gpu(1)).wait(6)
    assert node.states == {gpu_id(0): ("Healthy", ""), gpu_id(1): ("Healthy", ""), "NIC-0": ("Unknown", "ProbeSilent")}
    shown = status(node)
    assert [(each.name, each.state, each.devices) for each in shown.probes] == [
        ("nvml", "Ready", 2),
        ("nics", "Silent", 1),
    ]
    [ready] = [each for each in shown.conditions if each.type == "Ready"]
    assert (ready.reason, ready.message) == ("ProbeUnavailable", "nics: the probe has not reported for 15 s or more")


@cases("first", ("nvml", "nics"), ("nics", "nvml"))
def test_an_id_that_two_probes_report_is_the_first_ones_and_is_said(first: Sequence[str]) -> None:
    node = made()
    for probe in first:
        node.line(probe, gpu(0, product_name=probe))
    [device] = node.world.known.inventory.devices
    assert (device.probe, device.fact.product_name) == ("nvml", "nvml")
    [problem] = node.world.known.inventory.problems
    assert (problem.code, problem.message) == ("SameId", f"nics: {gpu_id(0)} is also reported by the probe nvml")


def test_nothing_is_offered_before_every_probe_has_reported_and_a_device_that_moves_is_there_once() -> None:
    node = made().line("nvml", gpu(0))
    assert node.world.plan is None
    assert node.line("nics", nic()).world.plan is not None
    late = made().line("nvml", gpu(0)).wait(10).line("nvml", gpu(0)).wait(5)
    assert [each.name for each in late.plan.resources] == ["nvidia.com/gpu"]
    node = both().line("nvml", gpu(0)).line("nics", nic(), gpu(1))
    devices = {each.fact.id: (each.probe, each.present) for each in node.world.known.inventory.devices}
    assert devices == {gpu_id(0): ("nvml", True), gpu_id(1): ("nics", True), "NIC-0": ("nics", True)}


def test_each_probe_is_counted_by_itself() -> None:
    counters = {
        "nvml": ProbeCounters(lines=7, starts=1),
        "nics": ProbeCounters(lines=3, bad_lines=2, starts=4, kills=1),
    }
    scraped = AgentMetrics(facts=lambda: None, probes=lambda: counters).render().decode().splitlines()
    assert {line for line in scraped if line.startswith("nodedevices_probe_")} == {
        f'nodedevices_probe_{name}_total{{probe="{probe}"}} {value}'
        for probe, values in {"nvml": (7.0, 0.0, 1.0, 0.0), "nics": (3.0, 2.0, 4.0, 1.0)}.items()
        for name, value in zip(("lines", "bad_lines", "starts", "kills"), values, strict=True)
    }


# --- flags ------------------------------------------------------------------------------------------------------------
def specs_of(local: Local) -> tuple[ProbeSpec, ...]:
    given = local.given["probe"]
    assert isinstance(given, tuple)
    return read(given)[0]


def test_probes_are_named_in_their_order_split_as_a_shell_does_and_a_socket_is_an_absolute_path() -> None:
    assert [each.name for each in specs_of(LOCAL)] == ["nvml", "nics"]
    assert specs_of(LOCAL)[1].command == ("/opt/nic-probe", "--fast")
    assert specs_of(parse(["--standalone"], {"NODEDEVICES_PROBE": "nvml,x='a b' c"}))[1].command == ("a b", "c")
    longest = "/" + "x" * 106
    local = parse(["--standalone", "--probe=nvml=unix:/run/a.sock", f"--probe=nics=unix:{longest}"], {})
    assert specs_of(local) == (ProbeSpec("nvml", socket="/run/a.sock"), ProbeSpec("nics", socket=longest))


SOCKET = "give unix: and an absolute path of at most 107 bytes, as in unix:/run/nics/probe.sock"


@cases(
    ("given", "complaint"),
    ("rocm", f"--probe: 'rocm' is not allowed; give auto, {', '.join(KINDS)}, NAME=COMMAND or NAME=unix:/PATH"),
    ("auto=/opt/x", "--probe: auto cannot be the name of your own probe; choose another"),
    ("NICs=/x", "--probe: the name 'NICs' is not allowed; give at most 32 small letters, digits and hyphens"),
    ("nvml,nvml=/x", "--probe: nvml is given twice; give each probe its own name"),
    ("simulated,simulated", "--probe: simulated is given twice; give each probe its own name"),
    ("nics=", "--probe nics: no command after =; give a program with its arguments"),
    ("nics=a 'b", '--probe nics: "a \'b" is not a command (No closing quotation)'),
    ("nics=unix:run/x", f"--probe nics: 'unix:run/x' is not allowed; {SOCKET}"),
    ("nics=unix:", f"--probe nics: 'unix:' is not allowed; {SOCKET}"),
    (f"nics=unix:/{'x' * 107}", f"--probe nics: {show('unix:/' + 'x' * 107)} is not allowed; {SOCKET}"),
    (f"nics=unix:/{'é' * 54}", f"--probe nics: {show('unix:/' + 'é' * 54)} is not allowed; {SOCKET}"),
)
def test_a_probe_that_cannot_be_is_refused_with_what_is_right(given: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(["--standalone", f"--probe={given}"], {})
    assert refused.value.problems == (complaint,)


# --- parts of an installation that add probes, and know nothing of each other -----------------------------------------
LISTED_NVML = ("--probe=nvml",)
DRIVER = {"NODEDEVICES_ADD_PROBE_DRIVER_DIRECTORY": "nvml=unix:/run/nvml.sock"}
GPUS = {"NODEDEVICES_ADD_PROBE_ALL_GPUS": "nvml,amd,intel"}
AUTO = {"NODEDEVICES_ADD_PROBE_ALL_DEVICES": "auto"}
FOLDER = {"NODEDEVICES_DEVICES_DIR": "/d"}
RDMA = {"rdma.json": DeviceFileOutcome(content=object())}
GENERIC = {"generic.yaml": DeviceFileOutcome(content=object())}


@cases(
    ("flags", "environment", "files", "run"),
    ((), {}, {}, ("nvml",)),
    ((), GPUS, {}, ("nvml", "amd", "intel")),
    ((), AUTO, {}, ("auto",)),
    ((), DRIVER | AUTO, {}, ("auto", "nvml=unix:/run/nvml.sock")),
    ((), DRIVER | GPUS, {}, ("nvml=unix:/run/nvml.sock", "amd", "intel")),
    ((), GPUS | AUTO, {}, ("auto", "nvml", "amd", "intel")),
    ((), GPUS, RDMA | GENERIC, ("nvml", "amd", "intel", "nic", "generic")),
    (LISTED_NVML, {}, RDMA, ("nvml", "nic")),
    (LISTED_NVML, {}, {"rdma.json": DeviceFileOutcome(error="not JSON")}, ("nvml", "nic")),
    (LISTED_NVML, {}, {"rdma.json": DeviceFileOutcome()}, ("nvml",)),
    (LISTED_NVML, {}, {"rdma.yaml": DeviceFileOutcome(error="unknown file")}, ("nvml",)),
    (LISTED_NVML, AUTO, {}, ("nvml", "auto")),
    (("--probe=nic=/opt/x",), {}, RDMA, ("nic=/opt/x",)),
    (("--probe=nvml,amd",), {"NODEDEVICES_ADD_PROBE_A": "intel"}, {}, ("nvml", "amd", "intel")),
    (("--probe=simulated", "--simulated=h100 x 1"), {}, RDMA, ("simulated",)),
    (("--probe=simulated", "--simulated=h100 x 1"), {}, GENERIC, ("simulated", "generic")),
)
def test_what_one_part_adds_takes_nothing_of_anothers_away(
    flags: Sequence[str], environment: dict[str, str], files: DeviceFiles, run: tuple[str, ...]
) -> None:
    assert wanted(parse(["--standalone", *flags], environment | FOLDER), files=files) == run


def test_a_files_probes_are_a_list_to_which_parts_are_added_and_a_policy_may_choose_these() -> None:
    local = parse(["--standalone", "--config-file=/c"], DRIVER | FOLDER)
    assert wanted(local, "amd", files=RDMA) == ("amd", "nvml=unix:/run/nvml.sock", "nic")
    broken = request_config(parse(["--standalone", *LISTED_NVML], GPUS), FileOutcome(error="not YAML"), None)
    assert broken.probes == ("nvml", "amd", "intel"), "and a broken file takes none of the others away"
    local = parse(["--standalone"], {"NODEDEVICES_ADD_PROBE_A": "nics=/opt/x", **GPUS})
    spec = SeenSpec(config={"discovery": {"probes": ["nics"]}}, config_hash="h")
    assert request_config(local, FileOutcome(), spec).probes == ("nics=/opt/x",)


@cases(
    ("environment", "complaint"),
    ({"NODEDEVICES_ADD_PROBE_A": "rocm"}, r"variables NODEDEVICES_ADD_PROBE_\*: 'rocm' is not allowed"),
    (
        {"NODEDEVICES_ADD_PROBE_A": "x=/a", "NODEDEVICES_ADD_PROBE_B": "x=/b"},
        r"variables NODEDEVICES_ADD_PROBE_\*: x is 'x=/a' and 'x=/b'; give each probe its own name",
    ),
    ({"NODEDEVICES_ADD_PROBE_A": "simulated"}, "simulated: needs --simulated"),
)
def test_what_cannot_be_added_is_refused_at_the_start(environment: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse(["--standalone"], environment)


def wanted(local: Local, *of_file: str, files: DeviceFiles | None = None) -> tuple[str, ...]:
    file = FileOutcome(config=FileConfig(flags={"probe": of_file})) if of_file else FileOutcome()
    requested = request_config(local, file, None, files)
    return requested.probes or ()
