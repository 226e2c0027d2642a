"""Onload on Solarflare cards: what the probe says where it is wanted, and that it says nothing where it is not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from nodedevices_probe.nic.functions import onload_missing
from nodedevices_probe.nic.probe import NicSource
from nodedevices_probe.node.roots import Roots
from nodedevices_probe.node.sysfs import System
from support.nic_trees import connectx_7_pair, solarflare

CARD, OTHER = "0000:65:00.0", "0000:65:00.1"


def conditions(root: Path, *, onload: bool = True) -> dict[str, bool]:
    devices = NicSource(system=System(root), onload=onload).poll().devices
    return {each.id: "onloadMissing" in each.readings.conditions for each in devices}


def test_with_its_modules_and_nodes_nothing_is_missing(tmp_path: Path) -> None:
    solarflare(tmp_path)
    assert conditions(tmp_path) == {CARD: False, OTHER: False}


@pytest.mark.parametrize("name", ["onload", "onload_epoll", "sfc_char"])
@pytest.mark.parametrize("where", ["node", "module"])
def test_without_one_of_them_it_is_missing_for_each_card_that_needs_it(tmp_path: Path, name: str, where: str) -> None:
    solarflare(tmp_path)
    connectx_7_pair(tmp_path)
    if where == "node":
        (tmp_path / "dev" / name).unlink()
    else:
        file = tmp_path / "proc/devices"
        file.write_text("\n".join(line for line in file.read_text().splitlines() if line.split()[1:] != [name]))
    found = conditions(tmp_path)
    assert {each for each, is_missing in found.items() if is_missing} == {CARD, OTHER}
    assert len(found) == 4


def test_where_nobody_wants_onload_a_card_without_it_is_as_good_as_any(tmp_path: Path) -> None:
    solarflare(tmp_path)
    (tmp_path / "proc/devices").unlink()
    assert conditions(tmp_path, onload=False) == {CARD: False, OTHER: False}


def test_a_card_that_another_driver_has_is_not_asked_for_it(tmp_path: Path) -> None:
    nics = solarflare(tmp_path)
    (tmp_path / "proc/devices").unlink()
    nics.bind("sys/devices/pci0000:16/0000:16:05.0/0000:65:00.0", "vfio-pci")
    assert conditions(tmp_path) == {CARD: False, OTHER: True}


def block_device(root: Path) -> None:
    text = "Character devices:\n\nBlock devices:\n240 onload\n241 onload_epoll\n242 sfc_char"
    (root / "proc/devices").write_text(text)


def fifo(root: Path) -> None:
    (root / "proc/devices").unlink()
    os.mkfifo(root / "proc/devices")


def garbage(root: Path) -> None:
    (root / "proc/devices").write_bytes(b"\xff\x00 onload onload_epoll sfc_char\n" * 10_000)


def parts_of_names(root: Path) -> None:
    (root / "proc/devices").write_text("Character devices:\n240 onload_cplane\n241 myonload\n242 sfc_affinity")


@pytest.mark.parametrize("spoil", [block_device, fifo, garbage, parts_of_names])
def test_what_is_no_list_of_character_devices_is_none(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    solarflare(tmp_path)
    spoil(tmp_path)
    assert onload_missing(Roots(tmp_path))
