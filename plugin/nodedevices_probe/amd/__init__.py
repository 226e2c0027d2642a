"""AMD's GPUs: names that the probe and the agent's vendor share, and the command `nodedevices-probe amd`."""

from __future__ import annotations

from nodedevices_probe.kind import DRIVER_ROOT, DRIVER_ROOT_FLAG, TELEMETRY_FLAG, ProbeKind, on_pci
from nodedevices_probe.node.sysfs import COMPUTE_CLASSES

VENDOR = "amd"
EXPORTER_UNHEALTHY = "exporterUnhealthy"  # a condition: what AMD's device metrics exporter says
KFD_NODE = "/dev/kfd"  # which all programs open
PROFILE = "partitionProfile"  # cpx_nps4, as AMD's resources are called; of a GPU that can be partitioned


AMD = ProbeKind(
    name="amd",
    help="AMD GPUs and their compute partitions, by the kernel's amdgpu driver",
    flags={**DRIVER_ROOT_FLAG, **TELEMETRY_FLAG},
    reads="nodedevices_probe.amd.probe",
    passed_on={DRIVER_ROOT: DRIVER_ROOT, "telemetry": "telemetry"},
    opens=frozenset({DRIVER_ROOT}),
    present=on_pci("0x1002", COMPUTE_CLASSES, drivers=("amdgpu",)),
)
