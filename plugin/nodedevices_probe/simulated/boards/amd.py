"""AMD's Instinct GPUs, whole or cut into compute partitions, all linked by XGMI."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from nodedevices_probe.amd import PROFILE, VENDOR
from nodedevices_probe.protocol import Driver, Partition
from nodedevices_probe.simulated.boards.board import Board, Details, Seat, attribute, identity, loaded

DRIVER = loaded("amdgpu", "6.12.12")
WELL: Mapping[str, Any] = {
    "remap_pending": False,
    "remap_failure": False,
    "remapped_uncorrectable": 0,
    "ecc_uncorrectable_volatile": 0,
    "thermal_slowdown": False,
}
SIMDS_OF_UNIT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class AmdBoard(Board):
    vendor: str = VENDOR
    driver: Driver = DRIVER
    brand: str = "AMD"
    device_id: str
    profile: str  # spx_nps1: compute and memory partitions
    parts: int = 1
    compute_units: int

    def details(self, seat: Seat, entry: Mapping[str, Any], place: str) -> Details:
        said: dict[str, str | bool] = {
            "deviceID": self.device_id,
            PROFILE: self.profile,
            "partitionable": True,
            "memoryPartitionable": True,
        }
        return Details(
            id=seat.bus_id,
            uuid=f"{identity(seat.node, seat.index).int >> 64:016x}",
            extra={name: attribute(value) for name, value in said.items()},
            partitions=tuple(
                Partition(
                    id=f"{seat.bus_id}-xcp-{number}",
                    profile=self.profile,
                    index=number,
                    capacity={"memory": f"{self.memory_mib // self.parts}Mi"}
                    | _units(self.compute_units // self.parts),
                )
                for number in range(self.parts if self.parts > 1 else 0)
            ),
        )


def _units(count: int) -> dict[str, str]:
    return {"computeUnits": str(count), "simds": str(count * SIMDS_OF_UNIT)}


_MI300X = AmdBoard(
    product_name="AMD Instinct MI300X OAM",
    architecture="gfx942",
    firmware="113-M3000100-103",
    memory_mib=196_592,
    capacity=_units(304),
    well=WELL,
    xgmi=True,
    device_id="74a1",
    profile="spx_nps1",
    compute_units=304,
)
BOARDS = {
    "mi300x": _MI300X,
    "mi300x-cpx": replace(_MI300X, profile="cpx_nps4", parts=8),
}
