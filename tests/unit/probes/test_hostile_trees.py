"""Whatever stands below /sys, /proc and /dev: a probe writes a good line, and neither raises nor waits."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nodedevices_plugin.inputs.reader import parse_line
from nodedevices_probe.amd.probe import AmdSource
from nodedevices_probe.intel.probe import IntelSource
from nodedevices_probe.loop import Facts, LineLoop, Source
from nodedevices_probe.roots import MAX_BYTES, MAX_ENTRIES, Roots
from nodedevices_probe.sysfs import System
from support.trees import amd_bus_id, flex, mi300x

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
)


def line(source: Source) -> Facts:
    """What was found, once it has proved to be a line that the agent accepts."""
    written: list[bytes] = []
    facts = LineLoop(source=source, write=written.append, boot_id="b").once()
    parse_line(written[0])
    return facts


def amd(root: Path) -> Source:
    return AmdSource(system=System(root), telemetry=True)


def intel(root: Path) -> Source:
    return IntelSource(system=System(root))


PROBES: dict[str, Callable[[Path], Source]] = {"amd": amd, "intel": intel}


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        "amd": mi300x(tmp_path_factory.mktemp("amd"), gpus=2, compute="CPX").root,
        "intel": flex(tmp_path_factory.mktemp("intel"), gpus=2).root,
    }


@pytest.mark.parametrize("probe", PROBES)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), value=st.sampled_from(ODD))
def test_files_of_any_content_are_one_good_line(machines: dict[str, Path], probe: str, seed: int, value: str) -> None:
    machine = machines[probe]
    chosen = random.Random(seed)
    files = sorted(path for path in machine.rglob("*") if path.is_file() and not path.is_symlink())
    before = {path: path.read_bytes() for path in chosen.sample(files, min(len(files), 30))}
    try:
        for path in before:
            path.write_text(value)
        assert len(line(PROBES[probe](machine)).devices) == 2
    finally:
        for path, content in before.items():
            path.write_bytes(content)


def spoil_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def spoil_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def spoil_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def spoil_absolute_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("spoil", [spoil_fifo, spoil_loop, spoil_folder, spoil_absolute_link])
@pytest.mark.parametrize("file", ["numa_node", "product_name", "ras/umc_err_count", "hwmon/hwmon0/temp1_input"])
def test_what_is_no_file_is_not_known(tmp_path: Path, spoil: Callable[[Path], None], file: str) -> None:
    mi300x(tmp_path, gpus=2)
    spoil(tmp_path / "sys/bus/pci/devices" / amd_bus_id(0) / file)
    assert len(line(amd(tmp_path)).devices) == 2


def test_folders_of_any_size_and_names_of_any_characters_are_bounded(tmp_path: Path) -> None:
    mi300x(tmp_path, gpus=1)
    for number in range(MAX_ENTRIES + 200):
        (tmp_path / f"sys/devices/platform/amdgpu_xcp_{number}").mkdir(parents=True)
    for name in ("0000:0c:00.0\x1b[2J", "..hidden", "0000:ff:1f.7", "é"):
        (tmp_path / "sys/module/amdgpu/drivers/pci:amdgpu" / name).symlink_to("/nowhere")
    facts = line(amd(tmp_path))
    assert [each.id for each in facts.devices] == [amd_bus_id(0), "0000:ff:1f.7"]
    assert facts.devices[1].readings.error is not None
    assert len(Roots(tmp_path).names("sys/devices/platform")) == MAX_ENTRIES


def test_names_come_in_natural_order(tmp_path: Path) -> None:
    for name in ("card10", "card2", "renderD128", "card0-DP-1"):
        (tmp_path / name).mkdir()
    assert Roots(tmp_path).names(".") == ("card0-DP-1", "card2", "card10", "renderD128")


def test_a_file_is_read_up_to_a_limit_and_a_device_that_leaves_meanwhile_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "long").write_text("x" * 3 * MAX_BYTES)
    assert len(Roots(tmp_path).read("long")) == MAX_BYTES
    assert Roots(tmp_path).read("gone") == Roots(tmp_path).link("gone") == ""
    assert Roots(tmp_path).names("gone") == ()
