"""Cuts a status that etcd would refuse to a size that it accepts.

The schema bounds each list, not their sum: 256 devices of 64 partitions with 64 holders each are many MiB, and etcd
takes 1.5 MiB. A report that is refused as a whole would hide faults. So parts are left out in steps, healthy devices'
first: holders, then partitions. A device says how many are missing (`holdersTruncated`, `partitionsTruncated`). No
device is ever left out, nor its health.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

MAX_STATUS_BYTES = 1_000_000  # etcd's 1.5 MiB without spec, managedFields and what the operator adds
HEALTHY = "Healthy"
DETAILS = ("notices", "history", "links")  # of a device; the last to go, with the attributes that a vendor adds

Device = dict[str, Any]


def fitting(status: Mapping[str, Any], most_bytes: int = MAX_STATUS_BYTES) -> Mapping[str, Any]:
    """Return the status in wire form, unchanged where it fits, else cut. Equal ones are cut equally."""
    found = status
    for cut in _CUTS:
        if len(json.dumps(found, separators=(",", ":"), default=str)) <= most_bytes:
            break
        found = {**found, "devices": [cut(dict(device)) for device in found.get("devices", ())]}
    return found


def _holders(most: int, *, faulty: bool) -> Callable[[Device], Device]:
    """Keep so many holders of each part that is healthy, or `faulty`: the oldest, as elsewhere."""

    def cut(device: Device) -> Device:
        dropped = 0
        parts = []
        for part in (device, *map(dict, device.get("partitions", ()))):
            holders = part.get("holders", ())
            if len(holders) > most and (_state(part, device) != HEALTHY) == faulty:
                oldest = sorted(range(len(holders)), key=lambda at: (str(holders[at].get("since", "")), at))[:most]
                part["holders"] = [holders[at] for at in sorted(oldest)]
                dropped += len(holders) - most
            parts.append(part)
        if len(parts) > 1:
            device["partitions"] = parts[1:]
        if dropped:
            device["holdersTruncated"] = device.get("holdersTruncated", 0) + dropped
        return device

    return cut


def _partitions(most: int, *, faulty: bool) -> Callable[[Device], Device]:
    """Keep so many partitions of each device that are healthy, or `faulty`; held ones before others."""

    def cut(device: Device) -> Device:
        parts = device.get("partitions", ())
        concerned = [at for at, part in enumerate(parts) if (_state(part, device) != HEALTHY) == faulty]
        gone = set(sorted(concerned, key=lambda at: (not parts[at].get("holders"), at))[most:])
        if gone:
            device["partitions"] = [part for at, part in enumerate(parts) if at not in gone]
            device["partitionsTruncated"] = device.get("partitionsTruncated", 0) + len(gone)
            if lost := sum(len(parts[at].get("holders", ())) for at in gone):
                device["holdersTruncated"] = device.get("holdersTruncated", 0) + lost
        return device

    return cut


def _details(device: Device) -> Device:
    kept = {key: value for key, value in device.items() if key not in DETAILS}
    if attributes := kept.get("attributes"):
        kept["attributes"] = {key: value for key, value in attributes.items() if key != "extra"}
    return kept


def _state(part: Mapping[str, Any], device: Mapping[str, Any]) -> str:
    """A partition without its own health has its device's."""
    return str((part.get("health") or device.get("health") or {}).get("state", ""))


_CUTS: tuple[Callable[[Device], Device], ...] = (
    *(_holders(most, faulty=False) for most in (16, 4, 1, 0)),
    *(_partitions(most, faulty=False) for most in (16, 4, 0)),
    *(_holders(most, faulty=True) for most in (16, 4, 1)),
    *(_partitions(most, faulty=True) for most in (16, 4, 1)),
    _details,
)
