"""Onload from a probe's line to the kubelet's ids and a container, as its device plugins have it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from nodedevices_common.errors import InputError
from nodedevices_plugin.model import AllocationError, ContainerEdits, Holder, Mount
from nodedevices_plugin.vendors.base import DeviceFileOutcome
from nodedevices_plugin.vendors.nic import onload, sriov_config
from nodedevices_plugin.vendors.nic.onload import ONLOAD, SMART_NIC, OnloadConfig
from nodedevices_plugin.vendors.nic.sriov_config import SriovConfig
from nodedevices_probe.nic import ONLOAD_FILE
from nodedevices_probe.protocol import Attribute, DeviceFact, Readings
from nodedevices_probe.registry import KINDS
from support.cases import cases
from support.facts import START
from support.local import at_once
from support.stepped_node import Node, nodes

CARDS = ("0000:65:00.0", "0000:65:00.1")
LIB, BIN = "/opt/onload/usr/lib64", "/opt/onload/usr/bin"
LIBRARIES = ("libonload.so", "libonload_ext.so", "libonload_ext.so.2")
INSTALLED = frozenset(
    {
        f"{LIB}/libonload.so",
        f"{LIB}/libonload_ext.so",
        f"{LIB}/libonload_ext.so.2",
        f"{BIN}/onload",
        "/dev/sfc_affinity",
    }
)
DEVICES = ("/dev/onload", "/dev/onload_epoll", "/dev/sfc_char")


def card(port: int, *conditions: str, maker: str = "solarflare", driver: str = "sfc", **facts: Any) -> DeviceFact:
    extra = {"pciVendor": Attribute(string="1924"), **({"driver": Attribute(string=driver)} if driver else {})}
    known: dict[str, Any] = {
        "id": CARDS[port],
        "pci_bus_id": CARDS[port],
        "index": port,
        "type": "nic",
        "vendor": maker,
        "extra": extra,
        "readings": Readings(conditions=conditions),
    }
    return DeviceFact(**{**known, **facts})


class Onloaded(Node):
    """A node with a file of Onload's."""

    def __init__(
        self,
        *devices: DeviceFact,
        file: Any = None,
        existing: frozenset[str] = INSTALLED,
        sriov: SriovConfig | None = None,
    ) -> None:
        local = at_once(["--node-name=n1", "--probe=nic", "--devices-dir=/d"], {})
        super().__init__(*devices, local=local, existing=existing)
        self.given(device_files={"sriov.json": DeviceFileOutcome(content=sriov)} if sriov else {})
        self.gives(file if file is not None else {})

    def gives(self, file: Any) -> Onloaded:
        content = onload.parse(json.dumps(file).encode())
        return self.given(device_files={**self.inputs.device_files, ONLOAD_FILE: DeviceFileOutcome(content=content)})

    def edits(self, resource: str = ONLOAD) -> ContainerEdits:
        return self.container(resource, self.offers[resource][0])


def mounts(*names: str, to: str = LIB) -> tuple[Mount, ...]:
    return tuple(Mount(container_path=f"{to}/{each}", host_path=f"{LIB}/{each}") for each in names)


# --- what containers get, for each configuration ----------------------------------------------------------------------
def test_a_container_gets_device_nodes_libraries_and_the_preload() -> None:
    edits = Onloaded(card(0), card(1)).now().edits()
    assert edits.devices == nodes(*DEVICES)
    assert edits.mounts == mounts(*LIBRARIES)
    assert all(each.read_only for each in edits.mounts)
    assert edits.envs == {"LD_PRELOAD": f"{LIB}/libonload.so"}


def test_or_the_command_in_place_of_the_preload_or_neither() -> None:
    edits = Onloaded(card(0), file={"setPreload": False, "mountOnload": True}).now().edits()
    assert edits.mounts == (*mounts(*LIBRARIES), Mount(container_path=f"{BIN}/onload", host_path=f"{BIN}/onload"))
    assert edits.envs == {}
    edits = Onloaded(card(0), file={"setPreload": False}).now().edits()
    assert (edits.mounts, edits.envs) == (mounts(*LIBRARIES), {})


