"""What a PCIe link does and can do, from sysfs: of a device of any maker, behind any port."""

from __future__ import annotations

from pathlib import Path

import pytest
from nodedevices_probe.intel.probe import IntelSource
from nodedevices_probe.node.sysfs import System
from nodedevices_probe.protocol import Readings
from support.trees import Tree, flex, intel_bus_id

DEVICE, PORT = "0000:17:00.0", "0000:16:01.0"


def placed(tree: Tree, bus_id: str, behind: str, said: dict[str, str | int]) -> str:
    folder = tree.pci(bus_id, behind=behind)
    tree.files(folder, **said)
    return folder


def behind_a_port(root: Path, device: dict[str, str | int], port: dict[str, str | int]) -> Readings:
    tree = Tree(root)
    placed(tree, PORT, "pci0000:16", port)
    placed(tree, DEVICE, f"pci0000:16/{PORT}", device)
    return link_of(root, DEVICE)


def link_of(root: Path, bus_id: str) -> Readings:
    return System(root).with_pcie_link(Readings(), bus_id)


def ends(width: int, speed: str, *, widest: int = 16, fastest: str = "32.0 GT/s PCIe") -> dict[str, str | int]:
    return {
        "current_link_width": width,
        "max_link_width": widest,
        "current_link_speed": speed,
        "max_link_speed": fastest,
    }


FULL = ends(16, "32.0 GT/s PCIe")


@pytest.mark.parametrize(
    ("speed", "generation"),
    [
        ("2.5 GT/s PCIe", 1),
        ("5.0 GT/s PCIe", 2),
        ("8 GT/s", 3),  # older kernels
        ("16.0 GT/s PCIe", 4),
        ("32.0 GT/s PCIe", 5),
        ("64.0 GT/s PCIe", 6),
        ("Unknown", None),
        ("Unknown speed", None),
    ],
)
def test_a_speed_is_read_as_its_generation(tmp_path: Path, speed: str, generation: int | None) -> None:
    assert behind_a_port(tmp_path, ends(16, speed), FULL).pcie_generation == generation


def test_what_is_possible_is_what_both_ends_can_do(tmp_path: Path) -> None:
    slot = ends(8, "8.0 GT/s PCIe", widest=8, fastest="8.0 GT/s PCIe")
    assert behind_a_port(tmp_path, ends(8, "8.0 GT/s PCIe"), slot) == Readings(
        pcie_width=8, pcie_width_possible=8, pcie_generation=3, pcie_generation_possible=3
    )


@pytest.mark.parametrize("width", [0, 33, 63, 255])
def test_a_link_that_is_down_or_a_device_that_has_left_has_no_width(tmp_path: Path, width: int) -> None:
    assert behind_a_port(tmp_path, {**FULL, "current_link_width": width}, FULL).pcie_width is None


def test_of_a_port_that_says_nothing_nothing_is_known_to_be_possible(tmp_path: Path) -> None:
    link = behind_a_port(tmp_path, ends(8, "8.0 GT/s PCIe"), {})
    assert (link.pcie_width, link.pcie_width_possible, link.pcie_generation_possible) == (8, None, None)


@pytest.mark.parametrize("vendor", ["0x1b36", "0x15ad"])
def test_a_hypervisors_port_says_nothing_of_the_slot(tmp_path: Path, vendor: str) -> None:
    assert behind_a_port(tmp_path, ends(8, "8.0 GT/s PCIe"), {**FULL, "vendor": vendor}) == Readings()


def test_a_device_on_no_port_and_one_that_is_not_there_have_no_link(tmp_path: Path) -> None:
    placed(Tree(tmp_path), DEVICE, "pci0000:00", ends(8, "8.0 GT/s PCIe"))
    assert link_of(tmp_path, DEVICE) == Readings()
    assert link_of(tmp_path, PORT) == Readings()


def test_a_virtual_function_has_no_link_of_its_own(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    placed(tree, PORT, "pci0000:16", FULL)
    physical = placed(tree, "0000:17:00.1", f"pci0000:16/{PORT}", FULL)
    folder = placed(tree, DEVICE, f"pci0000:16/{PORT}", FULL)
    tree.link(f"{folder}/physfn", physical)
    assert link_of(tmp_path, DEVICE) == Readings()


def test_every_probe_of_sysfs_reports_the_links_of_its_devices(tmp_path: Path) -> None:
    flex(tmp_path)
    tree, bus_id = Tree(tmp_path), intel_bus_id(0)
    port = System(tmp_path).pci_path(bus_id)[-2]
    placed(tree, port, "pci0000:4a", ends(16, "16.0 GT/s PCIe"))
    tree.files(f"sys/bus/pci/devices/{bus_id}", **ends(8, "16.0 GT/s PCIe"))
    readings = IntelSource(system=System(tmp_path)).poll().devices[0].readings
    assert (readings.pcie_width, readings.pcie_width_possible) == (8, 16)
    assert (readings.pcie_generation, readings.pcie_generation_possible) == (4, 5)
