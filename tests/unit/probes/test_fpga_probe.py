"""Xilinx' cards, from trees of sysfs to the probe's line."""

from __future__ import annotations

import shutil
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from nodedevices_probe.fpga.probe import FpgaSource
from nodedevices_probe.node.roots import Roots
from nodedevices_probe.node.sysfs import System
from nodedevices_probe.protocol import DeviceFact, DriverState, PciePath, Snapshot
from nodedevices_probe.source import BoundedReads
from support.fpga_trees import (
    U30_SHELL,
    U250_SHELL,
    U250_TIMESTAMP,
    U250_UUID,
    alveo,
    fpga_bus_id,
    fpga_slot,
    golden,
    ma35,
    ma35_bus_id,
    management_node,
    u30,
    user_services,
)
from support.patience import PATIENCE_SECONDS
from support.sources import line_of
from support.trees import Tree

DEVICES = "sys/bus/pci/devices"


def poll(root: Path) -> Snapshot:
    return line_of(FpgaSource(system=System(root)))


def said(device: DeviceFact) -> dict[str, str | None]:
    return {name: value.string for name, value in device.extra.items()}


def reset(root: Path, card: int) -> None:
    """What `xbutil reset` takes away for a while."""
    folder = root / DEVICES / fpga_bus_id(card)
    for each in [*folder.glob("rom.u.*"), *folder.glob("xmc.u.*")]:
        shutil.rmtree(each)


def test_a_card_is_its_user_function_with_the_management_function_beside_it(tmp_path: Path) -> None:
    alveo(tmp_path, qdma=True)
    facts = poll(tmp_path)
    assert (facts.driver.state, facts.driver.name, facts.driver.version) == (DriverState.LOADED, "xocl", "2.16.204")
    one, other = facts.devices
    assert (one.id, one.type, one.vendor, one.brand, one.product_name) == (
        "0000:3b:00.1",
        "fpga",
        "xilinx",
        "Xilinx",
        "ALVEO U250 PQ",
    )
    assert said(one) == {
        "pciVendor": "10ee",
        "deviceID": "5005",
        "shell": U250_SHELL,
        "shellTimestamp": U250_TIMESTAMP,
        "shellUUID": U250_UUID,
        "deviceType": "u250",
        "serialNumber": "XFL1CARD0000",
        "managementFunction": "0000:3b:00.0",
        "managementNodes": "/dev/xclmgmt15104",
    }
    assert one.device_nodes == ("/dev/dri/renderD128", "/dev/xfpga/dma.qdma.u15105.0")
    assert (one.pci_bus_id, one.pcie_root, one.numa_node) == ("0000:3b:00.1", "pci0000:3a", 0)
    assert [(each.to, each.path) for each in one.pcie] == [(other.id, PciePath.HOSTBRIDGE)]
    assert (one.readings.temperature_celsius, one.readings.power_milliwatts) == (43, 31_500)
    assert (one.readings.error, one.readings.conditions) == (None, ())
    assert [each.index for each in facts.devices] == [0, 1]
    assert facts.accelerators_on_bus == 2, "a card counts once, whatever functions it has"


def test_the_management_node_is_no_device_node_of_the_card(tmp_path: Path) -> None:
    alveo(tmp_path)
    assert management_node(0) not in poll(tmp_path).devices[0].device_nodes


@pytest.mark.parametrize("function", [0, 1])
def test_which_function_is_the_user_function_says_the_driver_and_not_its_number(tmp_path: Path, function: int) -> None:
    tree = Tree(tmp_path)
    tree.file("sys/module/xocl/version", "2.16")
    user, management = f"0000:3b:00.{function}", f"0000:3b:00.{1 - function}"
    tree.pci(management, behind="pci0000:3a", vendor="0x10ee", device="0x5004", mgmt_pf="", instance=7)
    folder = tree.pci(user, behind="pci0000:3a", vendor="0x10ee", device="0x5005", user_pf="")
    tree.files(f"{folder}/rom.u.1", VBNV=U250_SHELL, timestamp="1")
    [card] = poll(tmp_path).devices
    assert (card.id, said(card)["managementFunction"]) == (user, management)


def test_a_virtual_machine_has_the_user_function_alone(tmp_path: Path) -> None:
    alveo(tmp_path, cards=1, management=False, maker="0x1d0f", device=0xF00F, serials=("",))
    [card] = poll(tmp_path).devices
    assert (card.id, card.brand, card.readings.error) == (fpga_bus_id(0), "AWS", None)
    assert said(card).keys().isdisjoint({"managementFunction", "managementNodes", "serialNumber"})


