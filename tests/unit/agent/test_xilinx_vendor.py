"""Xilinx' cards, from the probe's facts to what pods are offered and given, as its device plugin has it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nodedevices_common.errors import InputError
from nodedevices_plugin.model import Holder
from nodedevices_plugin.settings.file import ConfigError
from nodedevices_plugin.settings.flags import Local
from nodedevices_plugin.vendors.base import DeviceFileOutcome
from nodedevices_plugin.vendors.xilinx import parse as parse_names
from nodedevices_probe.fpga import NAMES_FILE
from nodedevices_probe.fpga.probe import FpgaSource
from nodedevices_probe.node.sysfs import System
from nodedevices_probe.protocol import Attribute, DeviceFact
from support.cases import cases
from support.facts import START
from support.fpga_trees import (
    U30_SHELL,
    U250_SHELL,
    alveo,
    fpga_bus_id,
    fpga_slot,
    golden,
    ma35,
    ma35_bus_id,
    management_node,
    u30,
)
from support.local import at_once
from support.stepped_node import Node, nodes

NAME = "amd.com/xilinx_u250_gen3x16_xdma_shell_4_1-1623351600"
U30, U30_ID = "amd.com/ama_u30", "u30-XFL1U30X0000"


def found(root: Path) -> tuple[DeviceFact, ...]:
    return FpgaSource(system=System(root)).poll().devices


def local(*arguments: str, **environment: str) -> Local:
    return at_once(["--node-name=n1", "--probe=fpga", *arguments], environment)


def node(root: Path, *arguments: str, names: dict[str, str] | None = None, **environment: str) -> Node:
    files = ["--devices-dir=/etc"] if names is not None else []
    made = Node(*found(root), local=local(*arguments, *files, **environment))
    if names is not None:
        made.given(device_files={NAMES_FILE: DeviceFileOutcome(content=parse_names(json.dumps(names).encode()))})
    return made


def pod(resource: str, *ids: str) -> Holder:
    return Holder(namespace="ml", pod="p", container="c", resource=resource, ids=ids, since=START)


# --- names and what containers get, for each configuration ------------------------------------------------------------
def test_cards_are_offered_by_shell_and_timestamp_and_a_container_gets_its_cards_nodes_alone(tmp_path: Path) -> None:
    alveo(tmp_path, qdma=True)
    alveo(tmp_path, cards=1, first=4, shell="xilinx_u280_xdma_201920_3", timestamp="1579649056", device=0x500C)
    now = node(tmp_path).now()
    other = "amd.com/xilinx_u280_xdma_201920_3-1579649056"
    assert now.offers == {NAME: [fpga_bus_id(0), fpga_bus_id(1)], other: [fpga_bus_id(4)]}
    edits = now.container(NAME, fpga_bus_id(1))
    assert edits.devices == nodes("/dev/dri/renderD129", "/dev/xfpga/dma.qdma.u15361.0")
    assert (edits.mounts, edits.envs) == ((), {})


def test_management_nodes_go_to_containers_where_a_flag_says_so(tmp_path: Path) -> None:
    alveo(tmp_path)
    edits = node(tmp_path, "--fpga-management-nodes").now().container(NAME, fpga_bus_id(1))
    assert edits.devices == nodes("/dev/dri/renderD129", management_node(1))


@pytest.mark.parametrize("lie", ["/dev/mem", "/dev/xclmgmt1/../mem", "/dev/xclmgmt", "", ",", "/dev/sda,/dev/kmsg"])
def test_and_nothing_else_that_calls_itself_one(tmp_path: Path, lie: str) -> None:
    alveo(tmp_path, cards=1)
    [fact] = found(tmp_path)
    lying = replace(fact, extra={**fact.extra, "managementNodes": Attribute(string=lie)})
    now = Node(lying, local=local("--fpga-management-nodes")).now()
    assert now.container(NAME, fpga_bus_id(0)).devices == nodes("/dev/dri/renderD128")


@pytest.mark.parametrize(
    ("arguments", "prefix", "name"),
    [
        ([], "xilinx.com/fpga-", "xilinx.com/fpga-xilinx_u250_gen3x16_xdma_shell_4_1-1623351600"),
        (["--resource-prefix=example.com"], "", "example.com/xilinx_u250_gen3x16_xdma_shell_4_1-1623351600"),
        (
            ["--resource-prefix=example.com"],
            "xilinx.com/fpga-",
            "example.com/fpga-xilinx_u250_gen3x16_xdma_shell_4_1-1623351600",
        ),
    ],
)
def test_older_names_or_another_domain_are_chosen(tmp_path: Path, arguments: list[str], prefix: str, name: str) -> None:
    alveo(tmp_path)
    made = node(tmp_path, *arguments, NODEDEVICES_FPGA_RESOURCE_PREFIX=prefix)
    assert list(made.now().offers) == [name]


def test_a_shell_that_no_resource_can_be_called_is_offered_by_rule_alone(tmp_path: Path) -> None:
    alveo(tmp_path, shell=f"xilinx_{'x' * 57}", timestamp="1")
    assert node(tmp_path).now().offers == {}
    rule = {"resources": {"devices": [{"match": {"type": "fpga"}, "name": "example.com/fpga"}]}}
    assert node(tmp_path).now(rule).offers == {"example.com/fpga": [fpga_bus_id(0), fpga_bus_id(1)]}


def test_a_u30_is_offered_whole_and_gives_both_its_fpgas(tmp_path: Path) -> None:
    u30(tmp_path, cards=2)
    now = node(tmp_path).now()
    assert now.offers == {U30: [U30_ID, "u30-XFL1U30X0001"]}
    assert now.container(U30, U30_ID).devices == nodes("/dev/dri/renderD128", "/dev/dri/renderD129")


@pytest.mark.parametrize("unit", ["Device", "device"])
def test_or_by_fpga(tmp_path: Path, unit: str) -> None:
    u30(tmp_path)
    now = node(tmp_path, "--fpga-management-nodes", U30AllocUnit=unit).now()
    assert now.offers == {U30: [fpga_bus_id(0), fpga_bus_id(1)]}
    assert now.container(U30, fpga_bus_id(1)).devices == nodes("/dev/dri/renderD129", management_node(1))


def test_a_u30_has_its_shells_name_where_that_is_wanted(tmp_path: Path) -> None:
    u30(tmp_path)
    assert list(node(tmp_path, U30NameConvention="ExactName").now().offers) == [f"amd.com/{U30_SHELL}-0"]


def test_the_devices_of_an_ma35d_are_offered_one_by_one(tmp_path: Path) -> None:
    ma35(tmp_path)
    now = node(tmp_path).now()
    assert now.offers == {"amd.com/MA35": [ma35_bus_id(0), ma35_bus_id(1)]}
    assert now.container("amd.com/MA35", ma35_bus_id(1)).devices == nodes("/dev/ama_transcoder1")


def test_virtual_devices_are_shares_of_each_card_and_give_that_card(tmp_path: Path) -> None:
    alveo(tmp_path)
    now = node(tmp_path, VirtualDev="True", VirtualNum="2").now()
    assert now.offers == {NAME: [f"{fpga_bus_id(card)}::{share}" for card in (0, 1) for share in (0, 1)]}
    assert now.container(NAME, f"{fpga_bus_id(1)}::0").devices == nodes("/dev/dri/renderD129")
    assert node(tmp_path, VirtualDev="True").now().offers == {NAME: [f"{fpga_bus_id(0)}::0", f"{fpga_bus_id(1)}::0"]}, (
        "left out it is 1"
    )
    assert node(tmp_path, VirtualDev="False", VirtualNum="2").now().offers == {NAME: [fpga_bus_id(0), fpga_bus_id(1)]}


# --- aliases ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("names", "name"),
    [
        ({f"u250-{U250_SHELL}-1623351600": "'u250'"}, "u250"),
        ({"U250-*-*": "deviceType+'-'+timestamp"}, "u250-1623351600"),
        ({f"*-{U250_SHELL}-71b8a6": "'shell-'+uuid"}, "shell-71b8a6"),
        ({"*-*-*": "deviceType + '.' + deviceID"}, "u250.0x5005"),
        ({"*-*-*": "'any'", "u250-*-*": "'mine'"}, "mine"),
        ({"u280-*-*": "'other'"}, f"{U250_SHELL}-1623351600"),
        ({"*-*-*": "shellVer+'-'+shellVer"}, f"{U250_SHELL}-1623351600"),  # too long
        ({"*-*-*": "'-'"}, f"{U250_SHELL}-1623351600"),  # no name
        ({}, f"{U250_SHELL}-1623351600"),
    ],
)
def test_cards_have_the_names_that_the_file_gives_them(tmp_path: Path, names: dict[str, str], name: str) -> None:
    alveo(tmp_path, cards=1)
    assert list(node(tmp_path, names=names, DeviceNameCustomize="True").now().offers) == [f"amd.com/{name}"]
    assert list(node(tmp_path, names=names).now().offers) == [f"amd.com/{name}"]


def test_a_shell_with_dashes_in_its_name_can_be_named(tmp_path: Path) -> None:
    shell = "xilinx_aws-vu9p-f1_shell-v04261818_201920_2"
    alveo(tmp_path, cards=1, shell=shell, management=False, maker="0x1d0f", serials=("",))
    assert list(node(tmp_path, names={f"aws-vu9p-f1-{shell}-*": "'f1'"}).now().offers) == [
        f"amd.com/{shell}-1623351600"
    ], "the device type ends at the first dash"
    assert list(node(tmp_path, names={"*-" + shell + "-*": "'f1'"}).now().offers) == ["amd.com/f1"]


def test_the_file_does_not_apply_to_u30s_by_their_common_name_and_not_where_it_is_switched_off(tmp_path: Path) -> None:
    u30(tmp_path)
    names = {"*-*-*": "'mine'"}
    assert list(node(tmp_path, names=names).now().offers) == [U30]
    exact = node(tmp_path, names=names, U30NameConvention="ExactName").now()
    assert list(exact.offers) == ["amd.com/mine"]
    off = node(tmp_path, names=names, U30NameConvention="ExactName", DeviceNameCustomize="False").now()
    assert list(off.offers) == [f"amd.com/{U30_SHELL}-0"]


def test_an_ma35d_can_be_named_too(tmp_path: Path) -> None:
    ma35(tmp_path)
    assert list(node(tmp_path, names={"MA35-MA35-0": "'transcoder'"}).now().offers) == ["amd.com/transcoder"]


@cases(
    ("raw", "problem"),
    (b"{", "not JSON"),
    (b"[" * 100_000, "not JSON"),
    (b'["a"]', "give an object of keys and names"),
    (b'"a"', "give an object of keys and names"),
    (b'{"u250": "\'a\'"}', "'u250': give <device type>-<shell>-<timestamp"),
    (b'{"u250--": "\'a\'"}', "'u250--': give <device type>-<shell>-<timestamp"),
    (b'{"*-*-*": 7}', "'*-*-*': 7 is not a name; give one such as 'u250-'+timestamp"),
    (b'{"*-*-*": ""}', "is not a name; give one such as"),
    (b'{"*-*-*": ["a"]}', "is not a name; give one such as"),
    (b'{"*-*-*": "u250"}', "'*-*-*': 'u250': no such field"),
    (b'{"*-*-*": "shellver"}', "did you mean shellVer?"),
    (b'{"*-*-*": "DBDF"}', "a PCI address has colons"),
    (b'{"*-*-*": "index"}', "it changes when a card is plugged in or out"),
    (b'{"*-*-*": "\'a/b\'"}', "a text is letters, digits"),
    (b'{"*-*-*": "\'a"}', "a text is letters, digits"),
    (b'{"*-*-*": "SN+"}', "no such field"),
    (b'{"*-*-*": "\'a\'", "*-*-*": "\'b\'"}', "given twice"),
    (b"\xff\xfe", "not UTF-8"),
)
def test_a_file_that_is_wrong_is_refused_with_key_and_value(raw: bytes, problem: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_names(raw)
    assert problem in str(refused.value)


def test_everything_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(InputError) as refused:
        parse_names(b'{"a": "\'x\'", "*-*-*": "nothing"}')
    assert len(refused.value.problems) == 2


# --- variables that cannot be -----------------------------------------------------------------------------------------
@cases(
    ("environment", "problem"),
    ({"U30NameConvention": "Exact"}, "environment variable U30NameConvention: Exact: give CommonName or ExactName"),
    ({"U30AllocUnit": "Half"}, "environment variable U30AllocUnit: Half: give Card or Device"),
    ({"VirtualDev": "yes"}, "VirtualDev: yes: give True or False"),
    ({"VirtualDev": "True", "VirtualNum": "0"}, "VirtualNum: 0"),
    ({"VirtualDev": "True", "VirtualNum": "1" * 30}, "from 1 to 1024"),
    ({"DeviceNameCustomize": "True"}, "it needs --devices-dir, a folder with NameCustomize.json"),
)
def test_what_a_variable_cannot_mean_is_refused(environment: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        local(**environment)
    assert problem in str(refused.value)


# --- nobody gets a card twice -----------------------------------------------------------------------------------------
def changed(before: Node, *arguments: str, **environment: str) -> Node:
    """The agent after a restart with other flags."""
    now = local(*arguments, **environment)
    return Node(*before.devices, local=now, state=before.world.state, clock=before.clock)


def test_a_u30_that_a_pod_has_whole_is_not_offered_by_fpga(tmp_path: Path) -> None:
    u30(tmp_path, cards=2)
    holder = pod(U30, U30_ID)
    before = node(tmp_path).now({}, holder)
    after = changed(before, U30AllocUnit="Device").now({}, holder)
    assert set(after.offers[U30]).isdisjoint({fpga_bus_id(0), fpga_bus_id(1)})
    assert after.now().offers == {U30: [fpga_bus_id(card) for card in range(4)]}


def test_an_fpga_of_a_u30_that_another_plugin_has_given_to_a_pod_keeps_the_card_from_others(tmp_path: Path) -> None:
    u30(tmp_path, cards=2)
    now = node(tmp_path).now({}, pod(U30, fpga_bus_id(1)))
    assert now.offers == {U30: ["u30-XFL1U30X0001"]}


def test_a_card_that_is_being_reset_keeps_its_id_and_name_and_goes_to_no_new_pod(tmp_path: Path) -> None:
    alveo(tmp_path)
    now = node(tmp_path).now()
    for each in (tmp_path / "sys/bus/pci/devices" / fpga_bus_id(0)).glob("rom.u.*"):
        shutil.rmtree(each)
    now.devices = found(tmp_path)
    now.now()
    assert now.offers == {NAME: [fpga_bus_id(1)]}
    assert now.world.known.verdicts[fpga_bus_id(0)].reason == "ProbeError"
    assert [each.id for each in now.plan.resources[0].ids] == [fpga_bus_id(0), fpga_bus_id(1)]


# --- health -----------------------------------------------------------------------------------------------------------
def test_a_new_card_without_a_shell_is_degraded_and_offered_to_nobody_even_by_a_rule(tmp_path: Path) -> None:
    alveo(tmp_path, cards=1)
    golden(tmp_path, card=3)
    rule: dict[str, Any] = {"resources": {"devices": [{"match": {"type": "fpga"}, "name": "example.com/fpga"}]}}
    now = node(tmp_path).now(rule)
    assert now.offers == {"example.com/fpga": [fpga_bus_id(0)]}
    verdict = now.world.known.verdicts[fpga_bus_id(3)]
    assert (verdict.state.value, verdict.reason) == ("Degraded", "NoShell")


def test_a_tripped_firewall_takes_the_card_out_of_service_until_it_is_reset(tmp_path: Path) -> None:
    tree = alveo(tmp_path)
    status = f"sys/bus/pci/devices/{fpga_slot(0)}.0/firewall.m.16777216/detected_status"
    tree.file(status, "0x80000")
    now = node(tmp_path).now()
    assert now.offers == {NAME: [fpga_bus_id(1)]}
    verdict = now.world.known.verdicts[fpga_bus_id(0)]
    assert (verdict.reason, verdict.recovery_action) == ("FirewallTripped", "ResetDevice")
    tree.file(status, 0)
    now.devices = found(tmp_path)
    now.now()
    now.clock += 3600
    assert now.now().world.known.verdicts[fpga_bus_id(0)].reason == ""
