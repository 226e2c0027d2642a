"""The kernel's log about devices that other probes list: the kinds of events that its lines stand for, and the
command `nodedevices-probe kmsg` with its flags.

The probe writes them, and the vendors' parts of the agent read them back; no other module knows them. The kinds of a
switch are the line format's own (protocol.SWITCH_KINDS).
"""

from __future__ import annotations

from pathlib import Path

from nodedevices_probe.kind import ProbeKind

# NVIDIA. An XID itself is NVML's to report; here is what NVML does not say of it.
SXID = "sxid"  # an NVSwitch's error, "Non-fatal" in the driver's own words
SXID_FATAL = "sxid-fatal"
NVIDIA_OFF_BUS = "nvidia-off-bus"  # a GPU that did not answer when the driver was to take it
NVIDIA_PROBE_FAILED = "nvidia-probe-failed"
NVIDIA_INIT_FAILED = "nvidia-init-failed"
XID_DETAIL = "xid-detail"  # of 13: gpc, tpc, sm; of 74: link, and register1 to register7 where they are not 0

# mlx5
MLX5_STALLED = "mlx5-stalled"
MLX5_FATAL = "mlx5-fatal"
MLX5_RECOVERED = "mlx5-recovered"  # from one of the two before
MLX5_COMMAND_TIMEOUT = "mlx5-command-timeout"
MLX5_MODULE_HOT = "mlx5-module-hot"
MLX5_SLOT_POWER = "mlx5-slot-power"

# amdgpu
AMDGPU_RING_TIMEOUT = "amdgpu-ring-timeout"
AMDGPU_RESET = "amdgpu-reset"
AMDGPU_RESET_FAILED = "amdgpu-reset-failed"
AMDGPU_UNCORRECTABLE = "amdgpu-uncorrectable"

# PCIe's error reporting (AER), of any driver's device
PCIE_NON_FATAL = "pcie-non-fatal"
PCIE_FATAL = "pcie-fatal"


KMSG = ProbeKind(
    name="kmsg",
    help="no devices, but what the kernel's log says of those of other probes; needs the capability SYSLOG",
    flags={
        "kmsg-path": {
            "type": Path,
            "metavar": "F",
            "help": "read this file's end in the place of the kernel's log, for tests: lines as `dmesg --syslog --raw`"
            " prints them (default: the kernel's log)",
        }
    },
    reads="nodedevices_probe.kmsg.probe",
    interval="between two looks at the log",
    interval_seconds=1.0,
    lists_devices=False,
)
