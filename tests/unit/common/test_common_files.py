"""A replaced file is whole or as it was, and nothing is left beside it."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest
from nodedevices_common import files


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "state.json"


@pytest.fixture(autouse=True)
def folder(path: Path) -> Path:
    path.parent.mkdir()
    return path.parent


def inside(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("content", ["größer", b"\x00\xff", ""])
def test_the_new_content_takes_the_place_of_the_old(path: Path, content: str | bytes, durable: bool) -> None:
    path.write_text("old and longer than the new one")
    files.replace(path, content, durable=durable)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert inside(path.parent) == [path.name]


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_its_mode_is_the_one_requested_whatever_the_umask(path: Path, mode: int) -> None:
    before = os.umask(0o077)
    try:
        files.replace(path, "x", mode=mode)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_target_that_cannot_be_replaced_leaves_nothing_beside_it(path: Path) -> None:
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        files.replace(path, "x")
    assert inside(path.parent) == [path.name]


def test_a_link_in_its_way_is_not_followed(path: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    files.unfinished(path).symlink_to(elsewhere)
    files.replace(path, "new")
    assert elsewhere.read_text() == "mine"
    assert path.read_text() == "new"
    assert not path.is_symlink()


def test_a_pipe_in_its_way_is_not_waited_for_and_the_rest_of_a_killed_writer_goes(path: Path) -> None:
    os.mkfifo(files.unfinished(path))
    files.replace(path, "new")
    assert path.read_text() == "new"
    files.unfinished(path).write_text("half")
    files.replace(path, "newer")
    assert inside(path.parent) == [path.name]


def test_a_reader_never_sees_half_a_file(path: Path) -> None:
    contents = {letter * 20_000 for letter in "abc"}
    files.replace(path, "a" * 20_000)
    over = threading.Event()
    seen: set[str] = set()

    def read() -> None:
        while not over.is_set():
            seen.add(path.read_text())

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(100):
            for content in sorted(contents):
                files.replace(path, content)
    finally:
        over.set()
        reader.join()
    assert seen <= contents
