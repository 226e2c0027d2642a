"""AMD's GPUs: names that the probe and the agent's vendor share, and the command `nodedevices-probe amd`."""

from __future__ import annotations

from argparse import ArgumentParser

from nodedevices_probe.kind import DRIVER_ROOT, ProbeKind, add_driver_root, add_telemetry, on_pci
from nodedevices_probe.node.sysfs import COMPUTE_CLASSES

VENDOR = "amd"
EXPORTER_UNHEALTHY = "exporterUnhealthy"  # a condition: what AMD's device metrics exporter says
KFD_NODE = "/dev/kfd"  # which all programs open
PROFILE = "partitionProfile"  # cpx_nps4, as AMD's resources are called; of a GPU that can be partitioned


def _add_arguments(parser: ArgumentParser) -> None:
    add_driver_root(parser)
    add_telemetry(parser)


AMD = ProbeKind(
    name="amd",
    help="AMD GPUs and their compute partitions, by the kernel's amdgpu driver",
    add_arguments=_add_arguments,
    reads="nodedevices_probe.amd.probe",
    passed_on={DRIVER_ROOT: DRIVER_ROOT, "telemetry": "telemetry"},
    opens=frozenset({DRIVER_ROOT}),
    present=on_pci("0x1002", COMPUTE_CLASSES, drivers=("amdgpu",)),
)
