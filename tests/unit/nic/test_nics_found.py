"""Network cards from trees of sysfs to what pods are given: the probe's line, the configuration files, a container."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from nodedevices_plugin.model import DeviceNode, Holder
from nodedevices_plugin.vendors.base import DeviceFileOutcome
from nodedevices_plugin.vendors.nic import rdma_config, sriov_config
from nodedevices_probe.nic.probe import NicSource
from nodedevices_probe.node.sysfs import System
from nodedevices_probe.protocol import DeviceFact
from support.facts import START
from support.local import at_once
from support.nic_trees import Nics, connectx_7_pair, solarflare, sriov
from support.sources import line_of
from support.stepped_node import Node

FLAGS = (
    "--node-name=n1",
    "--probe=nic",
    "--devices-dir=/d",
)
HOST = frozenset({"/dev/infiniband/rdma_cm", "/dev/vfio/vfio"})


def found(root: Path) -> tuple[DeviceFact, ...]:
    return line_of(NicSource(system=System(root))).devices


class Machine(Node):
    """The agent's steps on what the probe finds below a root."""

    def __init__(self, root: Path, *, rdma: object = None, functions: object = None) -> None:
        super().__init__(*found(root), local=at_once([*FLAGS], {}), existing=HOST)
        self.root = root
        files = (
            ("rdma.json", rdma_config.parse, {"configList": [rdma]} if rdma else None),
            ("sriov.json", sriov_config.parse, {"resourceList": functions} if functions else None),
        )
        empty = {"rdma.json": rdma_config.RdmaConfig(), "sriov.json": sriov_config.SriovConfig()}
        contents = {
            name: DeviceFileOutcome(content=read(json.dumps(said).encode()) if said else empty[name])
            for name, read, said in files
        }
        self.given(device_files=contents)

    def changed(self, *holders: Holder) -> Machine:
        """A poll later."""
        self.devices = found(self.root)
        return self.now(None, *holders)

    def reason(self, id_: str) -> tuple[str, str]:
        verdict = self.world.known.verdicts[id_]
        return verdict.state.value, verdict.reason


def paths(nodes: tuple[DeviceNode, ...]) -> set[str]:
    return {each.host_path for each in nodes}


def card(root: Path, file: str, value: str) -> None:
    (root / "sys" / file).write_text(f"{value}\n")


def held(id_: str) -> Holder:
    return Holder(namespace="default", pod="p", container="c", resource="intel.com/net", ids=(id_,), since=START)


SRIOV = (
    {"resourceName": "dpdk", "selectors": [{"drivers": ["vfio-pci"]}]},
    {"resourceName": "net", "selectors": [{"pfNames": ["enp49s0np0#0-3"], "linkTypes": ["ether"], "isRdma": True}]},
)


def test_functions_are_offered_by_their_driver_and_physical_function_and_give_their_nodes(tmp_path: Path) -> None:
    sriov(tmp_path)
    machine = Machine(tmp_path, functions=SRIOV).now()
    assert machine.offers == {
        "intel.com/dpdk": ["0000:31:00.3"],
        "intel.com/net": ["0000:31:00.1", "0000:31:00.2", "0000:31:00.4"],
    }
    dpdk = machine.container("intel.com/dpdk", "0000:31:00.3")
    assert paths(dpdk.devices) == {"/dev/vfio/42", "/dev/vfio/vfio"}
    assert dpdk.envs["PCIDEVICE_INTEL_COM_DPDK"] == "0000:31:00.3"
    net = machine.container("intel.com/net", "0000:31:00.1")
    own = {f"/dev/infiniband/{each}1" for each in ("uverbs", "umad", "issm")}
    assert paths(net.devices) == {*own, "/dev/infiniband/rdma_cm"}


