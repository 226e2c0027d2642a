"""NVIDIA's boards, and what their devices have: MIG, NVLink, compute capability, `/dev/nvidia<minor>`.

Memory is what nvidia-smi shows as total on such a board. Ids are made from the node's name and the index.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nodedevices_common.quantity import MEBIBYTE

from nodedevices_probe import nvidia
from nodedevices_probe.protocol import SWITCH, Driver, Link
from nodedevices_probe.simulated.boards.board import Board, Details, Seat, identity, loaded
from nodedevices_probe.simulated.mig import partitions

DRIVER = loaded("nvidia", "570.148.08", "12.8")
CLIQUE = f"{uuid.uuid5(uuid.NAMESPACE_DNS, 'simulated.nodedevices.io')}.1"  # of boards whose NVLinks span machines
WELL: Mapping[str, Any] = {
    "recovery_action": "None",
    "remap_pending": False,
    "remap_failure": False,
    "ecc_uncorrectable_volatile": 0,
    "sram_threshold_exceeded": False,
    "thermal_slowdown": False,
    "hw_slowdown": False,
    "power_brake": False,
    "clocks_limited": False,
    "persistence_mode": True,
    "power_milliwatts": 70_000,
    "power_limit_milliwatts": 700_000,
    "power_default_limit_milliwatts": 700_000,
    "temperature_margin_celsius": 45,
    "temperature_slowdown_margin_celsius": -2,
    "switch_links_inactive": 0,
    "nvlink_generation": 4,
    "nvlink_megabytes_per_second": 26_562,
    "nvlink_errors_per_exabit": 0,
    "fabric_state": "Completed",
    "fabric_was_completed": True,
}
# A card without a switch has no fabric, and no links to one.
OF_FABRIC = frozenset(key for key in WELL if key.startswith(("switch_links_", "nvlink_", "fabric_")))
WELL_ALONE = {key: value for key, value in WELL.items() if key not in OF_FABRIC} | {"fabric_state": "NotSupported"}
WELL_A100 = {**WELL_ALONE, "switch_links_inactive": 0, "nvlink_generation": 3}
WELL_BLACKWELL = {**WELL, "nvlink_generation": 5, "nvlink_megabytes_per_second": 53_125}
# Keys of the file that only these have.
KEYS = ("computeCapability", "migCapable", "migEnabled", "mig", "nvlinksToSwitch")


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaBoard(Board):
    vendor: str = nvidia.VENDOR
    driver: Driver = DRIVER
    brand: str = "Nvidia"
    compute_capability: str = ""
    mig_capable: bool | None = False
    mig_multiprocessors: int | None = None  # of one compute slice
    nvlinks_to_switch: int = 0

    def details(self, seat: Seat, entry: Mapping[str, Any], place: str) -> Details:
        minor, mig = entry.get("minor", seat.index), entry.get("mig", [])
        to_switch = entry.get("nvlinksToSwitch", self.nvlinks_to_switch)
        return Details(
            id=f"GPU-{identity(seat.node, seat.index)}",
            minor=minor,
            extra=nvidia.attributes(
                compute_capability=entry.get("computeCapability", self.compute_capability),
                mig_capable=entry.get("migCapable", bool(mig) or self.mig_capable),
                mig_enabled=entry.get("migEnabled", bool(mig)),
            ),
            partitions=partitions(
                mig,
                place=f"{place}.mig",
                node=seat.node,
                index=seat.index,
                minor=minor,
                memory_bytes=entry.get("memoryBytes", self.memory_mib * MEBIBYTE),
                multiprocessors_per_slice=self.mig_multiprocessors,
                mig_minors=seat.mig_minors,
            ),
            links=(Link(kind="NVLink", to=SWITCH, count=to_switch),) if to_switch else (),
            device_nodes=(f"/dev/nvidia{minor}",),
        )


# A GPU that the file describes without a model, of which nothing is known but what it says.
PLAIN = NvidiaBoard(brand="", mig_capable=None, well={"recovery_action": "None"})


def _board(
    well: Mapping[str, Any],
    product_name: str,
    architecture: str,
    compute_capability: str,
    memory_mib: int,
    *,
    count: int,
    slices: int | None = None,
    **more: Any,
) -> NvidiaBoard:
    """`slices`: multiprocessors of one compute slice, where the board can have MIG devices."""
    return NvidiaBoard(
        well=well,
        product_name=product_name,
        architecture=architecture,
        compute_capability=compute_capability,
        memory_mib=memory_mib,
        count=count,
        mig_capable=slices is not None,
        mig_multiprocessors=slices,
        **more,
    )


_HOPPER = {"slices": 16, "nvlinks_to_switch": 18}
_BLACKWELL = {"slices": 18, "nvlinks_to_switch": 18}
BOARDS = {
    "h100": _board(WELL, "NVIDIA H100 80GB HBM3", "Hopper", "9.0", 81_559, count=8, machine_type="DGXH100", **_HOPPER),
    "h200": _board(WELL, "NVIDIA H200", "Hopper", "9.0", 143_771, count=8, machine_type="DGXH200", **_HOPPER),
    "a100": _board(
        WELL_A100, "NVIDIA A100-SXM4-80GB", "Ampere", "8.0", 81_920, count=8,
        machine_type="DGXA100", slices=14, nvlinks_to_switch=12,
    ),
    "b200": _board(
        WELL_BLACKWELL, "NVIDIA B200", "Blackwell", "10.0", 183_359, count=8, machine_type="DGXB200", **_BLACKWELL
    ),
    "gb200": _board(
        WELL_BLACKWELL, "NVIDIA GB200", "Blackwell", "10.0", 189_471, count=4,
        machine_type="GB200 NVL", clique=CLIQUE, **_BLACKWELL,
    ),
    "l40s": _board(WELL_ALONE, "NVIDIA L40S", "Ada Lovelace", "8.9", 46_068, count=4),
    "l4": _board(WELL_ALONE, "NVIDIA L4", "Ada Lovelace", "8.9", 23_034, count=4),
    "t4": _board(WELL_ALONE, "Tesla T4", "Turing", "7.5", 15_360, count=4),
    "h100nvl": _board(WELL_ALONE, "NVIDIA H100 NVL", "Hopper", "9.0", 95_830, count=2, slices=16, bridged=12),
}  # fmt: skip
