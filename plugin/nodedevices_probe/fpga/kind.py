"""The command `nodedevices-probe fpga` and its flags."""

from __future__ import annotations

from nodedevices_probe.kind import DRIVER_ROOT, ProbeKind, add_driver_root
from nodedevices_probe.node.presence import any_of, exists, on_pci

_CLASSES, _DRIVERS = ("0x1200",), ("xocl", "xclmgmt")

FPGA = ProbeKind(
    name="fpga",
    help="FPGA cards and media accelerators of Xilinx (AMD), by XRT's drivers and ama_transcoder",
    add_arguments=add_driver_root,
    reads="nodedevices_probe.fpga.probe",
    passed_on={DRIVER_ROOT: DRIVER_ROOT},
    opens=frozenset({DRIVER_ROOT}),
    present=any_of(
        on_pci("0x10ee", _CLASSES, _DRIVERS),
        on_pci("0x13fe", _CLASSES, _DRIVERS),
        on_pci("0x3475", _CLASSES, _DRIVERS),
        on_pci("0x1d0f", (), _DRIVERS),  # AWS has other accelerators, too
        exists("sys/module/ama_transcoder"),
    ),
    auto_by=("fpga-names-file",),
)
