"""AMD's GPUs from what the kernel shows to what pods are given: names, device nodes, partitions, pairs, faults."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Set
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from nodedevices_plugin.model import Holder, InventoryDevice, PlanError
from nodedevices_plugin.vendors.amd import Amd
from nodedevices_probe.amd import EXPORTER_UNHEALTHY
from nodedevices_probe.amd.probe import COMPUTE, MEMORY, AmdSource
from nodedevices_probe.node.sysfs import System
from nodedevices_probe.protocol import DeviceFact, Link, Readings
from nodedevices_probe.simulated.probe import from_profile
from support.cases import cases
from support.facts import START, gpu, gpu_id, inventory_of
from support.stepped_node import Node, nodes
from support.trees import amd_bus_id, mi300x

SINGLE: Mapping[str, Any] = {"partitions": {"strategy": "single"}}
MIXED: Mapping[str, Any] = {"partitions": {"strategy": "mixed"}}


def devices(root: Path) -> tuple[DeviceFact, ...]:
    return AmdSource(system=System(root)).poll().devices


def machine(root: Path, **shape: Any) -> Node:
    mi300x(root, **shape)
    return Node(*devices(root))


def fresh(root: Path) -> Path:
    shutil.rmtree(root)
    return root


def test_whole_gpus_are_amds_resource_and_containers_get_kfd_and_their_own_nodes(tmp_path: Path) -> None:
    node = machine(tmp_path, gpus=2).now()
    assert node.offers == {"amd.com/gpu": [amd_bus_id(0), amd_bus_id(1)]}
    edits = node.container("amd.com/gpu", amd_bus_id(1))
    assert edits.devices == nodes("/dev/kfd", "/dev/dri/card8", "/dev/dri/renderD136")
    assert edits.envs == {}, "AMD's plugin sets none"


def no_longer_said(root: Path, gpu: int, *names: str) -> None:
    """For a reader as a file whose driver answers EPERM: there, and not to be read."""
    for name in names:
        file = (root / "sys/bus/pci/devices" / amd_bus_id(gpu)).resolve() / name
        file.unlink()
        file.mkdir()


@pytest.mark.parametrize("names", [(COMPUTE, MEMORY), (COMPUTE,), (MEMORY,)])
@pytest.mark.parametrize(
    ("requested", "compute", "resource"),
    [(MIXED, "SPX", "amd.com/spx_nps1"), (MIXED, "CPX", "amd.com/cpx_nps1"), (SINGLE, "CPX", "amd.com/gpu")],
)
def test_a_gpu_in_reset_keeps_its_name_and_its_ids_and_goes_to_no_new_pod(
    tmp_path: Path, names: tuple[str, ...], requested: dict[str, Any], compute: str, resource: str
) -> None:
    ids = 8 if compute == "CPX" else 1
    node = machine(tmp_path, gpus=2, compute=compute).now(requested)
    no_longer_said(tmp_path, 0, *names)
    node.devices = devices(tmp_path)
    node = node.now(requested)
    assert node.counts == {resource: (2 * ids, ids)}
    assert node.restarted().now(requested).counts == {resource: (2 * ids, ids)}, "nor in an agent that begins now"


@pytest.mark.parametrize("requested", [{}, SINGLE])
def test_a_partition_stands_in_for_a_gpu(tmp_path: Path, requested: dict[str, Any]) -> None:
    node = machine(tmp_path, gpus=1, compute="CPX", memory="NPS4").now(requested)
    assert node.offers == {"amd.com/gpu": [f"{amd_bus_id(0)}-xcp-{part}" for part in range(8)]}
    edits = node.container("amd.com/gpu", f"{amd_bus_id(0)}-xcp-2")
    assert edits.devices == nodes("/dev/kfd", "/dev/dri/card2", "/dev/dri/renderD130")


def test_mixed_names_partitions_by_their_kind_and_gpus_that_cannot_be_cut_as_ever(tmp_path: Path) -> None:
    mi300x(tmp_path, gpus=2, compute="CPX", memory="NPS4")
    plain = tmp_path / "sys/bus/pci/devices" / amd_bus_id(1)
    for name in ("current_compute_partition", "available_compute_partition", "current_memory_partition"):
        (plain / name).unlink()
    for part in range(1, 8):
        shutil.rmtree(tmp_path / f"sys/class/kfd/kfd/topology/nodes/{2 + 8 + part}")
    offers = Node(*devices(tmp_path)).now(dict(MIXED)).offers
    assert {name: len(ids) for name, ids in offers.items()} == {"amd.com/cpx_nps4": 8, "amd.com/gpu": 1}
    whole = machine(fresh(tmp_path), gpus=2).now(dict(MIXED))
    assert list(whole.offers) == ["amd.com/spx_nps1"]


def test_a_gpu_that_is_cut_under_a_pod_goes_to_no_other_until_the_pod_has_ended(tmp_path: Path) -> None:
    node = machine(tmp_path, gpus=2).now()
    holder = Holder(
        namespace="default", pod="train", container="main", resource="amd.com/gpu", ids=(amd_bus_id(0),), since=START
    )
    node.now({}, holder)
    mi300x(fresh(tmp_path), gpus=2, compute="CPX")
    node.devices = devices(tmp_path)
    offered = node.now({}, holder).offers["amd.com/gpu"]
    assert [each for each in offered if each.startswith(amd_bus_id(0))] == []
    assert len(offered) == 8
    assert len(node.now({}).offers["amd.com/gpu"]) == 16


def test_the_nearest_gpus_are_preferred_as_by_amds_weights(tmp_path: Path) -> None:
    mi300x(tmp_path, gpus=8)
    gpus, amd = devices(tmp_path), Amd()
    scores = {(one.index, other.index): amd.pair_score(one, other) for one, other in combinations(gpus, 2)}
    assert scores[0, 1] > scores[0, 4], "the same NUMA node is nearer"
    for link in (tmp_path / "sys/class/kfd/kfd/topology/nodes/2/io_links").glob("*/properties"):
        link.write_text(link.read_text().replace("type 11", "type 2"))
    cut = devices(tmp_path)
    assert amd.partition_score(cut[0]) > amd.pair_score(cut[1], cut[2])
    assert amd.pair_score(cut[1], cut[0]) == scores[0, 1], "a link that one end reports is a link"


@cases(
    ("one", "other", "score"),
    ({"numa_node": 0}, {"numa_node": 0}, 60),
    ({"numa_node": 0}, {"numa_node": 1}, 50),
    ({"numa_node": None}, {"numa_node": None}, 50),
)
def test_a_pair_with_its_own_link_scores_as_amd_says(one: dict[str, Any], other: dict[str, Any], score: int) -> None:
    """100 less 20 for two GPUs, 10 for XGMI, 10 or 20 for NUMA nodes: allocator/device.go of AMD's plugin."""
    others = (Link(kind="XGMI", to=gpu_id(7), count=1), Link(kind="XGMI", to=gpu_id(1), count=1))
    linked, plain = gpu(0, links=others, **one), gpu(1, links=others[:1], **other)
    assert (Amd().pair_score(linked, plain), Amd().pair_score(plain, linked)) == (score, score)


