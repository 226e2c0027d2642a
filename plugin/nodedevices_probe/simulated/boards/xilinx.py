"""AMD's (Xilinx's) Alveo cards, by the user functions that containers get."""

from __future__ import annotations

from nodedevices_probe.simulated.boards.board import Board, loaded

BOARDS = {
    "u250": Board(
        type="fpga",
        vendor="xilinx",
        driver=loaded("xocl", "2.16.204"),
        extra={
            "deviceID": "5005",
            "shell": "xilinx_u250_gen3x16_xdma_shell_4_1",
            "timestamp": "0x60e7b54c",
        },
    ),
}
