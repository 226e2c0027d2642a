"""The nic probe's command: its flags, and what a pod's own sysfs does not show."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from nodedevices_plugin.inputs.reader import parse_line
from nodedevices_probe.loop import SourceFacts
from nodedevices_probe.nic.probe import NicSource
from nodedevices_probe.node.roots import Roots
from nodedevices_probe.node.sysfs import PCI_DEVICE, System
from support.nic_trees import connectx_7_pair, plain, sriov
from support.patience import PATIENCE_SECONDS
from support.probes import COMMAND, ended, once


def poll(root: Path, *, plain: bool = False) -> SourceFacts:
    return NicSource(system=System(root), plain=plain).poll()


def test_plain_cards_are_reported_on_request(tmp_path: Path) -> None:
    plain(tmp_path)
    assert poll(tmp_path).devices == ()
    (device,) = poll(tmp_path, plain=True).devices
    assert (device.id, device.vendor, device.extra["speedGbps"].integer) == ("0000:01:00.0", "intel", 1)
    for flags, count in (((), 0), (("--all",), 1)):
        assert len(once("nic", f"--root={tmp_path}", *flags).devices) == count


@pytest.mark.parametrize(
    ("gone", "required", "faulty"),
    [
        ("umad0", "rdma_cm,umad,uverbs", {"0000:17:00.0"}),
        ("issm0", "rdma_cm,umad,uverbs", set[str]()),
        ("issm0", "issm,uverbs", {"0000:17:00.0"}),
        ("rdma_cm", "rdma_cm,umad,uverbs", {"0000:17:00.0", "0000:17:00.1"}),
        ("rdma_cm", "uverbs", set[str]()),
        ("uverbs1", "none", set[str]()),
    ],
)
def test_a_missing_character_device_is_a_reason_of_those_that_require_it(
    tmp_path: Path, gone: str, required: str, faulty: set[str]
) -> None:
    connectx_7_pair(tmp_path)
    (tmp_path / "dev/infiniband" / gone).unlink()
    devices = once("nic", f"--root={tmp_path}", f"--rdma-required={required}").devices
    assert {each.id for each in devices if "deviceNodeMissing" in each.readings.conditions} == faulty
    if gone == "issm0" and not faulty:
        assert "/dev/infiniband/issm0" not in devices[0].device_nodes, "a container with it could not start"


def test_wrong_names_of_character_devices_are_explained() -> None:
    for value in ("ib_cm", "", "umad;uverbs", "rdma_cm,UMAD"):
        done = ended("nic", "--once", f"--rdma-required={value}")
        assert done.code == 2
        assert "is not allowed; give some of rdma_cm,umad,uverbs,issm,ucm, or none" in done.err


def test_the_hosts_sysfs_shows_what_a_containers_own_does_not(tmp_path: Path) -> None:
    host, own = tmp_path / "host", tmp_path / "own"
    sriov(host)
    sriov(own)
    for each in (own / "sys/class/net").glob("*"):
        each.unlink()
    assert [each.code for each in poll(own).problems] == ["NoInterfaces"]
    line = once("nic", f"--root={own}", f"--host-sys-ctr-path={host / 'sys'}")
    assert (line.problems, line.devices[0].extra["ifName"].string) == ((), "enp49s0np0")


IN_A_NAMESPACE = """
set -e
mount --make-rprivate /
mount --bind /sys {host}
mount -t sysfs none /sys
exec {command}
"""


def _own_namespaces() -> bool:
    """Whether this machine lets us have a network of our own, and has a card on PCI with an interface."""
    roots = Roots()
    links = (roots.target(f"sys/class/net/{each}") for each in roots.names("sys/class/net"))
    on_pci = any(PCI_DEVICE.fullmatch(part) for link in links for part in link)
    return on_pci and subprocess.run(["unshare", "-n", "-m", "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0 or not _own_namespaces(), reason="needs root and a NIC"
)
def test_in_the_network_of_a_pod_the_hosts_sysfs_shows_the_interfaces_of_this_machine(tmp_path: Path) -> None:
    found = []
    for flag in ("", f"--host-sys-ctr-path={tmp_path}"):
        script = IN_A_NAMESPACE.format(
            host=tmp_path, command=shlex.join([*COMMAND, "nic", "--once", "--all", *filter(None, [flag])])
        )
        done = subprocess.run(
            ["unshare", "-n", "-m", "sh", "-c", script], capture_output=True, timeout=PATIENCE_SECONDS, check=False
        )
        assert done.returncode == 0, done.stderr
        found.append(parse_line(done.stdout))
    without, with_it = found
    assert [each.code for each in without.problems] == ["NoInterfaces"]
    assert with_it.problems == ()
    assert any("ifName" in each.extra for each in with_it.devices)
