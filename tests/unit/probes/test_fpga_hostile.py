"""Broken and hostile trees of Xilinx' cards: one card's error or absence, never another's, and always a good line."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nodedevices_plugin.inputs.reader import parse_line
from nodedevices_probe.fpga.probe import FpgaSource
from nodedevices_probe.loop import LineLoop, SourceFacts
from nodedevices_probe.node.roots import MAX_ENTRIES
from nodedevices_probe.node.sysfs import System
from support.fpga_trees import alveo, fpga_bus_id, fpga_slot, ma35, u30
from support.fuzzing import scaled

ODD = ("", "-1", "N/A", "9" * 40, "0x", "1_000", "a" * 10_000, "\x00\x1b[31m", "é\u202e", "a/b\n../..", "= = =")
DEVICES = "sys/bus/pci/devices"


def line(root: Path) -> SourceFacts:
    written: list[bytes] = []
    facts = LineLoop(source=FpgaSource(system=System(root)), write=written.append, boot_id="b").once()
    parse_line(written[0])
    return facts


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("fpga")
    u30(root)
    alveo(root, cards=2, first=4, qdma=True)
    ma35(root)
    return root


@settings(max_examples=scaled(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), value=st.sampled_from(ODD))
def test_files_of_any_content_are_one_good_line(machine: Path, seed: int, value: str) -> None:
    chosen = random.Random(seed)
    files = sorted(path for path in machine.rglob("*") if path.is_file() and not path.is_symlink())
    before = {path: path.read_bytes() for path in chosen.sample(files, min(len(files), 20))}
    try:
        for path in before:
            path.write_text(value)
        line(machine)
    finally:
        for path, content in before.items():
            path.write_bytes(content)


@settings(max_examples=scaled(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), value=st.sampled_from(ODD))
def test_what_is_wrong_with_one_card_is_that_card_s_alone(machine: Path, seed: int, value: str) -> None:
    good = {each.id: each for each in line(machine).devices}
    chosen = random.Random(seed)
    slot = (machine / DEVICES / fpga_bus_id(4)).resolve().parent
    files = [path for path in sorted(slot.rglob("*")) if path.is_file() and fpga_slot(4) in str(path)]
    before = {path: path.read_bytes() for path in chosen.sample(files, 4)}
    try:
        for path in before:
            path.write_text(value)
        now = {each.id: each for each in line(machine).devices}
    finally:
        for path, content in before.items():
            path.write_bytes(content)
    others = [each for each in good if each != fpga_bus_id(4)]
    assert [now[each].readings for each in others] == [good[each].readings for each in others]


def spoil_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def spoil_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def spoil_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def spoil_endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("spoil", [spoil_fifo, spoil_loop, spoil_folder, spoil_endless])
def test_what_is_no_file_is_not_known_and_nobody_waits(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    alveo(tmp_path)
    for file in ("rom.u.0/VBNV", "rom.u.0/timestamp", "logic_uuids", "xmc.u.0/serial_num", "vendor"):
        spoil(tmp_path / DEVICES / fpga_bus_id(0) / file)
        found = {each.id: each for each in line(tmp_path).devices}
        assert found[fpga_bus_id(1)].readings.error is None, file


def test_a_card_that_vanishes_while_it_is_read_is_its_own_error(tmp_path: Path) -> None:
    alveo(tmp_path)
    link = tmp_path / DEVICES / fpga_bus_id(0)
    link.unlink()
    link.symlink_to("/nowhere")
    found = {each.id: each.readings.error for each in line(tmp_path).devices}
    assert found[fpga_bus_id(1)] is None


def test_folders_of_any_size_and_names_of_any_characters_are_bounded(tmp_path: Path) -> None:
    alveo(tmp_path, cards=1)
    folder = tmp_path / DEVICES / fpga_bus_id(0)
    for number in range(MAX_ENTRIES + 100):
        (folder / f"junk{number}").touch()
    for name in ("0000:3b:00.0\x1b[2J", "..hidden", "é", "zzzz:ff:1f.7"):
        (tmp_path / DEVICES / name).symlink_to("/nowhere")
    for name in ("ama_transcoder", "ama_transcoder99999", "ama_transcoder-1", "ama_transcoder7x"):
        (tmp_path / "sys/class/misc" / name).mkdir(parents=True)
    assert [each.id for each in line(tmp_path).devices] == [fpga_bus_id(0)]


def test_two_transcoders_with_one_address_are_one_device(tmp_path: Path) -> None:
    ma35(tmp_path)
    (tmp_path / "sys/devices/virtual/misc/ama_transcoder1/bus_id").write_text("0000:61:00.0\n")
    ids = [each.id for each in line(tmp_path).devices]
    assert ids == ["0000:61:00.0", "0000:62:00.0"]
