"""`--probe auto`: the built-in probes whose hardware the node has, while it runs and across restarts."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from nodedevices_plugin.host.machine import FoundHardware
from nodedevices_plugin.pipeline.state import State
from nodedevices_plugin.runtime.threads import Worker
from nodedevices_plugin.settings import probes
from nodedevices_plugin.settings.file import ConfigError
from nodedevices_plugin.settings.flags import parse
from nodedevices_plugin.vendors.base import DeviceFileOutcome
from nodedevices_probe.generic.config import GenericConfig
from nodedevices_probe.registry import KINDS
from nodedevices_probe.serving.requests import present
from support.cases import cases
from support.facts import gpu, gpu_id
from support.local import at_once
from support.patience import PATIENCE_SECONDS
from support.probed_node import BROKEN, GPU, NICS, Node, nic, said
from support.trees import Tree, mi300x

AUTO = said("auto")
FOLDER = at_once(["--node-name=n1", "--config-file=/c", "--devices-dir=/d"], {})


def of(*hardware: str) -> frozenset[str]:
    return frozenset(hardware)


def auto(*hardware: str, file=AUTO, state: State | None = None) -> Node:  # type: ignore[no-untyped-def]
    return Node(file, None, state, of(*hardware))


# --- which run --------------------------------------------------------------------------------------------------------
@cases(
    ("listed", "hardware", "run"),
    (("auto",), ("nvml",), ("nvml",)),
    (("auto",), ("intel", "nvml", "amd"), ("nvml", "amd", "intel")),
    (("auto", NICS), ("amd",), ("amd", NICS)),
    ((NICS, "auto"), ("amd",), (NICS, "amd")),
    (("amd=/opt/mine", "auto"), ("amd", "nvml"), ("amd=/opt/mine", "nvml")),
    (("amd", "auto"), ("amd", "nvml"), ("amd", "nvml")),
    (("auto", NICS), (), (NICS,)),
    (("nvml",), ("amd",), ("nvml",)),
)
def test_auto_stands_for_what_was_found_in_the_order_of_the_built_in_ones(
    listed: tuple[str, ...], hardware: tuple[str, ...], run: tuple[str, ...]
) -> None:
    assert auto(*hardware, file=said(*listed)).runs == run


def test_where_nothing_is_found_the_usual_probe_runs_by_flag_as_by_variable() -> None:
    assert auto().runs == ("nvml",)
    assert Node(AUTO, None, None, None).runs == ("nvml",), "and while nobody knows, too"
    assert "simulated" not in probes.AUTOMATIC
    assert auto("simulated", "amd").runs == ("amd",)
    for local in (
        parse(["--node-name=n1", "--probe=auto"], {}),
        parse(["--node-name=n1"], {"NODEDEVICES_PROBE": f"auto, {NICS}"}),
    ):
        assert Node(said("intel"), local, None, of("amd")).runs[0] == "amd"


@cases("kind", "generic", "remote")
def test_a_probe_whose_devices_a_file_describes_runs_where_that_file_is_given(kind: str) -> None:
    files = {f"{kind}.yaml": DeviceFileOutcome(content=object())}
    assert Node(AUTO, FOLDER, None, of("nvml"), files).runs == ("nvml", kind)
    assert Node(AUTO, FOLDER, None, of(), files).runs == (kind,)
    assert Node(AUTO, FOLDER, None, of("nvml")).runs == ("nvml",)


def test_a_file_that_comes_later_brings_its_probe_and_what_is_given_for_one_is_checked_at_the_start() -> None:
    node = Node(AUTO, FOLDER, None, of("nvml")).line("nvml", gpu(0))
    node.given(device_files={"generic.yaml": DeviceFileOutcome(content=GenericConfig())})
    assert node.line("nvml", gpu(0)).runs == ("nvml", "generic")
    assert (node.devices, node.offered) == ([gpu_id(0)], [gpu_id(0)])
    with pytest.raises(ConfigError, match="NODEDEVICES_RDMA_REQUIRED: 'no-such' is not allowed"):
        parse(["--node-name=n1", "--probe=auto"], {"NODEDEVICES_RDMA_REQUIRED": "no-such"})


# --- while it runs ----------------------------------------------------------------------------------------------------
def test_hardware_that_comes_later_is_noticed_and_takes_no_probe_away() -> None:
    node = auto("nvml").line("nvml", gpu(0))
    node.given(hardware=of("nvml", "amd"))
    node.line("nvml", gpu(0))
    assert node.runs == ("nvml", "amd")
    assert (node.devices, node.offered) == ([gpu_id(0)], [gpu_id(0)])
    node = auto("nvml", "amd")
    node.given(hardware=of("nvml"))
    assert node.line("nvml", gpu(0)).runs == ("nvml", "amd")


def test_the_one_that_runs_for_want_of_another_goes_when_hardware_is_found_and_stays_once_it_has_devices() -> None:
    node = auto()
    node.given(hardware=of("amd"))
    assert node.line("nvml").runs == ("amd",)
    node = auto().line("nvml", gpu(0))
    node.given(hardware=of("amd"))
    assert node.line("nvml", gpu(0)).runs == ("nvml", "amd")


def test_devices_of_before_auto_or_of_hardware_that_vanished_while_the_agent_was_away_are_kept() -> None:
    node = auto("amd", file=said("nvml")).line("nvml", gpu(0)).held(GPU, gpu_id(0))
    node.uses(AUTO).line("nvml", gpu(0))
    assert (node.runs, node.offered) == (("nvml", "amd"), [gpu_id(0)])
    before = auto("nvml", "amd").line("nvml", gpu(0)).line("amd", nic())
    assert before.world.state.auto_probes == ("nvml", "amd")
    node = auto("nvml", state=before.world.state)
    assert node.runs == ("nvml", "amd")
    node.line("nvml", gpu(0)).line("amd")
    assert node.states["NIC-0"] == ("Unknown", "Missing")


# --- across restarts --------------------------------------------------------------------------------------------------


def test_a_probe_that_never_had_a_device_is_not_started_again_unless_its_hardware_is_not_known() -> None:
    before = auto("nvml", "amd").line("nvml", gpu(0)).line("amd")
    assert auto("nvml", state=before.world.state).runs == ("nvml",)
    before = auto("nvml", "amd").line("nvml", gpu(0)).line("amd")
    assert Node(AUTO, None, before.world.state, None).runs == ("nvml", "amd")
    assert Node(BROKEN, None, before.world.state, None).runs == ("nvml", "amd"), "with a broken file, too"


def test_a_probe_stays_by_its_devices_and_not_without_its_file() -> None:
    files = {"generic.yaml": DeviceFileOutcome(error="not YAML")}
    before = Node(AUTO, FOLDER, None, of("nvml"), files).line("nvml", gpu(0)).line("generic", nic()).world.state
    assert before.auto_probes == ("nvml", "generic")
    assert Node(AUTO, FOLDER, before, of("nvml")).runs == ("nvml",)
    assert auto("nvml", state=before).runs == ("nvml",)
    amd = auto(file=said("nvml", "amd")).line("nvml").line("amd", nic()).world.state
    assert auto("nvml", state=amd).runs == ("nvml", "amd")
    before = auto(file=said("nvml")).line("nvml", gpu(0)).world.state
    assert auto("amd", state=before).runs == ("nvml", "amd")
    assert auto("amd", state=replace(before, devices=())).runs == ("amd",)


# --- the check --------------------------------------------------------------------------------------------------------
async def test_hardware_is_found_once_and_stays_found() -> None:
    there, changes = {"nvml": "a card"}, list[None]()
    found = FoundHardware(worker=Worker("hardware"), on_change=lambda: changes.append(None), check=lambda: dict(there))
    assert [found.found] == [None]
    await found.first()
    assert (found.found, len(changes)) == (of("nvml"), 1)
    there["amd"] = there.pop("nvml")
    await found.first()
    assert (found.found, len(changes)) == (of("nvml", "amd"), 2)
    await found.first()
    assert len(changes) == 2


async def test_it_is_checked_again_when_auto_is_asked_for_and_not_before() -> None:
    there, seen = dict[str, str](), asyncio.Event()
    found = FoundHardware(worker=Worker("hardware"), on_change=seen.set, check=lambda: dict(there))
    await found.first()
    seen.clear()
    running = asyncio.create_task(found.run())
    try:
        there["amd"] = "a card"
        found.want(False)
        await asyncio.sleep(0)
        assert not seen.is_set()
        found.want(True)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await seen.wait()
        assert found.found == of("amd")
    finally:
        running.cancel()


def test_the_check_says_why(tmp_path: Path) -> None:
    mi300x(tmp_path, gpus=1)
    assert present(KINDS, tmp_path) == {"amd": "0000:0c:00.0 is a PCI device of vendor 0x1002 and class 0x120000"}
    Tree(tmp_path).file("proc/driver/nvidia/version", "NVRM")
    assert list(present(KINDS, tmp_path)) == [each for each in KINDS if each in {"nvml", "amd"}]
