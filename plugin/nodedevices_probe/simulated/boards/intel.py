"""Intel's Data Center GPUs. The kernel has no name of a model, and so they have none here."""

from __future__ import annotations

from nodedevices_probe.intel import DRIVER, VENDOR
from nodedevices_probe.simulated.boards.board import Board, loaded

KERNEL = "6.8.0-45-generic"
WELL = {"thermal_slowdown": False}


def _gpu(driver: str, device_id: str, memory_mib: int) -> Board:
    return Board(
        vendor=VENDOR,
        driver=loaded(driver, KERNEL),
        brand="Intel",
        memory_mib=memory_mib,
        extra={DRIVER: driver, "deviceID": device_id},
        well=WELL,
    )


BOARDS = {
    "flex": _gpu("i915", "56c0", 14_248),  # Flex 170
    "pvc": _gpu("xe", "0bd5", 131_072),  # Max 1550
}
