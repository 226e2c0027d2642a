"""AMD's (Xilinx's) Alveo cards, by the user functions that containers get."""

from __future__ import annotations

from nodedevices_probe.fpga import attributes as fpga
from nodedevices_probe.simulated.boards.board import Board, loaded

BOARDS = {
    "u250": Board(
        type=fpga.FPGA,
        vendor=fpga.VENDOR,
        driver=loaded("xocl", "2.16.204"),
        extra={
            fpga.PCI_VENDOR: "10ee",
            fpga.DEVICE_ID: "5005",
            fpga.SHELL: "xilinx_u250_gen3x16_xdma_shell_4_1",
            fpga.TIMESTAMP: "1623351600",
            fpga.DEVICE_TYPE: "u250",
        },
    ),
}