@cases(("roots", "score"), (("r0", "r0"), 30), (("r0", "r1"), 20), (("", ""), 20))
def test_a_pair_without_a_link_scores_by_its_pcie_root(roots: tuple[str, str], score: int) -> None:
    elsewhere = (Link(kind="XGMI", to=gpu_id(7), count=1),)
    for links in ((), elsewhere):
        one, other = gpu(0, pcie_root=roots[0], numa_node=0), gpu(1, pcie_root=roots[1], numa_node=0, links=links)
        assert (Amd().pair_score(one, other), Amd().pair_score(other, one)) == (score, score)
    assert Amd().partition_score(one) == 70, "partitions of one GPU: 10 for each"


def test_partitions_of_a_gpu_that_is_excluded_or_gone_are_no_reason_for_mixed() -> None:
    whole = from_profile("mi300x", node="n").facts.devices[0]
    cut = replace(from_profile("mi300x-cpx", node="n").facts.devices[0], id="another", index=1)
    units = Amd().units

    def some(*devices: InventoryDevice, excluded: Set[str] = frozenset(), strategy: str = "single") -> int:
        return len(units(devices, strategy=strategy, excluded=excluded))

    here, parts = inventory_of(whole).devices[0], inventory_of(cut).devices[0]
    with pytest.raises(PlanError, match=r"^partitions\.strategy: single: this node has AMD GPUs in several partitions"):
        some(here, parts)
    with pytest.raises(PlanError, match=r"\(cpx_nps4, whole\); use mixed"):
        some(inventory_of(replace(whole, extra={})).devices[0], parts)
    assert some(here, parts, strategy="mixed") == 9
    assert some(here, replace(parts, present=False)) == 9
    ids = frozenset(each.id for each in cut.partitions)
    assert some(here, parts, excluded=ids) == 9
    with pytest.raises(PlanError):
        some(here, parts, excluded=frozenset(sorted(ids)[1:]))
    earlier = replace(cut.partitions[0], id="earlier", profile="dpx_nps1")
    held = replace(parts, fact=replace(cut, partitions=(*cut.partitions, earlier)))
    assert some(replace(held, departed_partitions=frozenset({"earlier"}))) == 9, "a pod still has it"
    with pytest.raises(PlanError):
        some(held)


