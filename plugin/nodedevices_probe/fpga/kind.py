"""What `nodedevices-probe fpga` takes."""

from __future__ import annotations

from nodedevices_probe.kind import Kind, add_driver_root

FPGA = Kind(
    name="fpga",
    help="FPGA cards and media accelerators of Xilinx (AMD), by XRT's drivers and ama_transcoder",
    add_arguments=add_driver_root,
    reads="nodedevices_probe.fpga.probe",
    passed_on={"driver-root-ctr-path": "driver-root-ctr-path"},
)