def test_paths_of_host_and_containers_are_a_choice() -> None:
    file = {
        "hostOnloadPath": "/srv/onload/",
        "baseMountPath": "/",
        "libMountPath": "/lib/accelerated",
        "binMountPath": "/usr/local/bin",
        "setPreload": False,
        "mountOnload": True,
    }
    there = frozenset({"/srv/onload/usr/lib64/libonload.so", "/srv/onload/usr/bin/onload"})
    edits = Onloaded(card(0), file=file, existing=there).now().edits()
    assert edits.mounts == (
        Mount(container_path="/lib/accelerated/libonload.so", host_path="/srv/onload/usr/lib64/libonload.so"),
        Mount(container_path="/usr/local/bin/onload", host_path="/srv/onload/usr/bin/onload"),
    )


def test_a_card_by_itself_gives_the_nodes_of_the_older_plugin_as_far_as_they_exist() -> None:
    node = Onloaded(card(0), card(1), file={"resourceName": SMART_NIC}).now()
    assert node.offers == {SMART_NIC: list(CARDS)}
    assert node.edits(SMART_NIC).devices == nodes(*DEVICES, "/dev/sfc_affinity")
    assert node.edits(SMART_NIC).envs == {"LD_PRELOAD": f"{LIB}/libonload.so"}


@cases(("file", "absent"), ({}, f"{LIB}/libonload.so"), ({"setPreload": False, "mountOnload": True}, f"{BIN}/onload"))
def test_a_program_does_not_run_without_onload_in_silence(file: dict[str, Any], absent: str) -> None:
    node = Onloaded(card(0), file=file, existing=INSTALLED - {absent}).now()
    with pytest.raises(AllocationError, match=f"amd.com/onload: {absent} is not on this node"):
        node.edits()
    assert Onloaded(card(0), file={"setPreload": False}, existing=frozenset()).now().edits().mounts == ()


def test_what_it_needs_of_the_host_is_looked_for_and_without_its_file_no_card_is_offered() -> None:
    assert set(onload.host_paths(OnloadConfig(host_path="/srv"))) == {
        "/srv/usr/lib64/libonload.so*",
        "/srv/usr/lib64/libonload_ext.so*",
        "/srv/usr/bin/onload",
        "/dev/onload_cplane",
        "/dev/sfc_affinity",
    }
    assert Node(card(0), card(1)).now().offers == {}


# --- what is offered --------------------------------------------------------------------------------------------------


@cases(("pods", "counts"), (100, (50, 50)), (5, (3, 2)), (1, (1, 0)))
def test_so_many_pods_may_have_it_on_all_cards_together(pods: int, counts: tuple[int, int]) -> None:
    node = Onloaded(card(0), card(1), file={"maxPodsPerNode": pods}).now()
    expected = [f"{id_}::{n}" for id_, count in zip(CARDS, counts, strict=True) for n in range(count)]
    assert node.offers == {ONLOAD: expected}


def test_a_pod_holds_all_cards_and_none_is_taken_out_under_it() -> None:
    node = Onloaded(card(0), card(1), file={"maxPodsPerNode": 4}).now()
    pod = Holder(namespace="ml", pod="p", container="c", resource=ONLOAD, ids=(f"{CARDS[0]}::0",), since=START)
    rule = {"resources": {"devices": [{"match": {"ids": [CARDS[1]]}, "name": "example.com/nic"}]}}
    node.now(rule, pod)
    assert node.offers.keys() == {ONLOAD}
    assert node.gives({"resourceName": SMART_NIC}).now({}, pod).offers.keys() == {ONLOAD}
    assert node.now().offers == {SMART_NIC: list(CARDS)}


