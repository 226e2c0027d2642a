"""What AMD's device plugin finds and prefers on the machines of its own tests, and what we do."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
from conformance.amd_device_plugin.cases import CASES, MI308X_GPUS, Case
from conformance.amd_device_plugin.machines import MI210, MI300X, MI308X, build, gpus, number_in_high_bits
from nodedevices_plugin.granting import preferred
from nodedevices_plugin.granting.preferred import prefer
from nodedevices_probe.amd.probe import AmdSource
from nodedevices_probe.node.sysfs import System
from nodedevices_probe.protocol import DeviceFact
from support.facts import inventory_of
from support.stepped_node import Node, nodes
from support.trees import Tree

RESOURCE = "amd.com/gpu"


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for trees, each built when it is first asked for."""
    folder = tmp_path_factory.mktemp("machines")
    yield folder
    shutil.rmtree(folder)


@cache
def found(folder: Path, machine: str) -> tuple[DeviceFact, ...]:
    build(folder / machine, machine)
    return read(folder / machine)


def read(root: Path) -> tuple[DeviceFact, ...]:
    return AmdSource(system=System(root)).poll().devices


@pytest.mark.parametrize(("machine", "units"), [(MI210, 8), (MI300X, 63), (MI308X, 32)])
def test_every_partition_is_offered(machines: Path, machine: str, units: int) -> None:
    assert len(Node(*found(machines, machine)).now().offers[RESOURCE]) == units


def test_each_partition_belongs_to_the_gpu_that_amds_plugin_says(machines: Path) -> None:
    devices = {gpu.id: gpu for gpu in found(machines, MI308X)}
    assert tuple(sorted(devices)) == MI308X_GPUS
    assert [len(gpu.partitions) for gpu in devices.values()] == [4] * 8


def test_a_container_gets_the_nodes_of_its_own_partition_wherever_the_kernel_has_its_number(machines: Path) -> None:
    low = found(machines, MI300X)
    number_in_high_bits(Tree(machines / MI300X), MI300X)
    for devices in (low, read(machines / MI300X)):
        node = Node(*devices).now()
        assert len(node.offers[RESOURCE]) == 63
        for gpu in gpus(MI300X):
            for part, kfd in enumerate(gpu.nodes):
                minor = kfd["drm_render_minor"]
                edits = node.container(RESOURCE, f"{gpu.bus_id}-xcp-{part}")
                assert edits.devices == nodes("/dev/kfd", f"/dev/dri/card{minor - 128}", f"/dev/dri/renderD{minor}")


@pytest.mark.parametrize("case", CASES, ids=[f"{case.machine}-{case.size}-{at}" for at, case in enumerate(CASES)])
def test_the_same_gpus_and_partitions_are_preferred(machines: Path, case: Case) -> None:
    every = found(machines, case.machine)
    buses = [gpu.bus_id for gpu in gpus(case.machine)]

    def ids(units: Sequence[tuple[int, int]]) -> list[str]:
        cut = case.machine != MI210
        return [f"{buses[gpu - 1]}-xcp-{part}" if cut else buses[gpu - 1] for gpu, part in units]

    node = Node(*every).now()
    assert node.world.plan is not None
    (resource,) = node.world.plan.resources
    without = ids(case.without)
    available = ids(case.available) or [each.id for each in resource.ids if each.id not in without]
    chosen = prefer(resource, available, ids(case.required), case.size, preferred.build(inventory_of(*every)))
    assert sorted(chosen) == sorted(ids(case.expected))
