"""MIG devices of a simulated GPU: short entries in, whole partitions out, by NVIDIA's geometry.

A GPU has 7 compute and 8 memory slices; a profile `<g>g.<m>gb` takes g of the former and as many of the latter as its
memory needs, at a start that is a multiple of their number rounded up to a power of two. What is impossible is a
CheckError that names the entry.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from nodedevices_common.quantity import from_bytes

from nodedevices_probe import nvidia
from nodedevices_probe.files.check import CheckError, shown
from nodedevices_probe.node.sysfs import mig_device_nodes
from nodedevices_probe.protocol import Partition
from nodedevices_probe.simulated.boards.board import identity

PROFILE = re.compile(r"(?:(?P<c>[1-7])c\.)?(?P<g>[1-7])g\.(?P<gb>[0-9]{1,3})gb(?:[+-][a-z0-9.]{1,12}){0,3}")
COMPUTE_SLICES = 7
MEMORY_SLICES = 8
GIB = 1 << 30


def partitions(
    entries: Sequence[Mapping[str, Any]],
    *,
    place: str,
    node: str,
    index: int,
    minor: int,
    memory_bytes: int,
    multiprocessors_per_slice: int | None,
    mig_minors: Mapping[tuple[int, int, int | None], int],
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
        gi = entry["gi"] if "gi" in entry else _unused(taken_gi)
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
                id=entry.get("id", f"MIG-{identity(node, index, gi, ci)}"),
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
                else mig_device_nodes(dict(mig_minors) or _driver_minors(minor, gi, ci), minor, gi, ci),
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
    whole = max(1, round(memory_bytes / GIB))
    return max(1, min(MEMORY_SLICES, round(gigabytes * MEMORY_SLICES / whole)))


def _start(where: str, entry: Mapping[str, Any], size: int, placed: Mapping[int, tuple[int, int]]) -> int:
    """The first free place, or the one that the entry names."""
    used = {slice_ for start, length in placed.values() for slice_ in range(start, start + length)}
    step = 1 << (size - 1).bit_length()
    candidates = [entry["start"]] if "start" in entry else range(0, MEMORY_SLICES, step)
    for start in candidates:
        wanted = set(range(start, start + size))
        if start + size <= MEMORY_SLICES and not wanted & used:
            return start
    raise CheckError(f"{where}: no room for {size} memory slices; a GPU has {MEMORY_SLICES}, and {len(used)} are taken")


def _unused(taken: set[int]) -> int:
    return next(number for number in range(1, 65536) if number not in taken)


def _driver_minors(gpu: int, gi: int, ci: int) -> dict[tuple[int, int, int | None], int]:
    """As the driver numbers them: 135 for each GPU from 3 on, 9 for each GPU instance, then its compute instances."""
    access = 3 + 135 * gpu + 9 * gi
    return {(gpu, gi, None): access, (gpu, gi, ci): access + 1 + ci}