@pytest.mark.parametrize(("maker", "brand"), [("0x13fe", "Advantech"), ("0x3475", "Arista"), ("0x10EE", "Xilinx")])
def test_cards_of_other_makers_with_the_same_drivers_are_the_same(tmp_path: Path, maker: str, brand: str) -> None:
    alveo(tmp_path, cards=1, maker=maker)
    [card] = poll(tmp_path).devices
    assert (card.vendor, card.brand) == ("xilinx", brand)


def test_other_devices_of_these_makers_are_nobodys_here(tmp_path: Path) -> None:
    tree = alveo(tmp_path, cards=1)
    tree.pci("0000:00:05.0", behind="pci0000:00", vendor="0x1d0f", device="0xec20", driver="ena")
    tree.pci("0000:00:06.0", behind="pci0000:00", vendor="0x8086", device="0x5004", user_pf="")
    assert [each.id for each in poll(tmp_path).devices] == [fpga_bus_id(0)]


def test_a_versal_card_has_its_serial_number_and_sensors_elsewhere(tmp_path: Path) -> None:
    alveo(tmp_path, cards=1, shell="xilinx_v70_gen5x8_qdma_2", device=0x5094, controller="hwmon_sdm.u")
    [card] = poll(tmp_path).devices
    assert said(card)["serialNumber"] == "XFL1CARD0000"
    assert (card.readings.temperature_celsius, card.readings.power_milliwatts) == (38, 22_000)
    assert card.readings.thermal_slowdown is False
    assert card.product_name == "V70"


def test_a_card_that_is_being_reset_has_a_reason_and_comes_back_by_itself(tmp_path: Path) -> None:
    tree, source = alveo(tmp_path), FpgaSource(system=System(tmp_path))
    before = line_of(source).devices
    reset(tmp_path, 0)
    broken, other = line_of(source).devices
    assert (broken.id, broken.index) == (before[0].id, 0)
    assert broken.readings.error is not None
    assert "being reset" in broken.readings.error
    assert other == before[1]
    user_services(tree, 0)
    assert line_of(source).devices == before


def test_a_card_whose_driver_says_that_it_is_offline_is_being_reset(tmp_path: Path) -> None:
    tree = alveo(tmp_path, cards=1)
    tree.file(f"{DEVICES}/{fpga_bus_id(0)}/dev_offline", 1)
    assert "being reset" in str(poll(tmp_path).devices[0].readings.error)


def test_a_user_function_that_leaves_the_bus_for_a_while_is_the_same_card(tmp_path: Path) -> None:
    alveo(tmp_path)
    source = FpgaSource(system=System(tmp_path))
    before = [each.id for each in line_of(source).devices]
    link = tmp_path / DEVICES / fpga_bus_id(1)
    target = link.readlink()
    link.unlink()
    gone = line_of(source).devices
    assert [each.id for each in gone] == before
    assert "not on the bus" in str(gone[1].readings.error)
    assert gone[1].pci_bus_id == f"{fpga_slot(1)}.0"
    link.symlink_to(target)
    assert line_of(source).devices[1].readings.error is None


def test_a_card_that_is_plugged_out_is_not_listed_and_one_that_is_plugged_in_is(tmp_path: Path) -> None:
    alveo(tmp_path)
    source = FpgaSource(system=System(tmp_path))
    line_of(source)
    for function in (0, 1):
        (tmp_path / DEVICES / f"{fpga_slot(0)}.{function}").unlink()
    assert [each.id for each in line_of(source).devices] == [fpga_bus_id(1)]
    alveo(tmp_path, cards=1, first=5)
    assert [each.id for each in line_of(source).devices] == [fpga_bus_id(1), fpga_bus_id(5)]


@dataclass(frozen=True)
class HangingRoots(Roots):
    """Reading what is below `hangs` does not return before `released`."""

    hangs: str = ""
    released: threading.Event = field(default_factory=threading.Event)

    def read(self, path: str | Path, limit: int = 4096) -> str:
        if self.hangs and self.hangs in str(path) and "rom.u" in str(path):
            self.released.wait(60)
        return super().read(path, limit)


@dataclass(frozen=True)
class HangingSystem(System):
    below: HangingRoots = field(default_factory=HangingRoots)

    @property
    def roots(self) -> Roots:
        return self.below


