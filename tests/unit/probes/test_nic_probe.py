"""Network cards, from trees of sysfs to the probe's line."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from nodedevices_api.bounds import MAX_DEVICES
from nodedevices_plugin.settings.flags import parse
from nodedevices_plugin.settings.probes import missing, read
from nodedevices_probe.kind import Hardware
from nodedevices_probe.loop import SourceFacts
from nodedevices_probe.nic.probe import NicSource
from nodedevices_probe.nic.rdma import FirmwareReads
from nodedevices_probe.node.roots import MAX_BYTES, Roots
from nodedevices_probe.node.sysfs import MAX_PATHS, System
from nodedevices_probe.protocol import MAX_OWN, DeviceFact, PciePath, Snapshot
from nodedevices_probe.registry import KINDS
from nodedevices_probe.source import BoundedReads
from support.changing_roots import SystemOf, VanishingRoots
from support.nic_trees import (
    INTEL,
    MELLANOX,
    SOLARFLARE,
    Nics,
    connectx_7_pair,
    e810,
    mock_infiniband,
    plain,
    soft_roce,
    solarflare,
    sriov,
    virtual_machine,
)
from support.sources import line_of


def poll(root: Path, **settings: Any) -> SourceFacts:
    return NicSource(system=System(root), **settings).poll()


def by_id(facts: SourceFacts | Snapshot) -> dict[str, DeviceFact]:
    return {each.id: each for each in facts.devices}


def extra(device: DeviceFact) -> dict[str, str | int | None]:
    return {name: value.string if value.string is not None else value.integer for name, value in device.extra.items()}


def conditions(root: Path, **settings: Any) -> dict[str, tuple[str, ...]]:
    return {each.id: each.readings.conditions for each in poll(root, **settings).devices}


# --- what is found ---------------------------------------------------------------------------------------------------
def test_both_ports_of_a_card_are_devices_with_what_the_kernel_says_of_them(tmp_path: Path) -> None:
    connectx_7_pair(tmp_path)
    facts = poll(tmp_path)
    assert (facts.problems, facts.driver.name, facts.driver.version) == ((), "linux", "6.8.0-45-generic")
    infiniband, ethernet = facts.devices
    assert (infiniband.id, infiniband.type, infiniband.vendor, infiniband.product_name) == (
        "0000:17:00.0",
        "nic",
        "mellanox",
        "ConnectX-7",
    )
    assert (infiniband.firmware, infiniband.numa_node, infiniband.pcie_root) == ("28.39.1002", 0, "pci0000:16")
    assert extra(infiniband) == {
        "pciVendor": "15b3",
        "deviceID": "1021",
        "driver": "mlx5_core",
        "ifName": "ib0",
        "linkType": "infiniband",
        "pfName": "ib0",
        "acpiIndex": 3,
        "speedGbps": 400,
        "rdmaDevice": "mlx5_0",
        "nodeGUID": "0c42:a103:0065:d7a6",
        "pKeys": "0xffff,0x8001",
    }
    assert infiniband.device_nodes == ("/dev/infiniband/uverbs0", "/dev/infiniband/issm0", "/dev/infiniband/umad0")
    assert (extra(ethernet)["linkType"], extra(ethernet)["speedGbps"], "pKeys" in ethernet.extra) == (
        "ether",
        200,
        False,
    )
    assert [(each.to, each.path) for each in infiniband.pcie] == [(ethernet.id, PciePath.INTERNAL)]


def test_a_card_that_may_have_virtual_functions_is_not_one_without_them(tmp_path: Path) -> None:
    connectx_7_pair(tmp_path)
    (tmp_path / "sys/bus/pci/devices/0000:17:00.0").resolve().joinpath("sriov_numvfs").mkdir()
    silent, other = poll(tmp_path).devices
    assert str(silent.readings.error).startswith("sriov_numvfs cannot be read")
    assert other.readings.error is None


def test_virtual_functions_say_which_they_are_of_and_what_their_driver_opens(tmp_path: Path) -> None:
    sriov(tmp_path)
    devices = poll(tmp_path).devices
    physical, functions = devices[0], devices[1:]
    assert (physical.type, physical.capacity, extra(physical)["virtualFunctions"]) == ("nic", {"vfs": "16"}, 8)
    assert extra(physical)["ifName"] == "enp49s0np0", "and no representor of a function"
    assert [(each.type, each.index, extra(each)["vfIndex"]) for each in functions] == [("vf", n, n) for n in range(8)]
    for each in functions:
        said = extra(each)
        assert (said["physicalFunction"], said["pfName"], said["linkType"]) == (physical.id, "enp49s0np0", "ether")
        assert each.pcie_root == physical.pcie_root
    assert (functions[0].device_nodes, extra(functions[0])["ifName"]) == (
        ("/dev/infiniband/uverbs1", "/dev/infiniband/issm1", "/dev/infiniband/umad1"),
        "enp49s0np0v0",
    )


@pytest.mark.parametrize("port_name", ["pf0hpf", "c1pf0", "c1pf0vf2", "pf0sf88"])
@pytest.mark.parametrize("uplink", ["p0", "enp3s0f0np0"])
def test_a_representor_on_a_dpu_hides_no_uplink_without_a_link(tmp_path: Path, uplink: str, port_name: str) -> None:
    nics = Nics(tmp_path)
    card = nics.card("0000:03:00.0", vendor=MELLANOX, device="0xa2dc", driver="mlx5_core")
    nics.interface(uplink, card, phys_switch_id="b8ce", phys_port_name="p0", carrier=False)
    nics.interface("eth2", card, phys_switch_id="b8ce", phys_port_name=port_name)
    nics.rdma("mlx5_0", card, state="1: DOWN", physical="3: Disabled")
    [device] = poll(tmp_path).devices
    assert (extra(device)["ifName"], "ifNames" in device.extra) == (uplink, False)
    assert "linkDown" in device.readings.conditions


def test_a_function_in_vfio_has_the_node_of_its_group_alone(tmp_path: Path) -> None:
    nics = sriov(tmp_path)
    third = poll(tmp_path).devices[3]
    assert (extra(third)["driver"], third.device_nodes, third.readings.conditions) == (
        "vfio-pci",
        ("/dev/vfio/42",),
        (),
    )
    assert "ifName" not in third.extra
    (tmp_path / "dev/vfio/42").unlink()
    assert poll(tmp_path).devices[3].readings.conditions == ("deviceNodeMissing",)
    group = tmp_path / "sys/kernel/iommu_groups/42/name"
    group.write_text("vfio-noiommu\n")
    nics.tree.node("/dev/vfio/noiommu-42")
    assert poll(tmp_path).devices[3].device_nodes == ("/dev/vfio/noiommu-42",)


def test_functions_that_share_an_iommu_group_are_named(tmp_path: Path) -> None:
    nics = sriov(tmp_path)
    nics.bind("sys/devices/pci0000:16/0000:16:01.0/0000:31:00.1", "vfio-pci")
    nics.tree.link("sys/bus/pci/devices/0000:31:00.1/iommu_group", "sys/kernel/iommu_groups/42")
    (problem,) = poll(tmp_path).problems
    assert problem.code == "SharedIommuGroup"
    assert "/dev/vfio/42 (0000:31:00.1, 0000:31:00.3)" in problem.message


@pytest.mark.parametrize("classes", [("net",), ("net", "infiniband")])
def test_a_function_whose_interface_is_in_a_pod_stays_well(tmp_path: Path, classes: tuple[str, ...]) -> None:
    nics = sriov(tmp_path)
    nics.forget(str(next((tmp_path / "sys/devices").glob("*/*/0000:31:00.5")).relative_to(tmp_path)), *classes)
    device = by_id(poll(tmp_path))["0000:31:00.5"]
    assert device.readings.conditions == ()
    assert {name: extra(device)[name] for name in ("pfName", "linkType", "vfIndex", "driver")} == {
        "pfName": "enp49s0np0",
        "linkType": "ether",
        "vfIndex": 4,
        "driver": "mlx5_core",
    }, "which resource it belongs to does not change"
    assert "ifName" not in device.extra


def test_a_card_with_rdma_stays_while_a_pods_namespace_has_all_of_it(tmp_path: Path) -> None:
    nics = connectx_7_pair(tmp_path)
    folder = "sys/devices/pci0000:16/0000:16:07.0/0000:17:00.1"
    nics.tree.file(f"{folder}/mlx5_core.rdma.1/uevent")
    nics.tree.link("sys/bus/auxiliary/devices/mlx5_core.rdma.1", f"{folder}/mlx5_core.rdma.1")
    nics.forget(folder)
    device = by_id(poll(tmp_path))["0000:17:00.1"]
    assert (device.readings.conditions, "rdmaDevice" in device.extra) == ((), False)


@pytest.mark.parametrize(
    ("kind", "name", "nodes"), [("rxe", "rxe0", ("uverbs0", "umad0")), ("siw", "siw0", ("uverbs0",))]
)
def test_rdma_made_of_an_interface_is_a_device(tmp_path: Path, kind: str, name: str, nodes: tuple[str, ...]) -> None:
    soft_roce(tmp_path, kind=kind)
    (device,) = poll(tmp_path).devices
    assert (device.id, device.type, device.vendor, device.pci_bus_id) == (name, "nic", "linux", "")
    assert (device.numa_node, device.pcie_root) == (0, "pci0000:16"), "those of the card below the interface"
    assert {extra(device)[each] for each in ("ifName", "pfName")} == {"eth0"}
    assert device.device_nodes == tuple(f"/dev/infiniband/{each}" for each in nodes)
    assert device.readings.conditions == (), "iWARP has no management datagrams, so no umad"


def test_a_mock_whose_class_entries_are_folders_is_read(tmp_path: Path) -> None:
    mock_infiniband(tmp_path)
    first, other = poll(tmp_path).devices
    assert [(each.id, each.type, each.product_name) for each in (first, other)] == [
        ("mlx5_0", "nic", "MT4129"),
        ("mlx5_1", "nic", "MT4129"),
    ]
    assert first.device_nodes == ("/dev/infiniband/uverbs0", "/dev/infiniband/issm0", "/dev/infiniband/umad0")
    assert (extra(first)["linkType"], extra(first)["speedGbps"], extra(first)["nodeGUID"]) == (
        "infiniband",
        400,
        "a088:c203:0000:0010",
    )
    assert first.readings.conditions == ()


def test_a_folder_of_a_mock_is_of_the_card_that_its_device_links_to(tmp_path: Path) -> None:
    mock_infiniband(tmp_path, card=True)
    card, alone = poll(tmp_path).devices
    assert (card.id, extra(card)["rdmaDevice"], alone.id) == ("0000:17:00.0", "mlx5_0", "mlx5_1")


def test_soft_roce_of_an_older_kernel_belongs_to_the_card_below(tmp_path: Path) -> None:
    nics = soft_roce(tmp_path)
    nics.forget("sys/devices/virtual", "infiniband")
    nics.rdma("rxe1", "sys/devices/pci0000:16/0000:16:02.0/0000:02:00.0", nodes=("uverbs", "umad"))
    (device,) = poll(tmp_path).devices
    assert (device.id, extra(device)["rdmaDevice"], extra(device)["ifName"]) == ("0000:02:00.0", "rxe1", "eth0")


def test_a_sub_function_is_a_device_and_rdma_of_the_card_is_the_cards(tmp_path: Path) -> None:
    e810(tmp_path)
    card, part = poll(tmp_path).devices
    assert (card.product_name, extra(card)["rdmaDevice"], extra(card)["ifName"]) == (
        "E810-C QSFP",
        "rocep75s0",
        "ens1f0",
    )
    assert (part.id, part.type, part.pci_bus_id, part.pcie_root) == ("ice.sf.1", "nic", card.id, card.pcie_root)
    said = extra(part)
    assert (said["auxType"], said["vfIndex"], said["physicalFunction"]) == ("sf", 88, card.id)
    assert (said["ifName"], said["pfName"]) == ("ens1f0s88", "ens1f0")
    assert (said["driver"], said["pfDriver"]) == ("ice.sf", "ice")


# --- the node's own traffic ------------------------------------------------------------------------------------------
def routed(facts: SourceFacts) -> list[str]:
    return [each.id for each in facts.devices if "defaultRoute" in each.extra]


def test_a_file_that_selects_functions_brings_those_that_are_the_cards_of_a_virtual_machine(tmp_path: Path) -> None:
    virtual_machine(tmp_path).routes("eth0")
    assert poll(tmp_path).devices == ()
    facts = poll(tmp_path, selected=True)
    assert [each.id for each in facts.devices] == ["0000:00:03.0", "0000:00:05.0"]
    assert routed(facts) == ["0000:00:03.0"]


def test_without_the_hosts_routes_no_plain_card_is_reported_for_a_file(tmp_path: Path) -> None:
    virtual_machine(tmp_path)
    facts = poll(tmp_path, selected=True)
    assert (facts.devices, [each.code for each in facts.problems]) == ((), ["RoutesNotKnown"])
    assert len(poll(tmp_path, plain=True).devices) == 2


def test_in_a_container_the_routes_of_the_host_count_and_not_its_own(tmp_path: Path) -> None:
    host, mounted = virtual_machine(tmp_path / "host"), tmp_path / "host-net"
    host.routes("eth0", at="../host-net")
    (tmp_path / "own/proc/net").mkdir(parents=True)
    (tmp_path / "own/proc/net/route").write_text((mounted / "route").read_text().replace("eth0", "ens5"))
    system = System(tmp_path / "own", host_sys=tmp_path / "host/sys")
    assert routed(NicSource(system=system, selected=True, host_net=mounted).poll()) == ["0000:00:03.0"]
    assert routed(NicSource(system=system, plain=True, host_net=tmp_path / "not-there").poll()) == []


@pytest.mark.parametrize("missing", ["host-sys", "host-net", "interface"])
def test_a_card_is_not_reported_for_a_file_where_routes_may_be_another_networks(tmp_path: Path, missing: str) -> None:
    nics = virtual_machine(tmp_path)
    nics.routes("eth0" if missing != "interface" else "net0", at="host-net")
    system = System(tmp_path, host_sys=None if missing == "host-sys" else tmp_path / "sys")
    host_net = tmp_path / ("nowhere" if missing == "host-net" else "host-net")
    facts = NicSource(system=system, selected=True, host_net=host_net).poll()
    assert (facts.devices, [each.code for each in facts.problems]) == ((), ["RoutesNotKnown"])


def test_the_only_function_stays_reported_while_a_pod_has_its_interface(tmp_path: Path) -> None:
    nics = Nics(tmp_path)
    function = nics.card("0000:00:05.0", vendor=INTEL, device="0x1889", driver="iavf")
    nics.interface("ens5", function)
    nics.tree.link("sys/class/net/eth0", "sys/devices/virtual/net/eth0")
    nics.tree.file("sys/devices/virtual/net/eth0/type", 1)
    nics.forget(function)
    nics.routes("eth0", at="host-net")
    system = System(tmp_path, host_sys=tmp_path / "sys")
    facts = NicSource(system=system, selected=True, host_net=tmp_path / "host-net").poll()
    assert [each.id for each in facts.devices] == ["0000:00:05.0"]


def test_what_a_default_route_goes_through_below_a_bond_or_vlan_counts(tmp_path: Path) -> None:
    nics = virtual_machine(tmp_path)
    for upper, lower in (("bond0.7", "bond0"), ("bond0", "eth0"), ("bond0", "ens5")):
        nics.tree.file(f"sys/devices/virtual/net/{upper}/lower_{lower}/x")
    for upper in ("bond0", "bond0.7"):
        nics.tree.link(f"sys/class/net/{upper}", f"sys/devices/virtual/net/{upper}")
    nics.routes("bond0.7")
    assert routed(poll(tmp_path, selected=True)) == ["0000:00:03.0", "0000:00:05.0"]


def test_ipv6_counts_where_ipv4_has_no_default_route(tmp_path: Path) -> None:
    nics = virtual_machine(tmp_path)
    nics.routes(ipv6=("ens5",))
    assert routed(poll(tmp_path, selected=True)) == ["0000:00:05.0"]
    nics.routes("eth0", ipv6=("ens5",))
    assert routed(poll(tmp_path, selected=True)) == ["0000:00:03.0"]


def test_a_card_that_lost_its_default_route_is_still_the_nodes_own(tmp_path: Path) -> None:
    nics = virtual_machine(tmp_path)
    nics.routes("eth0")
    source = NicSource(system=System(tmp_path), selected=True)
    source.poll()
    nics.routes()
    assert routed(source.poll()) == ["0000:00:03.0"]


def test_a_vdpa_device_is_its_functions(tmp_path: Path) -> None:
    nics = sriov(tmp_path)
    for index, driver in ((4, "vhost_vdpa"), (5, "virtio_vdpa")):
        folder = f"sys/devices/pci0000:16/0000:16:01.0/0000:31:00.{index + 1}/vdpa{index}"
        nics.tree.file(f"{folder}/vhost-vdpa-{index}/dev" if index == 4 else f"{folder}/virtio7/uevent")
        (tmp_path / "sys/bus/vdpa/drivers" / driver).mkdir(parents=True)
        nics.tree.link(f"{folder}/driver", f"sys/bus/vdpa/drivers/{driver}")
        nics.tree.link(f"sys/bus/vdpa/devices/vdpa{index}", folder)
    nics.tree.node("/dev/vhost-vdpa-4")
    found = by_id(poll(tmp_path))
    one, other = found["0000:31:00.5"], found["0000:31:00.6"]
    assert (extra(one)["vdpaType"], extra(other)["vdpaType"]) == ("vhost", "virtio")
    assert (extra(one)["vdpaDevice"], extra(one)["vdpaPath"]) == ("vdpa4", "/dev/vhost-vdpa-4")
    assert (extra(other)["vdpaDevice"], extra(other)["vdpaPath"]) == ("vdpa5", "/sys/bus/virtio/devices/virtio7")
    assert "/dev/vhost-vdpa-4" in one.device_nodes


def test_solarflare_is_found_by_its_driver_and_a_port_never_connected_is_no_fault_of_the_link(tmp_path: Path) -> None:
    solarflare(tmp_path)
    one, other = poll(tmp_path).devices
    assert (one.vendor, one.product_name, extra(one)["driver"]) == ("solarflare", "SFC9250", "sfc")
    assert (one.readings.conditions, other.readings.conditions) == ((), ("noLink",))


def test_no_numa_node_is_none_and_not_node_minus_one(tmp_path: Path) -> None:
    connectx_7_pair(tmp_path).tree.file("sys/bus/pci/devices/0000:17:00.0/numa_node", -1)
    assert poll(tmp_path).devices[0].numa_node is None


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (connectx_7_pair, "/sys/class/infiniband has mlx5_0"),
        (soft_roce, "/sys/class/infiniband has rxe0"),
        (solarflare, "0000:65:00.0 is a Solarflare card"),
        (plain, ""),
    ],
)
def test_auto_starts_it_where_there_is_what_it_reports(tmp_path: Path, make: Callable[[Path], Nics], why: str) -> None:
    make(tmp_path)
    assert KINDS["nic"].wanted(Hardware(Roots(tmp_path)), {}) == why


def test_auto_starts_it_for_functions_without_rdma(tmp_path: Path) -> None:
    nics = plain(tmp_path)
    nics.tree.file("sys/bus/pci/devices/0000:01:00.0/sriov_totalvfs", 64)
    assert "SR-IOV" in KINDS["nic"].wanted(Hardware(Roots(tmp_path)), {})
    nics.vfio("sys/devices/pci0000:16/0000:16:01.0/0000:01:00.0", 3)
    assert "vfio-pci" in KINDS["nic"].wanted(Hardware(Roots(tmp_path)), {})


# --- health ----------------------------------------------------------------------------------------------------------
def net(root: Path, name: str, **files: str | int) -> None:
    for file, value in files.items():
        (root / "sys/class/net" / name / file).write_text(f"{value}\n")


@pytest.mark.parametrize(
    ("flags", "carrier", "ups", "found"),
    [
        ("0x1003", 0, 2, ("linkDown",)),
        ("0x1003", 0, 0, ("noLink",)),
        ("0x1002", 0, 2, ()),  # administratively down: somebody wants it so
        ("0x1003", 1, 5, ()),
        ("0x1003", "", 5, ()),  # the kernel does not say
    ],
)
def test_an_ethernet_link_counts_where_it_is_up_administratively(
    tmp_path: Path, flags: str, carrier: int | str, ups: int, found: tuple[str, ...]
) -> None:
    tree = sriov(tmp_path).tree
    net(tmp_path, "enp49s0np0", flags=flags, carrier=carrier, carrier_up_count=ups)
    tree.files("sys/class/infiniband/mlx5_0/ports/1", state="1: DOWN", phys_state="3: Disabled")
    seen = conditions(tmp_path)
    assert set(seen.values()) == {found}, "virtual functions have the link of their physical one"


def test_a_port_that_is_bonded_has_a_link_while_the_other_one_has(tmp_path: Path) -> None:
    tree = connectx_7_pair(tmp_path).tree
    net(tmp_path, "enp23s0f1np1", carrier=0)
    assert set(conditions(tmp_path).values()) == {()}, "its RDMA port is active"
    tree.files("sys/class/infiniband/mlx5_1/ports/1", state="1: DOWN", phys_state="3: Disabled")
    assert conditions(tmp_path)["0000:17:00.1"] == ("linkDown",)


@pytest.mark.parametrize(
    ("state", "physical", "downed", "found"),
    [
        ("1: DOWN", "2: Polling", 1, ("linkDown",)),
        ("1: DOWN", "2: Polling", 0, ("noLink",)),
        ("1: DOWN", "3: Disabled", 1, ()),
        ("2: INIT", "5: LinkUp", 1, ()),
        ("4: ACTIVE", "5: LinkUp", 7, ()),
    ],
)
def test_an_infiniband_link_is_its_ports_and_needs_no_interface(
    tmp_path: Path, state: str, physical: str, downed: int, found: tuple[str, ...]
) -> None:
    tree = connectx_7_pair(tmp_path).tree
    port = "sys/class/infiniband/mlx5_0/ports/1"
    tree.files(port, state=state, phys_state=physical)
    tree.file(f"{port}/counters/link_downed", downed)
    assert conditions(tmp_path) == {"0000:17:00.0": found, "0000:17:00.1": ()}


def test_a_card_without_a_driver_is_said_and_its_neighbour_is_not_touched(tmp_path: Path) -> None:
    nics = solarflare(tmp_path)
    before = poll(tmp_path).devices[1]
    nics.bind("sys/devices/pci0000:16/0000:16:05.0/0000:65:00.0", "")
    one, other = poll(tmp_path).devices
    assert (one.readings.conditions, "driver" in one.extra) == (("driverUnbound",), False)
    assert other == before


@pytest.mark.parametrize(("make", "id_"), [(connectx_7_pair, "0000:17:00.0"), (solarflare, "0000:65:00.0")])
def test_a_card_at_its_critical_temperature_is_hot(tmp_path: Path, make: Callable[[Path], Nics], id_: str) -> None:
    tree = make(tmp_path).tree
    folder = f"sys/bus/pci/devices/{id_}/hwmon/hwmon3"
    tree.files(folder, temp1_label="asic", temp1_input=61_000, temp1_crit=105_000)
    readings = by_id(poll(tmp_path))[id_].readings
    assert (readings.temperature_celsius, readings.thermal_slowdown) == (61, False)
    tree.files(folder, temp1_input=105_000)
    assert by_id(poll(tmp_path))[id_].readings.thermal_slowdown is True


def test_cards_without_rdma_require_no_character_device(tmp_path: Path) -> None:
    nics = solarflare(tmp_path)
    nics.root.joinpath("dev/infiniband/rdma_cm").unlink()
    assert conditions(tmp_path)["0000:65:00.0"] == ()


def test_the_agent_passes_on_what_is_required_and_refuses_what_cannot_be() -> None:
    local = parse(["--standalone", "--probe=nic", "--node-name=n"], {"NODEDEVICES_RDMA_REQUIRED": "uverbs"})
    assert "--rdma-required=uverbs" in KINDS["nic"].arguments(local.probe_options)
    specs, _ = read(["nic"])
    (problem,) = missing(specs, {**local.probe_options, "rdma-required": "ib_cm"})
    assert "NODEDEVICES_RDMA_REQUIRED" in problem


@dataclass(frozen=True, slots=True)
class HangingRoots(Roots):
    """Reading the ports of `hangs` does not return before `released`."""

    hangs: str = ""
    released: threading.Event = field(default_factory=threading.Event)

    def read(self, path: str | Path, limit: int = MAX_BYTES) -> str:
        if f"{self.hangs}/ports/1/state" in str(path):
            self.released.wait(60)
        return super(HangingRoots, self).read(path, limit)


def test_a_card_whose_firmware_hangs_keeps_no_other_waiting_and_says_what_it_said_last(tmp_path: Path) -> None:
    tree = connectx_7_pair(tmp_path).tree
    source = NicSource(system=System(tmp_path), firmware=FirmwareReads(BoundedReads(seconds=0.5)))
    before = source.poll().devices
    roots = HangingRoots(tmp_path, hangs="mlx5_0")
    source.system = SystemOf(tmp_path, below=roots)
    tree.files("sys/class/infiniband/mlx5_1/ports/1", rate="100 Gb/sec (2X HDR)")
    one, other = source.poll().devices
    assert (one.readings.error, other.readings.error) == ("mlx5_0 does not answer", None)
    assert one.extra == before[0].extra, "so that it stays in its resource"
    assert source.poll().devices == (one, other)
    roots.released.set()
    assert any(source.poll().devices[0] == before[0] for _ in range(100))


def test_exclusive_namespaces_are_a_problem_that_ends_nothing(tmp_path: Path) -> None:
    connectx_7_pair(tmp_path).tree.file("sys/module/ib_core/parameters/netns_mode", "N")
    facts = poll(tmp_path)
    assert [each.code for each in facts.problems] == ["RdmaExclusive"]
    assert len(facts.devices) == 2


# --- changes, amounts ------------------------------------------------------------------------------------------------
def test_cards_and_functions_that_come_and_go_are_seen_at_the_next_poll(tmp_path: Path) -> None:
    nics = sriov(tmp_path, functions=2)
    source = NicSource(system=System(tmp_path))
    before = source.poll()
    folder = nics.card("0000:05:00.0", vendor=SOLARFLARE, device="0x0a03", driver="sfc")
    came = source.poll()
    assert [each.id for each in came.devices] == ["0000:05:00.0", *(each.id for each in before.devices)]
    nics.unplug(folder)
    assert source.poll() == before
    nics.unplug("sys/devices/pci0000:16/0000:16:01.0/0000:31:00.1")
    assert [each.id for each in source.poll().devices] == ["0000:31:00.0", "0000:31:00.2"]


@pytest.mark.parametrize("reads", [*range(1, 60, 5), 90])
def test_a_card_that_leaves_while_it_is_read_touches_no_other(tmp_path: Path, reads: int) -> None:
    nics = connectx_7_pair(tmp_path)
    before = by_id(poll(tmp_path))["0000:17:00.1"]
    unplug = partial(nics.unplug, "sys/devices/pci0000:16/0000:16:07.0/0000:17:00.0")
    roots = VanishingRoots(tmp_path, left=[reads], unplug=unplug)
    source = NicSource(system=SystemOf(tmp_path, below=roots))
    other = by_id(line_of(source))["0000:17:00.1"]
    assert (other.extra, other.device_nodes, other.readings) == (before.extra, before.device_nodes, before.readings)
    assert {each.id for each in source.poll().devices} <= {"0000:17:00.0", "0000:17:00.1"}
    assert [each.id for each in source.poll().devices] == ["0000:17:00.1"]


def test_nothing_below_the_root_is_written(tmp_path: Path) -> None:
    sriov(tmp_path)
    before = {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")}
    poll(tmp_path)
    assert {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_four_cards_of_sixty_four_functions_are_a_line_which_says_what_it_leaves_out(tmp_path: Path) -> None:
    sriov(tmp_path, cards=4, functions=64)
    line = line_of(NicSource(system=System(tmp_path)))
    assert len(line.devices) == MAX_DEVICES
    assert sum(each.type == "nic" for each in line.devices) == 4, "functions are left out before cards"
    (problem,) = line.problems
    left_out = "0000:34:07.5, 0000:34:07.6, 0000:34:07.7, 0000:34:08.0"
    why = f"260 devices were found; only the first 256 are reported, without {left_out}"
    assert (problem.code, problem.message) == ("TooManyDevices", why)
    assert sum(len(each.pcie) for each in line.devices) <= MAX_PATHS
    assert max(len(each.extra) + len(each.capacity) for each in line.devices) <= MAX_OWN


def test_an_rdma_device_of_an_odd_name_is_a_problem_and_the_others_are_reported(tmp_path: Path) -> None:
    nics = soft_roce(tmp_path)
    for name in ("rxe@1", "rxe+2", "r" * 120):
        nics.rdma(name, "sys/devices/virtual", nodes=())
    facts = poll(tmp_path)
    assert [each.id for each in facts.devices] == ["rxe0"]
    assert [each.code for each in facts.problems] == ["NotReported"]


@pytest.mark.skipif(not os.path.isdir("/sys/class/net"), reason="no sysfs")  # noqa: PTH112
def test_this_machine_is_a_good_line() -> None:
    assert line_of(NicSource(plain=True)).driver.name == "linux"


def test_a_card_of_an_unknown_maker_is_called_by_its_number(tmp_path: Path) -> None:
    nics = Nics(tmp_path)
    nics.rdma("x0", nics.card("0000:09:00.0", vendor="0xabcd", device="0x0001", driver="x"))
    nics.rdma("y0", nics.card("0000:0a:00.0", vendor=MELLANOX, device="0xffff", driver="x"))
    one, other = poll(tmp_path).devices
    assert (one.vendor, one.product_name, other.vendor) == ("pci-abcd", "MT4129", "mellanox")
