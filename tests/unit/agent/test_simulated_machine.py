"""Simulated devices of every maker on one node: what is offered, what containers get, what a fault of each comes to."""

from __future__ import annotations

from nodedevices_probe.protocol import DeviceFact
from nodedevices_probe.simulated.probe import parse
from support.cases import cases
from support.stepped_node import Node

MACHINE = "h100 x 2, mi300x-cpx, mi300x-cpx, flex, connectx-7 x 2, e810, sfn-x2, u250"
RULES = {
    "resources": {
        "devices": [
            {"match": {"type": "nic", "vendor": "mellanox"}, "name": "rdma/hca"},
            {"match": {"type": "vf"}, "name": "intel.com/vf"},
        ]
    }
}
U250 = "amd.com/xilinx_u250_gen3x16_xdma_shell_4_1-1623351600"


def machine(more: str = "") -> tuple[DeviceFact, ...]:
    return parse(f"{{profile: '{MACHINE}'{', ' if more else ''}{more}}}".encode(), node="n").facts.devices


def counts(node: Node) -> dict[str, int]:
    return {name: len(ids) for name, ids in node.offers.items()}


def test_each_maker_names_its_own_and_rules_name_nics() -> None:
    assert counts(Node(*machine()).now(dict(RULES))) == {
        "nvidia.com/gpu": 2,
        "amd.com/gpu": 16,
        "gpu.intel.com/i915": 1,
        "rdma/hca": 2,
        "intel.com/vf": 4,
        U250: 1,
    }


def test_no_container_of_another_maker_needs_a_device_node_of_the_host() -> None:
    node = Node(*machine()).now(dict(RULES))
    for name, ids in node.offers.items():
        if name != "nvidia.com/gpu":
            assert node.container(name, ids[0]).devices == (), name


def test_a_counter_that_rises_in_the_file_takes_its_nic_alone_out_of_service() -> None:
    node = Node(*machine("devices: [{index: 5, counters: {linkDowned: 4}}]")).now(dict(RULES))
    before = counts(node)
    node.devices = machine("devices: [{index: 5, counters: {linkDowned: 7}}]")
    after = counts(node.now(dict(RULES)))
    assert node.world.known.verdicts[node.devices[5].id].reason == "LinkFlapping"
    assert after == before | {"rdma/hca": 1}


@cases(
    ("index", "fault", "reason", "resource", "left"),
    (0, "lost: true", "FallenOffBus", "nvidia.com/gpu", 1),
    (2, "eccUncorrectableVolatile: 1", "EccUncorrectable", "amd.com/gpu", 8),
    (2, "thermalSlowdown: true", "ThermalSlowdown", "amd.com/gpu", 16),
    (4, "thermalSlowdown: true", "ThermalSlowdown", "gpu.intel.com/i915", 1),
    (5, "conditions: [linkDown]", "LinkDown", "rdma/hca", 1),
    (8, "conditions: [linkDown]", "LinkDown", "intel.com/vf", 3),
    (13, "conditions: [firewallTripped]", "FirewallTripped", U250, 0),
    (13, "error: the card is being reset", "ProbeError", U250, 0),
)
def test_a_fault_takes_out_its_device_alone(index: int, fault: str, reason: str, resource: str, left: int) -> None:
    node = Node(*machine()).now(dict(RULES))
    before = counts(node)
    node.devices = machine(f"devices: [{{index: {index}, {fault}}}]")
    after = counts(node.now(dict(RULES)))
    assert node.world.known.verdicts[node.devices[index].id].reason == reason
    assert after == before | {resource: left}
