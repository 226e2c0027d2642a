"""A vendor that is a file, and is passed in, goes from a probe's line to a container as NVIDIA does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from nodedevices_plugin.model import AllocationError, ContainerEdits, Holder
from nodedevices_plugin.vendors.base import Vendor
from nodedevices_plugin.vendors.registry import VENDORS, Vendors
from nodedevices_probe.protocol import DeviceFact, Partition, Readings
from support.acme import CONTROL_NODE, Acme
from support.acme_cdi import AcmeByCdi
from support.cases import cases
from support.facts import START, gpu, gpu_id, old
from support.hubs import Hubs
from support.local import at_once
from support.stepped_node import LOCAL, Node, nodes

MIXED = {"partitions": {"strategy": "mixed"}}


def with_acme(*devices: DeviceFact, **node: Any) -> Node:
    return Node(*devices, local=replace(LOCAL, vendors=Vendors((*VENDORS.every, Acme()))), **node)


def fpga(index: int, *regions: str, root: str = "", **facts: Any) -> DeviceFact:
    return DeviceFact(
        id=f"ACME-{index}",
        index=index,
        type="fpga",
        vendor="acme",
        product_name="Acme A1",
        pcie_root=root,
        device_nodes=(f"/dev/acme{index}",),
        partitions=tuple(region(index, place, profile) for place, profile in enumerate(regions)),
        **facts,
    )


def region(fpga: int, place: int, profile: str) -> Partition:
    """Acme has no GPU instances."""
    return Partition(
        id=f"ACME-{fpga}-{place}", profile=profile, index=place, device_nodes=(f"/dev/acme{fpga}r{place}",)
    )


def dpu(index: int = 0, *, vendor: str = "mellanox", **facts: Any) -> DeviceFact:
    known: dict[str, Any] = {"device_nodes": (f"/dev/infiniband/uverbs{index}",), "product_name": "ConnectX-7"}
    return DeviceFact(id=f"NIC-{index}", index=index, type="dpu", vendor=vendor, **{**known, **facts})


def named(name: str, **match: Any) -> dict[str, Any]:
    return {"resources": {"devices": [{"match": match, "name": name}]}}


# --- the port ---------------------------------------------------------------------------------------------------------
@cases("vendor", *VENDORS.every, Acme(), AcmeByCdi(), Hubs(), ids=lambda vendor: type(vendor).__name__)
def test_a_vendor_overrides_what_the_port_has_and_adds_nothing_that_the_agent_would_not_call(vendor: Vendor) -> None:
    assert {name for name in vars(type(vendor)) if not name.startswith("_")} <= set(dir(Vendor))


# --- a vendor with its file -----------------------------------------------------------------------------------------
def test_its_devices_are_offered_under_its_usual_name_beside_gpus_and_containers_get_what_it_says() -> None:
    node = with_acme(gpu(0, readings=old()), fpga(0), fpga(1), existing=frozenset({CONTROL_NODE})).now()
    assert node.offers == {"acme.com/fpga": ["ACME-0", "ACME-1"], "nvidia.com/gpu": [gpu_id(0)]}
    assert node.container("acme.com/fpga", "ACME-1") == ContainerEdits(
        envs={"ACME_FPGAS": "ACME-1"}, devices=nodes(CONTROL_NODE, "/dev/acme1")
    )
    assert node.container("nvidia.com/gpu", gpu_id(0)).envs == {"NVIDIA_VISIBLE_DEVICES": gpu_id(0)}


def test_its_partitions_need_no_gpu_instance_and_never_go_out_beside_their_device() -> None:
    node = with_acme(fpga(0, "half", "half"), fpga(1)).now(MIXED)
    assert node.offers == {"acme.com/fpga": ["ACME-1"], "acme.com/half": ["ACME-0-0", "ACME-0-1"]}
    assert node.container("acme.com/half", "ACME-0-1") == ContainerEdits(
        envs={"ACME_FPGAS": "ACME-0-1"}, devices=nodes("/dev/acme0r1")
    )
    pod = Holder(namespace="ml", pod="a", container="c", resource="acme.com/half", ids=("ACME-0-0",), since=START)
    assert node.now({}, pod).offers["acme.com/fpga"] == ["ACME-1"], "a region of it is held"
    assert node.now({}).offers["acme.com/fpga"] == ["ACME-0", "ACME-1"]


def test_a_rule_overrides_its_usual_name_and_sharing_exclusion_and_health_are_as_for_any_device() -> None:
    sharing = {"strategy": "timeSlicing", "resources": [{"name": "acme.com/fast", "replicas": 2}]}
    resources = {"devices": [{"match": {"vendor": "acme"}, "name": "acme.com/fast"}], "exclude": ["ACME-2"]}
    node = with_acme(fpga(0), fpga(1, readings=Readings(lost=True)), fpga(2))
    node.now({"sharing": sharing, "resources": resources})
    assert node.offers == {"acme.com/fast": ["ACME-0::0", "ACME-0::1"]}
    assert node.container("acme.com/fast", "ACME-0::1", "ACME-0::0").envs == {"ACME_FPGAS": "ACME-0"}
    with pytest.raises(AllocationError, match="FallenOffBus"):
        node.container("acme.com/fast", "ACME-1::0")


def test_its_pair_score_decides_which_devices_are_preferred() -> None:
    node = with_acme(*(fpga(index, root=root) for index, root in enumerate(("a", "b", "a", "b")))).now()
    everything = [f"ACME-{index}" for index in range(4)]
    assert node.answers.prefer("acme.com/fpga", everything, [], 2) == ("ACME-0", "ACME-2")
    assert node.answers.prefer("acme.com/fpga", everything, ["ACME-3"], 2) == ("ACME-1", "ACME-3")


def test_what_its_dra_driver_gave_a_pod_is_nobody_elses() -> None:
    def claim(device: str) -> Holder:
        return Holder(namespace="ml", pod="a", container="c", resource=None, claim="ml/x", ids=(device,), since=START)

    node = with_acme(gpu(0, readings=old()), fpga(0), fpga(1, "half", "half")).now(MIXED)
    node.now(MIXED, claim("fpga.acme.com/n1/fpga-0"))
    assert node.offers == {
        "acme.com/fpga": [],
        "acme.com/half": ["ACME-1-0", "ACME-1-1"],
        "nvidia.com/gpu": [gpu_id(0)],
    }
    node.now(MIXED, claim("fpga.acme.com/n1/fpga-1r1"))
    assert node.offers["acme.com/half"] == ["ACME-1-0"]
    node.now(MIXED, claim("gpu.nvidia.com/n1/fpga-0"))
    assert node.offers["acme.com/fpga"] == ["ACME-0"], "no driver but its own speaks of it"


def test_devices_of_two_vendors_or_of_none_are_offered_by_a_rule_and_a_container_gets_what_each_says() -> None:
    node = with_acme(gpu(0, readings=old()), fpga(0)).now(named("example.com/accelerator", minMemory="0"))
    assert node.offers == {"example.com/accelerator": ["ACME-0", gpu_id(0)]}
    assert node.container("example.com/accelerator", gpu_id(0), "ACME-0") == ContainerEdits(
        envs={"NVIDIA_VISIBLE_DEVICES": gpu_id(0), "ACME_FPGAS": "ACME-0"}, devices=nodes("/dev/acme0")
    )
    node = Node(gpu(0, readings=old()), dpu(0), dpu(1)).now()
    assert node.offers == {"nvidia.com/gpu": [gpu_id(0)]}
    node.now(named("mellanox.com/nic", type="dpu"))
    assert node.offers == {"mellanox.com/nic": ["NIC-0", "NIC-1"], "nvidia.com/gpu": [gpu_id(0)]}
    assert node.container("mellanox.com/nic", "NIC-1") == ContainerEdits(devices=nodes("/dev/infiniband/uverbs1"))
    assert not node.unmatched


# --- devices that no vendor knows -----------------------------------------------------------------------------------


@cases("match", {"type": "dpu"}, {"ids": ["NIC-0"]}, {"vendor": "mellanox"})
def test_such_a_device_is_meant_by_its_type_by_its_id_or_by_a_vendor_that_nobody_registered(match: Any) -> None:
    assert Node(dpu()).now(named("example.com/nic", **match)).offers == {"example.com/nic": ["NIC-0"]}


@cases("match", {"productName": "*"}, {"vendor": "nvidia"}, {"vendor": "nvidia", "productName": "*"})
def test_a_rule_for_all_of_a_vendors_products_does_not_offer_its_nics_as_gpus(match: Any) -> None:
    node = Node(gpu(0, readings=old()), dpu(vendor="nvidia")).now(named("example.com/all", **match))
    assert node.offers == {"example.com/all": [gpu_id(0)]}


def test_partitions_of_a_device_that_no_vendor_knows_have_a_rule_of_their_own_and_their_own_nodes() -> None:
    cut = dpu(0, partitions=(region(0, 0, "vf"), region(0, 1, "vf")))
    whole, parts = named("example.com/nic", type="dpu"), named("example.com/vf", type="dpu", profile="vf")
    assert Node(cut).now(whole).offers == {"example.com/nic": ["NIC-0"]}
    node = Node(cut).now({**parts, **MIXED})
    assert node.offers == {"example.com/vf": ["ACME-0-0", "ACME-0-1"]}
    assert node.container("example.com/vf", "ACME-0-1").devices == nodes("/dev/acme0r1")
    assert Node(cut).now({**whole, **MIXED}).offers == {}, "whoever has the device has its partitions"
    assert Node(dpu()).now({**whole, **MIXED}).offers == {"example.com/nic": ["NIC-0"]}


def test_a_rule_for_devices_that_are_not_there_says_what_there_is() -> None:
    [note] = Node(gpu(0, readings=old()), dpu()).now(named("example.com/fpga", type="fpga")).unmatched
    assert "no such device on this node" in note
    assert "ConnectX-7" in note


def test_libraries_of_gpus_mps_and_bare_indices_are_for_nvidias_gpus() -> None:
    node = Node(gpu(0, readings=old()), dpu())
    node.now(named("example.com/nic", type="dpu"))
    by_cdi = {"injection": {"deviceListStrategies": ["cdi-cri"]}}
    node.now({**named("example.com/nic", type="dpu"), **by_cdi})
    assert node.world.config.reason == "ConfigInvalid"
    assert node.offers == {"example.com/nic": ["NIC-0"], "nvidia.com/gpu": [gpu_id(0)]}, "the last good one holds"
    mps = {"strategy": "mps", "resources": [{"name": "example.com/nic", "replicas": 2}]}
    local = at_once(["--node-name=n1", "--mps-root=/run/nvidia/mps"], {})
    node = Node(dpu(), local=local).now()
    node.now({**named("example.com/nic", type="dpu"), "sharing": mps})
    assert "MPS shares NVIDIA's GPUs; use timeSlicing" in node.world.config.message
    by_index = {"injection": {"deviceIDStrategy": "index"}, **named("example.com/nic", type="dpu")}
    pod = Holder(namespace="ml", pod="a", container="c", resource="nvidia.com/gpu.old", ids=("0",), since=START)
    node = Node(gpu(0, readings=old()), dpu(0)).now(by_index, pod)
    assert node.offers == {"nvidia.com/gpu": [], "example.com/nic": ["NIC-0"]}
