"""NVIDIA's boards, and what their devices have: MIG, NVLink, compute capability, `/dev/nvidia<minor>`.

Memory is what nvidia-smi shows as total on such a board. Ids are made from the node's name and the index.

MIG devices are short entries in, whole partitions out, by NVIDIA's geometry: a GPU has 7 compute and 8 memory slices; a
profile `<g>g.<m>gb` takes g of the former and as many of the latter as its memory needs, at a start that is a multiple
of their number rounded up to a power of two. What is impossible is a CheckError that names the entry.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nodedevices_common.quantity import MEBIBYTE, from_bytes

from nodedevices_probe import nvidia
from nodedevices_probe.files import CheckError, shown
from nodedevices_probe.node.sysfs import mig_device_nodes
from nodedevices_probe.protocol import SWITCH, DeviceFact, Driver, Link, Partition
from nodedevices_probe.simulated.boards import Board, Seat, identity, loaded

PROFILE = re.compile(r"(?:(?P<c>[1-7])c\.)?(?P<g>[1-7])g\.(?P<gb>[0-9]{1,3})gb(?:[+-][a-z0-9.]{1,12}){0,3}")
COMPUTE_SLICES = 7
MEMORY_SLICES = 8
GIB = 1 << 30


def partitions(
    entries: Sequence[Mapping[str, Any]],
    seat: Seat,
    place: str,
    *,
    minor: int,
    memory_bytes: int,
    multiprocessors_per_slice: int | None,
) -> tuple[Partition, ...]:
    """The MIG devices of one GPU. Two entries with the same `gi` are compute instances of one GPU instance."""
    made: list[Partition] = []
    placed: dict[int, tuple[int, int]] = {}
    compute_used = 0
    taken_gi = {entry["gi"] for entry in entries if "gi" in entry}
    for number, entry in enumerate(entries):
        where = f"{place}[{number}]"
        match = PROFILE.fullmatch(entry["profile"])
        if match is None:
            raise CheckError(
                f"{where}.profile: {shown(entry['profile'])} is not a MIG profile; give one such as 1g.10gb"
            )
        gi_slices = entry.get("giSlices", int(match["g"]))
        ci_slices = entry.get("ciSlices", int(match["c"] or gi_slices))
        gi = entry["gi"] if "gi" in entry else next(free for free in range(1, 65536) if free not in taken_gi)
        taken_gi.add(gi)
        ci = entry.get("ci", sum(1 for partition in made if partition.gi == gi))
        if gi not in placed:
            size = entry.get("size", _memory_slices(int(match["gb"]), memory_bytes))
            placed[gi] = (_start(where, entry, size, placed), size)
            compute_used += gi_slices
            if compute_used > COMPUTE_SLICES:
                raise CheckError(
                    f"{where}: {compute_used} compute slices in all are too many; a GPU has {COMPUTE_SLICES}"
                )
        start, size = placed[gi]
        if any(partition.gi == gi and partition.ci == ci for partition in made):
            raise CheckError(f"{where}.ci: GPU instance {gi} already has a compute instance {ci}; give each its own")
        multiprocessors = multiprocessors_per_slice and multiprocessors_per_slice * ci_slices
        profile_id = nvidia.PROFILE_IDS.get(gi_slices, 0)
        made.append(
            Partition(
                id=entry.get("id", f"MIG-{identity(seat.node, seat.index, gi, ci)}"),
                name=nvidia.mig_name(f"gpu-{minor}", entry["profile"], profile_id, start, ci),
                profile=entry["profile"],
                index=entry.get("index", number),
                gi=gi,
                ci=ci,
                start=start,
                size=size,
                capacity=_capacity(entry, memory_bytes * size // MEMORY_SLICES, multiprocessors, gi_slices),
                device_nodes=tuple(entry["deviceNodes"])
                if "deviceNodes" in entry
                else mig_device_nodes(dict(seat.mig_minors) or _driver_minors(minor, gi, ci), minor, gi, ci),
            )
        )
    return tuple(sorted(made, key=lambda partition: partition.index))


def _capacity(entry: Mapping[str, Any], memory: int, multiprocessors: int | None, copy_engines: int) -> dict[str, str]:
    """By the names of NVIDIA's DRA driver; the entry's own name comes first."""
    memory = entry.get("memoryBytes", memory)
    usual = {"multiprocessors": multiprocessors, "copyEngines": copy_engines}
    names = ("multiprocessors", "copyEngines", "decoders", "encoders", "jpegEngines", "ofaEngines")
    counted = nvidia.counts({name: entry.get(name, usual.get(name)) for name in names})
    return ({"memory": from_bytes(memory)} if memory else {}) | counted


def _memory_slices(gigabytes: int, memory_bytes: int) -> int:
    return max(1, min(MEMORY_SLICES, round(gigabytes * MEMORY_SLICES / max(1, round(memory_bytes / GIB)))))


def _start(where: str, entry: Mapping[str, Any], size: int, placed: Mapping[int, tuple[int, int]]) -> int:
    """The first free place, or the one that the entry names."""
    used = {slice_ for start, length in placed.values() for slice_ in range(start, start + length)}
    step = 1 << (size - 1).bit_length()
    for start in [entry["start"]] if "start" in entry else range(0, MEMORY_SLICES, step):
        if start + size <= MEMORY_SLICES and used.isdisjoint(range(start, start + size)):
            return start
    raise CheckError(f"{where}: no room for {size} memory slices; a GPU has {MEMORY_SLICES}, and {len(used)} are taken")


def _driver_minors(gpu: int, gi: int, ci: int) -> dict[tuple[int, int, int | None], int]:
    """As the driver numbers them: 135 for each GPU from 3 on, 9 for each GPU instance, then its compute instances."""
    access = 3 + 135 * gpu + 9 * gi
    return {(gpu, gi, None): access, (gpu, gi, ci): access + 1 + ci}


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

    def device(self, seat: Seat, entry: Mapping[str, Any], place: str) -> DeviceFact:
        minor, mig = entry.get("minor", seat.index), entry.get("mig", [])
        to_switch = entry.get("nvlinksToSwitch", self.nvlinks_to_switch)
        return replace(
            Board.device(self, seat, entry, place),
            id=f"GPU-{identity(seat.node, seat.index)}",
            minor=minor,
            extra=nvidia.attributes(
                compute_capability=entry.get("computeCapability", self.compute_capability),
                mig_capable=entry.get("migCapable", bool(mig) or self.mig_capable),
                mig_enabled=entry.get("migEnabled", bool(mig)),
            ),
            partitions=partitions(
                mig,
                seat,
                f"{place}.mig",
                minor=minor,
                memory_bytes=entry.get("memoryBytes", self.memory_mib * MEBIBYTE),
                multiprocessors_per_slice=self.mig_multiprocessors,
            ),
            links=(Link(kind="NVLink", to=SWITCH, count=to_switch),) if to_switch else (),
            device_nodes=(f"/dev/nvidia{minor}",),
        )


# A GPU that the file describes without a model, of which nothing is known but what it says.
PLAIN = NvidiaBoard(brand="", mig_capable=None, well={"recovery_action": "None"})


def _board(
    well: Mapping[str, Any], product: str, architecture: str, capability: str, memory_mib: int, **more: Any
) -> NvidiaBoard:
    """`more`: further fields. A board can have MIG devices if it says how many multiprocessors a compute slice has."""
    return NvidiaBoard(
        well=well,
        product_name=product,
        architecture=architecture,
        compute_capability=capability,
        memory_mib=memory_mib,
        mig_capable="mig_multiprocessors" in more,
        **more,
    )


_HOPPER = {"mig_multiprocessors": 16, "nvlinks_to_switch": 18}
_BLACKWELL = {"mig_multiprocessors": 18, "nvlinks_to_switch": 18}
BOARDS = {
    "h100": _board(WELL, "NVIDIA H100 80GB HBM3", "Hopper", "9.0", 81_559, count=8, machine_type="DGXH100", **_HOPPER),
    "h200": _board(WELL, "NVIDIA H200", "Hopper", "9.0", 143_771, count=8, machine_type="DGXH200", **_HOPPER),
    "a100": _board(
        WELL_A100, "NVIDIA A100-SXM4-80GB", "Ampere", "8.0", 81_920, count=8,
        machine_type="DGXA100", mig_multiprocessors=14, nvlinks_to_switch=12,
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
    "h100nvl": _board(
        WELL_ALONE, "NVIDIA H100 NVL", "Hopper", "9.0", 95_830, count=2, mig_multiprocessors=16, bridged=12
    ),
}  # fmt: skip
