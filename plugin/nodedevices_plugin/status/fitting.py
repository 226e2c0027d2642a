"""Makes a status one that the API server takes: of a size that etcd accepts, and without fields that its CRD lacks.

The schema bounds each list, not their sum: 256 devices of 64 partitions with 256 holders each are many MiB, and etcd
takes 1.5 MiB. A report that is refused as a whole would hide faults. So parts are left out in steps, healthy devices'
first: holders, then partitions. The report says how many are missing (`holdersTruncated`, `partitionsTruncated`). No
physical device is ever left out, nor its health.

A server-side apply with a single field that the CRD does not know is refused as a whole: an agent that is newer than
the CRDs (they were set back, or the DaemonSet was updated before them) would report nothing any more. The schema that
the API server itself publishes (OpenAPI v3 of the group, which every authenticated client may read) says which fields
to leave out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

MAX_STATUS_BYTES = 1_000_000  # etcd's 1.5 MiB without spec, managedFields and what the operator adds
MANAGED_BYTES = 64  # of managedFields for each device: k:{"id":"GPU-<uuid>"}
HEALTHY = "Healthy"
DETAILS = ("notices", "history", "links")  # of a device; the last to go, with the attributes that a vendor adds

Device = dict[str, Any]
Status = Mapping[str, Any]


def fitting(status: Status, most_bytes: int = MAX_STATUS_BYTES) -> Status:
    """Return the status in wire form, unchanged where it fits, else cut. Equal ones are cut equally."""
    found = status
    for cut in _CUTS:
        size = len(json.dumps(found, separators=(",", ":"), default=str))
        if size + MANAGED_BYTES * len(found.get("devices", ())) <= most_bytes:
            break
        found = cut(found)
    return found


def _of_each(cut: Callable[[Device], Device]) -> Callable[[Status], Status]:
    return lambda status: {**status, "devices": [cut(dict(device)) for device in status.get("devices", ())]}


def _holders(most: int, *, faulty: bool) -> Callable[[Status], Status]:
    """Keep so many holders of each device that is healthy, or `faulty`: the oldest, as elsewhere."""

    def cut(device: Device) -> Device:
        holders = device.get("holders", ())
        if len(holders) > most and _is_faulty(device) == faulty:
            oldest = sorted(range(len(holders)), key=lambda at: str(holders[at].get("since", "")))
            device["holders"] = [holders[at] for at in sorted(oldest[:most])]
            device["holdersTruncated"] = device.get("holdersTruncated", 0) + len(holders) - most
        return device

    return _of_each(cut)


def _partitions(most: int, *, faulty: bool) -> Callable[[Status], Status]:
    """Keep so many partitions of each device that are healthy, or `faulty`; held ones before others. Holders of the
    others count for the device."""

    def cut(status: Status) -> Status:
        parts = [device for device in status.get("devices", ()) if "parent" in device and _is_faulty(device) == faulty]
        seen: Counter[str] = Counter()
        held: Counter[str] = Counter()  # by device, by what is left out
        gone = set()
        for part in sorted(parts, key=lambda part: not part.get("holders")):
            seen[part["parent"]] += 1
            if seen[part["parent"]] > most:
                gone.add(part["id"])
                held[part["parent"]] += len(part.get("holders", ())) + part.get("holdersTruncated", 0)
        kept = [dict(device) for device in status.get("devices", ()) if device["id"] not in gone]
        for device in kept:
            if more := held[device["name"]] if "parent" not in device else 0:
                device["holdersTruncated"] = device.get("holdersTruncated", 0) + more
        truncated = status.get("partitionsTruncated", 0) + len(gone)
        return {**status, "devices": kept} | ({"partitionsTruncated": truncated} if truncated else {})

    return cut


def _details(device: Device) -> Device:
    kept = {key: value for key, value in device.items() if key not in DETAILS}
    if attributes := kept.get("attributes"):
        kept["attributes"] = {key: value for key, value in attributes.items() if key != "extra"}
    return kept


def _is_faulty(device: Device) -> bool:
    return str((device.get("health") or {}).get("state", "")) != HEALTHY


_CUTS: tuple[Callable[[Status], Status], ...] = (
    *(_holders(most, faulty=False) for most in (16, 4, 1, 0)),
    *(_partitions(most, faulty=False) for most in (16, 4, 0)),
    *(_holders(most, faulty=True) for most in (16, 4, 1)),
    *(_partitions(most, faulty=True) for most in (16, 4, 1)),
    _of_each(_details),
)


# --- fields that the CRD lacks ---------------------------------------------------------------------------------------
_PRESERVED = "x-kubernetes-preserve-unknown-fields"


def status_schema(document: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    """Return the schema of the status of this kind from an OpenAPI v3 document of its group and version; None: the
    document does not have it."""
    schemas = (document.get("components") or {}).get("schemas") or {}
    for schema in schemas.values():
        kinds = {gvk.get("kind") for gvk in schema.get("x-kubernetes-group-version-kind") or ()}
        if kind in kinds:
            found: Mapping[str, Any] | None = (schema.get("properties") or {}).get("status")
            return found
    return None


def without_unknown(status: Mapping[str, Any], schema: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the status without what the schema has no field for, and the paths of what was left out, such as
    `status.devices[].history`."""
    left_out: dict[str, None] = {}
    return _known(status, schema, "status", left_out), tuple(left_out)


def _known(value: Any, schema: Mapping[str, Any], path: str, left_out: dict[str, None]) -> Any:
    if isinstance(value, list | tuple) and isinstance(schema.get("items"), Mapping):
        most = schema.get("maxItems", len(value))
        if len(value) > most:
            left_out[f"{path}[{most}:]"] = None
        return [_known(each, schema["items"], f"{path}[]", left_out) for each in value[:most]]
    if not isinstance(value, Mapping) or schema.get(_PRESERVED):
        return value
    if isinstance(every := schema.get("additionalProperties"), Mapping):
        return {key: _known(field, every, f"{path}.{key}", left_out) for key, field in value.items()}
    if "properties" not in schema:
        return value
    fields = schema["properties"]
    left_out |= {f"{path}.{key}": None for key in value if key not in fields}
    return {key: _known(field, fields[key], f"{path}.{key}", left_out) for key, field in value.items() if key in fields}
