"""The command of each kind of probe: flags, and a line of a whole machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from nodedevices_probe.node.sysfs import NODE_MISSING
from nodedevices_probe.protocol import Snapshot
from support.fpga_trees import alveo, fpga_bus_id
from support.probes import ended, once
from support.trees import FLEX_170, MAX_1550, flex, mi300x


def test_device_nodes_are_looked_for_where_the_hosts_dev_is_mounted(tmp_path: Path) -> None:
    mi300x(tmp_path / "host", gpus=1)
    (tmp_path / "root").mkdir()
    (tmp_path / "root/sys").symlink_to(tmp_path / "host/sys")
    for mounted, conditions in (("nowhere", (NODE_MISSING,)), ("host", ())):
        line = once("amd", f"--root={tmp_path / 'root'}", f"--driver-root-ctr-path={tmp_path / mounted}")
        assert line.devices[0].readings.conditions == conditions


def largest(line: Snapshot) -> bool:
    return (len(line.devices), sum(len(each.partitions) for each in line.devices)) == (8, 64)


def test_a_largest_machine_is_one_good_line() -> None:
    assert largest(once("simulated", "--profile=mi300x-cpx x 8"))


@pytest.mark.long  # its sysfs has eight thousand files
def test_a_largest_machine_is_read_whole(tmp_path: Path) -> None:
    mi300x(tmp_path, compute="CPX", memory="NPS4")
    assert largest(once("amd", f"--root={tmp_path}"))


def test_fpga_cards_are_one_line(tmp_path: Path) -> None:
    alveo(tmp_path)
    assert [each.id for each in once("fpga", f"--root={tmp_path}").devices] == [fpga_bus_id(0), fpga_bus_id(1)]


def test_what_stands_there_and_is_no_device_is_a_reason_on_a_real_machine(tmp_path: Path) -> None:
    folder = tmp_path / "dev"
    folder.mkdir()
    (folder / "a").write_text("no device")
    (folder / "b").symlink_to("/dev/null")
    file = tmp_path / "generic.yaml"
    file.write_text(
        "[{name: a, paths: [{path: /dev/a}]}, {name: b, paths: [{path: /dev/b}]}, {name: c, paths: [{path: '/dev/*'}]}]"
    )
    line = once("generic", f"--file={file}", f"--driver-root-ctr-path={tmp_path}")
    assert {each.id: each.readings.conditions for each in line.devices} == {
        "dev-a": ("deviceNodeMissing",),
        "dev-b": (),
    }
    assert [each.code for each in line.problems] == ["UsedTwice"]


def test_the_file_of_configured_devices_is_checked(tmp_path: Path) -> None:
    file = tmp_path / "f"
    arguments = ("generic", f"--root={tmp_path}", f"--file={file}")
    file.write_text("[{preset: gpu}]")
    done = ended(*arguments, "--once")
    assert done.code == 1
    assert "devices[0].preset: 'gpu' is not allowed; give one of fuse, tun, kvm" in done.err
    file.write_text("[{preset: kvm, required: true}]")
    assert [each.id for each in once(*arguments).devices] == ["dev-kvm"]


def test_models_are_allowed_or_denied_by_device_id(tmp_path: Path) -> None:
    flex(tmp_path)
    for flags, found in (
        (["--allow-ids=0x56C0"], 2),
        ([f"--allow-ids={MAX_1550}"], 0),
        ([f"--deny-ids={MAX_1550}, {FLEX_170}"], 0),
        ([], 2),
    ):
        assert len(once("intel", f"--root={tmp_path}", *flags).devices) == found, flags


def test_wrong_lists_are_explained() -> None:
    for flags, complaint in (
        (["--deny-ids=56c0"], "argument --deny-ids: '56c0' is not allowed; give PCI device ids, such as 0x49c5,0x56c0"),
        (["--allow-ids=0x1", "--deny-ids=0x2"], "not allowed with argument"),
    ):
        done = ended("intel", "--once", *flags)
        assert (done.code, complaint in done.err) == (2, True), done.err
