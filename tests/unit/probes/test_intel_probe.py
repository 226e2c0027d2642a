"""Intel's GPUs, from trees of sysfs to the probe's line and to what pods are given."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from nodedevices_probe.intel.probe import IntelSource
from nodedevices_probe.loop import SourceFacts
from nodedevices_probe.node.sysfs import System
from nodedevices_probe.protocol import DriverState, PciePath
from support.stepped_node import Node, nodes
from support.trees import FLEX_MIB, Tree, flex, intel_bus_id

INTEGRATED, CARD = "0000:00:02.0", "0000:17:00.0"


def display(root: Path, bus_id: str, driver: str, pci_class: str = "0x038000") -> None:
    tree = Tree(root)
    folder = tree.pci(bus_id, behind=f"pci{bus_id[:7]}", driver=driver, vendor="0x8086", device="0x56c0")
    tree.file(f"{folder}/class", pci_class)


def poll(root: Path) -> SourceFacts:
    return IntelSource(system=System(root)).poll()


@pytest.mark.parametrize("driver", ["i915", "xe"])
def test_a_gpu_is_what_its_driver_says_of_it(tmp_path: Path, driver: str) -> None:
    flex(tmp_path, driver=driver)
    facts = poll(tmp_path)
    assert (facts.driver.state, facts.driver.name, facts.driver.version) == (
        DriverState.LOADED,
        driver,
        "6.8.0-45-generic",
    )
    one, other = facts.devices
    assert (one.id, one.type, one.vendor, one.numa_node, one.pcie_root) == (
        intel_bus_id(0),
        "gpu",
        "intel",
        0,
        "pci0000:4a",
    )
    assert (one.capacity, one.device_nodes) == ({"memory": f"{FLEX_MIB}Mi"}, ("/dev/dri/card0", "/dev/dri/renderD128"))
    assert [(each.to, each.path) for each in one.pcie] == [(other.id, PciePath.SINGLE)], "behind one switch"
    assert (one.readings.temperature_celsius, one.readings.power_milliwatts) == (48, 75_000)
    assert facts.accelerators_on_bus == 2


@pytest.mark.parametrize("driver", ["vfio-pci", "pci-stub", "xen-pciback", ""])
def test_gpus_of_virtual_machines_and_an_integrated_one_without_driver_are_none(tmp_path: Path, driver: str) -> None:
    flex(tmp_path, gpus=1)
    display(tmp_path, INTEGRATED, driver)
    if driver:
        display(tmp_path, CARD, driver)
    facts = poll(tmp_path)
    assert (facts.accelerators_on_bus, facts.problems) == (1, ())


@pytest.mark.parametrize("driver", ["vfio-pci", "pci-stub", "xen-pciback"])
def test_where_virtual_machines_have_all_gpus_no_driver_is_missing(tmp_path: Path, driver: str) -> None:
    display(tmp_path, CARD, driver)
    display(tmp_path, INTEGRATED, "")
    facts = poll(tmp_path)
    assert (facts.driver.state, facts.driver.name, facts.problems) == (DriverState.LOADED, "", ())
    display(tmp_path, "0000:18:00.0", "")
    assert poll(tmp_path).driver.state is DriverState.NOT_LOADED


def test_an_integrated_gpu_with_its_driver_and_a_card_without_one_count(tmp_path: Path) -> None:
    display(tmp_path, INTEGRATED, "i915", "0x030000")
    display(tmp_path, CARD, "")
    assert poll(tmp_path).accelerators_on_bus == 2


def test_a_card_that_no_driver_has_is_named_beside_those_that_work(tmp_path: Path) -> None:
    flex(tmp_path, gpus=1)
    display(tmp_path, CARD, "")
    [problem] = poll(tmp_path).problems
    assert (problem.code, problem.message[: len(CARD)]) == ("DriverUnbound", CARD)


@pytest.mark.parametrize("driver", ["i915", "xe"])
def test_it_is_offered_by_its_driver_and_containers_get_its_nodes_alone(tmp_path: Path, driver: str) -> None:
    flex(tmp_path, driver=driver)
    node = Node(*poll(tmp_path).devices).now()
    name = f"gpu.intel.com/{driver}"
    assert node.offers == {name: [intel_bus_id(0), intel_bus_id(1)]}
    edits = node.container(name, intel_bus_id(1))
    assert (edits.devices, edits.envs) == (nodes("/dev/dri/card1", "/dev/dri/renderD129"), {})


def test_virtual_functions_are_offered_in_place_of_their_physical_function(tmp_path: Path) -> None:
    flex(tmp_path, functions=3)
    facts = poll(tmp_path)
    assert facts.accelerators_on_bus == 2, "functions are part of a GPU"
    offers = Node(*facts.devices).now().offers
    assert offers == {"gpu.intel.com/i915": [*(intel_bus_id(0, each) for each in (1, 2, 3)), intel_bus_id(1)]}
    assert facts.devices[1].extra["physicalFunction"].string == intel_bus_id(0)


def test_a_function_that_a_virtual_machine_has_is_not_listed(tmp_path: Path) -> None:
    flex(tmp_path, functions=2)
    (tmp_path / "sys/bus/pci/drivers/i915" / intel_bus_id(0, 2)).unlink()
    assert intel_bus_id(0, 2) not in [each.id for each in poll(tmp_path).devices]


def test_a_missing_device_node_is_a_reason_and_a_gpu_without_any_answers_nothing(tmp_path: Path) -> None:
    flex(tmp_path)
    (tmp_path / "dev/dri/renderD128").unlink()
    shutil.rmtree(tmp_path / "sys/bus/pci/devices" / intel_bus_id(1) / "drm")
    one, other = poll(tmp_path).devices
    assert one.readings.conditions == ("deviceNodeMissing",)
    assert other.readings.error == "the driver made no device node for it"
    node = Node(one, other).now()
    assert node.world.known.verdicts[one.id].reason == "DeviceNodeMissing"


def test_without_a_driver_it_says_which(tmp_path: Path) -> None:
    flex(tmp_path)
    shutil.rmtree(tmp_path / "sys/module")
    facts = poll(tmp_path)
    assert (facts.driver.state, facts.devices) == (DriverState.NOT_LOADED, ())
    assert "xe and i915" in facts.problems[0].message


def test_a_gpu_of_which_it_is_not_known_whether_it_has_functions_is_not_one_without_them(tmp_path: Path) -> None:
    flex(tmp_path)
    folder = (tmp_path / "sys/bus/pci/devices" / intel_bus_id(0)).resolve()
    (folder / "sriov_numvfs").unlink(missing_ok=True)
    (folder / "sriov_numvfs").mkdir()
    one, other = poll(tmp_path).devices
    assert str(one.readings.error).startswith("sriov_numvfs cannot be read")
    assert other.readings.error is None
