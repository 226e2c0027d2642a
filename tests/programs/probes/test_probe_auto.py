"""`nodedevices-probe auto`: which probes it starts on which machine, and their lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from nodedevices_plugin.inputs.reader import parse_line
from nodedevices_probe.kind import Hardware
from nodedevices_probe.node.roots import Roots
from nodedevices_probe.registry import KINDS
from support.probes import ended
from support.trees import Tree, mi300x

AT = "pci0000:16/0000:16:01.0"


def card(root: Path, vendor: str, pci_class: str, driver: str) -> None:
    tree = Tree(root)
    tree.file(f"{tree.pci('0000:17:00.0', behind=AT, driver=driver, vendor=vendor)}/class", pci_class)


def found(root: Path) -> dict[str, str]:
    machine = Hardware(Roots(root))
    return {name: why for name, kind in KINDS.items() if (why := kind.wanted(machine, {}))}


@pytest.mark.parametrize(
    ("vendor", "pci_class", "driver", "kinds"),
    [
        ("0x10de", "0x030200", "nvidia", ["nvml"]),
        ("0x10de", "0x030200", "", ["nvml"]),
        ("0x10de", "0x030200", "vfio-pci", []),  # a virtual machine has it
        ("0x10de", "0x068000", "", []),  # a switch
        ("0x1002", "0x120000", "", ["amd"]),
        ("0x1002", "0x030000", "amdgpu", ["amd"]),
        ("0x1002", "0x030000", "radeon", []),  # the display adapter of a server's board
        ("0x8086", "0x038000", "", ["intel"]),
        ("0x8086", "0x030000", "xe", ["intel"]),
        ("0x8086", "0x030000", "", []),
        ("0x10ee", "0x120000", "", ["fpga"]),
        ("0x10ee", "0x070001", "xdma", []),
        ("0x1d0f", "0x058000", "xocl", ["fpga"]),
        ("0x1d0f", "0x120000", "neuron", []),
        ("0x1a03", "0x030000", "ast", []),
        ("0x10de\x00", "none", "", []),
    ],
)
def test_a_pci_device_starts_the_probe_of_its_maker(
    tmp_path: Path, vendor: str, pci_class: str, driver: str, kinds: list[str]
) -> None:
    card(tmp_path, vendor, pci_class, driver)
    assert list(found(tmp_path)) == kinds


@pytest.mark.parametrize("path", ["proc/driver/nvidia/version", "dev/dxg"])
def test_nvidias_gpus_that_no_pci_bus_shows_are_found_by_their_driver(tmp_path: Path, path: str) -> None:
    Tree(tmp_path).file(path)
    assert list(found(tmp_path)) == ["nvml"]


def test_a_machine_without_any_of_it_and_a_broken_one_have_nothing(tmp_path: Path) -> None:
    assert found(tmp_path) == {}
    (tmp_path / "sys/bus/pci").mkdir(parents=True)
    (tmp_path / "sys/bus/pci/devices").symlink_to("devices")
    assert found(tmp_path) == {}


def test_once_is_a_line_of_each_and_says_why_on_stderr(tmp_path: Path) -> None:
    mi300x(tmp_path, gpus=2)
    card(tmp_path, "0x8086", "0x038000", "xe")
    done = ended("auto", "--once", f"--root={tmp_path}")
    assert done.code == 0, done.err
    lines = [parse_line(each.encode()) for each in done.lines]
    assert [(each.probe, len(each.devices)) for each in lines] == [("amd", 2), ("intel", 0)]
    assert done.err.splitlines()[:2] == [
        "nodedevices-probe: starting amd: 0000:0c:00.0 is a PCI device of vendor 0x1002 and class 0x120000",
        "nodedevices-probe: starting intel: 0000:17:00.0 is a PCI device of vendor 0x8086 and class 0x038000",
    ]


def test_without_hardware_it_says_so_and_that_is_no_error(tmp_path: Path) -> None:
    done = ended("auto", "--once", f"--root={tmp_path}")
    assert (done.code, done.out) == (0, "")
    assert "no hardware of nvml, amd, intel" in done.err
