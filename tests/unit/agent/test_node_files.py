"""Files that other programs on the node read: written, replaced, removed when nothing needs them, and only ours."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import pytest
from nodedevices_plugin.host import node_files
from nodedevices_plugin.host.node_files import LIST, NodeFiles, NodeFilesError, keep_folder
from nodedevices_plugin.runtime.threads import Worker
from nodedevices_plugin.vendors.base import FolderFiles
from support.patience import PATIENCE_SECONDS


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine is no folder that hangs."""
    monkeypatch.setattr(node_files, "PATIENCE_SECONDS", PATIENCE_SECONDS)


def wanted(folder: Path, **files: str) -> FolderFiles:
    return FolderFiles(folder=str(folder), files={f"{name}.json": text for name, text in files.items()})


def there(folder: Path) -> dict[str, str]:
    return {each.name: each.read_text() for each in folder.iterdir() if each.name != LIST}


def test_they_are_written_replaced_and_removed_when_nothing_needs_them(tmp_path: Path) -> None:
    folder = tmp_path / "dp"
    folder.mkdir()
    assert keep_folder(wanted(folder, a="1", b="1")) == (["a.json", "b.json"], [])
    assert keep_folder(wanted(folder, a="1", b="2")) == (["b.json"], [])
    assert there(folder) == {"a.json": "1", "b.json": "2"}
    assert keep_folder(wanted(folder, a="1")) == ([], ["b.json"])
    assert keep_folder(wanted(folder)) == ([], ["a.json"])
    assert not list(folder.iterdir())


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    assert keep_folder(wanted(tmp_path / "dp", a="1")) == ([], [])
    assert not (tmp_path / "dp").exists()


def test_what_others_or_a_killed_agent_left_stays_or_goes_by_the_list(tmp_path: Path) -> None:
    (tmp_path / "theirs.json").write_text("x")
    (tmp_path / "a.json").write_text("of the plugin before")
    keep_folder(wanted(tmp_path, a="1"))
    keep_folder(wanted(tmp_path))
    assert there(tmp_path) == {"theirs.json": "x"}
    # The list comes first, so that a kill between any two writes leaves no file that nobody knows.
    killed = tmp_path / "killed"
    killed.mkdir()
    keep_folder(wanted(killed, a="1", b="1"))
    (killed / "b.json").unlink()
    (killed / ".b.json.new").write_text("half")
    keep_folder(wanted(killed))
    assert there(killed) == {}


def test_what_the_plugin_before_removed_as_it_ended_is_written_again(tmp_path: Path) -> None:
    keep_folder(wanted(tmp_path, a="1"))
    (tmp_path / "a.json").unlink()
    assert keep_folder(wanted(tmp_path, a="1")) == (["a.json"], [])


@pytest.mark.parametrize("text", ["[", "{}", '["../../etc/passwd", 1, "", ".hidden"]', "[" * 100_000, "x" * 300_000])
def test_a_list_that_is_broken_or_hostile_removes_nothing_elsewhere(tmp_path: Path, text: str) -> None:
    outside = tmp_path / "passwd"
    outside.write_text("x")
    folder = tmp_path / "dp"
    folder.mkdir()
    (folder / LIST).write_text(text)
    keep_folder(wanted(folder, a="1"))
    assert (there(folder), outside.read_text()) == ({"a.json": "1"}, "x")
    assert json.loads((folder / LIST).read_text()) == ["a.json"]


def test_a_name_that_leads_elsewhere_is_not_written(tmp_path: Path) -> None:
    folder = tmp_path / "dp"
    folder.mkdir()
    keep_folder(FolderFiles(folder=str(folder), files={"../a.json": "1", "a/b": "1"}))
    assert list(tmp_path.iterdir()) == [folder]
    assert not list(folder.iterdir())


def test_a_link_in_a_files_place_is_replaced_and_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("x")
    folder = tmp_path / "dp"
    folder.mkdir()
    (folder / "a.json").symlink_to(target)
    keep_folder(wanted(folder, a="1"))
    assert (target.read_text(), (folder / "a.json").read_text()) == ("x", "1")


def test_a_folder_that_cannot_be_is_said_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NodeFilesError, match="Not a directory"):
        keep_folder(wanted(tmp_path / "file", a="1"))


async def test_what_cannot_be_written_is_said_until_it_can(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "dp"
    folder.touch()
    files = NodeFiles(worker=Worker("test"), compare_seconds=0.0)
    for _ in range(3):
        await files.keep([wanted(folder, a="1")])
    assert capsys.readouterr().out.count("not written") == 1
    assert str(folder) in files.problem
    folder.unlink()
    folder.mkdir()
    await files.keep([wanted(folder, a="1")])
    assert (files.problem, there(folder)) == ("", {"a.json": "1"})


async def test_a_folder_that_hangs_holds_nobody_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_files, "PATIENCE_SECONDS", 0.1)
    worker, hangs = Worker("test"), threading.Event()
    busy = worker.submit(hangs.wait)
    files = NodeFiles(worker=worker)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await files.keep([wanted(tmp_path, a="1")])
    assert "took more than" in files.problem
    hangs.set()
    await busy


async def test_files_that_are_as_they_should_be_are_not_read_at_every_step(tmp_path: Path) -> None:
    files = NodeFiles(worker=Worker("test"), compare_seconds=3600.0)
    await files.keep([wanted(tmp_path, a="1")])
    (tmp_path / "a.json").unlink()
    await files.keep([wanted(tmp_path, a="1")])
    assert there(tmp_path) == {}
    await files.keep([wanted(tmp_path, a="1", b="2")])
    assert there(tmp_path) == {"a.json": "1", "b.json": "2"}, "a change is written at once"