def test_a_card_whose_files_block_keeps_no_other_waiting_and_is_read_once_at_a_time(tmp_path: Path) -> None:
    alveo(tmp_path)
    roots = HangingRoots(tmp_path, hangs=fpga_bus_id(0))
    source = FpgaSource(system=HangingSystem(tmp_path, below=roots), fpga_reads=BoundedReads(seconds=0.2))
    threads = threading.active_count()

    def polls_until(wanted: tuple[bool, bool]) -> None:
        """Whether each card answers; a machine under load may be late with a good one."""
        until = time.monotonic() + PATIENCE_SECONDS
        while tuple(each.readings.error is None for each in line_of(source).devices) != wanted:
            assert time.monotonic() < until

    polls_until((False, True))
    polls_until((False, True))
    assert "has not finished" in str(line_of(source).devices[0].readings.error)
    polls_until((False, True))
    assert threading.active_count() <= threads + 2, "one that hangs, and one that may be ending"
    roots.released.set()
    polls_until((True, True))


def test_a_new_card_without_a_shell_is_listed_and_says_so(tmp_path: Path) -> None:
    alveo(tmp_path, cards=1)
    golden(tmp_path, card=3)
    one, new = poll(tmp_path).devices
    assert (one.readings.error, one.readings.conditions) == (None, ())
    assert (new.id, new.pci_bus_id) == (fpga_bus_id(3), f"{fpga_slot(3)}.0"), "the id that it will have"
    assert (new.readings.error, new.readings.conditions) == (None, ("noShell",))
    assert "shell" not in new.extra


def test_a_card_whose_user_function_has_no_driver_says_so(tmp_path: Path) -> None:
    alveo(tmp_path, cards=1)
    (tmp_path / DEVICES / fpga_bus_id(0) / "user_pf").unlink()
    [card] = poll(tmp_path).devices
    assert (card.id, card.readings.error) == (fpga_bus_id(0), "no driver has its user function (XRT's xocl)")


def test_a_card_that_a_virtual_machine_has_is_not_listed(tmp_path: Path) -> None:
    tree = alveo(tmp_path)
    folder = tmp_path / DEVICES / fpga_bus_id(0)
    (folder / "user_pf").unlink()
    (folder / "driver").unlink()
    tree.link(f"{folder.resolve().relative_to(tmp_path)}/driver", "sys/bus/pci/drivers/vfio-pci")
    assert [each.id for each in poll(tmp_path).devices] == [fpga_bus_id(1)]


def test_a_tripped_firewall_and_a_missing_device_node_are_conditions(tmp_path: Path) -> None:
    tree = alveo(tmp_path)
    tree.file(f"{DEVICES}/{fpga_slot(0)}.0/firewall.m.16777216/detected_status", "0x80000")
    (tmp_path / "dev/dri/renderD129").unlink()
    one, other = poll(tmp_path).devices
    assert one.readings.conditions == ("firewallTripped",)
    assert other.readings.conditions == ("deviceNodeMissing",)


def test_a_card_without_a_render_node_answers_nothing(tmp_path: Path) -> None:
    alveo(tmp_path, cards=1)
    shutil.rmtree(tmp_path / DEVICES / fpga_bus_id(0) / "drm")
    assert poll(tmp_path).devices[0].readings.error == "the driver made no device node for it"


def test_without_a_driver_it_says_which(tmp_path: Path) -> None:
    alveo(tmp_path)
    shutil.rmtree(tmp_path / "sys/module")
    facts = poll(tmp_path)
    assert (facts.driver.state, facts.devices, facts.accelerators_on_bus) == (DriverState.NOT_LOADED, (), 2)
    assert "xocl, xclmgmt and ama_transcoder" in facts.problems[0].message


# --- U30 -------------------------------------------------------------------------------------------------------------
def test_the_two_fpgas_of_a_u30_are_partitions_of_one_card(tmp_path: Path) -> None:
    u30(tmp_path, cards=2)
    one, other = poll(tmp_path).devices
    assert (one.id, other.id) == ("u30-XFL1U30X0000", "u30-XFL1U30X0001")
    assert [(each.id, each.profile, each.device_nodes) for each in one.partitions] == [
        (fpga_bus_id(0), "u30", ("/dev/dri/renderD128",)),
        (fpga_bus_id(1), "u30", ("/dev/dri/renderD129",)),
    ]
    assert one.device_nodes == ("/dev/dri/renderD128", "/dev/dri/renderD129")
    assert said(one)["shell"] == U30_SHELL
    assert said(one)["managementNodes"] == f"{management_node(0)},{management_node(1)}"