def test_a_function_that_goes_into_a_pod_and_comes_back_stays_in_its_resource(tmp_path: Path) -> None:
    nics = sriov(tmp_path)
    machine = Machine(tmp_path, functions=SRIOV).now()
    before = machine.offers
    nics.forget(at(nics, "0000:31:00.1"), "net")
    assert machine.changed(held("0000:31:00.1")).offers == before
    assert machine.reason("0000:31:00.1")[0] == "Healthy"
    nics.interface("enp49s0np0v0", at(nics, "0000:31:00.1"))
    assert machine.changed().offers == before


def test_a_function_whose_rdma_device_is_in_a_pods_namespace_stays_that_pods_and_as_it_was(tmp_path: Path) -> None:
    nics = sriov(tmp_path)
    others = {"resourceName": "rest", "selectors": [{"vendors": ["15b3"]}]}
    machine = Machine(tmp_path, functions=[*SRIOV, others]).now()
    before = machine.offers
    nics.forget(at(nics, "0000:31:00.1"))
    machine.changed(held("0000:31:00.1"))
    assert "0000:31:00.1" not in machine.offers["intel.com/rest"]
    assert machine.offers == before, "else the node would have room for one pod fewer than it has functions"
    assert machine.reason("0000:31:00.1")[0] == "Healthy"
    nics.rdma("mlx5_1", at(nics, "0000:31:00.1"))
    assert machine.changed().offers == before


def test_a_function_with_two_interfaces_keeps_its_hca_when_one_has_no_link(tmp_path: Path) -> None:
    """A ConnectX-3 has one function, one RDMA device and two ports."""
    nics = connectx_7_pair(tmp_path)
    folder = at(nics, "0000:17:00.1")
    first = next(each.name for each in (tmp_path / folder / "net").iterdir())
    nics.interface("second", folder)
    nics.tree.files(f"{folder}/net/second", dev_port=1)
    for name in (first, "second"):
        entry = {"resourceName": "hca", "rdmaHcaMax": 1, "selectors": {"ifNames": [name]}}
        machine = Machine(tmp_path, rdma=entry).now()
        for down in (first, "second"):
            card(tmp_path, f"class/net/{down}/carrier", "0")
            assert machine.changed().offers == {"rdma/hca": ["0000:17:00.1::0"]}, f"{name}, while {down} has no link"
            assert machine.reason("0000:17:00.1")[0] == "Healthy"
            card(tmp_path, f"class/net/{down}/carrier", "1")


@pytest.mark.parametrize(
    ("make", "id_", "spoil", "reason"),
    [
        (solarflare, "0000:65:00.0", lambda nics: nics.bind(at(nics, "0000:65:00.0"), ""), "DriverUnbound"),
        (
            connectx_7_pair,
            "0000:17:00.0",
            lambda nics: (nics.root / "dev/infiniband/umad0").unlink(),
            "DeviceNodeMissing",
        ),
        (connectx_7_pair, "0000:17:00.0", lambda nics: nics.unplug(at(nics, "0000:17:00.0")), "Missing"),
    ],
    ids=["its driver lets go of it", "its device node is deleted", "it is unplugged"],
)
def test_a_fault_of_a_card_is_its_own_and_ends_with_its_cause(
    tmp_path: Path, make: Callable[[Path], Nics], id_: str, spoil: Callable[[Nics], object], reason: str
) -> None:
    nics = make(tmp_path)
    machine = Machine(tmp_path)
    rule = {"resources": {"devices": [{"match": {"type": "nic"}, "name": "example.com/nic"}]}}
    before = machine.now(rule).offers["example.com/nic"]
    spoil(nics)
    machine.devices = found(tmp_path)
    machine.now(rule)
    assert machine.reason(id_) == ("Unhealthy", reason)
    assert machine.offers["example.com/nic"] == [each for each in before if each != id_]


def at(nics: Nics, bus_id: str) -> str:
    """Its folder."""
    return str((nics.root / "sys/bus/pci/devices" / bus_id).resolve().relative_to(nics.root.resolve()))
