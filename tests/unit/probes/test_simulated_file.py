"""The simulated devices file: what it may say, and how it says that something is wrong."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml
from nodedevices_plugin.inputs.reader import parse_line
from nodedevices_plugin.vendors.amd import Amd
from nodedevices_plugin.vendors.nvidia.faults import read
from nodedevices_probe import nvidia
from nodedevices_probe.files import CheckError
from nodedevices_probe.loop import encode
from nodedevices_probe.protocol import DriverState, Link, PciePath, Snapshot, memory_bytes
from nodedevices_probe.simulated.nvidia import BOARDS as NVIDIA
from nodedevices_probe.simulated.probe import SimulatedState, from_profile, parse
from nodedevices_probe.simulated.rules import MODELS, parse_profile
from support.cases import cases
from support.facts import snapshot


def state(text: str, node: str = "node-a") -> SimulatedState:
    """What the text says; all of it must fit into a line."""
    parsed = parse(text.encode(), node=node)
    facts = parsed.facts
    snapshot = Snapshot(
        probe="simulated",
        probe_version="0",
        instance="i",
        sequence=1,
        time=datetime(2026, 1, 1, tzinfo=UTC),
        boot_id="b",
        driver=facts.driver,
        machine=facts.machine,
        accelerators_on_bus=facts.accelerators_on_bus,
        problems=facts.problems,
        devices=facts.devices,
    )
    assert parse_line(encode(snapshot)) == snapshot
    return parsed


@cases(
    ("key", "value"),
    ("remapPending", True),
    ("remapFailure", True),
    ("eccUncorrectableVolatile", 3),
    ("sramThresholdExceeded", True),
    ("thermalSlowdown", True),
)
def test_a_fault_ends_when_it_is_taken_out_of_the_file(key: str, value: Any) -> None:
    [_, ill] = state(yaml.safe_dump({"profile": "h100 x 2", "devices": [{"index": 1, key: value}]})).facts.devices
    [_, well] = state("profile: h100 x 2").facts.devices
    assert [each.reason for each in read(ill.readings) if each.evident] != []
    assert [each.reason for each in read(well.readings) if each.evident is not False] == []


@cases("name", *sorted(NVIDIA))
def test_every_profile_of_nvidias_is_a_machine_that_is_well(name: str) -> None:
    facts = state(f"profile: {name} x 8").facts
    assert facts.driver.state is DriverState.LOADED
    assert [device.index for device in facts.devices] == list(range(8))
    assert [device.numa_node for device in facts.devices] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert len({device.id for device in facts.devices}) == 8
    assert len({device.pci_bus_id for device in facts.devices}) == 8
    for device in facts.devices:
        assert device.product_name
        assert nvidia.compute_capability(device)
        assert memory_bytes(device.capacity) >= 15 << 30
        assert device.readings.recovery_action == "None"
        assert len(device.pcie) == 7


def test_ids_stay_with_the_node_and_a_profile_without_a_number_is_one_machine() -> None:
    one, again, other = (from_profile("h100 x 2", node=node).facts for node in ("a", "a", "b"))
    assert one == again
    assert not {device.id for device in one.devices} & {device.id for device in other.devices}
    assert len(parse_profile("gb200")) == 4
    assert parse_profile("H100x2") == parse_profile("h100 x 2")
    (device,) = state("{profile: t4 x 1, recoveryActionSupported: false}").facts.devices
    assert device.readings.recovery_action is None
    facts = state("devices: [{productName: DGX Display}, {productName: NVIDIA A100}]").facts
    assert [device.index for device in facts.devices] == [1]


def test_switched_bridged_and_lone_boards_are_linked_as_they_are() -> None:
    h100 = state("profile: h100 x 4").facts.devices
    bridged = state("profile: h100nvl x 4").facts.devices
    lone = state("profile: l40s x 4").facts.devices
    assert h100[0].links == (Link(kind="NVLink", to="switch", count=18),)
    assert bridged[2].links == (Link(kind="NVLink", to=bridged[3].id, count=12),)
    assert lone[0].links == ()
    mixed = state("profile: l4 x 1, h100nvl x 3, u250").facts.devices
    assert [{link.to for link in each.links} for each in mixed] == [set(), {mixed[2].id}, {mixed[1].id}, set(), set()]


def test_what_the_file_says_of_a_device_replaces_the_profile() -> None:
    facts = state(
        """
        profile: h100 x 8
        devices:
        - {index: 3, lost: true, recoveryAction: RebootNode, minor: 9}
        - {index: 5, absent: true}
        - {index: 8, model: l4, numaNode: null}
        """
    ).facts
    assert [device.index for device in facts.devices] == [0, 1, 2, 3, 4, 6, 7, 8]
    third = facts.devices[3]
    assert (third.readings.lost, third.readings.recovery_action) == (True, "RebootNode")
    assert (third.minor, third.device_nodes) == (9, ("/dev/nvidia9",))
    assert third.product_name == "NVIDIA H100 80GB HBM3"
    assert (facts.devices[-1].product_name, facts.devices[-1].numa_node) == ("NVIDIA L4", None)
    assert all(facts.devices[5].id not in {each.to for each in device.pcie} for device in [facts.devices[5]])


def test_devices_may_be_written_out_whole() -> None:
    facts = state(
        """
        devices:
        - {id: GPU-12345678-1234-1234-1234-123456780000, productName: NVIDIA A100-SXM4-40GB, minor: 3, numaNode: 0,
           memoryBytes: 42949672960, computeCapability: "8.0", pciBusId: "00000000:07:00.0",
           mig: [{profile: 3g.20gb, gi: 1, ci: 0, id: MIG-a}, {profile: 1c.2g.10gb, gi: 3}]}
        - {numaNode: -1, vendor: amd, type: apu}
        links: [{a: 0, b: 1, pcie: single, nvlinks: 2}]
        migMinors: [gpu3/gi1/access 30, gpu3/gi1/ci0/access 31]
        machine: {type: Workbench}
        """
    ).facts
    first, second = facts.devices
    assert (first.id, first.minor, first.pci_bus_id) == ("GPU-12345678-1234-1234-1234-123456780000", 3, "0000:07:00.0")
    assert (first.capacity, nvidia.compute_capability(first), first.numa_node) == ({"memory": "40Gi"}, "8.0", 0)
    assert nvidia.mig_enabled(first)
    big, small = first.partitions
    assert (big.id, big.gi, big.profile, big.start, big.size) == ("MIG-a", 1, "3g.20gb", 0, 4)
    assert big.device_nodes == ("/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap31")
    assert (small.profile, small.capacity["copyEngines"], small.start, small.size) == ("1c.2g.10gb", "2", 4, 2)
    assert first.links == (Link(kind="NVLink", to=second.id, count=2),)
    assert first.pcie[0].path is PciePath.SINGLE
    assert (second.numa_node, second.vendor, second.type) == (None, "amd", "apu")
    assert facts.machine.type == "Workbench"
    assert (first.readings.recovery_action, first.readings.thermal_slowdown) == ("None", None)


def test_devices_may_be_hidden_from_the_bus_absent_or_struck_though_they_are_gone() -> None:
    facts = state("{profile: h100 x 8, driver: {state: NotLoaded}}").facts
    assert facts.devices == ()
    assert facts.driver.version == ""
    assert facts.accelerators_on_bus == 8
    absent = "devices: [{index: 5, absent: true, pciBusId: '0000:b3:00.0'}, {index: 6, absent: true}]"
    assert state(f"{{profile: h100 x 8, {absent}}}").facts.problems == ()
    [problem] = state(f"{{profile: h100 x 8, {absent}, acceleratorsOnBus: 7}}").facts.problems
    assert (problem.code, problem.message.split(": ")[0]) == ("DriverUnbound", "0000:b3:00.0")
    parsed = state("{profile: l4 x 2, devices: [{index: 1, absent: true}], events: [{id: e, device: 1, xid: 79}]}")
    assert parsed.events["e"][0].device_id == from_profile("l4 x 2", node="node-a").facts.devices[1].id


def test_mig_devices_need_only_a_profile() -> None:
    (device,) = state(
        "{profile: a100 x 1, devices: [{index: 0, mig: [{profile: 1g.10gb}, {profile: 3g.40gb}]}]}"
    ).facts.devices
    small, big = device.partitions
    assert (small.start, small.size, big.start, big.size) == (0, 1, 4, 4)
    assert small.id != big.id
    assert small.device_nodes == ("/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13")
    assert memory_bytes(big.capacity) == memory_bytes(device.capacity) // 2


@cases(
    ("text", "complaint"),
    ("", "is empty; give a profile or devices"),
    ("# nothing", "is empty"),
    ("[]", "give a mapping such as {profile: h100 x 8}"),
    ("profile: [", "not YAML"),
    ("\t", "not YAML"),
    ("a: &a [*a]", "a: no such key"),
    ("{profile: h100, profile: a100}", "line 1: profile: is given twice"),
    ("{profil: h100}", "profil: no such key; did you mean profile?"),
    ("{profile: h900 x 8}", "profile: 'h900 x 8' is not a known profile"),
    ("{profile: h100 x 300}", "profile: 'h100 x 300': 300 devices are not possible; give 1 to 256"),
    ("{profile: h100 x -1}", "profile: 'h100 x -1': -1 devices are not possible; give 1 to 256"),
    ("{profile: h100 x 0}", "profile: 'h100 x 0': 0 devices are not possible; give 1 to 256"),
    ("{profile: h100 x 257}", "257 devices are not possible"),
    ("{profile: 8}", "profile: 8 is not allowed; give text, in quotes"),
    ("{devices: {}}", "devices: a mapping is not allowed; give a list"),
    ("{devices: [3]}", "devices[0]: 3 is not allowed; give a device such as {index: 0, lost: true}"),
    ("{devices: [{loss: true}]}", "devices[0].loss: no such key; did you mean lost?"),
    ("{devices: [{lost: yes please}]}", "devices[0].lost: 'yes please' is not allowed; give true or false"),
    ("{devices: [{lost: 1}]}", "devices[0].lost: 1 is not allowed; give true or false"),
    ("{devices: [{computeCapability: 9.0}]}", "devices[0].computeCapability: 9.0 is not allowed; give text"),
    ("{devices: [{index: -1}]}", "devices[0].index: -1 is not allowed; give an integer from 0 to 1023"),
    ("{devices: [{index: true}]}", "devices[0].index: True is not allowed"),
    ("{devices: [{index: 1}, {index: 1}]}", "devices[1].index: 1 is given twice"),
    ("{devices: [{id: a}, {id: a}]}", "devices: the id a is given twice"),
    ("{devices: [{id: 'a b'}]}", "devices[0].id: 'a b' is not allowed; give A-Z a-z 0-9 . _ - with single colons"),
    ("{devices: [{productName: \"a\\nb\"}]}", "devices[0].productName: 'a\\nb' is not allowed; give text"),
    ("{devices: [{pciBusId: x}]}", "devices[0].pciBusId: 'x' is not allowed; give a PCI address"),
    ("{devices: [{deviceNodes: [/dev/../x]}]}", "devices[0].deviceNodes[0]: '/dev/../x' is not allowed"),
    ("{devices: [{recoveryAction: Reboot}]}", "devices[0].recoveryAction: 'Reboot' is not allowed; give one of"),
    ("{devices: [{recoveryAction: null}]}", "devices[0].recoveryAction: None is not allowed"),
    ("{devices: [{model: h100, mig: [{profile: 9g.10gb}]}]}", "mig[0].profile: '9g.10gb' is not a MIG profile"),
    ("{devices: [{model: h100, mig: [{}]}]}", "devices[0].mig[0].profile: is missing"),
    ("{devices: [{model: h100, mig: [{profile: 4g.40gb}, {profile: 4g.40gb}]}]}", "mig[1]: 8 compute slices"),
    ("{devices: [{model: h100, mig: [{profile: 1g.80gb}, {profile: 1g.10gb}]}]}", "devices[0].mig[1]: no room"),
    ("{devices: [{mig: [{profile: 1g.5gb, gi: 1}, {profile: 1g.5gb, gi: 1, ci: 0}]}]}", "mig[1].ci: GPU instance"),
    ("{profile: h100 x 8, devices: [{lost: true}]}", "devices[0].index: is missing; beside a profile"),
    ("{profile: h100 x 256, devices: [{index: 256}]}", "devices: 257 together with the profile are too many"),
    ("{driver: {state: Gone}}", "driver.state: 'Gone' is not allowed; give one of Loaded, NotLoaded"),
    ("{profile: l4 x 2, events: [{id: e, device: 2, xid: 79}]}", "events[0].device: 2 is not allowed"),
    ("{profile: l4 x 2, events: [{id: e, device: 1}]}", "events[0].xid: is missing"),
    ("{profile: l4 x 2, events: [{device: 1, xid: 79}]}", "events[0].id: is missing"),
    ("{profile: l4 x 2, events: [{id: e, xid: 1}, {id: e, xid: 2}]}", "events[1].id: e is given twice"),
    ("{profile: l4 x 2, links: [{a: 0, b: 7}]}", "links[0].b: 7 is not allowed"),
    ("{profile: l4 x 2, links: [{a: 1, b: 1}]}", "links[0]: joins device 1 with itself"),
    ("{profile: l4 x 2, silent: 'no'}", "silent: 'no' is not allowed; give true or false"),
    ("!!python/object/apply:os.system [x]", "not YAML"),
)  # fmt: skip
def test_a_wrong_file_is_refused_by_place_and_value(text: str, complaint: str) -> None:
    with pytest.raises(CheckError, match=re.escape(complaint)):
        parse(text.encode(), node="n")


@cases("count", 64, 256)
def test_the_line_of_the_largest_node_is_one_that_the_agent_reads(count: int) -> None:
    facts = from_profile(f"h100 x {count}", node="n").facts
    read = parse_line(encode(snapshot(*facts.devices)))
    assert len({device.pci_bus_id for device in read.devices}) == count
    for device in read.devices:  # its nearest neighbours, where there is no room for all
        assert len(device.pcie) == min(count - 1, 4032 // count)
        assert PciePath.SYSTEM not in {each.path for each in device.pcie} or count <= 64


# --- other makers' devices -------------------------------------------------------------------------------------------
KINDS = {
    "mi300x": ("amd", "gpu"),
    "mi300x-cpx": ("amd", "gpu"),
    "flex": ("intel", "gpu"),
    "pvc": ("intel", "gpu"),
    "connectx-7": ("mellanox", "nic"),
    "e810": ("intel", "nic"),
    "e810-vf": ("intel", "vf"),
    "sfn-x2": ("solarflare", "nic"),
    "u250": ("xilinx", "fpga"),
}


def test_every_model_is_of_a_known_maker() -> None:
    assert set(MODELS) == set(NVIDIA) | set(KINDS)


@cases("name", *sorted(KINDS))
def test_every_profile_of_other_makers_is_well_and_known_by_pci_addresses(name: str) -> None:
    facts = state(f"profile: {name} x 6").facts
    own = [device for device in facts.devices if (device.vendor, device.type) == KINDS[name]]
    assert facts.driver.state is DriverState.LOADED
    assert facts.driver.name not in ("", "nvidia")
    assert len(own) == 6
    assert [device.index for device in facts.devices] == list(range(len(facts.devices)))
    assert len({device.pci_bus_id for device in facts.devices}) == len(facts.devices)
    for device in facts.devices:
        assert device.id == device.pci_bus_id
        assert device.pcie_root
        assert device.numa_node is not None
        assert device.device_nodes == (), "a container of it starts on a machine without the hardware"
        assert (device.readings.recovery_action, device.readings.conditions) == (None, ())


def test_an_mi300x_in_cpx_mode_has_eight_partitions_of_24_gb() -> None:
    whole, cut = state("profile: mi300x, mi300x-cpx").facts.devices
    assert (whole.partitions, whole.extra["partitionProfile"].string) == ((), "spx_nps1")
    assert len(cut.partitions) == 8
    assert {part.profile for part in cut.partitions} == {"cpx_nps4"}
    assert {part.capacity["memory"] for part in cut.partitions} == {"24574Mi"}
    assert cut.partitions[3].id == f"{cut.id}-xcp-3"
    assert whole.links == (Link(kind="XGMI", to=cut.id, count=1),)


def test_a_profile_of_several_kinds_is_one_machine_with_nics_beside_its_gpus() -> None:
    facts = state("profile: h100 x 2, mi300x-cpx, connectx-7 x 2, u250").facts
    devices = facts.devices
    assert [device.type for device in devices] == ["gpu", "gpu", "gpu", "nic", "nic", "fpga"]
    assert [device.vendor for device in devices] == ["nvidia", "nvidia", "amd", "mellanox", "mellanox", "xilinx"]
    assert devices[0].id == from_profile("h100 x 2", node="node-a").facts.devices[0].id
    for gpu, card in ((devices[0], devices[3]), (devices[1], devices[4])):
        assert (card.pcie_root, card.numa_node) == (gpu.pcie_root, gpu.numa_node)
    assert devices[5].pcie_root not in {each.pcie_root for each in devices[:5]}
    assert {each.to: each.path for each in devices[0].pcie}[devices[3].id] is PciePath.HOSTBRIDGE
    assert facts.accelerators_on_bus == 4, "a NIC is none"
    assert (facts.driver.name, facts.machine.type) == ("nvidia", "")


def test_virtual_functions_come_with_their_physical_one() -> None:
    first, *rest = state("profile: e810 x 2").facts.devices
    functions = rest[:4]
    assert [device.type for device in rest] == ["vf"] * 4 + ["nic"] + ["vf"] * 4
    assert first.extra["virtualFunctions"].integer == 4
    assert [each.extra["vfIndex"].integer for each in functions] == [0, 1, 2, 3]
    assert {each.extra["physicalFunction"].string for each in functions} == {first.id}
    assert {each.extra["pfName"].string for each in functions} == {first.extra["ifName"].string}
    assert [each.pci_bus_id for each in functions] == [f"{first.id[:-4]}01.{number}" for number in range(4)]


def test_the_file_says_what_a_nic_has_and_what_is_wrong_with_it() -> None:
    text = """
        profile: connectx-7 x 2
        devices:
        - index: 1
          conditions: [linkDown]
          counters: {symbolError: 7, linkDowned: 0}
          numaNode: 1
          pcieRoot: pci0000:16
          deviceNodes: [/dev/null]
          extra: {linkType: infiniband, speedGbps: 200, primary: true}
        - {index: 2, vendor: acme, type: nic}
        """
    _, second, other = state(text).facts.devices
    assert second.readings.conditions == ("linkDown",)
    assert second.readings.counters == {"symbolError": 7, "linkDowned": 0}
    assert (second.numa_node, second.pcie_root, second.device_nodes) == (1, "pci0000:16", ("/dev/null",))
    assert (second.extra["linkType"].string, second.extra["speedGbps"].integer) == ("infiniband", 200)
    assert second.extra["primary"].boolean is True
    assert second.extra["rdmaDevice"].string == "mlx5_1", "the rest is the profile's"
    assert (other.id, other.extra, other.device_nodes) == (other.pci_bus_id, {}, ())


@cases("reading", "eccUncorrectableVolatile: 1", "thermalSlowdown: true", "remapPending: true")
def test_a_fault_of_an_amd_gpu_ends_when_it_is_taken_out_of_the_file(reading: str) -> None:
    (ill,) = state(f"{{profile: mi300x, devices: [{{index: 0, {reading}}}]}}").facts.devices
    (well,) = state("profile: mi300x").facts.devices
    assert [each.reason for each in Amd().read(ill.readings) if each.evident] != []
    assert [each.reason for each in Amd().read(well.readings) if each.evident is not False] == []


@cases(
    ("text", "complaint"),
    ("{profile: 'h100 x 2, u900'}", "profile: 'h100 x 2, u900' is not a known profile; give a model and a number"),
    ("{profile: 'h100,'}", "profile: 'h100,' is not a known profile"),
    ("{profile: 'h100 x 200, u250 x 57'}", "257 devices are not possible; give 1 to 256"),
    ("{profile: e810 x 52}", "260 devices are not possible"),
    ("{profile: 'h100, u250 x 0'}", "0 devices are not possible"),
    ("{profile: u250, devices: [{index: 0, mig: []}]}", "devices[0].mig: only NVIDIA's GPUs have this"),
    ("{devices: [{vendor: amd, computeCapability: '9.0'}]}", "computeCapability: only NVIDIA's GPUs have this"),
    ("{devices: [{conditions: linkDown}]}", "devices[0].conditions: 'linkDown' is not allowed; give a list"),
    ("{devices: [{conditions: ['link down']}]}", "devices[0].conditions[0]: 'link down' is not allowed"),
    ("{devices: [{counters: [7]}]}", "devices[0].counters: a list is not allowed; give a mapping such as"),
    ("{devices: [{counters: {symbolError: -1}}]}", "devices[0].counters.symbolError: -1 is not allowed"),
    ("{devices: [{counters: {symbol_error: 1}}]}", "devices[0].counters: a name: 'symbol_error' is not allowed"),
    (
        f"{{devices: [{{counters: {{{', '.join(f'a{n}: 1' for n in range(33))}}}}}]}}",
        "devices[0].counters: 33 entries are too many; give at most 32",
    ),
    ("{devices: [{extra: [1]}]}", "devices[0].extra: a list is not allowed; give a mapping such as"),
    ("{devices: [{extra: {speed: 1.5}}]}", "devices[0].extra.speed: 1.5 is not allowed; give text"),
    ("{devices: [{extra: {'a b': 1}}]}", "devices[0].extra: a name: 'a b' is not allowed"),
    (
        f"{{profile: connectx-7, devices: [{{index: 0, extra: {{{', '.join(f'a{n}: 1' for n in range(12))}}}}}]}}",
        "devices[0].extra: 21 attributes and 1 amounts are too many; give at most 18 together",
    ),
)
def test_what_is_wrong_about_other_makers_devices_is_named(text: str, complaint: str) -> None:
    with pytest.raises(CheckError, match=re.escape(complaint)):
        parse(text.encode(), node="n")
