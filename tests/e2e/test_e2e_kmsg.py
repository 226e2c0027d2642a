"""The component kmsg on real kubelets: a container with the capability SYSLOG alone reads the kernel's log.

A program cannot write a line that the kernel calls its own. So the lines of drivers are in a file in the log's place,
and into the log itself goes one that must not be believed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.cluster import GPU
from support.overlay import SIMULATED_MOUNT, container_patch, installed_with, write
from support.rig_cluster import RigCluster

pytestmark = [pytest.mark.e2e, pytest.mark.long]

LOG = f"{SIMULATED_MOUNT['mountPath']}/kmsg.log"
SOCKET = "/run/nodedevices-kmsg/kmsg.sock"
SWITCH = "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0):"
HARMLESS = f"{SWITCH} 20001, Non-fatal, Link 28 TX Replay Error"
FATAL = f"{SWITCH} 12020, Fatal, Link 28 egress sequence ID error"


@contextmanager
def with_file(rig: RigCluster) -> Iterator[None]:
    """The probe reads a file of each node in the place of its log."""
    patch = container_patch("nodedevices-agent", "kmsg")
    [container] = patch["spec"]["template"]["spec"]["containers"]
    container["command"] = ["nodedevices-probe", "kmsg", "--listen", f"unix:{SOCKET}", "--kmsg-path", LOG]
    container["volumeMounts"] = [SIMULATED_MOUNT]
    try:
        with installed_with(rig, "kmsg", patches=[patch]):
            yield
    finally:
        rig.shell(rig.a, f"rm -f {LOG}")


def probe(rig: RigCluster, node: str) -> dict[str, Any]:
    probes = rig.nodedevices(node)["status"]["probes"]
    return next((each for each in probes if each["name"] == "kmsg"), {})


def log(rig: RigCluster, *texts: str) -> None:
    lines = [f"<3>[{time.monotonic() + number / 1e3:12.6f}] {text}" for number, text in enumerate(texts)]
    write(rig, rig.a, LOG, "\n".join([*lines, ""]))


def test_a_container_with_the_capability_syslog_alone_reads_the_log_and_believes_no_program(rig: RigCluster) -> None:
    address = rig.device(rig.a, 0)["attributes"]["pciBusID"]
    forged = f"<3>nvidia {address}: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)"
    with installed_with(rig, "kmsg"):
        rig.until("the probe reports", lambda: probe(rig, rig.a).get("state") == "Ready")
        Path("/dev/kmsg").write_text(forged)
        assert "KernelLog" not in rig.condition("nodedevices", rig.a, "Ready")["message"]
        rig.never(
            "a program's line is believed",
            lambda: [one for one in rig.devices(rig.a).values() if one["health"]["state"] != "Healthy"],
            seconds=5,
        )
        assert rig.node_count(rig.a, GPU) == 8


def test_a_switch_that_fails_the_whole_fabric_takes_the_gpus_behind_it_out_of_service(rig: RigCluster) -> None:
    with with_file(rig):
        rig.until(
            "a log that is not there is said",
            lambda: "KernelLogUnreadable" in rig.condition("nodedevices", rig.a, "Ready")["message"],
        )
        log(rig, "nothing")
        rig.until(
            "the log is read",
            lambda: "KernelLogUnreadable" not in rig.condition("nodedevices", rig.a, "Ready")["message"],
        )
        log(rig, "nothing", HARMLESS)
        counted = {"address": "0000:c1:00.0", "kind": "sxid", "code": "20001"}
        rig.until("it is counted", lambda: rig.metric(rig.a, "nodedevices_kernel_log_events_total", **counted) == 1)
        assert rig.summary(rig.a)["healthy"] == 8
        log(rig, "nothing", HARMLESS, FATAL)
        rig.until("the kubelet has none to give", lambda: rig.node_count(rig.a, GPU) == 0)
        assert {one["health"]["reason"] for one in rig.devices(rig.a).values()} == {"Sxid12020"}
        assert rig.summary(rig.b)["healthy"] == 4
        rig.confirm_recovered(rig.a)
        rig.until("a person's word ends it", lambda: rig.node_count(rig.a, GPU) == 8)
