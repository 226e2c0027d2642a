"""AMD's (Xilinx's) Alveo cards, by the user functions that containers get."""

from __future__ import annotations

from collections.abc import Mapping

from nodedevices_probe import fpga
from nodedevices_probe.simulated.boards.board import Board, Seat, identity, loaded


def _card(seat: Seat) -> Mapping[str, str]:
    return {
        fpga.SERIAL: f"XFL1{identity(seat.node, seat.index).hex[:8].upper()}",
        fpga.MANAGEMENT_FUNCTION: f"{seat.bus_id[:-1]}0",
    }


BOARDS = {
    "u250": Board(
        type=fpga.FPGA,
        vendor=fpga.VENDOR,
        driver=loaded("xocl", "2.16.204"),
        brand="Xilinx",
        product_name="ALVEO U250 PQ",
        function=1,  # 0 is the management function
        extra={
            fpga.PCI_VENDOR: "10ee",
            fpga.DEVICE_ID: "5005",
            fpga.SHELL: "xilinx_u250_gen3x16_xdma_shell_4_1",
            fpga.TIMESTAMP: "1623351600",
            fpga.SHELL_UUID: "12c8fafb0632499db1c0c6676271b8a6",
            fpga.DEVICE_TYPE: "u250",
        },
        more=_card,
    ),
}
