"""NVIDIA's boards, and what their devices have: MIG, NVLink, compute capability, `/dev/nvidia<minor>`.

Memory is what nvidia-smi shows as total on such a board. Ids are made from the node's name and the index.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nodedevices_common.quantity import MEBIBYTE

from nodedevices_probe.nvidia import attributes as nvidia
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


BOARDS = {
    "h100": NvidiaBoard(
        well=WELL,
        product_name="NVIDIA H100 80GB HBM3",
        architecture="Hopper",
        compute_capability="9.0",
        memory_mib=81559,
        mig_capable=True,
        mig_multiprocessors=16,
        nvlinks_to_switch=18,
        machine_type="DGXH100",
        count=8,
    ),
    "h200": NvidiaBoard(
        well=WELL,
        product_name="NVIDIA H200",
        architecture="Hopper",
        compute_capability="9.0",
        memory_mib=143771,
        mig_capable=True,
        mig_multiprocessors=16,
        nvlinks_to_switch=18,
        machine_type="DGXH200",
        count=8,
    ),
    "a100": NvidiaBoard(
        well=WELL_A100,
        product_name="NVIDIA A100-SXM4-80GB",
        architecture="Ampere",
        compute_capability="8.0",
        memory_mib=81920,
        mig_capable=True,
        mig_multiprocessors=14,
        nvlinks_to_switch=12,
        machine_type="DGXA100",
        count=8,
    ),
    "b200": NvidiaBoard(
        well=WELL_BLACKWELL,
        product_name="NVIDIA B200",
        architecture="Blackwell",
        compute_capability="10.0",
        memory_mib=183359,
        mig_capable=True,
        mig_multiprocessors=18,
        nvlinks_to_switch=18,
        machine_type="DGXB200",
        count=8,
    ),
    "gb200": NvidiaBoard(
        well=WELL_BLACKWELL,
        product_name="NVIDIA GB200",
        architecture="Blackwell",
        compute_capability="10.0",
        memory_mib=189471,
        mig_capable=True,
        mig_multiprocessors=18,
        nvlinks_to_switch=18,
        machine_type="GB200 NVL",
        count=4,
        clique=CLIQUE,
    ),
    "l40s": NvidiaBoard(
        well=WELL_ALONE,
        product_name="NVIDIA L40S",
        architecture="Ada Lovelace",
        compute_capability="8.9",
        memory_mib=46068,
        count=4,
    ),
    "l4": NvidiaBoard(
        well=WELL_ALONE,
        product_name="NVIDIA L4",
        architecture="Ada Lovelace",
        compute_capability="8.9",
        memory_mib=23034,
        count=4,
    ),
    "t4": NvidiaBoard(
        well=WELL_ALONE,
        product_name="Tesla T4",
        architecture="Turing",
        compute_capability="7.5",
        memory_mib=15360,
        count=4,
    ),
    "h100nvl": NvidiaBoard(
        well=WELL_ALONE,
        product_name="NVIDIA H100 NVL",
        architecture="Hopper",
        compute_capability="9.0",
        memory_mib=95830,
        mig_capable=True,
        mig_multiprocessors=16,
        bridged=12,
        count=2,
    ),
}
