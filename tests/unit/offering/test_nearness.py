"""Which devices are near to each other across probes: the rule `near`, and the links that NodeDevices shows."""

from __future__ import annotations

import dataclasses
from typing import Any

from msgspec.structs import replace
from nodedevices_api.sections import OfferMatch, ResourceRule, Resources
from nodedevices_plugin.model import Inventory
from nodedevices_plugin.offering.resources import near, nearest
from nodedevices_plugin.offering.shape import PlanSettings
from nodedevices_plugin.offering.unmatched import unmatched
from nodedevices_probe.protocol import DeviceFact, PcieNeighbour, PciePath
from support.cases import cases
from support.facts import gpu, gpu_id, healthy, inventory_of
from support.plans import make_plan

NEAR, USUAL = "example.com/gpu-with-nic", "nvidia.com/gpu"
RULE = ResourceRule(match=OfferMatch(vendor="nvidia", near="nic"), name=NEAR)


def at(number: int, root: str, bus: int = 0x17, **facts: Any) -> DeviceFact:
    return gpu(number, pcie_root=root, pci_bus_id=f"0000:{bus:02x}:00.0", **facts)


def nic(number: int, root: str, bus: int = 0x18, **facts: Any) -> DeviceFact:
    known = {"id": f"NIC-{number}", "index": number, "type": "nic", "vendor": "mellanox", "pcie_root": root}
    return DeviceFact(**{**known, "pci_bus_id": f"0000:{bus:02x}:00.0", **facts})


def without(missing: str, *devices: DeviceFact) -> Inventory:
    """One of them is listed and no longer there."""
    found = inventory_of(*devices)
    return replace(
        found, devices=tuple(dataclasses.replace(each, present=each.fact.id != missing) for each in found.devices)
    )


MACHINE = (at(0, "pci0000:16"), at(1, "pci0000:40"), at(2, ""), nic(0, "pci0000:16"), nic(1, ""))


# --- which are near ---------------------------------------------------------------------------------------------------
def test_near_to_a_device_is_what_else_is_on_its_root_of_its_own_type_only_another() -> None:
    assert near(inventory_of(*MACHINE)) == {
        gpu_id(0): {"nic"},
        gpu_id(1): set(),
        gpu_id(2): set(),
        "NIC-0": {"gpu"},
        "NIC-1": set(),
    }
    assert near(inventory_of(at(0, "r"), at(1, "r"), at(2, "s"))) == {
        gpu_id(0): {"gpu"},
        gpu_id(1): {"gpu"},
        gpu_id(2): frozenset(),
    }


# --- the rule ---------------------------------------------------------------------------------------------------------
def named(inventory: Inventory, *rules: ResourceRule) -> dict[str, list[str]]:
    facts = [each.fact for each in inventory.devices]
    found = make_plan(inventory, healthy(*facts), PlanSettings(resources=Resources(devices=rules)))
    return {resource.name: [each.id for each in resource.ids] for resource in found.resources}


def test_gpus_beside_a_nic_have_a_name_of_their_own_also_while_the_nic_is_missing() -> None:
    assert named(inventory_of(*MACHINE), RULE) == {NEAR: [gpu_id(0)], USUAL: [gpu_id(1), gpu_id(2)]}
    inventory = without("NIC-0", *MACHINE)
    assert named(inventory, RULE)[NEAR] == [gpu_id(0)]
    assert named(inventory_of(*MACHINE[:3]), RULE) == {USUAL: [gpu_id(0), gpu_id(1), gpu_id(2)]}


def test_a_rule_that_matches_nothing_says_what_is_near_to_what() -> None:
    rule = ResourceRule(match=OfferMatch(vendor="nvidia", near="fpga"), name=NEAR)
    [note] = unmatched(inventory_of(*MACHINE), PlanSettings(resources=Resources(devices=(rule,))))
    assert note.entry == "devices[0].match vendor nvidia, near fpga"
    there_are = "NVIDIA H100 80GB HBM3 near nic, NVIDIA H100 80GB HBM3 near nothing"
    assert there_are in note.message
    near_miss = ResourceRule(match=OfferMatch(vendor="nvidia", near="NIC"), name=NEAR)
    [note] = unmatched(inventory_of(*MACHINE), PlanSettings(resources=Resources(devices=(near_miss,))))
    assert "case matters: NVIDIA H100 80GB HBM3 near nic differs only in case" in note.message


# --- what NodeDevices shows -------------------------------------------------------------------------------------------
def test_the_nearest_on_one_root_are_of_the_other_type_and_on_neighbouring_buses() -> None:
    found = nearest(inventory_of(*MACHINE))
    assert found == {gpu_id(0): ("NIC-0",), "NIC-0": (gpu_id(0),)}
    # A root complex with two switches, each with a GPU and a NIC.
    root = "pci0000:00"
    machine = (at(0, root, 0x07), at(1, root, 0x47), nic(0, root, 0x48), nic(1, root, 0x08))
    assert nearest(inventory_of(*machine)) == {
        gpu_id(0): ("NIC-1", "NIC-0"),
        gpu_id(1): ("NIC-0", "NIC-1"),
        "NIC-0": (gpu_id(1), gpu_id(0)),
        "NIC-1": (gpu_id(0), gpu_id(1)),
    }


@cases(
    ("own", "buses", "order"),
    (0x20, (0x27, 0x1A), ("NIC-1", "NIC-0")),  # 7 and 6 apart, over a border of sixteen
    (0x17, (0x2E, None), ("NIC-0", "NIC-1")),  # one without an address is on bus 0, and so 23 apart as well
)
def test_how_far_buses_are_apart_is_by_their_numbers_and_of_equals_the_first_is_nearer(
    own: int, buses: tuple[int, int | None], order: tuple[str, ...]
) -> None:
    root = "pci0000:00"
    nics = (nic(n, root, bus) if bus is not None else nic(n, root, pci_bus_id="") for n, bus in enumerate(buses))
    assert nearest(inventory_of(at(0, root, own), *nics))[gpu_id(0)] == order


def test_what_a_probe_says_of_a_path_counts_more_than_numbers_and_a_missing_nic_is_nobodys_nearest() -> None:
    root, path = "pci0000:00", (PcieNeighbour(to="NIC-0", path=PciePath.SINGLE),)
    machine = (at(0, root, 0x07, pcie=path), nic(0, root, 0x48), nic(1, root, 0x08))
    assert nearest(inventory_of(*machine))[gpu_id(0)] == ("NIC-0", "NIC-1")
    function = nic(1, "pci0000:16", type="vf", id="VF-1")
    inventory = without("NIC-0", at(0, "pci0000:16"), nic(0, "pci0000:16"), function)
    assert nearest(inventory) == {}


@cases("address", "", "x", "0000:zz:00.0", ":")
def test_an_address_that_is_none_is_no_error(address: str) -> None:
    machine = (at(0, "pci0000:16"), nic(0, "pci0000:16", pci_bus_id=address))
    assert nearest(inventory_of(*machine))[gpu_id(0)] == ("NIC-0",)
