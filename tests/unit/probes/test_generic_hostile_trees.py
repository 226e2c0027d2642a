"""Whatever stands below /dev and sysfs: generic devices are a good line, and nothing raises or waits."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from nodedevices_api.bounds import MAX_DEVICES
from nodedevices_probe.files import WatchedFile
from nodedevices_probe.generic.config import parse
from nodedevices_probe.generic.probe import GenericSource
from nodedevices_probe.node.sysfs import System
from nodedevices_probe.protocol import DriverState, Snapshot
from support.fuzzing import scaled
from support.sources import NO_FILES, line_of
from support.trees import Tree, usb

FILE = """
- {name: serial, usb: [{vendor: "1a86"}]}
- {name: all, pair: match, paths: [{path: "/dev/[a-z]*/*"}, {path: "/dev/x*", optional: true}]}
- {name: pairs, paths: [{path: "/dev/*"}, {path: "/dev/y?", limit: 1000}, {path: "/sys/class/*/*", type: Mount}]}
- {preset: kvm, required: true}
"""
ODD = ("", "-1", "0x1a86", "9" * 30, "1_0", "a" * 100, "\x00\x1b[31m", "é\u202e", "1 2 3", "MAJOR=1\nDEVNAME=../../etc")


def line(root: Path) -> Snapshot:
    file = root.parent / "generic.yaml"
    file.write_text(FILE)
    return line_of(GenericSource(file=WatchedFile(path=file, parse=parse), system=System(root)))


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    return build(tmp_path / "root")


def build(root: Path) -> Path:
    tree = Tree(root)
    usb(tree, "1-1", ids="1a86:7523", number=7, serial="A1", tty="ttyUSB0")
    usb(tree, "1-1.2", ids="1a86:5523", number=8)
    for name in ("a/b", "x0", "y1", "input/event0"):
        tree.node(f"/dev/{name}")
    tree.file("sys/class/tty/ttyUSB0/dev", "188:0")
    return root


@settings(max_examples=scaled(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), value=st.sampled_from(ODD))
def test_files_of_any_kind_and_content_are_one_good_line(tmp_path: Path, seed: int, value: str) -> None:
    shutil.rmtree(tmp_path / "root", ignore_errors=True)
    root, chosen = build(tmp_path / "root"), random.Random(seed)
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    for path in chosen.sample(files, 6):
        path.unlink()
        put = chosen.choice([*NO_FILES.values(), lambda path: path.write_text(value), Path.exists])
        put(path)
    assert line(root).driver.state is DriverState.LOADED


def test_names_of_any_characters_are_left_out_or_said(machine: Path) -> None:
    for name in ("a\x1b[2J", "é", "with space", "-dash", "x'quote", "e" * 200):
        (machine / "dev/a" / name).write_text("")
    devices = {each.id: each for each in line(machine).devices}
    assert devices["dev-a-b"].readings.error is None
    assert [each.readings.error is not None for id_, each in devices.items() if "eee" in id_] == [True]
    assert not [id_ for id_ in devices if "quote" in id_ and devices[id_].device_nodes]


def test_four_thousand_entries_are_as_many_devices_as_a_line_has_room_for(machine: Path) -> None:
    for number in range(4000):
        (machine / f"dev/a/n{number}").write_text("")
    facts = line(machine)
    assert len(facts.devices) == MAX_DEVICES
    assert "TooManyDevices" in [each.code for each in facts.problems]


def test_usb_devices_below_each_other_without_end_are_read_to_a_limit(machine: Path) -> None:
    folder = machine / "sys/bus/usb/devices/1-1/1-1:1.0"
    for number in range(30):
        (folder / f"n{number}").mkdir()
    for _ in range(40):
        folder /= "deeper"
    folder.mkdir(parents=True)
    (machine / "sys/bus/usb/devices/1-1/1-1:1.1").symlink_to(".")
    assert "usb:1a86:7523:A1" in [each.id for each in line(machine).devices]


def test_a_device_that_names_a_node_outside_of_dev_is_not_given_it(machine: Path) -> None:
    uevent = machine / "sys/bus/usb/devices/1-1/1-1:1.0/ttyUSB0/tty/ttyUSB0/uevent"
    uevent.write_text("MAJOR=1\nDEVNAME=../etc/shadow\n")
    [device] = [each for each in line(machine).devices if each.id == "usb:1a86:7523:A1"]
    assert device.device_nodes == ("/dev/bus/usb/001/007",)
    assert device.readings.error == "/dev/../etc/shadow: a device node of this name cannot be given to a container"