@cases(
    ("readings", "reason", "action", "by_itself"),
    ({"remap_failure": True}, "PageRetirementFailure", "Replace", False),
    ({"remap_pending": True}, "PageRetirementPending", "ResetDevice", True),
    ({"ecc_uncorrectable_volatile": 1}, "EccUncorrectable", "ResetDevice", True),
    ({"conditions": (EXPORTER_UNHEALTHY,)}, "ExporterUnhealthy", "Inspect", True),
)
def test_each_fault_says_what_to_do_and_whether_its_end_proves_the_repair(
    readings: dict[str, Any], reason: str, action: str, by_itself: bool
) -> None:
    [found] = [each for each in Amd().read(Readings(**readings)) if each.evident]
    assert (found.reason, found.action, found.ends_by_itself) == (reason, action, by_itself)
    assert reason in Amd().every_reason(), "a policy's rule may name it"


def test_a_gpu_without_errors_has_no_fault_and_one_that_does_not_say_is_not_known() -> None:
    assert not any(each.evident for each in Amd().read(Readings(ecc_uncorrectable_volatile=0)))
    ecc = {each.reason: each.evident for each in Amd().read(Readings())}
    assert ecc["EccUncorrectable"] is None


def test_several_partitions_for_one_pod_are_of_one_gpu_and_shares_of_them_of_many(tmp_path: Path) -> None:
    node = machine(tmp_path, gpus=4, compute="CPX").now()
    ids = node.offers["amd.com/gpu"]
    assert {each[:12] for each in node.answers.prefer("amd.com/gpu", ids, [], 8)} == {amd_bus_id(0)}
    some = [each for each in ids if each != f"{amd_bus_id(2)}-xcp-5"]
    assert {each[:12] for each in node.answers.prefer("amd.com/gpu", some, [], 3)} == {amd_bus_id(2)}, "the fullest"
    assert {each[:12] for each in node.answers.prefer("amd.com/gpu", ids, [ids[9]], 3)} == {amd_bus_id(1)}
    sharing = {"resources": [{"name": "amd.com/gpu", "replicas": 2}], "strategy": "timeSlicing"}
    shared = node.now({"sharing": sharing}).offers["amd.com/gpu"]
    assert len({each.partition("::")[0] for each in node.answers.prefer("amd.com/gpu", shared, [], 4)}) == 4


def test_the_best_partitions_are_found_on_more_gpus_than_all_sets_are_tried_of(tmp_path: Path) -> None:
    node = machine(tmp_path, gpus=9, compute="CPX").now()
    ids = node.offers["amd.com/gpu"]
    for size in (8, 20, 60, 72):
        chosen = node.answers.prefer("amd.com/gpu", ids, [], size)
        assert len(set(chosen)) == size
        assert len({each[:12] for each in chosen}) == -(-size // 8)


@pytest.mark.parametrize(
    ("file", "content", "reason", "offered"),
    [
        ("ras/umc_err_count", "ue: 1\nce: 0\n", "EccUncorrectable", False),
        ("ras/gpu_vram_bad_pages", "0x1 : 0x1000 : F\n", "PageRetirementFailure", False),
        ("ras/gpu_vram_bad_pages", "0x1 : 0x1000 : P\n", "PageRetirementPending", True),
        ("hwmon/hwmon0/temp1_input", "100000\n", "ThermalSlowdown", True),
    ],
)
def test_what_the_kernel_says_is_a_reason(tmp_path: Path, file: str, content: str, reason: str, offered: bool) -> None:
    node = machine(tmp_path, gpus=2).now()
    (tmp_path / "sys/bus/pci/devices" / amd_bus_id(0) / file).write_text(content)
    node.devices = devices(tmp_path)
    node.now()
    assert node.world.known.verdicts[amd_bus_id(0)].reason == reason
    assert (amd_bus_id(0) in node.offers["amd.com/gpu"]) is offered
    assert amd_bus_id(1) in node.offers["amd.com/gpu"]


def test_a_missing_device_node_withdraws_its_gpu_alone(tmp_path: Path) -> None:
    node = machine(tmp_path, gpus=2).now()
    gone = tmp_path / "dev/dri/renderD128"
    gone.unlink()
    node.devices = devices(tmp_path)
    assert node.now().offers == {"amd.com/gpu": [amd_bus_id(1)]}
    assert node.world.known.verdicts[amd_bus_id(0)].reason == "DeviceNodeMissing"
