"""What the agent reads and writes beside its sockets: optional device nodes, CDI specifications."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from nodedevices_plugin.host.cdi_files import CdiError, CdiFiles, unwritable, write
from nodedevices_plugin.host.cdi_keeper import CdiKeeper
from nodedevices_plugin.host.machine import HostPathReader, wanted_paths
from nodedevices_plugin.runtime.threads import Worker
from nodedevices_plugin.vendors.cdi import CdiSpec
from nodedevices_plugin.vendors.nvidia.cdi import SOURCE
from nodedevices_probe.node.roots import existing
from support.patience import PATIENCE_SECONDS


def touch(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()


def spec(name: str = "0", kind: str = "k8s.device-plugin.nvidia.com/gpu", **more: Any) -> CdiSpec:
    nodes = [{"path": f"/dev/nvidia{name}", "hostPath": f"/dev/nvidia{name}"}]
    document: Mapping[str, Any] = {
        "cdiVersion": "0.5.0",
        "kind": kind,
        "devices": [{"name": name, "containerEdits": {"deviceNodes": nodes}}],
        **more,
    }
    return CdiSpec(kind=kind, file_name="gpu.json", document=document)


def test_the_nodes_of_the_mounted_driver_root_are_those_that_count(tmp_path: Path) -> None:
    touch(tmp_path, "dev/nvidiactl", "dev/nvidia0", "dev/nvidia-fs0", "dev/nvidia-caps-imex-channels/channel0")
    touch(tmp_path, "dev/infiniband/uverbs3", "dev/infiniband/rdma_cm", "dev/infiniband/other", "etc/cufile.json")
    touch(tmp_path, "dev/gdrdrv")
    assert existing(tmp_path, wanted_paths({})) == {
        "/dev/nvidiactl",
        "/dev/nvidia0",
        "/dev/nvidia-fs0",
        "/dev/nvidia-caps-imex-channels/channel0",
        "/dev/infiniband/uverbs3",
        "/dev/infiniband/rdma_cm",
        "/dev/gdrdrv",
        "/etc/cufile.json",
    }


def test_links_of_the_mounted_driver_root_are_followed_there_and_not_here(tmp_path: Path) -> None:
    root = tmp_path / "root"
    touch(root, "usr/share/gds/cufile.json", "dev/nvidiactl")
    for path, to in {
        "etc/cufile.json": "/etc/alternatives/cufile.json",
        "etc/alternatives/cufile.json": "/usr/share/gds/cufile.json",
        "run": "/var/run",
        "dev/nvidia-uvm": str(tmp_path),  # which is here, and not below the root
        "dev/nvidia-fs0": "/nowhere",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).symlink_to(to)
    (root / "var/run/udev").mkdir(parents=True)
    assert existing(root, wanted_paths({})) == {"/dev/nvidiactl", "/etc/cufile.json", "/run/udev"}


def test_without_a_mounted_driver_root_the_machines_own_nodes_count(tmp_path: Path) -> None:
    assert existing(tmp_path / "nowhere", wanted_paths({})) == existing(Path("/"), wanted_paths({}))


async def test_a_node_that_appears_is_reported_once(tmp_path: Path) -> None:
    touch(tmp_path, "dev/nvidiactl")
    notified: list[frozenset[str]] = []
    paths = HostPathReader(
        lambda: tmp_path, dict, worker=Worker("test"), on_change=lambda: notified.append(paths.existing)
    )
    await paths.first()
    await paths.first()
    touch(tmp_path, "dev/nvidia-uvm")
    await paths.first()
    assert notified == [frozenset({"/dev/nvidiactl"}), frozenset({"/dev/nvidiactl", "/dev/nvidia-uvm"})]


def test_a_specification_is_written_whole_readable_by_all_and_only_when_it_differs(tmp_path: Path) -> None:
    folder = tmp_path / "cdi"
    write(folder, (spec(),))
    file = folder / "gpu.json"
    first = file.stat()
    assert first.st_mode & 0o777 == 0o644
    write(folder, (spec(),))
    assert file.stat().st_ino == first.st_ino
    write(folder, (spec("1"),))
    assert json.loads(file.read_text())["devices"][0]["name"] == "1"
    assert [path.name for path in folder.iterdir()] == ["gpu.json"]


def test_what_a_runtime_would_refuse_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(CdiError, match="not valid"):
        write(tmp_path, (spec(nonsense=1),))
    assert not list(tmp_path.iterdir())


async def test_a_folder_that_is_refused_is_said_and_stops_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "cdi"
    folder.touch()
    files = CdiFiles(folder, SOURCE, worker=Worker("test"))
    await files.keep((spec(),))
    await files.keep((spec(),))
    assert capsys.readouterr().out.count("CDI specifications not written") == 1


async def test_a_folder_that_hangs_holds_nobody_for_long(tmp_path: Path) -> None:
    worker, hangs = Worker("test"), threading.Event()
    busy = worker.submit(hangs.wait)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await CdiFiles(tmp_path, SOURCE, worker=worker).keep((spec(),))
    hangs.set()
    await busy


def test_a_folder_that_is_not_there_can_be_made_and_nothing_is_touched(tmp_path: Path) -> None:
    assert unwritable(tmp_path / "run" / "cdi") == ""
    assert unwritable(tmp_path) == ""
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "cdi").touch()
    for folder in (tmp_path / "cdi", tmp_path / "cdi" / "below"):
        assert unwritable(folder) == f"{folder}: Not a directory"
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert unwritable(tmp_path / "link") == f"{tmp_path / 'link'}: Not a directory"


async def test_a_folder_is_checked_before_anything_is_offered(tmp_path: Path) -> None:
    (tmp_path / "cdi").touch()
    news: list[str] = []
    worker = Worker("test")
    keeper = CdiKeeper(
        tmp_path / "cdi", [], files=worker, looks=worker, on_change=lambda: news.append(keeper.unwritable)
    )
    await keeper.first()
    await keeper.first()
    (tmp_path / "cdi").unlink()
    await keeper.first()
    assert news == [f"{tmp_path / 'cdi'}: Not a directory", ""]


async def test_a_folder_that_hangs_keeps_nobody_waiting(tmp_path: Path) -> None:
    held, worker = threading.Event(), Worker("test")
    hanging = worker.submit(held.wait)
    keeper = CdiKeeper(tmp_path, [], files=Worker("files"), looks=worker, on_change=lambda: None)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await keeper.first()
    assert keeper.unwritable == ""
    held.set()
    await hanging