def test_a_u30_of_which_one_fpga_is_being_reset_stays_the_same_card(tmp_path: Path) -> None:
    u30(tmp_path, cards=2)
    source = FpgaSource(system=System(tmp_path))
    before = line_of(source).devices
    reset(tmp_path, 1)
    broken, other = line_of(source).devices
    assert (broken.id, [each.id for each in broken.partitions]) == (
        before[0].id,
        [each.id for each in before[0].partitions],
    )
    assert str(broken.readings.error).startswith(f"{fpga_bus_id(1)}: its shell cannot be read")
    assert other == before[1]


def test_a_u30_of_which_one_fpga_left_the_bus_is_not_half_a_card(tmp_path: Path) -> None:
    u30(tmp_path)
    source = FpgaSource(system=System(tmp_path))
    line_of(source)
    for function in (0, 1):
        (tmp_path / DEVICES / f"{fpga_slot(1)}.{function}").unlink()
    assert line_of(source).devices[0].readings.error == f"{fpga_bus_id(1)}: it is not on the bus"


def test_a_u30_that_was_never_read_is_a_problem_until_its_serial_number_is_known(tmp_path: Path) -> None:
    tree = u30(tmp_path)
    reset(tmp_path, 0)
    reset(tmp_path, 1)
    source = FpgaSource(system=System(tmp_path))
    facts = line_of(source)
    assert facts.devices == ()
    assert [each.code for each in facts.problems] == ["CardNotRead", "CardNotRead"]
    user_services(tree, 0, shell=U30_SHELL, timestamp="0", serial="XFL1U30X0000")
    [half] = line_of(source).devices
    assert half.readings.error == "its other FPGA cannot be read yet"
    user_services(tree, 1, shell=U30_SHELL, timestamp="0", serial="XFL1U30X0000")
    [whole] = line_of(source).devices
    assert (whole.readings.error, len(whole.partitions)) == (None, 2)


def test_a_new_u30_is_a_problem_since_its_two_fpgas_have_no_serial_number_yet(tmp_path: Path) -> None:
    alveo(tmp_path, cards=1)
    golden(tmp_path, card=2, device=0xD03C)
    facts = poll(tmp_path)
    assert [each.id for each in facts.devices] == [fpga_bus_id(0)]
    assert [each.message for each in facts.problems] == [
        f"{fpga_bus_id(2)}: it is a U30 with only its golden image: program a shell"
    ]


def test_a_u30_that_moved_to_another_slot_is_whole_there(tmp_path: Path) -> None:
    u30(tmp_path)
    source = FpgaSource(system=System(tmp_path))
    line_of(source)
    for card in (0, 1):
        for function in (0, 1):
            (tmp_path / DEVICES / f"{fpga_slot(card)}.{function}").unlink()
    serials = ("XFL1U30X0000", "XFL1U30X0000")
    alveo(tmp_path, cards=2, first=4, shell=U30_SHELL, timestamp="0", device=0x513C, serials=serials)
    [moved] = line_of(source).devices
    assert (moved.id, moved.readings.error) == ("u30-XFL1U30X0000", None)
    assert [each.id for each in moved.partitions] == [fpga_bus_id(4), fpga_bus_id(5)]


# --- MA35D -----------------------------------------------------------------------------------------------------------
def test_the_devices_of_an_ma35d_are_listed_by_pci_address(tmp_path: Path) -> None:
    ma35(tmp_path)
    facts = poll(tmp_path)
    assert (facts.driver.state, facts.driver.name) == (DriverState.LOADED, "ama_transcoder")
    assert [(each.id, each.type, each.index, each.device_nodes) for each in facts.devices] == [
        (ma35_bus_id(0), "media", 0, ("/dev/ama_transcoder0",)),
        (ma35_bus_id(1), "media", 1, ("/dev/ama_transcoder1",)),
    ]
    one = facts.devices[0]
    assert (one.product_name, one.numa_node, said(one)) == (
        "Alveo MA35D",
        1,
        {"deviceID": "5070", "serialNumber": "XFL1MA35D001"},
    )


def test_one_that_its_driver_does_not_have_says_so_and_its_node_is_looked_for(tmp_path: Path) -> None:
    ma35(tmp_path)
    (tmp_path / "sys/class/misc/ama_transcoder0").unlink()
    (tmp_path / "dev/ama_transcoder1").unlink()
    one, other = poll(tmp_path).devices
    assert "ama_transcoder does not list it" in str(one.readings.error)
    assert other.readings.conditions == ("deviceNodeMissing",)
