"""The folder of device files: which are read, and what is said of one that comes, goes, or is none of ours."""

from __future__ import annotations

from pathlib import Path

import pytest
from nodedevices_plugin.inputs.config_file import DeviceFolder
from nodedevices_plugin.runtime.threads import Worker
from nodedevices_plugin.vendors.base import FOLDER, DeviceFileOutcome, DeviceFiles
from nodedevices_plugin.vendors.nic.rdma_config import RdmaConfig
from nodedevices_plugin.vendors.nic.sriov_config import SriovConfig
from support.facts import gpu
from support.local import at_once
from support.stepped_node import Node

FLAGS = ("--node-name=n1", "--probe=simulated", "--simulated=h100 x 1")
RDMA = {"rdma.json": DeviceFileOutcome(content=RdmaConfig())}


def of(name: str) -> str:
    return f'{{"resourceList": [{{"resourceName": "{name}"}}]}}'


async def read(folder: Path) -> DeviceFiles:
    seen: list[DeviceFiles] = []
    await DeviceFolder(folder, node="n1", worker=Worker("files"), on_change=seen.append).first()
    [found] = seen
    return found


@pytest.mark.parametrize(
    ("files", "resource"),
    [
        ({"sriov.json": of("all"), "n1.sriov.json": of("own"), "n2.sriov.json": of("other")}, "own"),
        ({"sriov.json": of("all"), "n2.sriov.json": of("other")}, "all"),
        ({"n1.sriov.json": of("own")}, "own"),
        ({"n2.sriov.json": of("other")}, ""),
        ({"sriov.json": " null\n"}, ""),
    ],
)
async def test_a_nodes_file_comes_before_the_one_for_all(files: dict[str, str], resource: str, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    outcome = (await read(tmp_path)).get("sriov.json", DeviceFileOutcome())
    config = outcome.content if isinstance(outcome.content, SriovConfig) else SriovConfig()
    assert [each.name for each in config.resources] == [resource] * bool(resource)
    assert (outcome.error, outcome.file) == ("", "n1.sriov.json" if resource == "own" else "")


async def test_another_name_is_unknown_and_what_a_mount_of_a_configmap_has_is_not(tmp_path: Path) -> None:
    for name in ("foo.yml", ".hidden", "..data_tmp"):
        (tmp_path / name).write_text("")
    (tmp_path / "..2026_11_29").mkdir()
    (tmp_path / "folder").mkdir()
    (tmp_path / "..data").symlink_to("..2026_11_29")
    (tmp_path / "rdma.json").symlink_to("..data/rdma.json")  # to a key that was just removed
    assert await read(tmp_path) == {"foo.yml": DeviceFileOutcome(error="unknown file")}
    assert await read(tmp_path / "none") == {FOLDER: DeviceFileOutcome(error="No such file or directory")}


# --- what a step makes of that ----------------------------------------------------------------------------------------
def node(**files: object) -> Node:
    made = Node(gpu(0), local=at_once([*FLAGS, "--devices-dir=/d"], {}))
    return made.given(**files).now()


def test_without_files_nothing_is_refused_and_an_unknown_one_is_named_with_those_that_are_known() -> None:
    config = node(device_files={}).world.config
    assert (config.reason, config.others) == ("Applied", ())
    config = node(device_files={"foo.yml": DeviceFileOutcome(error="unknown file")}).world.config
    assert config.reason == "ConfigInvalid"
    assert "unknown file 'foo.yml' in /d: known are gpu_config.json, generic.yaml, NameCustomize.json" in config.message


def test_what_was_good_last_stays_when_the_file_or_the_folder_is_gone_and_over_restarts_too() -> None:
    made = node(device_files=RDMA)
    assert made.world.active.effective.node.files.keys() == {"rdma.json"}
    for found, text in (
        ({}, "/d/rdma.json: no such file; its last content stays in effect; give the file again, or one with null"),
        ({FOLDER: DeviceFileOutcome(error="Input/output error")}, "/d: Input/output error; its last content stays"),
    ):
        made.given(device_files=found).now()
        assert text in made.world.config.message
        made.restarts().now()
        assert text in made.world.config.message
        assert made.world.active.effective.node.files.keys() == {"rdma.json"}
        assert made.world.known.requested.files == {"rdma.json": "/d/rdma.json"}


def test_null_takes_it_away_for_good_and_a_folder_never_read_withholds_what_it_might_describe() -> None:
    made = node(device_files=RDMA).given(device_files={"rdma.json": DeviceFileOutcome()}).now().now()
    assert (made.world.config.reason, made.world.active.effective.node.files) == ("Applied", {})
    assert made.given(device_files={}).now().world.config.reason == "Applied"
    assert made.world.known.requested.files == {}
    made = node(device_files={FOLDER: DeviceFileOutcome(error="not read yet")})
    assert made.offers == {}, "gpu_config.json may say how GPUs are shared"
    assert "/d: not read yet" in made.world.config.message
