"""Whatever stands below /sys, /proc and /dev: a probe writes a good line, and neither raises nor waits."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from nodedevices_probe.amd.probe import AmdSource
from nodedevices_probe.fpga.probe import FpgaSource
from nodedevices_probe.intel.probe import IntelSource
from nodedevices_probe.loop import Source
from nodedevices_probe.nic.probe import NicSource
from nodedevices_probe.node.roots import MAX_BYTES, MAX_ENTRIES, Roots
from nodedevices_probe.node.sysfs import System
from support.changing_roots import SystemOf, VanishingRoots
from support.fpga_trees import alveo, fpga_bus_id, fpga_slot, ma35, u30
from support.fuzzing import scaled
from support.nic_trees import Nics, connectx_7_pair, e810, soft_roce, sriov
from support.sources import NO_FILES, line_of
from support.trees import Tree, amd_bus_id, flex, intel_bus_id, mi300x

DEVICES = "sys/bus/pci/devices"
ODD = (
    "",
    "-1",
    "N/A",
    "999999999999999999999999999",
    "0x",
    "1_000",
    "ue: x",
    "a" * 10_000,
    "\x00\x1b[31m",
    "é\u202e",
    "1 2 3",
    "a/b\n../..",
    "= = =",
)


def amd(root: Path) -> Source:
    return AmdSource(system=System(root), telemetry=True)


def intel(root: Path) -> Source:
    return IntelSource(system=System(root))


def nic(root: Path) -> Source:
    return NicSource(system=System(root), plain=True)


def fpga(root: Path) -> Source:
    return FpgaSource(system=System(root))


PROBES: dict[str, Callable[[Path], Source]] = {
    "amd": amd,
    "intel": intel,
    "nic": nic,
    "nic-functions": nic,
    "nic-soft": nic,
    "nic-aux": nic,
    "fpga": fpga,
}


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        "amd": mi300x(tmp_path_factory.mktemp("amd"), gpus=2, compute="CPX").root,
        "intel": flex(tmp_path_factory.mktemp("intel"), gpus=2).root,
        "nic": connectx_7_pair(tmp_path_factory.mktemp("nic")).root,
        "nic-functions": sriov(tmp_path_factory.mktemp("functions"), functions=4).root,
        "nic-soft": soft_roce(tmp_path_factory.mktemp("soft")).root,
        "nic-aux": e810(tmp_path_factory.mktemp("aux")).root,
        "fpga": xilinx(tmp_path_factory.mktemp("fpga")),
    }


def xilinx(root: Path) -> Path:
    u30(root)
    alveo(root, cards=2, first=4, qdma=True)
    ma35(root)
    return root


DEVICES_OF = {"amd": 2, "intel": 2, "nic": 2, "nic-functions": 5, "nic-soft": 2, "nic-aux": 2}


@pytest.mark.parametrize("probe", PROBES)
@settings(max_examples=scaled(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), value=st.sampled_from(ODD))
def test_files_of_any_content_are_one_good_line(machines: dict[str, Path], probe: str, seed: int, value: str) -> None:
    machine = machines[probe]
    chosen = random.Random(seed)
    files = sorted(path for path in machine.rglob("*") if path.is_file() and not path.is_symlink())
    before = {path: path.read_bytes() for path in chosen.sample(files, min(len(files), 30))}
    try:
        for path in before:
            path.write_text(value)
        found = len(line_of(PROBES[probe](machine)).devices)
        # A card of network cards without its PCI class is none that this probe knows, unless it has RDMA.
        spoiled = sum(path.name == "class" for path in before)
        if probe != "fpga":  # of Xilinx' cards these files say which of them are one
            assert DEVICES_OF[probe] - spoiled * (probe.startswith("nic")) <= found <= DEVICES_OF[probe]
    finally:
        for path, content in before.items():
            path.write_bytes(content)


def spoil(path: Path, kind: str) -> None:
    path.unlink()
    NO_FILES[kind](path)


@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_file_is_not_known(tmp_path: Path, kind: str) -> None:
    mi300x(tmp_path, gpus=2)
    for file in ("numa_node", "product_name", "ras/umc_err_count", "hwmon/hwmon0/temp1_input"):
        spoil(tmp_path / DEVICES / amd_bus_id(0) / file, kind)
        assert len(line_of(amd(tmp_path)).devices) == 2, file


@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_file_is_not_known_of_a_network_card(tmp_path: Path, kind: str) -> None:
    for number, file in enumerate(
        (
            "bus/pci/devices/0000:17:00.0/vendor",
            "bus/pci/devices/0000:17:00.0/acpi_index",
            "class/infiniband/mlx5_0/node_type",
            "class/infiniband/mlx5_0/ports/1/state",
            "class/infiniband/mlx5_0/ports/1/pkeys/0",
            "class/infiniband_verbs/uverbs0/ibdev",
            "class/net/ib0/type",
            "class/net/ib0/flags",
            "module/ib_core/parameters/netns_mode",
        )
    ):
        root = connectx_7_pair(tmp_path / str(number)).root
        spoil(root / "sys" / file, kind)
        assert [each.id for each in line_of(nic(root)).devices] == ["0000:17:00.0", "0000:17:00.1"], file


def test_links_to_anywhere_and_names_of_any_kind_are_no_network_card(tmp_path: Path) -> None:
    nics = connectx_7_pair(tmp_path)
    good = line_of(nic(tmp_path)).devices
    for folder in ("class/net", "class/infiniband", "bus/auxiliary/devices", "bus/vdpa/devices", "bus/pci/devices"):
        for name, target in (
            ("loop", "loop"),
            ("up", "../../../../../../../.."),
            ("esc\x1b[2J", "/nowhere"),
            ("0000:ff:1f.7", "0000:ff:1f.7"),
            ("mlx5_core.sf.7", "../../../devices/pci0000:16/0000:ff:1f.7/mlx5_core.sf.7"),
            ("long" * 50, "x" * 4000),
        ):
            (tmp_path / "sys" / folder).mkdir(parents=True, exist_ok=True)
            (tmp_path / "sys" / folder / name).symlink_to(target)
    facts = line_of(nic(tmp_path))
    assert [each for each in facts.devices if each.pci_bus_id in {"0000:17:00.0", "0000:17:00.1"}] == list(good)
    nics.unplug("sys/devices/pci0000:16/0000:16:07.0/0000:17:00.0")
    assert line_of(nic(tmp_path)).devices[0].id == "0000:17:00.1"


def test_thousands_of_interfaces_functions_and_rdma_devices_are_bounded(tmp_path: Path) -> None:
    nics = Nics(tmp_path)
    folder = nics.card("0000:17:00.0", vendor="0x15b3", device="0x1021", driver="mlx5_core", sriov_numvfs=10**6)
    for number in range(MAX_ENTRIES + 200):
        (tmp_path / "sys/class/net").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"sys/class/net/veth{number}").symlink_to(f"../../devices/virtual/net/veth{number}")
    for number in range(600):
        (tmp_path / "sys/class/infiniband").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"sys/class/infiniband/rxe{number}").symlink_to(f"../../devices/virtual/infiniband/rxe{number}")
        (tmp_path / folder / f"virtfn{number}").symlink_to(f"../0000:18:{number % 32:02x}.0")
    facts = line_of(nic(tmp_path))
    assert (len(facts.devices), [each.code for each in facts.problems]) == (256, ["NoInterfaces", "TooManyDevices"])


def test_folders_of_any_size_and_names_of_any_characters_are_bounded(tmp_path: Path) -> None:
    mi300x(tmp_path, gpus=1)
    for number in range(MAX_ENTRIES + 200):
        (tmp_path / f"sys/devices/platform/amdgpu_xcp_{number}").mkdir(parents=True)
    for name in ("0000:0c:00.0\x1b[2J", "..hidden", "0000:ff:1f.7", "é"):
        (tmp_path / "sys/module/amdgpu/drivers/pci:amdgpu" / name).symlink_to("/nowhere")
    facts = line_of(amd(tmp_path))
    assert [each.id for each in facts.devices] == [amd_bus_id(0), "0000:ff:1f.7"]
    assert facts.devices[1].readings.error is not None
    assert len(Roots(tmp_path).names("sys/devices/platform")) == MAX_ENTRIES


def unplug(root: Path, bus_id: str) -> None:
    """The kernel takes a GPU's entries one after the other, its driver's first."""
    for link in ("sys/module/amdgpu/drivers/pci:amdgpu", "sys/bus/pci/drivers/i915", "sys/bus/pci/devices"):
        (root / link / bus_id).unlink(missing_ok=True)
    for folder in (root / "sys/devices").rglob(bus_id):
        shutil.rmtree(folder)
    for node in (root / "sys/class/kfd/kfd/topology/nodes").glob("*"):
        if f"location_id {int(bus_id[5:7], 16) << 8}\n" in (node / "properties").read_text():
            shutil.rmtree(node)


@pytest.mark.parametrize(
    ("make", "probe", "bus_id"),
    [(partial(mi300x, gpus=2), AmdSource, amd_bus_id), (partial(flex, gpus=2), IntelSource, intel_bus_id)],
)
def test_a_gpu_that_leaves_while_it_is_read_is_reported_whole_or_not_at_all(
    tmp_path: Path,
    make: Callable[[Path], Tree],
    probe: type[AmdSource | IntelSource],
    bus_id: Callable[[int], str],
) -> None:
    gone, stays, left = bus_id(0), bus_id(1), [10**6]
    whole = make(tmp_path / "whole").root
    probe(system=SystemOf(whole, below=VanishingRoots(whole, left=left))).poll()
    reads_of_a_poll = 10**6 - left[0]
    for reads in (*range(1, reads_of_a_poll, reads_of_a_poll // 9), reads_of_a_poll):
        root = make(tmp_path / str(reads)).root
        before = {each.id: each for each in probe(system=System(root)).poll().devices}
        roots = VanishingRoots(root, left=[reads], unplug=partial(unplug, root, gone))
        now = {each.id: each for each in line_of(probe(system=SystemOf(root, below=roots))).devices}
        assert (now[stays].extra, now[stays].capacity) == (before[stays].extra, before[stays].capacity), reads
        assert now.get(gone, before[gone]) == before[gone], reads


def test_names_come_in_natural_order(tmp_path: Path) -> None:
    for name in ("card10", "card2", "renderD128", "card0-DP-1"):
        (tmp_path / name).mkdir()
    assert Roots(tmp_path).names(".") == ("card0-DP-1", "card2", "card10", "renderD128")


def test_a_file_is_read_up_to_a_limit_and_a_device_that_leaves_meanwhile_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "long").write_text("x" * 3 * MAX_BYTES)
    assert len(Roots(tmp_path).read("long")) == MAX_BYTES
    assert Roots(tmp_path).read("gone") == Roots(tmp_path).link("gone") == ""
    assert Roots(tmp_path).names("gone") == ()


# --- Xilinx' cards: one card's error or absence, never another's ---------------------------------------------------
@settings(max_examples=scaled(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), value=st.sampled_from(ODD))
def test_what_is_wrong_with_one_card_is_that_card_s_alone(machines: dict[str, Path], seed: int, value: str) -> None:
    machine = machines["fpga"]
    good = {each.id: each for each in line_of(fpga(machine)).devices}
    chosen = random.Random(seed)
    slot = (machine / DEVICES / fpga_bus_id(4)).resolve().parent
    files = [path for path in sorted(slot.rglob("*")) if path.is_file() and fpga_slot(4) in str(path)]
    before = {path: path.read_bytes() for path in chosen.sample(files, 4)}
    try:
        for path in before:
            path.write_text(value)
        now = {each.id: each for each in line_of(fpga(machine)).devices}
    finally:
        for path, content in before.items():
            path.write_bytes(content)
    others = [each for each in good if each != fpga_bus_id(4)]
    assert [now[each].readings for each in others] == [good[each].readings for each in others]


@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_file_is_not_known_of_one_fpga_alone(tmp_path: Path, kind: str) -> None:
    alveo(tmp_path)
    for file in ("rom.u.0/VBNV", "rom.u.0/timestamp", "logic_uuids", "xmc.u.0/serial_num", "vendor"):
        spoil(tmp_path / DEVICES / fpga_bus_id(0) / file, kind)
        found = {each.id: each for each in line_of(fpga(tmp_path)).devices}
        assert found[fpga_bus_id(1)].readings.error is None, file


def test_a_card_that_vanishes_while_it_is_read_is_its_own_error(tmp_path: Path) -> None:
    alveo(tmp_path)
    link = tmp_path / DEVICES / fpga_bus_id(0)
    link.unlink()
    link.symlink_to("/nowhere")
    found = {each.id: each.readings.error for each in line_of(fpga(tmp_path)).devices}
    assert found[fpga_bus_id(1)] is None


def test_folders_of_any_size_and_names_of_any_characters_are_no_fpga(tmp_path: Path) -> None:
    alveo(tmp_path, cards=1)
    folder = tmp_path / DEVICES / fpga_bus_id(0)
    for number in range(MAX_ENTRIES + 100):
        (folder / f"junk{number}").touch()
    for name in ("0000:3b:00.0\x1b[2J", "..hidden", "é", "zzzz:ff:1f.7"):
        (tmp_path / DEVICES / name).symlink_to("/nowhere")
    for name in ("ama_transcoder", "ama_transcoder99999", "ama_transcoder-1", "ama_transcoder7x"):
        (tmp_path / "sys/class/misc" / name).mkdir(parents=True)
    assert [each.id for each in line_of(fpga(tmp_path)).devices] == [fpga_bus_id(0)]


def test_two_transcoders_with_one_address_are_one_device(tmp_path: Path) -> None:
    ma35(tmp_path)
    (tmp_path / "sys/devices/virtual/misc/ama_transcoder1/bus_id").write_text("0000:61:00.0\n")
    ids = [each.id for each in line_of(fpga(tmp_path)).devices]
    assert ids == ["0000:61:00.0", "0000:62:00.0"]
