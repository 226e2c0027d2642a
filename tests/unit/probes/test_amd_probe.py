"""AMD's GPUs, from trees of sysfs to the probe's line. What a machine may hold that no machine should is in
test_hostile_trees.py."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from nodedevices_probe.amd import KFD_NODE
from nodedevices_probe.amd.kfd import gfx_name
from nodedevices_probe.amd.probe import AmdSource
from nodedevices_probe.loop import SourceFacts
from nodedevices_probe.node.sysfs import NODE_MISSING, System
from nodedevices_probe.protocol import DeviceFact, DriverState, PciePath
from support.cases import cases
from support.trees import MI300X_MIB, amd_bus_id, mi300x


def poll(root: Path, *, telemetry: bool = False) -> SourceFacts:
    return AmdSource(system=System(root), telemetry=telemetry).poll()


def folder(root: Path, gpu: int) -> Path:
    return (root / "sys/bus/pci/devices" / amd_bus_id(gpu)).resolve()


def first(root: Path) -> DeviceFact:
    return poll(root).devices[0]


def test_a_whole_gpu_is_what_the_driver_and_kfd_say_of_it(tmp_path: Path) -> None:
    mi300x(tmp_path)
    facts = poll(tmp_path)
    assert (facts.driver.state, facts.driver.name, facts.driver.version) == (DriverState.LOADED, "amdgpu", "6.12.12")
    assert (len(facts.devices), facts.accelerators_on_bus, facts.problems) == (8, 8, ())
    gpu = facts.devices[5]
    assert (gpu.id, gpu.index, gpu.type, gpu.vendor) == ("0000:11:00.0", 5, "gpu", "amd")
    assert (gpu.product_name, gpu.architecture, gpu.firmware) == (
        "AMD Instinct MI300X OAM",
        "gfx942",
        "113-M3000100-103",
    )
    assert (gpu.uuid, gpu.numa_node, gpu.pcie_root) == ("00000000c0ffee05", 1, "pci0000:0f")
    assert gpu.capacity == {"memory": f"{MI300X_MIB}Mi", "computeUnits": "304", "simds": "1216"}
    assert gpu.device_nodes == ("/dev/kfd", "/dev/dri/card40", "/dev/dri/renderD168")
    assert gpu.extra["partitionProfile"].string == "spx_nps1"
    assert gpu.partitions == ()
    assert gpu.readings.conditions == ()
    assert gpu.readings.error is None


def test_partitions_have_their_own_nodes_memory_and_compute_units(tmp_path: Path) -> None:
    mi300x(tmp_path, gpus=2, compute="CPX", memory="NPS4")
    gpus = poll(tmp_path).devices
    assert [len(gpu.partitions) for gpu in gpus] == [8, 8]
    one = gpus[1].partitions[3]
    assert (one.id, one.profile, one.index) == ("0000:0d:00.0-xcp-3", "cpx_nps4", 3)
    assert one.device_nodes == ("/dev/kfd", "/dev/dri/card11", "/dev/dri/renderD139")
    assert one.capacity == {"memory": f"{MI300X_MIB // 8}Mi", "computeUnits": "38", "simds": "152"}
    nodes = [node for gpu in gpus for part in gpu.partitions for node in part.device_nodes if node != KFD_NODE]
    assert len(nodes) == len(set(nodes)) == 32, "no two partitions have a device node in common but KFD's"


def test_a_partition_that_kfd_does_not_list_leaves_the_others_their_ids(tmp_path: Path) -> None:
    mi300x(tmp_path, gpus=1, compute="CPX")
    shutil.rmtree(tmp_path / "sys/class/kfd/kfd/topology/nodes/5")
    assert [part.id[-5:] for part in first(tmp_path).partitions] == [f"xcp-{part}" for part in (0, 1, 2, 4, 5, 6, 7)]


def test_the_only_partition_that_kfd_lists_is_no_whole_gpu(tmp_path: Path) -> None:
    mi300x(tmp_path, gpus=1, compute="CPX")
    for node in range(3, 10):
        shutil.rmtree(tmp_path / f"sys/class/kfd/kfd/topology/nodes/{node}")
    (part,) = first(tmp_path).partitions
    assert (part.index, part.capacity["computeUnits"]) == (0, "38")


@pytest.mark.parametrize(
    ("umc", "other", "errors"),
    [
        ("ue: 2", "ue: 0", 2),
        ("ue: 0", "ue: 0", 0),
        ("ue: 0", None, None),
        ("ue: 2", None, 2),
        ("inaccessible", "x", None),
    ],
)
def test_errors_of_a_silent_block_are_not_none(tmp_path: Path, umc: str, other: str | None, errors: int | None) -> None:
    mi300x(tmp_path, gpus=1)
    ras = folder(tmp_path, 0) / "ras"
    shutil.rmtree(ras, ignore_errors=True)
    ras.mkdir()
    (ras / "umc_err_count").write_text(f"{umc}\nce: 0\n")
    if other is None:
        (ras / "gfx_err_count").mkdir()
    else:
        (ras / "gfx_err_count").write_text(f"{other}\nce: 0\n")
    assert first(tmp_path).readings.ecc_uncorrectable_volatile == errors


def test_pages_that_cannot_be_read_are_not_known_to_be_good(tmp_path: Path) -> None:
    mi300x(tmp_path, gpus=1)
    file = folder(tmp_path, 0) / "ras/gpu_vram_bad_pages"
    file.parent.mkdir(exist_ok=True)
    file.write_text("")
    assert first(tmp_path).readings.remap_failure is False
    file.unlink()
    file.mkdir()
    assert first(tmp_path).readings.remap_failure is None


def test_partitions_whose_kernel_does_not_number_them_are_numbered_in_its_order(tmp_path: Path) -> None:
    mi300x(tmp_path, gpus=1, compute="DPX")
    for node in (2, 3):
        properties = tmp_path / f"sys/class/kfd/kfd/topology/nodes/{node}/properties"
        properties.write_text(re.sub("location_id .*", "location_id 3072", properties.read_text()))
    assert [part.device_nodes[-1] for part in first(tmp_path).partitions] == [
        "/dev/dri/renderD128",
        "/dev/dri/renderD129",
    ]


def test_a_partition_without_drm_nodes_in_sys_has_the_render_node_that_kfd_says(tmp_path: Path) -> None:
    mi300x(tmp_path, gpus=1, compute="CPX")
    shutil.rmtree(tmp_path / "sys/devices/platform/amdgpu_xcp_2")
    assert first(tmp_path).partitions[3].device_nodes == ("/dev/kfd", "/dev/dri/renderD131")


def test_two_functions_of_one_slot_are_two_gpus(tmp_path: Path) -> None:
    tree = mi300x(tmp_path, gpus=1)
    other = tree.pci("0000:0c:00.1", behind="pci0000:0a/0000:0a:01.0", driver="amdgpu", vendor="0x1002")
    tree.link("sys/module/amdgpu/drivers/pci:amdgpu/0000:0c:00.1", other)
    kfd = tmp_path / "sys/class/kfd/kfd/topology/nodes"
    said = (kfd / "2/properties").read_text()
    tree.file("sys/class/kfd/kfd/topology/nodes/3/properties", said.replace("location_id 3072", "location_id 3073"))
    assert [(gpu.id, gpu.partitions, gpu.readings.error) for gpu in poll(tmp_path).devices] == [
        ("0000:0c:00.0", (), None),
        ("0000:0c:00.1", (), None),
    ]


def test_links_are_those_of_gpus_however_they_are_cut(tmp_path: Path) -> None:
    mi300x(tmp_path, gpus=3, compute="CPX")
    assert [[link.to for link in gpu.links] for gpu in poll(tmp_path).devices] == [
        [amd_bus_id(1), amd_bus_id(2)],
        [amd_bus_id(0), amd_bus_id(2)],
        [amd_bus_id(0), amd_bus_id(1)],
    ]


def test_pcie_paths_and_numa_are_reported(tmp_path: Path) -> None:
    mi300x(tmp_path)
    paths = {each.to: each.path for each in first(tmp_path).pcie}
    assert paths[amd_bus_id(1)] is PciePath.NODE
    assert paths[amd_bus_id(4)] is PciePath.SYSTEM


@cases(("version", "name"), (90402, "gfx942"), (90010, "gfx90a"), (110001, "gfx1101"), (0, ""))
def test_architectures_are_called_as_compilers_call_them(version: int, name: str) -> None:
    assert gfx_name(version) == name


def test_uncorrectable_errors_pages_and_heat_are_readings(tmp_path: Path) -> None:
    mi300x(tmp_path, gpus=1)
    well = first(tmp_path).readings
    assert (well.ecc_uncorrectable_volatile, well.remap_pending, well.remap_failure) == (0, False, False)
    assert (well.thermal_slowdown, well.temperature_celsius, well.power_milliwatts) == (False, 52, 137_000)
    assert well.utilization_percent is None, "telemetry is off"
    here = folder(tmp_path, 0)
    (here / "ras/umc_err_count").write_text("ue: 2\nce: 9\n")
    (here / "ras/gpu_vram_bad_pages").write_text("0x00000001 : 0x00001000 : R\n0x00000002 : 0x00001000 : P\n")
    (here / "hwmon/hwmon0/temp2_input").write_text("105000\n")
    bad = poll(tmp_path, telemetry=True).devices[0].readings
    assert (bad.ecc_uncorrectable_volatile, bad.remap_pending, bad.remapped_uncorrectable) == (2, True, 1)
    assert (bad.thermal_slowdown, bad.temperature_celsius) == (True, 105)
    assert (bad.utilization_percent, bad.memory_used_bytes, bad.sm_clock_mhz) == (7, 1 << 30, 132)


def test_who_uses_a_gpu_is_what_kfd_says_of_processes_that_have_memory_of_it(tmp_path: Path) -> None:
    mi300x(tmp_path, gpus=2)
    kfd = tmp_path / "sys/class/kfd/kfd"
    for node, gpu_id in ((2, 51111), (3, 52222)):
        (kfd / f"topology/nodes/{node}/gpu_id").write_text(f"{gpu_id}\n")

    def used() -> list[tuple[int | None, int | None, int | None]]:
        source = AmdSource(system=System(tmp_path), use=True)
        readings = [each.readings for each in source.poll().devices]
        return [(each.processes, each.memory_allocated_bytes, each.utilization_percent) for each in readings]

    assert used() == [(None, None, 7), (None, None, 7)], "a kernel before 5.8"
    for pid, of_first, of_second in ((4711, 1 << 30, 0), (4712, 1 << 20, 0)):
        (kfd / f"proc/{pid}").mkdir(parents=True)
        (kfd / f"proc/{pid}/vram_51111").write_text(f"{of_first}\n")
        (kfd / f"proc/{pid}/vram_52222").write_text(f"{of_second}\n")
    assert used() == [(2, (1 << 30) + (1 << 20), 7), (0, 0, 7)]
    assert poll(tmp_path).devices[0].readings.processes is None, "nothing asks for it"


@pytest.mark.parametrize("node", ["kfd", "dri/card0", "dri/renderD129"])
def test_a_device_node_that_is_missing_is_a_reason(tmp_path: Path, node: str) -> None:
    mi300x(tmp_path, gpus=1, compute="CPX")
    (tmp_path / "dev" / node).unlink()
    assert first(tmp_path).readings.conditions == (NODE_MISSING,)


def test_a_gpu_that_kfd_does_not_know_is_an_error_of_that_gpu_alone(tmp_path: Path) -> None:
    mi300x(tmp_path, gpus=2)
    shutil.rmtree(tmp_path / "sys/class/kfd/kfd/topology/nodes/2")
    errors = [gpu.readings.error for gpu in poll(tmp_path).devices]
    assert "KFD" in (errors[0] or "")
    assert errors[1] is None


def test_a_gpu_given_to_another_driver_is_no_longer_listed_and_comes_back(tmp_path: Path) -> None:
    mi300x(tmp_path, gpus=2)
    link = tmp_path / "sys/module/amdgpu/drivers/pci:amdgpu" / amd_bus_id(1)
    target = link.readlink()
    link.unlink()
    assert [gpu.id for gpu in poll(tmp_path).devices] == [amd_bus_id(0)]
    link.symlink_to(target)
    assert len(poll(tmp_path).devices) == 2


def test_a_gpu_that_its_driver_could_not_take_is_named(tmp_path: Path) -> None:
    mi300x(tmp_path, gpus=2)
    (tmp_path / "sys/module/amdgpu/drivers/pci:amdgpu" / amd_bus_id(1)).unlink()
    (folder(tmp_path, 1) / "driver").unlink()
    facts = poll(tmp_path)
    assert (len(facts.devices), facts.accelerators_on_bus) == (1, 2)
    [problem] = facts.problems
    assert (problem.code, problem.message.split(": ")[0]) == ("DriverUnbound", amd_bus_id(1))


def test_without_the_driver_the_bus_still_shows_that_there_are_gpus(tmp_path: Path) -> None:
    mi300x(tmp_path, gpus=2)
    shutil.rmtree(tmp_path / "sys/module/amdgpu")
    facts = poll(tmp_path)
    assert (facts.driver.state, facts.devices, facts.accelerators_on_bus) == (DriverState.NOT_LOADED, (), 2)
    assert facts.problems[0].code == "DriverNotLoaded"