@cases(
    "other",
    card(1, maker="mellanox"),
    card(1, driver="vfio-pci"),
    card(1, type="vf", extra={"driver": Attribute(string="sfc")}),
)
def test_other_cards_and_functions_are_not_offered_by_it(other: DeviceFact) -> None:
    node = Onloaded(card(0), other, file={"maxPodsPerNode": 1}).now()
    assert node.offers == {ONLOAD: [f"{CARDS[0]}::0"]}


def test_what_the_sriov_file_names_is_not_onloads() -> None:
    file = {"resourceList": [{"resourceName": "sfc", "selectors": {"pciAddresses": [CARDS[1]]}}]}
    sriov = sriov_config.parse(json.dumps(file).encode())
    node = Onloaded(card(0), card(1), file={"maxPodsPerNode": 1}, sriov=sriov).now()
    assert node.offers == {ONLOAD: [f"{CARDS[0]}::0"], "intel.com/sfc": [CARDS[1]]}


# --- health -----------------------------------------------------------------------------------------------------------
def test_without_onloads_modules_nothing_is_offered_and_the_operators_object_is_taken() -> None:
    node = Onloaded(card(0, "onloadMissing"), card(1, "onloadMissing"), file={"maxPodsPerNode": 2}).now()
    assert node.offers == {ONLOAD: []}
    assert node.world.known.verdicts[CARDS[0]].reason == "OnloadMissing"
    node.devices = (card(0), card(1))
    node.now()
    node.clock += 3600
    assert node.now().offers == {ONLOAD: [f"{each}::0" for each in CARDS]}
    raw = b'{"devicePluginImage": "x", "imagePullPolicy": "Always", "maxPodsPerNode": 7}'
    assert onload.parse(raw) == OnloadConfig(max_pods=7)


def test_a_card_without_a_driver_keeps_its_id_and_the_probe_is_told_that_onload_is_wanted() -> None:
    node = Onloaded(card(0), card(1), file={"maxPodsPerNode": 2}).now()
    node.devices = (card(0), replace(card(1, driver=""), readings=Readings(conditions=("driverUnbound",))))
    node.now()
    assert node.offers == {ONLOAD: [f"{CARDS[0]}::0"]}
    assert [each.id for each in node.plan.resources[0].ids] == [f"{each}::0" for each in CARDS]
    node = Onloaded(card(0)).now()
    without = node.local.probe_options
    assert "--onload=/d/onload.json" in KINDS["nic"].arguments({**without, **node.world.known.requested.files})
    assert not any("onload" in each for each in KINDS["nic"].arguments(without))


# --- the file ---------------------------------------------------------------------------------------------------------
@cases(
    ("raw", "problem"),
    (b"[]", "is not an object with"),
    (b"{", "not JSON"),
    (b'{"maxPods": 3}', "unknown key; did you mean maxPodsPerNode?"),
    (b'{"maxPodsPerNode": 0}', "give a number from 1 to 4096"),
    (b'{"maxPodsPerNode": "100"}', "give a number from 1 to 4096"),
    (b'{"setPreload": "yes"}', "give true or false"),
    (b'{"mountOnload": true}', "mountOnload: true goes with setPreload false"),
    (b'{"hostOnloadPath": "opt/onload"}', "give an absolute path"),
    (b'{"hostOnloadPath": "/opt/../etc"}', "give an absolute path"),
    (b'{"hostOnloadPath": "/opt/*"}', "give an absolute path"),
    (b'{"baseMountPath": "/a b"}', "give an absolute path"),
    (b'{"resourceName": "amd.com/sfc"}', "choose amd.com/onload or solarflare/smartNIC"),
    (b'{"setPreload": true, "setPreload": false}', "given twice"),
)
def test_a_file_that_is_wrong_is_refused_with_key_and_value(raw: bytes, problem: str) -> None:
    with pytest.raises(InputError) as refused:
        onload.parse(raw)
    assert problem in str(refused.value)
